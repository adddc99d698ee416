"""What did the study of layers find? Charts, tables and sentences, made of its results alone. Costs a second a chart."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sonde.lab.layers import settings as study_settings
from sonde.lab.layers import verdict as study_verdict
from sonde.report import charts, page, wording

KL = "KL(intact || corrupted), nats"
FLOOR = 1e-4


def report(results: Mapping[str, Any]) -> page.Report:
    """The whole page."""
    return page.Report(
        title=f"What the layers of {results['settings']['model']} do",
        summary=tuple(sentences(results)),
        sections=(_single(results), _windows(results), _shape(results), _depth(results)),
        settings=results["settings"],
    )


def sentences(results: Mapping[str, Any]) -> list[str]:
    """What may be said, good or bad."""
    verdict, skip = results["verdict"], study_verdict.estimates(results["single"]["skip"], "kl")
    worst = ", ".join(f"{layer} ({_ends(skip, layer)})" for layer in verdict["worst_skips"])
    first, last = verdict["middle"]
    told = [
        f"Skipping one layer does most harm at layers {worst}: KL from the intact model in nats, 95 % intervals over "
        f"{results['settings']['texts']} texts. The median of layers {first} to {last} is {verdict['median_kl']:.2f}, with "
        f"{verdict['agreement']:.0%} of most likely tokens kept."
    ]
    out = ", ".join(map(str, verdict["stand_out"]))
    told.append(
        f"In the middle, layers that do at least {study_verdict.STANDS_OUT:g} times the median harm: {out}."
        if out
        else f"In the middle no layer does {study_verdict.STANDS_OUT:g} times the median harm."
    )
    told.append(
        f"Control: at {verdict['more_than_noise']} of {results['n_layers']} layers, skipping does more harm than moving the "
        "stream as far in a random direction."
    )
    window = verdict["window"]
    ranked = ", ".join(f"{name} {value:.2f}" for name, value in window["kl"].items())
    told.append(f"In layers {window['first']} to {window['last']}, from least to most harm: {ranked}.")
    ranks = verdict["influence_spearman"]
    told.append(
        f"Block influence and the harm of skipping: rank correlation {ranks['rho']:.2f} over {ranks['n']} layers "
        f"(p = {ranks['p']:.2g})."
    )
    if not results["single"]["identity_equal"]:
        told.append("Warning: the identity order did not give the intact logits to the bit.")
    return told


def single_chart(results: Mapping[str, Any]) -> charts.Lines:
    """KL of each layer skipped, of the control, and of neighbours swapped."""
    single = results["single"]
    series = [_series("skip", single["skip"], "kl"), _series("random change of equal size", single["noise"], "kl")]
    swapped = [*single["swap"], None]
    series.append(_series("swap with the next", swapped, "kl"))
    return charts.Lines(
        key="single-layers",
        title="One layer at a time",
        x=np.arange(results["n_layers"], dtype=np.float64),
        series=tuple(series),
        x_name="layer",
        y_name=KL,
        caption=f"{_texts(results)} Bands are 95 % intervals over texts.",
        log_y=True,
    )


def agreement_chart(results: Mapping[str, Any]) -> charts.Lines:
    """Top-1 agreement of each layer skipped and swapped."""
    single = results["single"]
    return charts.Lines(
        key="single-agreement",
        title="How often the most likely token stays",
        x=np.arange(results["n_layers"], dtype=np.float64),
        series=(
            _series("skip", single["skip"], "agreement"),
            _series("swap with the next", [*single["swap"], None], "agreement"),
        ),
        x_name="layer",
        y_name="share of tokens with the same top token",
        caption=f"{_texts(results)} Bands are 95 % intervals over texts.",
        y_range=(0.0, 1.0),
    )


def methods_chart(results: Mapping[str, Any]) -> charts.Lines:
    """Harm of each method against window size."""
    windows = results["windows"]["windows"]
    series = tuple(
        _series(method, [one[method] for one in windows], "kl")
        for method in study_settings.METHODS
        if any(one[method] is not None for one in windows)
    )
    return charts.Lines(
        key="methods",
        title="What can be done to a window in the middle",
        x=np.array([one["size"] for one in windows], dtype=np.float64),
        series=series,
        x_name="layers in the window",
        y_name=KL,
        caption=f"{_texts(results)} Random: mean of {results['settings']['orders']} orders. Bands: 95 % over texts.",
        log_y=True,
    )


def methods_table(results: Mapping[str, Any]) -> page.Table:
    """The same as a table."""
    rows = []
    for method in study_settings.METHODS:
        cells = []
        for one in results["windows"]["windows"]:
            found = study_verdict.estimates([one[method]], "kl")
            cells.append(wording.Interval(*(float(found[end][0]) for end in ("value", "low", "high"))))
        rows.append((method, *cells))
    columns = ("method", *(f"{one['first']}-{one['last']}" for one in results["windows"]["windows"]))
    return page.Table(columns, tuple(rows), "KL from the intact model by window, 95 % intervals over texts.")


def cosine_chart(results: Mapping[str, Any]) -> charts.Heatmap:
    """Cosine of the stream into each layer with that into each other."""
    names = tuple(str(layer) for layer in range(results["n_layers"] + 1))
    return charts.Heatmap(
        key="cosine",
        title="How the stream turns",
        cells=np.array(results["shape"]["cosine"]),
        rows=names,
        columns=names,
        x_name="stream into layer (the last: after all layers)",
        y_name="stream into layer",
        value_name="cosine, mean over tokens",
        caption=_texts(results),
        limits=(0.0, 1.0),
    )


def influence_chart(results: Mapping[str, Any]) -> charts.Path2D:
    """Block influence against the harm of skipping; points are parted by gaps, so that no line joins them."""
    influence = np.log10([max(float(np.mean(one)), FLOOR) for one in results["shape"]["influence"]]).tolist()
    harm = np.log10(np.maximum(study_verdict.means(results["single"]["skip"], "kl"), FLOOR))
    gap = (np.nan, np.nan)
    points = [cell for pair in zip(influence, harm.tolist(), strict=True) for cell in (pair, gap)]
    labels = [label for layer in range(len(influence)) for label in (str(layer), "")]
    ranks = results["verdict"]["influence_spearman"]
    return charts.Path2D(
        key="influence",
        title="Does block influence tell which layers matter?",
        points=np.array(points, dtype=np.float64),
        labels=tuple(labels),
        x_name="log10 of block influence, 1 - cos(input, output)",
        y_name="log10 of KL when skipped",
        caption=f"A point per layer. Rank correlation {ranks['rho']:.2f}. {_texts(results)}",
    )


def depth_chart(results: Mapping[str, Any]) -> charts.Lines:
    """Agreement when only the first n layers are kept, or all but the first n."""
    depth, count = results["depth"], results["n_layers"]
    return charts.Lines(
        key="depth",
        title="Only the first n layers, and all but the first n",
        x=np.arange(1, count + 1, dtype=np.float64),
        series=(
            _series("first n kept", depth["keep"], "agreement"),
            _series("first n dropped", [*depth["drop"], None], "agreement"),
        ),
        x_name="n",
        y_name="share of tokens with the same top token",
        caption=f"{_texts(results)} Bands are 95 % intervals over texts.",
        y_range=(0.0, 1.0),
    )


def _single(results: Mapping[str, Any]) -> page.Section:
    single = results["single"]
    rows = []
    for layer in range(results["n_layers"]):
        cells = [_cell(single[name], "kl", layer) for name in ("skip", "noise", "swap")]
        cells += [_cell(single["skip"], name, layer) for name in ("agreement", "entropy")]
        skipped = single["skip"][layer]
        change = np.array(skipped["loss"]) - np.array(single["intact"]["loss"])
        rows.append((layer, *cells, _interval({"loss": change.tolist()}, "loss")))
    columns = ("layer", "KL skip", "KL control", "KL swap", "agreement skip", "entropy skip", "loss change skip")
    text = (
        "Each layer is left out, or swapped with the next one. The control leaves the layer in and moves the stream behind it "
        "in a random direction, at each token as far as the layer itself moved it."
    )
    table = page.Table(columns, tuple(rows), _texts(results), folded=True)
    return page.Section("One layer at a time", text, (single_chart(results), agreement_chart(results)), (table,))


def _windows(results: Mapping[str, Any]) -> page.Section:
    text = (
        "Parallel: all layers of the window get the same input, their outputs are averaged; looped: that as often as the window "
        "is long. Middle-repeat: the window's middle layer as often as the window is long. What a model cannot run (layers that "
        "attend differently, side by side) is left out."
    )
    return page.Section("Windows", text, (methods_chart(results),), (methods_table(results),))


def _shape(results: Mapping[str, Any]) -> page.Section:
    return page.Section("The stream", "", (cosine_chart(results), influence_chart(results)))


def _depth(results: Mapping[str, Any]) -> page.Section:
    said, prompts = results["depth"]["said"], results["depth"]["prompts"]
    tables = tuple(
        page.Table(
            ("layers kept", "continuation"),
            tuple((at + 1, one) for at, one in enumerate(said[name])),
            f"{name}: {prompt}",
        )
        for name, prompt in prompts.items()
    )
    text = "The model is read out after its first n layers, without any training; prompts are continued greedily."
    return page.Section("Depth", text, (depth_chart(results),), tables)


def _series(name: str, columns: Sequence[Any], measure: str) -> charts.Series:
    found = study_verdict.estimates(list(columns), measure)
    low, high = found["low"], found["high"]
    if measure == "kl":
        low = np.maximum(low, FLOOR)
    else:
        low, high = np.clip(low, 0, 1), np.clip(high, 0, 1)
    return charts.Series(name, found["value"], low, high)


def _cell(columns: Sequence[Any], measure: str, at: int) -> wording.Cell:
    return _interval(columns[at], measure) if at < len(columns) and columns[at] is not None else None


def _interval(column: Mapping[str, list[float]], measure: str) -> wording.Interval:
    found = study_verdict.estimates([dict(column)], measure)
    return wording.Interval(*(float(found[end][0]) for end in ("value", "low", "high")))


def _ends(found: Mapping[str, np.ndarray], at: int) -> str:
    return f"{found['value'][at]:.2f} [{max(found['low'][at], 0):.2f}, {found['high'][at]:.2f}]"


def _texts(results: Mapping[str, Any]) -> str:
    chosen = results["settings"]
    return f"{chosen['texts']} texts of {chosen['tokens']} tokens."
