"""One token for a few rows with packed weights, against the same forward pass without.

The two take turns; the best of several rounds counts, because what else happens on the machine only adds. Run: python
benchmarks/bench_packing.py, about a minute on two cores.
"""

import time

import shared
import torch

ROWS, CONTEXT, ROUNDS = (1, 2, 4, 8, 16), 300, 9


def seconds(model, ids, cache) -> float:
    """One forward pass after a context, which is left as it was."""
    start = time.perf_counter()
    model.hf(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    took = time.perf_counter() - start
    cache.crop(-1)
    return took


def main() -> None:
    model = shared.load()
    for rows in ROWS:
        with torch.no_grad():
            context = torch.tensor([shared.tokens(CONTEXT, seed=row) for row in range(rows)])
            cache = model.hf(context, use_cache=True, logits_to_keep=1).past_key_values
            plain, packed = [], []
            for _ in range(ROUNDS):
                plain.append(seconds(model, context[:, :1], cache))
                with model.packed():
                    seconds(model, context[:, :1], cache)  # the packed copies are read for the first time
                    packed.append(seconds(model, context[:, :1], cache))
        ratio = min(plain) / min(packed)
        shared.report(
            f"{rows} rows: {1000 * min(plain):.0f} ms plain, {1000 * min(packed):.0f} ms packed: {ratio:.2f}x"
        )


if __name__ == "__main__":
    main()
