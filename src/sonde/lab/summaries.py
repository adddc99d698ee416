"""What has been found out so far, in as many characters as there are to spend?

    summaries.of(inquiry, most=8000)        # for a planner that must not forget, and cannot remember everything

Findings come first, then hypotheses with their state, predictions, runs and notes, newest first. What does not fit is
counted, and can be asked for with the tool `aggregate`. Costs a few queries.
"""

import json
from collections.abc import Mapping, Sequence

from sonde.lab import inquiries, log

#: Shares of the space for each section.
SHARES = {"finding": 0.2, "hypothesis": 0.18, "prediction": 0.14, "sweep": 0.13, "run": 0.24, "note": 0.11}
LINE = 260


def of(inquiry: inquiries.Inquiry, *, most: int) -> str:
    """The summary, never longer than `most` characters."""
    settings, used = inquiry.settings, inquiry.spent()
    head = (
        f"Model {settings.model}, {settings.n_layers} layers (0 to {settings.n_layers - 1}). Task {settings.task!r}: "
        f"{len(settings.explore)} examples to explore with, {len(settings.held_out)} held out.\n"
        f"Spent: {used.of(settings.limits)}.\n"
    )[: most // 4]
    left, states = most - len(head), inquiry.states()
    parts = [head]
    for kind, share in SHARES.items():
        entries = inquiry.findings() if kind == "finding" else inquiry.entries(kind)
        entries = [one for one in entries if one.kind != "run" or not one["sweep"]]  # those are in their sweep
        lines = [clip(_line(one, states)) for one in reversed(entries)]
        parts.append(_section(kind, lines, int(left * share)))
    return "".join(parts)[:most]


def clip(text: str, most: int = LINE) -> str:
    """A text on one line, cut to a length."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def number(one: log.Entry, name: str) -> str:
    """A number of a run with its interval."""
    value, low, high = one[name], one[f"{name}_low"], one[f"{name}_high"]
    if value is None:
        return "no data"
    return f"{value:.2f}" if low is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _line(one: log.Entry, states: Mapping[str, str]) -> str:
    if one.kind == "finding":
        return f"{one.id} {one['status']}: {one['claim']} (about {one['hypothesis']}; evidence {', '.join(one['evidence'])})"
    if one.kind == "hypothesis":
        return f"{one.id} {states[one.id]}: {one['statement']}"
    if one.kind == "prediction":
        return f"{one.id} of {one['hypothesis']}: {one['corruption']} gives {one['measure']} {one['relation']} {one['value']:g}"
    if one.kind == "note":
        return f"{one.id}: {one['text']}"
    if one.kind == "sweep":
        asked = ", ".join(f"{name}={value}" for name, value in one["arguments"].items())
        return f"{one.id} {one['tool']} ({asked or 'all'}): {json.dumps(one['summary'], ensure_ascii=False)}"
    role = f" control of {one['prediction']}" if one["control"] is not None else ""
    role = role or (f" test of {one['prediction']}" if one["prediction"] else "")
    return f"{one.id} {one['corruption']} ({one['split']}{role}): kept {number(one, 'kept')}, n={one['n']}"


def _section(kind: str, lines: Sequence[str], most: int) -> str:
    if not lines:
        return f"{kind}s: none yet\n"[:most]
    text, shown = f"{kind}s, newest first:\n", 0
    for line in lines:
        if len(text) + len(line) + 60 > most:
            break
        text += f"- {line}\n"
        shown += 1
    return text + (f"- and {len(lines) - shown} older; use aggregate\n" if shown < len(lines) else "")
