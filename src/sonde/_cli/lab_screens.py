"""How `sonde lab` shows what it found: columns side by side, tables, and files."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
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


def measures(rows: Sequence[Any], caption: str) -> Any:
    """The rows of measurements, measure by measure, and below what was done in each."""
    from rich import console, text

    lines: list[tuple[Any, ...]] = []
    names: dict[str, str] = {}
    for at, one in enumerate(rows):
        if not at or rows[at - 1].measure != one.measure:
            lines.append((one.measure, "", "", ""))
        if one.spec not in names:
            drawn = sum(name.startswith("control") for name in names.values())
            names[one.spec] = f"control {drawn + 1}" if one.role == "control" else one.role
        change = "" if one.delta is None else _cell(one.delta)
        lines.append((f"· {names[one.spec]}", _cell(one.value), change, one.value.n))
    table = terminal.table(
        page.Table(("", "value", "change", "n"), tuple(lines), f"{caption} 95 % intervals.", decimals=3)
    )
    done = [text.Text(f"{name}: {wording.visible(spec)}") for spec, name in names.items() if name != "baseline"]
    return console.Group(table, *done)


def show_task(screen: Any, result: Any, count: int) -> None:
    """A task's measurements, flags and some completions."""
    screen.print(measures(result.measures, f"{result.task}: {len(result.rows)} examples, changes paired by example."))
    for flag in result.flags:
        screen.print(f"Note: {flag}.", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if count and result.rows:
        lines = tuple(
            (_tail(one.prompt), one.answer.strip(), _head(one.baseline_completion), _head(one.completion))
            for one in result.rows[:count]
        )
        screen.print(terminal.table(page.Table(("prompt (its end)", "answer", "intact", result.corruption), lines)))


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


def translated(found: Any) -> Iterator[Any]:
    """What each layer knows, by three ways of reading it: KL, then agreement."""
    ways = ("best linear guess", "logit lens", "control")
    for title, fields in (
        ("KL from the model's prediction, in nats", ("translated", "lens", "shuffled")),
        ("Share of tokens with its top-1", ("agreement", "lens_agreement", "shuffled_agreement")),
    ):
        lines = tuple((one.layer, *(_cell(getattr(one, name)) for name in fields)) for one in found.layers)
        caption = f"{title}. {found.caption} 95 % intervals over texts."
        yield terminal.table(page.Table(("into layer", *ways), lines, caption, decimals=2))


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


def write(screen: Any, path: Path | None, content: dict[str, Any]) -> None:
    """Writes JSON if a file was named."""
    if path is None:
        return
    from sonde import store
    from sonde.store import disk

    with disk.explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.write_atomic(path, (json.dumps(store.jsonable(content), indent=1, allow_nan=False) + "\n").encode())
    screen.print(f"Written: {path}", soft_wrap=True, highlight=False, markup=False)


def _cell(one: Any) -> wording.Cell:
    return one.value if one.low != one.low else wording.Interval(one.value, one.low, one.high)


def _blank(rows: tuple[tuple[Any, ...], ...]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple("" if cell is None else cell for cell in row) for row in rows)


def _tail(prompt: str) -> str:
    return prompt.splitlines()[-1][-40:] if prompt.splitlines() else prompt


def _head(completion: str) -> str:
    return completion.strip().split("\n")[0][:30] or "(nothing)"
