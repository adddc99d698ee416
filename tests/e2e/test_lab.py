"""`sonde lab` and `sonde study layers` as people type them, on tiny models."""

import json
import subprocess
import sys
import time

import pytest
from typer import testing

from sonde._cli import main


@pytest.fixture
def sonde_says(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words, code=0, **options):
        done = testing.CliRunner().invoke(main.app, [str(word) for word in words], **options)
        assert done.exit_code == code, (done.output, done.exception)
        return done.output

    return run


def test_one_prompt_is_answered_by_both_models_side_by_side(sonde_says):
    words = (
        "lab",
        "chat",
        "-m",
        "tiny-llama",
        "--skip",
        "1",
        "--corrupt",
        "noise:blocks.0.hook_mlp_out@0.1",
        "-p",
        "Hi",
        "--tokens",
        4,
    )
    shown = sonde_says(*words)
    assert "intact" in shown
    assert "skip:1 + noise:blocks.0.hook_mlp_out@0.1" in shown
    assert sonde_says(*words) == shown


def test_a_talk_goes_on_until_an_empty_line(sonde_says):
    shown = sonde_says("lab", "chat", "-m", "tiny-llama", "--skip", "1", "--tokens", 4, input="Hello\nAgain\n\n")
    assert shown.count("intact") == 2
    assert sonde_says("lab", "chat", "-m", "tiny-llama", "--skip", "1", "--tokens", 4, input="").count("intact") == 0


def test_a_task_is_measured_with_controls_and_written(sonde_says, tmp_path):
    shown = sonde_says(
        "lab", "measure", "skip:1", "-m", "tiny-llama", "-t", "capitals", "-n", 4, "--controls", 1, "--run", "it"
    )
    assert "baseline" in shown
    assert "control" in shown
    assert "cannot do 'capitals'" in " ".join(shown.split())
    (result,) = json.loads((tmp_path / "runs" / "it" / "results.json").read_text())["results"]
    assert (result["corruption"], len(result["rows"])) == ("skip:1", 4)
    assert "change of the loss" in (tmp_path / "runs" / "it" / "report.html").read_text().lower()
    listed = json.loads(sonde_says("runs", "ls", "--json"))
    assert [(one["id"], one["kind"], one["status"]) for one in listed] == [("it", "measure", "finished")]
    assert "it: whole" in sonde_says("runs", "verify")
    other = ("lab", "measure", "skip:2", "-m", "tiny-llama", "-t", "capitals", "-n", 4, "--controls", 1, "--run", "it")
    assert "corruption was 'skip:1', now 'skip:2'" in " ".join(sonde_says(*other, code=2).split())


def test_shifts_and_translations_are_shown(sonde_says, tmp_path):
    assert "raised" in sonde_says("lab", "shifts", "skip:1", "Hello", "-m", "tiny-llama", "--top", 3)
    shown = sonde_says("lab", "translate", "-m", "tiny-llama", "--tokens", 16, "--run", "it")
    assert "best linear guess" in shown
    assert "control" in shown
    assert {one.name for one in (tmp_path / "runs" / "it" / "figures").iterdir()} == {
        "translate-kl.png",
        "translate-agreement.png",
    }


def test_a_task_file_is_checked(sonde_says, tmp_path):
    assert "json-closing" in sonde_says("lab", "tasks", "check")
    assert "cannot do it" in sonde_says("lab", "tasks", "check", "-m", "tiny-llama", "-t", "plurals")
    bad = {"format": 1, "tasks": [{"name": "empty", "description": "Nothing.", "examples": []}]}
    (tmp_path / "bad.json").write_text(json.dumps(bad))
    assert "'empty' has no examples" in sonde_says("lab", "tasks", "check", "bad.json", code=1)


