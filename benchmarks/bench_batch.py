"""Sixteen 20-step episodes at once against one after another: tokens per second, the same episodes.

Run: python benchmarks/bench_batch.py
"""

import time

import bench_episode
import shared

EPISODES = 16


def main() -> None:
    model = shared.load()
    bench_episode.kept(model, 1)
    together, _ = bench_episode.kept(model, EPISODES)
    start = time.perf_counter()
    alone = 0.0
    for first in range(0, EPISODES, 4):
        seconds, _ = bench_episode.kept(model, 1, first=first)
        alone += 4 * sum(seconds)
    shared.report(
        f"{EPISODES} episodes of {bench_episode.STEPS} steps: together {sum(together):.1f} s, one after another "
        f"{alone:.1f} s (every fourth was run, {time.perf_counter() - start:.1f} s, and counted four times)"
    )
    gain = alone / sum(together)
    shared.verdict("16 episodes at once against one after another", gain, "at least 3.5x", gain >= 3.5)


if __name__ == "__main__":
    main()
