"""The pages of the binding study: charts, tables and sentences, made of its results alone. Costs a second a chart."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sonde.report import charts, page, wording
from sonde.studies.binding import verdict as study_verdict

ROOTS = {"1": "root on line 1", "2": "root on line 2", "later": "root after line 2"}
KINDS = {"pca": "PCA", "rotation": "rotation"}
NOTABLE = 0.1
ENDS = ("value", "low", "high")


def report(results: Mapping[str, Any]) -> page.Report:
    """The whole page."""
    sections = []
    for name, found in results["models"].items():
        sections += [_learning(name, found), _tracing(name, found), _heads(name, found), _spaces(name, found)]
    return page.Report(
        title="How a small transformer learns to follow variables",
        summary=tuple(sentence for name, found in results["models"].items() for sentence in sentences(name, found)),
        sections=tuple(sections),
        settings=results["settings"],
    )


def training_report(results: Mapping[str, Any], run: str) -> page.Report:
    """The page of a training run."""
    log = results["train"]["log"]
    last = log[-1]
    said = (
        f"After {last['step']} steps {last['root']['later']:.1%} of the held-out programs are right whose root stands after line "
        f"2, {last['natural']:.1%} of programs as they fall."
    )
    return page.Report(
        title="A small transformer learns to follow variables",
        summary=(said,),
        sections=(page.Section("Learning", "", (phases(run, log),)),),
        settings=results["settings"],
    )


def sentences(name: str, found: Mapping[str, Any]) -> list[str]:
    """What may be said of a model, good or bad."""
    rates, verdict = found["accuracy"]["rates"], found["verdict"]
    later = rates["root after line 2"]
    told = [
        f"{name}: {later['value']:.1%} [{later['low']:.1%}, {later['high']:.1%}] right where the root stands after line 2 "
        f"({later['n']} held-out programs); {rates['balanced']['value']:.1%} of all."
    ]
    for hops, stop in verdict["stops"].items():
        if hops != "1":
            told.append(
                f"{name}, {hops} hops: into layer {stop['layer']}, patching {stop['role']} brings the other answer about in "
                f"{stop['success']:.0%} of {stop['n']} pairs, patching the root in {stop['root']:.0%}: "
                + ("the value has moved on to it." if stop["met"] else "no clear stop between root and answer.")
            )
        if (both := stop.get("together")) and not stop["met"]:
            told.append(
                f"{name}, {hops} hops: into layer {both['layer']}, at least one right-hand side between does in "
                f"{both['success']:.0%}, the root in {both['root']:.0%}; which of them differs from program to program."
            )
    told.append(
        f"{name}, control: patching another chain's root brings its value about in at most {verdict['control']:.1%} of "
        f"{found['control']['n']} pairs at any layer and position."
    )
    return told


def phases(name: str, log: list[dict[str, Any]], *, key: str | None = None) -> charts.Lines:
    """Accuracy over training steps by the root's line."""
    rows = [row for row in log if row["step"] > 0]
    series = [charts.Series(title, np.array([row["root"][line] for row in rows])) for line, title in ROOTS.items()]
    natural = np.array([row["natural"] for row in rows])
    return charts.Lines(
        key=key or f"phases-{_key(name)}",
        title=f"{name}: what is learned when",
        x=np.array([row["step"] for row in rows], dtype=np.float64),
        series=(*series, charts.Series("programs as they fall", natural)),
        x_name="training step",
        y_name="share right",
        caption="1050 held-out programs balanced over hops and root line, and 512 as training programs fall.",
        references=(charts.Reference("any digit", 0.1),),
        log_x=True,
        y_range=(0.0, 1.0),
    )


def staircase(name: str, hops: str, table: Mapping[str, Any]) -> charts.Heatmap:
    """Success of patching by role and layer."""
    rates = {end: np.array(table["success"][end]) for end in ENDS}
    return charts.Heatmap(
        key=f"staircase-{_key(name)}-{hops}",
        title=f"{name}, {hops} hops: where the value is",
        cells=rates["value"],
        rows=tuple(table["roles"]),
        columns=tuple(map(str, table["layers"])),
        x_name="stream into layer (the last: after all layers)",
        y_name="patched token",
        value_name="share of pairs with the other answer",
        caption=f"{table['n']} held-out pairs, root after line 2. The other answer occurs nowhere in the program "
        f"({table['crowded']} programs with all ten digits left out); the first also elsewhere in {table['repeated']}.",
        limits=(0.0, 1.0),
        hover=tuple(
            tuple(f"[{low:.2f}, {high:.2f}]" for low, high in zip(*pair, strict=True))
            for pair in zip(rates["low"].tolist(), rates["high"].tolist(), strict=True)
        ),
    )


def heads(name: str, hops: str, table: Mapping[str, Any]) -> charts.Heatmap:
    """Success of patching single heads, by the token they write to."""
    values = np.array(table["success"]["value"])
    labels = tuple(f"{layer}.{head}" for layer in table["layers"] for head in table["heads"])
    return charts.Heatmap(
        key=f"heads-{_key(name)}-{hops}",
        title=f"{name}, {hops} hops: single heads",
        cells=values.reshape(len(values), -1),
        rows=tuple(table["roles"]),
        columns=labels,
        x_name="layer.head",
        y_name="patched token",
        value_name="share of pairs with the other answer",
        caption=f"{table['n']} held-out pairs, root after line 2.",
        limits=(0.0, 1.0),
    )


