"""The page is whole, the same every time, asks nothing of any network, and takes no text for mark-up."""

import base64
import hashlib
import html.parser
import re

import pytest

from sonde.core import errors
from sonde.report import hovering, page

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Outline(html.parser.HTMLParser):
    """Collects tags, checks that they close in order, and keeps the text outside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.scripts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append((self.tags[-1][1], data))
        elif self.open and self.open[-1] != "style":
            self.text.append(data)

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


def test_page_and_figures_are_written_even_with_text_that_utf8_cannot_hold(tmp_path, make_report, evil):
    path = page.write(make_report(evil), tmp_path / "new")
    assert path == tmp_path / "new" / "report.html"
    assert "�" in path.read_text(encoding="utf-8")
    pictures = {picture.name for picture in (tmp_path / "new" / "figures").iterdir()}
    assert pictures == {"lines.png", "bars.png", "points.png", "heatmap.png", "path.png"}


def test_the_same_report_gives_the_same_page(make_report):
    assert page.render(make_report()) == page.render(make_report())


def test_the_page_holds_plotly_once_and_every_tag_is_closed(make_report):
    text = page.render(make_report())
    assert text.count(hovering.script()) == 1
    outline = Outline(text)
    assert len(outline.all("html")) == 1
    assert [attrs.get("id") for attrs in outline.all("div") if "chart" in attrs.get("class", "").split()] == [
        "chart-lines", "chart-bars", "chart-points", "chart-heatmap", "chart-path",
    ]  # fmt: skip


def test_every_link_leads_into_the_page(make_report):
    outline = Outline(page.render(make_report()))
    ids = {attrs["id"] for _, attrs in outline.tags if "id" in attrs}
    links = [attrs["href"] for attrs in outline.all("a")]
    assert links == ["#section-1", "#again"]
    assert {link[1:] for link in links} <= ids


def test_nothing_on_the_page_is_fetched(make_report, evil):
    text = page.render(make_report(evil)).replace(hovering.script(), "")
    outline = Outline(text)
    for _, attrs in outline.tags:
        assert not {"src", "srcset", "data", "action", "background", "poster"} & set(attrs)
        assert all(value.startswith("#") for name, value in attrs.items() if name == "href")
    assert not [tag for tag, _ in outline.tags if tag in ("link", "img", "iframe", "object", "embed", "base", "form")]
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL).group(1)
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_forbids_all_but_the_two_scripts_of_the_page(make_report, evil):
    outline = Outline(page.render(make_report(evil)))
    (policy,) = [attrs["content"] for attrs in outline.all("meta") if "http-equiv" in attrs]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    running = [text for attrs, text in outline.scripts if "type" not in attrs]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in running]
    assert rules["script-src"].split() == hashes
    assert len(hashes) == 2


def test_hostile_text_is_shown_and_is_nothing_but_text(make_report, evil):
    plain, hostile = (Outline(page.render(make_report(text))) for text in ("plain", evil))

    def shape(outline):
        return [(tag, sorted(attrs), attrs.get("id")) for tag, attrs in outline.tags]

    assert shape(hostile) == shape(plain)
    assert not [name for _, attrs in hostile.tags for name in attrs if name.startswith("on")]
    shown = "".join(hostile.text)
    assert shown.count("</script><img src=x onerror=hacked()>") > 20
    assert "\x00" not in shown
    assert "\u202e" not in shown


def test_tables_show_intervals_align_numbers_and_carry_what_they_are_sorted_by(make_report):
    text = page.render(make_report())
    assert '<td class="number" data-rank="0.71">0.71 [0.65, 0.77]</td>' in text
    assert '<td class="number" data-rank="10.0">10</td>' in text
    assert "<td>plain 10</td>" in text
    assert "<td>no data</td>" in text


def test_a_long_table_is_folded_unless_told_otherwise(make_report):
    rows = tuple((index,) for index in range(page.FOLD_FROM))
    for folded, expected in ((None, 1), (True, 1), (False, 0)):
        section = page.Section("s", tables=(page.Table(("n",), rows, caption="all", folded=folded),))
        assert page.render(page.Report("t", (), (section,))).count("<details>") == expected
    short = page.Section("s", tables=(page.Table(("n",), rows[:-1]),))
    assert "<details>" not in page.render(page.Report("t", (), (short,)))


def test_turns_of_the_same_step_stand_beside_each_other():
    one = page.Transcript("one", (page.Turn(0, "a", "yes", "valid"), page.Turn(2, "c", "bad", "invalid")))
    two = page.Transcript("two", (page.Turn(2, "d"),))
    section = page.Section("s", examples=(page.Examples("pair", (one, two), caption="rule"),))
    text = page.render(page.Report("t", (), (section,)))
    rows = re.findall(r'<tr><th scope="row"[^>]*>(\d+)</th>(.*?)</tr>', text, re.DOTALL)
    assert [step for step, _ in rows] == ["0", "2"]
    assert rows[0][1].count('<td class="over">') == 1
    assert 'class="invalid"><span class="message">c<' in rows[1][1]
    assert 'class="plain"><span class="message">d<' in rows[1][1]


def test_settings_versions_and_command_are_on_the_page(make_report):
    shown = "".join(Outline(page.render(make_report())).text)
    for text in ("seed", "[1, 2]", "sonde study plain", "version"):
        assert text in shown


def test_two_charts_of_one_name_are_refused(tmp_path, make_charts):
    chart = make_charts()[0]
    with pytest.raises(errors.AnalysisError, match="two charts have the key 'lines'"):
        page.write(page.Report("t", (), (page.Section("s", charts=(chart, chart)),)), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_row_that_does_not_fit_its_columns_is_refused():
    with pytest.raises(errors.AnalysisError, match="row 1 of the table 'x' has 1 cells, expected 2"):
        page.Table(("a", "b"), ((1, 2), (1,)), caption="x")


def test_a_folder_that_cannot_be_written_is_named(tmp_path, make_charts):
    (tmp_path / "file").write_text("in the way")
    for section in (page.Section("s"), page.Section("s", charts=make_charts()[:1])):
        with pytest.raises(errors.StoreError, match=r"cannot write .*file"):
            page.write(page.Report("t", (), (section,)), tmp_path / "file")
