"""Bare forward passes: `model.hf(...)` under whatever is in force.

While a capture or a manager rides on the model, one pair of hooks on the whole network turns each bare forward pass
into a wired one and back. No rider, no hooks. Positions follow from the attention mask (left padding is not counted)
and from the cache that the caller passes on, so `model.hf.generate(...)` records and intervenes correctly too.
"""

import contextlib
import dataclasses
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sonde.core import errors, interventions
from sonde.models import attention, edits, frames, requests, riders
from sonde.models import tape as model_tape
from sonde.models import wiring as model_wiring

if TYPE_CHECKING:
    from sonde.models import model as models_model


@dataclasses.dataclass(slots=True, eq=False)
class _Memory:
    """What a sequence of bare forward passes over one growing input has in common."""

    tokens: list[list[int]]
    positions: list[list[int]]
    prompts: list[int]
    means: dict[str, dict[tuple[str, int, int], Tensor]]
    coverage: dict[tuple[Any, int], np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _UnderWay:
    """A bare forward pass between its two hooks."""

    wires: model_wiring.Wiring
    scope: contextlib.AbstractContextManager[None]
    tape: model_tape.Tape | None
    recorders: list[requests.Recorder]
    riders: int


class Gate:
    """Turns bare forward passes of one model into wired ones while anyone rides."""

    def __init__(self, model: "models_model.Model") -> None:
        """Closed."""
        self.model = model
        self._open = 0
        self._handles: list[Any] = []
        self._counting = threading.Lock()
        self._stack: list[_UnderWay] = []
        self._here = threading.local()

    @property
    def _memory(self) -> _Memory:
        """Per thread: two threads that drive the bare network take turns, one forward pass at a time."""
        return getattr(self._here, "memory", None) or _Memory([], [], [], {}, {})

    @property
    def hooks(self) -> frozenset[int]:
        """The ids of its own hooks on the network."""
        return frozenset(handle.id for handle in self._handles)

    def open(self) -> None:
        """One more rider."""
        with self._counting:
            self._open += 1
            if self._open == 1:
                self._here = threading.local()
                self._handles = [
                    self.model.hf.register_forward_pre_hook(self._before, with_kwargs=True),
                    self.model.hf.register_forward_hook(self._after, always_call=True),
                ]

    def close(self) -> None:
        """One rider less."""
        with self._counting:
            self._open -= 1
            remaining = self._open
            if remaining == 0:
                for handle in self._handles:
                    handle.remove()
                self._handles = []
        # PyTorch calls no hook after a KeyboardInterrupt, so a forward pass may still be under way here.
        if attention.current() is not None and self._stack and remaining < self._stack[-1].riders:
            self._after(self.model.hf, (), None)

    def _before(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        present = () if attention.current() is not None else riders.of(self.model)
        if not present:
            return None
        lock = self.model.lock
        lock.acquire()
        try:
            aboard = [rider.board(riders.Call()) for rider in present]
            frame, ids = frame_of(args, kwargs)
            self._remember(frame, ids)
            bound = self._bind(aboard, frame)
            recorders = [recorder for rider in aboard for recorder in rider.recorders]
            wanted = frozenset(name for recorder in recorders for name in recorder.sites)
            tape = model_tape.Tape(wanted) if wanted else None
            wires = model_wiring.Wiring(self.model.parts, bound, tape)
            wires.__enter__()
            try:
                scope = wires.forward(frame)
                scope.__enter__()
            except BaseException:
                wires.__exit__(None, None, None)
                raise
        except BaseException:
            lock.release()
            raise
        self._stack.append(_UnderWay(wires, scope, tape, recorders, self._open))
        return (args, {**kwargs, "logits_to_keep": 0}) if frame.kept and wires.uses("unembed.hook_out") else None

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        # In this order: only the thread whose forward pass it is may look at the stack.
        if attention.current() is None or not self._stack or attention.current() is not self._stack[-1].wires:
            return
        under_way = self._stack.pop()
        tape, recorders = under_way.tape, under_way.recorders
        try:
            under_way.scope.__exit__(None, None, None)
            under_way.wires.__exit__(None, None, None)
            if tape is not None and output is not None:
                for name in tape.wanted:
                    tape.chunk(name)
                self._deliver(tape, recorders)
        finally:
            self.model.lock.release()

    def _remember(self, frame: frames.Frame, ids: Tensor | None) -> None:
        rows = frame.positions.shape[0]
        past = frame.key_positions.shape[1] - frame.positions.shape[1]
        if past == 0 or len(self._memory.tokens) != rows:
            # A rider that joins late knows neither the tokens nor the prompt of what came before.
            known = [row[row >= 0].tolist() for row in frame.key_positions[:, :past]]
            self._here.memory = _Memory([[-1] * len(row) for row in known], known, _lengths(frame), {}, {})
        for row, (tokens, positions) in enumerate(zip(self._memory.tokens, self._memory.positions, strict=True)):
            here = frame.positions[row] >= 0
            new = frame.positions[row][here].tolist()
            positions += new
            tokens += ids[row][here].tolist() if ids is not None else [-1] * len(new)

    def _bind(self, aboard: list[riders.InForce], frame: frames.Frame) -> list[edits.Edit]:
        bound = []
        rows = frame.positions.shape[0]
        known = len(self._memory.prompts) == rows
        prompt = self._memory.prompts if known else _lengths(frame)
        for rider in aboard:
            for spec in rider.interventions:
                if isinstance(spec, interventions.LayerOrder):
                    raise errors.InterventionError(
                        "a LayerOrder acts in generate, run_with_cache and clients, not in a bare forward of .hf"
                    )
                if spec.steps is not None and rider.step not in spec.steps:
                    continue
                model_wiring.check(spec, self.model.parts)
                where = {
                    row: interventions.selected(spec, prompt_length=prompt[row], new_start=0) for row in range(rows)
                }
                edit = edits.Edit(
                    spec, where, {row: (0, prompt[row]) for row in where}, dict.fromkeys(where, rider.step or 0)
                )
                edit.means = self._memory.means.setdefault(f"{spec.effect}#{len(bound)}", {})
                bound.append(edit)
        return bound

    def _deliver(self, tape: model_tape.Tape, recorders: list[requests.Recorder]) -> None:
        for recorder in recorders:
            if isinstance(recorder, Collector):
                recorder.tape = tape
                continue
            for row, tokens in enumerate(self._memory.tokens):
                positions = np.asarray(self._memory.positions[row], dtype=np.int64)
                fresh = sum(int((frame.positions[row] >= 0).sum()) for frame in tape.passes)
                known = self._memory.coverage.get((recorder.key, row), np.zeros(0, dtype=np.int64))
                before = np.concatenate([known, np.full(len(tokens) - fresh - len(known), -1, dtype=np.int64)])
                prompt = int((positions < self._memory.prompts[row]).sum())
                values = tape.row(row, recorder.sites)
                recorded = requests.Recorded(tuple(tokens), prompt, before, positions, values, row=row)
                self._memory.coverage[recorder.key, row] = recorder.deliver(recorded)


@dataclasses.dataclass(slots=True, eq=False)
class Collector:
    """A recorder that keeps the whole batch of one forward pass: what `run_with_cache` returns."""

    sites: tuple[str, ...]
    tape: model_tape.Tape | None = None

    @property
    def key(self) -> int:
        """Its own."""
        return id(self)

    def deliver(self, recorded: requests.Recorded) -> np.ndarray:
        """Never called: a collector takes the tape whole."""
        raise AssertionError("a collector takes whole tapes")


def _lengths(frame: frames.Frame) -> list[int]:
    return (frame.key_positions.max(dim=1).values + 1).tolist()


def frame_of(args: Any, kwargs: dict[str, Any]) -> tuple[frames.Frame, Tensor | None]:
    """What a bare forward pass is about, from its arguments."""
    ids = kwargs.get("input_ids", args[0] if args else None)
    source = ids if ids is not None else kwargs["inputs_embeds"]
    batch, width = source.shape[:2]
    cache = kwargs.get("past_key_values")
    past = int(cache.get_seq_length()) if cache is not None else 0
    mask = kwargs.get("attention_mask")
    slots = torch.arange(past, past + width, device=source.device).expand(batch, width)
    if mask is not None and not isinstance(mask, dict) and mask.ndim == 2:
        counted = mask.long().cumsum(dim=1) - 1
        keys = torch.where(mask.bool(), counted, -1)[:, : past + width]
    elif kwargs.get("position_ids") is not None and past == 0:
        keys = kwargs["position_ids"].expand(batch, width)
    else:
        keys = torch.arange(past + width, device=source.device).expand(batch, past + width)
    positions = keys[:, past:]
    padded = bool((positions < 0).any())
    kept = kwargs.get("logits_to_keep", 0)
    frame = frames.Frame(
        positions,
        slots,
        keys,
        owns_mask=False,
        padded=padded,
        kept=kept if isinstance(kept, int) else 0,
    )
    return frame, ids
