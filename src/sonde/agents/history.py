"""What happened in an episode, in words: written beside the activations at every step, read back to go on from there.

Of each observation only the messages that are new since the last one are written, so an episode's log costs its text
once. The same log serves to show an episode, to take up an interrupted one, and to fork one at any step.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import pydantic

from sonde import store
from sonde.agents import environment, reading
from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors, records
from sonde.store import damage, schemas

SETTINGS = ("max_output_tokens", "temperature", "top_p", "top_k", "stop_sequences", "system_prompt", "seed", "tools")


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """One step as it was played.

    Attributes:
        observation: What the agent saw.
        text: What it answered, and `tokens` the same as sampled.
        reward: What it got for it.
        info: What the environment said about it.
        over: Whether the episode ended with it.
        snapshot: The environment's state after it, if it keeps snapshots.
    """

    observation: records.LLMRequest
    text: str
    tokens: tuple[int, ...]
    reward: float | None
    info: Mapping[str, Any]
    over: bool
    snapshot: Mapping[str, Any] | None

    def response(self) -> records.LLMResponse:
        """The answer, as far as it is known."""
        return records.LLMResponse(
            data=(records.TextData(self.text),), usage=records.Usage(0, len(self.tokens)), token_ids=self.tokens
        )


@runtime_checkable
class Retraces(Protocol):
    """An environment that knows how to come again to where an episode stood, though it may not repeat itself."""

    async def retrace(self, past: Sequence[Moment]) -> records.TimeStep[Any]:
        """Starts the episode and goes through its steps; returns what was to be seen after the last."""
        ...


def noted(
    seen: records.LLMRequest,
    before: records.LLMRequest | None,
    action: Any,
    after: records.TimeStep[Any],
    env: Any,
) -> dict[str, Any]:
    """What is written about a step.

    Args:
        seen: The observation the agent acted on.
        before: The observation of the step before.
        action: What it did.
        after: What came of it.
        env: The environment, for its snapshot.
    """
    messages = [dict(message) for message in seen.messages]
    known = [dict(message) for message in before.messages] if before is not None else []
    keep = next((i for i, (a, b) in enumerate(zip(messages, known, strict=False)) if a != b), None)
    keep = min(len(messages), len(known)) if keep is None else keep
    settings = {name: getattr(seen, name) for name in SETTINGS if getattr(seen, name, None) is not None}
    written = {
        "observation": {"keep": keep, "messages": messages[keep:], "settings": settings},
        "text": reading.text_of(action),
        "finish_reason": getattr(action, "finish_reason", None),
        "seed": getattr(action, "seed", None),
        "logprobs": list(getattr(action, "logprobs", ())),
        "reward": after.reward,
        "discount": after.discount,
        "step_type": after.step_type.value,
        "info": (getattr(after.observation, "metadata", None) or {}).get("info") or {},
    }
    if not after.last() and isinstance(env, environment.Snapshots):
        written["snapshot"] = env.snapshot()
    return store.jsonable(written)


class _Seen(pydantic.BaseModel):
    """New messages of an observation."""

    keep: schemas.Count
    messages: list[schemas.Data]
    settings: schemas.Data

    @pydantic.field_validator("settings")
    @classmethod
    def _known(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if unknown := settings.keys() - {*SETTINGS}:
            raise ValueError(f"there is no setting {min(unknown)!r}")
        return settings


class _Note(pydantic.BaseModel):
    """What `noted` writes."""

    observation: _Seen
    text: schemas.Text
    reward: schemas.Number | pydantic.StrictBool | schemas.Data | None
    info: schemas.Data
    step_type: Any
    snapshot: schemas.Data | None = None


NOTE = schemas.register("note about a step", _Note)


def moments(trajectory: capture_trajectory.TrajectoryActivations) -> list[Moment]:
    """The steps of an episode as they were played.

    Raises:
        EpisodeError: The trajectory was recorded without them, or they are not what `noted` writes.
    """
    told: list[Moment] = []
    messages: list[Mapping[str, Any]] = []
    for number, step in enumerate(trajectory.steps):
        note = step.metadata
        if "observation" not in note:
            raise errors.EpisodeError(
                f"step {number} was recorded without its conversation: play the episode with sonde.play or run_episode"
            )
        try:
            schemas.check(note, NOTE)
        except damage.UnreadableError as error:
            raise errors.EpisodeError(f"step {number} {error}: record the episode again") from error
        seen = note["observation"]
        messages = [*messages[: seen["keep"]], *seen["messages"]]
        told.append(
            Moment(
                records.LLMRequest(messages=tuple(messages), **seen["settings"]),
                note["text"],
                tuple(step.calls[-1].generated) if step.calls else (),
                note["reward"],
                note["info"],
                note["step_type"] == records.StepType.LAST.value,
                note.get("snapshot"),
            )
        )
    return told


async def taken_up(env: Any, past: Sequence[Moment]) -> records.TimeStep[Any]:
    """Brings an environment to where an episode stood: by its snapshot, in its own way, or by doing once more what was done.

    Args:
        env: A fresh environment, set to the episode's task.
        past: The steps so far.

    Raises:
        EpisodeError: The environment did not answer as it had.
    """
    if not past:
        return await env.reset()
    if past[-1].snapshot is not None and isinstance(env, environment.Snapshots):
        return await env.restore(past[-1].snapshot)
    if isinstance(env, Retraces):
        return await env.retrace(past)
    now = await env.reset()
    for number, moment in enumerate(past):
        check_same(number, moment.observation, now.observation)
        now = await env.step(moment.response())
        if now.reward != moment.reward:
            raise errors.EpisodeError(
                f"step {number} gave reward {now.reward} where it had given {moment.reward}: this environment does not "
                "repeat itself and keeps no snapshots, so the episode cannot be taken up again"
            )
    return now


def check_same(number: int, then: records.LLMRequest, now: Any) -> None:
    """Refuses an observation that is not what it was.

    Raises:
        EpisodeError: Says at which step.
    """
    before = [dict(message) for message in then.messages]
    again = store.jsonable([dict(message) for message in now.messages])
    if before != again:
        raise errors.EpisodeError(
            f"the environment shows something else at step {number} than it did: it does not repeat itself and keeps no "
            "snapshots, so the episode cannot be taken up again"
        )
