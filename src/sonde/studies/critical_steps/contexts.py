"""What did the model have before it at every step of an episode, token by token?

The chat is put together again as it was when it was played; the tokens that were sampled come from the record. Works
for every recording, also one that kept only some positions. Costs the tokenising of the chat.
"""

import dataclasses
from collections.abc import Sequence

from sonde.agents import client as agents_client
from sonde.agents import trajectories
from sonde.core import errors
from sonde.models import requests


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


async def rebuilt(trajectory: trajectories.EpisodeTrajectory) -> list[Context]:
    """The contexts of all steps.

    Raises:
        EpisodeError: The episode cannot be gone on with, or a step has no response.
    """
    origin = trajectory.origin
    if origin is None:
        raise errors.EpisodeError("this trajectory does not know its environment: play it with sonde.play")
    generation = dict(origin.settings.generation)
    policy = generation.pop("context_policy", "error")
    client = agents_client.HookedTransformerLLMClient(origin.model, generation_kwargs=generation, context_policy=policy)
    found = []
    for step, moment in enumerate(trajectory.moments):
        if not moment.tokens:
            raise errors.EpisodeError(f"step {step} has no response to look at: the model was not asked in it")
        pending = await client.prepare(moment.observation)
        asked = pending.asked
        positions = asked.positions or tuple(range(len(asked.tokens)))
        after = positions[-1] + 1
        found.append(
            Context(
                (*asked.tokens, *moment.tokens),
                len(asked.tokens),
                (*positions, *range(after, after + len(moment.tokens))),
            )
        )
        client.complete(pending, _known(moment.text, moment.tokens, len(asked.tokens)))
    return found


def ends(contexts: Sequence[Context]) -> list[int]:
    """For each step the last one whose context goes on from it without a break."""
    last = len(contexts) - 1
    found = [last] * len(contexts)
    for step in range(last - 1, -1, -1):
        found[step] = found[step + 1] if contexts[step].continued_by(contexts[step + 1]) else step
    return found


def _known(text: str, tokens: tuple[int, ...], prompt_tokens: int) -> requests.Generation:
    return requests.Generation(
        text=text, tokens=tokens, logprobs=(), finish_reason="stop", prompt_tokens=prompt_tokens, encoded_tokens=0
    )
