"""A 20-step episode: keys and values kept from step to step, against re-encoding the conversation at every step.

Each step adds 60 observation tokens and generates 32. The peer is transformers' generate on the whole conversation
(its cache works inside a step). Then sixteen such episodes at once, against one after another and against the peer.
How a step grows is the median of several episodes. "One after another" is sixteen times the mean of three episodes, and
at batch 16 steps 2, 8, 14 and 20 are compared; with --full all sixteen episodes are run alone, and all 20 steps compared.
Run: python benchmarks/bench_episode.py [--quick | --full], about 10 minutes on two cores, quick 4, full 35.
"""

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import shared
import torch

import sonde
from sonde.models import requests

STEPS, OBSERVED, NEW, EPISODES = 20, 60, 32, 16


def kept(model: sonde.Model, batch: int, *, first: int = 0) -> Iterator[tuple[float, int]]:
    """Step by step, seconds and tokens encoded per episode with the engine; episodes `first` and on."""
    model.pool.entries.clear()
    contexts: list[tuple[int, ...]] = [() for _ in range(batch)]
    sampling = requests.Sampling(max_new_tokens=NEW, min_new_tokens=NEW)
    for step in range(STEPS):
        contexts = [(*c, *shared.tokens(OBSERVED, seed=100 * step + i)) for i, c in enumerate(contexts, first)]
        start = time.perf_counter()
        asked = [model.request(c, sampling) for c in contexts]
        answers = model.wait(model.submit(asked), asked)
        seconds = time.perf_counter() - start
        assert all(len(answer.tokens) == NEW for answer in answers)
        contexts = [(*c, *a.tokens) for c, a in zip(contexts, answers, strict=True)]
        yield seconds, answers[0].encoded_tokens


def again(peer: Any, batch: int, timed: Sequence[int]) -> Iterator[tuple[float, int]]:
    """The same with transformers, the whole conversation at every step; steps that are not timed are not run."""
    contexts: list[tuple[int, ...]] = [() for _ in range(batch)]
    for step in range(STEPS):
        contexts = [(*c, *shared.tokens(OBSERVED, seed=100 * step + i)) for i, c in enumerate(contexts)]
        encoded, seconds = len(contexts[0]) + NEW - 1, 0.0
        if step in timed:
            ids = torch.tensor(contexts)
            start = time.perf_counter()
            with torch.no_grad():
                out = peer.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=NEW,
                    min_new_tokens=NEW,
                    do_sample=False,
                    pad_token_id=2,
                )
            seconds = time.perf_counter() - start
            contexts = [tuple(row) for row in out.tolist()]
        else:
            contexts = [(*c, *shared.tokens(NEW, seed=7000 + step)) for c in contexts]
        yield seconds, encoded


def main() -> None:
    model, peer = shared.load(), shared.bare()
    start = time.perf_counter()
    with model.packed():  # as playing does
        shared.report(f"packing the weights, once: {time.perf_counter() - start:.2f} s")
        _measure(model, peer)


def _measure(model: sonde.Model, peer: Any) -> None:
    everything, full = range(STEPS), "--full" in sys.argv
    next(kept(model, 1)), next(again(peer, 1, [0]))  # warm-up
    # The two take turns step by step, so that what else happens on the machine hits both alike.
    pairs = list(zip(kept(model, 1), again(peer, 1, everything), strict=True))
    mine, theirs = ([pair[who][0] for pair in pairs] for who in (0, 1))
    few, many = (sum(pair[who][1] for pair in pairs) for who in (0, 1))
    _compare(1, mine, theirs, everything, bar=2.0)
    shared.verdict("fewer tokens encoded than by re-encoding", many / few, "at least 8x", many / few >= 8)
    alone = [
        [seconds for seconds, _ in kept(model, 1, first=first)] for first in (range(EPISODES) if full else (0, 5, 10))
    ]
    last, second = (statistics.median(steps[step] for steps in (mine, *alone)) for step in (-1, 1))
    growth = last / second
    shared.verdict("step 20 against step 2", growth, "at most 1.5x", growth <= 1.5)
    if "--quick" in sys.argv:
        return
    timed = everything if full else [1, 7, 13, 19]
    pairs = list(zip(kept(model, EPISODES), again(peer, EPISODES, timed), strict=True))
    together, theirs = [pair[0][0] for pair in pairs], [pair[1][0] for pair in pairs]
    one = statistics.mean(map(sum, alone))
    gain = EPISODES * one / sum(together)
    shared.report(f"{EPISODES} episodes at once: {sum(together):.1f} s; one alone: {one:.1f} s, mean of {len(alone)}")
    shared.verdict(f"{EPISODES} episodes at once against one after another", gain, "at least 3.5x", gain >= 3.5)
    _compare(EPISODES, together, theirs, timed, bar=4.0)


def _compare(batch: int, mine: list[float], theirs: list[float], timed: Sequence[int], *, bar: float) -> None:
    ours, peer = (sum(seconds[step] for step in timed) for seconds in (mine, theirs))
    shared.report(f"batch {batch}, {len(timed)} of {STEPS} steps: engine {ours:.1f} s, peer {peer:.1f} s")
    faster = peer / ours
    shared.verdict(f"batch {batch}: faster than re-encoding", faster, f"at least {bar}x", faster >= bar)


if __name__ == "__main__":
    main()
