"""A 20-step episode: keys and values kept from step to step, against re-encoding the conversation at every step.

Each step adds 60 observation tokens and generates 32. The peer is transformers' generate on the whole conversation
(its cache works inside a step). Then sixteen such episodes at once, against one after another and against the peer.
Run: python benchmarks/bench_episode.py [--quick], about 20 minutes on two cores, quick 5.
"""

import statistics
import sys
import time

import shared
import torch

import sonde
from sonde.models import requests

STEPS, OBSERVED, NEW, EPISODES = 20, 60, 32, 16


def kept(model: sonde.Model, batch: int, *, first: int = 0) -> tuple[list[float], int]:
    """Seconds per step, and tokens encoded per episode, with the engine; episodes `first` to `first + batch - 1`."""
    model.pool.entries.clear()
    contexts: list[tuple[int, ...]] = [() for _ in range(batch)]
    seconds, encoded = [], 0
    sampling = requests.Sampling(max_new_tokens=NEW, min_new_tokens=NEW)
    for step in range(STEPS):
        contexts = [(*c, *shared.tokens(OBSERVED, seed=100 * step + i)) for i, c in enumerate(contexts, first)]
        start = time.perf_counter()
        asked = [model.request(c, sampling) for c in contexts]
        answers = model.wait(model.submit(asked), asked)
        seconds.append(time.perf_counter() - start)
        encoded += answers[0].encoded_tokens
        contexts = [(*c, *a.tokens) for c, a in zip(contexts, answers, strict=True)]
    return seconds, encoded


def again(model: sonde.Model, batch: int, steps: list[int]) -> tuple[list[float], int]:
    """The same with transformers, the whole conversation at every step; only some steps are timed at large batch."""
    contexts: list[tuple[int, ...]] = [() for _ in range(batch)]
    seconds, encoded = [], 0
    for step in range(STEPS):
        contexts = [(*c, *shared.tokens(OBSERVED, seed=100 * step + i)) for i, c in enumerate(contexts)]
        encoded += len(contexts[0]) + NEW - 1
        if step in steps:
            start = time.perf_counter()
            with torch.no_grad():
                out = model.hf.generate(
                    torch.tensor(contexts), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=2
                )
            seconds.append(time.perf_counter() - start)
            contexts = [tuple(row) for row in out.tolist()]
        else:
            contexts = [(*c, *shared.tokens(NEW, seed=7000 + step)) for c in contexts]
    return seconds, encoded


def main() -> None:
    model = shared.load()
    quick = "--quick" in sys.argv
    kept(model, 1)  # warm-up
    alone = [kept(model, 1, first=first) for first in ((0,) if quick else (0, 5, 10))]
    mine = [statistics.median(seconds[step] for seconds, _ in alone) for step in range(STEPS)]
    theirs, many = again(model, 1, list(range(STEPS)))
    _compare(1, mine, theirs, list(range(STEPS)), bar=2.0)
    fewer = many / alone[0][1]
    shared.verdict("fewer tokens encoded than by re-encoding", fewer, "at least 8x", fewer >= 8)
    growth = statistics.median(seconds[-1] / seconds[1] for seconds, _ in alone)
    shared.verdict("step 20 against step 2", growth, "at most 1.5x", growth <= 1.5)
    if quick:
        return
    together, _ = kept(model, EPISODES)
    gain = EPISODES * statistics.mean(sum(seconds) for seconds, _ in alone) / sum(together)
    shared.report(f"{EPISODES} episodes at once: {sum(together):.1f} s; one alone: {sum(mine):.1f} s")
    shared.verdict(f"{EPISODES} episodes at once against one after another", gain, "at least 3.5x", gain >= 3.5)
    timed = [1, 7, 13, 19]
    theirs, _ = again(model, EPISODES, timed)
    _compare(EPISODES, together, theirs, timed, bar=4.0)


def _compare(batch: int, mine: list[float], theirs: list[float], timed: list[int], *, bar: float) -> None:
    chosen = sum(mine[step] for step in timed)
    shared.report(f"batch {batch}, {len(timed)} of {STEPS} steps: engine {chosen:.1f} s, peer {sum(theirs):.1f} s")
    faster = sum(theirs) / chosen
    shared.verdict(f"batch {batch}: faster than re-encoding", faster, f"at least {bar}x", faster >= bar)


if __name__ == "__main__":
    main()
