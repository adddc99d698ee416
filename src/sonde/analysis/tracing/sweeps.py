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

1. Pairs of equal length are run together: clean and counterfactual inputs once, with everything kept (`resuming`).
2. Each patch is reduced to a vector in the stream, at one layer and position (`components`).
3. For each position one pass over the positions from there on; the cells of a layer join the batch at that layer.
4. Cells that cannot matter get their result without a run: after the last layer all positions but the final one, and
   (`skip_equal`) places at which both inputs have the same bits, as before the first differing token.

Cost: about a quarter of one forward pass per cell. For heads, memory for one vector per cell of the pairs run together.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sonde.analysis.tracing import components, grids, nnsight_backend, planning, resuming, sheets
from sonde.analysis.tracing import pairs as tracing_pairs
from sonde.models import model as models_model

Component = grids.Component
Baseline = grids.Baseline
Grid = grids.Grid
Sweep = grids.Sweep
Settings = planning.Settings
OnProgress = Callable[[str, int, int], None]
DEFAULTS = Settings()


def sweep(
    model: models_model.Model,
    pairs: Sequence[tracing_pairs.TracePair],
    component: Component,
    *,
    settings: Settings = DEFAULTS,
    on_progress: OnProgress | None = None,
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
    told = sheets.Progress(component, plan.cells, on_progress)
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
    told: sheets.Progress,
) -> dict[int, sheets.Sheet]:
    engine, found = resuming.Engine(model), {}
    together = max(1, settings.batch_rows // max(1, len(plan.layers) * plan.variants))
    for group in _groups(pairs, together):
        clean, other = _bases(engine, [pairs[index] for index in group], plan)
        sheet = {
            index: sheets.Sheet(pairs[index], plan, plan.positions[index], clean.logits[row, -1], other.logits[row, -1])
            for row, index in enumerate(group)
        }
        patches = [components.patches(engine, clean, other, plan, layer) for layer in plan.layers]
        skips = np.stack([one.equal.cpu().numpy() for one in patches]) if settings.skip_equal and patches else None
        for position in sorted({position for index in group for position in plan.positions[index]}):
            rows = {row: sheet[index] for row, index in enumerate(group) if position in plan.positions[index]}
            cells = list(itertools.product(range(len(patches)), rows, range(plan.variants)))
            ends = position == len(pairs[group[0]]) - 1
            needed = [
                cell
                for cell in cells
                if (ends or patches[cell[0]].entry < model.cfg.n_layers)
                and (skips is None or not skips[*cell, position])
            ]
            for start in range(0, len(needed), settings.batch_rows):
                chunk = needed[start : start + settings.batch_rows]
                logits = engine.resume(clean, position, _joins(chunk, patches, position))[:, -1]
                _write(rows, chunk, position, logits)
            told.add(len(cells))
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
    chunk: Sequence[tuple[int, int, int]], patches: Sequence[components.Patches], position: int
) -> Mapping[int, resuming.Join]:
    """Cells (layer index, row, variant), which come in the order of their layers, as rows of a pass."""
    joins = {}
    for index, cells in itertools.groupby(chunk, key=lambda cell: cell[0]):
        vectors = patches[index].vectors
        owners, variants = torch.tensor([cell[1:] for cell in cells], device=vectors.device).T
        joins[patches[index].entry] = resuming.Join(owners, vectors[owners, variants, position][:, None])
    return joins


def _write(
    rows: Mapping[int, sheets.Sheet],
    chunk: Sequence[tuple[int, int, int]],
    position: int,
    logits: Float[Tensor, "cell d_vocab"],
) -> None:
    tops = logits.argmax(dim=-1).tolist()
    for cell, (layer, row, variant) in enumerate(chunk):
        rows[row].put((layer, position, variant), logits[cell], tops[cell])