def test_generating_without_a_sentence_or_a_server_says_what_is_missing(sonde_says, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert "in a sentence" in sonde_says("lab", "tasks", "generate", "rhymes", code=2)
    assert "key" in sonde_says("lab", "tasks", "generate", "rhymes", "Rhymes.", code=2)


def test_a_layer_that_is_not_there_is_told_in_one_line(sonde_says):
    shown = sonde_says("lab", "chat", "-m", "tiny-llama", "--skip", "7", "-p", "Hi", code=2)
    assert shown.strip() == "sonde: skip:7: no layer 7: this model has layers 0 to 3"
    assert "did you mean 'rhyme'" in sonde_says("lab", "measure", "skip:1", "-m", "tiny-llama", "-t", "rime", code=2)


def test_the_study_of_layers_writes_a_report_and_is_taken_up(sonde_says, tmp_path):
    words = (
        "study",
        "layers",
        "-m",
        "tiny-llama",
        "--texts",
        2,
        "--tokens",
        8,
        "--orders",
        1,
        "--run",
        "one",
        "--runs",
        "runs",
    )
    shown = sonde_says(*words)
    assert "Skipping one layer does most harm" in shown
    results = (tmp_path / "runs" / "one" / "results.json").read_bytes()
    assert (tmp_path / "runs" / "one" / "report.html").stat().st_size > 1_000_000
    assert "Everything is on disk" in sonde_says(*words)
    assert (tmp_path / "runs" / "one" / "results.json").read_bytes() == results


def test_the_depths_of_behaviours_become_a_table_and_a_picture(tmp_path):
    asked = ["lab", "depth", "--model", "tiny-llama", "--words", "4", "--run", "deep", "--runs", str(tmp_path), "--prompt",
             "The capital of France is", "--answer", "Paris"]  # fmt: skip
    runner = testing.CliRunner()
    done = runner.invoke(main.app, asked, env={"COLUMNS": "240"})
    assert done.exit_code == 0, done.output
    assert "repeats the last token" in done.output
    assert (tmp_path / "deep" / "report.html").is_file()
    assert (tmp_path / "deep" / "figures" / "depth.png").is_file()
    assert runner.invoke(main.app, asked, env={"COLUMNS": "240"}).exit_code == 0
    wrong = runner.invoke(main.app, ["lab", "depth", "--prompt", "a", "--answer", "b", "--answer", "c"])
    assert wrong.exit_code == 2
    assert runner.invoke(main.app, ["lab", "depth", "--own"]).exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize("items", [0, 1, 2])
@pytest.mark.parametrize(
    ("words", "stage"),
    [(("depth", "--words", 4), "depths"), (("translate", "--tokens", 16), "layers"),
     (("measure", "skip:1", "-t", "capitals", "-t", "plurals", "-t", "opposites", "-n", 6), "results")],
)  # fmt: skip
def test_what_is_killed_comes_out_as_what_was_not(sonde_says, tmp_path, words, stage, items):
    asked = [str(word) for word in ("lab", *words, "-m", "tiny-llama", "--run", "it")]
    with subprocess.Popen(
        [sys.executable, "-m", "sonde", *asked, "--runs", "killed"], stdout=subprocess.DEVNULL
    ) as going:
        run = tmp_path / "killed" / "it"
        while going.poll() is None and not (
            run.exists() and len(list((run / "stages" / stage).glob("*.json"))) >= items
        ):
            time.sleep(0.002)
        going.kill()
    assert going.returncode == -9, "it ended before it was killed"
    (row,) = json.loads(sonde_says("runs", "ls", "--json", "--runs", "killed"))
    assert (row["kind"], row["status"]) == (words[0], "interrupted")
    for runs in ("killed", "whole"):
        sonde_says(*asked, "--runs", runs)
        assert "it: whole" in sonde_says("runs", "verify", "--runs", runs)
    first, second = (json.loads((tmp_path / runs / "it" / "results.json").read_text()) for runs in ("killed", "whole"))
    assert {**first, "timing": 0} == {**second, "timing": 0}
