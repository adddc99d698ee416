"""Models on the same tasks: paired, told, taken up, and refused where there is nothing to compare."""

import json
import shlex

import pytest
import typer.main

from sonde._cli import study as cli
from sonde.core import errors
from sonde.studies import comparing

MODELS = ["tiny-llama", "tiny-gpt2"]
SMALL = {"episodes": 3, "max_steps": 2, "seed": 1, "generation": {"temperature": 0.8, "max_new_tokens": 4}}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return comparing.compare("20q", MODELS, run="it", runs_dir=tmp_path_factory.mktemp("runs"), **SMALL)


def test_both_models_play_the_same_tasks_and_are_compared_game_by_game(found):
    assert found["games"] == 3
    assert list(found["means"]) == MODELS
    assert list(found["versus"]) == ["tiny-gpt2"]
    assert found["versus"]["tiny-gpt2"]["length"]["pairs"] == 3
    means = [found["means"][name]["length"]["value"] for name in MODELS]
    assert found["versus"]["tiny-gpt2"]["length"]["effect"]["value"] == pytest.approx(means[1] - means[0])
    assert found["means"]["tiny-llama"]["invalid_rate"]["value"] == 1.0, "random weights ask no questions"
    tasks = [
        [json.loads(path.read_text())["metadata"]["task_id"] for path in sorted(folder.glob("episodes/*/episode.json"))]
        for folder in sorted((found["folder"] / "games").iterdir())
    ]
    assert len(tasks) == 2
    assert tasks[0] == tasks[1]
    assert len(set(tasks[0])) == 3


def test_results_and_report_are_written(found):
    told = json.loads((found["folder"] / "results.json").read_text())
    assert told == {name: value for name, value in found.items() if name != "folder"}
    text = (found["folder"] / "report.html").read_text()
    assert "tiny-gpt2 against tiny-llama, 3 games" in text
    assert (found["folder"] / "figures" / "invalid-rate.png").exists()


def test_what_was_played_is_not_played_again_and_comes_out_the_same(found):
    before = {path: path.stat().st_mtime_ns for path in found["folder"].glob("games/*/episodes/*/*")}
    results = (found["folder"] / "results.json").read_bytes()
    told = []
    again = comparing.compare(
        "20q", MODELS, run="it", runs_dir=found["folder"].parent, tell=lambda *now: told.append(now), **SMALL
    )
    assert again == found
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (found["folder"] / "results.json").read_bytes() == results


def test_a_comparison_that_was_interrupted_comes_out_the_same(found, tmp_path):
    def stop(name, done, of):
        if name == "tiny-gpt2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        comparing.compare("20q", MODELS, run="it", runs_dir=tmp_path, tell=stop, **SMALL)
    comparing.compare("20q", MODELS, run="it", runs_dir=tmp_path, **SMALL)
    assert (tmp_path / "it" / "results.json").read_bytes() == (found["folder"] / "results.json").read_bytes()


@pytest.mark.parametrize("models", [[], ["tiny-llama"], ["tiny-llama", "tiny-gpt2", "tiny-llama"]])
def test_fewer_than_two_models_or_one_twice_are_refused(models, tmp_path):
    with pytest.raises(errors.RequestError, match="two or more different models"):
        comparing.compare("20q", models, runs_dir=tmp_path, **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_one_game_cannot_be_compared_and_none_is_played(tmp_path):
    with pytest.raises(errors.RequestError, match="two or more episodes"):
        comparing.compare("20q", MODELS, runs_dir=tmp_path, episodes=1)
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_other_models_is_refused(found):
    with pytest.raises(errors.RequestError, match=r"started with other settings.*models was"):
        comparing.compare("20q", MODELS[::-1], run="it", runs_dir=found["folder"].parent, **SMALL)


def test_the_command_on_the_page_asks_for_the_same(found):
    words = shlex.split(comparing.command({**found["settings"], "models": ["tiny-llama", "./my model"]}))
    assert words[:3] == ["sonde", "study", "compare"]
    asked = typer.main.get_command(cli.app).commands["compare"].make_context("compare", words[3:]).params
    assert asked["model"] == ["tiny-llama", "./my model"]
    assert (asked["environment"], asked["episodes"], asked["max_steps"], asked["seed"]) == ("20q", 3, 2, 1)
    assert asked["temperature"] == 0.8


def test_other_environments_are_compared_by_reward_steps_and_length(tmp_path):
    told = comparing.compare("code", MODELS, runs_dir=tmp_path, episodes=2, max_steps=1)
    assert set(told["means"]["tiny-llama"]) == {"reward", "steps", "length", "invalid_rate"}
    assert told["means"]["tiny-llama"]["steps"]["value"] == 1.0
    assert told["means"]["tiny-llama"]["invalid_rate"] is None
