"""The summary in a terminal says what the page says, and takes brackets literally."""

import io

from rich import console

from sonde.report import page, terminal, wording


def printed(thing):
    out = io.StringIO()
    console.Console(file=out, width=100).print(thing)
    return out.getvalue()


def test_a_table_shows_intervals_and_brackets_as_they_are():
    shown = page.Table(("name", "rate"), (("[red]x[/]", wording.Interval(0.71, 0.65, 0.77)),), caption="n = 3 [bold]")
    text = printed(terminal.table(shown))
    for part in ("[red]x[/]", "0.71 [0.65, 0.77]", "n = 3 [bold]"):
        assert part in text


def test_a_summary_has_title_sentences_and_tables():
    report = page.Report("The [title]", ("First [b].", "Second \x1b[31m."), ())
    text = printed(terminal.summary(report, page.Table(("n",), ((3,),))))
    for part in ("The [title]", "First [b].", "Second �[31m.", "3"):
        assert part in text
    assert "\x1b" not in text
