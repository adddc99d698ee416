"""Ready-made interventions under the names the field knows.

Each returns an intervention, which is data; give it to `InterventionManager.add_intervention`, to a client's
`fwd_hooks`, or call `.at("blocks.0.hook_resid_post")` and pass it to `run_with_hooks`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from sonde.core import errors, interventions, sites
from sonde.models import adapters


def create_zero_ablation_hook(
    positions: Sequence[int] | None = None, heads: Sequence[int] | None = None, **when: Any
) -> interventions.Zero:
    """Zeroes positions, or heads, or both: heads at those positions. Never the wrong axis.

    Args:
        positions: Absolute positions; all if left out.
        heads: Heads, at Sites that have them; all if left out.
        **when: `steps`, `phase`, `scope`, `after`, `site`.
    """
    return interventions.Zero(positions=_tuple(positions), heads=_tuple(heads), **when)


def create_mean_ablation_hook(
    mean_activation: Any = None,
    positions: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    **when: Any,
) -> interventions.Mean:
    """Replaces by a mean: the one given, or, without arguments, the mean over the positions of the step's prompt.

    Args:
        mean_activation: One vector, or one per position, as `compute_mean_activations` gives.
        positions: Absolute positions; all if left out.
        heads: Heads; all if left out.
        **when: `steps`, `phase`, `scope`, `after`, `site`.
    """
    return interventions.Mean(values=mean_activation, positions=_tuple(positions), heads=_tuple(heads), **when)


def create_path_patching_hook(
    clean_activation: Any, positions: Sequence[int] | None = None, heads: Sequence[int] | None = None, **when: Any
) -> interventions.Patch:
    """Replaces by activations of another run, position by position (activation patching; for paths see `PathPatch`).

    Args:
        clean_activation: `[batch=1] pos …` from `run_with_cache` or a trajectory, indexed by absolute position. Positions
            beyond it, such as tokens generated later, are left alone.
        positions: Which of them; all if left out.
        heads: Heads; all if left out.
        **when: `steps`, `phase`, `scope`, `after`, `site`, `start`.
    """
    return interventions.Patch(values=clean_activation, positions=_tuple(positions), heads=_tuple(heads), **when)


def create_attention_knockout_hook(
    source_positions: Sequence[int], target_positions: Sequence[int], heads: Sequence[int] | None = None, **when: Any
) -> interventions.Knockout:
    """Stops source positions from attending to target positions.

    Args:
        source_positions: The queries.
        target_positions: The keys they may not see.
        heads: Heads; all if left out.
        **when: `steps`, `phase`, `scope`, `after`, `site`.
    """
    return interventions.Knockout(
        positions=_tuple(source_positions), keys=tuple(target_positions), heads=_tuple(heads), **when
    )


def compute_mean_activations(
    model: Any, dataset: Iterable[Any], names_filter: sites.SiteFilter = None
) -> dict[str, Tensor]:
    """Mean of each Site over all tokens of a dataset.

    Args:
        model: A Sonde model, `TransformerBridge` or nnsight model.
        dataset: Texts, or token ids; each is run once.
        names_filter: Which Sites; query-by-key ones have no mean and are left out.

    Raises:
        CaptureError: The dataset is empty, or no Site is left.
    """
    sonde_model = adapters.as_model(model)
    names = [
        name for name in sites.select(names_filter, sonde_model.site_names) if not sites.Site.parse(name).is_query_key
    ]
    if not names:
        raise errors.CaptureError(f"{names_filter!r} names query-by-key sites only, which have no mean")
    totals: dict[str, Tensor] = {}
    count = 0
    for item in dataset:
        _, cache = sonde_model.run_with_cache(item, names)
        for name, value in cache.items():
            summed = value.to(torch.float64).sum(dim=(0, 1))
            totals[name] = totals[name] + summed if name in totals else summed
        first = cache[names[0]]
        count += first.shape[0] * first.shape[1]
    if not count:
        raise errors.CaptureError("the dataset is empty: give at least one text")
    return {name: (total / count).to(torch.float32) for name, total in totals.items()}


def _tuple(values: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)
