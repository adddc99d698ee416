"""The report in a real browser: it opens from a disk with no network, charts can be hovered, hostile text is inert."""

import shutil

import numpy as np
import pytest

from sonde.report import charts, page, wording

CHROMIUM = shutil.which("chromium")
EVIL = "</script><img src=x onerror=hacked=1><a href='https://evil.example'>x</a><b>bold</b>&lt;"
LOOSE = "</SCRIPT ><svg onload=hacked=1>"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine: apt-get install chromium"),
]


def report():
    up = np.array([0.2, 0.5, 0.9])
    series = charts.Series(EVIL, up, up - 0.1, up + 0.1, notes=(LOOSE, LOOSE, LOOSE))
    names = {"title": EVIL, "caption": EVIL}
    drawn = (
        charts.Lines(
            key="lines",
            x=np.arange(3.0),
            series=(series, charts.Series("two", up[::-1])),
            x_name=EVIL,
            y_name=EVIL,
            references=(charts.Reference(EVIL, 0.5),),
            **names,
        ),
        charts.Bars(key="bars", labels=(EVIL, LOOSE, "c"), series=(series, series), value_name=EVIL, **names),
        charts.Heatmap(
            key="heatmap",
            cells=np.array([[0.1, np.nan], [-0.5, 0.25]]),
            rows=(EVIL, "b"),
            columns=("a", LOOSE),
            x_name="step",
            y_name="layer",
            value_name=EVIL,
            centred=True,
            hover=((EVIL, EVIL), (EVIL, EVIL)),
            **names,
        ),
        charts.Path2D(
            key="path",
            points=np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 1.0]]),
            labels=(EVIL, LOOSE, "c"),
            x_name=EVIL,
            y_name=EVIL,
            **names,
        ),
    )
    rows = tuple((f"{EVIL} {n}", n, wording.Interval(n / 10, 0.0, 1.0)) for n in (2, 10, 1))
    table = page.Table((LOOSE, "n", "rate"), rows, caption=EVIL)
    turns = (page.Turn(0, EVIL, LOOSE, "invalid"), page.Turn(1, LOOSE, EVIL, "valid"))
    example = page.Examples(EVIL, (page.Transcript(EVIL, turns), page.Transcript(LOOSE, turns)), caption=EVIL)
    section = page.Section(EVIL, EVIL, drawn, (table,), (example,))
    return page.Report(EVIL, (EVIL,), (section,), {EVIL: LOOSE}, {"sonde": EVIL}, f"sonde {EVIL}")


@pytest.fixture(scope="module")
def browser():
    from playwright import sync_api

    with sync_api.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return page.write(report(), tmp_path_factory.mktemp("report"))


class Seen:
    """A page that was opened, and whatever it asked for or complained about."""

    def __init__(self, browser, path, *, width=1100, scheme="light"):
        self.tab = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
        self.requests, self.complaints = [], []
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.tab.goto(path.as_uri())
        self.tab.wait_for_selector("#chart-path .textpoint")

    def hover(self, selector):
        """Text of the label that shows when the pointer rests on something."""
        place = self.tab.locator(selector).first
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        self.tab.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2 + 3)
        self.tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        self.tab.wait_for_selector(".hoverlayer .hovertext", timeout=5000)
        return "\n".join(self.tab.locator(".hoverlayer .hovertext .line").all_text_contents())


@pytest.fixture
def seen(browser, path):
    opened = Seen(browser, path)
    yield opened
    opened.tab.context.close()


def test_the_page_opens_from_a_disk_asks_for_nothing_and_complains_about_nothing(seen, path):
    assert seen.requests == [path.as_uri()]
    assert seen.complaints == []
    for key in ("lines", "bars", "heatmap", "path"):
        assert seen.tab.locator(f"#chart-{key} svg.main-svg").count() > 0


def test_hovering_over_a_point_shows_its_value_interval_and_note(seen):
    text = seen.hover("#chart-lines .scatterlayer .trace:nth-of-type(2) .point")
    assert "0.200 [0.100, 0.300]" in text
    assert LOOSE in text


def test_hovering_works_on_bars_and_on_paths(seen):
    assert "0.200 [0.100, 0.300]" in seen.hover("#chart-bars .barlayer .point path")
    assert "(0.00, 0.00)" in seen.hover("#chart-path .scatterlayer .point")


def test_hovering_over_a_cell_shows_its_value_and_an_empty_one_says_so(seen):
    area = seen.tab.locator("#chart-heatmap .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    for (across, down), expected in (((0.25, 0.25), "0.100"), ((0.75, 0.25), "no data"), ((0.25, 0.75), "-0.500")):
        seen.tab.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
        seen.tab.wait_for_function(
            "text => [...document.querySelectorAll('.hoverlayer .hovertext')].some(l => l.textContent.includes(text))",
            arg=expected,
            timeout=5000,
        )


def test_hostile_text_is_shown_as_it_is_and_runs_nothing(seen):
    seen.hover("#chart-lines .scatterlayer .trace:nth-of-type(2) .point")
    assert seen.tab.evaluate("typeof hacked") == "undefined"
    assert seen.tab.locator("img, svg a, iframe, main b, a[href^=http]").count() == 0
    assert seen.tab.locator("h1").inner_text() == EVIL
    labels = seen.tab.locator("#chart-bars .ytick text").all_text_contents()
    assert labels[1] == LOOSE
    assert labels[0].startswith("</script><img src=x onerror=hacked")
    assert seen.complaints == []


def test_even_an_injected_script_or_handler_could_not_run_nor_fetch(seen):
    seen.tab.evaluate(
        """() => {
            document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='hacked=1'><p onclick='hacked=1' id=p>p</p>");
            const script = document.createElement("script");
            script.textContent = "hacked=1";
            document.body.append(script);
            document.getElementById("p").click();
        }"""
    )
    fetched = seen.tab.evaluate("() => fetch('https://evil.example').then(() => 'yes', () => 'no')")
    assert fetched == "no"
    assert seen.tab.evaluate("typeof hacked") == "undefined"
    assert not [url for url in seen.requests if url.startswith("http")]


def test_a_click_on_a_column_sorts_by_number(seen):
    head = seen.tab.get_by_role("button", name="n", exact=True)
    column = seen.tab.locator("table tbody tr td:nth-child(2).number")
    head.click()
    assert column.all_text_contents() == ["1", "2", "10"]
    head.click()
    assert column.all_text_contents() == ["10", "2", "1"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_page_without_scrolling_sideways(browser, path, scheme):
    opened = Seen(browser, path, width=390, scheme=scheme)
    try:
        assert opened.tab.evaluate("document.documentElement.scrollWidth") == 390
        assert opened.complaints == []
    finally:
        opened.tab.context.close()


def test_a_dark_screen_gets_light_text_in_the_charts_too(browser, path):
    inks = {}
    for scheme in ("light", "dark"):
        opened = Seen(browser, path, scheme=scheme)
        inks[scheme] = opened.tab.locator("#chart-lines .xtick text").first.evaluate("e => getComputedStyle(e).fill")
        opened.tab.context.close()
    assert inks == {"light": "rgb(29, 33, 38)", "dark": "rgb(228, 231, 235)"}
