"""How `sonde lab` shows what it found: columns side by side, and tables."""

from collections.abc import Iterator, Sequence
from typing import Any

from sonde.report import page, terminal, wording


def beside(reply: Any, spec: str) -> Any:
    """The intact answer and the corrupted one, in two columns."""
    from rich import box, text
    from rich import table as rich_table

    grid = rich_table.Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
    for title in ("intact", spec):
        grid.add_column(text.Text(title), ratio=1, overflow="fold")
    grid.add_row(*(text.Text(wording.visible(one.strip()) or "(nothing)") for one in (reply.intact, reply.corrupted)))
    return grid


def converse(screen: Any, talk: Any, spec: str) -> None:
    """Reads lines and shows replies, until an empty line or the end of the input."""
    from sonde.core import errors

    while True:
        try:
            said = screen.input("[bold]you>[/] ")
        except (EOFError, KeyboardInterrupt):
            screen.print()
            return
        if not said.strip():
            return
        try:
            screen.print(beside(talk.say(said), spec))
        except errors.ContextError as error:
            talk.forget()
            screen.print(f"{error}. Everything said so far is forgotten.", highlight=False, markup=False)


def shifts(found: Any) -> Iterator[Any]:
    """A text's own tokens, and the vocabulary's most raised and lowered ones."""
    lines = tuple((repr(one.token), one.intact, one.corrupted, one.delta) for one in found.tokens)
    yield terminal.table(
        page.Table(
            ("token", "intact", found.corruption, "change"),
            lines,
            "Log-probability of each token of the text, in nats.",
        )
    )
    both = [[(repr(token), value) for token, value in side] for side in (found.raised, found.lowered)]
    length = max(map(len, both))
    padded = [side + [("", None)] * (length - len(side)) for side in both]
    rows = tuple((*left, *right) for left, right in zip(*padded, strict=True))
    caption = "Change of a token's probability, mean over the positions of the text."
    yield terminal.table(page.Table(("raised", "by", "lowered", "by "), _blank(rows), caption, decimals=4))


def checked(lines: Sequence[Any], model: str | None) -> Any:
    """One line per task."""
    if model is None:
        rows = tuple((one.task, one.examples, ", ".join(one.remarks) or "sound") for one in lines)
        return terminal.table(page.Table(("task", "examples", "remarks"), rows))
    rows = tuple(
        (
            one.task,
            one.examples,
            _cell(one.accuracy),
            one.logprob.value,
            one.control.value,
            one.able,
            ", ".join(one.remarks),
        )
        for one in lines
    )
    columns = ("task", "examples", "right", "log p", "log p, others' answers", "can", "remarks")
    return terminal.table(
        page.Table(columns, rows, f"{model}: completed greedily; log p of the whole answer, in nats.")
    )


def _cell(one: Any) -> wording.Cell:
    return one.value if one.low != one.low else wording.Interval(one.value, one.low, one.high)


def _blank(rows: tuple[tuple[Any, ...], ...]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple("" if cell is None else cell for cell in row) for row in rows)
