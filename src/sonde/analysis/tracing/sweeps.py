"""Where does the answer come from? Every layer, position and head patched in turn, fast by construction.

    found = sweeps.sweep(model, pairs, "residual_stream")
    found.grids[0].success          # layer x position
    metrics.by_role(found, roles)   # averaged over pairs by the role of the token

A cell puts what the counterfactual run has at one place into the clean run, and looks at the final position:

| component | place |
|---|---|
| `residual_stream` | the stream into layer L at one position; a last row for the stream after the last layer |
| `attention_heads` | `attn.hook_z` of one head at one position |
| `attention` | `hook_attn_out` at one position |
| `mlp` | `hook_mlp_out` at one position |

Positions that are named `together` are patched in one run, as a column of their own: a value that two tokens carry is found
only so.

1. Pairs of equal length are run together: clean and counterfactual inputs once, with everything kept (`resuming`).
2. Each patch is reduced to a vector in the stream, at one layer and position (`components`).
3. For each position one pass over the positions from there on; the cells of a layer join the batch at that layer.
4. Cells that cannot matter get their result without a run: after the last layer all positions but the final one, and
   (`skip_equal`) places at which both inputs have the same bits, as before the first differing token.

Cost: about a quarter of one forward pass per cell. For heads, memory for one vector per cell of the pairs run together.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from sonde.analysis.tracing import components, grids, nnsight_backend, planning, resuming, sheets
from sonde.analysis.tracing import pairs as tracing_pairs
from sonde.core import progress
from sonde.models import model as models_model

Component = grids.Component
Baseline = grids.Baseline
Grid = grids.Grid
Sweep = grids.Sweep
Settings = planning.Settings
DEFAULTS = Settings()


def sweep(
    model: models_model.Model,
    pairs: Sequence[tracing_pairs.TracePair],
    component: Component,
    *,
    settings: Settings = DEFAULTS,
    on_progress: progress.Tell | None = None,
) -> Sweep:
    """Patches a component at every layer and position (and head) of every pair.

    Args:
        model: The model.
        pairs: What to compare; of any lengths.
        component: What to patch.
        settings: Which cells, and how to run them.
        on_progress: Called with the component, how many cells are done, and of how many.

    Raises:
        RequestError: A component, layer, head, position or token does not exist, or the model is not causal.
    """
    plan = planning.plan(model, pairs, component, settings)
    told = sheets.Counter(component, plan.cells, on_progress)
    if settings.backend == "nnsight":
        found = nnsight_backend.fill(model, pairs, plan, told)
    else:
        found = _fill(model, pairs, plan, settings, told)
    done = [found[index].grid() for index in range(len(pairs))]
    return Sweep(plan.component, tuple(pairs), plan.layers, done, plan.heads)


def _fill(
    model: models_model.Model,
    pairs: Sequence[tracing_pairs.TracePair],
    plan: planning.Plan,
    settings: Settings,
    told: sheets.Counter,
) -> dict[int, sheets.Sheet]:
    engine, found = resuming.Engine(model), {}
    together = max(1, settings.batch_rows // max(1, len(plan.layers) * plan.variants))
    for group in _groups(pairs, together):
        clean, other = _bases(engine, [pairs[index] for index in group], plan)
        sheet = {
            index: sheets.Sheet(
                pairs[index], plan, tuple(plan.columns(index)), clean.logits[row, -1], other.logits[row, -1]
            )
            for row, index in enumerate(group)
        }
        patches = [components.patches(engine, clean, other, plan, layer) for layer in plan.layers]
        skips = np.stack([one.equal.cpu().numpy() for one in patches]) if settings.skip_equal and patches else None
        columns = {row: plan.columns(index) for row, index in enumerate(group)}
        for place in sorted({place for one in columns.values() for place in one.values()}):
            rows = {row: [at for at, own in one.items() if own == place] for row, one in columns.items()}
            rows = {row: at for row, at in rows.items() if at}
            cells = list(itertools.product(range(len(patches)), rows, range(plan.variants)))
            ends = place[-1] == len(pairs[group[0]]) - 1
            needed = [
                cell
                for cell in cells
                if (ends or patches[cell[0]].entry < model.cfg.n_layers)
                and (skips is None or not skips[cell][list(place)].all())
            ]
            for start in range(0, len(needed), settings.batch_rows):
                chunk = needed[start : start + settings.batch_rows]
                logits = engine.resume(clean, place[0], _joins(chunk, patches, clean, place))[:, -1]
                tops = logits.argmax(dim=-1).tolist()
                for cell, one, top in zip(chunk, logits, tops, strict=True):
                    for column in rows[cell[1]]:
                        sheet[group[cell[1]]].put((cell[0], column, cell[2]), one, top)
            told.add(len(patches) * plan.variants * sum(map(len, rows.values())))
        found |= sheet
    return found


def _groups(pairs: Sequence[tracing_pairs.TracePair], together: int) -> Iterator[list[int]]:
    """Pairs of equal length, in their order, so many at a time."""
    by_length: dict[int, list[int]] = {}
    for index, pair in enumerate(pairs):
        by_length.setdefault(len(pair), []).append(index)
    for indices in by_length.values():
        yield from (indices[start : start + together] for start in range(0, len(indices), together))


def _bases(
    engine: resuming.Engine, group: Sequence[tracing_pairs.TracePair], plan: planning.Plan
) -> tuple[resuming.Base, resuming.Base]:
    names = components.site_names(plan.component, plan.layers)
    device = engine.model.device
    # Both in runs of the same shape: then equal inputs have equal bits.
    clean = engine.base(torch.tensor([pair.clean for pair in group], device=device), names)
    return clean, engine.base(torch.tensor([pair.counterfactual for pair in group], device=device), names)


def _joins(
    chunk: Sequence[tuple[int, int, int]],
    patches: Sequence[components.Patches],
    clean: resuming.Base,
    place: tuple[int, ...],
) -> Mapping[int, resuming.Join]:
    """Cells (layer index, row, variant), which come in the order of their layers, as rows of a pass.

    What a layer's component writes at a position changes the stream behind it at that position only, so the vectors of
    single positions serve for any group of them.
    """
    joins = {}
    for index, cells in itertools.groupby(chunk, key=lambda cell: cell[0]):
        entry, vectors = patches[index].entry, patches[index].vectors
        owners, variants = torch.tensor([cell[1:] for cell in cells], device=vectors.device).T
        at = torch.tensor(place, device=vectors.device)
        stream = clean.streams[entry][owners, place[0] : place[-1] + 1]
        stream[:, at - place[0]] = vectors[owners[:, None], variants[:, None], at]
        joins[entry] = resuming.Join(owners, stream)
    return joins
