"""Recording over a whole episode.

    with ActivationCapture(model, "blocks.*.hook_resid_post") as capture:
        while not ts.last():
            capture.start_step()
            action = await client(ts.observation)
            capture.end_step()
            ts = await env.step(action)
    trajectory = capture.get_trajectory()

A capture holds for the task or thread that entered it. Recording never changes the run, tensors are copies, and the
hooks are gone with the block. Cost while the model runs: one copy per Site and forward pass.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from sonde import store
from sonde.capture import records as capture_records
from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors, sites
from sonde.models import adapters, requests, riders

Positions = Literal["all", "prompt", "last_prompt", "generated", "last"] | Sequence[int]
_epochs = itertools.count()


class ActivationCapture:
    """Records activations step by step."""

    def __init__(
        self,
        model: Any,
        hook_filter: sites.SiteFilter = None,
        *,
        positions: Positions = "all",
        dtype: torch.dtype | None = None,
        device: str | torch.device = "cpu",
        folder: str | Path | None = None,
    ) -> None:
        """Prepares a capture; recording starts with the `with` block.

        Args:
            model: A Sonde model, `TransformerBridge` or nnsight model.
            hook_filter: Which Sites: a predicate on names, a name or wildcard, a list of those, or None for all but
                the costly ones.
            positions: Which positions to keep: `all`, `prompt`, `last_prompt`, `generated`, `last`, or numbers
                (negative ones count back from the end of the prompt).
            dtype: Type to keep; the model's own if left out.
            device: Where to keep it.
            folder: Write each step to an episode folder when it ends, instead of holding it in memory.
        """
        self.model = adapters.as_model(model)
        self.sites = tuple(sites.select(hook_filter, self.model.site_names))
        if isinstance(positions, str) and positions not in ("all", "prompt", "last_prompt", "generated", "last"):
            raise errors.CaptureError(f"no position filter {positions!r}; known: all, prompt, last_prompt, generated, last")
        self.positions, self.dtype, self.device = positions, dtype, torch.device(device)
        self.reward: float | None = None
        self.metadata: dict[str, Any] = {"model": self.model.cfg.model_name, "sites": list(self.sites)}
        self._automatic = False
        self._missed = 0
        self._folder = Path(folder) if folder is not None else None
        self._writer: store.EpisodeWriter | None = None
        self._step: capture_trajectory.Step | None = None
        self.clear()

    def clear(self) -> None:
        """Forgets all steps. What comes next is recorded anew, the whole context included."""
        self._epoch = next(_epochs)
        self._records = capture_records.Records()
        self._steps: list[capture_trajectory.Step] = []

    def __enter__(self) -> Self:
        """Starts riding along."""
        if self._folder is not None and self._writer is None:
            metadata = {"format": capture_trajectory.FORMAT, **self.metadata}
            self._writer = store.EpisodeWriter.create(self._folder, metadata=metadata)
        riders.mount(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops; a step under way is dropped, finished ones are kept."""
        riders.unmount(self)
        self._step = None
        if self._writer is not None:
            self._writer.close({"reward": self.reward})
            self._writer = None

    @contextlib.contextmanager
    def boarded(self) -> Iterator[Self]:
        """The capture in force for a block, whether or not it already is."""
        if any(rider is self for rider in riders.of(self.model)):
            yield self
        else:
            with self:
                yield self

    def start_step(self) -> None:
        """Opens a step: requests from here on belong to it."""
        if self._step is not None:
            raise errors.CaptureError(f"step {len(self._steps)} is still open: call end_step() first")
        self._step = capture_trajectory.Step()

    def end_step(self) -> None:
        """Closes the step. With a folder, it is durable when this returns."""
        if self._step is None:
            raise errors.CaptureError("no step is open: call start_step() before the request and end_step() after it")
        step, self._step = self._step, None
        self._steps.append(step)
        self._write(step)

    def record_step_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Notes something about the open step, or about the last one if none is open. Any value is kept."""
        step = self._step or (self._steps[-1] if self._steps else None)
        if step is None:
            raise errors.CaptureError("there is no step yet to record metadata for: call start_step() first")
        noted = store.jsonable(dict(metadata))
        step.metadata.update(noted)
        if step is not self._step and self._writer is not None:
            self._writer.append_step({"amends": len(self._steps) - 1, "metadata": noted})

    @property
    def step_activations(self) -> list[Mapping[str, Tensor]]:
        """For each finished step, values by Site name, read when asked for."""
        whole = self._trajectory()
        return [_StepView(whole, index) for index in range(len(whole))]

    def get_trajectory(self) -> capture_trajectory.TrajectoryActivations:
        """What was recorded so far.

        Raises:
            CaptureError: Requests were made, but all of them outside of steps.
        """
        if self._missed and not self._steps:
            raise errors.CaptureError(
                f"{self._missed} requests were made outside of steps and not recorded: call start_step() and end_step() "
                "around each, or use automatic_activation_capture(model)"
            )
        return self._trajectory()

    def _trajectory(self) -> capture_trajectory.TrajectoryActivations:
        return capture_trajectory.TrajectoryActivations(
            self._records, list(self._steps), reward=self.reward, metadata=self.metadata
        )

    # What the engine calls.

    @property
    def key(self) -> tuple[int, int]:
        """Identity of what was recorded so far; `clear` starts a new one."""
        return (id(self), self._epoch)

    def board(self, call: riders.Call) -> riders.InForce:
        """Records requests made in an open step, or all of them if automatic."""
        if self._step is None and not self._automatic:
            self._missed += 1
            return riders.InForce()
        return riders.InForce(recorders=(self,))

    def deliver(self, recorded: requests.Recorded) -> np.ndarray:
        """Takes what a request recorded."""
        start, count = len(recorded.reused), len(recorded.positions)
        keep = self._kept(recorded, start)
        slots = np.flatnonzero(keep)
        values = {name: self._keep(name, value, keep, start) for name, value in recorded.values.items()}
        first = self._records.append(
            [recorded.tokens[start + slot] for slot in slots],
            recorded.positions[torch.from_numpy(slots)],
            [start + int(slot) + 1 for slot in slots],
            values,
        )
        new = np.full(count, -1, dtype=np.int64)
        new[slots] = np.arange(first, first + len(slots))
        numbers = np.concatenate([recorded.reused, new])
        self._place(
            capture_trajectory.Call(
                numbers, recorded.prompt_length, recorded.generated, recorded.step, recorded.row
            ),
            extends=start,
        )
        return numbers[: recorded.prompt_length] if self.positions == "prompt" else numbers

    def _kept(self, recorded: requests.Recorded, start: int) -> np.ndarray:
        slots = np.arange(start, len(recorded.tokens))
        positions = recorded.positions.cpu().numpy()
        prompt = recorded.prompt_length
        match self.positions:
            case "all":
                return np.ones(len(slots), dtype=bool)
            case "prompt":
                return slots < prompt
            case "last_prompt":
                return slots == prompt - 1
            case "generated":
                return slots >= prompt
            case "last":
                return slots == len(recorded.tokens) - 1
            case chosen:
                wanted = [int(p) if p >= 0 else prompt + int(p) for p in chosen if not isinstance(p, str)]
                return np.isin(positions, wanted)

    def _keep(self, name: str, value: Tensor, keep: np.ndarray, start: int) -> Tensor:
        if not keep.all():
            if sites.Site.parse(name).is_query_key:
                keep = np.repeat(keep, np.arange(start + 1, start + 1 + len(keep)))
            value = value[torch.from_numpy(keep).to(value.device)]
        return value.to(device=self.device, dtype=self.dtype or value.dtype)

    def _place(self, call: capture_trajectory.Call, *, extends: int) -> None:
        """Puts a call into the open step, or, if automatic, into one of its own; a growing bare forward goes on."""
        automatic = self._step is None
        if automatic:
            goes_on = self._steps and self._steps[-1].calls
            step = self._steps[-1] if goes_on else capture_trajectory.Step()
        else:
            step = self._step
            goes_on = True
        assert step is not None
        for index, other in enumerate(step.calls):
            same = other.row == call.row and extends == len(other.records) and not other.generated
            if extends and same and np.array_equal(other.records, call.records[:extends]):
                step.calls[index] = call
                return
        if automatic and (not goes_on or call.row == 0):
            step = capture_trajectory.Step()
            self._steps.append(step)
        step.calls.append(call)
        if automatic:
            self._write(step)

    def _write(self, step: capture_trajectory.Step) -> None:
        if self._writer is not None:
            self._writer.append_step(step.to_json(), self._records.pending())
            self._records.flushed(self._writer.folder)


@contextlib.contextmanager
def automatic_activation_capture(
    model: Any, hook_filter: sites.SiteFilter = None, **options: Any
) -> Iterator[ActivationCapture]:
    """A capture in which every request is a step of its own; takes the same options."""
    capture = ActivationCapture(model, hook_filter, **options)
    capture._automatic = True
    with capture:
        yield capture


class _StepView(Mapping[str, Tensor]):
    """One step's values by Site name."""

    def __init__(self, whole: capture_trajectory.TrajectoryActivations, step: int) -> None:
        self._whole, self._step = whole, step

    def __getitem__(self, name: str) -> Tensor:
        return self._whole.get_activation(self._step, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole.site_names)

    def __len__(self) -> int:
        return len(self._whole.site_names)


