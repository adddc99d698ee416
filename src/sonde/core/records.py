"""What passes between agent, environment and model: the shapes of ARES, as frozen records and protocols.

Anything that has these attributes works; nothing need inherit from Sonde. To a response Sonde adds what an
interpreter needs and ARES leaves out: token ids, log-probabilities, finish reason, seed, what was dropped.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

Message = Mapping[str, Any]
ObservationT = TypeVar("ObservationT")
ObservationT_co = TypeVar("ObservationT_co", covariant=True)
ActionT_contra = TypeVar("ActionT_contra", contravariant=True)


class StepType(enum.Enum):
    """Where in an episode a TimeStep stands."""

    FIRST = "first"
    MID = "mid"
    LAST = "last"


@dataclasses.dataclass(frozen=True, slots=True)
class TimeStep(Generic[ObservationT]):
    """What an environment returns: the observation, the reward for the last action, and whether this is the end."""

    step_type: StepType
    reward: float | None
    discount: float | None
    observation: ObservationT

    def first(self) -> bool:
        """Whether the episode starts here."""
        return self.step_type is StepType.FIRST

    def mid(self) -> bool:
        """Whether the episode is under way."""
        return self.step_type is StepType.MID

    def last(self) -> bool:
        """Whether the episode is over."""
        return self.step_type is StepType.LAST


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LLMRequest:
    """One request to a model. None means: as the client was configured."""

    messages: Sequence[Message]
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    stop_sequences: Sequence[str] | None = None
    system_prompt: str | None = None
    seed: int | None = None
    metadata: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class TextData:
    """A piece of text in a response."""

    content: str


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """How many tokens a request took: in the prompt, generated, and of the prompt those really encoded."""

    prompt_tokens: int
    generated_tokens: int
    encoded_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        """Prompt and generated tokens together."""
        return self.prompt_tokens + self.generated_tokens


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LLMResponse:
    """What a model answered.

    Attributes:
        data: The text, special tokens removed.
        cost: Money spent, 0 for a local model.
        usage: Token counts.
        prompt_token_ids: The prompt exactly as the model saw it.
        token_ids: The generated tokens exactly as sampled, special ones included.
        logprobs: Log-probability of each generated token under the distribution it was drawn from before
            temperature and truncation (the model's own).
        finish_reason: `stop` (end token or stop string), `length`, or `cancelled`.
        seed: The seed the tokens were drawn with.
        dropped_tokens: Prompt tokens left out by the context policy; 0 unless the context was full.
        step: Index of this request in its episode, as the client counts.
    """

    data: Sequence[TextData]
    cost: float = 0.0
    usage: Usage
    prompt_token_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: str = "stop"
    seed: int | None = None
    dropped_tokens: int = 0
    step: int = 0

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(part.content for part in self.data)


@runtime_checkable
class LLMClient(Protocol):
    """Anything that answers requests."""

    async def __call__(self, request: LLMRequest) -> LLMResponse:
        """Answers one request."""
        ...


@runtime_checkable
class Environment(Protocol[ActionT_contra, ObservationT_co]):
    """Anything an agent can act in, for one episode at a time."""

    async def reset(self) -> TimeStep[Any]:
        """Starts an episode."""
        ...

    async def step(self, action: ActionT_contra) -> TimeStep[Any]:
        """Takes one action."""
        ...

    async def close(self) -> None:
        """Frees what the environment holds."""
        ...

    async def __aenter__(self) -> Self:
        """Enters the environment."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it, whatever happened."""
        ...
