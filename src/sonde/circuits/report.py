"""What a search for circuits found: one page with curves, scores and edges; the circuit as picture, JSON and GraphML.

    report.report(found)                          # the page as data, for `page.write`
    report.save_circuit(found, folder)            # circuit.json, .graphml, .svg, mib.json

Layers go from the bottom up, as in the model. Costs a second or two, and a second for each picture.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sonde.analysis import stats
from sonde.circuits import experiment, exporting, faithfulness, graph, layout, mib, picture, scores, search
from sonde.report import charts, page, wording
from sonde.store import disk, documents

CONTROL = "random"
SHOWN = (0.01, 0.1)
TOP = 30
SHARED = 0.01


def save_circuit(found: experiment.SearchResult, folder: Path, *, view: exporting.View = "split") -> None:
    """Writes the circuit that was taken as circuit.json, circuit.graphml and mib.json (with all scores) and, if it can be seen, circuit.svg and figures/circuit.png."""
    assert found.taken is not None
    taken, mine = found.taken, found.scores[found.taken.method]
    with disk.explained(folder):
        disk.write_atomic(folder / "circuit.json", (json.dumps(taken.circuit.to_json(), indent=1) + "\n").encode())
    exporting.save_graphml(taken.circuit, folder / "circuit.graphml", scores=mine, view=view)
    mib.write(folder / "mib.json", mine, circuit=taken.circuit, d_model=found.search.model.cfg.d_model)
    if len(taken.circuit) <= layout.MOST_EDGES:
        title = f"{taken.method}, {found.search.settings.task}: {len(taken.circuit)} edges"
        picture.save_svg(taken.circuit, folder / "circuit.svg", scores=mine, view=view, title=title)
        picture.save_png(taken.circuit, folder / "figures" / "circuit.png", scores=mine, view=view, title=title)


def report(found: experiment.SearchResult, *, view: exporting.View = "split") -> page.Report:
    """The page as data."""
    names = ("sonde", "torch", "transformers", "numpy")
    sections = [_pairs(found)]
    if found.search.judge.ends.enough:
        sections = [_faithful(found), *sections]
        if found.taken is not None and len(found.taken.circuit):
            sections.insert(1, _circuit(found, found.taken, view))
        sections += [_method(one, found) for one in found.scores.values()]
    return page.Report(
        title=f"Circuits of {found.model_id}: {found.search.settings.task}",
        summary=sentences(found),
        sections=tuple(sections),
        settings={"model": found.model_id, "methods": ", ".join(found.scores), **found.search.settings.shown()},
        versions={name: documents.package_version(name) or "?" for name in names},
    )


def sentences(found: experiment.SearchResult) -> tuple[str, ...]:
    """What was found, in words; nothing but that the pairs are too few if they are."""
    searched, ends = found.search, found.search.judge.ends
    left = _left_out(found)
    if not ends.enough:
        few = (
            f"Too few pairs to tell: {len(ends.whole)} judge, and it takes {faithfulness.FEWEST} for any difference to be more than "
            "chance. Scores and metrics are kept; give more pairs for a report."
        )
        return (few, *left)
    better = ends.whole > ends.empty if searched.metric.better == "high" else ends.whole < ends.empty
    said = [
        f"The whole model has a mean {searched.metric.name} of {ends.whole.mean():.3g} on {len(ends.whole)} pairs, the model with "
        f"every edge cut {ends.empty.mean():.3g}; the whole model is better on {better.mean():.0%} of them.",
        f"{len(searched.scoring)} pairs gave the scores, {len(searched.judging)} others judged."
        if searched.settings.holdout
        else "The same pairs gave the scores and judged, so faithfulness is too high.",
        *left,
    ]
    if doubt := doubts(ends, searched.metric.better):
        said.append(doubt)
    if found.taken is not None:
        said += [_chosen(found, found.taken), *_checked(found.checks)]
    control = found.curves.get(CONTROL)
    for name, curve in found.curves.items():
        text = f"{name}: CPR {_words(curve.cpr)}, CMD {_words(curve.cmd)}"
        if control is not None and name != CONTROL:
            text += f"; CPR above the random ranking's by {_words(curve.cpr_above(control))}"
        said.append(f"{text}.")
    said += [f"Note on {name}: {one.note}." for name, one in found.scores.items() if one.note]
    if control is None:
        said.append("There is no random ranking to compare with: sonde circuits compare has one.")
    return tuple(said)


def doubts(ends: faithfulness.Ends, better: str) -> str:
    """Why faithfulness between these ends means little; nothing if it does not."""
    if not ends.apart:
        return (
            "Whole model and no edge are not apart by more than chance on these pairs: that the model does this task is not shown, "
            "and every faithfulness below may be a ratio of noise."
        )
    if (ends.whole.mean() > ends.empty.mean()) != (better == "high"):
        return (
            "The whole model does worse than with every edge cut: it does not do this task, and a high faithfulness below "
            "means as bad as the whole model."
        )
    return ""


def table(found: experiment.SearchResult) -> page.Table:
    """One row per method."""
    control = found.curves.get(CONTROL)
    rows: list[tuple[wording.Cell, ...]] = []
    for name, curve in found.curves.items():
        cost = found.scores[name].cost
        sizes = [_interval(one) for share, one in zip(curve.shares, curve.f, strict=True) if share in SHOWN]
        above = _interval(curve.cpr_above(control)) if control is not None and name != CONTROL else None
        areas = _interval(curve.cpr), _interval(curve.cmd), above
        rows.append(
            (name, found.scores[name].level, *areas, *sizes, round(cost.forwards + cost.backwards), cost.seconds)
        )
    clusters = len(set(found.search.judging.clusters))
    best = "largest absolute" if found.search.settings.absolute else "largest"
    return page.Table(
        (
            "method",
            "scores",
            "CPR",
            "CMD",
            "CPR above random",
            *(f"f at {share:.0%}" for share in SHOWN),
            "passes",
            "seconds",
        ),
        tuple(rows),
        caption=f"{len(found.search.judging)} pairs, 95 % intervals over {clusters} clusters. CPR: area under faithfulness f, higher "
        f"is better; CMD: area of |1 - f|, lower is better. Edges with the {best} scores are kept. Passes: forward and backward "
        "passes of one pair each, for the scores alone.",
        folded=False,
    )


def node_heatmap(one: scores.Scores) -> charts.Heatmap:
    """Scores by layer and head, and of MLPs."""
    whole = one.graph
    values = dict(zip(whole.sources, one.node_values().tolist(), strict=True))
    columns = [*(f"h{head}" for head in range(whole.n_heads)), "MLP"]
    layers = range(whole.n_layers - 1, -1, -1)
    cells = [[*(values[f"a{layer}.h{head}"] for head in range(whole.n_heads)), values[f"m{layer}"]] for layer in layers]
    what = "largest absolute score of the edges that leave it" if one.level == "edge" else "score of the node"
    return charts.Heatmap(
        key=f"{_key(one.method)}-nodes",
        title=f"{one.method}: heads and MLPs",
        cells=np.array(cells, dtype=np.float64),
        rows=tuple(map(str, layers)),
        columns=tuple(columns),
        x_name="head",
        y_name="layer",
        value_name="score",
        caption=f"{what[0].upper()}{what[1:]}. Input: {wording.shown(values[graph.INPUT], 4)}. Scores are of {one.metric}, and "
        "not comparable between methods.",
        centred=bool(np.nanmin(np.array(cells, dtype=np.float64)) < 0),
    )


def shared_heatmap(found: experiment.SearchResult) -> charts.Heatmap:
    """How many of the best edges two methods have in common."""
    names = tuple(found.scores)
    count = max(1, round(SHARED * found.search.graph.n_edges))
    absolute = found.search.settings.absolute
    best = [one.circuit(n_edges=count, absolute=absolute).edges for one in found.scores.values()]
    cells = [[float((one & two).sum() / count) for two in best] for one in best]
    return charts.Heatmap(
        key="shared",
        title=f"Edges that two methods share among their best {count:,}",
        cells=np.array(cells),
        rows=names,
        columns=names,
        x_name="method",
        y_name="method",
        value_name="share of edges",
        caption=f"{SHARED:.0%} of {found.search.graph.n_edges:,} edges. By chance two rankings share {SHARED:.0%}.",
        limits=(0.0, 1.0),
    )


def _faithful(found: experiment.SearchResult) -> page.Section:
    text = (
        "A method's best edges run alone: they carry the clean run's values, all others what the ablation puts there. "
        "f = (m(C) - m(no edge)) / (m(whole) - m(no edge)), with m the metric's mean over pairs."
    )
    drawn: list[charts.Chart] = [faithfulness.chart(list(found.curves.values()))]
    if len(found.scores) > 1:
        drawn.append(shared_heatmap(found))
    rows = tuple(
        (name, f"{100 * share:g} %", count, _interval(one))
        for name, curve in found.curves.items()
        for share, count, one in zip(curve.shares, curve.n_edges, curve.f, strict=True)
    )
    points = page.Table(("method", "share", "edges", "f"), rows, "Faithfulness at each size.", folded=True)
    return page.Section("Faithfulness", text, charts=tuple(drawn), tables=(table(found), points))


def _circuit(found: experiment.SearchResult, chosen: search.Chosen, view: exporting.View) -> page.Section:
    flat = exporting.flat(chosen.circuit, scores=found.scores[chosen.method], view=view)
    kept = sorted((one for one in flat.edges if one.part != "inside"), key=lambda one: -abs(one.score))
    text = (
        f"{_chosen(found, chosen)} It is drawn in circuit.svg (hover over an edge for its name and score) and "
        "figures/circuit.png, and kept in circuit.json and circuit.graphml, and with all scores in mib.json, beside this page."
    )
    rows = tuple((one.source, one.target, one.part, one.score) for one in kept[:1000])
    caption = f"Edges of the circuit, {view} view, by absolute score."
    edges = page.Table(("from", "to", "part", "score"), rows, caption, decimals=4)
    return page.Section("The circuit", text, tables=(edges,))


def _method(one: scores.Scores, found: experiment.SearchResult) -> page.Section:
    ranked = one.ranking(absolute=found.search.settings.absolute)
    rows = tuple((at + 1, name, value) for at, (name, value) in enumerate(ranked[:TOP]))
    what = "edges" if one.level == "edge" else "nodes"
    text = (
        f"{one.cost.forwards:.0f} forward and {one.cost.backwards:.0f} backward passes of one pair each, "
        f"{one.cost.seconds:.1f} s. A positive score: cutting makes the behaviour worse."
    )
    if one.kept is not None:
        text += f" It kept {len(one.kept):,} edges by itself."
    best = page.Table(("rank", "name", "score"), rows, f"The {len(rows)} best {what}.", decimals=4, folded=True)
    return page.Section(f"Scores by {one.method}", text, charts=(node_heatmap(one),), tables=(best,))


def _pairs(found: experiment.SearchResult) -> page.Section:
    made = found.search.report
    rows = tuple((reason, count, made.examples.get(reason, "")) for reason, count in made.dropped.items())
    text = f"{made.kept} pairs of {made.task} fit the tokenizer: clean and corrupt input have as many tokens."
    tables = (page.Table(("reason", "how many", "such as"), rows, "What was left out.", folded=False),) if rows else ()
    return page.Section("Pairs", text, tables=tables)


def _left_out(found: experiment.SearchResult) -> tuple[str, ...]:
    """How many given pairs or words were left out, and why; nothing if none were."""
    reasons = ", ".join(f"{count} ({reason})" for reason, count in found.search.report.dropped.items())
    return (f"Left out: {reasons}.",) if reasons else ()


def _chosen(found: experiment.SearchResult, chosen: search.Chosen) -> str:
    whole = found.search.graph.n_edges
    if chosen.f is None or chosen.without is None:
        low, high = chosen.thresholds
        return (
            f"The circuit of {chosen.method} is empty. Thresholds from {low:.4g} (all {whole:,} edges) to {high:.4g} (the best "
            "edge alone) keep some."
        )
    return (
        f"The circuit of {chosen.method} has {len(chosen.circuit):,} of {whole:,} edges and {len(chosen.circuit.nodes)} nodes. "
        f"Alone it has f = {_words(chosen.f)}; the model without it f = {_words(chosen.without)}."
    )


def _checked(checks: Mapping[str, Any]) -> list[str]:
    """Minimality and completeness in words."""
    said = []
    if one := checks.get("minimality"):
        most = ", ".join(f"{name} {fall:.3g}" for name, fall in list(one["falls"].items())[:3])
        said.append(
            f"Minimality: {len(one['falls'])} of {one['n_edges']} edges taken out one at a time; for {one['idle']:.0%} of them f "
            f"changes by less than 0.001. f falls most without {most}."
        )
    if two := checks.get("completeness"):
        gaps = two["gaps"]
        said.append(
            f"Completeness: over {len(gaps)} random halves, circuit and model without them differ in f by "
            f"{sum(gaps) / len(gaps):.3g} on average, {max(gaps):.3g} at most; the model without the whole circuit has "
            f"f = {two['without']:.3g}."
        )
    return said


def _interval(one: stats.Estimate) -> wording.Interval | float:
    return one.value if np.isnan(one.low) else wording.Interval(one.value, one.low, one.high)


def _words(one: stats.Estimate) -> str:
    return wording.shown(_interval(one), 3)


def _key(method: str) -> str:
    """The name of a method as part of a file's name."""
    return (
        "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in method.lower()).strip("-") or "m"
    )
