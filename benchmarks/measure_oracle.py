"""How well does the rules oracle of Twenty Questions agree with labels made by hand before the rules were?

    python benchmarks/measure_oracle.py

Prints both splits as markdown: `dev`, on which the rules were tuned, and `test`, on which they were measured. Seconds.
"""

import collections
import json
import pathlib
import time

from sonde.agents.twenty_questions import objects, rules

MESSAGES = pathlib.Path(__file__).parents[1] / "tests/data/twenty_questions/messages.jsonl"
KINDS = ("valid", "guess", "open", "several", "statement", "rambling", "empty")
WORDS = {rules.YES: "yes", rules.NO: "no", rules.UNKNOWN: "unknown"}


def figures(split: str) -> tuple[dict[str, tuple[int, int]], collections.Counter[tuple[str, str]]]:
    """Each figure as (hits, of), and how often each label was judged as each kind."""
    oracle, counts, confusion = rules.RulesOracle(), collections.Counter(), collections.Counter()
    for row in map(json.loads, MESSAGES.read_text(encoding="utf-8").splitlines()):
        if row["split"] != split:
            continue
        verdict = oracle.judge(row["text"], objects.thing(row["object"]))
        confusion[row["label"], verdict.kind] += 1
        counts["messages"] += 1
        counts["validity"] += verdict.valid == row["valid"]
        counts["wins"] += verdict.won == row["wins"]
        counts[row["source"]] += 1
        counts[f"validity, {row['source']}"] += verdict.valid == row["valid"]
        if row["valid"]:
            counts["valid"] += 1
            said = WORDS.get(verdict.answer)
            counts["answered"] += said in ("yes", "no")
            counts["right"] += said in ("yes", "no") and said == row["answer"]
    table = {
        "validity agrees": (counts["validity"], counts["messages"]),
        "… of model generations": (counts["validity, model"], counts["model"]),
        "… of written messages": (counts["validity, written"], counts["written"]),
        "answers right where it says Yes or No": (counts["right"], counts["answered"]),
        "says Yes or No on valid questions": (counts["answered"], counts["valid"]),
        "wins agree": (counts["wins"], counts["messages"]),
    }
    return table, confusion


def main() -> None:
    """Prints the tables."""
    for split in ("dev", "test"):
        begun = time.perf_counter()
        table, confusion = figures(split)
        spent = time.perf_counter() - begun
        print(f"## {split}\n\n| figure | share | count |\n|---|---|---|")
        for name, (hits, of) in table.items():
            print(f"| {name} | {100 * hits / of:.1f} % | {hits} of {of} |")
        print(f"\nlabel × judged kind ({1e6 * spent / table['wins agree'][1]:.0f} µs per message):\n")
        print("| label | " + " | ".join(KINDS) + " |\n|---|" + "---|" * len(KINDS))
        for label in KINDS:
            print(f"| {label} | " + " | ".join(str(confusion[label, kind] or "") for kind in KINDS) + " |")
        print()


if __name__ == "__main__":
    main()
