"""The page of the study: figures, tables, and what was found in words. Costs a second or so."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sonde.report import charts, page, wording
from sonde.studies.critical_steps import results
from sonde.studies.critical_steps import settings as study_settings

Found = Mapping[str, Any]
NAMES = {"later": "share of valid later messages", "reward": "reward of the later steps"}


def report(found: Found) -> page.Report:
    """The page as data.

    Args:
        found: What `results.json` holds.
    """
    settings = found["settings"]
    where = settings["environment"] or "an environment given as a function"
    removed = " and ".join(study_settings.PARTS[settings["part"]])
    sections = [
        page.Section(
            "Screening",
            "How far the model's distribution over the recorded responses moves when what a layer adds is taken away at "
            f"a step ({settings['ablation']} ablation of {removed}, at "
            "the step's last prompt token and its generated tokens). It says where in depth a step is made. Whether the "
            "step matters later only the rollouts can say.",
            charts=(impact(found),),
        ),
        page.Section(
            "Rollouts",
            "The episode is played on from the recorded state with and without the ablation, with the same random "
            f"numbers. Effects are paired by episode; p-values by sign flips, Holm-corrected over {len(found['cells'])} cells.",
            charts=(effects(found),),
            tables=(table(found),),
        ),
    ]
    if found["heads"]:
        text = "The same screening for single heads of the cells that matter most. Not tested, and not rolled out."
        sections.append(page.Section("Heads", text, charts=(heads(found),)))
    return page.Report(
        title=f"Critical steps: {settings['model']} in {where}",
        summary=tuple(summary(found)),
        sections=tuple(sections),
        settings=settings,
    )


def summary(found: Found) -> list[str]:
    """What was found, in words, also when it is nothing."""
    tested = [one for one in found["cells"] if one["p_holm"] is not None]
    random = [one for one in found["cells"] if not one["chosen"]]
    told, name = [], NAMES[found["outcome"]]
    for one in tested:
        pair = one[found["outcome"]]
        if one["critical"]:
            value, low, high = _ends(pair["effect"])
            told.append(
                f"Step {one['step']} is critical: without what layer {one['layer']} adds there, the {name} changes by "
                f"{value:+.2f} [{low:.2f}, {high:.2f}] (p = {one['p_holm']:.2g} corrected over {len(tested)} cells, "
                f"{pair['pairs']} episodes)."
            )
    if not told:
        told.append(
            f"No step can be called critical: none of {len(tested)} cells changes the {name} by more than chance "
            f"would.{_smallest(found)}"
        )
    count = sum(one["critical"] for one in random)
    told.append(f"Of {len(random)} cells drawn at random, {count} {'is' if count == 1 else 'are'} critical.")
    return told


def _smallest(found: Found) -> str:
    pairs = [pair for one in found["cells"] if (pair := one[found["outcome"]]) is not None]
    known = [pair["smallest"] for pair in pairs if pair["smallest"] is not None]
    if not known:
        return ""
    return f" An uncorrected test would have seen effects of about {float(np.median(known)):.2f} four times in five."


def impact(found: Found) -> charts.Heatmap:
    """The impact matrix, last layer on top, critical cells marked."""
    matrix, order = found["matrix"], slice(None, None, -1)
    value, low, high = (results.numbers(matrix, name) for name in ("value", "low", "high"))
    layers, steps, counts = matrix["layers"], matrix["steps"], matrix["n"]
    marked = np.zeros(value.shape, dtype=bool)
    for cell in results.critical(found["cells"]):
        marked[layers.index(cell.layer), steps.index(cell.step)] = True
    hover = tuple(
        tuple(f"[{low[row, at]:.3g}, {high[row, at]:.3g}], {counts[at]} episodes" for at in range(len(steps)))
        for row in range(len(layers))
    )
    return charts.Heatmap(
        key="impact",
        title="What a layer adds at a step: impact on the next responses",
        cells=value[order],
        rows=tuple(str(layer) for layer in layers[order]),
        columns=tuple(str(step) for step in steps),
        x_name="step",
        y_name="layer",
        value_name="KL, nats per token",
        caption=f"Mean over {min(counts)} to {max(counts)} episodes per step. The sham moves at most {matrix['sham']:.1g}.",
        marked=marked[order] if marked.any() else None,
        mark_name="critical: changes how the later steps go" if marked.any() else "",
        hover=hover[order],
    )


def effects(found: Found) -> charts.Bars:
    """Effects on the later steps, chosen and random cells apart."""
    series = []
    for name, chosen in (("stood out", True), ("drawn at random", False)):
        pairs = [one[found["outcome"]] if one["chosen"] == chosen else None for one in found["cells"]]
        known = [_ends(pair["effect"] if pair else None) for pair in pairs]
        value, low, high = (np.array(column) for column in zip(*known, strict=True))
        series.append(charts.Series(name, value, low, high))
    return charts.Bars(
        key="effects",
        title="How the rest of the episode changes",
        labels=tuple(_label(one) for one in found["cells"]),
        series=tuple(series),
        value_name=f"change of the {NAMES[found['outcome']]}",
        label_name="cell",
        caption="Ablation minus sham, mean over episodes with 95 % intervals; * critical after Holm's correction.",
        references=(charts.Reference("no change", 0.0),),
        points=True,
    )


def heads(found: Found) -> charts.Bars:
    """Impact of single heads."""
    known = [_ends(one["impact"]) for one in found["heads"]]
    value, low, high = (np.array(column) for column in zip(*known, strict=True))
    return charts.Bars(
        key="heads",
        title="Single heads of the cells that matter most",
        labels=tuple(f"step {one['step']}, layer {one['layer']}, head {one['head']}" for one in found["heads"]),
        series=(charts.Series("impact", value, low, high),),
        value_name="KL, nats per token",
        label_name="head",
        caption=f"Mean over {found['heads'][0]['impact']['clusters']} episodes with 95 % intervals.",
    )


def table(found: Found) -> page.Table:
    """All cells that were rolled out, the surest first."""
    rows = []
    for one in sorted(
        found["cells"], key=lambda one: (2.0 if one["p_holm"] is None else one["p_holm"], one["step"], one["layer"])
    ):
        comparisons = [pair and wording.Interval(*_ends(pair["effect"])) for pair in (one["later"], one["reward"])]
        measured = ["stood out" if one["chosen"] else "random", one["impact"], one["own"], *comparisons]
        rows.append((one["step"], one["layer"], *measured, one["p_holm"], one["critical"]))
    return page.Table(
        ("step", "layer", "chosen", "impact", "own validity", "later validity", "later reward", "p (Holm)", "critical"),
        tuple(rows),
        caption=f"Changes against the sham, paired by episode, 95 % intervals. Tested: {NAMES[found['outcome']]}.",
        decimals=3,
    )


def _ends(one: Mapping[str, float] | None) -> tuple[float, float, float]:
    return (np.nan, np.nan, np.nan) if one is None else (one["value"], one["low"], one["high"])


def _label(one: Mapping[str, Any]) -> str:
    return f"step {one['step']}, layer {one['layer']}" + (" *" if one["critical"] else "")
