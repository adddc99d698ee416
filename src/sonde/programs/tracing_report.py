"""The page of a causal trace: heatmaps, staircases, one table, and what was found in words.

    tracing_report.report(result)     # as data, for `page.write`

Layers go from the bottom up, as in the model. Costs a second or two.
"""

import numpy as np

from sonde.analysis.tracing import metrics
from sonde.programs import causal_pairs, causal_runner, causal_settings, causal_traces, tokens
from sonde.report import charts, page, wording
from sonde.store import documents

NAMES = {
    "residual_stream": "Residual stream",
    "attention_heads": "Attention heads",
    "attention": "Attention",
    "mlp": "MLP",
    "knockout": "Attention knockout",
}
VALUES = {
    "success": "success rate",
    "recovery": "recovery",
    "normalised_logit_difference": "normalised logit difference",
    "changed": "share of changed answers",
}
MEANING = {
    "success": "Success: the counterfactual answer becomes the most likely token.",
    "recovery": "Recovery: 0 as the clean run, 1 as the counterfactual run.",
    "normalised_logit_difference": "Rise of the counterfactual answer's logit, against the largest in the pair.",
    "changed": "Changed: any other token becomes the most likely one.",
}
SHOWN = {" ": "␣", "\n": "↵"}
OFTEN = 0.5


def report(result: causal_runner.InterventionResult) -> page.Report:
    """The page as data."""
    packages = {name: documents.package_version(name) or "?" for name in ("sonde", "torch", "transformers", "numpy")}
    return page.Report(
        title=f"Causal trace of {result.model_id}",
        summary=sentences(result),
        sections=(_asked(result), *(_section(trace) for trace in result.traces.values())),
        settings={"model": result.model_id, "programs": len(result.prepared.programs), **result.settings.shown()},
        versions=packages,
    )


def tables(result: causal_runner.InterventionResult) -> tuple[page.Table, ...]:
    """What was patched, and what was knocked out, as far as it was."""
    patched = any(name != causal_settings.KNOCKOUT for name in result.traces)
    cut = [knockout_table(one) for name, one in result.traces.items() if name == causal_settings.KNOCKOUT]
    return (*([table(result)] if patched else []), *cut)


def sentences(result: causal_runner.InterventionResult) -> tuple[str, ...]:
    """What was found, in words."""
    found = result.prepared
    repeated, pairs = found.repeated(), len(found.tasks)
    said = [
        f"The model got {found.ability}.",
        f"The answer is also a constant off the chain in {repeated['answer']} of {pairs} pairs, and the counterfactual answer "
        f"stands in the program in {repeated['counterfactual_answer']}.",
    ]
    if not result.settings.only_right:
        said.append("Pairs that the model answers wrongly were traced too: this tries the machinery and finds nothing.")
    for trace in result.traces.values():
        if trace.component == "residual_stream":
            said.append(f"Residual stream, {len(trace.tasks)} pairs: {_staircase(trace)}.")
        elif trace.component == causal_settings.KNOCKOUT:
            said.append(f"{NAMES[trace.component]}, {len(trace.tasks)} programs: {_most_lost(trace)}.")
        else:
            said.append(f"{NAMES[trace.component]}, {len(trace.tasks)} pairs: {_strongest(trace)}.")
    controls = [trace for trace in result.traces.values() if trace.control_sweep is not None]
    if controls:
        most = max(float(np.nanmax(trace.by_role("success", control=True).estimate)) for trace in controls)
        said.append(
            f"Controls, {len(found.controls)} pairs in which a constant off the chain differs: patching brings that "
            f"constant about in at most {most:.0%} of them, over all cells."
        )
    elif any(name != causal_settings.KNOCKOUT for name in result.traces):
        said.append("There are no controls: nothing says what a patch that should not matter would do.")
    return tuple(said)


