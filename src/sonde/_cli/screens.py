"""What commands share: reading numbers that were typed, telling how far it is, ending cleanly."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import typer

LONGEST = 10_000  # characters of one cell or line


def pair(text: str) -> tuple[str, Any]:
    """`name=value`; the value is read as JSON if it is."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise typer.BadParameter(f"write name=value, got {text!r}", param_hint="--option")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def whole_numbers(text: str | None, option: str) -> list[int] | None:
    """Numbers from `0,5,10` or `0:30:5`."""
    if text is None:
        return None
    try:
        found: list[int] = []
        for part in text.split(","):
            ends = [int(end) for end in part.split(":")]
            found += range(*ends) if len(ends) > 1 else ends
        return sorted(set(found))
    except (ValueError, TypeError):
        raise typer.BadParameter(f"write 0,5,10 or 0:30:5, got {text!r}", param_hint=option) from None


def decimals(text: str | None, option: str) -> list[float] | None:
    """Numbers from `0.7,1.0`."""
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"write numbers such as 0.7,1.0, got {text!r}", param_hint=option) from None


def span(seconds: float) -> str:
    """A stretch of time in words."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def screen(**options: Any) -> Any:
    """A console for what commands print: control characters in names and texts never reach the terminal."""
    import rich.console

    from sonde.report import wording

    class Screen(rich.console.Console):
        def render_str(self, text: str, **how: Any) -> Any:
            return super().render_str(wording.visible(text), **how)

    return Screen(**options)


def said(text: object) -> str:
    """A text on one line, with control characters made visible: for names and errors, whoever made them up."""
    from sonde.report import wording

    return wording.one_line(str(text), LONGEST)


@contextlib.contextmanager
def bars(screen: Any, *, single: bool = False) -> Iterator[Any]:
    """A bar for each thing that is done; told what is being done, how much of it is done, of how much, and what else counts.

    A `single` one is for many things, one after the other.
    """
    from rich import progress

    from sonde.models import waiting

    columns = (
        progress.TextColumn("{task.description:<24}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[counted]}"),
    )
    with waiting.silent(), progress.Progress(*columns, console=screen) as bar:
        tasks: dict[str, Any] = {}

        def told(doing: str, done: int, of: int, **counts: int) -> None:
            name = "" if single else doing
            if name not in tasks:
                tasks[name] = bar.add_task(doing, total=of, counted="")
            counted = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
            bar.update(tasks[name], description=doing, completed=done, total=of, counted=counted)

        yield told


@contextlib.contextmanager
def stopped(screen: Any, how_to_go_on: str) -> Iterator[None]:
    """Ctrl-C ends cleanly and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        screen.print(f"Stopped. What is finished is kept; go on with: {how_to_go_on}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
