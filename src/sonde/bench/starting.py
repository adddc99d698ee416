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
from typing import Any

import safetensors
import safetensors.torch
from jaxtyping import Float
from torch import Tensor

from sonde.bench import batched, siit
from sonde.core import errors
from sonde.store import disk

MODEL, LOG = "model.safetensors", "log.json"
KEYS = frozenset({"task", "seed", "status", "step", "shape", "places", "measured"})


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


def read_log(folder: Path) -> dict[str, Any]:
    """The log that training wrote into a folder.

    Raises:
        StoreError: It cannot be read, or is none.
    """
    with disk.explained(folder, doing="read"):
        text = (folder / LOG).read_bytes()
    try:
        log = json.loads(text)
    except ValueError as error:
        raise errors.StoreError(f"{folder / LOG} is damaged ({error}): train again, in another folder") from error
    if not isinstance(log, dict) or not log.keys() >= KEYS:
        raise errors.StoreError(f"{folder / LOG} is no log of a training: name another folder")
    return log


def read_model(folder: Path) -> dict[str, Tensor]:
    """The weights that training wrote into a folder.

    Raises:
        StoreError: They cannot be read, or are none.
    """
    with disk.explained(folder, doing="read"):
        data = (folder / MODEL).read_bytes()
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise errors.StoreError(f"{folder / MODEL} is damaged ({error}): train again, in another folder") from error


def _take(fresh: Mapping[str, Tensor], places: Mapping[str, str], folder: Path) -> None:
    """Writes the weights of an earlier model over fresh ones."""
    log, stored = read_log(folder), read_model(folder)
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