def table(result: causal_runner.InterventionResult) -> page.Table:
    """For each component and role the cell where patching does most, and the control in the same cell."""
    rows: list[tuple[wording.Cell, ...]] = []
    for name, trace in result.traces.items():
        for role in trace.roles if name != causal_settings.KNOCKOUT else ():
            best = trace.peak(role, "recovery")
            if best is None:
                continue
            where = f"{best.layer}" if best.head is None else f"{best.layer}.{best.head}"
            success = _interval(trace.by_role("success"), role, best)
            beside = None
            if trace.control_sweep is not None:
                beside = _interval(trace.by_role("success", control=True), role, best)
            recovery = wording.Interval(best.value, best.low, best.high)
            rows.append((name, role, where, best.n, recovery, success, beside))
    return page.Table(
        ("component", "role", "layer", "pairs", "recovery", "success", "control success"),
        tuple(rows),
        caption="The cell with the highest recovery of each role (layer.head for heads), with 95 % intervals over programs; "
        "the highest of many is too high by selection. Control: another constant than the root's was changed.",
        folded=False,
    )


def knockout_table(trace: causal_traces.Trace) -> page.Table:
    """For each route the layer in which forbidding it costs most."""
    rows: list[tuple[wording.Cell, ...]] = []
    for route in trace.roles:
        best = trace.peak(route, "recovery")
        if best is not None:
            lost, moved = (_interval(trace.by_role(name), route, best) for name in ("changed", "recovery"))
            rows.append((route, best.layer, best.n, lost, moved))
    return page.Table(
        ("attention forbidden", "from layer", "programs", "answer lost", "logit difference lost"),
        tuple(rows),
        caption=f"The layer in which each route costs most, with 95 % intervals over programs; {trace.settings.window} layers "
        "are cut together; the highest of many is too high by selection. Routes to distractors are the control.",
        folded=False,
    )


def role_heatmap(trace: causal_traces.Trace, metric: str = "success", *, control: bool = False) -> charts.Heatmap:
    """A metric by layer and role; of heads, the strongest head of each cell."""
    found = trace.by_role(metric, control=control)
    cells, best = found.estimate, None
    if found.heads:
        with np.errstate(all="ignore"):
            best = np.where(np.isfinite(cells), cells, -np.inf).argmax(axis=-1)
        cells = np.take_along_axis(cells, best[..., None], axis=-1)[..., 0]
    title = f"{NAMES[trace.component]}: {metric.replace('_', ' ')} by role" + (", controls" if control else "")
    many = len(trace.controls if control else trace.tasks)
    return charts.Heatmap(
        key=f"{trace.component}-role-{metric}{'-control' if control else ''}",
        title=title,
        cells=cells.T[::-1],
        rows=tuple(map(str, found.layers[::-1])),
        columns=found.roles,
        x_name="attention forbidden" if trace.component == causal_settings.KNOCKOUT else "role of the patched token",
        y_name=_layer_name(trace),
        value_name=VALUES[metric],
        caption=f"Mean over {many} pairs{', the strongest head of each layer' if found.heads else ''}. {MEANING[metric]}",
        limits=(0.0, 1.0) if metric in ("success", "changed") else None,
        centred=metric not in ("success", "changed"),
        hover=_hover(found, best),
    )


def token_heatmap(trace: causal_traces.Trace) -> charts.Heatmap:
    """Recovery by layer and token, in the first pair, from the first token that differs."""
    assert trace.example is not None
    task, grid = trace.tasks[0], trace.example.grids[0]
    first = next(at for at, pair in enumerate(zip(task.clean, task.counterfactual, strict=True)) if len(set(pair)) > 1)
    shown = [column for column, position in enumerate(grid.positions) if position >= first]
    role = {task.roles[name][-1]: name for name in reversed(_chain(trace)) if name in task.roles}
    labels = [f"{at} {_token(task.labels[at])} {role.get(at, '')}".strip() for at in (grid.positions[c] for c in shown)]
    pair = task.pair
    return charts.Heatmap(
        key=f"{trace.component}-tokens",
        title=f"{NAMES[trace.component]}: recovery by token, in one pair",
        cells=grid.recovery[::-1][:, shown],
        rows=tuple(map(str, trace.example.layers[::-1])),
        columns=tuple(labels),
        x_name="patched token",
        y_name=_layer_name(trace),
        value_name=VALUES["recovery"],
        caption=f"The first pair traced, answer {pair.clean_answer} against {pair.counterfactual_answer}. Before its first "
        f"differing token nothing can change. {MEANING['recovery']}",
        marked=grid.success[::-1][:, shown] if grid.success[:, shown].any() else None,
        mark_name="the answer becomes the counterfactual's" if grid.success[:, shown].any() else "",
        centred=True,
    )


