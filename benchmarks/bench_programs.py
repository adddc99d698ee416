"""How long 10,000 balanced, labelled programs of 17 lines take, and the part of it that running them for labels takes.

Run: python benchmarks/bench_programs.py
"""

import collections
import sys
import time

import numpy as np

from sonde.programs import generators, heuristics, interpreter

COUNT = 10_000
BAR = 10.0


def report(line: str) -> None:
    sys.stdout.write(line + "\n")


def main() -> None:
    start, busy = time.perf_counter(), time.process_time()
    made = generators.make_balanced_binding_programs(16, COUNT, np.random.default_rng(0))
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    start = time.process_time()
    wrong = sum(interpreter.answer(program) != answer for program, answer, _ in made)
    again = time.process_time() - start
    hops = sorted(collections.Counter(told["depth"] for _, _, told in made).items())
    scores = heuristics.scores([(program, answer) for program, answer, _ in made])
    good = seconds < BAR and not wrong and max(n for _, n in hops) - min(n for _, n in hops) <= 1
    report(f"programs by hops: {dict(hops)}; {', '.join(f'{name} {score:.3f}' for name, score in scores.items())}")
    report(
        f"labelling them alone: {again:.1f} s of the processor, {again / busy:.2f}x of the whole; wrong labels: {wrong}"
    )
    report(
        f"{COUNT} balanced labelled programs: {seconds:.1f} s, {busy:.1f} s of the processor (bar: under {BAR:.0f} s) {'ok' if good else 'MISSED'}"
    )


if __name__ == "__main__":
    main()
