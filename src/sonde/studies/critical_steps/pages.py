"""What does the study look like on a page? Figures, tables, and what was found in words.

The page is `report.html` in the run's folder, with the figures as PNGs beside it. Costs a second or so.
"""

from pathlib import Path

import numpy as np

from sonde.analysis import stats
from sonde.report import charts, page, wording
from sonde.studies.critical_steps import results

NAMES = {"later": "share of valid later messages", "reward": "reward of the later steps"}


def write(found: results.CriticalSteps, *, command: str = "") -> Path:
    """Writes the page and its figures into the run's folder; returns the page's path.

    Args:
        found: The study.
        command: The command that gives it again.
    """
    return page.write(report(found, command=command), found.folder)


def report(found: results.CriticalSteps, *, command: str = "") -> page.Report:
    """The page as data."""
    settings = found.settings
    where = settings.environment or "an environment given as a function"
    removed = " and ".join(site.rpartition(".")[2] for site in settings.sites(0))
    sections = [
        page.Section(
            "Screening",
            "How far the model's distribution over the recorded responses moves when what a layer adds is taken away at "
            f"a step ({settings.ablation} ablation of {removed}, at "
            "the step's last prompt token and its generated tokens). It says where in depth a step is made. Whether the "
            "step matters later only the rollouts can say.",
            charts=(impact(found),),
        ),
        page.Section(
            "Rollouts",
            "The episode is played on from the recorded state with and without the ablation, with the same random "
            f"numbers. Effects are paired by episode; p-values by sign flips, Holm-corrected over {len(found.cells)} cells.",
            charts=(effects(found),),
            tables=(table(found),),
        ),
    ]
    if found.heads:
        text = "The same screening for single heads of the cells that matter most. Not tested, and not rolled out."
        sections.append(page.Section("Heads", text, charts=(heads(found),)))
    return page.Report(
        title=f"Critical steps: {settings.model} in {where}",
        summary=tuple(summary(found)),
        sections=tuple(sections),
        settings=settings.to_json(),
        command=command,
    )


def summary(found: results.CriticalSteps) -> list[str]:
    """What was found, in words, also when it is nothing."""
    tested = [one for one in found.cells if one.p is not None]
    random = [one for one in found.cells if not one.chosen]
    told = []
    for one in found.cells:
        pair = one.tested(found.outcome)
        if one.critical and pair is not None:
            told.append(
                f"Step {one.cell.step} is critical: without what layer {one.cell.layer} adds there, the "
                f"{NAMES[found.outcome]} changes by {pair.effect.value:+.2f} [{pair.effect.low:.2f}, "
                f"{pair.effect.high:.2f}] (p = {one.p:.2g} corrected over {len(tested)} cells, {pair.pairs} episodes)."
            )
    if not told:
        told.append(
            f"No step can be called critical: none of {len(tested)} cells changes the {NAMES[found.outcome]} by more than "
            f"chance would.{_smallest(found)}"
        )
    count = sum(one.critical for one in random)
    told.append(f"Of {len(random)} cells drawn at random, {count} {'is' if count == 1 else 'are'} critical.")
    return told


def _smallest(found: results.CriticalSteps) -> str:
    pairs = [pair for one in found.cells if (pair := one.tested(found.outcome)) is not None]
    known = [pair.smallest for pair in pairs if pair.smallest is not None]
    if not known:
        return ""
    return f" An uncorrected test would have seen effects of about {float(np.median(known)):.2f} four times in five."


def impact(found: results.CriticalSteps) -> charts.Heatmap:
    """The impact matrix, last layer on top, critical cells marked."""
    matrix, order = found.matrix, slice(None, None, -1)
    marked = np.zeros(matrix.value.shape, dtype=bool)
    for cell in found.critical:
        marked[matrix.layers.index(cell.layer), matrix.steps.index(cell.step)] = True
    hover = tuple(
        tuple(
            f"[{matrix.low[row, column]:.3g}, {matrix.high[row, column]:.3g}], {matrix.n[column]} episodes"
            for column in range(len(matrix.steps))
        )
        for row in range(len(matrix.layers))
    )
    return charts.Heatmap(
        key="impact",
        title="What a layer adds at a step: impact on the next responses",
        cells=matrix.value[order],
        rows=tuple(str(layer) for layer in matrix.layers[order]),
        columns=tuple(str(step) for step in matrix.steps),
        x_name="step",
        y_name="layer",
        value_name="KL, nats per token",
        caption=f"Mean over {int(matrix.n.min())} to {int(matrix.n.max())} episodes per step. The sham moves at most "
        f"{matrix.sham:.1g}.",
        marked=marked[order] if marked.any() else None,
        mark_name="critical: changes how the later steps go" if marked.any() else "",
        hover=hover[order],
    )


def effects(found: results.CriticalSteps) -> charts.Bars:
    """Effects on the later steps, chosen and random cells apart."""
    series = []
    for name, chosen in (("stood out", True), ("drawn at random", False)):
        pairs = [one.tested(found.outcome) if one.chosen == chosen else None for one in found.cells]
        known = [_ends(pair.effect if pair else None) for pair in pairs]
        value, low, high = (np.array(column) for column in zip(*known, strict=True))
        series.append(charts.Series(name, value, low, high))
    return charts.Bars(
        key="effects",
        title="How the rest of the episode changes",
        labels=tuple(_label(one) for one in found.cells),
        series=tuple(series),
        value_name=f"change of the {NAMES[found.outcome]}",
        label_name="cell",
        caption="Ablation minus sham, mean over episodes with 95 % intervals; * critical after Holm's correction.",
        references=(charts.Reference("no change", 0.0),),
        points=True,
    )


def heads(found: results.CriticalSteps) -> charts.Bars:
    """Impact of single heads."""
    known = [_ends(one.impact) for one in found.heads]
    value, low, high = (np.array(column) for column in zip(*known, strict=True))
    return charts.Bars(
        key="heads",
        title="Single heads of the cells that matter most",
        labels=tuple(f"step {one.cell.step}, layer {one.cell.layer}, head {one.head}" for one in found.heads),
        series=(charts.Series("impact", value, low, high),),
        value_name="KL, nats per token",
        label_name="head",
        caption=f"Mean over {found.heads[0].impact.clusters} episodes with 95 % intervals.",
    )


def table(found: results.CriticalSteps) -> page.Table:
    """All cells that were rolled out, the surest first."""
    rows = []
    for one in sorted(found.cells, key=lambda one: (2.0 if one.p is None else one.p, one.cell)):
        comparisons = [_interval(pair) for pair in (one.later, one.reward)]
        chosen = "stood out" if one.chosen else "random"
        rows.append((one.cell.step, one.cell.layer, chosen, one.impact, one.own, *comparisons, one.p, one.critical))
    return page.Table(
        ("step", "layer", "chosen", "impact", "own validity", "later validity", "later reward", "p (Holm)", "critical"),
        tuple(rows),
        caption=f"Changes against the sham, paired by episode, 95 % intervals. Tested: {NAMES[found.outcome]}.",
        decimals=3,
    )


def _interval(pair: stats.Paired | None) -> wording.Interval | None:
    return None if pair is None else wording.Interval(*_ends(pair.effect))


def _ends(one: stats.Estimate | None) -> tuple[float, float, float]:
    return (np.nan, np.nan, np.nan) if one is None else (one.value, one.low, one.high)


def _label(one: results.CellResult) -> str:
    return f"step {one.cell.step}, layer {one.cell.layer}" + (" *" if one.critical else "")
