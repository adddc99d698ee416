"""The same sweep run by nnsight: one trace per cell, for those who want to see another engine agree.

    sweeps.sweep(model, pairs, "mlp", settings=sweeps.Settings(backend="nnsight"))

1. The network is wrapped for the length of the sweep; what nnsight puts into its modules is taken out again afterwards.
2. One trace of each counterfactual input saves the component's values, one of each clean input its logits.
3. One trace per cell writes the value of one position, or of a group, (and head) in place, and saves the logits of the last position.

Cost: a full forward pass per cell and some milliseconds of tracing. Nothing is left out or resumed.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sonde.analysis.tracing import components, planning, sheets
from sonde.analysis.tracing import pairs as tracing_pairs
from sonde.core import errors
from sonde.models import model as models_model
from sonde.models import taps


def fill(
    model: models_model.Model, pairs: Sequence[tracing_pairs.TracePair], plan: planning.Plan, told: sheets.Counter
) -> dict[int, sheets.Sheet]:
    """Runs every cell of a plan.

    Raises:
        MissingExtraError: nnsight is not installed.
    """
    found: dict[int, sheets.Sheet] = {}
    places = [_place(model, plan, layer) for layer in plan.layers]
    slices = [slice(head * model.cfg.d_head, (head + 1) * model.cfg.d_head) for head in plan.heads] or [slice(None)]
    with model.lock, torch.no_grad(), _wrapped(model) as envoy:
        for index, pair in enumerate(pairs):
            clean, other = (torch.tensor([ids], device=model.device) for ids in (pair.clean, pair.counterfactual))
            values, theirs = _recorded(envoy, other, places)
            columns = plan.columns(index)
            sheet = sheets.Sheet(pair, plan, tuple(columns), _patched(envoy, clean, None, None), theirs)
            for column, place in columns.items():
                for layer, variant in itertools.product(range(len(places)), range(len(slices))):
                    cell = (0, list(place), slices[variant])
                    logits = _patched(envoy, clean, places[layer], (cell, values[layer][cell]))
                    sheet.put((layer, column, variant), logits, int(logits.argmax()))
                told.add(len(places) * len(slices))
            found[index] = sheet
    return found


Place = tuple[str, taps.Side]


def _place(model: models_model.Model, plan: planning.Plan, layer: int) -> Place:
    """Path of the module that holds a component, and on which side."""
    after = layer == model.cfg.n_layers
    kind = components.SITES.get(plan.component, "hook_resid_post" if after else "hook_resid_pre")
    tap = model.parts.taps[f"blocks.{layer - after}.{kind}"]
    return next(path for path, module in model.hf.named_modules() if module is tap.module), tap.side


def _recorded(envoy: Any, ids: Tensor, places: Sequence[Place]) -> tuple[list[Tensor], Tensor]:
    """The values at some places, and the logits of the last position."""
    values: list[Tensor] = []
    with envoy.trace(ids, use_cache=False, logits_to_keep=1):
        for path, side in places:
            values.append(_value(envoy, path, side).clone())
        logits = envoy.output.logits[0, -1].save()
    return values, logits


def _patched(envoy: Any, ids: Tensor, place: Place | None, patch: tuple[Any, Tensor] | None) -> Tensor:
    """The logits of the last position, with a value written in place."""
    with envoy.trace(ids, use_cache=False, logits_to_keep=1):
        if place is not None and patch is not None:
            _value(envoy, *place)[patch[0]] = patch[1]
        logits = envoy.output.logits[0, -1].save()
    return logits


def _value(envoy: Any, path: str, side: taps.Side) -> Tensor:
    module = envoy.get(path)
    return taps.first_tensor(module.input if side == "in" else module.output)


@contextlib.contextmanager
def _wrapped(model: models_model.Model) -> Iterator[Any]:
    """An nnsight model on the very network, which is as before afterwards."""
    try:
        import nnsight
    except ImportError as error:
        raise errors.MissingExtraError("nnsight", extra="nnsight", feature="backend='nnsight'") from error
    before: list[tuple[nn.Module, dict[str, Any]]] = [(module, dict(vars(module))) for module in model.hf.modules()]
    try:
        yield nnsight.TransformersModel(model.hf, tokenizer=model.tokenizer)
    finally:
        for module, had in before:
            for name in set(vars(module)) - set(had):
                del vars(module)[name]
            if "forward" in had:
                vars(module)["forward"] = had["forward"]
