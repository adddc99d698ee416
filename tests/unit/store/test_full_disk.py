"""A full disk is said plainly, costs no finished step, and the writer goes on when there is space again."""

import os
import subprocess
import sys
import textwrap

import pytest

PLAY = """
import os, pathlib, resource, sys
import numpy as np
from sonde import store
from sonde.core import errors

folder, fill, free = pathlib.Path(sys.argv[1]) / "episode", None, None
block = store.Array.from_numpy(np.arange(4096, dtype="f4").reshape(1, -1))  # 16 KiB

def until_full(writer, text=""):
    while True:
        try:
            writer.append_step({"n": writer.step_count, "text": text}, {"x": block})
        except errors.StoreError as error:
            assert "disk is full" in str(error) and "free some space" in str(error), error
            assert f"append step {writer.step_count} again" in str(error), error
            break
        assert writer.step_count < 1000

def check(count):
    reader = store.EpisodeReader.open(folder)
    assert [step["n"] for step in reader.steps] == list(range(count)), (len(reader.steps), count)
    if count:
        assert (reader.array("x").to_numpy() == block.to_numpy()).all()
    assert reader.verify() == []
"""

ON_TMPFS = """
ballast = pathlib.Path(sys.argv[1]) / "ballast"
ballast.write_bytes(bytes(400_000))
writer = store.EpisodeWriter.create(folder)
until_full(writer)
first = writer.step_count
assert first > 10
check(first)
ballast.unlink()
until_full(writer, "x" * 5000)  # the line may be what does not fit
assert writer.step_count > first
check(writer.step_count)
try:
    writer.close()
except errors.StoreError as error:
    assert "close the episode again (all its steps are safe)" in str(error), error
else:
    raise SystemExit("closing needs as much space again, and there was none")
check(writer.step_count)
writer.abort()
writer = store.EpisodeWriter.resume(folder)
check(writer.step_count)
try:
    store.Run.create(sys.argv[1], kind="k" * 100_000)
except errors.StoreError as error:
    assert "disk is full" in str(error), error
else:
    raise SystemExit("a run was made on a full disk")
assert os.listdir(sys.argv[1]) == ["episode"], os.listdir(sys.argv[1])
"""

UNDER_A_LIMIT = """
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

writer = store.EpisodeWriter.create(folder)
limit(300_000)
until_full(writer)
first = writer.step_count
assert first > 10
check(first)
limit(600_000)
until_full(writer)
assert writer.step_count > first
check(writer.step_count)
limit(100_000)
try:
    writer.close()
except errors.StoreError as error:
    assert "disk is full" in str(error), error
else:
    raise SystemExit("the limit did not hold")
check(writer.step_count)
limit(resource.RLIM_INFINITY)
before = writer.step_count
writer.close({"reward": 1})
check(before)
assert sorted(os.listdir(folder)) == ["activations.safetensors", "episode.json", "steps.jsonl"]
"""

LINES_UNDER_A_LIMIT = """
writer = store.EpisodeWriter.create(folder)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
block = store.Array.from_numpy(np.zeros((1, 1), dtype="f4"))
until_full(writer, "x" * 4000)
assert 5 < writer.step_count < 15
check(writer.step_count)
assert writer.rows("x") == writer.step_count
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
before = writer.step_count
writer.append_step({"n": before}, {"x": block})
writer.close()
check(before + 1)
"""


def play(script, folder):
    done = subprocess.run(
        [sys.executable, "-c", PLAY + script, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", [UNDER_A_LIMIT, LINES_UNDER_A_LIMIT], ids=["data", "lines"])
def test_a_file_that_may_not_grow_costs_no_finished_step(tmp_path, script):
    play(textwrap.dedent(script), tmp_path)


def test_a_full_disk_costs_no_finished_step(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a small disk needs root; the limit on file size is tested instead")
    try:
        play(ON_TMPFS, tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
