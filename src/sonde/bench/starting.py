"""Which weights does a training begin with? Fresh ones, or those of an earlier training.

    weights = starting.weights(pupils, seeds, {0: "results/bench/case-3/510/seed-0"})

1. Fresh weights are drawn by the seed; nodes outside the circuit write a tenth of what they would (`siit.Pupils.hushed`).
2. An earlier model of the same shape and places gives all of its weights.
3. One with fewer answers gives what it has, and the rows of the other answers stay fresh: a model of IOI can begin
   the training of the model that says every next word.

Costs the reading of a file.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors.torch
from jaxtyping import Float
from torch import Tensor

from sonde.bench import batched, siit
from sonde.core import errors
from sonde.store import disk

MODEL, LOG = "model.safetensors", "log.json"


def weights(pupils: siit.Pupils, seeds: Sequence[int], earlier: Mapping[int, Path]) -> Float[Tensor, "seed parameter"]:
    """Weights to begin with, for each seed; `earlier` says where those of some seeds are.

    Raises:
        RequestError: An earlier model has another shape, or its nodes stand elsewhere.
    """
    found = pupils.hushed(batched.draw(pupils.shape, seeds))
    for row, seed in enumerate(seeds):
        if seed in earlier:
            _take(batched.parts(pupils.shape, found[row : row + 1]), pupils.places[row], earlier[seed])
    return found


def _take(fresh: Mapping[str, Tensor], places: Mapping[str, str], folder: Path) -> None:
    """Writes the weights of an earlier model over fresh ones."""
    with disk.explained(folder, doing="read"):
        log = json.loads((folder / LOG).read_text())
        stored = safetensors.torch.load_file(folder / MODEL)
    if log["places"] != dict(places):
        raise errors.RequestError(
            f"{folder} cannot be begun with: its nodes are at {log['places']}, here at {dict(places)}: take one of the "
            "same case, seed and --same-place"
        )
    for name, value in fresh.items():
        one = stored.get(name)
        wide = name.startswith("lm_head") and one is not None and len(one) <= value.shape[1]
        if one is None or one.shape[1:] != value.shape[2:] or not (wide or len(one) == value.shape[1]):
            got = "not there" if one is None else tuple(one.shape)
            raise errors.RequestError(
                f"{folder} cannot be begun with: {name} is {got}, expected {tuple(value.shape[1:])}: take one of the same case"
            )
        value[0, : len(one)] = one
