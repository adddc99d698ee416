"""All 129 programs compiled, and each checked on 1,000 inputs against direct evaluation. One thread.

The compiler of the original took 10.7 s for the same 129 (plus 3.4 s to start) on one thread of a like machine. Run:
python benchmarks/bench_cases.py, about half a minute.
"""

import time

import shared
import torch

from sonde.bench import cases, compiling


def main() -> None:
    torch.set_num_threads(1)
    start = time.perf_counter()
    found = [
        (case, compiling.compile(case.program, case.vocabulary, max_length=case.max_length, causal=case.causal))
        for case in map(cases.get, cases.ids("all"))
    ]
    seconds = time.perf_counter() - start
    shared.report(f"{len(found)} programs compiled in {seconds:.2f} s (bar: under 10 s) {verdict(seconds < 10)}")
    start, wrong = time.perf_counter(), 0
    for case, compiled in found:
        inputs = case.sample(1000)
        for tokens, said in zip(inputs, compiled.run(inputs), strict=True):
            right = case.evaluate(tokens)
            close = (
                all(abs(one - other) < 1e-5 for one, other in zip(said, right, strict=True))
                if case.kind == "reg"
                else False
            )
            wrong += not (close or said == right)
    whole = seconds + time.perf_counter() - start
    text = f"compiled and checked on 1,000 inputs each in {whole:.1f} s, {wrong} answers wrong"
    shared.report(f"{text} (bar: under 60 s, none) {verdict(whole < 60 and not wrong)}")


def verdict(held: bool) -> str:
    return "ok" if held else "MISSED"


if __name__ == "__main__":
    main()