def head_heatmap(trace: causal_traces.Trace, role: str) -> charts.Heatmap:
    """Recovery by layer and head, at one role."""
    found = trace.by_role("recovery")
    row = found.roles.index(role)
    return charts.Heatmap(
        key=f"{trace.component}-{role.replace(' ', '-').replace('+', '-')}",
        title=f"{NAMES[trace.component]}: recovery at {role}",
        cells=found.estimate[row][::-1],
        rows=tuple(map(str, found.layers[::-1])),
        columns=tuple(map(str, found.heads)),
        x_name="head",
        y_name="layer",
        value_name=VALUES["recovery"],
        caption=f"Mean over {int(found.n[row].max())} pairs. {MEANING['recovery']}",
        centred=True,
        hover=tuple(
            tuple(_told(found, (row, layer, head)) for head in range(len(found.heads)))
            for layer in reversed(range(len(found.layers)))
        ),
    )


def staircase(trace: causal_traces.Trace) -> charts.Lines:
    """Success over layers, a line with a band per role of the chain."""
    found = trace.by_role("success")
    series = []
    for role in _chain(trace):
        row = found.roles.index(role)
        series.append(charts.Series(role, found.estimate[row], found.low[row], found.high[row]))
    return charts.Lines(
        key=f"{trace.component}-staircase",
        title=f"{NAMES[trace.component]}: where the value is, layer by layer",
        x=np.array(found.layers, dtype=float),
        series=tuple(series),
        x_name=_layer_name(trace),
        y_name=VALUES["success"],
        caption=f"{len(trace.tasks)} pairs; bands: 95 % intervals over programs. {MEANING['success']}",
        y_range=(-0.03, 1.03),
    )


def _section(trace: causal_traces.Trace) -> page.Section:
    if trace.component == causal_settings.KNOCKOUT:
        text = (
            "In the clean run one token's attention at another is forbidden, in all heads of a layer. Recovery reads as the share of "
            "the logit difference that is lost, changed as the answer being lost. Nothing is patched."
        )
        charted = tuple(role_heatmap(trace, metric) for metric in causal_traces.KNOCKOUT_METRICS)
        return page.Section(NAMES[trace.component], text, charts=charted, tables=(knockout_table(trace),))
    drawn: list[charts.Chart] = []
    if trace.component == "attention_heads":
        drawn += [head_heatmap(trace, role) for role in _chain(trace)]
    else:
        drawn += [staircase(trace), token_heatmap(trace)]
    drawn += [role_heatmap(trace, "success"), role_heatmap(trace, "recovery")]
    if trace.control_sweep is not None:
        drawn.append(role_heatmap(trace, "success", control=True))
    text = (
        "In the clean run one activation is replaced by that of the counterfactual run. Success: the counterfactual answer "
        "becomes the most likely token. Roles are read at their last token. In the residual stream the row after the last layer "
        "is the stream that goes to the output."
    )
    return page.Section(NAMES[trace.component], text, charts=tuple(drawn))


def _asked(result: causal_runner.InterventionResult) -> page.Section:
    found = result.prepared
    rows = [("pair", reason, count) for reason, count in found.reasons("root").items()]
    rows += [("control", reason, count) for reason, count in found.reasons("distractor").items()]
    text = (
        f"Of {len(found.programs)} programs, {len(found.tasks)} pairs and {len(found.controls)} controls are traced. The "
        f"model got {found.ability}. Right means the first token of the answer."
    )
    tables = [table(result)] if any(name != causal_settings.KNOCKOUT for name in result.traces) else []
    if rows:
        tables.append(page.Table(("left out", "reason", "how many"), tuple(rows), "What was left out.", folded=False))
    return page.Section("What was asked, and what came out", text, tables=tuple(tables))


