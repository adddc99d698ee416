"""What the engine is asked and what it answers.

A Request is one step of one episode: the prompt as tokens, how to sample, which interventions hold, who records. A
Generation is the answer. Both are plain data; the engine is in `generation`.
"""

import collections
import dataclasses
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from sonde.core import errors, spans
from sonde.core import interventions as specs

if TYPE_CHECKING:
    from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        max_new_tokens: At most so many.
        min_new_tokens: At least so many: end tokens are not drawn before.
        temperature: 0 takes the most probable token.
        top_p: Keep the smallest set of tokens with at least this probability.
        top_k: Keep this many tokens; None keeps all.
        stop: Strings that end the text; they are not part of it.
        seed: Fixes the draw, whatever else is in the batch.
    """

    max_new_tokens: int = 64
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuses impossible settings."""
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        checks = (
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("min_new_tokens", 0 <= self.min_new_tokens <= self.max_new_tokens, "0 to max_new_tokens"),
            ("temperature", self.temperature >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1, or None"),
            ("stop", all(self.stop), "strings that are not empty"),
        )
        for name, good, expected in checks:
            if not good:
                raise errors.RequestError(f"{name} must be {expected}, got {getattr(self, name)!r}")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """What one request added to a recording.

    Attributes:
        tokens: The whole context as encoded: prompt, then what was generated and fed back.
        prompt_length: Where the prompt ends.
        reused: For the leading slots that were not encoded again, the index of their record.
        positions: Episode positions of all slots.
        values: For each Site the newly encoded values.
        generated: All sampled tokens, the last of which was never encoded.
        step: Step of the episode.
        row: Row of the batch, in a bare forward of several rows.
    """

    tokens: tuple[int, ...]
    prompt_length: int
    reused: np.ndarray
    positions: np.ndarray
    values: "Mapping[str, Tensor]"
    generated: tuple[int, ...] = ()
    step: int = 0
    row: int = 0


@runtime_checkable
class Recorder(Protocol):
    """Who wants to keep activations."""

    @property
    def key(self) -> Hashable:
        """Identity: what was recorded under the same key need not be encoded again."""
        ...

    @property
    def sites(self) -> tuple[str, ...]:
        """The Sites to record."""
        ...

    def deliver(self, recorded: Recorded) -> np.ndarray:
        """Takes what a request recorded; returns the index of the record of every slot of the context."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """One step of one episode.

    Attributes:
        tokens: The prompt.
        positions: Episode position of each prompt token, if turns were dropped; None means 0, 1, 2, …
        sampling: How to draw.
        interventions: What may hold; `steps` are compared with `step`.
        persisted: What earlier steps left behind: interventions and the episode positions they stay applied at.
        step: Step of the episode.
        new_start: First episode position that is new in this step.
        recorders: Who records.
        forced: Tokens to take instead of drawing, for as long as they last: replays a known response.
        cancelled: Set it to end the generation at the next token.
    """

    tokens: tuple[int, ...]
    positions: tuple[int, ...] | None = None
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    interventions: tuple[specs.Intervention, ...] = ()
    persisted: tuple[tuple[specs.Intervention, spans.Spans], ...] = ()
    step: int = 0
    new_start: int = 0
    recorders: tuple[Recorder, ...] = ()
    forced: tuple[int, ...] = ()
    cancelled: threading.Event = dataclasses.field(default_factory=threading.Event)

    def active(self) -> list["Applied"]:
        """Every intervention that shapes this step, with where it is applied, in the order in which it is."""
        prompt_length = self.positions[-1] + 1 if self.positions else len(self.tokens)
        left_behind = list(self.persisted)
        chosen: list[tuple[specs.Intervention, spans.Spans]] = []
        for spec in self.interventions:
            known = next((i for i, (other, _) in enumerate(left_behind) if _same_but_for_steps(other, spec)), None)
            where: spans.Spans = left_behind.pop(known)[1] if known is not None else ()
            if spec.steps is None or self.step in spec.steps:
                now = specs.selected(spec, prompt_length=prompt_length, new_start=self.new_start)
                where = spans.union([*where, *now])
            if where:
                chosen.append((spec, where))
        counts: collections.Counter[str] = collections.Counter()
        applied = []
        for spec, where in [*left_behind, *chosen]:
            effect = f"{spec.effect}:{hash(self.tokens)}" if spec.needs_whole_prompt else spec.effect
            applied.append(Applied(spec, where, f"{effect}#{counts[effect]}"))
            counts[effect] += 1
        return applied


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """An intervention in one step.

    Attributes:
        spec: The intervention.
        where: The episode positions it is applied at.
        key: Identifies its effect; the second of two equal ones has a key of its own, because effects add up.
    """

    spec: specs.Intervention
    where: spans.Spans
    key: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What was generated.

    Attributes:
        text: Special tokens and the stop string removed.
        tokens: As sampled, special ones included.
        logprobs: Of each token under the model's own distribution.
        finish_reason: `stop`, `length` or `cancelled`.
        prompt_tokens: Length of the prompt.
        encoded_tokens: How many tokens really went through the model.
        persisted: What later steps of the episode must keep applied.
        seed: The seed used.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    prompt_tokens: int
    encoded_tokens: int
    persisted: tuple[tuple[specs.Intervention, spans.Spans], ...] = ()
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Paused:
    """A request of which some tokens are generated: hand it in again, and it goes on as if it had not stopped.

    Attributes:
        request: The request.
        state: How far it is; the engine's own.
    """

    request: Request
    state: object


Item = Request | Paused
Outcome = Generation | Paused


class BatchError(Exception):
    """Some requests of a batch failed at their end, the others did not and must not run again.

    Attributes:
        outcomes: For each request its answer or what went wrong.
    """

    def __init__(self, outcomes: "Sequence[Outcome | BaseException]") -> None:
        super().__init__("some requests of a batch failed")
        self.outcomes = tuple(outcomes)


def _same_but_for_steps(left: specs.Intervention, right: specs.Intervention) -> bool:
    names = specs.WHERE_AND_WHEN - {"steps"}
    return left.effect == right.effect and all(getattr(left, name) == getattr(right, name) for name in names)


def persisting(request: Request, end: int) -> tuple[tuple[specs.Intervention, spans.Spans], ...]:
    """What a finished request leaves behind for later steps, up to the end of its context."""
    return tuple((one.spec, spans.clip(one.where, 0, end)) for one in request.active() if one.spec.after == "persist")
