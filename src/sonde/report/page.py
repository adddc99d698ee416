"""How does a study become one page that anybody can open, anywhere, for ever?

    report = page.Report(title="Twenty Questions", summary=("It works.",), sections=(page.Section("Probe", ...),), ...)
    page.write(report, folder)     # folder/report.html and folder/figures/<key>.png

The page holds everything it needs, asks no network for anything, and opens from a disk. Whatever a model or a task
said is text in it and nothing else:

1. Every text is escaped where it enters the page; charts enter as JSON in which no tag can begin.
2. A content security policy allows the page's two scripts by their hashes, and no others; no request can be made.

The same report gives the same bytes: there is no date and nothing random in it. Costs 5 MB on disk, almost all of it
plotly's script, and a second or so to draw the PNGs.
"""

import base64
import dataclasses
import hashlib
import importlib.resources
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from sonde.report import charts, drawing, hovering, look, wording
from sonde.store import disk

Chart = charts.Chart
FOLD_FROM = 15


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows under column names; click on a name to sort.

    Attributes:
        columns: Their names.
        rows: Cells: text, numbers, yes or no, `wording.Interval` (shown as `0.71 [0.65, 0.77]`), None for no data.
        caption: n, what the intervals are.
        decimals: Digits after the point.
        folded: Whether the reader must open it; by default if it has many rows.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[wording.Cell, ...], ...]
    caption: str = ""
    decimals: int = 2
    folded: bool | None = None

    def __post_init__(self) -> None:
        """Checks that every row has a cell for every column."""
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise charts.refusal(
                    f"row {index} of the table {self.caption!r} has {len(row)} cells, expected {len(self.columns)}: "
                    f"one for each of {', '.join(self.columns)}"
                )


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One step of a transcript.

    Attributes:
        step: Its number.
        message: What the agent said.
        verdict: What came back, in a few words.
        tone: How it is coloured.
    """

    step: int
    message: str
    verdict: str = ""
    tone: Literal["valid", "invalid", "plain"] = "plain"


@dataclasses.dataclass(frozen=True, slots=True)
class Transcript:
    """One column of an example: the condition's name and its turns."""

    title: str
    turns: tuple[Turn, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Examples:
    """Transcripts side by side: the same task and seed under two or more conditions.

    Attributes:
        title: What they have in common.
        transcripts: The columns; turns of the same step stand beside each other.
        caption: The rule by which this example was chosen.
    """

    title: str
    transcripts: tuple[Transcript, ...]
    caption: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A heading with paragraphs, charts, tables and examples, shown in this order.

    Attributes:
        title: The heading.
        text: Plain paragraphs, parted by empty lines.
        charts: Figures.
        tables: Tables.
        examples: Examples.
    """

    title: str
    text: str = ""
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    examples: tuple[Examples, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """All that is on the page.

    Attributes:
        title: Title of the page.
        summary: What was found, a sentence or two each.
        sections: The body.
        settings: What the study was run with, seeds too; shown in the order given.
        versions: Package names and versions.
        command: The command that gives this report again.
    """

    title: str
    summary: tuple[str, ...]
    sections: tuple[Section, ...]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    command: str = ""

    def all_charts(self) -> tuple[Chart, ...]:
        """Returns the charts of all sections, in order."""
        return tuple(chart for section in self.sections for chart in section.charts)


def write(report: Report, folder: str | Path) -> Path:
    """Writes `report.html` and `figures/*.png`, and returns the path of the page.

    Raises:
        AnalysisError: Two charts have the same key.
        MissingExtraError: matplotlib or plotly is not installed.
        StoreError: The folder cannot be written.
    """
    page = render(report)
    path = Path(folder) / "report.html"
    for chart in report.all_charts():
        drawing.save_png(chart, path.parent / "figures" / f"{chart.key}.png")
    with disk.explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.write_atomic(path, page.encode("utf-8", "replace"))
    return path


def render(report: Report) -> str:
    """Returns the page as HTML.

    Raises:
        AnalysisError: Two charts have the same key.
        MissingExtraError: plotly is not installed.
    """
    import jinja2
    import markupsafe

    _check_keys(report)
    trusted = {"style": _asset("page.css"), "plotly": hovering.script(), "script": _asset("page.js")}
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, finalize=_visible)
    page = environment.from_string(_asset("page.html")).render(
        report=report,
        sections=[_section(section) for section in report.sections],
        ending=[_table(table) for table in _ending(report)],
        policy=_policy(trusted["plotly"], trusted["script"]),
        **{name: markupsafe.Markup(text) for name, text in trusted.items()},  # noqa: S704  # our own files, and plotly's
    )
    return page + "\n"


def _section(section: Section) -> dict[str, Any]:
    import markupsafe

    drawn = [
        {
            "title": chart.title,
            "caption": look.caption(chart),
            "html": markupsafe.Markup(hovering.to_html(chart)),  # noqa: S704  # escaped there
        }
        for chart in section.charts
    ]
    return {
        "title": section.title,
        "paragraphs": [part.strip() for part in section.text.split("\n\n") if part.strip()],
        "charts": drawn,
        "tables": [_table(table) for table in section.tables],
        "examples": [_example(example) for example in section.examples],
    }


def _table(table: Table) -> dict[str, Any]:
    ranks = [[wording.rank(cell) for cell in row] for row in table.rows]
    numeric = [
        any(row[at] is not None for row in ranks) and not any(isinstance(row[at], str | bool) for row in table.rows)
        for at in range(len(table.columns))
    ]
    rows = [
        [{"text": wording.shown(cell, table.decimals), "rank": rank} for cell, rank in zip(*pair, strict=True)]
        for pair in zip(table.rows, ranks, strict=True)
    ]
    folded = len(rows) >= FOLD_FROM if table.folded is None else table.folded
    return {"columns": table.columns, "caption": table.caption, "rows": rows, "numeric": numeric, "folded": folded}


def _example(example: Examples) -> dict[str, Any]:
    turns = [{turn.step: turn for turn in transcript.turns} for transcript in example.transcripts]
    steps = sorted({step for column in turns for step in column})
    rows = [(step, [column.get(step) for column in turns]) for step in steps]
    titles = [transcript.title for transcript in example.transcripts]
    return {"title": example.title, "caption": example.caption, "titles": titles, "rows": rows}


def _ending(report: Report) -> list[Table]:
    settings = tuple((name, _setting(value)) for name, value in report.settings.items())
    versions = tuple(report.versions.items())
    tables = (
        Table(("setting", "value"), settings, folded=False),
        Table(("package", "version"), versions, folded=False),
    )
    return [table for table in tables if table.rows]


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _visible(value: Any) -> Any:
    """What jinja2 calls on every value it puts into the page, before escaping it."""
    return wording.visible(value) if type(value) is str else value


def _policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _check_keys(report: Report) -> None:
    seen: set[str] = set()
    for chart in report.all_charts():
        if chart.key in seen:
            raise charts.refusal(
                f"two charts have the key {chart.key!r}, and one file would overwrite the other: rename one"
            )
        seen.add(chart.key)


def _asset(name: str) -> str:
    return importlib.resources.files("sonde.report").joinpath("assets", name).read_text(encoding="utf-8")
