"""What every experiment promises, whatever it computes: each command here is killed, resumed, refused, listed, checked and removed.

A new producer is a row in `PRODUCERS`. Three rows run in the fast suite, all of them in the slow one.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys

import pytest

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
PATIENCE = 600
#: By name: the words after `sonde`, the kind of its run, and an option that makes it another experiment. `{talker}`, `{tasks}` and
#: `{played}` are made by `brought`.
PRODUCERS = {
    "layers": ("study layers -m tiny-llama --texts 2 --tokens 8 --windows 2 --orders 1", "layers", "--orders 2"),
    "play": ("play 20q -m tiny-llama -n 2 --max-steps 2 --max-new-tokens 4", "play", "--seed 1"),
    "circuits-find": (
        "circuits find -m tiny-llama --task induction --pairs 12 --method eap --edges 20", "circuits", "--pairs 14",
    ),
    "20q": ("study 20q -m {talker} --episodes 10 --steps 3 --layers 5 --steer-episodes 3 --seed 3", "study-20q", "--steps 2"),
    "compare": ("study compare 20q -m tiny-gpt2 -m tiny-llama -n 2 --max-steps 1", "compare", "--seed 1"),
    "critical-steps": (
        "study critical-steps 20q -m tiny-llama -n 2 --layers 0,2 --rollouts 1 --heads 1 --max-steps 2 --max-new-tokens 4",
        "critical-steps", "--rollouts 2",
    ),
    "binding": ("study binding -m seed-0 --pairs 10", "binding", "--pairs 11"),
    "circuits-compare": (
        "circuits compare -m tiny-llama --task induction --pairs 12 --methods exact-node,random", "circuits", "--seed 1",
    ),
    "trace-episode": ("trace episode {played} 0 --layers 2", "trace episode", "--layers 1"),
    "bench-train": (
        "bench train iit -i 3 --epochs 1 --batch-size 32 --lr 0.005 --pool 4 --threshold 0.2 --early-stop", "bench-train", "--pool 5",
    ),
    "bench-run": ("bench run eap -i 3 --tracr --pairs 20", "bench-run", "--pairs 22"),
    "bench-eval": ("bench eval iit -i 3 --interp-bench --rows 200 --pairs 20", "bench-eval", "--rows 201"),
    "leaderboard": (
        "bench leaderboard --tracr --cases 3,11 --methods exact-node,random --pairs 20", "leaderboard", "--pairs 22",
    ),
    "lab-depth": ("lab depth -m tiny-llama --words 3", "depth", "--words 4"),
    "lab-measure": ("lab measure skip:1 -m tiny-llama -t capitals -n 4 --controls 1", "measure", "--controls 2"),
    "lab-translate": ("lab translate -m tiny-llama --tokens 16", "translate", "--tokens 17"),
    "programs-run": (
        "programs run binding -m tiny-gpt2 -n 3 --seq-lens 2,3 --max-new-tokens 3", "programs", "--seed 1",
    ),
    "programs-seeds": ("programs seeds -m tiny-llama --max-seeds 2", "seeds", "--max-seeds 3"),
    "lab-run": ("lab run --task habit --tasks {tasks} -m tiny-llama --budget 8 --examples 6", "inquiry", "--budget 9"),
}  # fmt: skip
FAST = ("layers", "play", "circuits-find")
ALL = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in PRODUCERS]
#: Runs `sonde` and kills it after so many durable writes.
KILLED = """
import os, signal, sys
from sonde.store import documents, rows

left = int(sys.argv[1])

def counting(write):
    def call(*given, **named):
        global left
        made = write(*given, **named)
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return made
    return call

documents.keep, rows.Table.append = counting(documents.keep), counting(rows.Table.append)
from sonde._cli import main
main.app(sys.argv[2:])
"""


def sonde(folder, *words, python=("-m", "sonde"), limit=None):
    """Runs a command; its exit code and all it said."""
    done = subprocess.run(
        [sys.executable, *python, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE,
        check=False, preexec_fn=None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    text = done.stdout + done.stderr
    assert "Traceback" not in text, text
    return done.returncode, " ".join(text.split())


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """What commands name and Sonde does not have: a model that breaks the rules by chance, a task, a played run."""
    spec = importlib.util.spec_from_file_location(
        "results", pathlib.Path(__file__).parents[1] / "parity" / "test_results.py"
    )
    made, folder = importlib.util.module_from_spec(spec), tmp_path_factory.mktemp("brought")
    spec.loader.exec_module(made)
    made._talker(folder / "talker")
    made._tasks(folder / "tasks.json")
    code, text = sonde(folder, *PRODUCERS["play"][0].split(), "--run", "played", "--runs", "runs")
    assert code == 0, text
    return {"talker": folder / "talker", "tasks": folder / "tasks.json", "played": folder / "runs" / "played"}


@pytest.fixture
def words_of(request):
    """The words of a producer's command."""

    def words(name):
        asked = PRODUCERS[name][0]
        filled = asked.format(**request.getfixturevalue("brought")) if "{" in asked else asked
        return [*filled.split(), "--run", "it", "--runs", "runs"]

    return words


def content(folder):
    """What a run found: its results and stages, without times."""
    paths = sorted([folder / "results.json", *(folder / "stages").rglob("*.json")])
    found = {str(path.relative_to(folder)): json.loads(path.read_text()) for path in paths if path.name != "times.json"}
    return json.dumps(untimed(found))


