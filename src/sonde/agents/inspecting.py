"""One episode to read: each message, what the environment made of it and why, and the reward.

    inspect_episode(played[0].trajectory, task_id="dog")

Whatever a model wrote is shown as plain text: no markup in it is obeyed, no control character reaches the terminal.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import rich.console
import rich.table
import rich.text

LONGEST_SHOWN = 400
COLUMNS = ("step", "message", "verdict", "why", "reward")
STYLES = {"Yes": "green", "No": "red", "Invalid question": "yellow"}


def inspect_episode(
    steps: Sequence[Mapping[str, Any]] | Any, console: rich.console.Console | None = None, *, task_id: str | None = None
) -> None:
    """Prints an episode as a table.

    Args:
        steps: Rows with `step`, `text`, `info` (a verdict) and `reward`; or a Trajectory whose steps' metadata have these.
        console: Where to print; the terminal if left out.
        task_id: The secret, for the title.
    """
    shown = rows_of(steps)
    table = rich.table.Table(*COLUMNS, title=rich.text.Text(plain(task_id or "an episode")), show_lines=True)
    for row in shown:
        info = row.get("info") or {}
        table.add_row(
            str(row.get("step", "")),
            rich.text.Text(plain(str(row.get("text", "")))),
            rich.text.Text(plain(_verdict(info)), style=STYLES.get(str(info.get("answer")), "")),
            rich.text.Text(plain(str(info.get("reason") or ""))),
            "" if row.get("reward") is None else f"{row['reward']:g}",
        )
    console = console or rich.console.Console()
    console.print(table)
    total = sum(float(row.get("reward") or 0.0) for row in shown)
    infos = [row.get("info") or {} for row in shown]
    valid = (
        f", {sum(bool(info.get('valid')) for info in infos)} valid" if any("valid" in info for info in infos) else ""
    )
    won = "won: " if any(info.get("won") for info in infos) else ""
    console.print(f"{won}{len(shown)} steps{valid}, reward {total:g}", highlight=False)


def _verdict(info: Mapping[str, Any]) -> str:
    """What the environment made of a message, in a few words."""
    if not info:
        return "not judged"
    if info.get("answer"):
        return f"{info['answer']} ({info.get('kind', '?')})" + (", won" if info.get("won") else "")
    return ", ".join(f"{name} {value}" for name, value in info.items() if value not in (None, "", False))


def rows_of(steps: Any) -> list[Mapping[str, Any]]:
    """The rows of an episode, given as such or as a Trajectory."""
    if hasattr(steps, "step_metadata"):
        return [{"step": index, **dict(metadata)} for index, metadata in enumerate(steps.step_metadata)]
    return list(steps)


def plain(text: str) -> str:
    """Text without control characters, shortened if very long."""
    seen = "".join(" " if unicodedata.category(one) in ("Cc", "Cf", "Cs") else one for one in text[:LONGEST_SHOWN])
    return seen + ("…" if len(text) > LONGEST_SHOWN else "")
