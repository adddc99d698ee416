"""`sonde lab run` and its relatives, typed as a user types them."""

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
import time

import pytest
import typer.testing

from sonde._cli import main

MODEL = "tiny-llama"


def sonde(*arguments, check=True):
    """Runs the command; returns what it printed."""
    done = typer.testing.CliRunner().invoke(main.app, list(arguments), env={"COLUMNS": "200"})
    assert not check or done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A task that the tiny model can do: what it says anyway."""
    import sonde as package

    prompts = [f"{letter}{letter}" for letter in "abcdefghijklmnop"]
    with package.load(MODEL) as model:
        said = [one.text[:2] for one in model.generate(prompts, max_new_tokens=4)]
    pairs = [(prompt, text) for prompt, text in zip(prompts, said, strict=True) if text.strip() and text[-1:].strip()]
    examples = [{"prompt": prompt, "answers": [text]} for prompt, text in pairs]
    task = {"name": "habit", "description": "What it says anyway.", "questions": [], "examples": examples}
    path = tmp_path_factory.mktemp("tasks") / "tasks.json"
    path.write_text(json.dumps({"format": 1, "tasks": [task]}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def researched(tmp_path_factory, tasks):
    """One whole inquiry."""
    runs = tmp_path_factory.mktemp("runs")
    done = sonde("lab", "run", "--task", "habit", "--tasks", str(tasks), "--model", MODEL, "--budget", "12",
                 "--examples", "6", "--run", "it", "--runs", str(runs))  # fmt: skip
    return runs, done


def test_a_run_ends_with_a_results_page(researched):
    runs, done = researched
    assert "Report:" in done.stdout
    assert "Inquiry: q1" in done.stdout
    assert "the intact model solves" in done.stdout
    folder = runs / "it"
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Refuted and open hypotheses" in page
    assert "sonde lab run --model tiny-llama --task habit" in page
    assert "http://" not in page.split("<script")[0]
    data = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert data["spent"]["experiments"] <= 12
    assert (folder / "results.md").read_text(encoding="utf-8").startswith("# Inquiry q1")
    assert list((folder / "figures").glob("*.png"))


def test_every_inquiry_is_a_run_that_is_listed_verified_and_refused_with_other_settings(researched, tasks):
    runs, _ = researched
    (row,) = [one for one in json.loads(sonde("runs", "ls", "--json", "--runs", str(runs)).stdout) if one["id"] == "it"]
    assert (row["kind"], row["model"], row["status"]) == ("inquiry", MODEL, "finished")
    assert "it: whole" in sonde("runs", "verify", "it", "--runs", str(runs)).stdout
    asked = (
        "lab",
        "run",
        "--task",
        "habit",
        "--tasks",
        str(tasks),
        "--model",
        MODEL,
        "--examples",
        "6",
        "--runs",
        str(runs),
    )
    assert "Everything is on disk" in sonde(*asked, "--budget", "12", "--resume", "it").stdout
    done = sonde(*asked, "--budget", "13", "--run", "it", check=False)
    assert done.exit_code == 2
    assert "budget was 12, now 13" in " ".join(done.output.split())
    (runs / "it" / "results.md").write_text("forged")
    assert "results.md" in sonde("runs", "verify", "it", "--runs", str(runs), check=False).output
    sonde(*asked, "--budget", "12", "--run", "it")


def test_the_log_is_listed_searched_grouped_shown_and_exported(researched, tmp_path):
    runs, _ = researched
    where = ("--runs", str(runs))
    assert json.loads(sonde("lab", "log", "ls", "--json", *where).stdout)[0]["inquiry"] == "q1"
    rows = json.loads(
        sonde("lab", "log", "query", "run", "-w", "split=explore", "-w", "layers~0", "--json", *where).stdout
    )
    assert rows
    assert all(row["split"] == "explore" for row in rows)
    grouped = json.loads(sonde("lab", "log", "query", "--by", "split", "-s", "kept", "--json", *where).stdout)
    assert {row["split"] for row in grouped} >= {"all", "explore"}
    assert "completion" in sonde("lab", "log", "query", "example", *where).stdout
    assert sonde("lab", "log", "show", "q1", *where).stdout.startswith("# Inquiry q1")
    assert json.loads(sonde("lab", "log", "show", "r2", *where).stdout)["rows"]
    sonde("lab", "log", "export", str(tmp_path / "log.md"), *where)
    assert (tmp_path / "log.md").exists()
    assert json.loads(sonde("lab", "verdict", "q1", "q1", "--json", *where).stdout)["votes"] == ["q1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("run", "--budget", "0"), "the budget is zero"), (("run", "--task", "arithmetics", "--model", MODEL), "did you mean 'arithmetic'"),
     (("run", "--planner", "serch"), "did you mean 'search'"), (("approve", "a99"), "no a99"), (("log", "query", "runs"), "did you mean 'run'"), (("log", "show", "zz"), "no id"),
     (("verdict", "q1"), "no q1"), (("replay", "last"), "no inquiry"), (("fork", "q1", "--at", "2"), "no q1"), (("run", "--planner", "openai"), "planner-model")],
)  # fmt: skip
def test_what_makes_no_sense_is_said_in_one_line(tmp_path, arguments, message):
    done = sonde("lab", *arguments, "--runs", str(tmp_path), check=False)
    assert done.exit_code in (1, 2)
    assert message in " ".join(done.output.split())


def test_a_task_that_the_model_cannot_do_is_flagged(tmp_path):
    done = sonde("lab", "run", "--task", "capitals", "--model", MODEL, "--runs", str(tmp_path), check=False)
    assert done.exit_code == 2
    assert "what a model cannot do cannot be broken" in " ".join(done.output.split())


def test_a_fork_takes_over_calls_and_goes_on_in_an_inquiry_of_its_own(researched):
    runs, _ = researched
    where = ("--runs", str(runs))
    words = ("lab", "fork", "last", "--at", "2", "--budget", "6", "--run", "fork", *where)
    assert "Report:" in sonde(*words).stdout
    assert "sonde lab fork q1 --at 2 --budget 6" in (runs / "fork" / "report.html").read_text(encoding="utf-8")
    assert "Everything is on disk" in sonde(*words).stdout
    data = json.loads((runs / "fork" / "results.json").read_text(encoding="utf-8"))
    assert data["inquiry"] != "q1"
    assert data["spent"]["experiments"] <= 6
    calls = json.loads(sonde("lab", "log", "query", "call", "-w", "inquiry=q1", "-s", "tool", "--json", *where).stdout)
    inherited = [one for one in data["entries"] if one["kind"] == "call" and one["inquiry"] == "q1"]
    assert [one["id"] for one in inherited] == [one["id"] for one in calls[:2]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--at", "999"), "so a fork begins at 0 to"), (("--at", "1", "--budget", "0"), "the budget is zero"), ((), "--at"),
     (("--at", "-1"), "--at"), (("--at", "1", "--planner", "serch"), "did you mean 'search'"),
     (("--at", "1", "--planner", "openai"), "planner-model")],
)  # fmt: skip
def test_a_fork_that_makes_no_sense_is_refused_and_leaves_nothing_behind(researched, arguments, message):
    runs, _ = researched
    before = sonde("lab", "log", "ls", "--json", "--runs", str(runs)).stdout
    done = sonde("lab", "fork", "q1", *arguments, "--runs", str(runs), check=False)
    assert done.exit_code in (1, 2)
    assert message in " ".join(done.output.split())
    assert sonde("lab", "log", "ls", "--json", "--runs", str(runs)).stdout == before


def test_a_replay_comes_out_the_same_and_says_so(researched):
    runs, _ = researched
    done = sonde("lab", "replay", "q1", "--run", "again", "--runs", str(runs))
    (told,) = [line for line in done.stdout.splitlines() if "calls came out the same" in line]
    same, _, every = told.split(": ")[1].split()[:3]
    assert same == every != "0"
    kinds = {one["id"]: one["kind"] for one in json.loads(sonde("runs", "ls", "--json", "--runs", str(runs)).stdout)}
    assert kinds["again"] == "inquiry"


def test_a_replay_on_other_examples_comes_out_differently_with_exit_code_one(tmp_path, tasks):
    mine, where = tmp_path / "tasks.json", ("--runs", str(tmp_path))
    mine.write_bytes(tasks.read_bytes())
    sonde("lab", "run", "--task", "habit", "--tasks", str(mine), "--model", MODEL, "--budget", "4", "--examples", "6",
          *where)  # fmt: skip
    changed = json.loads(mine.read_text(encoding="utf-8"))
    for one in changed["tasks"][0]["examples"]:
        one["answers"] = ["never said"]
    mine.write_text(json.dumps(changed), encoding="utf-8")
    done = sonde("lab", "replay", "last", *where, check=False)
    assert done.exit_code == 1
    same, of = map(int, re.search(r"(\d+) of (\d+) calls came out the same", done.stdout).groups())
    assert same == of - 3, "the sweep and the two runs came out differently; notes and hypotheses measure nothing"
    mine.unlink()
    done = sonde("lab", "replay", "q1", *where, check=False)
    assert done.exit_code in (1, 2)
    assert "tasks.json" in done.output


def test_experiments_wait_for_a_yes_from_another_terminal(tmp_path, tasks):
    words = ("lab", "run", "--task", "habit", "--tasks", tasks, "--model", MODEL, "--budget", 2, "--examples", 6)
    where = ("--runs", str(tmp_path))
    assert "Nothing waits for a yes" in sonde("lab", "approve", *where).stdout
    command = [sys.executable, "-m", "sonde._cli.main", *map(str, words), "--approve", *where]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as waiting:
        first = _asked_for(waiting, where)
        assert "yes" in sonde("lab", "approve", first, *where).stdout
        second = _asked_for(waiting, where)
        assert second != first
        assert "no" in sonde("lab", "approve", second, "--no", *where).stdout
        said, _ = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, said
    assert "Report:" in said
    calls = json.loads(sonde("lab", "log", "query", "call", "--json", *where).stdout)
    outcomes = [row["outcome"] for row in calls if row["tool"] != "note"]
    assert outcomes[:2] == ["ok", "refused"]
    for id, message in ((first, "was answered already: yes"), ("a999", "no a999"), ("q1", "id of a request")):
        done = sonde("lab", "approve", id, *where, check=False)
        assert done.exit_code == 2
        assert message in " ".join(done.output.split())


def _asked_for(waiting, where):
    """The request that waits, once there is one."""
    while waiting.poll() is None:
        if found := re.search(r"\ba\d+\b", sonde("lab", "approve", *where).stdout):
            return found[0]
        time.sleep(0.1)
    raise AssertionError(f"it ended and asked for nothing: {waiting.stdout.read()}")


@pytest.mark.slow
@pytest.mark.parametrize("entries", [1, 2, 4, 9])
def test_an_inquiry_that_is_killed_is_taken_up_and_comes_out_as_one_that_was_not(researched, tasks, tmp_path, entries):
    whole, _ = researched
    words = ("lab", "run", "--task", "habit", "--tasks", str(tasks), "--model", MODEL, "--budget", "12", "--examples", "6",
             "--run", "it", "--runs", str(tmp_path))  # fmt: skip
    with subprocess.Popen([sys.executable, "-m", "sonde", *words], stdout=subprocess.DEVNULL) as going:
        while _written(tmp_path) < entries and going.poll() is None:
            time.sleep(0.002)
        going.kill()
    assert going.returncode == -9, "it ended before it was killed"
    (row,) = json.loads(sonde("runs", "ls", "--json", "--runs", str(tmp_path)).stdout)
    assert (row["id"], row["kind"], row["status"]) == ("it", "inquiry", "interrupted")
    sonde(*words)
    first, second = (
        json.loads((runs / "it" / "results.json").read_text(encoding="utf-8")) for runs in (whole, tmp_path)
    )
    assert _plain(first) == _plain(second)
    assert "it: whole" in sonde("runs", "verify", "--runs", str(tmp_path)).stdout


def _written(runs):
    """How many entries a log has."""
    if not (runs / "lab.sqlite").exists():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(f"file:{runs / 'lab.sqlite'}?mode=ro", uri=True)) as book:
            return book.execute("SELECT COUNT(*) FROM entries").fetchone()[0]
    except sqlite3.OperationalError:  # its tables are being made
        return 0


def _plain(content):
    """Without times."""
    if isinstance(content, dict):
        return {name: _plain(value) for name, value in content.items() if name not in {"timing", "seconds", "time", "intact_seconds"}}  # fmt: skip
    return [_plain(one) for one in content] if isinstance(content, list) else content
