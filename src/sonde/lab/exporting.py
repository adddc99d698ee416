"""How does an inquiry read on paper, and how do other programs read it?

    exporting.markdown(inquiry)             # a text with findings, hypotheses, runs and notes
    exporting.data(inquiry)                 # the same as JSON data, everything in it
    exporting.write(inquiry, "log.md")      # by the ending: .md or .json

Whatever a model or a planner wrote is quoted as text: it cannot become a heading, a table cell or a link. Costs a few
queries.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sonde.core import errors
from sonde.lab import inquiries, log, summaries
from sonde.report import wording
from sonde.store import disk

_MARKS = re.compile(r"([\\`*_{}\[\]<>#|!~])")


def data(inquiry: inquiries.Inquiry) -> dict[str, Any]:
    """Everything an inquiry has, inherited entries included, as JSON data."""
    entries = [one.to_json() for one in inquiry.entries() if one.kind != "run"]
    runs = [one.to_json() | {"rows": inquiry.book.examples(one.id)} for one in inquiry.entries("run")]
    spent = inquiry.spent()
    return {
        "inquiry": inquiry.id,
        "settings": inquiry.settings.to_json(),
        "spent": {name: getattr(spent, name) for name in ("experiments", "tokens", "seconds", "calls", "no_calls")},
        "hypotheses": inquiry.states(),
        "runs": runs,
        "entries": entries,
    }


def markdown(inquiry: inquiries.Inquiry) -> str:
    """The inquiry as a text."""
    settings, end = inquiry.settings, inquiry.ended()
    lines = [
        f"# Inquiry {inquiry.id}: which layers of {quoted(settings.model)} does {quoted(settings.task)} need?",
        "",
        f"Planner {quoted(settings.planner)}, seed {settings.seed}, {settings.n_layers} layers, {len(settings.explore)} "
        f"examples to explore with and {len(settings.held_out)} held out. {inquiry.spent().of(settings.limits)}.",
        "",
        quoted(end["why"]) if end else "It has not ended.",
    ]
    findings = inquiry.findings()
    for title, status in (("Findings", "supported"), ("Refuted", "refuted")):
        lines += ["", f"## {title}", ""]
        chosen = [one for one in findings if one["status"] == status]
        lines += [item for one in chosen for item in _finding(one)] or ["None."]
    states = inquiry.states()
    still = [one for one in inquiry.entries("hypothesis") if states[one.id] == "open"]
    lines += ["", "## Open", "", *([f"- {one.id}: {quoted(one['statement'])}" for one in still] or ["None."])]
    lines += ["", "## Predictions", ""]
    lines += _table(
        ("id", "hypothesis", "corruption", "predicted"),
        [(one.id, one["hypothesis"], one["corruption"], f"{one['measure']} {one['relation']} {one['value']:g}")
         for one in inquiry.entries("prediction")],
    )  # fmt: skip
    surveyed = [f"- {one.id}: {one['tool']}, {quoted(summaries.clip(json.dumps(one['summary'], ensure_ascii=False), 600))}"
                for one in inquiry.entries("sweep")]  # fmt: skip
    lines += ["", "## Sweeps", "", *(surveyed or ["None."])]
    lines += ["", "## Runs", ""]
    columns = ("run", "corruption", "examples", "for", "kept", "change of loss", "n")
    lines += _table(columns, [_run(one) for one in inquiry.entries("run")])
    notes = [f"- {one.id}: {quoted(one['text'])} {', '.join(one['cites'])}".rstrip() for one in inquiry.entries("note")]
    lines += ["", "## Notes", "", *(notes or ["None."])]
    return "\n".join(lines) + "\n"


def write(inquiry: inquiries.Inquiry, path: Path | str) -> Path:
    """Writes an inquiry as Markdown or JSON, whichever the ending says.

    Raises:
        RequestError: The ending is another one.
        StoreError: The file cannot be written.
    """
    place = Path(path)
    if place.suffix not in (".md", ".json"):
        raise errors.RequestError(f"export to a file that ends in .md or .json, got {place.name!r}")
    text = markdown(inquiry) if place.suffix == ".md" else json.dumps(data(inquiry), indent=1) + "\n"
    with disk.explained(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        disk.write_atomic(place, text.encode("utf-8", "replace"))
    return place


def quoted(text: Any) -> str:
    """A text on one line that Markdown takes literally."""
    return _MARKS.sub(r"\\\1", " ".join(wording.visible(str(text)).split()))


def _finding(one: log.Entry) -> list[str]:
    return [
        f"- **{one.id}** {quoted(one['claim'])} Evidence: {', '.join(one['evidence'])}.",
        f"  {quoted(one['why'])}.",
    ]


def _run(one: log.Entry) -> tuple[str, ...]:
    what = one["prediction"] or ""
    what = f"control of {what}" if one["control"] is not None else what
    kept, loss = summaries.number(one, "kept"), summaries.number(one, "loss_delta")
    return one.id, one["corruption"], one["split"], what, kept, loss, str(one["n"])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return ["None."]
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return head + [f"| {' | '.join(quoted(cell) for cell in row)} |" for row in rows]
