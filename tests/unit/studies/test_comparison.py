"""Models on the same tasks: paired, told, taken up, and refused where there is nothing to compare."""

import json
import shlex

import pytest
import typer.main

from sonde import experiments, store
from sonde._cli import study as cli
from sonde.core import errors
from sonde.studies import comparison

MODELS = ["tiny-llama", "tiny-gpt2"]
SMALL = {"episodes": 3, "max_steps": 2, "seed": 1, "generation": {"temperature": 0.8, "max_new_tokens": 4}}


def compare(folder, models=MODELS, *, environment="20q", tell=None, dtype="float32", **options):
    chosen = comparison.CompareSettings(environment=environment, models=tuple(models), **{**SMALL, **options})
    return experiments.run(comparison.Compare(dtype=dtype), chosen, run="it", runs_dir=folder, on_progress=tell)


def untimed(folder):
    told = json.loads((folder / "results.json").read_text())
    return {name: value for name, value in told.items() if name != "timing"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return compare(tmp_path_factory.mktemp("runs"))


def test_both_models_play_the_same_tasks_and_are_compared_game_by_game(found):
    told = found.results
    assert told["games"] == 3
    assert list(told["means"]) == MODELS
    assert list(told["versus"]) == ["tiny-gpt2"]
    assert told["versus"]["tiny-gpt2"]["length"]["pairs"] == 3
    means = [told["means"][name]["length"]["value"] for name in MODELS]
    assert told["versus"]["tiny-gpt2"]["length"]["effect"]["value"] == pytest.approx(means[1] - means[0])
    assert told["means"]["tiny-llama"]["invalid_rate"]["value"] == 1.0, "random weights ask no questions"
    tasks = [
        [json.loads(path.read_text())["metadata"]["task_id"] for path in sorted(folder.glob("episodes/*/episode.json"))]
        for folder in sorted((found.folder / "games").iterdir())
    ]
    assert len(tasks) == 2
    assert tasks[0] == tasks[1]
    assert len(set(tasks[0])) == 3


def test_results_and_report_are_written_and_sealed(found):
    text = (found.folder / "report.html").read_text()
    assert "tiny-gpt2 against tiny-llama, 3 games" in text
    assert (found.folder / "figures" / "invalid-rate.png").exists()
    assert store.verify_run(found.folder) == []
    held = found.run.manifest["model"]
    assert (held["device"], held["dtype"]) == ("cpu", "float32")
    for game in (found.folder / "games").iterdir():
        assert json.loads((game / "manifest.json").read_text())["model"]["dtype"] == "float32"


def test_what_was_played_is_not_played_again_and_comes_out_the_same(found):
    before = {path: path.stat().st_mtime_ns for path in found.folder.glob("games/*/episodes/*/*")}
    told = []
    again = compare(found.folder.parent, tell=told.append)
    assert again.results == found.results
    assert told == []
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_comparison_that_was_interrupted_comes_out_the_same(found, tmp_path):
    def stop(now):
        if now.what == "tiny-gpt2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(tmp_path, tell=stop)
    assert store.Run.open(tmp_path / "it").status == "interrupted"
    with pytest.raises(errors.RequestError, match="its weights are of type bfloat16, not float32"):
        compare(tmp_path, dtype="bfloat16")
    compare(tmp_path)
    assert untimed(tmp_path / "it") == untimed(found.folder)


@pytest.mark.parametrize("models", [[], ["tiny-llama"], ["tiny-llama", "tiny-gpt2", "tiny-llama"]])
def test_fewer_than_two_models_or_one_twice_are_refused(models, tmp_path):
    with pytest.raises(errors.RequestError, match="two or more different models"):
        compare(tmp_path, models)
    assert list(tmp_path.iterdir()) == []


def test_one_game_cannot_be_compared_and_none_is_played(tmp_path):
    with pytest.raises(errors.RequestError, match="episodes must be 2 or more, got 1"):
        compare(tmp_path, episodes=1)
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_other_models_is_refused(found):
    with pytest.raises(errors.RequestError, match=r"started with other settings.*models was"):
        compare(found.folder.parent, MODELS[::-1])


def test_the_command_on_the_page_asks_for_the_same(found):
    chosen = comparison.CompareSettings(**{**found.results["settings"], "models": ("tiny-llama", "./my model")})
    words = shlex.split(comparison.Compare().command(chosen))
    assert words[:3] == ["sonde", "study", "compare"]
    asked = typer.main.get_command(cli.app).commands["compare"].make_context("compare", words[3:]).params
    assert asked["model"] == ["tiny-llama", "./my model"]
    assert (asked["environment"], asked["episodes"], asked["max_steps"], asked["seed"]) == ("20q", 3, 2, 1)
    assert asked["temperature"] == 0.8


def test_other_environments_are_compared_by_reward_steps_and_length(tmp_path):
    told = compare(tmp_path, environment="code", episodes=2, max_steps=1).results
    assert set(told["means"]["tiny-llama"]) == {"reward", "steps", "length", "invalid_rate"}
    assert told["means"]["tiny-llama"]["steps"]["value"] == 1.0
    assert told["means"]["tiny-llama"]["invalid_rate"] is None
