"""What the numbers of the binding study say: whether there is a stop between root and answer. Costs nothing."""

from collections.abc import Mapping
from typing import Any

#: A stop: its success at least, the root's in the same layer at most; and what the control's may be at most.
ENOUGH, LITTLE, CONTROL = 0.6, 0.2, 0.05
ANY = "any right-hand side between"


def of(found: Mapping[str, Any]) -> dict[str, Any]:
    """For each number of hops the clearest stop between root and answer, and what the control says.

    A stop is one right-hand side above the root (with one hop the query). Where there are several, `together` is the same
    for at least one of them.
    """
    stops = {}
    for hops, table in found["hops"].items():
        rates, names = table["success"]["value"], table["roles"]
        between = [name for name in names if name.startswith("rhs_") and name != "rhs_1"] or ["query"]
        stop = _clearest(table, {name: rates[names.index(name)] for name in between})
        if len(between) > 1:
            stop["together"] = _clearest(table, {ANY: [one["value"] for one in table["middle"]]})
        stops[hops] = stop
    largest = found["control"]["largest"]["value"]
    return {
        "systematic": found["accuracy"]["rates"]["root after line 2"]["value"],
        "stops": stops,
        "control": largest,
        "control_met": largest <= CONTROL,
    }


def _clearest(table: Mapping[str, Any], by_name: Mapping[str, list[float]]) -> dict[str, Any]:
    """The layer and token that meet the bar, or, if none does, where the root is furthest behind."""
    root = table["success"]["value"][table["roles"].index("rhs_1")]
    cells = [
        {"role": name, "layer": layer, "success": rates[at], "root": root[at], "n": table["n"]}
        for name, rates in by_name.items()
        for at, layer in enumerate(table["layers"])
    ]
    for cell in cells:
        cell["met"] = cell["success"] >= ENOUGH and cell["root"] <= LITTLE
    return max(cells, key=lambda cell: (cell["met"], cell["success"] - cell["root"]))
