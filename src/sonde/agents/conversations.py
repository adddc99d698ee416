"""Which episode a request belongs to, which step it is, and which of its tokens are already known.

An agent sends its whole message list every time. A request continues an episode if it names it
(`metadata["episode_id"]`), or if it extends the messages and the answer of an earlier request. The tokens that the
model generated are spliced back in where their text returns, so that re-tokenising a transcript never moves a position.
"""

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from sonde.core import interventions, records, spans
from sonde.models import chat

KEPT = 512
_ids = itertools.count()


@dataclasses.dataclass(slots=True, eq=False)
class Conversation:
    """One episode as the client knows it.

    Attributes:
        id: Identity within the process.
        key: The episode's own id, if the environment gives one.
        step: Step of the next request.
        messages: The last request's messages.
        text: Its prompt as text, and `tokens` as tokens.
        reply: The answer's text, and `reply_tokens` its tokens as sampled.
        end: Episode position after the last context.
        persisted: What interventions left behind.
    """

    id: int = dataclasses.field(default_factory=lambda: next(_ids))
    key: Any = None
    step: int = 0
    messages: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    text: str = ""
    tokens: tuple[int, ...] = ()
    reply: str = ""
    reply_tokens: tuple[int, ...] = ()
    end: int = 0
    persisted: tuple[tuple[interventions.Intervention, spans.Spans], ...] = ()

    def continued_by(self, messages: Sequence[dict[str, Any]]) -> bool:
        """Whether messages extend this conversation, its answer included."""
        count = len(self.messages)
        if len(messages) <= count or list(messages[:count]) != self.messages:
            return False
        answer = messages[count]
        return answer["role"] == "assistant" and answer["content"].strip() == self.reply.strip()

    def edited_by(self, messages: Sequence[dict[str, Any]]) -> bool:
        """Whether messages look like the same episode with its history rewritten."""
        return len(messages) > len(self.messages) > 0 and _opening(messages) == _opening(self.messages)


class Conversations:
    """The episodes a client has under way."""

    def __init__(self) -> None:
        """None yet."""
        self._known: collections.OrderedDict[int, Conversation] = collections.OrderedDict()

    def of(self, request: records.LLMRequest, messages: list[dict[str, Any]]) -> Conversation:
        """The conversation a request continues, or a new one."""
        key = (request.metadata or {}).get("episode_id")
        recent = list(reversed(self._known.values()))
        if key is not None:
            found = [one for one in recent if one.key == key and len(messages) > len(one.messages)]
        else:
            found = [one for one in recent if one.continued_by(messages)]
            edited = [one for one in recent if one.key is None and one.edited_by(messages)]
            found = found or (edited if len(edited) == 1 else [])
        if found:
            self._known.move_to_end(found[0].id)
            return found[0]
        new = Conversation(key=key)
        self._known[new.id] = new
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return new


def spliced(before: Conversation, pieces: Sequence[chat.Piece], tokenizer: Any) -> tuple[int, ...]:
    """Tokens of a rendered chat, with the tokens already known of its conversation put in unchanged.

    Falls back to plain tokenising where the template rewrote history, or where the answer held special tokens.
    """
    text = "".join(piece.text for piece in pieces)
    special = set(tokenizer.all_special_ids)
    reply = [token for token in before.reply_tokens]
    while reply and reply[-1] in special:
        reply.pop()
    if before.step == 0 or special.intersection(reply):
        return tuple(chat.encode(tokenizer, pieces))
    for answer in dict.fromkeys((before.reply, before.reply.strip())):
        if text.startswith(before.text + answer):
            kept, decoded = _covered(reply, before.reply, tokenizer)
            left = before.reply[len(decoded) :] if answer == before.reply else ""
            rest = chat.skip(pieces, len(before.text) + len(answer))
            tail = chat.encode(tokenizer, [chat.Piece(left, trusted=False), *rest] if left else rest)
            return (*before.tokens, *kept, *tail)
    return tuple(chat.encode(tokenizer, pieces))


def _covered(reply: list[int], text: str, tokenizer: Any) -> tuple[list[int], str]:
    """The longest run of tokens whose text is a beginning of the answer (a stop string may have cut into a token)."""
    for count in range(len(reply), -1, -1):
        decoded = tokenizer.decode(reply[:count], skip_special_tokens=True)
        if text.startswith(decoded):
            return reply[:count], decoded
    return [], ""


def _opening(messages: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """System prompt and first message: what an agent that edits its history still keeps."""
    head = next((i for i, message in enumerate(messages) if message["role"] != "system"), 0)
    return [(message["role"], message["content"]) for message in messages[: head + 1]]
