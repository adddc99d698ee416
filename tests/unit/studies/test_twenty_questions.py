"""The Twenty Questions study: its stages one by one, taken up, asked wrongly, and told."""

import copy
import html
import json
import shlex
import shutil

import numpy as np
import pytest
import torch
import typer.main

import sonde
from sonde import experiments, store, testing
from sonde._cli import screens
from sonde._cli import study as cli
from sonde.agents import playing
from sonde.analysis import examples
from sonde.capture import records as capture_records
from sonde.core import errors
from sonde.models import identity
from sonde.report import page
from sonde.store import documents
from sonde.studies.twenty_questions import claims, outcomes, pages, settings, steering, study
from sonde.studies.twenty_questions import rows as study_rows
from sonde.testing import planted

STEPS = 3
PROBES = {"folds": 2, "inner_folds": 2, "least": 2, "deals": 9, "shuffles": 1}
#: Games end after three messages, so that most steps are reached by nobody.
TINY = {
    "layers": (3,), "environment": "planted", "episodes": 8, "steer_episodes": 2, "steps": 20, "strengths": (1.0,),
    "random": 1, "probes": PROBES, "least": 2, "permutations": 99,
}  # fmt: skip


def games(**world):
    world = {"steps": STEPS, **world}
    return settings.Games(*(lambda seed=seed: planted.PlantedEnvironment(8, seed=seed, **world) for seed in (0, 1)))


def tiny(model, **changes):
    return settings.settings_of(model, **{**TINY, **changes})


def run(model, folder, chosen=None, *, own=None, **options):
    """Runs the study, or some of its stages, as the run `it` of a folder."""
    experiment = study.TwentyQuestions(model, own or games())
    return experiments.run(experiment, chosen or tiny(model), run="it", runs_dir=folder, **options)


def stage(name, *rest, **options):
    """Runs one stage, and returns what it found."""
    found = run(*rest, stages=[name], **options)
    return documents.read(found.folder / "stages" / f"{name}.json")


def untimed(folder):
    told = json.loads((folder / "results.json").read_bytes())
    assert set(told.pop("timing")) == {"collect", "probe", "steer", "evolution"}
    return json.dumps(told)


