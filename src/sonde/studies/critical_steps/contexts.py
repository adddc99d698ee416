"""What the model had before it at every step of an episode, token by token.

The chat is put together again as it was when it was played; the tokens that were sampled come from the record. Works
for every recording, also one that kept only some positions. Costs the tokenising of the chat.
"""

import dataclasses
from collections.abc import Sequence

from sonde.agents import trajectories
from sonde.core import errors


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """One step as the model saw it.

    Attributes:
        tokens: Prompt and response.
        prompt_length: Where the response starts.
        positions: Episode position of each token; other than 0, 1, 2, … if turns were dropped.
    """

    tokens: tuple[int, ...]
    prompt_length: int
    positions: tuple[int, ...]

    @property
    def predicting(self) -> slice:
        """The slots at which the tokens of the response are predicted."""
        return slice(self.prompt_length - 1, len(self.tokens) - 1)

    @property
    def generated(self) -> range:
        """The slots of the response."""
        return range(self.prompt_length, len(self.tokens))

    def continued_by(self, other: "Context") -> bool:
        """Whether another context is this one, gone on."""
        length = len(self.tokens)
        return other.tokens[:length] == self.tokens and other.positions[:length] == self.positions


def rebuilt(trajectory: trajectories.EpisodeTrajectory) -> list[Context]:
    """The contexts of all steps.

    Raises:
        EpisodeError: The episode cannot be gone on with, or a step has no response.
    """
    if trajectory.origin is None:
        raise errors.EpisodeError("this trajectory does not know its environment: play it with sonde.play")
    moments = trajectory.moments
    silent = next((step for step, moment in enumerate(moments) if not moment.tokens), None)
    if silent is not None:
        raise errors.EpisodeError(f"step {silent} has no response to look at: the model was not asked in it")
    found = []
    for asked, moment in zip(trajectories.asked(trajectory.origin.model, trajectory), moments, strict=True):
        positions = asked.positions or tuple(range(len(asked.tokens)))
        after = positions[-1] + 1
        places = (*positions, *range(after, after + len(moment.tokens)))
        found.append(Context((*asked.tokens, *moment.tokens), len(asked.tokens), places))
    return found


def ends(contexts: Sequence[Context]) -> list[int]:
    """For each step the last one whose context goes on from it without a break."""
    last = len(contexts) - 1
    found = [last] * len(contexts)
    for step in range(last - 1, -1, -1):
        found[step] = found[step + 1] if contexts[step].continued_by(contexts[step + 1]) else step
    return found
