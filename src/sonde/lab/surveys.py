"""Many measurements as one experiment: every layer, head or MLP taken away in turn, pairs patched, directions probed for.

    body = surveys.SURVEYS["sweep"](bench, inquiry, tools.Sweep(over="layers"))
    body["rows"], body["summary"]

A survey is for exploring: it sees the exploring examples only, costs one experiment of the budget, and is an entry of the log
with a row for each thing measured: its value, n, interval, and what it has to beat. What it suggests is a guess; whether it
holds is for a registered prediction to show, on held-out examples.

`sweep`        one corruption after another, each a run of its own in the log; of layers also which stand out (`outliers`)
`patch_pairs`  activation patching between minimal pairs (`patching`)
`probe`        what can be read off the stream (`probing`)
"""

from collections.abc import Callable, Mapping
from typing import Any

from sonde.core import errors
from sonde.lab import experiments, inquiries, outliers, patching, probing, tools

#: Corruptions of one sweep at most.
MOST = 128
#: Rows that a planner is shown first.
SHOWN = 6
Survey = Callable[[experiments.Experiments, inquiries.Inquiry, Any], dict[str, Any]]


def sweep(bench: experiments.Experiments, inquiry: inquiries.Inquiry, asked: tools.Sweep) -> dict[str, Any]:
    """Every corruption of a kind by itself, on the exploring examples.

    Raises:
        RequestError: There are too many of them, or no such layer.
    """
    known = {one["corruption"]: one for one in inquiry.entries("run") if one["split"] == "explore"}
    rows: list[dict[str, Any]] = []
    for spec in specs(bench, asked):
        run = known.get(spec)
        if run is None:
            found = bench.measure(bench.parse(spec), inquiry.settings.explore)
            more = {"split": "explore", "prediction": None, "control": None, "sweep": asked.over}
            run = inquiry.append("run", found.body | more, examples=found.examples)
        names = ("kept", "kept_low", "kept_high", "loss_delta", "loss_delta_low", "loss_delta_high", "n")
        rows.append({"corruption": spec, "run": run.id, **{name: run[name] for name in names}})
    worst = sorted(rows, key=_harm, reverse=True)
    summary: dict[str, Any] = {"odd": []}
    if asked.over == "layers":
        summary["odd"] = [_short(row) | {name: round(row[name], 3) for name in ("expected", "bound", "p_corrected")}
                          for row in _judged(bench, inquiry, rows) if row["odd"]]  # fmt: skip
    summary["worst"] = [_short(row) for row in worst[:SHOWN]]
    return {"rows": rows, "summary": summary, "seconds": 0.0}  # each run has its own


def specs(bench: experiments.Experiments, asked: tools.Sweep) -> list[str]:
    """The corruptions of a sweep, spelled."""
    layers = list(dict.fromkeys(asked.layers)) or list(range(bench.n_layers))
    if asked.over == "layers":
        found = [f"skip:{layer}" for layer in layers]
    elif asked.over == "heads":
        found = [f"{asked.way}:a{layer}.h{head}" for layer in layers for head in range(int(bench.model.cfg.n_heads))]
    else:
        found = [f"{asked.way}:{'a' if asked.over == 'attention' else 'm'}{layer}" for layer in layers]
    if len(found) > MOST:
        raise errors.RequestError(
            f"that would be {len(found)} corruptions, a sweep has at most {MOST}: name some layers, such as layers=[3,4]"
        )
    return [bench.parse(spec).spec for spec in found]


def _judged(
    bench: experiments.Experiments, inquiry: inquiries.Inquiry, rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of layers, with how large each layer is and whether it does more harm than that explains."""
    norms, turns = bench.sizes(inquiry.settings.explore)
    layers = [bench.parse(row["corruption"]).layers[0] for row in rows]
    harms = [_harm(row) for row in rows]
    judged = outliers.judge(harms, [norms[layer] for layer in layers], [turns[layer] for layer in layers])
    for row, layer in zip(rows, layers, strict=True):
        row |= {"layer": layer, "log_norm": norms[layer], "influence": turns[layer], "odd": False}
    for one in judged:
        rows[one.at] |= one.to_json()
    return rows


def _harm(row: Mapping[str, Any]) -> float:
    """The change of loss; what broke the model so that there is none counts as the worst."""
    return 99.0 if row["loss_delta"] is None else float(row["loss_delta"])


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: row[name] for name in ("kept", "loss_delta")}
    return {
        "corruption": row["corruption"],
        **{name: None if one is None else round(one, 3) for name, one in numbers.items()},
    }


SURVEYS: Mapping[str, Survey] = {"sweep": sweep, "patch_pairs": patching.survey, "probe": probing.survey}
