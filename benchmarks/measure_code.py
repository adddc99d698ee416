"""How many of the embedded repair tasks does the embedded model solve as it is?

    python benchmarks/measure_code.py [--model smollm2-135m-instruct] [--steps 8] [--tokens 200]

Plays every task once, all in one wave, and prints how many were solved and how many messages held a command that could
be run, with 95 % intervals over tasks. Takes about 10 minutes on two cores; an interrupted run goes on where it was.
"""

import argparse
import time

import numpy as np
import shared

import sonde
from sonde.analysis import stats


def main(options: argparse.Namespace) -> None:
    tasks = len(sonde.info("code").task_ids)
    start = time.perf_counter()
    played = sonde.play(
        "code",
        options.model,
        episodes=tasks,
        wave=tasks,
        seed=options.seed,
        options={"step_limit": options.steps},
        generation={
            "temperature": options.temperature,
            "max_new_tokens": options.tokens,
            "context_policy": "drop_oldest_turns",
        },
        runs_dir=options.runs,
        run=f"measure-code-{options.seed}",
    )
    moments = [(at, moment) for at, episode in enumerate(played) for moment in episode.trajectory.moments]
    found = {
        "solved": ([episode.reward == 1.0 for episode in played], range(tasks)),
        "messages with a command to run": (
            [bool(m.info.get("command")) for _, m in moments],
            [at for at, _ in moments],
        ),
    }
    for name, (hits, owners) in found.items():
        one = stats.mean_interval(np.array(hits), np.array(owners), rate=True)
        share = f"{sum(hits)}/{one.n} = {one.value:.1%}"
        shared.report(f"{name}: {share}, 95 % interval {one.low:.1%} to {one.high:.1%}")
    shared.report(f"failed episodes: {sum(e.error is not None for e in played)}; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=shared.MODEL)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", default="runs")
    main(parser.parse_args())
