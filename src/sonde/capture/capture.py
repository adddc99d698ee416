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
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from sonde import store
from sonde.capture import records as capture_records
from sonde.capture import selection
from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors, sites
from sonde.models import adapters, loading, requests, riders
from sonde.store import plain

_epochs = itertools.count()


class ActivationCapture:
    """Records activations step by step."""

    def __init__(
        self,
        model: Any,
        hook_filter: sites.SiteFilter = None,
        *,
        positions: selection.Positions = "all",
        dtype: str | torch.dtype | None = None,
        device: str | torch.device = "cpu",
        folder: str | Path | None = None,
    ) -> None:
        """Prepares a capture; recording starts with the `with` block.

        Args:
            model: A Sonde model, `TransformerBridge` or nnsight model.
            hook_filter: Which Sites: a predicate on names, a name or wildcard, a list of those (an empty one: tokens
                only), or None for all but the costly ones.
            positions: Which positions to keep in each step: `all`, `prompt`, `last_prompt`, `generated`, `last`, or
                numbers (negative ones count back from the end of the prompt; below -1 they cost encoding every prompt
                as a whole).
            dtype: Type to keep, such as "float16"; the model's own if left out.
            device: Where to keep it.
            folder: Write each step to an episode folder when it ends, instead of holding it in memory.
        """
        self.model = adapters.as_model(model)
        self.sites = () if hook_filter == [] else tuple(sites.select(hook_filter, self.model.site_names))
        selection.check(positions)
        self.positions: selection.Positions = positions
        self.dtype = None if dtype is None else loading.dtype_of(dtype)
        self.device = loading.device_of(device)
        self.reward: float | None = None
        self.summary: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {"model": self.model.cfg.model_name, "sites": list(self.sites)}
        self._automatic = False
        self._folder = Path(folder) if folder is not None else None
        self._writer: store.EpisodeWriter | None = None
        self._there, self._resumed = 0, False
        self._step: capture_trajectory.Step | None = None
        self.clear()

    def clear(self) -> None:
        """Forgets all steps. What comes next is recorded anew, the whole context included.

        Raises:
            CaptureError: A step is open, or steps are written to a folder, where they take no memory.
        """
        if self._step is not None:
            raise errors.CaptureError(f"step {len(self._steps)} is still open: call end_step() before clear()")
        if self._writer is not None:
            raise errors.CaptureError(
                f"this capture writes its steps to {self._folder} and holds none of them in memory: leave out clear()"
            )
        self._epoch = next(_epochs)
        self._records = capture_records.Records()
        self._steps: list[capture_trajectory.Step] = []
        self._unwritten: capture_trajectory.Step | None = None
        self._missed = 0

    def __enter__(self) -> Self:
        """Starts riding along."""
        if self._folder is not None and self._writer is None and not self._resumed:
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
            self._flush()
            self._writer.close({**self.summary, "reward": capture_trajectory.plain_reward(self.reward)})
            self._writer = None

    @property
    def settings(self) -> dict[str, Any]:
        """What it records, as data: `sites`, `positions`, `dtype`."""
        kept: dict[str, Any] = {"sites": list(self.sites), "positions": self.positions}
        if self.dtype is not None:
            kept["dtype"] = str(self.dtype).removeprefix("torch.")
        return store.jsonable(kept)

    def resume(self) -> int:
        """Takes up the episode in the folder again, before the `with` block; returns how many steps it has.

        So many steps are to be run once more, with the same tokens: they are not written again, later ones are.
        Notes about those steps are on disk already. An episode that was closed takes no further steps.
        """
        assert self._folder is not None
        reader = store.EpisodeReader.open(self._folder)
        self._there, self._resumed = sum("amends" not in line for line in reader.steps), True
        if reader.status != "closed":
            self._writer = store.EpisodeWriter.resume(self._folder)
        return self._there

    @property
    def closed(self) -> bool:
        """Whether it was resumed in a folder whose episode was closed, which takes no further steps."""
        return self._resumed and self._writer is None

    def suspend(self) -> None:
        """Leaves the folder as an episode that is not over: `resume` can go on with it."""
        if self._writer is not None:
            self._writer.abort()
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
        self._flush()
        self._write(self._step)
        self._steps.append(self._step)
        self._step = None

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One step: request, response and what came of it; if any of that fails, none is left open."""
        self.start_step()
        try:
            yield
            self.end_step()
        except BaseException:
            self.abandon_step()
            raise

    def abandon_step(self) -> None:
        """Forgets the open step, if there is one: its request failed, say."""
        self._step = None

    def record_step_metadata(self, metadata: Mapping[Any, Any]) -> None:
        """Notes something about the open step, or about the last one if none is open.

        Names become strings. Values stay the objects they are until they are written, when they become standard JSON.
        """
        step = self._step or (self._steps[-1] if self._steps else None)
        if step is None:
            raise errors.CaptureError("there is no step yet to record metadata for: call start_step() first")
        noted = dict(zip(plain.names_of(metadata), metadata.values(), strict=True))
        step.metadata.update(noted)
        if self._writer is not None and step is not self._step and step is not self._unwritten:
            self._writer.append_step({"amends": len(self._steps) - 1, "metadata": noted})

    @property
    def step_activations(self) -> list[Mapping[str, Tensor]]:
        """For each finished step, values by Site name, read when asked for."""
        whole = self._trajectory()
        return [capture_trajectory.StepView(whole, index) for index in range(len(whole))]

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
        return riders.InForce(recorders=(_Boarded(self, self.key, self._step),))

    def deliver(self, recorded: requests.Recorded, step: capture_trajectory.Step | None) -> np.ndarray:
        """Takes what a request recorded that was made in a step (None: in none, of an automatic capture)."""
        start, prompt = len(recorded.reused), recorded.prompt_length
        wanted = selection.chosen(self.positions, recorded.positions, prompt)
        keep = wanted[start:]
        numbers = np.concatenate([recorded.reused, np.full(len(keep), -1, dtype=np.int64)])
        # Without Sites a token has a record although another conversation encoded it.
        fresh = numbers < 0 if not self.sites else np.arange(len(numbers)) >= start
        slots = np.flatnonzero(wanted & fresh)
        first = self._records.append(
            [recorded.tokens[slot] for slot in slots],
            [int(slot) + 1 for slot in slots],
            {name: self._keep(name, value, keep, start) for name, value in recorded.values.items()},
        )
        numbers[slots] = np.arange(first, first + len(slots))
        call = capture_trajectory.Call(
            # Earlier steps may have kept others of the same context.
            np.where(wanted, numbers, -1),
            recorded.positions,
            prompt,
            recorded.generated,
            recorded.step,
            recorded.row,
            numbers,
        )
        if step is not None:
            step.add(call, start)
        elif self._automatic:
            self._place(call, start)
        # A bare forward pass generates nothing, and cannot be asked to encode again.
        return numbers[: selection.reusable(self.positions, prompt, len(numbers))] if recorded.generated else numbers

    def _keep(self, name: str, value: Tensor, keep: np.ndarray, start: int) -> Tensor:
        if not keep.all():
            if sites.Site.parse(name).is_query_key:
                keep = np.repeat(keep, np.arange(start + 1, start + 1 + len(keep)))
            value = value[torch.from_numpy(keep).to(value.device)]
        return value.to(device=self.device, dtype=self.dtype or value.dtype)

    def _place(self, call: capture_trajectory.Call, extends: int) -> None:
        """Gives a call a step of its own; a growing bare forward pass, and the further rows of a batch, go on."""
        last = self._steps[-1] if self._steps else None
        if last is not None and self._unwritten is last and (call.row or last.continued(call, extends) is not None):
            last.add(call, extends)
            return
        self._flush()
        self._unwritten = capture_trajectory.Step([call])
        self._steps.append(self._unwritten)
        if call.generated:  # a request is complete when it is delivered, a bare forward pass may go on
            self._flush()

    def _flush(self) -> None:
        """Writes the automatic step that was still growing."""
        if self._unwritten is not None:
            self._write(self._unwritten)
            self._unwritten = None

    def _write(self, step: capture_trajectory.Step) -> None:
        if self._folder is not None and self._there:  # run again after an interruption
            self._there -= 1
            self._records.flushed(self._folder)
            if not self._there:
                self._records.check_count()
        elif self._writer is not None:
            self._writer.append_step(step.to_json(), self._records.pending())
            self._records.flushed(self._writer.folder)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Boarded:
    """The capture as one request sees it: bound to the step it was made in, however late its answer comes."""

    capture: ActivationCapture
    key: tuple[int, int]
    step: capture_trajectory.Step | None

    @property
    def sites(self) -> tuple[str, ...]:
        """The Sites to record."""
        return self.capture.sites

    def deliver(self, recorded: requests.Recorded) -> np.ndarray:
        """Hands over what the request recorded, unless the capture was cleared meanwhile."""
        if self.key != self.capture.key:
            return np.zeros(0, dtype=np.int64)
        return self.capture.deliver(recorded, self.step)


@contextlib.contextmanager
def automatic_activation_capture(
    model: Any, hook_filter: sites.SiteFilter = None, **options: Any
) -> Iterator[ActivationCapture]:
    """A capture in which every request is a step of its own; takes the same options."""
    capture = ActivationCapture(model, hook_filter, **options)
    capture._automatic = True
    with capture:
        yield capture
