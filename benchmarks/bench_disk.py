"""The same 20-step episode on disk: size against one full tensor per step, and what writing adds to the run.

resid_post of all 30 layers in float32, each step written durably when it ends. Episodes in memory and on disk take turns, and
each step's time is its median over the rounds. Run: python benchmarks/bench_disk.py, about 6 minutes on two cores.
"""

import itertools
import pathlib
import statistics
import tempfile
import time

import shared
import torch
from safetensors.torch import save_file

import sonde
from sonde.models import requests

STEPS, OBSERVED, NEW, ROUNDS = 20, 60, 32, 5
SITES = "blocks.*.hook_resid_post"


def episode(model: sonde.Model, folder: pathlib.Path | None) -> tuple[list[float], sonde.TrajectoryActivations]:
    """Seconds of each step of a recorded episode and of closing it, in memory or written to a folder."""
    model.pool.entries.clear()
    context: tuple[int, ...] = ()
    sampling = requests.Sampling(max_new_tokens=NEW, min_new_tokens=NEW)
    clock = [time.perf_counter()]
    with sonde.ActivationCapture(model, SITES, folder=folder) as capture:
        for step in range(STEPS):
            context = (*context, *shared.tokens(OBSERVED, seed=step))
            capture.start_step()
            asked = [model.request(context, sampling)]
            (answer,) = model.wait(model.submit(asked), asked)
            capture.end_step()
            context = (*context, *answer.tokens)
            clock.append(time.perf_counter())
    clock.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(clock)], capture.get_trajectory()


def naive_bytes(trajectory: sonde.TrajectoryActivations, folder: pathlib.Path) -> int:
    """Bytes of one safetensors file per step that holds the whole context; two steps are written, the rest counted."""
    total = 0
    for step in range(len(trajectory)):
        if step in (0, len(trajectory) - 1):
            tensors = {name: trajectory.get_activation(step, name).contiguous() for name in trajectory.site_names}
            save_file(tensors, folder / f"{step}.safetensors")
            written = (folder / f"{step}.safetensors").stat().st_size
            counted = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            assert written >= counted
        total += len(trajectory.site_names) * len(trajectory.tokens(step)) * 576 * 4
    return total


def main() -> None:
    model = shared.load()
    assert next(model.hf.parameters()).dtype == torch.float32
    episode(model, None)
    with tempfile.TemporaryDirectory() as scratch:
        here = pathlib.Path(scratch)
        memory, disk = [], []
        for turn in range(ROUNDS):
            memory.append(episode(model, None)[0])
            seconds, trajectory = episode(model, here / f"episode-{turn}")
            disk.append(seconds)
        size = sum(file.stat().st_size for file in (here / "episode-0").rglob("*") if file.is_file())
        smaller = naive_bytes(trajectory, here) / size
    for where, rounds in (("in memory", memory), ("written", disk)):
        shared.report(f"{where}, seconds of each round: {', '.join(f'{sum(steps):.1f}' for steps in rounds)}")
    shared.report(f"episode of {STEPS} steps on disk: {size / 1e6:.0f} MB")
    shared.verdict("smaller than one full tensor per step", smaller, "at least 8x", smaller >= 8)
    written, kept = (sum(map(statistics.median, zip(*rounds, strict=True))) for rounds in (disk, memory))
    added = written / kept
    shared.verdict("time with writing against without", added, "at most 1.05x", added <= 1.05)


if __name__ == "__main__":
    main()
