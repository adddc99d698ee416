"""Games as rows for probes and directions: what was in the model before and after each message.

A row is one message. Its features, at each layer: the state at the last token of the prompt and the mean over the
prompt (before speaking), the mean over the tokens it said and the state at the last of them (after speaking). The last
token that is sampled, usually the end of the turn, is never encoded, so "the last" is the one before. A message of which
no token was encoded has no features after speaking, and is left out everywhere; how many were is told.

Costs one reading of the recorded activations.
"""

import dataclasses
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
from jaxtyping import Float
from torch import Tensor

from sonde.agents import history
from sonde.analysis import examples
from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors, progress
from sonde.store import damage, disk, documents, tensors
from sonde.studies.twenty_questions import kinds

FEATURES = "features.safetensors"
_FEATURES = re.compile(r"([0-9]{1,6})\.(\w+)", re.ASCII)
Key = tuple[int, str]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The messages of many games.

    Attributes:
        examples: Labels (True: invalid), games, steps, texts.
        features: By layer and pooling.
        left_out: Messages without features.
    """

    examples: examples.Examples
    features: Mapping[Key, Float[np.ndarray, "row d_model"]]
    left_out: int

    def save(self, folder: Path) -> None:
        """Writes `features.safetensors` and `rows.json`, which has the checksum of both."""
        arrays = {f"{layer}.{pooling}": values for (layer, pooling), values in self.features.items()}
        data = safetensors.numpy.save(arrays)
        with disk.explained(folder):
            disk.write_atomic(folder / FEATURES, data)
            rows = self.examples
            columns = {
                "labels": rows.labels.tolist(),
                "episodes": rows.episodes.tolist(),
                "steps": rows.steps.tolist(),
                "texts": list(rows.texts or ()),
                "before": list(rows.before or ()),
                "left_out": self.left_out,
                "features": zlib.crc32(data),
            }
            documents.keep(folder / "rows.json", columns)

    @classmethod
    def load(cls, folder: Path) -> "Rows":
        """Reads what `save` wrote.

        Raises:
            StoreError: There is nothing, or it is damaged.
        """
        columns = documents.kept(folder / "rows.json", kinds.ROWS)
        arrays = tensors.read_numpy(folder / FEATURES, crc32=columns.get("features"))
        features = {_key(folder, name, values, len(columns["labels"])): values for name, values in arrays.items()}
        found = examples.Examples(
            np.array(columns["labels"], dtype=np.bool_),
            np.array(columns["episodes"], dtype=np.int64),
            np.array(columns["steps"], dtype=np.int64),
            tuple(columns["texts"]),
            tuple(columns["before"]),
        )
        return cls(found, dict(sorted(features.items())), columns["left_out"])


def _key(folder: Path, name: str, values: np.ndarray, count: int) -> Key:
    """Returns layer and pooling of an array of features."""
    match = _FEATURES.fullmatch(name)
    if match is None or match[2] not in examples.POOLINGS or values.ndim != 2 or len(values) != count:
        raise damage.Damage(folder / FEATURES, f"has no features of {count} messages", array=name).error()
    return int(match[1]), match[2]


def of_games(
    games: Sequence[tuple[int, capture_trajectory.TrajectoryActivations]],
    layers: Sequence[int],
    tell: progress.Tell = progress.silent,
) -> Rows:
    """Reads the rows off recorded games.

    Args:
        games: Number and record of each.
        layers: Layers whose residual stream was recorded.
        tell: Called after each game that was read.

    Raises:
        AnalysisError: A step has no verdict, or there are no rows at all.
    """
    columns: list[tuple[bool, int, int, str, str]] = []
    values: dict[Key, list[np.ndarray]] = {(layer, name): [] for layer in layers for name in examples.POOLINGS}
    left_out = 0
    for done, (number, game) in enumerate(games):
        said: list[str] = []
        whole = {layer: game.records.whole(f"blocks.{layer}.hook_resid_post") for layer in layers}
        for step, moment in enumerate(history.moments(game)):
            if "valid" not in moment.info:
                raise errors.AnalysisError(f"step {step} of game {number} has no verdict (`valid`): play another game")
            call = game.steps[step].calls[-1]
            prompt, generated = call.records[: call.prompt_length], call.records[call.prompt_length :]
            answer = str(moment.observation.messages[-1]["content"])
            if len(generated):
                columns.append((not moment.info["valid"], number, step, moment.text, "\n".join((*said, answer))))
                for layer in layers:
                    for name, pooled in _pooled(whole[layer], prompt, generated).items():
                        values[layer, name].append(pooled.numpy())
            left_out += not len(generated)
            said += [answer, moment.text]
        tell("collect: reading", done + 1, len(games))
    if not columns:
        raise errors.AnalysisError("no message of any game was recorded: play more games")
    labels, numbers, steps, texts, before = zip(*columns, strict=True)
    rows = examples.Examples(np.array(labels), np.array(numbers), np.array(steps), texts, before)
    return Rows(rows, {key: np.stack(found).astype(np.float32) for key, found in values.items()}, left_out)


def _pooled(whole: Tensor, prompt: np.ndarray, generated: np.ndarray) -> dict[str, Tensor]:
    said = whole[torch.from_numpy(generated)].float()
    return {
        "last_prompt": whole[int(prompt[-1])].float(),
        "mean_prompt": whole[torch.from_numpy(prompt)].float().mean(dim=0),
        "mean_generated": said.mean(dim=0),
        "last_generated": said[-1],
    }
