"""A whole sweep of single skips over 30 layers, against as many forward passes of the whole model.

Texts of 128 text-like tokens. Peers, timed layer by layer in turn with the sweep, so that noise hits all alike: (1) a full
forward pass of the intact model; (2) a full forward pass under the skip, which runs a layer less. The sweep's own forward
pass of the intact model is counted. Its logits must be those of (2) to 1e-5. Run: python benchmarks/bench_layers.py
[--quick], four minutes on two cores; quick, one text and one round instead of four and two, half a minute.
"""

import statistics
import sys
import time

import shared
import torch

from sonde.lab import corruptions, sweeping

LENGTH, TOLERANCE, BAR = 128, 1e-5, 0.65


def timed(job):
    """Seconds of a job, and what it found."""
    start = time.perf_counter()
    found = job()
    return time.perf_counter() - start, found


def a_round(model, ids, orders) -> tuple[dict[str, float], float]:
    """Seconds of a whole sweep and of its peers, and the largest difference of a logit."""
    took, base = timed(lambda: sweeping.Base(model, ids))
    seconds, worst = {"sweep": took, "forward passes": 0.0, "skipping passes": 0.0}, 0.0
    for order in orders:
        jobs = {
            "sweep": lambda order=order: base.run(order),
            "forward passes": lambda: model.run_with_hooks(ids),
            "skipping passes": lambda order=order: model.run_with_hooks(ids, [order]),
        }
        found = {}
        for name, job in jobs.items():
            took, found[name] = timed(job)
            seconds[name] += took
        worst = max(worst, float((found["sweep"] - found["skipping passes"]).abs().max()))
    return seconds, worst


def main() -> None:
    """Times rounds and prints the ratios."""
    texts, rounds = (1, 1) if "--quick" in sys.argv else (4, 2)
    model = shared.load()
    n_layers = model.cfg.n_layers
    ids = torch.tensor([shared.tokens(LENGTH, seed) for seed in range(texts)])
    skips = [corruptions.parse(f"skip:{layer}", n_layers).order for layer in range(n_layers)]
    model.run_with_hooks(ids)
    found = [a_round(model, ids, skips) for _ in range(rounds)]
    for name in found[0][0]:
        best = min(seconds[name] for seconds, _ in found)
        shared.report(f"{name}: {best:.1f} s for {n_layers} layers, {texts} x {LENGTH} tokens")
    worst = max(difference for _, difference in found)
    shared.report(f"largest difference of a logit: {worst:.1e} (bar: 1e-5) {'ok' if worst <= TOLERANCE else 'MISSED'}")
    ratios = {
        peer: statistics.median(seconds["sweep"] / seconds[peer] for seconds, _ in found)
        for peer in ("forward passes", "skipping passes")
    }
    full = ratios["forward passes"]
    shared.verdict(f"sweep of {n_layers} skips over {n_layers} forward passes", full, f"at most {BAR}", full <= BAR)
    shared.report(f"over forward passes that skip: {ratios['skipping passes']:.2f}x")


if __name__ == "__main__":
    main()
