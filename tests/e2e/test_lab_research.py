"""`sonde lab run` and its relatives, typed as a user types them."""

import json

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
                 "--examples", "6", "--runs", str(runs))  # fmt: skip
    return runs, done


def test_a_run_ends_with_a_results_page(researched):
    runs, done = researched
    assert "Results:" in done.stdout
    assert "the intact model solves" in done.stdout
    folder = runs / "lab" / "q1"
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Refuted and open hypotheses" in page
    assert "http://" not in page.split("<script")[0]
    data = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert data["spent"]["experiments"] <= 12
    assert (folder / "results.md").read_text(encoding="utf-8").startswith("# Inquiry q1")
    assert list((folder / "figures").glob("*.png"))


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
     (("run", "--planner", "serch"), "did you mean 'search'"), (("run", "--resume", "q99"), "no q99"),
     (("approve", "a99"), "no a99"), (("log", "query", "runs"), "did you mean 'run'"), (("log", "show", "zz"), "no id"),
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
