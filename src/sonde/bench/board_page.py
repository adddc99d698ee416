"""What does a leaderboard look like? A table for the terminal, figures and a page, made of its results alone.

    board_page.report(results)          # of a leaderboard, as in results.json
    board_page.brief(standings.of(board_rows.rows_of(results)))

Costs a second or two.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sonde.bench import board_rows, standings
from sonde.report import charts, page, wording
from sonde.store import documents

CERTAIN = 0.05
CEILINGS = ("exact-node", "exact")


def report(results: Mapping[str, Any]) -> page.Report:
    """The page as data."""
    rows = board_rows.rows_of(results)
    ranked = standings.of(rows)
    sections = [
        page.Section("Standings", _ABOUT, charts=(figure(ranked),), tables=(table(ranked),)),
        page.Section("Pairs of methods", _TESTS, charts=_heatmaps(ranked), tables=(tests(ranked),)),
        page.Section("Model by model", charts=(by_model(rows),), tables=(every(rows),)),
    ]
    if lacking := missing(results):
        sections.append(page.Section("What is missing", tables=lacking))
    return page.Report(
        title="Leaderboard of circuit finders",
        summary=sentences(results),
        sections=tuple(sections),
        settings=results["settings"],
        versions={name: documents.package_version(name) or "?" for name in ("sonde", "torch", "numpy")},
    )


_ABOUT = (
    "AUROC: the chance that a node (or edge) of the true circuit scores above one outside it; heads: among heads alone. Training constrains "
    "nodes, so the node figure is the one to go by. Exact patching looks at everything one at a time and is the ceiling. Priors look at nothing "
    "but the shape of the model; the best of them, or random, is the floor, and margins are what a method has above it on the same models."
)
_TESTS = (
    "Differences of mean AUROC on the same models. p-values are of sign flips of whole cases, corrected (Holm) for all pairs of methods "
    "at that level."
)


def sentences(results: Mapping[str, Any]) -> tuple[str, ...]:
    """What was found, in words."""
    ranked, dropped, left_out = standings.of(board_rows.rows_of(results)), results["dropped"], results["left_out"]
    said = [f"{len(ranked.methods)} methods on {ranked.models} models of {ranked.cases} cases."]
    cheap = [one for one in ranked.methods if not role(one.method, ranked)]
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
    for level in ("node", "head"):
        floor = next((one for one in ranked.methods if one.method == ranked.floors.get(level)), None)
        if floor is not None:
            said.append(
                f"The best that looks at nothing, by {level}s: {floor.method} (AUROC {shown(getattr(floor, level))})."
            )
    said.append(
        f"{ranked.true_nodes} nodes of circuits are judged; {ranked.left_out} never matter in an exchange and are left out."
    )
    if dropped:
        said.append(
            f"Dropped, because too many of their nodes cannot be judged: {'; '.join(f'{name}: {why}' for name, why in dropped.items())}."
        )
    if results["failed"]:
        said.append(f"{len(results['failed'])} rows failed; the same command in a new run tries them again.")
    broken = [name for name, why in left_out.items() if isinstance(why, str)]
    if len(left_out) > len(broken):
        said.append(f"{len(left_out) - len(broken)} trained models are below the threshold and left out.")
    if broken:
        said.append(f"{len(broken)} models cannot be loaded and are left out: {', '.join(broken)}.")
    return tuple(said)


def role(method: str, ranked: standings.Standings) -> str:
    """What a method is there for, beside methods that are compared."""
    if method in CEILINGS:
        return "ceiling"
    if method in ranked.floors.values():
        return f"floor of {', '.join(f'{level}s' for level, one in ranked.floors.items() if one == method)}"
    return "looks at nothing" if method in standings.BLIND else ""


def table(ranked: standings.Standings) -> page.Table:
    """One row per method."""
    cells = tuple(
        (
            place, one.method, role(one.method, ranked), interval(one.node), interval(one.head), interval(one.edge),
            *_margin(ranked, one.method), f"{one.perfect:.0%}", one.metric, one.passes, one.seconds, one.node.n,
        )
        for place, one in enumerate(ranked.methods, start=1)
    )  # fmt: skip
    columns = (
        "", "method", "role", "node AUROC", "head AUROC", "edge AUROC", "above the floor", "corrected p", "perfect", "metric",
        "passes", "seconds", "models",
    )  # fmt: skip
    caption = (
        f"Means over models, 95 % bootstrap intervals over cases ({ranked.cases}). Above the floor: node AUROC less that of the best ranking that "
        "looks at nothing, on the same models. Models: those with a node AUROC; perfect: where it is 1. Passes: forward "
        "and backward passes over all pairs; seconds on one thread; both are medians."
    )
    return page.Table(columns, cells, caption=caption, decimals=3, folded=False)


def _margin(ranked: standings.Standings, method: str) -> tuple[Any, Any]:
    """What a method has above the floor by nodes, and its p-value."""
    found = ranked.margin(method, "node")
    return (None, None) if found is None else (interval(found.difference), found.p)


def brief(ranked: standings.Standings) -> page.Table:
    """The same for a narrow screen."""
    cells = tuple(
        (
            f"{one.method} ({told})" if (told := role(one.method, ranked)) else one.method,
            interval(one.node), interval(one.head), interval(one.edge), f"{one.passes:.0f}",
        )
        for one in ranked.methods
    )  # fmt: skip
    caption = f"Means over models, 95 % bootstrap intervals over cases ({ranked.cases}). Costs, metrics and tests: in the report."
    return page.Table(
        ("method", "node AUROC", "head AUROC", "edge AUROC", "passes"), cells, caption, decimals=3, folded=False
    )


def tests(ranked: standings.Standings) -> page.Table:
    """One row per pair of methods and level."""
    cells = tuple(
        (one.level, one.first, one.second, interval(one.difference), one.p, one.models) for one in ranked.tests
    )
    columns = ("level", "first", "second", "difference", "corrected p", "models")
    return page.Table(columns, cells, "First minus second.", decimals=3, folded=True)


def every(rows: Sequence[board_rows.Row]) -> page.Table:
    """Every row."""
    cells = tuple(
        (
            f"{row.case}", row.seed, row.method, row.node_auroc, row.head_auroc, row.edge_auroc, row.true_nodes, row.left_out, row.metric,
            row.passes, row.seconds,
        )
        for row in rows
    )  # fmt: skip
    columns = (
        "case", "seed", "method", "node AUROC", "head AUROC", "edge AUROC", "nodes judged", "left out", "metric", "passes", "seconds",
    )  # fmt: skip
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
        references=_floor(ranked),
        points=True,
    )


def _floor(ranked: standings.Standings) -> tuple[charts.Reference, ...]:
    """The best that looks at nothing, by nodes; chance where there is none."""
    best = next((one for one in ranked.methods if one.method == ranked.floors.get("node")), None)
    if best is None:
        return (charts.Reference("chance", 0.5),)
    return (charts.Reference(f"nodes: {best.method}", best.node.value),)


def by_model(rows: Sequence[board_rows.Row]) -> charts.Heatmap:
    """Node AUROC of every method on every model."""
    models = list(dict.fromkeys((row.case, row.seed) for row in rows))
    names = list(dict.fromkeys(row.method for row in rows))
    known = {(row.case, row.seed, row.method): row.node_auroc for row in rows}
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
    names = [one.method for one in ranked.methods if one.method not in standings.BLIND]
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
        if one.method not in CEILINGS and test is not None and test.p is not None and test.p >= CERTAIN:
            found.append(one.method)
    return found


def missing(results: Mapping[str, Any]) -> tuple[page.Table, ...]:
    """Rows that failed and models that are not there, with why."""
    left_out = results["left_out"]
    failed = page.Table(("row", "why"), tuple(results["failed"].items()), "Rows that failed.", folded=False)
    short = page.Table(
        ("model", "lowest of accuracy, IIA, strict"),
        tuple((name, f"{value:.2%}") for name, value in left_out.items() if not isinstance(value, str)),
        "Trained models that are not good enough.",
        folded=False,
    )
    dropped = page.Table(
        ("model", "why"),
        tuple(results["dropped"].items()),
        "Models of which too many nodes cannot be judged.",
        folded=False,
    )
    broken = page.Table(
        ("model", "why"),
        tuple((name, value) for name, value in left_out.items() if isinstance(value, str)),
        "Models that cannot be loaded.",
        folded=False,
    )
    return tuple(one for one in (failed, short, dropped, broken) if one.rows)


def interval(one: Any) -> wording.Interval | float | None:
    """An estimate as a cell."""
    if np.isnan(one.value):
        return None
    return one.value if np.isnan(one.low) else wording.Interval(one.value, one.low, one.high)


def shown(one: Any) -> str:
    """An estimate in words."""
    return wording.shown(interval(one), 3)