def untimed(told):
    """Without what is never the same twice."""
    if isinstance(told, list):
        return [untimed(one) for one in told]
    if not isinstance(told, dict):
        return told
    times = ("timing", "crc32", "seconds", "created")
    return {key: untimed(one) for key, one in told.items() if key not in times and not key.endswith("_seconds")}


def digests(folder):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


MADE = {}


@pytest.fixture
def finished(tmp_path_factory, words_of):
    """By producer, a folder in which it has run once without a break; made when first asked for."""
    made = MADE

    def once(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            code, text = sonde(made[name], *words_of(name))
            assert code == 0, text
            assert "Run: " in text
        return made[name]

    return once


@pytest.fixture
def copied(finished, tmp_path):
    def copy(name):
        shutil.copytree(finished(name), tmp_path / "copy")
        return tmp_path / "copy"

    return copy


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE)
@pytest.mark.parametrize("name", list(PRODUCERS))
def test_killed_at_every_stage_and_resumed_it_ends_with_the_same_bytes(name, finished, words_of, tmp_path):
    kills = 0
    while (code := sonde(tmp_path, str(2 ** (kills // 3)), *words_of(name), python=("-c", KILLED))[0]) != 0:
        assert code == -9
        kills += 1
        code, text = sonde(tmp_path, "runs", "ls", "--runs", "runs")
        assert "interrupted" in text
        assert kills < 60
    assert kills >= 2
    assert content(tmp_path / "runs" / "it") == content(finished(name) / "runs" / "it")


@pytest.mark.parametrize("name", ALL)
def test_the_same_command_again_computes_nothing(name, copied, words_of):
    folder = copied(name)
    before = content(folder / "runs" / "it")
    stages = digests(folder / "runs" / "it" / "stages")
    code, text = sonde(folder, *words_of(name))
    assert code == 0, text
    assert content(folder / "runs" / "it") == before
    assert digests(folder / "runs" / "it" / "stages") == stages


@pytest.mark.parametrize("name", ALL)
def test_other_settings_under_the_same_name_are_refused_with_the_difference(name, finished, words_of):
    folder = finished(name)
    before = digests(folder)
    code, text = sonde(folder, *words_of(name), *PRODUCERS[name][2].split())
    assert code == 2
    assert "other settings" in text
    assert " was " in text
    assert "another name" in text
    assert digests(folder) == before


@pytest.mark.parametrize("name", ALL)
def test_its_run_is_listed_verified_exported_and_removed(name, copied):
    folder = copied(name)
    runs = ("--runs", "runs")
    row = json.loads(subprocess.run([sys.executable, "-m", "sonde", "runs", "ls", "--json", *runs], cwd=folder, env=ENVIRONMENT,
                                    capture_output=True, text=True, check=True).stdout)[-1]  # fmt: skip
    assert (row["id"], row["kind"], row["status"]) == ("it", PRODUCERS[name][1], "finished")
    assert sonde(folder, "runs", "show", "it", *runs)[0] == 0
    assert sonde(folder, "runs", "verify", "it", *runs)[0] == 0
    results = folder / "runs" / "it" / "results.json"
    results.write_bytes(results.read_bytes().replace(b"0", b"1", 1))
    code, text = sonde(folder, "runs", "verify", "it", *runs)
    assert (code, "results.json" in text) == (1, True)
    assert sonde(folder, "runs", "rm", "it", "--yes", *runs)[0] == 0
    assert not (folder / "runs" / "it").exists()


@pytest.mark.parametrize("name", ALL)
def test_two_processes_at_once_are_refused_and_lose_nothing(name, copied, words_of):
    folder = copied(name)
    with (folder / "runs" / "it" / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        before = content(folder / "runs" / "it")
        code, text = sonde(folder, *words_of(name))
        assert code == 1
        assert "another process" in text
        assert "running" in sonde(folder, "runs", "ls", "--runs", "runs")[1]
    assert content(folder / "runs" / "it") == before
    assert sonde(folder, *words_of(name))[0] == 0


@pytest.mark.parametrize("name", ALL)
def test_a_full_disk_is_a_clear_error_and_loses_nothing(name, finished, words_of, tmp_path):
    code, text = sonde(tmp_path, *words_of(name), limit=3000)
    assert code == 1, text
    assert "the disk is full" in text
    code, text = sonde(tmp_path, *words_of(name))
    assert code == 0, text
    assert content(tmp_path / "runs" / "it") == content(finished(name) / "runs" / "it")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize("name", list(PRODUCERS))
def test_a_folder_that_may_not_be_written_is_a_clear_error(name, tmp_path, words_of):
    (tmp_path / "runs").mkdir()
    words = [
        "bwrap",
        "--dev-bind",
        "/",
        "/",
        "--ro-bind",
        str(tmp_path / "runs"),
        str(tmp_path / "runs"),
        "--chdir",
        str(tmp_path),
    ]
    done = subprocess.run(
        [*words, sys.executable, "-m", "sonde", *words_of(name)], env=ENVIRONMENT, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Read-only file system" in " ".join(done.stderr.split())
    with contextlib.suppress(FileNotFoundError):
        assert list(pathlib.Path(tmp_path / "runs").iterdir()) == []
