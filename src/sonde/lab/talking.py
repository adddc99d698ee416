"""How does a corrupted model speak? A conversation with it, and the same one with the intact model beside it.

    talk = talking.Talk(model, corruption)
    reply = talk.say("What is the capital of France?")
    reply.intact, reply.corrupted

Each of the two remembers what it said itself. Deterministic unless a temperature is given. Cost: two generations a turn;
what was encoded before is in the cache of each.
"""

import dataclasses

from sonde.lab import corruptions
from sonde.models import chat
from sonde.models import model as models_model


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What both said."""

    intact: str
    corrupted: str


class Talk:
    """One conversation with two models."""

    def __init__(
        self,
        model: models_model.Model,
        corruption: corruptions.Corruption,
        *,
        raw: bool = False,
        max_new_tokens: int = 60,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Starts with nothing said.

        Args:
            model: The model.
            corruption: What is done to one of the two.
            raw: Continue the text as it is, without the model's chat template; nothing is remembered then.
            max_new_tokens: Length of a reply.
            temperature: 0 for the most likely words.
            seed: Draws them otherwise.
        """
        self._model, self._raw = model, raw
        self._sides = ((), corruption.bound(model))
        self._sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
        self._said: tuple[list[dict[str, str]], ...] = ([], [])

    def say(self, text: str) -> Reply:
        """Says something to both.

        Raises:
            ContextError: The conversation has become too long; `forget` it.
        """
        replies = []
        for specs, said in zip(self._sides, self._said, strict=True):
            messages = [*said, {"role": "user", "content": text}]
            prompt = self._model.tokenizer.encode(text) if self._raw else self._encoded(messages)
            answer = self._model.generate(prompt, interventions=specs, **self._sampling).text
            replies.append((messages, answer))
        for said, (messages, answer) in zip(self._said, replies, strict=True):
            said[:] = [*messages, {"role": "assistant", "content": answer}]
        return Reply(replies[0][1], replies[1][1])

    def forget(self) -> None:
        """Begins anew."""
        for said in self._said:
            said.clear()

    def _encoded(self, messages: list[dict[str, str]]) -> list[int]:
        return chat.encode(self._model.tokenizer, chat.render(self._model.tokenizer, messages))
