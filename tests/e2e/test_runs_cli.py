"""`sonde runs` lists, shows, checks, exports and deletes runs, and says plainly what is wrong."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from sonde import store


def sonde(*words, text_in="", **environment):
    done = subprocess.run(
        [sys.executable, "-m", "sonde._cli.main", *map(str, words)],
        input=text_in, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "NO_COLOR": "1", **environment},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def run(tmp_path):
    run = store.Run.create(tmp_path / "runs", kind="demo [x]", model="tiny-gpt2", seed=3)
    with run.new_episode(metadata={"task": "20q"}) as writer:
        writer.append_step({"action": "ask"}, {"resid": store.Array.from_numpy(np.ones((2, 4), "f4"))})
        writer.append_step({"action": "guess"}, {"resid": store.Array.from_numpy(np.ones((1, 4), "f4"))})
        writer.close({"reward": 1})
    run.new_episode().abort()
    run.finish()
    return run


def test_listing_shows_every_run(run):
    code, out, _ = sonde("runs", "ls", "--runs", run.folder.parent)
    assert code == 0
    assert re.search(rf"{run.id}.*demo \[x\].*tiny-gpt2.*finished\s+2\s+2", out)
    code, out, _ = sonde("runs", "ls", "--json", SONDE_RUNS=str(run.folder.parent))
    (row,) = json.loads(out)
    assert (row["id"], row["episodes"], row["steps"], row["folder"]) == (run.id, 2, 2, str(run.folder))


def test_an_empty_folder_says_how_to_make_a_run(tmp_path):
    code, out, err = sonde("runs", "ls", "--runs", tmp_path / "nothing")
    assert (code, err) == (0, "")
    assert "No runs" in out
    assert "sonde play 20q" in out
    assert json.loads(sonde("runs", "ls", "--json", "--runs", tmp_path)[1]) == []
    assert sonde("runs", "verify", "--runs", tmp_path)[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_showing_a_run_shows_manifest_and_episodes(run):
    code, out, _ = sonde("runs", "show", "last", "--runs", run.folder.parent)
    assert code == 0
    assert re.search(r"seed\s+3", out)
    assert re.search(r"00000\s+closed\s+2\s+1\s+1\s+", out)
    assert re.search(r"00001\s+open\s+0", out)
    found = json.loads(sonde("runs", "show", run.id[:20], "--json", "--runs", run.folder.parent)[1])
    assert found["manifest"] == run.manifest
    assert found["episodes"][0]["arrays"] == {"resid": {"dtype": "F32", "shape": [3, 4]}}


@pytest.fixture
def study(run):
    """A study in whose folder the run lies."""
    study = store.Run.create(run.folder.parent.parent / "studies", kind="study", id="study-1")
    (study.folder / "games").mkdir()
    run.folder.rename(study.folder / "games" / "collect")
    return study


def test_the_games_of_a_study_are_shown_and_exported_by_their_path(study, tmp_path):
    runs = ("--runs", study.folder.parent)
    assert re.search(r"study-1.*interrupted\s+2\s+2", sonde("runs", "ls", *runs)[1])
    code, out, _ = sonde("runs", "show", "last", *runs)
    assert code == 0
    assert re.search(r"games/collect.*finished\s+2\s+2", out)
    assert "sonde runs show last/games/collect" in out
    assert json.loads(sonde("runs", "show", "last", "--json", *runs)[1])["runs"][0]["id"] == "games/collect"
    assert re.search(r"00000\s+closed\s+2", sonde("runs", "show", "study/games/collect", *runs)[1])
    code, _, err = sonde("runs", "export", "last", "--out", tmp_path / "tables", *runs)
    assert code == 2
    assert "export one of last/games/collect" in err
    assert "//" not in sonde("runs", "export", "last/", "--out", tmp_path / "tables", *runs)[2]
    assert sonde("runs", "export", "last/games/collect", "--out", tmp_path / "tables", *runs)[0] == 0
    assert pq.read_table(tmp_path / "tables" / "steps.parquet").num_rows == 2


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("study-1/games/colect", "no run 'games/colect' within"),
        ("study-1/..", "no run '..' within"),
        ("study-1/games", "no run 'games' within"),
        ("/", "no run '/' in"),
        ("/games/collect", "no run '/games/collect' in"),
        ("", "no run '' in"),
    ],
)
def test_a_path_that_is_no_run_is_refused_in_one_line(study, word, said):
    code, out, err = sonde("runs", "show", word, "--runs", study.folder.parent)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err


def test_a_run_is_also_named_by_its_folder_as_a_shell_completes_it(study):
    game = study.folder / "games" / "collect"
    for word in (f"{study.folder}/", f"{os.path.relpath(study.folder)}/"):
        code, out, err = sonde("runs", "show", word, "--runs", study.folder.parent)
        assert (code, err) == (0, "")
        assert f"sonde runs show {word}games/collect" in out
    assert sonde("runs", "verify", game, "--runs", study.folder.parent)[1].startswith("collect: whole")


def test_a_damaged_game_is_named_with_its_study(study):
    path = study.folder / "games" / "collect" / "episodes" / "00000" / "activations.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    code, out, err = sonde("runs", "verify", "--runs", study.folder.parent)
    assert (code, out) == (1, "study-1: 1 damaged\n")
    assert str(path) in err


def test_deleting_a_study_says_how_many_games_go_with_it(study):
    _, out, _ = sonde("runs", "rm", "last", "--runs", study.folder.parent, text_in="n\n")
    assert "with 2 episodes for good?" in out


def test_an_unknown_run_is_answered_with_the_nearest_in_one_line(run):
    typo = run.id.replace("-", "_")
    code, out, err = sonde("runs", "show", typo, "--runs", run.folder.parent)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert f"did you mean '{run.id}'" in err


def test_an_ambiguous_beginning_is_refused(run):
    store.Run.create(run.folder.parent, kind="other")
    code, _, err = sonde("runs", "show", run.id[:2], "--runs", run.folder.parent)
    assert code == 2
    assert "any of 2 runs" in err


def test_a_whole_run_verifies_and_a_damaged_one_is_named(run):
    code, out, _ = sonde("runs", "verify", "--runs", run.folder.parent)
    assert (code, out) == (0, f"{run.id}: whole\n")
    path = run.folder / "episodes" / "00000" / "activations.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    code, out, err = sonde("runs", "verify", run.id, "--runs", run.folder.parent)
    assert code == 1
    assert "1 damaged" in out
    assert f"{path}, array 'resid', step 1" in err


def test_a_damaged_episode_does_not_hide_the_others(run):
    (run.folder / "episodes" / "00000" / "steps.jsonl").write_text("x\n")
    code, out, _ = sonde("runs", "show", "last", "--runs", run.folder.parent)
    assert code == 0
    assert re.search(r"00000\s+damaged", out)
    assert re.search(r"00001\s+open", out)


def test_deleting_asks_first(run):
    code, out, _ = sonde("runs", "rm", run.id, "--runs", run.folder.parent, text_in="n\n")
    assert code == 1
    assert "with 2 episodes for good?" in out
    assert run.folder.exists()
    assert sonde("runs", "rm", run.id, "--runs", run.folder.parent, text_in="y\n")[0] == 0
    assert not run.folder.exists()


def test_deleting_without_asking(run):
    code, out, _ = sonde("runs", "rm", run.id, "--yes", "--runs", run.folder.parent)
    assert (code, out) == (0, f"Deleted {run.id}.\n")
    assert json.loads(sonde("runs", "ls", "--json", "--runs", run.folder.parent)[1]) == []


def test_exporting_writes_what_other_tools_read(run, tmp_path):
    words = ["runs", "export", "last", "--runs", run.folder.parent, "--out"]
    code, out, _ = sonde(*words, tmp_path / "tables", "--array", "resid")
    assert code == 0
    assert out.count("Wrote ") == 2
    assert pq.read_table(tmp_path / "tables" / "steps.parquet").column("action").to_pylist() == ["ask", "guess"]
    assert pq.read_table(tmp_path / "tables" / "resid.parquet").num_rows == 3
    assert sonde(*words, tmp_path / "run.json", "--to", "json")[0] == 0
    assert json.loads((tmp_path / "run.json").read_text())["run"]["id"] == run.id
    assert sonde(*words, tmp_path / "x", "--to", "xml")[0] == 2
    assert sonde(*words, tmp_path / "x", "--to", "json", "--array", "resid")[0] == 2


def test_a_failure_is_one_line_and_a_traceback_only_when_asked_for(run):
    (run.folder / "manifest.json").write_text("{}")
    code, _, err = sonde("runs", "show", "last", "--runs", run.folder.parent)
    assert code == 1
    assert err.startswith("sonde: ")
    assert "Traceback" not in err
    assert "Traceback" in sonde("runs", "show", "last", "--runs", run.folder.parent, SONDE_DEBUG="1")[2]


def test_the_version_is_told():
    code, out, _ = sonde("--version")
    assert code == 0
    assert re.fullmatch(r"sonde \S+\n", out)


@pytest.mark.parametrize("verb", ["ls", "show", "rm", "verify", "export"])
def test_every_verb_teaches_by_an_example(verb):
    code, out, _ = sonde("runs", verb, "--help")
    assert code == 0
    assert f"Example: sonde runs {verb}" in out


def test_help_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['sonde', '--help']\n"
        "from sonde._cli import main\n"
        "try: main.app()\n"
        "except SystemExit: pass\n"
        "print(*{name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: sonde" in done.stdout
    loaded = set(done.stdout.splitlines()[-1].split())
    assert {"sonde", "typer"} <= loaded
    assert not loaded & {"torch", "transformers", "numpy", "scipy", "sklearn", "pandas", "matplotlib", "plotly", "ray"}
