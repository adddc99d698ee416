"""Sixteen Twenty Questions episodes at once, against one at a time.

The same episodes, seeds and settings; only the size of the wave differs. The two take turns, the wave of sixteen before,
between and after the single episodes, so that what else happens on the machine hits both alike. Run: python
benchmarks/bench_play.py [--quick], about 10 minutes on two cores; quick, without activations, 5.
"""

import pathlib
import sys
import tempfile
import time

import shared

import sonde

EPISODES, STEPS = 16, 20
CAPTURES = {"tokens only": None, "resid_post of 30 layers": "blocks.*.hook_resid_post"}


def steps_per_second(model, folder, *, wave, first, episodes, capture):
    """Plays `episodes` tasks from the `first` on; steps and seconds."""
    start = time.perf_counter()
    played = sonde.play(
        f"20q:{first}:{first + episodes}",
        model,
        episodes=episodes,
        wave=wave,
        seed=1,
        capture=capture,
        generation={"temperature": 1.0},
        options={"step_limit": STEPS, "seed": None},
        runs_dir=folder,
    )
    return sum(episode.steps for episode in played), time.perf_counter() - start


def main() -> None:
    model = shared.load()
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        steps_per_second(model, place, wave=1, first=0, episodes=1, capture=None)  # warm-up
        for name, capture in list(CAPTURES.items())[: 1 if "--quick" in sys.argv else None]:
            options = {"capture": capture}
            waves, alone = [], []
            for half in (range(EPISODES // 2), range(EPISODES // 2, EPISODES), ()):
                waves.append(steps_per_second(model, place, wave=EPISODES, first=0, episodes=EPISODES, **options))
                alone += [steps_per_second(model, place, wave=1, first=i, episodes=1, **options) for i in half]
            many, one = (
                sum(steps for steps, _ in found) / sum(seconds for _, seconds in found) for found in (waves, alone)
            )
            shared.report(f"{name}: {many:.2f} steps/s at once, {one:.2f} one at a time")
            shared.verdict(f"{EPISODES} episodes at once, {name}", many / one, "at least 3.5x", many / one >= 3.5)


if __name__ == "__main__":
    main()
