"""How long `import sonde` and `sonde --help` take, each in a fresh process, beside `import torch`.

Run: python benchmarks/bench_import.py
"""

import pathlib
import statistics
import subprocess
import sys
import time

import shared

REPEATS = 7


def seconds(command: list[str]) -> float:
    """Median of several runs."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    python = sys.executable
    empty = seconds([python, "-c", "pass"])
    imported = seconds([python, "-c", "import sonde"]) - empty
    torch = seconds([python, "-c", "import torch"]) - empty
    help_ = seconds([str(pathlib.Path(python).parent / "sonde"), "--help"])
    loaded = subprocess.run(
        [python, "-c", "import sys, sonde; print('torch' in sys.modules)"], check=True, capture_output=True, text=True
    )
    shared.report(f"python alone {empty * 1000:.0f} ms; import torch takes {torch * 1000:.0f} ms more")
    good = imported < 0.150 and loaded.stdout.strip() == "False"
    shared.report(f"import sonde: {imported * 1000:.0f} ms, no torch (bar: under 150 ms) {'ok' if good else 'MISSED'}")
    shared.report(f"sonde --help: {help_ * 1000:.0f} ms (bar: under 400 ms) {'ok' if help_ < 0.4 else 'MISSED'}")
    shared.verdict("import sonde against import torch", imported / torch, "well below 1", imported < torch)


if __name__ == "__main__":
    main()
