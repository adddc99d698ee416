"""The record of an episode: steps, tokens, activations, metadata, reward.

Every step is a view: `get_activation(step, site)` gives the whole context of that step although each token is stored
once. Loaded from disk, activations are memory-mapped and read when asked for.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from sonde import store
from sonde.capture import records as capture_records
from sonde.capture import trajectory_lines
from sonde.core import errors
from sonde.store import damage, steplog

FORMAT = "trajectory-2"
READABLE = ("trajectory-1", FORMAT)


@dataclasses.dataclass(slots=True, eq=False)
class Call:
    """One request to the model within a step (or one row of a bare batch).

    Attributes:
        records: For each slot of the context the number of its record, -1 where it was filtered out.
        positions: For each slot its position in the episode. It is the step's, not the record's: where turns were
            dropped, positions and slots part.
        prompt_length: Where the prompt ends.
        generated: Tokens sampled in this step; the last was never encoded.
        episode_step: Step of the episode as the client counts.
        row: Row of the batch.
        coverage: The records of all slots, those that only earlier steps chose included; not stored.
    """

    records: np.ndarray
    positions: np.ndarray
    prompt_length: int
    generated: tuple[int, ...] = ()
    episode_step: int = 0
    row: int = 0
    coverage: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def to_json(self) -> dict[str, Any]:
        """Record numbers and positions as ranges."""
        return {
            "records": _ranges(self.records),
            "positions": _ranges(self.positions),
            "prompt_length": self.prompt_length,
            "generated": list(self.generated),
            "episode_step": self.episode_step,
            "row": self.row,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], records: capture_records.Records) -> "Call":
        """Reads what `to_json` wrote, of this format or the first, in which only records had positions."""
        numbers = _of_ranges(data["records"])
        positions = _of_ranges(data["positions"]) if "positions" in data else records.first_positions(numbers)
        return cls(
            numbers, positions, data["prompt_length"], tuple(data["generated"]), data["episode_step"], data["row"]
        )


@dataclasses.dataclass(slots=True, eq=False)
class Step:
    """One step: the calls made in it and what was noted about it."""

    calls: list[Call] = dataclasses.field(default_factory=list)
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For the step log."""
        return {"calls": [call.to_json() for call in self.calls], "metadata": self.metadata}

    def add(self, call: Call, extends: int) -> None:
        """Takes a call, in place of the one whose first `extends` slots it goes on from, if there is one."""
        index = self.continued(call, extends)
        if index is None:
            self.calls.append(call)
        else:
            self.calls[index] = call

    def continued(self, call: Call, extends: int) -> int | None:
        """Which call this one is the continuation of: the same bare forward pass, some tokens later."""
        for index, other in enumerate(self.calls):
            same = extends and other.row == call.row and not other.generated and len(other.coverage) == extends
            if same and np.array_equal(other.coverage, call.coverage[:extends]):
                return index
        return None


