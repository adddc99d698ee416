"""A whole layer x position sweep of the residual stream, against patched full forward passes and nnsight traces.

One pair of 67 tokens that differ in the first ones, so that no cell can be left out. Peers are timed on random cells in
the same run, in turn with ours, and scaled to the whole grid: (1) full forward passes with the patch, as many rows at a
time as is fastest, logits of the last position only; (2) one nnsight trace per cell. All must agree. Run: python
benchmarks/bench_tracing.py [--quick], about eight minutes on two cores; quick, one round instead of two, four.
"""

import itertools
import statistics
import sys
import time

import nnsight
import numpy as np
import shared
import torch

from sonde.analysis.tracing import pairs, sweeps

LENGTH, DIFFERENT, CELLS, SIZES, ROUNDS, TOLERANCE = 67, 4, 128, (4, 8, 16, 32), 2, 1e-4


def make_pair() -> pairs.TracePair:
    """Text-like tokens; the first few differ."""
    clean, other = shared.tokens(LENGTH, seed=1), shared.tokens(LENGTH, seed=2)
    return pairs.TracePair(clean, (*other[:DIFFERENT], *clean[DIFFERENT:]), 260, 3000)


def batched(hf, layers, pair, source, cells, size) -> np.ndarray:
    """Full forward passes with a patch per row; the logits of both answers, cell by cell."""
    found = []
    for start in range(0, len(cells), size):
        chunk = cells[start : start + size]
        handles = []
        for layer in {layer for layer, _ in chunk}:
            rows = [(row, position) for row, (one, position) in enumerate(chunk) if one == layer]

            def patch(module, args, layer=layer, rows=rows):
                stream = args[0].clone()
                for row, position in rows:
                    stream[row, position] = source[layer][position]
                return (stream, *args[1:])

            handles.append(layers[layer].register_forward_pre_hook(patch))
        with torch.no_grad():
            ids = torch.tensor([pair.clean] * len(chunk))
            logits = hf(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1]
        for handle in handles:
            handle.remove()
        found.append(logits[:, [pair.answer, pair.counterfactual_answer]].numpy())
    return np.concatenate(found)


def traced(envoy, pair, source, cells) -> np.ndarray:
    """One nnsight trace per cell."""
    ids, found = torch.tensor([pair.clean]), []
    for layer, position in cells:
        with torch.no_grad(), envoy.trace(ids, use_cache=False, logits_to_keep=1):
            envoy.model.layers[layer].input[:, position] = source[layer][position]
            logits = envoy.lm_head.output[0, -1].save()
        found.append(logits[[pair.answer, pair.counterfactual_answer]].numpy())
    return np.stack(found)


def timed(job) -> tuple[float, np.ndarray]:
    """Seconds of a job, and what it found."""
    start = time.perf_counter()
    found = job()
    return time.perf_counter() - start, found


def main() -> None:
    model, hf, pair = shared.load(), shared.bare(), make_pair()
    envoy = nnsight.TransformersModel(shared.bare(), tokenizer=model.tokenizer)
    n_layers = model.cfg.n_layers
    _, cache = model.run_with_cache(list(pair.counterfactual), "blocks.*.hook_resid_pre")
    source = [cache[f"blocks.{layer}.hook_resid_pre"][0] for layer in range(n_layers)]
    every = list(itertools.product(range(n_layers), range(LENGTH)))
    chosen = [every[index] for index in np.random.default_rng(0).permutation(len(every))[:CELLS]]
    settings = sweeps.Settings(layers=range(n_layers), skip_equal=False)

    def ours() -> np.ndarray:
        (grid,) = sweeps.sweep(model, [pair], "residual_stream", settings=settings).grids
        whole = np.stack([grid.answer_logit, grid.counterfactual_logit], axis=-1)
        return np.array([whole[cell] for cell in chosen])

    batched(hf, hf.model.layers, pair, source, chosen[:4], 4)
    best = min(SIZES, key=lambda size: timed(lambda: batched(hf, hf.model.layers, pair, source, chosen[:32], size))[0])
    traced(envoy, pair, source, chosen[:3])
    ratios: dict[str, list[float]] = {"batched": [], "nnsight": []}
    for _ in range(1 if "--quick" in sys.argv else ROUNDS):
        seconds, mine = timed(ours)
        for name, job in (
            ("batched", lambda: batched(hf, hf.model.layers, pair, source, chosen, best)),
            ("nnsight", lambda: traced(envoy, pair, source, chosen)),
        ):
            took, theirs = timed(job)
            worst = float(np.abs(mine - theirs).max())
            assert worst < TOLERANCE, f"{name} differs by {worst}"
            scaled = took * len(every) / CELLS
            ratios[name].append(scaled / seconds)
            shared.report(f"{len(every)} cells: {seconds:.1f} s, {name} {scaled:.1f} s; differ by {worst:.1e} at most")
    forward = statistics.median(ratios["batched"])
    shared.verdict(f"patched forward passes, {best} rows at a time", forward, "at least 2.5x", forward >= 2.5)
    trace = statistics.median(ratios["nnsight"])
    shared.verdict("nnsight traces", trace, "at least 4x", trace >= 4)


if __name__ == "__main__":
    main()
