"""Behaviours to find circuits of: generators of clean and corrupt prompts that fit the model's tokenizer.

    pairs, report = tasks.get("ioi")(model, n=64, seed=0)      # or tasks.get("my-pairs.jsonl")
    print(report)                                              # what was dropped, and why

Making a hundred pairs takes some tens of milliseconds.
"""

from sonde.circuits.tasks.building import Report
from sonde.circuits.tasks.catalogue import TASKS, Generator, get

__all__ = ["get", "TASKS", "Generator", "Report"]