class TrajectoryActivations:
    """What happened inside the model over a whole episode."""

    def __init__(
        self,
        records: capture_records.Records,
        steps: list[Step],
        *,
        reward: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Wraps records and steps; users get trajectories from a capture or from `load`."""
        self.records, self.steps = records, steps
        self.reward = reward
        self.metadata = dict(metadata or {})

    def __len__(self) -> int:
        """How many steps."""
        return len(self.steps)

    def __repr__(self) -> str:
        """Sizes."""
        return f"TrajectoryActivations({len(self)} steps, {self.records.count} tokens, reward {self.reward})"

    def __float__(self) -> float:
        """The reward."""
        return float(self.reward or 0.0)

    def __sub__(self, other: Any) -> float:
        """Difference of rewards: what an intervention did to the outcome."""
        return float(self) - float(other)

    def __rsub__(self, other: Any) -> float:
        """Difference of rewards."""
        return float(other) - float(self)

    @property
    def site_names(self) -> list[str]:
        """The Sites recorded."""
        return sorted(self.records.names)

    @property
    def step_metadata(self) -> list[dict[str, Any]]:
        """What was noted about each step."""
        return [step.metadata for step in self.steps]

    def get_activation(self, step: SupportsIndex, site: str, *, call: int = -1) -> Tensor:
        """A Site's value over the whole context of a step, batch axis kept: `batch pos …`.

        Args:
            step: Step number.
            site: Site name.
            call: Which request, if several were made in the step; the last by default.

        Raises:
            CaptureError: No such step, nothing recorded in it, or the Site was not recorded.
        """
        rows = self._rows(step, call)
        values = [self.records.values(site, one.records[one.records >= 0]) for one in rows]
        if len({value.shape for value in values}) > 1:
            raise errors.CaptureError(f"the rows of step {int(step)} have different lengths: ask for one with call=…")
        return torch.stack(values)

    def get_activation_across_trajectory(self, site: str) -> list[Tensor]:
        """A Site's value at every step, in order; steps without a request are left out."""
        return [self.get_activation(index, site) for index, step in enumerate(self.steps) if step.calls]

    def tokens(self, step: SupportsIndex, *, call: int = -1) -> Tensor:
        """Token ids of the recorded positions of a step."""
        numbers = self._rows(step, call)[-1].records
        return self.records.whole(capture_records.TOKENS)[torch.from_numpy(numbers[numbers >= 0])]

    def positions(self, step: SupportsIndex, *, call: int = -1) -> Tensor:
        """Positions in the episode, as they are in a step, of what was recorded of it."""
        one = self._rows(step, call)[-1]
        return torch.from_numpy(one.positions[one.records >= 0])

    def prompt_length(self, step: SupportsIndex, *, call: int = -1) -> int:
        """How many tokens the prompt of a step had."""
        return self._rows(step, call)[-1].prompt_length

    def generated(self, step: SupportsIndex, *, call: int = -1) -> tuple[int, ...]:
        """Tokens sampled in a step."""
        return self._rows(step, call)[-1].generated

    def _rows(self, step: SupportsIndex, call: int) -> list[Call]:
        number = step.__index__()
        if not -len(self) <= number < len(self):
            raise errors.CaptureError(f"no step {number}: the trajectory has steps 0 to {len(self) - 1}")
        calls = self.steps[number].calls
        if not calls:
            raise errors.CaptureError(
                f"nothing was recorded in step {number}: no request was made between its start and end"
            )
        if calls[-1].row and call == -1:
            first = max(index for index, one in enumerate(calls) if one.row == 0)
            return calls[first:]
        try:
            return [calls[call]]
        except IndexError:
            raise errors.CaptureError(f"no call {call} in step {number}: it has {len(calls)}") from None

    def save(self, folder: str | Path) -> Path:
        """Writes the trajectory as an episode folder, in place of one that is there."""
        metadata = {"format": FORMAT, **self.metadata}
        # Read first: the folder may be the very one this was loaded from.
        arrays = {name: capture_records.to_array(self.records.whole(name)) for name in _columns(self.records)}
        with store.EpisodeWriter.create(Path(folder), metadata=metadata, overwrite=True) as writer:
            for index, step in enumerate(self.steps):
                writer.append_step(step.to_json(), arrays if index == 0 else {})
            writer.close({"reward": plain_reward(self.reward)})
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> "TrajectoryActivations":
        """Opens an episode folder, finished or not.

        Raises:
            StoreError: It is damaged, from a newer version, or no trajectory.
        """
        reader = store.EpisodeReader.open(Path(folder))
        if reader.metadata.get("format") not in READABLE:
            raise errors.StoreError(
                f"{folder} holds an episode but no trajectory: its format is {reader.metadata.get('format')!r}"
            )
        records = capture_records.Records.of_reader(reader)
        steps: list[Step] = []
        for number, line in enumerate(reader.steps):
            try:
                trajectory_lines.check(line, steps=len(steps), records=records.count)
            except damage.UnreadableError as error:
                raise damage.Damage(reader.folder / steplog.NAME, str(error), step=number).error() from error
            if "amends" in line:
                steps[line["amends"]].metadata.update(line["metadata"])
            else:
                steps.append(Step([Call.from_json(call, records) for call in line["calls"]], dict(line["metadata"])))
        metadata = {name: value for name, value in reader.metadata.items() if name != "format"}
        return cls(records, steps, reward=reader.reward, metadata=metadata)


class StepView(Mapping[str, Tensor]):
    """One step's values by Site name."""

    def __init__(self, whole: TrajectoryActivations, step: int) -> None:
        self._whole, self._step = whole, step

    def __getitem__(self, name: str) -> Tensor:
        return self._whole.get_activation(self._step, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole.site_names)

    def __len__(self) -> int:
        return len(self._whole.site_names)


def plain_reward(reward: Any) -> float | None:
    """A reward of any number type as a plain number."""
    return None if reward is None else float(reward)


def _columns(records: capture_records.Records) -> Iterator[str]:
    if records.count:
        yield from (capture_records.TOKENS, capture_records.KEYS)
        yield from sorted(records.names)


def _of_ranges(ranges: Sequence[Sequence[int]]) -> np.ndarray:
    """Reads what `_ranges` wrote."""
    parts = [np.arange(a, b) if a >= 0 else np.full(b, -1) for a, b in ranges]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _ranges(numbers: np.ndarray) -> list[list[int]]:
    """Runs of consecutive numbers as [start, stop]; n missing ones as [-1, n]."""
    if not len(numbers):
        return []
    before, after = numbers[:-1], numbers[1:]
    goes_on = np.where(before < 0, after < 0, after == before + 1)
    jumps = np.flatnonzero(~goes_on) + 1
    parts = np.split(numbers, jumps)
    return [[int(part[0]), int(part[-1]) + 1] if part[0] >= 0 else [-1, len(part)] for part in parts]
