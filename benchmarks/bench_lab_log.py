"""How fast is the lab's log with ten thousand runs in it?

    python benchmarks/bench_lab_log.py [--runs 10000] [--examples 8]

Fills a log with runs, each with its examples, and 2,000 hypotheses, predictions, notes and findings; then times queries
of every kind. The bar is 100 ms for any of them. Prints the slowest of five, on the clock and of the processor: on a busy
machine the first is longer.
"""

import argparse
import pathlib
import random
import tempfile
import time

from sonde.lab import inquiries, log, log_query


def fill(book, runs, examples):
    """Fills the log, without waiting for the disk: what is measured is reading."""
    rng = random.Random(0)
    settings = inquiries.InquirySettings(
        model="tiny-llama", task="arithmetic", n_layers=30, explore=(0, 1), held_out=(2, 3)
    )
    inquiry = inquiries.begin(book, settings)
    book._db.execute("PRAGMA synchronous = OFF")
    for number in range(runs):
        layers = sorted(rng.sample(range(30), rng.randint(1, 4)))
        kept = rng.random()
        body = {
            "model": "tiny-llama", "task": rng.choice(("arithmetic", "capitals")), "layers": layers,
            "corruption": f"skip:{','.join(map(str, layers))}", "corruption_kind": "skip", "n": examples,
            "examples": list(range(examples)), "kept": kept, "kept_low": kept / 2, "kept_high": min(1.0, kept * 2),
            "accuracy": kept, "intact_accuracy": 1.0, "loss": 2 - kept, "intact_loss": 0.1, "loss_delta": 1.9 - kept,
            "loss_delta_low": 1.0, "loss_delta_high": 2.0, "seconds": 0.5, "split": "explore", "prediction": None,
            "control": None,
        }  # fmt: skip
        rows = [
            {"example": at, "prompt": f"2 + 3 = 5\n{at} + {number % 10} =", "answer": f" {at + number % 10}",
             "completion": f" {rng.randint(0, 20)}", "loss": rng.random(), "correct": rng.random() < kept,
             "intact_completion": " 5", "intact_loss": 0.1, "intact_correct": True}
            for at in range(examples)
        ]  # fmt: skip
        inquiry.append("run", body, examples=rows)
    for number in range(500):
        guess = inquiry.append("hypothesis", {"statement": f"Layer {number % 30} is needed.", "rival_of": None})
        inquiry.append("prediction", {"hypothesis": guess.id, "corruption": f"skip:{number % 30}", "value": 0.5})
        inquiry.append("note", {"text": f"Note {number} about layer {number % 30}.", "cites": [guess.id]})
        inquiry.append("finding", {"hypothesis": guess.id, "status": "supported", "claim": "It is.", "evidence": []})
    return inquiry


def queries(book, inquiry):
    """Queries of every kind, by what they ask."""
    select, group = log_query.select, log_query.group
    shown = ("id", "corruption", "kept")
    return {
        "one entry by its id": lambda: book.get("r5000"),
        "runs of one ablation": lambda: select(book, "run", where=["corruption=skip:11"], fields=shown),
        "runs that touch layer 11": lambda: select(book, "run", where=["layers~11"], fields=shown),
        "runs by a number and a text": lambda: select(book, "run", where=["kept<0.1", "task=capitals"], fields=shown),
        "a field that is not there": lambda: _refused(lambda: select(book, "run", where=["keppt<0.1"], fields=shown)),
        "runs grouped by task": lambda: group(book, "run", by=["task"], of=["kept"]),
        "runs grouped by ablation": lambda: group(book, "run", by=["corruption"], of=["kept"]),
        "runs grouped by two fields": lambda: group(book, "run", by=["task", "n"], of=["kept", "loss_delta"]),
        "examples whose answer contains a text": lambda: select(
            book, "example", where=["completion~13", "task=capitals"], fields=("run", "completion"), limit=100
        ),
        "examples grouped by being right": lambda: group(book, "example", by=["correct"], of=["loss"]),
        "findings of a status": lambda: select(book, "finding", where=["status=supported"], fields=("id", "claim")),
        "notes that contain a text": lambda: select(book, "note", where=["text~layer 7"], fields=("id", "text")),
        "the newest 50 runs": lambda: select(book, "run", fields=shown, newest=True, limit=50),
    }


def _refused(action):
    try:
        action()
    except ValueError:
        return


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=8)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, log.Log(pathlib.Path(folder) / log.NAME) as book:
        inquiry = fill(book, asked.runs, asked.examples)
        count = book.read("SELECT COUNT(*) FROM entries")[0][0], book.read("SELECT COUNT(*) FROM examples")[0][0]
        print(
            f"{count[0]:,} entries, {asked.runs:,} of them runs with {count[1]:,} examples; slowest of 5, ms; bar 100"
        )
        worst = most = 0.0
        for name, ask in queries(book, inquiry).items():
            times, work = [], []
            for _ in range(5):
                began, busy = time.perf_counter(), time.process_time()
                ask()
                times.append(1000 * (time.perf_counter() - began))
                work.append(1000 * (time.process_time() - busy))
            worst, most = max(worst, *times), max(most, *work)
            print(f"{max(times):8.1f} {max(work):8.1f}  {name}")
        book._db.execute("PRAGMA synchronous = FULL")
        began = time.perf_counter()
        for number in range(100):
            inquiry.append("note", {"text": f"durable {number}", "cites": []})
        print(f"{10 * (time.perf_counter() - began):8.1f} {'':8}  one durable entry, mean of 100")
        print(f"slowest query: {worst:.1f} ms on the clock, {most:.1f} ms of the processor; the bar is 100 ms")


if __name__ == "__main__":
    main()
