"""What does a patch of a component come to? To another vector in the residual stream, at one layer and position.

1. A patch of the stream into layer L at position p is that already: the vector is the counterfactual's.
2. A head, the attention or the MLP of layer L at p changes inside the layer only what leaves it at p. One run of the
   layer, with the component's counterfactual values at all positions at once, gives the vectors of all positions.

Cost: nothing for the stream; for a component one forward pass per variant (head) in all.
"""

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sonde.analysis.tracing import planning, resuming

SITES = {"attention_heads": "attn.hook_z", "attention": "hook_attn_out", "mlp": "hook_mlp_out"}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """All patches of one layer.

    Attributes:
        entry: The layer whose input they change; the number of layers means the final norm's.
        vectors: What the stream becomes there.
        equal: Where the counterfactual has the very bits of the clean run, so that the patch changes nothing.
    """

    entry: int
    vectors: Float[Tensor, "pair variant pos d_model"]
    equal: Bool[Tensor, "pair variant pos"]


def site_names(component: str, layers: Sequence[int]) -> list[str]:
    """The Sites to record for a component."""
    return [f"blocks.{layer}.{SITES[component]}" for layer in layers] if component in SITES else []


def patches(
    engine: resuming.Engine, clean: resuming.Base, other: resuming.Base, plan: planning.Plan, layer: int
) -> Patches:
    """The patches of one layer.

    Args:
        engine: Runs the layer.
        clean: The clean inputs.
        other: The counterfactual inputs, in the same order.
        plan: What to patch.
        layer: Where.
    """
    if plan.component not in SITES:
        ours, theirs = clean.streams[layer], other.streams[layer]
        return Patches(layer, theirs[:, None], (ours == theirs).all(dim=-1)[:, None])
    (site,) = site_names(plan.component, [layer])
    ours, theirs = clean.values[site], other.values[site]
    if plan.component == "attention_heads":
        chosen = list(plan.heads)
        equal = (ours == theirs).all(dim=-1)[:, :, chosen].transpose(1, 2)
        given = ours.repeat(len(chosen), 1, 1, 1).unflatten(0, (len(chosen), -1))
        for variant, head in enumerate(chosen):
            given[variant, :, :, head] = theirs[:, :, head]
        given = given.flatten(0, 1)
    else:
        equal, given = (ours == theirs).all(dim=-1)[:, None], theirs
    after = engine.through(clean, layer, site, given).unflatten(0, (plan.variants, -1))
    return Patches(layer + 1, torch.transpose(after, 0, 1), equal)
