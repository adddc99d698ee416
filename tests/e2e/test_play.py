"""`sonde play` as a person uses it: help, lists, mistakes, Ctrl-C, going on, and an oracle behind HTTP."""

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from typer import testing

import sonde
from sonde import store
from sonde._cli import main
from sonde.agents import playing
from sonde.core import errors

SONDE = [sys.executable, "-m", "sonde._cli.main"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", "NO_COLOR": "1"}
ENVIRONMENT.pop("SONDE_RUNS", None)


def run(*arguments, folder):
    return subprocess.run(
        [*SONDE, "play", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=ENVIRONMENT,
        timeout=280,
        check=False,
    )


def test_a_few_episodes_are_played_and_one_is_shown(tmp_path):
    done = run("20q:0:3", "-m", "tiny-llama", "-n", "3", "--max-steps", "2", "--inspect", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tiny-llama on cpu in float32: 3 episodes of 20q:0:3 (3 tasks) in 1 waves" in done.stdout
    assert "mean reward -2.00 over 3 episodes, 6 steps, 0 failed" in " ".join(done.stdout.split())
    assert "Invalid question" in done.stdout
    assert "\x1b" not in done.stdout
    assert len(list((tmp_path / "runs").glob("2*/episodes/*/episode.json"))) == 3


def test_what_can_be_played_is_listed(tmp_path):
    done = run("--list", folder=tmp_path)
    assert re.search(r"20q .*213 tasks", done.stdout)
    assert re.search(r"code .*27 tasks", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["21q"], "did you mean '20q'"),
        (["20q:a"], "there is no task 'a' among the 213"),
        (["20q:900"], "selects none of the 213 tasks"),
        ([], "say what to play"),
        (["20q", "--dtype", "int3"], "dtype must be a floating point type"),
        (["20q", "--device", "tpu9"], "device 'tpu9' cannot be used here"),
        (["20q", "-o", "step_limit"], "name=value"),
        (["20q", "--engine", "slurm"], "no engine"),
        (["20q", "-c", "blocks.77.hook_resid_post"], "blocks.77"),
        (["20q", "-o", "oracle=llm"], "needs oracle_model"),
    ],
)
def test_a_mistake_is_explained_in_a_line(tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SONDE_RUNS", raising=False)
    done = testing.CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(
        main.app, ["play", "-m", "tiny-llama", *arguments]
    )
    assert done.exit_code in (1, 2)
    assert told in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output


def test_a_mistake_goes_to_standard_error(tmp_path):
    done = run("21q", "-m", "tiny-llama", folder=tmp_path)
    assert done.returncode in (1, 2)
    assert "did you mean '20q'" in done.stderr
    assert "Traceback" not in done.stderr


def steps_in(folder):
    found = [folder / "runs" / "it" / "episodes" / f"{index:05d}" / "steps.jsonl" for index in range(4)]
    return sum(path.read_bytes().count(b"\n") for path in found if path.exists())


def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(tmp_path):
    settings = ["20q:0:4", "-m", "tiny-llama", "-n", "4", "--max-new-tokens", "24", "--max-steps", "12"]
    command = [*SONDE, "play", *settings, "--run", "it"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    limit = time.monotonic() + 200
    while steps_in(tmp_path) < 6 and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"go on with: sonde play {' '.join(settings)} --run it" in out
    assert "Traceback" not in err
    before = steps_in(tmp_path)
    assert 6 <= before < 48
    assert store.Run.open(tmp_path / "runs" / "it").status == "interrupted"
    other = run(*settings, "--run", "it", "--dtype", "bfloat16", folder=tmp_path)
    assert other.returncode == 2
    assert "its weights are of type bfloat16, not float32" in " ".join(other.stderr.split())
    done = run(*settings, "--run", "it", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert steps_in(tmp_path) == 48
    whole = run(*settings, "--run", "other", folder=tmp_path)
    assert whole.returncode == 0
    for index in range(4):
        one, other = (
            (tmp_path / "runs" / name / "episodes" / f"{index:05d}" / "steps.jsonl").read_bytes()
            for name in ("it", "other")
        )
        assert one == other


# An oracle behind HTTP.


class Oracle(http.server.BaseHTTPRequestHandler):
    """Answers what `says` says, after `waits` seconds."""

    says, waits, status = "No", 0.0, 200

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.waits)
        body = json.dumps(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [
                    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": self.says}}
                ],
                "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
            }
        ).encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def oracle(monkeypatch):
    handler = type("Handler", (Oracle,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield handler
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def model():
    with sonde.load("tiny-llama") as loaded:
        yield loaded


def ask(model, folder, **options):
    settings = {"episodes": 2, "max_steps": 2, "runs_dir": folder, "run": "it"}
    return playing.play("20q:0:2", model, options={"oracle": "llm", "oracle_model": "m"}, **settings, **options)


def test_a_model_behind_http_can_be_the_oracle(oracle, model, tmp_path):
    played = ask(model, tmp_path)
    assert [moment.info["answer"] for moment in played[0].trajectory.moments] == ["No", "No"]


def test_an_oracle_that_talks_nonsense_is_named(oracle, model, tmp_path):
    oracle.says = "Perhaps on Tuesdays"
    with pytest.raises(errors.ServerError, match="Perhaps on Tuesdays"):
        ask(model, tmp_path)
    oracle.says = "Yes"
    played = ask(model, tmp_path)
    assert [episode.error for episode in played] == [None, None]


def test_an_oracle_that_is_down_stops_the_run_and_it_goes_on_when_it_is_up(model, tmp_path, monkeypatch, request):
    from sonde.agents import openai_client

    real = openai_client.OpenAIClient
    monkeypatch.setattr(openai_client, "OpenAIClient", lambda name: real(name, retries=1, backoff=0.01))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(errors.ServerError, match=r"127\.0\.0\.1:9"):
        ask(model, tmp_path)
    request.getfixturevalue("oracle")
    assert [episode.steps for episode in ask(model, tmp_path)] == [2, 2]


def test_an_oracle_that_is_too_slow_stops_the_run(oracle, model, tmp_path, monkeypatch):
    from sonde.agents import openai_client

    real = openai_client.OpenAIClient
    monkeypatch.setattr(openai_client, "OpenAIClient", lambda name: real(name, retries=0, timeout=0.2))
    oracle.waits = 2.0
    with pytest.raises(errors.ServerError, match=r"0\.2"):
        ask(model, tmp_path)
