"""Which episode a request belongs to, which step it is, and which of its tokens are already known.

An agent sends its whole message list every time. A request continues an episode if it names it
(`metadata["episode_id"]`), or if it extends the messages and the answer of an earlier request. The tokens that the
model generated are spliced back in where their text returns, so that re-tokenising a transcript never moves a position.
"""

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from sonde.core import interventions, records, spans
from sonde.models import chat as models_chat

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
        chat: The same, encoded, with nothing dropped.
        reply: The answer's text, and `reply_tokens` its tokens as sampled.
        persisted: What interventions left behind.
        busy: Whether a request is under way.
        dropping: Whether it was logged that the context is full.
    """

    id: int = dataclasses.field(default_factory=lambda: next(_ids))
    key: Any = None
    step: int = 0
    messages: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    chat: models_chat.Encoded = dataclasses.field(default_factory=models_chat.Encoded)
    reply: str = ""
    reply_tokens: tuple[int, ...] = ()
    persisted: tuple[tuple[interventions.Intervention, spans.Spans], ...] = ()
    busy: bool = False
    dropping: bool = False

    def known(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of a new prompt were there when the last step ended."""
        before = (*self.chat.tokens, *self.reply_tokens) if self.step else ()
        pairs = zip(before, tokens, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(tokens)))

    def left_behind(self, known: int) -> tuple[tuple[interventions.Intervention, spans.Spans], ...]:
        """What interventions left behind in the tokens that are still there."""
        clipped = ((spec, spans.clip(where, 0, known)) for spec, where in self.persisted)
        return tuple((spec, where) for spec, where in clipped if where)

    def continued_by(self, messages: Sequence[dict[str, Any]]) -> bool:
        """Whether messages extend this conversation, its answer included."""
        count = len(self.messages)
        if len(messages) <= count or list(messages[:count]) != self.messages:
            return False
        return _same(messages[count], {"role": "assistant", "content": self.reply})

    def edited_by(self, messages: Sequence[dict[str, Any]]) -> bool:
        """Whether messages look like the same episode with its history rewritten."""
        return len(messages) > len(self.messages) > 0 and _opening(messages) == _opening(self.messages)

    def shared(self, messages: Sequence[dict[str, Any]]) -> int:
        """How many leading messages are the same, the answer counted too."""
        pairs = zip([*self.messages, {"role": "assistant", "content": self.reply}], messages, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if not _same(a, b)), len(self.messages) + 1)


class Conversations:
    """The episodes a client has under way."""

    def __init__(self) -> None:
        """None yet."""
        self._known: collections.OrderedDict[int, Conversation] = collections.OrderedDict()

    def of(self, request: records.LLMRequest, messages: list[dict[str, Any]]) -> Conversation:
        """The conversation a request continues, or a new one.

        A conversation that is being answered at this moment is not continued but branched: two requests that extend
        the same history, made at once, are two episodes from there on.
        """
        found = self._continued((request.metadata or {}).get("episode_id"), messages)
        if found is not None and not found.busy:
            self._known.move_to_end(found.id)
            return found
        new = Conversation(key=(request.metadata or {}).get("episode_id"))
        if found is not None:
            new = dataclasses.replace(found, id=new.id, busy=False)
        self._known[new.id] = new
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return new

    def _continued(self, key: Any, messages: list[dict[str, Any]]) -> Conversation | None:
        recent = [one for one in reversed(self._known.values()) if one.key == key and one.step]
        if key is not None:
            candidates = [one for one in recent if len(messages) > len(one.messages)]
        else:
            candidates = [one for one in recent if one.continued_by(messages)]
            candidates = candidates or [one for one in recent if one.edited_by(messages)]
        # The one that shares most; of those the one that is free; of those the last used.
        return max(candidates, key=lambda one: (one.shared(messages), not one.busy), default=None)


def spliced(before: Conversation, pieces: Sequence[models_chat.Piece], tokenizer: Any) -> models_chat.Encoded:
    """A rendered chat, encoded with the tokens already known of its conversation put in unchanged.

    White space that the template trims from the answer, or puts before it, does not matter: the tokens are those that
    were sampled. Special tokens among them are left out, as they are from the text. Falls back to plain tokenising
    where the template rewrote history.
    """
    text = "".join(piece.text for piece in pieces)
    known = before.chat.text
    answer = _answer(text[len(known) :], before.reply) if before.step and text.startswith(known) else None
    if answer is None:
        return models_chat.Encoded((_segment(pieces, tokenizer),))
    special = set(tokenizer.all_special_ids)
    kept, decoded = _covered([t for t in before.reply_tokens if t not in special], before.reply, tokenizer)
    left = before.reply[len(decoded) :]  # of a token that a stop string cut into
    left = left if answer == before.reply else left.rstrip()
    said = models_chat.Segment((models_chat.Piece(answer[: len(answer) - len(left)]),), tuple(kept), True)
    rest = [models_chat.Piece(left, trusted=False)] if left else []
    segments = [
        _segment(part, tokenizer) for part in (rest, models_chat.skip(pieces, len(known) + len(answer))) if part
    ]
    return models_chat.Encoded((*before.chat.segments, said, *segments))


def _answer(rest: str, reply: str) -> str | None:
    """The answer as it stands at the beginning of the rest of a rendered chat; None if something else does."""
    if rest.startswith(reply):
        return reply
    gap, bare = len(rest) - len(rest.lstrip()), reply.strip()
    return rest[: gap + len(bare)] if bare and rest[gap:].startswith(bare) else None


def _segment(pieces: Sequence[models_chat.Piece], tokenizer: Any) -> models_chat.Segment:
    return models_chat.Segment(tuple(pieces), tuple(models_chat.encode(tokenizer, pieces)))


def _covered(reply: list[int], text: str, tokenizer: Any) -> tuple[list[int], str]:
    """The longest run of tokens whose text is a beginning of the answer (a stop string may have cut into a token)."""
    for count in range(len(reply), -1, -1):
        decoded = tokenizer.decode(reply[:count], skip_special_tokens=True)
        if text.startswith(decoded):
            return reply[:count], decoded
    return [], ""


def _same(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return left["role"] == right["role"] and left["content"].strip() == right["content"].strip()


def _opening(messages: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """System prompt and first message: what an agent that edits its history still keeps."""
    head = next((i for i, message in enumerate(messages) if message["role"] != "system"), 0)
    return [(message["role"], message["content"]) for message in messages[: head + 1]]