def spaces(name: str, found: Mapping[str, Any]) -> charts.Bars:
    """Success of interchanges inside subspaces and of their controls."""
    rows = [(one, kind) for one in found["spaces"] for kind in KINDS]
    labels = tuple(f"{one['what']}, {one['role']}, {one['layer']}: {KINDS[kind]}" for one, kind in rows)
    series = []
    for part, title in (("inside", "inside"), ("random", "random"), ("outside", "outside"), ("whole", "whole stream")):
        value, low, high = (np.array([one[kind][part][end] for one, kind in rows]) for end in ENDS)
        series.append(charts.Series(title, value, low, high))
    return charts.Bars(
        key=f"spaces-{_key(name)}",
        title=f"{name}: interchange inside ten directions",
        labels=labels,
        series=tuple(series),
        value_name="share of pairs with the other answer",
        label_name="what, token, layer: subspace",
        caption=f"{found['spaces'][0]['n']} held-out pairs each, 95 % intervals. PCA: components that tell the label.",
    )


def transitions(found: Mapping[str, Any]) -> page.Table:
    """For each number of hops and each token a value arrives at: how many heads carry it there, and which most."""
    rows: list[tuple[wording.Cell, ...]] = []
    for hops, table in found["heads"].items():
        for at, role in enumerate(table["roles"]):
            rates = np.array(table["success"]["value"])[at]
            order = np.dstack(np.unravel_index(np.argsort(-rates, axis=None), rates.shape))[0][:3].tolist()
            best = ", ".join(f"{layer}.{head} {rates[layer, head]:.0%}" for layer, head in order)
            rows.append((int(hops), role, int((rates >= NOTABLE).sum()), rates.size, best))
    return page.Table(
        ("hops", "token", "heads at 10 % or more", "of", "strongest"),
        tuple(rows),
        caption="Patching the output of one head at one token: how often the other answer comes about.",
    )


def accuracies(found: Mapping[str, Any]) -> page.Table:
    """Accuracy on held-out programs, and the heuristics'."""
    rows: list[tuple[wording.Cell, ...]] = [
        (name, wording.Interval(one["value"], one["low"], one["high"]), one["n"])
        for name, one in found["accuracy"]["rates"].items()
    ]
    for which, rules in found["accuracy"]["heuristics"].items():
        rows += [(f"{rule}, {which}", score, None) for rule, score in rules.items()]
    return page.Table(("programs", "share right", "n"), tuple(rows), caption="95 % intervals.", decimals=3)


def _learning(name: str, found: Mapping[str, Any]) -> page.Section:
    recipe = found["recipe"]
    told = recipe.get("told", 0)
    text = (
        f"A Llama of {recipe['shape']['layers']} layers of {recipe['shape']['heads']} heads, width {recipe['shape']['width']}, "
        f"{found['parameters']:,} weights; programs of {recipe['grammar']['lines']} lines, {recipe['grammar']['letters']} "
        f"letters, 1 to {recipe['grammar']['max_hops']} hops; {recipe['steps']} steps of {recipe['batch']} programs.\n\n"
        f"Helps: a share of {recipe['easy']} of the training programs has only constants; "
        + ("every line is asked for" if recipe["every"] else "one line is asked for, which is no help")
        + (f"; after {told} layers each right-hand side is asked for its line's value" if told else "")
        + "."
        + (f" It began with the weights of {recipe['start']}." if recipe.get("start") else "")
        + (
            " That values are at right-hand sides is taught here; that answers are read from there is not."
            if told
            else ""
        )
    )
    return page.Section(f"{name}: learning", text, (phases(name, found["log"]),), (accuracies(found),))


def _tracing(name: str, found: Mapping[str, Any]) -> page.Section:
    drawn = tuple(staircase(name, hops, table) for hops, table in found["hops"].items())
    control = found["control"]
    rows = [
        (role, layer, *_cells(control["success"], at, column))
        for at, role in enumerate(control["roles"])
        for column, layer in enumerate(control["layers"])
    ]
    any_cell = control["any_cell"]
    caption = (
        f"Control: another chain's root differs, {control['n']} pairs. Success is its new value as the answer. In "
        f"{any_cell['value']:.1%} of pairs some cell of all does this."
    )
    table = page.Table(("token", "layer", "success"), tuple(rows), caption=caption, decimals=3, folded=True)
    return page.Section(f"{name}: the way of the value", "", drawn, (_stops(found), table))


def _stops(found: Mapping[str, Any]) -> page.Table:
    stops = found["verdict"]["stops"]
    rows = tuple(
        (int(hops), one["role"], one["layer"], one["success"], one["root"], one["n"], one["met"])
        for hops, stop in stops.items()
        for one in (stop, stop.get("together"))
        if one
    )
    caption = f"Met: at least {study_verdict.ENOUGH:.0%} at the stop and at most {study_verdict.LITTLE:.0%} at the root, same layer."
    return page.Table(("hops", "stop", "layer", "success there", "at the root", "n", "met"), rows, caption=caption)


def _heads(name: str, found: Mapping[str, Any]) -> page.Section:
    drawn = tuple(heads(name, hops, table) for hops, table in found["heads"].items())
    return page.Section(f"{name}: heads", "", drawn, (transitions(found),))


def _spaces(name: str, found: Mapping[str, Any]) -> page.Section:
    rows = tuple(
        (one["what"], one["role"], one["layer"], one["accuracy"]["value"], one["majority"], one["variance"], one["n"])
        for one in found["spaces"]
    )
    caption = "How well the ten components tell the label on training programs that were left out."
    table = page.Table(("what", "token", "layer", "accuracy", "majority", "variance inside", "pairs"), rows, caption)
    return page.Section(f"{name}: subspaces", "", (spaces(name, found),), (table,))


def _cells(success: Mapping[str, Any], at: int, column: int) -> tuple[wording.Cell, ...]:
    return (wording.Interval(*(success[end][at][column] for end in ENDS)),)


def _key(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower()).strip("-")[:40]
