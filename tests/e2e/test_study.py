"""`sonde study` as typed: whole, stage by stage, stopped, killed, taken up, and asked wrongly."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from sonde import store
from sonde.testing import planted

SMALL = ("--episodes", "10", "--steps", "3", "--layers", "5", "--steer-episodes", "3", "--seed", "3")
PATIENCE = 600
LONG = ("--model", "tiny-llama", "--episodes", "64", "--steps", "20", "--layers", "3")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


STARTED = []


@pytest.fixture(autouse=True)
def none_is_left():
    """A test that fails leaves no process at work."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()


def start(folder, *words):
    command = [sys.executable, "-m", "sonde._cli.main", "study", *words, "--runs", str(folder)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=folder
    )
    STARTED.append(process)
    return process


def ended(process):
    out, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in out + err, err
    return process.returncode, " ".join((out + err).replace("│", " ").split())


def study(folder, *words):
    return ended(start(folder, *words))


def untimed(folder):
    told = json.loads((folder / "results.json").read_bytes())
    told.pop("timing")
    return json.dumps(told)


def wait_for(condition, process):
    """Until it holds; the process must be at work meanwhile."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < until
        time.sleep(0.01)


def steps_of(folder):
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("episodes/*/steps.jsonl"))


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    """A folder with a model that asks one valid question, or says one invalid thing, by chance."""
    folder = tmp_path_factory.mktemp("models") / "talker"
    with planted.model(null=True) as made:
        made.hf.save_pretrained(folder)
        made.tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text())
    vocab = told["model"]["vocab"]
    vocab["Is it alive?"], vocab["Nonsense."] = vocab.pop(planted.VALID), vocab.pop(planted.INVALID)
    path.write_text(json.dumps(told))
    return str(folder)


@pytest.fixture(scope="module")
def whole(talker, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    code, text = study(folder, "20q", "--model", talker, *SMALL, "--run", "it")
    assert code == 0, text
    return folder / "it", text


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE)
def test_the_command_says_how_long_it_takes_what_it_found_and_where_the_report_is(whole):
    folder, text = whole
    assert "10 games of up to 3 messages, 1 layers. About" in text
    assert f"Report: {folder / 'report.html'}" in text
    assert "headline" in text
    assert (folder / "report.html").stat().st_size > 1_000_000
    told = json.loads((folder / "results.json").read_text())
    assert not any(one["holds"] for one in told["claims"])
    assert 0.2 < told["collect"]["invalid_rate"]["value"] < 0.8
    assert {turn["message"] for turn in told["steer"]["examples"][0]["transcripts"]["unsteered"]} <= {
        "Is it alive?",
        "Nonsense.",
    }


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE)
def test_stages_one_by_one_take_the_settings_of_the_run_and_give_the_same(whole, talker, tmp_path):
    assert study(tmp_path, "20q", "collect", "--model", talker, *SMALL, "--run", "it")[0] == 0
    code, text = study(tmp_path, "20q", "steer", "--run", "it")
    assert code == 2
    assert "run it has no finished stage 'probe' of study-20q: run that first" in text
    for stage in ("probe", "evolution", "steer", "report"):
        code, text = study(tmp_path, "20q", stage, "--run", "it")
        assert code == 0, text
    assert untimed(tmp_path / "it") == untimed(whole[0])


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE)
def test_killed_in_collect_and_in_steer_it_comes_out_the_same(whole, talker, tmp_path):
    words = ("20q", "--model", talker, *SMALL, "--run", "it")
    for stage, least in (("collect", 5), ("collect", 15), ("steer", 10), ("steer", 40)):
        process = start(tmp_path, *words)
        wait_for(lambda s=stage, n=least: steps_of(tmp_path / "it" / "games" / s) >= n, process)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert not (tmp_path / "it" / "stages" / f"{stage}.json").exists()
    code, text = study(tmp_path, *words)
    assert code == 0, text
    assert untimed(tmp_path / "it") == untimed(whole[0])


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE)
def test_two_processes_on_one_run_do_no_harm(whole, talker, tmp_path):
    words = ("20q", "--model", talker, *SMALL, "--run", "it")
    first, second = start(tmp_path, *words), start(tmp_path, *words)
    results = [ended(first), ended(second)]
    assert {code for code, _ in results} <= {0, 1}
    for code, text in results:
        assert code == 0 or "being written" in text or "already" in text, text
    assert study(tmp_path, *words)[0] == 0
    assert untimed(tmp_path / "it") == untimed(whole[0])


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE)
def test_killed_in_training_it_comes_out_the_same(tmp_path):
    words = ("binding", "train", "--layers", "1", "--steps", "600", "--told", "1", "--run", "it")
    folders = {name: tmp_path / name / "it-training" for name in ("whole", "killed")}
    for folder in folders.values():
        folder.parent.mkdir()
    code, text = study(folders["whole"].parent, *words)
    assert code == 0, text
    for least in (1, 12, 14):
        process = start(folders["killed"].parent, *words)
        log = folders["killed"] / "tables" / "log.jsonl"
        wait_for(lambda path=log, n=least: path.exists() and path.read_bytes().count(b"\n") >= n, process)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    code, text = study(folders["killed"].parent, *words)
    assert code == 0, text
    assert "Report: " in text
    for name in ("model/model.safetensors", "model/recipe.json", "snapshots/step-000500.safetensors"):
        assert (folders["whole"] / name).read_bytes() == (folders["killed"] / name).read_bytes(), name
    found = [json.loads((folder / "results.json").read_bytes()) for folder in folders.values()]
    for one in found:
        del one["timing"]
        for row in one["train"]["log"]:
            del row["seconds"]
    assert found[0] == found[1]
    assert store.Run.open(folders["killed"]).verify() == []
    code, text = study(folders["killed"].parent, *words[:-2], "--seed", "1", "--run", "it")
    assert code == 2
    assert "seed was 0, now 1" in text


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE)
def test_a_traced_model_killed_between_models_comes_out_the_same(tmp_path):
    words = ("binding", "-m", "seed-0", "-m", "seed-1", "--pairs", "10", "--run", "it")
    process = start(tmp_path, *words)
    first = tmp_path / "it" / "stages" / "trace" / "00000.json"
    wait_for(first.exists, process)
    before = first.read_bytes()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    code, text = study(tmp_path, *words)
    assert code == 0, text
    assert first.read_bytes() == before
    kept = store.Run.open(tmp_path / "it")
    assert (kept.status, kept.manifest["kind"], kept.verify()) == ("finished", "binding", [])
    code, text = study(tmp_path, "binding", "report", "--run", "it")
    assert code == 0, text
    assert "seed-1, control" in text


def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(tmp_path):
    process = start(tmp_path, "20q", "collect", *LONG, "--run", "it")
    wait_for(lambda: steps_of(tmp_path / "it" / "games" / "collect") >= 5, process)
    process.send_signal(signal.SIGINT)
    code, text = ended(process)
    assert code == 130
    assert "Stopped. What is finished is kept; go on with: sonde study 20q collect --model tiny-llama" in text
    assert "--run it" in text.split("go on with:")[1]


def test_what_is_on_disk_already_is_looked_at_before_it_is_gone_on_with(tmp_path, invoke):
    small = ("--episodes", "6", "--steps", "2", "--layers", "3", "--run", "it", "--runs", str(tmp_path))
    code, text = invoke("20q", "--model", "tiny-llama", *small)
    assert code == 2
    assert "sonde: all 12 rows are invalid: a probe needs both classes" in text
    code, text = invoke("20q", "--model", "tiny-gpt2", *small)
    assert code == 2
    assert "sonde: run it was started with other settings (model was 'tiny-llama', now 'tiny-gpt2'" in text
    path = tmp_path / "it" / "stages" / "collect.json"
    path.write_bytes(path.read_bytes().replace(b'"messages": 12', b'"messages": 13'))
    code, text = invoke("20q", "probe", "--run", "it", "--runs", str(tmp_path))
    assert code == 1
    assert "collect.json: the checksum does not match the content" in text
    for words in (("probe",), ("all", "--model", "tiny-llama")):
        code, text = invoke("20q", *words, "--run", "collect", "--runs", str(tmp_path / "it" / "games"))
        assert code == 2
        assert "run collect is of kind 'play', not 'study-20q'" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nonsense",), "choose all, collect, probe, steer, evolution, report; got 'nonsense'"),
        (("probe",), "say which run to go on with: --run NAME"),
        (("probe", "--run", "it"), "there is no run 'it' at"),
        (("--layers", "9"), "tiny-llama has no layer 9: its layers are 0 to 3"),
        (("--layers", "one"), "write 0,5,10 or 0:30:5, got 'one'"),
        (("--layers", "3:3"), "layers must have 1 or more"),
        (("--temperatures", "hot"), "write numbers such as 0.7,1.0, got 'hot'"),
        (("--temperatures", "0"), "temperatures.0 must be more than 0"),
        (("--strengths", "1,,2"), "write numbers such as 0.7,1.0, got '1,,2'"),
        (("--strengths", "0"), "strengths.0 must be more than 0"),
        (("--strengths", "-2"), "strengths.0 must be more than 0"),
        (("--strengths", "nan"), "strengths.0 must be a finite number"),
        (("--episodes", "3"), "3 episodes cannot fill the 5 folds"),
        (("--option", "oracle"), "write name=value, got 'oracle'"),
        (("--run", "../it"), "run id '../it' cannot be a folder name"),
    ],
)
def test_what_is_asked_wrongly_is_said_in_one_line_and_leaves_nothing_behind(words, message, tmp_path, invoke):
    code, text = invoke("20q", "--model", "tiny-llama", *words, "--runs", str(tmp_path))
    assert code in (1, 2)
    assert message in text
    assert list(tmp_path.iterdir()) == []


def test_models_are_compared_and_the_report_is_named(tmp_path, invoke):
    words = ("compare", "20q", "-m", "tiny-llama", "-m", "tiny-gpt2", "-n", "2", "--max-steps", "1", "--run", "it")
    code, text = invoke(*words, "--runs", str(tmp_path))
    assert code == 0, text
    assert f"Report: {tmp_path / 'it' / 'report.html'}" in text
    assert "tiny-gpt2 against tiny-llama, 2 games" in text
    code, text = invoke("compare", "20q", "-m", "tiny-llama", "-m", "tiny-llama", "--runs", str(tmp_path))
    assert code == 2
    assert "give two or more different models" in text


@pytest.fixture
def invoke(monkeypatch):
    """Runs a command in this process: its exit code, and what it said, in one line."""
    from typer import testing

    from sonde._cli import main

    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERM", "dumb")

    def run(*words):
        found = testing.CliRunner().invoke(main.app, ["study", *words])
        assert found.exception is None or isinstance(found.exception, SystemExit), repr(found.exception)
        return found.exit_code, " ".join(found.output.replace("│", " ").split())

    return run
