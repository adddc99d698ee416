"""Which look from one token at another does the answer need? Attention forbidden, route by route and layer by layer.

    routes = [{"final -> root": knockout.Route(queries=(last,), keys=(root,))} for …]
    found = knockout.sweep(model, pairs, routes)
    found.by_route("changed")          # how often the answer is lost, by route and layer, with intervals

A cell forbids all heads (or one) of a layer, or of a window of layers, to attend from a route's queries to its keys in
the clean input; the rest of each row of attention is renormalised, and a query with nothing left attends to nothing.

1. The clean input is run once and kept (`resuming`).
2. Cells go through the model together, from the lowest layer and the first query position among them on.

In the grids the second axis counts routes. `recovery` reads as the share of the logit difference that is lost, on the scale
of the counterfactual input; `changed` as the answer being lost. Cost: at most one forward pass per cell.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from sonde.analysis.tracing import grids, metrics, planning, resuming, sheets
from sonde.analysis.tracing import pairs as tracing_pairs
from sonde.core import errors, interventions, progress, spans
from sonde.models import edits
from sonde.models import model as models_model


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """From where to where attention is forbidden: absolute positions of queries and keys."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuses a route that no causal attention takes."""
        if not self.queries or not self.keys or min(self.keys) > max(self.queries):
            raise errors.RequestError(
                f"nothing to forbid from queries {self.queries} to keys {self.keys}: give both, and keys at or before a query"
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to forbid, and how.

    Attributes:
        layers: The first layer of each window; None for all.
        window: How many layers from there on are forbidden together; at the top fewer.
        heads: `all` heads of a layer together, or `each` alone.
        batch_rows: Cells that go through the model together at most.
    """

    layers: Sequence[int] | None = None
    window: int = 1
    heads: Literal["all", "each"] = "all"
    batch_rows: int = 32


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class KnockoutSweep:
    """What came of it.

    Attributes:
        sweep: Grids in which the second axis counts the routes that a pair has; `positions` are indices into `routes`.
        routes: Names of the routes.
    """

    sweep: grids.Sweep
    routes: tuple[str, ...]

    def by_route(self, metric: str = "changed") -> metrics.RoleTable:
        """A figure by route and layer (and head), over pairs, with intervals."""
        roles = [{self.routes[index]: (index,) for index in grid.positions} for grid in self.sweep.grids]
        return metrics.by_role(self.sweep, roles, metric)


Routes = Mapping[str, Route]
Cell = tuple[int, int, int]
DEFAULTS = Settings()


def sweep(
    model: models_model.Model,
    pairs: Sequence[tracing_pairs.TracePair],
    routes: Sequence[Routes],
    *,
    settings: Settings = DEFAULTS,
    on_progress: progress.Tell | None = None,
) -> KnockoutSweep:
    """Forbids attention, one route and layer (and head) at a time.

    Args:
        model: The model.
        pairs: The clean inputs to run; the counterfactual ones give the scale of `recovery`.
        routes: For each pair its routes by name. Names may be missing in some pairs.
        settings: Which layers and heads.
        on_progress: Called with `knockout`, how many cells are done, and of how many.

    Raises:
        RequestError: Routes are not given for every pair, lie outside of it, or a layer does not exist.
    """
    plan = _plan(model, pairs, routes, settings)
    names = tuple(dict.fromkeys(name for one in routes for name in one))
    told = sheets.Counter("knockout", plan.cells, on_progress)
    engine, found = resuming.Engine(model), []
    for index, pair in enumerate(pairs):
        own = {column: routes[index][names[column]] for column in plan.positions[index]}
        found.append(_fill(engine, pair, own, plan, settings, told))
    return KnockoutSweep(grids.Sweep("knockout", tuple(pairs), plan.layers, found, plan.heads), names)


def _plan(
    model: models_model.Model,
    pairs: Sequence[tracing_pairs.TracePair],
    routes: Sequence[Routes],
    settings: Settings,
) -> planning.Plan:
    if len(routes) != len(pairs):
        raise errors.RequestError(f"routes of {len(routes)} pairs were given, and there are {len(pairs)} pairs")
    if settings.window < 1:
        raise errors.RequestError(f"a window has at least one layer, got {settings.window}")
    for pair, own in zip(pairs, routes, strict=True):
        for name, route in own.items():
            outside = [at for at in (*route.queries, *route.keys) if not 0 <= at < len(pair)]
            if outside:
                raise errors.RequestError(f"position {outside[0]} of {name!r} is outside of {len(pair)} tokens")
    names = list(dict.fromkeys(name for one in routes for name in one))
    component = "attention_heads" if settings.heads == "each" else "attention"
    asked = planning.Settings(layers=settings.layers, batch_rows=settings.batch_rows)
    plan = planning.plan(model, pairs, component, asked)
    return dataclasses.replace(plan, positions=tuple(tuple(names.index(name) for name in one) for one in routes))


def _fill(
    engine: resuming.Engine,
    pair: tracing_pairs.TracePair,
    routes: Mapping[int, Route],
    plan: planning.Plan,
    settings: Settings,
    told: sheets.Counter,
) -> grids.Grid:
    device = engine.model.device
    clean, other = (engine.base(torch.tensor([ids], device=device)) for ids in (pair.clean, pair.counterfactual))
    sheet = sheets.Sheet(pair, plan, tuple(routes), clean.logits[0, -1], other.logits[0, -1])
    cells = list(itertools.product(range(len(plan.layers)), routes, range(plan.variants)))
    for start in range(0, len(cells), settings.batch_rows):
        chunk = cells[start : start + settings.batch_rows]
        first = plan.layers[chunk[0][0]]
        position = min(min(routes[route].queries) for _, route, _ in chunk)
        bound = [
            edit
            for row, cell in enumerate(chunk)
            for edit in _edits(row, cell, routes[cell[1]], plan, settings.window, engine.model.cfg.n_layers)
        ]
        owners = torch.zeros(len(chunk), dtype=torch.long, device=device)
        join = resuming.Join(owners, clean.streams[first].new_zeros(len(chunk), 0, engine.model.cfg.d_model))
        logits = engine.resume(clean, position, {first: join}, bound=bound)[:, -1]
        for row, cell in enumerate(chunk):
            sheet.put(cell, logits[row], int(logits[row].argmax()))
        told.add(len(chunk))
    return sheet.grid()


def _edits(row: int, cell: Cell, route: Route, plan: planning.Plan, window: int, n_layers: int) -> list[edits.Edit]:
    """One row's interventions."""
    first = plan.layers[cell[0]]
    heads = (plan.heads[cell[2]],) if plan.heads else None
    return [
        edits.Edit(
            interventions.Knockout(
                site=f"blocks.{layer}.attn.hook_attn_scores", positions=route.queries, keys=route.keys, heads=heads
            ),
            {row: spans.of_positions(route.queries)},
            {row: (0, 0)},
        )
        for layer in range(first, min(first + window, n_layers))
    ]
