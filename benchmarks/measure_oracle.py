"""How well does the rules oracle of Twenty Questions agree with labels made by hand before the rules were?

    python benchmarks/measure_oracle.py

Prints both splits of each set as markdown: `dev`, on which the rules were tuned, and `test`, on which they were measured.
`messages` are of every kind and mostly a model's own; `guesses` and `fresh` are guesses in many forms, and what looks like one;
`fresh` were written and labelled by others than those who wrote the rules. Seconds.
"""

import collections
import json
import pathlib
import time

from sonde.agents.twenty_questions import objects, rules

FOLDER = pathlib.Path(__file__).parents[1] / "tests/data/twenty_questions"
SETS = ("messages", "guesses", "fresh")
KINDS = ("valid", "guess", "open", "several", "statement", "rambling", "empty")
WORDS = {rules.YES: "yes", rules.NO: "no", rules.UNKNOWN: "unknown"}


def figures(name: str, split: str) -> tuple[dict[str, tuple[int, int]], collections.Counter[tuple[str, str]]]:
    """Each figure as (hits, of), and how often each label was judged as each kind."""
    oracle, counts, confusion = rules.RulesOracle(), collections.Counter(), collections.Counter()
    for row in map(json.loads, (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()):
        if row["split"] != split:
            continue
        verdict = oracle.judge(row["text"], objects.thing(row["object"]))
        said = WORDS.get(verdict.answer)
        confusion[row["label"], verdict.kind] += 1
        counts["messages"] += 1
        counts["all right"] += said == row["answer"] and verdict.won == row["wins"]
        counts["validity"] += verdict.valid == row["valid"]
        counts["wins"] += verdict.won == row["wins"]
        counts["winning"] += row["wins"]
        counts["won"] += verdict.won and row["wins"]
        counts[row["source"]] += 1
        counts[f"validity, {row['source']}"] += verdict.valid == row["valid"]
        if row["valid"]:
            counts["valid"] += 1
            counts["answered"] += said in ("yes", "no")
            counts["right"] += said in ("yes", "no") and said == row["answer"]
    table = {
        "validity, answer and win as labelled": (counts["all right"], counts["messages"]),
        "validity agrees": (counts["validity"], counts["messages"]),
        "… of model generations": (counts["validity, model"], counts["model"]),
        "… of written messages": (counts["validity, written"], counts["written"]),
        "answers right where it says Yes or No": (counts["right"], counts["answered"]),
        "says Yes or No on valid questions": (counts["answered"], counts["valid"]),
        "wins agree": (counts["wins"], counts["messages"]),
        "true guesses that win": (counts["won"], counts["winning"]),
    }
    return {what: (hits, of) for what, (hits, of) in table.items() if of}, confusion


def main() -> None:
    """Prints the tables."""
    for name, split in ((name, split) for name in SETS for split in ("dev", "test")):
        begun = time.perf_counter()
        table, confusion = figures(name, split)
        spent = time.perf_counter() - begun
        print(f"## {name}, {split}\n\n| figure | share | count |\n|---|---|---|")
        for what, (hits, of) in table.items():
            print(f"| {what} | {100 * hits / of:.1f} % | {hits} of {of} |")
        print(f"\nlabel × judged kind ({1e6 * spent / table['wins agree'][1]:.0f} µs per message):\n")
        print("| label | " + " | ".join(KINDS) + " |\n|---|" + "---|" * len(KINDS))
        for label in KINDS:
            print(f"| {label} | " + " | ".join(str(confusion[label, kind] or "") for kind in KINDS) + " |")
        print()


if __name__ == "__main__":
    main()
