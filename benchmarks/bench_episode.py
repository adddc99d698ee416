"""A 20-step episode: keys and values kept from step to step, against re-encoding the conversation at every step.

Each step adds 60 observation tokens and generates 32. The peer is transformers' generate on the whole conversation
(its cache works inside a step). Run: python benchmarks/bench_episode.py [batch sizes]
"""

import sys
import time

import shared
import torch

import sonde
from sonde.models import requests

STEPS, OBSERVED, NEW = 20, 60, 32


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
    for batch, bar in ((1, 2.0), (16, 4.0)):
        if len(sys.argv) > 1 and str(batch) not in sys.argv[1:]:
            continue
        timed = list(range(STEPS)) if batch == 1 else list(range(0, STEPS, 3))
        kept(model, batch)
        mine, few = kept(model, batch)
        theirs, many = again(model, batch, timed)
        faster = sum(theirs) / sum(mine[step] for step in timed)
        shared.report(
            f"batch {batch}: engine {sum(mine):.1f} s for {STEPS} steps; peer {sum(theirs):.1f} s for {len(timed)}"
        )
        shared.verdict(
            f"batch {batch}: faster than re-encoding with transformers", faster, f"at least {bar}x", faster >= bar
        )
        fewer = many / few
        shared.verdict(f"batch {batch}: fewer tokens encoded", fewer, "at least 8x", fewer >= 8)
        growth = mine[-1] / mine[1]
        shared.verdict(
            f"batch {batch}: step 20 against step 2", growth, "at most 1.5x at batch 1", growth <= 1.5 or batch > 1
        )


if __name__ == "__main__":
    main()
