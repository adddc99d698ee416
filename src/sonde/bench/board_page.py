"""What does a leaderboard look like? A table for the terminal, figures, a page, and all numbers as JSON.

    board_page.table(standings)
    board_page.write(found, standings, folder, title="…", command="…")      # report.html, figures/*.png, results.json

Costs a second or two.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sonde.bench import leaderboard, standings
from sonde.report import charts, page, wording
from sonde.store import disk, documents, plain

RESULTS = "results.json"
CERTAIN = 0.05
ROLES = {"exact-node": "ceiling", "exact": "ceiling", "random": "floor"}


def write(
    found: leaderboard.Found,
    ranked: standings.Standings,
    folder: Path,
    *,
    left_out: Mapping[str, float | str],
    command: str,
) -> Path:
    """Writes page, figures and numbers; returns the path of the page."""
    told = {
        "settings": found.settings.to_json(), "standings": ranked.to_json(), "failed": dict(found.failed),
        "left_out": dict(left_out), "rows": [dataclasses.asdict(row) for row in found.rows],
    }  # fmt: skip
    with disk.explained(folder / RESULTS):
        disk.make_dirs(folder)
        disk.write_atomic(folder / RESULTS, (json.dumps(plain.jsonable(told), indent=1) + "\n").encode())
    return page.write(report(found, ranked, left_out=left_out, command=command), folder)


def report(
    found: leaderboard.Found, ranked: standings.Standings, *, left_out: Mapping[str, float | str], command: str = ""
) -> page.Report:
    """The page as data."""
    sections = [
        page.Section("Standings", _ABOUT, charts=(figure(ranked),), tables=(table(ranked),)),
        page.Section("Pairs of methods", _TESTS, charts=_heatmaps(ranked), tables=(tests(ranked),)),
        page.Section("Model by model", charts=(by_model(found),), tables=(rows(found),)),
    ]
    if found.failed or left_out:
        sections.append(page.Section("What is missing", tables=_missing(found, left_out)))
    return page.Report(
        title="Leaderboard of circuit finders",
        summary=sentences(found, ranked, left_out=left_out),
        sections=tuple(sections),
        settings=found.settings.to_json(),
        versions={name: documents.package_version(name) or "?" for name in ("sonde", "torch", "numpy")},
        command=command,
    )


_ABOUT = (
    "AUROC: the chance that a node (or edge) of the true circuit scores above one outside it. Training constrains nodes, so the "
    "node figure is the one to go by. Exact patching looks at everything one at a time and is the ceiling; random is the floor."
)
_TESTS = (
    "Differences of mean AUROC on the same models. p-values are of sign flips of whole cases, corrected (Holm) for all pairs of methods "
    "at that level."
)


def sentences(
    found: leaderboard.Found, ranked: standings.Standings, *, left_out: Mapping[str, float | str]
) -> tuple[str, ...]:
    """What was found, in words."""
    said = [f"{len(ranked.methods)} methods on {ranked.models} models of {ranked.cases} cases."]
    cheap = [one for one in ranked.methods if one.method not in ROLES]
    if cheap and not np.isnan(cheap[0].node.value):
        best = [one for one in cheap if one.node.value > cheap[0].node.value - standings.ROUNDING]
        least = min(best, key=lambda one: one.passes)
        said.append(
            f"Best after exact patching, by nodes: {', '.join(one.method for one in best)} (AUROC {shown(best[0].node)}); the cheapest of "
            f"them, {least.method}, takes {least.passes:.0f} passes over the pairs."
            if len(best) > 1
            else f"Best after exact patching, by nodes: {least.method} (AUROC {shown(least.node)}), in {least.passes:.0f} passes over the pairs."
        )
    for level in standings.LEVELS:
        same = _near(ranked, level)
        if same:
            said.append(f"Not told apart from {standings.CEILING[level]} at {level}s: {', '.join(same)}.")
    floor = next((one for one in ranked.methods if one.method == standings.FLOOR), None)
    if floor is not None and not np.isnan(floor.node.low):
        fits = floor.node.low <= 0.5 <= floor.node.high
        said.append(
            f"Random has node AUROC {shown(floor.node)}: 0.5 is {'within' if fits else 'OUTSIDE'} its interval."
        )
    if found.failed:
        said.append(f"{len(found.failed)} runs failed; the same command tries them again.")
    broken = [name for name, why in left_out.items() if isinstance(why, str)]
    if len(left_out) > len(broken):
        said.append(f"{len(left_out) - len(broken)} trained models are below the threshold and left out.")
    if broken:
        said.append(f"{len(broken)} models cannot be loaded and are left out: {', '.join(broken)}.")
    return tuple(said)


def table(ranked: standings.Standings) -> page.Table:
    """One row per method."""
    cells = tuple(
        (
            place, one.method, ROLES.get(one.method, ""), interval(one.node), interval(one.edge), f"{one.perfect:.0%}",
            one.metric, one.passes, one.seconds, one.node.n,
        )
        for place, one in enumerate(ranked.methods, start=1)
    )  # fmt: skip
    return page.Table(
        (
            "",
            "method",
            "role",
            "node AUROC",
            "edge AUROC",
            "perfect",
            "metric",
            "passes",
            "seconds",
            "models",
        ),
        cells,
        caption=f"Means over models, 95 % bootstrap intervals over cases ({ranked.cases}). Models: those with a node AUROC, which takes nodes outside the circuit; perfect: where it is 1. Passes: forward "
        "and backward passes over all pairs; seconds on one thread; both are medians.",
        decimals=3,
        folded=False,
    )


def brief(ranked: standings.Standings) -> page.Table:
    """The same for a narrow screen."""
    cells = tuple(
        (
            f"{one.method} ({ROLES[one.method]})" if one.method in ROLES else one.method,
            interval(one.node), interval(one.edge), f"{one.passes:.0f}",
        )
        for one in ranked.methods
    )  # fmt: skip
    caption = f"Means over models, 95 % bootstrap intervals over cases ({ranked.cases}). Costs, metrics and tests: in the report."
    return page.Table(("method", "node AUROC", "edge AUROC", "passes"), cells, caption, decimals=3, folded=False)


def tests(ranked: standings.Standings) -> page.Table:
    """One row per pair of methods and level."""
    cells = tuple(
        (one.level, one.first, one.second, interval(one.difference), one.p, one.models) for one in ranked.tests
    )
    columns = ("level", "first", "second", "difference", "corrected p", "models")
    return page.Table(columns, cells, "First minus second.", decimals=3, folded=True)


def rows(found: leaderboard.Found) -> page.Table:
    """Every row."""
    cells = tuple(
        (f"{row.case}", row.seed, row.method, row.node_auroc, row.edge_auroc, row.metric, row.passes, row.seconds)
        for row in found.rows
    )
    columns = ("case", "seed", "method", "node AUROC", "edge AUROC", "metric", "passes", "seconds")
    return page.Table(columns, cells, "Every method on every model.", decimals=3, folded=True)


def figure(ranked: standings.Standings) -> charts.Bars:
    """Means with intervals, nodes and edges."""
    series = []
    for level in standings.LEVELS:
        values = [getattr(one, level) for one in ranked.methods]
        middle, low, high = (np.array([getattr(one, end) for one in values]) for end in ("value", "low", "high"))
        series.append(charts.Series(f"{level}s", middle, low, high))
    return charts.Bars(
        key="standings",
        title="How well methods rank the parts of known circuits",
        labels=tuple(one.method for one in ranked.methods),
        series=tuple(series),
        value_name="mean AUROC",
        label_name="method",
        caption=f"{ranked.models} models of {ranked.cases} cases; intervals: 95 %, bootstrap over cases.",
        references=(charts.Reference("chance", 0.5),),
        points=True,
    )


def by_model(found: leaderboard.Found) -> charts.Heatmap:
    """Node AUROC of every method on every model."""
    models = list(dict.fromkeys((row.case, row.seed) for row in found.rows))
    names = list(dict.fromkeys(row.method for row in found.rows))
    known = {(row.case, row.seed, row.method): row.node_auroc for row in found.rows}
    cells = [[known.get((*model, name)) for name in names] for model in models]
    return charts.Heatmap(
        key="by-model",
        title="Node AUROC, model by model",
        cells=np.array([[np.nan if one is None else one for one in row] for row in cells], dtype=np.float64),
        rows=tuple(f"{case} / {seed}" for case, seed in models),
        columns=tuple(names),
        x_name="method",
        y_name="case / seed",
        value_name="node AUROC",
        limits=(0.0, 1.0),
    )


def _heatmaps(ranked: standings.Standings) -> tuple[charts.Heatmap, ...]:
    """Differences between methods at both levels."""
    names = [one.method for one in ranked.methods]
    found = []
    for level in standings.LEVELS if ranked.tests else ():
        tests = [[ranked.test(one, two, level) for two in names] for one in names]
        cells = [[np.nan if one is None else one.difference.value for one in row] for row in tests]
        sure = [[one is not None and one.p is not None and one.p < CERTAIN for one in row] for row in tests]
        found.append(
            charts.Heatmap(
                key=f"pairs-{level}", title=f"Difference of mean {level} AUROC: row minus column",
                cells=np.array(cells, dtype=np.float64), rows=tuple(names), columns=tuple(names),
                x_name="second", y_name="first", value_name="difference", marked=np.array(sure), mark_name="corrected p < 0.05",
                centred=True,
            )
        )  # fmt: skip
    return tuple(found)


def _near(ranked: standings.Standings, level: str) -> list[str]:
    """Methods whose difference from the ceiling may be chance."""
    found = []
    for one in ranked.methods:
        test = ranked.test(one.method, standings.CEILING[level], level)
        if one.method not in ROLES and test is not None and test.p is not None and test.p >= CERTAIN:
            found.append(one.method)
    return found


def _missing(found: leaderboard.Found, left_out: Mapping[str, float | str]) -> tuple[page.Table, ...]:
    failed = page.Table(("run", "why"), tuple(found.failed.items()), "Runs that failed.", folded=False)
    short = page.Table(
        ("model", "lowest of accuracy, IIA, strict"),
        tuple((name, f"{value:.2%}") for name, value in left_out.items() if not isinstance(value, str)),
        "Trained models that are not good enough.",
        folded=False,
    )
    broken = page.Table(
        ("model", "why"),
        tuple((name, value) for name, value in left_out.items() if isinstance(value, str)),
        "Models that cannot be loaded.",
        folded=False,
    )
    return tuple(one for one in (failed, short, broken) if one.rows)


def interval(one: Any) -> wording.Interval | float | None:
    """An estimate as a cell."""
    if np.isnan(one.value):
        return None
    return one.value if np.isnan(one.low) else wording.Interval(one.value, one.low, one.high)


def shown(one: Any) -> str:
    """An estimate in words."""
    return wording.shown(interval(one), 3)
