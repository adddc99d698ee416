"""What the model predicts at the recorded tokens when something in it is changed.

Teacher forcing through the engine: a recorded context is run as a prompt, rows with different interventions in one
batch, and the state after the final norm is kept. What the rows have in common with the clean run comes from its cache.
Cost: one forward pass over the tokens from the first changed one on, per row.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sonde.core import interventions
from sonde.models import model as models_model
from sonde.models import readout, requests
from sonde.studies.critical_steps import contexts

FINAL = "ln_final.hook_out"
Specs = Sequence[interventions.Intervention]


@dataclasses.dataclass(slots=True, eq=False)
class Forced:
    """Values at the slots that were run; the recorder of one request.

    Attributes:
        key: Requests of the same key, that is with the same Sites, share what was run before.
        sites: The Sites kept.
        first: The first slot that was run; those before it came from the cache.
        values: By Site, one row per slot from `first` on.
    """

    key: tuple[str, ...]
    sites: tuple[str, ...]
    first: int = 0
    values: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    def deliver(self, recorded: requests.Recorded) -> np.ndarray:
        """Takes what was recorded; everything is known from now on."""
        self.first, self.values = len(recorded.reused), recorded.values
        return np.arange(len(recorded.tokens))

    def at(self, site: str, where: slice | Sequence[int]) -> Tensor:
        """The rows of some slots."""
        slots = range(where.start, where.stop) if isinstance(where, slice) else where
        return self.values[site][[slot - self.first for slot in slots]]


def forced(
    model: models_model.Model, context: contexts.Context, rows: Sequence[Specs], *, sites: tuple[str, ...] = (FINAL,)
) -> list[Forced]:
    """Runs a recorded context once per row, each under its own interventions, as one batch.

    Args:
        model: The model.
        context: The last token of the response is not run: nothing is predicted after it.
        rows: What to change in each row.
        sites: What to keep.
    """
    keepers = [Forced(("critical-steps", *sites), sites) for _ in rows]
    positions = context.positions[:-1]
    plain = positions == tuple(range(len(positions)))
    asked = [
        requests.Request(
            tokens=context.tokens[:-1],
            positions=None if plain else positions,
            sampling=requests.Sampling(max_new_tokens=1),
            interventions=tuple(held),
            recorders=(keeper,),
        )
        for held, keeper in zip(rows, keepers, strict=True)
    ]
    model.wait(model.submit(asked), asked)
    return keepers


def forget(model: models_model.Model, *, changed_only: bool = False) -> None:
    """Drops cached conversations: all, or those that interventions had a part in."""
    pool = model.pool
    pool.remove([entry for entry in pool.entries if not changed_only or any(entry.lineage.values())])


def reader(model: models_model.Model) -> Callable[[Float[Tensor, "pos d_model"]], Float[Tensor, "pos vocab"]]:
    """From states after the final norm to log-probabilities, as the model itself makes them."""
    unembed = model.parts.taps["unembed.hook_out"].module

    def read(states: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos vocab"]:
        with torch.no_grad():
            return readout.capped(model, unembed(states).float()).log_softmax(dim=-1)

    return read


def divergence(clean: Float[Tensor, "pos vocab"], changed: Float[Tensor, "pos vocab"]) -> float:
    """KL of the changed distributions from the clean ones, in nats, mean over the tokens."""
    return max(float((clean.exp() * (clean - changed)).sum(dim=-1).double().mean()), 0.0)
