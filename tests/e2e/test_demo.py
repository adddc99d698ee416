"""`sonde demo`, as a person runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

SONDE = str(Path(sys.executable).parent / "sonde")


def play(tmp_path, *options):
    command = [SONDE, "demo", "--runs", str(tmp_path / "runs"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def check(done, tmp_path):
    assert done.returncode == 0, done.stderr
    pictures = list((tmp_path / "runs").glob("*/figures/*.png"))
    assert {picture.stem for picture in pictures} == {"lens", "drift", "ablation"}
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    listed = subprocess.run(
        [SONDE, "runs", "verify", "last", "--runs", str(tmp_path / "runs")], capture_output=True, text=True, check=False
    )
    assert listed.returncode == 0, listed.stdout + listed.stderr


def test_the_demo_runs_on_a_tiny_model_and_leaves_a_whole_run(tmp_path):
    done = play(tmp_path, "--model", "tiny-gpt2")
    check(done, tmp_path)
    assert "settles at" in done.stdout


def test_the_demo_says_what_to_do_about_an_unknown_model(tmp_path):
    done = play(tmp_path, "--model", "tiny-gpt3")
    assert done.returncode == 1
    assert "did you mean" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_runs_on_the_embedded_model(tmp_path):
    done = play(tmp_path)
    check(done, tmp_path)
    assert "eagle" in done.stdout
