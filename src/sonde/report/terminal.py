"""What does a report say in a terminal? Its title, its sentences, and tables as rich draws them. Costs nothing."""

from typing import TYPE_CHECKING

from sonde.report import page, wording

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as RichTable


def table(shown: page.Table) -> "RichTable":
    """Returns a table for `rich.console.Console.print`; its texts are taken literally, square brackets too."""
    from rich import box, text
    from rich import table as rich_table

    grid = rich_table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    if shown.caption:
        grid.caption, grid.caption_justify = text.Text(wording.visible(shown.caption)), "left"
    for at, name in enumerate(shown.columns):
        numeric = any(wording.rank(row[at]) is not None for row in shown.rows)
        grid.add_column(text.Text(wording.one_line(name)), justify="right" if numeric else "left")
    for row in shown.rows:
        grid.add_row(*(text.Text(wording.one_line(wording.shown(cell, shown.decimals), 200)) for cell in row))
    return grid


def summary(report: page.Report, *tables: page.Table) -> "Group":
    """Returns title and summary of a report, and the tables asked for, for `rich.console.Console.print`."""
    from rich import console, text

    sentences = [text.Text(f"• {wording.visible(sentence)}") for sentence in report.summary]
    title = text.Text(wording.one_line(report.title, 200), style="bold")
    return console.Group(title, *sentences, *(table(one) for one in tables))
