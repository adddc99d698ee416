"""The page of the study: figures, tables and words from the results alone.

Costs seconds; reads nothing but the results.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sonde.report import charts, page, wording
from sonde.studies.twenty_questions import claims as study_claims
from sonde.studies.twenty_questions import outcomes

Results = Mapping[str, Any]
NAN = float("nan")
#: Outcomes that the table of conditions shows.
SHOWN = ("invalid_rate", "question_share", "win", "distinct_questions", "information", "length", "fluency")
POOLED = {
    "last_prompt": "last prompt token (before speaking)",
    "mean_prompt": "mean of the prompt (before speaking)",
    "mean_generated": "mean of what it said (after)",
    "last_generated": "last token it said (after)",
}


def report(results: Results) -> page.Report:
    """The page."""
    settings = results["settings"]
    return page.Report(
        title=f"Twenty Questions: does {settings['model']} know when it is about to break the rules?",
        summary=tuple(one["sentence"] for one in results["claims"]),
        sections=(_collected(results), _probed(results), _steered(results), _evolved(results), _limits()),
        settings=settings,
        versions={name: str(version) for name, version in results["versions"].items()},
    )


def claims_table(results: Results) -> page.Table:
    """The headlines for a terminal."""
    rows = tuple((study_claims.QUESTIONS[one["name"]], one["adjusted"], one["holds"]) for one in results["claims"])
    return page.Table(("headline", "p, corrected", "holds"), rows, decimals=3)


def steering_table(results: Results) -> page.Table:
    """Every condition against the unsteered games, by the share of invalid messages."""
    found = results["steer"]
    rows = []
    for name in (one["name"] for one in found["conditions"][1:]):
        one = found["versus"][name]["invalid_rate"]
        rows.append((name, _interval(one["effect"]), one["p"], one["adjusted"], one["smallest"]))
    return page.Table(
        ("condition", "invalid: difference", "p", "p, corrected", "smallest effect in sight"),
        tuple(rows),
        "Against the unsteered games, paired; p by sign flips, Holm over conditions.",
        decimals=3,
        folded=False,
    )


def _interval(one: Mapping[str, Any] | None, scale: float = 1.0) -> wording.Cell:
    if one is None:
        return None
    return wording.Interval(one["value"] * scale, one["low"] * scale, one["high"] * scale)


def _series(name: str, estimates: Sequence[Mapping[str, Any] | None], notes: tuple[str, ...] = ()) -> charts.Series:
    """Estimates with their intervals; None is no data."""
    value, low, high = (
        np.array([NAN if one is None else one[end] for one in estimates], dtype=float)
        for end in ("value", "low", "high")
    )
    return charts.Series(name, value, low, high, notes)


def _collected(results: Results) -> page.Section:
    found = results["collect"]
    steps = [one for one in found["by_step"] if "rate" in one]
    rates = [one["rate"] for one in steps]
    chart = charts.Lines(
        key="invalid-by-step",
        title="Invalid messages by step",
        x=np.array([float(one["step"]) for one in steps]),
        series=(
            _series("invalid messages", rates, tuple(f"{one['invalid']} of {one['n']} messages" for one in steps)),
        ),
        x_name="step",
        y_name="share of messages",
        y_range=(0.0, 1.0),
        caption=f"{found['games']} games; band: 95 % interval, clustered by game.",
    )
    rate = found["invalid_rate"]
    text = (
        f"{found['games']} games at temperature {found['temperature']:g}, {found['messages']} messages, of which "
        f"{100 * rate['value']:.0f} % [{100 * rate['low']:.0f}, {100 * rate['high']:.0f}] are not exactly one yes/no "
        f"question. {found['left_out']} messages were empty and are left out of probing; {found['failed']} games failed."
    )
    pilots = found["pilots"]
    rows = tuple((one["temperature"], one["messages"], one["invalid"] / max(one["messages"], 1)) for one in pilots)
    table = page.Table(("temperature", "messages", "invalid share"), rows, "Pilots, from which it was chosen.")
    return page.Section("Games", text, (chart,) if steps else (), (table,) if pilots else ())


def _probed(results: Results) -> page.Section:
    found = results["probe"]
    sweep, nested = found["sweep"], found["nested"]
    layers = results["settings"]["layers"]
    drawn = [_layers(sweep, layers), *(_cells(sweep, layers, pooling) for pooling in POOLED)]
    headlines = tuple(
        (
            name,
            _interval(one["scored"]["auroc"]),
            _interval(one["scored"]["balanced_accuracy"]),
            _choice(one),
            one["why"],
        )
        for name, one in nested.items()
        if "skipped" not in one
    )
    table = page.Table(
        ("moment", "AUROC", "balanced accuracy", "chosen most often", "in words"),
        headlines,
        "Layer (and step) chosen on training episodes, judged on held-out ones; 95 % intervals clustered by game.",
    )
    text = (
        "Logistic regression on standardised residual streams; games are held out whole. What is read before the model "
        "speaks and after are different questions and are never mixed: after speaking, the message itself is in view."
    )
    if "skipped" in nested["step"]:
        text += f"\n\nSingle steps: {nested['step']['skipped']}"
    return page.Section("Probes", text, tuple(one for one in drawn if one is not None), (table, *_baselines(nested)))


def _choice(one: Mapping[str, Any]) -> str:
    cell = one["modal"]
    step = "" if cell["step"] is None else f", step {cell['step']}"
    return f"layer {cell['layer']}{step}"


def _baselines(nested: Mapping[str, Any]) -> list[page.Table]:
    found = []
    for name, one in nested.items():
        if "skipped" not in one:
            rows = tuple(
                (baseline, _interval(gain["baseline"]), _interval(gain["difference"]), gain["adjusted"])
                for baseline, gain in one["gains"].items()
            )
            rows += (("shuffled labels (mean)", one["control"], one["selectivity"], None),)
            columns = ("baseline", "its AUROC", "probe minus baseline", "p, corrected")
            found.append(page.Table(columns, rows, f"Baselines on the same held-out rows: {name}.", folded=False))
    return found


def _layers(sweep: Mapping[str, Any], layers: Sequence[int]) -> charts.Chart:
    series = []
    for pooling, name in POOLED.items():
        held = {
            one["layer"]: one["scored"]["auroc"]
            for one in sweep["cells"]
            if one["pooling"] == pooling and one["step"] is None
        }
        series.append(_series(name, [held.get(layer) for layer in layers]))
    known = [
        charts.Reference(f"{one['baseline']} ({one['moment']})", one["auroc"]["value"])
        for one in sweep["baselines"]
        if one["step"] is None and one["baseline"] in ("bag of words", "previous label")
    ]
    return charts.Lines(
        key="auroc-by-layer",
        title="How well the coming verdict is read off each layer",
        x=np.array(layers, dtype=float),
        series=tuple(series),
        x_name="layer",
        y_name="AUROC on held-out games",
        references=(charts.Reference("chance", 0.5), *known),
        caption="All steps together; bands: 95 % intervals clustered by game. Not corrected: the map is to look at.",
    )


def _cells(sweep: Mapping[str, Any], layers: Sequence[int], pooling: str) -> charts.Chart | None:
    cells = [one for one in sweep["cells"] if one["pooling"] == pooling and one["step"] is not None]
    if not cells:
        return None
    steps = sorted({one["step"] for one in (*cells, *sweep["skipped"]) if one["step"] is not None})
    values, marked = np.full((len(layers), len(steps)), NAN), np.zeros((len(layers), len(steps)), dtype=bool)
    hover = [["too few of a class" for _ in steps] for _ in layers]
    for one in cells:
        at = list(layers).index(one["layer"]), steps.index(one["step"])
        values[at], marked[at] = one["scored"]["auroc"]["value"], one["adjusted"] <= 0.05
        hover[at[0]][at[1]] = f"{one['positives']} invalid of {one['n']}, p = {one['adjusted']:.2g} corrected"
    return charts.Heatmap(
        key=f"auroc-{pooling.replace('_', '-')}",
        title=f"Each step by itself: {POOLED[pooling]}",
        cells=values[::-1],
        rows=tuple(str(layer) for layer in reversed(layers)),
        columns=tuple(map(str, steps)),
        x_name="step",
        y_name="layer",
        value_name="AUROC",
        limits=(0.0, 1.0),
        marked=marked[::-1],
        mark_name="p below 0.05, corrected over all cells",
        hover=tuple(tuple(row) for row in reversed(hover)),
        caption="Cells without enough messages of a class have no data.",
    )


def _steered(results: Results) -> page.Section:
    found = results["steer"]
    names = [one["name"] for one in found["conditions"]]
    means = found["means"]
    rates = [means[name]["invalid_rate"] for name in names]
    chart = charts.Bars(
        key="invalid-by-condition",
        title="Invalid messages by condition",
        labels=tuple(names),
        series=(_series("share", rates),),
        value_name="share of messages that are invalid",
        references=(charts.Reference("unsteered", rates[0]["value"]),),
        caption=f"{found['games']} games per condition, paired by object and seed; 95 % intervals over games.",
        points=True,
    )
    tested = next(one["strength"] for one in found["conditions"] if one["control"])
    ratio = found["norms"]["static"] / found["typical_norm"]
    text = (
        f"Directions at layer {found['layer']}, last prompt token. The static one has {100 * ratio:.0f} % of the norm of a "
        f"typical state there; a condition adds it times its strength. Controls (random and orthogonal ones of the "
        f"same norm; shuffled labels as they come) are added with the strength that is tested, {tested:g}."
    )
    if found["left_out"]:
        text += (
            "\n\nSteps without a direction: "
            + "; ".join(f"{step}, {why}" for step, why in found["left_out"].items())
            + "."
        )
    tables = (steering_table(results), *_tables(found, names))
    return page.Section("Steering", text, (chart, *_groups(found, names)), tables, _examples(found))


def _groups(found: Mapping[str, Any], names: Sequence[str]) -> list[charts.Chart]:
    """Invalid messages by group of steps, for the conditions that are tested and their controls."""
    chosen = [names[0], *(one["condition"] for one in found["tests"])]
    chosen += [one["name"] for one in found["conditions"] if one["control"]]
    groups = [(first, stop) for first, stop in outcomes.GROUPS]
    keys = [f"invalid_rate_{first}_{stop - 1}" for first, stop in groups]
    series = []
    for name in chosen:
        held = [found["means"][name][key] for key in keys]
        if any(one is not None for one in held):
            values = np.array([NAN if one is None else one["value"] for one in held])
            series.append(charts.Series(name, values))
    chart = charts.Lines(
        key="invalid-by-steps-and-condition",
        title="Invalid messages by group of steps",
        x=np.array([(first + stop - 1) / 2 for first, stop in groups]),
        series=tuple(series),
        x_name="step (middle of a group of five)",
        y_name="share of messages that are invalid",
        caption="Intervals are in the table.",
    )
    return [chart] if series else []


def _tables(found: Mapping[str, Any], names: Sequence[str]) -> tuple[page.Table, ...]:
    """The means, and all outcomes against the unsteered games."""
    means = tuple((name, *(_interval(found["means"][name][key]) for key in SHOWN)) for name in names)
    every = tuple(
        (name, outcome, _interval(one["effect"]), one["adjusted"], one["smallest"])
        for name in names[1:]
        for outcome, one in found["versus"][name].items()
        if one is not None
    )
    described = "; ".join(f"{key}: {outcomes.NAMES[key].description}" for key in SHOWN)
    return (
        page.Table(("condition", *SHOWN), means, f"Means over games with 95 % intervals. {described}.", folded=False),
        page.Table(
            ("condition", "outcome", "difference", "p, corrected", "smallest effect in sight"),
            every,
            "Every outcome against the unsteered games; Holm over conditions within each outcome.",
            decimals=3,
        ),
    )


def _examples(found: Mapping[str, Any]) -> tuple[page.Examples, ...]:
    return tuple(
        page.Examples(
            f"Game {one['game']}, the secret is {one['task']}",
            tuple(
                page.Transcript(
                    name,
                    tuple(
                        page.Turn(
                            turn["step"], turn["message"], turn["verdict"], "valid" if turn["valid"] else "invalid"
                        )
                        for turn in turns
                    ),
                )
                for name, turns in one["transcripts"].items()
            ),
            f"Chosen by rule: {one['rule']}, by the share of invalid messages, steered minus unsteered.",
        )
        for one in found["examples"]
    )


def _evolved(results: Results) -> page.Section:
    found = results["evolution"]
    if "skipped" in found:
        return page.Section("Evolution of the direction", found["skipped"])
    steps = tuple(map(str, found["steps"]))
    x = np.array(found["steps"], dtype=float)
    drawn: list[charts.Chart] = [
        _cosines(found, steps, "cosine", "Cosine between the directions of steps"),
        _cosines(found, steps, "half_cosine", "The same across split halves: the diagonal is the ceiling"),
        charts.Lines(
            key="norm-by-step",
            title="Norm of each step's direction, and what noise gives",
            x=x,
            series=(
                charts.Series("norm", _array(found["norm"])),
                charts.Series("95 % of permuted labels", _array(found["norm_null"])),
            ),
            x_name="step",
            y_name="norm",
            caption=f"{found['episodes']} games; labels permuted between games.",
        ),
    ]
    if len(steps) > 2:
        explained = found["explained"]
        drawn.append(
            charts.Path2D(
                key="direction-path",
                title="Path of the direction over steps (PCA)",
                points=_array(found["path"]),
                labels=steps,
                x_name=f"first component, {_percent(explained[0])} of the variance",
                y_name=f"second component, {_percent(explained[1])}",
                caption=f"If nothing changed, two components would explain up to {_percent(found['explained_null'])}.",
            )
        )
    return page.Section("Evolution of the direction", " ".join(found["sentences"]), tuple(drawn))


def _cosines(found: Mapping[str, Any], steps: tuple[str, ...], name: str, title: str) -> charts.Chart:
    return charts.Heatmap(
        key=name.replace("_", "-"),
        title=title,
        cells=_array(found[name]),
        rows=steps,
        columns=steps,
        x_name="step",
        y_name="step",
        value_name="cosine",
        centred=True,
        limits=(-1.0, 1.0),
        caption="Valid minus invalid, last prompt token.",
    )


def _array(values: Any) -> np.ndarray:
    """Numbers from JSON data, in which no data is null."""
    return np.array(values, dtype=float)


def _percent(value: float | None) -> str:
    return wording.NO_DATA if value is None else f"{100 * value:.0f} %"


def _limits() -> page.Section:
    return page.Section(
        "What this does not show",
        "One model, one game, one oracle: verdicts are those of the oracle, which errs (its error rates are in the "
        "documentation).\n\nA probe that succeeds shows that the information is there, not that the model uses it; that "
        "is what steering asks.\n\nSteering is tested at one layer, one place and one strength named beforehand. Other "
        "conditions are in the tables to look at, and are no tests.",
    )