@pytest.fixture(scope="module")
def model():
    with planted.model() as made:
        yield made


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """A study, all stages."""
    return run(model, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of its folder that may be broken."""
    shutil.copytree(whole.folder, tmp_path / "it")
    return tmp_path / "it"


# Settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"episodes": 1}, "episodes must be 2 or more, got 1"),
        ({"episodes": 4, "probes": {"folds": 5}}, "4 episodes cannot fill the 5 folds"),
        ({"layers": ()}, "layers must have 1 or more"),
        ({"layers": (2, 6)}, "has no layer 6: its layers are 0 to 5"),
        ({"layers": (-1,)}, "has no layer -1"),
        ({"strengths": (0.0,)}, "strengths.0 must be more than 0.0, got 0.0"),
        ({"strengths": (2.0, -1.0)}, "strengths.1 must be more than 0.0, got -1.0"),
        ({"strengths": (float("nan"),)}, "strengths.0 must be a finite number, got nan"),
        ({"strengths": (float("inf"),)}, "strengths.0 must be a finite number, got inf"),
        ({"temperatures": ()}, "temperatures must have 1 or more"),
        ({"episods": 3}, "there is no setting 'episods'; did you mean 'episodes'"),
    ],
)
def test_impossible_settings_are_refused(model, changes, message):
    with pytest.raises((errors.RequestError, errors.SiteError), match=message):
        tiny(model, **changes)


def test_an_unknown_size_is_refused(model):
    with pytest.raises(errors.RequestError, match="no size 'big': choose one of small, full"):
        settings.settings_of(model, "big")


def test_settings_are_the_same_after_a_trip_through_json(model):
    chosen = tiny(model, options={"oracle": "rules"}, strengths=(8, 2, 4))
    assert settings.TwentyQuestionsSettings.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    assert chosen.strength == 4.0


@pytest.mark.parametrize(("count", "of"), [(1, 1), (1, 6), (3, 6), (5, 6), (6, 6), (9, 6), (6, 30), (10, 30), (29, 30)])
def test_layers_are_spread_to_the_last_and_there_are_as_many_as_asked_for(count, of):
    found = settings.spread(count, of)
    assert len(found) == min(count, of)
    assert found[-1] == of - 1
    assert found[0] >= 0
    assert np.ptp(np.diff(found)) <= 1 if len(found) > 1 else True


def test_objects_to_judge_by_are_not_those_to_learn_from():
    training, judging_by = settings.split(0)
    assert not set(training) & set(judging_by)
    assert len(training) + len(judging_by) == len({*training, *judging_by})
    assert settings.split(0) == settings.split(0) != settings.split(1)


# Rows


def test_features_are_what_the_model_computes_anew_before_and_after_speaking(model, whole):
    """Bit by bit they may differ: batches round differently."""
    found = study_rows.Rows.load(whole.folder)
    played = playing.play(
        games().train, model, run="collect", runs_dir=whole.folder / "games", **_as_collected(whole.folder)
    )
    site = "blocks.3.hook_resid_post"
    for row in (0, STEPS + 1):
        episode, step = int(found.examples.episodes[row]), int(found.examples.steps[row])
        game = played[episode].trajectory
        call = game.steps[step].calls[-1]
        tokens = game.records.whole(capture_records.TOKENS)[torch.from_numpy(call.records)].tolist()
        _, cache = model.run_with_cache(tokens, site)
        values = cache[site][0].numpy()
        prompt, said = values[: call.prompt_length], values[call.prompt_length :]
        expected = {
            "last_prompt": prompt[-1],
            "mean_prompt": prompt.mean(axis=0),
            "mean_generated": said.mean(axis=0),
            "last_generated": said[-1],
        }
        for name, value in expected.items():
            np.testing.assert_allclose(found.features[3, name][row], value, atol=1e-4)
        assert bool(found.examples.labels[row]) == (found.examples.texts[row].strip() != planted.VALID)


def _as_collected(folder):
    told = store.Run.open(folder / "games" / "collect").manifest["settings"]
    kept = {name: told[name] for name in ("episodes", "seed", "max_steps", "wave")}
    return {**kept, "capture": {"hook_filter": told["capture"]["sites"]}, "generation": told["generation"]}


def test_what_is_known_before_a_message_is_not_the_message(whole):
    found = study_rows.Rows.load(whole.folder).examples
    for row in np.flatnonzero(found.steps == 0):
        assert planted.VALID not in found.before[row].split()
    row = int(np.flatnonzero(found.steps == 1)[0])
    assert found.before[row].split("\n")[1] == found.texts[row - 1]


def test_a_step_that_nobody_reached_is_no_cell_and_no_error(whole):
    steps = {one["step"] for one in whole.results["collect"]["by_step"]}
    assert steps == set(range(STEPS))
    cells = whole.results["probe"]["sweep"]
    assert {one["step"] for one in (*cells["cells"], *cells["skipped"])} == {None, *range(STEPS)}
    assert whole.results["steer"]["means"]["unsteered"]["invalid_rate_5_9"] is None


def test_asking_for_a_step_that_nobody_reached_says_so(whole):
    rows = study_rows.Rows.load(whole.folder)
    cells = {examples.Cell(3, "last_prompt", 7): rows.features[3, "last_prompt"]}
    with pytest.raises(errors.AnalysisError, match="step 7"):
        sonde.analysis.probes.sweep(cells, rows.examples, examples.Settings(**PROBES))


def test_games_without_verdicts_are_refused(model, tmp_path):
    own = settings.Games(testing.ScriptedEnvironment, testing.ScriptedEnvironment)
    chosen = tiny(model, steps=1, environment="scripted")
    with pytest.raises(errors.AnalysisError, match="has no verdict"):
        stage("collect", model, tmp_path, chosen, own=own)


def test_the_temperature_is_the_one_whose_pilot_is_nearest_to_the_aim(model, tmp_path):
    chosen = tiny(model, temperatures=(0.2, 8.0, 0.3), pilot=4, aim=0.5, layers=(3,))
    found = stage("collect", model, tmp_path, chosen, own=games(valid_share=1.0))
    shares = {one["temperature"]: one["invalid"] / one["messages"] for one in found["pilots"]}
    assert shares[0.2] < 0.1 < shares[8.0]
    assert found["temperature"] == 8.0


# Stages


def test_every_stage_runs_alone_in_order_and_gives_what_they_give_together(whole, model, tmp_path):
    experiment = study.TwentyQuestions(model, games())
    for name in ("probe", "steer", "evolution"):
        with pytest.raises(errors.RequestError, match="run it has no finished stage 'collect' of study-20q"):
            stage(name, model, tmp_path)
    with pytest.raises(errors.RequestError, match="run it has no finished stage 'collect' of study-20q"):
        run(model, tmp_path, stages=())
    for name in ("collect", "probe", "evolution", "steer"):
        assert name in experiments.pending(experiment, "it", tmp_path)
        stage(name, model, tmp_path)
        assert name not in experiments.pending(experiment, "it", tmp_path)
    assert untimed(tmp_path / "it") == untimed(whole.folder), "the same seed gives the same numbers, byte by byte"


def test_another_seed_gives_other_numbers(whole, model, tmp_path):
    found = stage("collect", model, tmp_path, tiny(model, seed=1))
    assert found["invalid_rate"] != whole.results["collect"]["invalid_rate"]


def test_a_stage_on_disk_is_not_computed_again(copied, model):
    told = []
    found = run(model, copied.parent, on_progress=told.append)
    assert told == []
    assert found.results["timing"] == json.loads((copied / "results.json").read_bytes())["timing"]


def test_the_report_alone_is_built_again_from_the_stages(whole, copied, model):
    for name in ("results.json", "report.html"):
        (copied / name).unlink()
    shutil.rmtree(copied / "figures")
    run(model, copied.parent, stages=())
    for name in ("results.json", "report.html", "figures/invalid-by-condition.png"):
        assert (copied / name).read_bytes() == (whole.folder / name).read_bytes(), name
    assert store.Run.open(copied).verify() == []


@pytest.mark.parametrize(
    "doing", ["collect: games", "collect: reading", "probe: map", "steer: games", "steer: fluency", "evolution"]
)
def test_a_stage_that_was_interrupted_comes_out_the_same(whole, copied, model, doing):
    name = doing.split(":")[0]
    shutil.rmtree(copied / "games" / name, ignore_errors=True)
    path = copied / "stages" / f"{name}.json"
    path.unlink()
    if name == "collect":
        (copied / "rows.json").unlink()
        (copied / study_rows.FEATURES).unlink()

    def stop(now):
        if now.what == doing and now.done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, copied.parent, stages=[name], on_progress=stop)
    assert not path.exists()
    run(model, copied.parent)
    assert path.read_bytes() == (whole.folder / "stages" / path.name).read_bytes()
    assert (copied / study_rows.FEATURES).read_bytes() == (whole.folder / study_rows.FEATURES).read_bytes()
    assert untimed(copied) == untimed(whole.folder)
    assert store.Run.open(copied).verify() == []


# Asked wrongly


def test_a_run_of_another_model_or_other_settings_is_refused(whole, model, llama):
    folder = whole.folder.parent
    with pytest.raises(errors.RequestError, match=r"model was 'planted.*', now 'tiny-llama'"):
        run(llama, folder)
    with pytest.raises(errors.RequestError, match="episodes was 8, now 9"):
        run(model, folder, tiny(model, episodes=9))
    with pytest.raises(errors.RequestError, match=r"the settings are for 'planted.*', the model is 'tiny-llama'"):
        run(llama, folder, tiny(model))


def test_a_run_of_a_bfloat16_model_goes_on_with_that_and_no_other(tmp_path):
    with sonde.load("tiny-llama", dtype="bfloat16") as model:
        chosen = tiny(model, episodes=2, steps=1, probes={**PROBES, "folds": 2})
        stage("collect", model, tmp_path, chosen)
    found, record = experiments.recorded(study.TwentyQuestions, "it", tmp_path)
    assert found == chosen
    with identity.rebuilt(record) as again:
        assert again.hf.dtype == torch.bfloat16
        assert stage("collect", again, tmp_path, chosen)["messages"] == 2
    with sonde.load("tiny-llama") as other, pytest.raises(errors.RequestError, match="of type float32, not bfloat16"):
        run(other, tmp_path, chosen)


def test_the_settings_of_a_run_are_found_and_a_run_of_another_kind_is_refused(whole, model):
    folder = whole.folder.parent
    assert experiments.recorded(study.TwentyQuestions, "it", folder)[0] == tiny(model)
    with pytest.raises(errors.RequestError, match=r"there is no run 'that'.*sonde study 20q --run that"):
        experiments.recorded(study.TwentyQuestions, "that", folder)
    with pytest.raises(errors.RequestError, match="of kind 'play'"):
        experiments.recorded(study.TwentyQuestions, "collect", whole.folder / "games")


def test_a_stage_that_does_not_exist_is_refused(copied, model):
    with pytest.raises(errors.RequestError, match="no stage 'prob': choose one of collect, probe"):
        stage("prob", model, copied.parent)


def test_games_of_your_own_have_a_name_of_their_own(model, tmp_path):
    for own, environment in ((None, "planted"), (games(), "20q")):
        with pytest.raises(errors.RequestError, match=f"are for games of '{environment}'.*a name of their own"):
            experiments.run(study.TwentyQuestions(model, own), tiny(model, environment=environment), runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_one_class_only_says_what_to_change(tmp_path):
    with planted.model(gap=15.0) as sure:
        own = games(valid_share=1.0)
        assert stage("collect", sure, tmp_path, own=own)["invalid_rate"]["value"] == 0.0
        with pytest.raises(errors.AnalysisError, match="all 24 rows are valid: a probe needs both classes"):
            stage("probe", sure, tmp_path, own=own)
    kept = store.Run.open(tmp_path / "it")
    assert kept.status == "failed"
    assert "all 24 rows are valid" in kept.manifest["error"]


@pytest.mark.parametrize("name", ["stages/collect.json", "stages/probe.json", "rows.json", "features.safetensors"])
def test_a_damaged_file_is_named(copied, model, name):
    (copied / "stages" / "evolution.json").unlink()
    path = copied / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.DamagedError, match=f"{name}: the checksum does not match"):
        stage("evolution", model, copied.parent)


def test_fewer_than_two_games_under_all_conditions_cannot_be_compared(model):
    with pytest.raises(errors.AnalysisError, match="0 games were finished under all 2 conditions"):
        steering.judged({"unsteered": {}, "static +1": {}}, [], tiny(model))


# Told


def test_headlines_are_corrected_over_each_other(whole):
    stages = copy.deepcopy(dict(whole.results))
    for name, p in (("before", 0.012), ("after", 0.3)):
        stages["probe"]["nested"][name]["claim_p"] = p
    stages["steer"]["claim_p"], stages["evolution"]["claim_p"] = 0.02, 0.6
    found = {one.name: one for one in claims.of_stages(stages)}
    assert [one.adjusted for one in found.values()] == pytest.approx([0.048, 0.6, 0.06, 0.6])
    assert {name for name, one in found.items() if one.holds} == {"knows before speaking"}
    assert "? Yes (p = 0.048" in found["knows before speaking"].sentence
    assert "? Not shown (p = 0.06" in found["steering works"].sentence


def test_hostile_text_of_a_game_is_inert_on_the_page(whole):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    results = copy.deepcopy(dict(whole.results))
    harmless = page.render(pages.report(results))
    for one in results["steer"]["examples"]:
        one["task"] = evil
        for turns in one["transcripts"].values():
            for turn in turns:
                turn["message"] = turn["verdict"] = evil
    results["settings"]["model"] = evil
    text = page.render(pages.report(results))
    assert "alert(1)" in text
    assert text.count("<script") == harmless.count("<script")
    assert text.count("<img") == harmless.count("<img")
    assert "onerror=alert(1)>" not in text


def test_the_page_says_what_it_was_made_with(whole):
    text = html.unescape((whole.folder / "report.html").read_text())
    for one in whole.results["claims"]:
        assert claims.QUESTIONS[one["name"]] in text
    for one in whole.results["steer"]["conditions"]:
        assert one["name"] in text
    assert "permutations" in text


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        ("small", {}),
        ("full", {}),
        ("full", {"steps": 8, "episodes": 12}),
        ("small", {"strengths": (8.0, 2.0, 4.0), "temperatures": (0.123456789, 1.0), "seed": 7, "layers": (1, 3)}),
        ("small", {"options": {"oracle": "rules", "step_limit": 4, "loud": True, "code": "12"}}),
    ],
)
def test_the_command_on_the_page_gives_the_same_settings(llama, size, changes):
    chosen = settings.settings_of(llama, size, **changes)
    words = shlex.split(study.TwentyQuestions(llama).command(chosen))
    assert words[:3] == ["sonde", "study", "20q"]
    parser = typer.main.get_command(cli.app).commands["20q"]
    asked = parser.make_context("20q", words[3:]).params
    again = settings.settings_of(
        llama,
        "full" if asked["full"] else "small",
        **{name: asked[name] for name in ("episodes", "steer_episodes", "steps", "seed")},
        layers=screens.whole_numbers(asked["layers"], ""),
        temperatures=screens.decimals(asked["temperatures"], ""),
        strengths=screens.decimals(asked["strengths"], ""),
        options=dict(screens.pair(text) for text in asked["option"] or ()),
    )
    assert (asked["stage"], asked["model"]) == ("all", "tiny-llama")
    assert again == chosen


def test_settings_that_no_command_gives_are_not_said_to_be_given_by_one(llama, model):
    for chosen in (
        tiny(model),
        settings.settings_of(llama, random=3),
        settings.settings_of(llama, probes={"deals": 5}),
    ):
        assert study.TwentyQuestions(llama).command(chosen).startswith("In Python")


def test_outcomes_of_all_conditions_are_told_for_every_name(whole):
    for held in whole.results["steer"]["means"].values():
        assert set(held) == set(outcomes.NAMES)
