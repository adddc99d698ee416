"""Threads that compute in turns give their OpenMP workers back."""

import pathlib
import subprocess
import sys

import pytest
import torch

from sonde.models import workers

TASKS = pathlib.Path("/proc/self/task")
SCRIPT = """
import pathlib, time, torch
from sonde.models import workers
torch.set_num_threads(2)
count = lambda: len(list(pathlib.Path("/proc/self/task").iterdir()))
product = lambda: torch.ones(600, 600) @ torch.ones(600, 600)
before = count()
product()
grown = count()
workers.release()
for _ in range(1000):  # a thread that has ended is listed until the kernel has tidied up
    gone = count()
    if gone == before:
        break
    time.sleep(0.01)
print(grown - before, gone - before, float(product()[0, 0]), count() - before)
"""


@pytest.mark.skipif(not TASKS.exists() or workers._pause() is None, reason="no GNU OpenMP to look at")
def test_released_workers_are_gone_and_come_back_with_the_next_operation():
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["1", "0", "600.0", "1"]


def test_results_do_not_depend_on_it():
    one = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    before = one @ one
    workers.release()
    workers.release()
    assert torch.equal(one @ one, before)


def test_without_that_library_nothing_happens(monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    workers._pause.cache_clear()
    try:
        assert workers._pause() is None
        workers.release()
    finally:
        workers._pause.cache_clear()