def _staircase(trace: causal_traces.Trace) -> str:
    """At which layers each role of the chain holds the value."""
    found = trace.by_role("success")
    parts = []
    for role in _chain(trace):
        rates = found.estimate[found.roles.index(role)]
        held = [layer for layer, rate in zip(found.layers, rates, strict=True) if rate >= OFTEN]
        most = f"at most {np.nanmax(rates):.0%}" if np.isfinite(rates).any() else "no pair"
        parts.append(f"{role} {_runs(held, found.layers)}" if held else f"{role} nowhere ({most})")
    return f"patching changes at least {OFTEN:.0%} of the answers at " + ", ".join(parts)


def _runs(held: list[int], layers: tuple[int, ...]) -> str:
    """Layers in words: from the first to the last if all between them that were patched are among them."""
    if len(held) > 1 and len(held) == layers.index(held[-1]) - layers.index(held[0]) + 1:
        return f"in layers {held[0]} to {held[-1]}"
    return f"in layer{'s' if len(held) > 1 else ''} {', '.join(map(str, held))}"


def _strongest(trace: causal_traces.Trace) -> str:
    """The strongest cell over all roles of the chain."""
    peaks = [(role, trace.peak(role, "recovery")) for role in _chain(trace)]
    known = [(role, peak) for role, peak in peaks if peak is not None]
    if not known:
        return "nothing could be read"
    role, best = max(known, key=lambda one: one[1].value)
    head = "" if best.head is None else f", head {best.head}"
    return f"strongest at {role}, layer {best.layer}{head}: recovery {best.value:.2f} [{best.low:.2f}, {best.high:.2f}]"


def _most_lost(trace: causal_traces.Trace) -> str:
    """The route whose loss costs most."""
    known = [(route, peak) for route in trace.roles if (peak := trace.peak(route, "recovery")) is not None]
    if not known:
        return "nothing could be read"
    route, best = max(known, key=lambda one: one[1].value)
    lost = _interval(trace.by_role("changed"), route, best)
    assert lost is not None
    return (
        f"forbidding {route} costs most, from layer {best.layer} on: the answer is lost in {lost.value:.0%} "
        f"[{lost.low:.0%}, {lost.high:.0%}], of the logit difference {best.value:.0%}"
    )


def _chain(trace: causal_traces.Trace) -> list[str]:
    off = (tokens.DISTRACTOR_CONSTANT, tokens.DISTRACTOR_REFERENCE, causal_pairs.CHANGED)
    known = trace.by_role("success").roles
    return [role for role in trace.roles if role in known and role not in off]


def _layer_name(trace: causal_traces.Trace) -> str:
    return "into layer" if trace.component == "residual_stream" else "layer"


def _token(text: str) -> str:
    return "".join(SHOWN.get(letter, letter) for letter in text)


def _interval(found: metrics.RoleTable, role: str, best: causal_traces.Peak) -> wording.Interval | None:
    """The value of a role in the cell of a peak."""
    if role not in found.roles:
        return None
    at: tuple[int, ...] = (found.roles.index(role), found.layers.index(best.layer))
    at += () if best.head is None else (found.heads.index(best.head),)
    return wording.Interval(*(float(part[at]) for part in (found.estimate, found.low, found.high)))


def _told(found: metrics.RoleTable, at: tuple[int, ...]) -> str:
    """A cell in words."""
    interval = wording.Interval(*(float(part[at]) for part in (found.estimate, found.low, found.high)))
    return f"{wording.shown(interval)}, {int(found.n[at])} pairs"


def _hover(found: metrics.RoleTable, best: np.ndarray | None) -> tuple[tuple[str, ...], ...]:
    """Hover text of a heatmap of layers and roles, the last layer first."""
    rows = []
    for layer in reversed(range(len(found.layers))):
        cells = [
            (role, layer) if best is None else (role, layer, int(best[role, layer])) for role in range(len(found.roles))
        ]
        heads = ["" if len(at) < 3 else f"head {found.heads[at[2]]}: " for at in cells]
        rows.append(tuple(head + _told(found, at) for head, at in zip(heads, cells, strict=True)))
    return tuple(rows)
