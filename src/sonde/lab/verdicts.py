"""What do several inquiries say together? One verdict over runs that differ in seed, planner or examples.

    verdicts.combine([inquiries.opened(book, id) for id in ("q1", "q90", "q177")])

Single runs fixate early; several of them disagree where one was lucky. The rule:

1. Only inquiries about the same model and task that have ended are combined, replays left out: each has one vote.
2. A claim is a corruption, a measure, a side and a bound: what a supported or refuted hypothesis predicted. That a layer
   does more than its size explains is one claim, whatever the bound came to.
3. A claim stands if more than half of all votes support it. It falls if more than half refute it. Otherwise it is open:
   an inquiry that never asked counts as silent, not as a yes.
4. A layer counts as needed if more than half of the votes support a breaking set that it is part of.
5. Beside a claim stands what its held-out runs say together: the mean over all their examples, with an interval that
   counts an example once however many inquiries drew it.

Costs a few queries per inquiry.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sonde.analysis import stats
from sonde.core import errors
from sonde.lab import inquiries, log


@dataclass(frozen=True, slots=True)
class Claim:
    """What was said about one corruption.

    Attributes:
        corruption: What is done to the model.
        expects: Such as `kept below 0.5`.
        supported: Inquiries that support it.
        refuted: Inquiries that refute it.
        verdict: stands, falls or open.
        kept: Over all held-out runs of it: mean, low, high, examples; None if too few.
    """

    corruption: str
    expects: str
    supported: tuple[str, ...]
    refuted: tuple[str, ...]
    verdict: str
    kept: tuple[float, float, float, int] | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What several inquiries say together: votes, claims, and the layers that most of them need."""

    model: str
    task: str
    votes: tuple[str, ...]
    claims: tuple[Claim, ...]
    needed: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON data."""
        return asdict(self)


def combine(chosen: Sequence[inquiries.Inquiry]) -> Verdict:
    """One verdict over several inquiries.

    Raises:
        RequestError: They are about different things, one has not ended, or there are none.
    """
    chosen = list({one.id: one for one in chosen}.values())
    about = {(one.settings.model, one.settings.task) for one in chosen}
    if len(about) != 1:
        listed = ", ".join(f"{model} on {task}" for model, task in sorted(about)) or "none at all"
        raise errors.RequestError(
            f"one verdict is about one model and one task, got {listed}: choose inquiries that agree"
        )
    if len({one.settings.held.get("weights") for one in chosen} - {None}) > 1:
        raise errors.RequestError(
            "these inquiries are about models of one name that have other weights: choose among them"
        )
    unfinished = [one.id for one in chosen if one.ended() is None]
    if unfinished:
        raise errors.RequestError(
            f"{unfinished[0]} has not ended: go on with `sonde lab run --resume {unfinished[0]}` first"
        )
    votes = [one for one in chosen if "replay_of" not in one.settings.more]
    said: dict[tuple[str, str], dict[str, list[str]]] = {}
    needed: dict[int, set[str]] = {}
    for one in votes:
        for finding, prediction in _findings(one):
            key = (prediction["corruption"], _expected(prediction))
            said.setdefault(key, {"supported": [], "refuted": []})[finding["status"]].append(one.id)
            if finding["status"] == "supported" and prediction["relation"] == "below":
                for layer in skipped(_run_of(one, finding, prediction), one.settings.n_layers):
                    needed.setdefault(layer, set()).add(one.id)
    claims = tuple(_claim(key, ways, votes) for key, ways in sorted(said.items()))
    ((model, task),) = about
    layers = tuple(sorted(layer for layer, ids in needed.items() if 2 * len(ids) > len(votes)))
    return Verdict(model, task, tuple(one.id for one in votes), claims, layers)


def _expected(prediction: log.Entry) -> str:
    """What was predicted; a bound that each inquiry works out for itself from sizes is one and the same claim."""
    said = f"{prediction['measure']} {prediction['relation']}"
    return f"{said} what its size explains" if prediction["controls"] == "alike" else f"{said} {prediction['value']:g}"


def _findings(one: inquiries.Inquiry) -> list[tuple[log.Entry, log.Entry]]:
    """Findings with each of their predictions."""
    return [
        (finding, one.book.get(test["prediction"]))
        for finding in one.findings()
        if finding["status"] != "open"
        for test in finding["tests"]
    ]


def _run_of(one: inquiries.Inquiry, finding: log.Entry, prediction: log.Entry) -> log.Entry:
    """The run that tested a prediction."""
    (test,) = [test for test in finding["tests"] if test["prediction"] == prediction.id]
    return one.book.get(test["run"])


def skipped(run: log.Entry, n_layers: int) -> list[int]:
    """The layers that a run left out; none if it did something else."""
    if run["corruption_kind"] in ("keep", "keep-first"):
        return [layer for layer in range(n_layers) if layer not in run["layers"]]
    return list(run["layers"]) if run["corruption_kind"] in ("skip", "drop-first") else []


def _claim(key: tuple[str, str], ways: dict[str, list[str]], votes: Sequence[inquiries.Inquiry]) -> Claim:
    corruption, expects = key
    yes, no = (sorted(set(ways[way]), key=log.number) for way in ("supported", "refuted"))
    verdict = "stands" if 2 * len(yes) > len(votes) else "falls" if 2 * len(no) > len(votes) else "open"
    return Claim(corruption, expects, tuple(yes), tuple(no), verdict, _pooled(corruption, votes))


def _pooled(corruption: str, votes: Sequence[inquiries.Inquiry]) -> tuple[float, float, float, int] | None:
    """The share kept over all held-out runs of a corruption, clustered by example."""
    rows: list[tuple[int, float]] = []
    for one in votes:
        for run in one.entries("run", own=True):
            if run["corruption"] == corruption and run["split"] == "held_out":
                found = one.book.examples(run.id)
                rows += [(row["example"], float(row["correct"])) for row in found if row["intact_correct"]]
    if len({example for example, _ in rows}) < 2:
        return None
    examples, kept = (np.array(column) for column in zip(*rows, strict=True))
    found = stats.mean_interval(kept, examples)
    return found.value, found.low, found.high, found.clusters
