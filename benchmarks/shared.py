"""What the benchmarks share: the model, a recorder, and timing that alternates peers so that noise hits all alike."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import transformers

import sonde
from sonde.models import zoo

MODEL = "smollm2-135m-instruct"


def load() -> sonde.Model:
    """The embedded model on two threads."""
    torch.set_num_threads(2)
    return sonde.load(MODEL)


def bare() -> Any:
    """The same model as transformers loads it: the peer, without anything of ours."""
    with zoo.quiet():
        return transformers.AutoModelForCausalLM.from_pretrained(
            zoo.local_folder(MODEL), dtype=torch.float32, trust_remote_code=False
        )


def tokens(count: int, seed: int) -> tuple[int, ...]:
    """Tokens as in ordinary text: drawn from the common part of the vocabulary."""
    return tuple(np.random.default_rng(seed).integers(200, 20_000, count).tolist())


def alternate(jobs: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each job, run in turn `repeats` times after one warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:
                times[name].append(time.perf_counter() - start)
    return times


def ratio(times: Mapping[str, list[float]], one: str, peer: str) -> float:
    """Median over the rounds of the time of one over the time of its peer in the same round."""
    return statistics.median(a / b for a, b in zip(times[one], times[peer], strict=True))


def report(line: str) -> None:
    """Prints one line of results."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def verdict(name: str, value: float, bar: str, good: bool) -> None:
    """Prints a figure against its bar."""
    report(f"{name}: {value:.2f}x (bar: {bar}) {'ok' if good else 'MISSED'}")
