"""From messages to tokens: chat templates, untrusted text, and what happens when the context is full.

Message contents are untrusted: a text that spells a special token (`<|im_end|>`) is encoded as plain characters, so
neither a task nor a model can forge a turn. Nothing is ever truncated silently: a context policy chosen by name drops
whole messages, keeps the system prompt and the last message, and says how many tokens it dropped.
"""

import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from sonde.core import errors
from sonde.models import bos, templates, tokenizer_files

Policy = Literal["error", "drop_oldest_turns", "keep_first_and_last"]
#: For tokenizers without a template of their own; after BOS, where the tokenizer puts one before every text.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}:\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}"
)
Messages = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Part of a rendered chat; only trusted parts may contain special tokens."""

    text: str
    trusted: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Part of a chat that is encoded by itself.

    Attributes:
        pieces: Its text.
        tokens: Its tokens.
        sampled: Whether a model wrote these tokens, so that no tokenizer need give the same for the text.
    """

    pieces: tuple[Piece, ...]
    tokens: tuple[int, ...]
    sampled: bool = False

    @property
    def text(self) -> str:
        """Its text."""
        return "".join(piece.text for piece in self.pieces)


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """A whole chat, encoded segment by segment."""

    segments: tuple[Segment, ...] = ()

    @property
    def text(self) -> str:
        """The rendered text."""
        return "".join(segment.text for segment in self.segments)

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens."""
        return tuple(token for segment in self.segments for token in segment.tokens)

    def tokens_before(self, offset: int, tokenizer: Any) -> int | None:
        """How many tokens make up the first `offset` characters; None if a token reaches across."""
        chars = count = 0
        for segment in self.segments:
            inside = offset - chars
            if inside <= 0:
                break
            chars += len(segment.text)
            if inside >= len(segment.text):
                count += len(segment.tokens)
                continue
            begin = encode(tokenizer, take(segment.pieces, inside))
            if segment.sampled or tuple(begin) != segment.tokens[: len(begin)]:
                return None
            return count + len(begin)
        return count


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """A chat that fits the context.

    Attributes:
        tokens: Its tokens.
        whole: The chat with nothing dropped.
        positions: Episode position of each token, or None if nothing was dropped.
        dropped: How many tokens were left out.
    """

    tokens: tuple[int, ...]
    whole: Encoded
    positions: tuple[int, ...] | None = None
    dropped: int = 0


def normalise(messages: Messages, system_prompt: str | None = None) -> list[dict[str, Any]]:
    """Plain copies of messages, contents as text, the system prompt first.

    Raises:
        RequestError: No messages, or one without a role.
    """
    plain = [{"role": "system", "content": _text(system_prompt)}] if system_prompt else []
    for message in messages:
        if not isinstance(message, Mapping) or "role" not in message:
            raise errors.RequestError(f"a message needs a role and content, got {message!r:.80}")
        plain.append({**message, "content": _text(message.get("content"))})
    if not plain:
        raise errors.RequestError("a request needs at least one message")
    return plain


def render(
    tokenizer: Any,
    messages: Messages,
    *,
    tools: Sequence[Any] | None = None,
    template: str | None = None,
    header: bool = True,
) -> list[Piece]:
    """The chat as text, with the header of the answer; contents that spell special tokens marked as untrusted.

    Raises:
        RequestError: The template cannot be rendered.
    """
    special = special_words(tokenizer)
    forged = [i for i, message in enumerate(messages) if any(word in message["content"] for word in special)]
    marks = {i: f"\ue000{secrets.token_hex(8)}\ue001" for i in forged}
    marked = [{**m, "content": marks.get(i, m["content"])} for i, m in enumerate(messages)]
    own = template or (None if getattr(tokenizer, "chat_template", None) else _plain_template(tokenizer))
    text = templates.render(tokenizer, marked, own, tools=tools, header=header)
    pieces = [Piece(text)]
    for index, mark in marks.items():
        last = pieces.pop()
        before, found, after = last.text.partition(mark)
        pieces += [Piece(before), Piece(messages[index]["content"], trusted=False), Piece(after)] if found else [last]
    return [piece for piece in pieces if piece.text]


def _plain_template(tokenizer: Any) -> str:
    return PLAIN_TEMPLATE if bos.added(tokenizer) is None else "{{ bos_token }}" + PLAIN_TEMPLATE


def encode(tokenizer: Any, pieces: Sequence[Piece]) -> list[int]:
    """Tokens of rendered pieces."""
    ids: list[int] = []
    for piece in pieces:
        options = {"add_special_tokens": False, "split_special_tokens": not piece.trusted}
        ids += tokenizer_files.encode(tokenizer, piece.text, **options)
    return ids


def skip(pieces: Sequence[Piece], count: int) -> list[Piece]:
    """The pieces without their first `count` characters."""
    rest = []
    for piece in pieces:
        if count < len(piece.text):
            rest.append(Piece(piece.text[count:], piece.trusted))
        count = max(0, count - len(piece.text))
    return rest


def take(pieces: Sequence[Piece], count: int) -> list[Piece]:
    """The first `count` characters of the pieces."""
    begin = []
    for piece in pieces:
        if count > 0:
            begin.append(Piece(piece.text[:count], piece.trusted))
        count -= len(piece.text)
    return begin


def special_words(tokenizer: Any) -> frozenset[str]:
    """Every text that the tokenizer turns into a special token."""
    added = getattr(tokenizer, "added_tokens_decoder", {}) or {}
    return frozenset(
        [str(word) for word in added.values() if getattr(word, "special", False)] + list(tokenizer.all_special_tokens)
    )


def checked_policy(name: str) -> Policy:
    """A context policy by its name.

    Raises:
        RequestError: There is none of that name.
    """
    for policy in get_args(Policy):
        if policy == name:
            return policy
    known = get_args(Policy)
    raise errors.RequestError(f"no context policy {name!r}{errors.suggest(name, known)} Known: {', '.join(known)}")


def fit(
    messages: list[dict[str, Any]],
    *,
    whole: Encoded,
    drop: Callable[[int, int], tuple[tuple[int, ...], tuple[int, ...]]],
    room: int,
    policy: Policy,
) -> Prompt:
    """A prompt of at most `room` tokens, by a policy.

    Args:
        messages: The chat.
        whole: The chat, encoded.
        drop: Tokens and positions of the chat without messages `i` to `j - 1`.
        room: Context length less the tokens to generate.
        policy: `error` drops nothing; `drop_oldest_turns` drops the oldest messages after the system prompt;
            `keep_first_and_last` keeps the first message after the system prompt too.

    Raises:
        ContextError: It does not fit, under `error`, or even with everything dropped that may be.
    """
    length = len(whole.tokens)
    if length <= room:
        return Prompt(whole.tokens, whole)
    head = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    keep = head + (policy == "keep_first_and_last")
    low, high = 1, max(0, len(messages) - 1 - keep)
    if policy != "error" and high:
        while low < high:
            middle = (low + high) // 2
            fits = len(drop(keep, keep + middle)[0]) <= room
            low, high = (low, middle) if fits else (middle + 1, high)
        tokens, positions = drop(keep, keep + low)
        if len(tokens) <= room:
            return Prompt(tokens, whole, positions, length - len(tokens))
    advice = (
        "choose a context policy (drop_oldest_turns, keep_first_and_last), shorten the messages or lower max_new_tokens"
        if policy == "error"
        else "even with every turn dropped that may be: shorten the messages or lower max_new_tokens"
    )
    raise errors.ContextError(f"the chat takes {length} tokens but only {room} fit beside the answer; {advice}")


def without(
    whole: Encoded, kept: Sequence[Piece], head: str, tokenizer: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens of a chat with messages left out of its middle, and where they stand in the whole chat.

    The kept text is a beginning and an end of the whole text, so its tokens are too, and keep their positions. Where
    the template makes something else of it, it is encoded anew, and the end aligned to the end.

    Args:
        whole: The whole chat.
        kept: The rendered chat without them.
        head: The rendered messages before the gap.
        tokenizer: The tokenizer.
    """
    text, long = "".join(piece.text for piece in kept), whole.text
    most = _shared(text, long)
    least = len(text) - _shared(text[::-1], long[::-1])
    if least <= most:
        gap = min(max(len(head), least), most)
        start = whole.tokens_before(gap, tokenizer)
        stop = whole.tokens_before(gap + len(long) - len(text), tokenizer)
        if start is not None and stop is not None:
            tokens = whole.tokens
            return (*tokens[:start], *tokens[stop:]), (*range(start), *range(stop, len(tokens)))
    tokens = tuple(encode(tokenizer, kept))
    first, shift = _shared(tokens, whole.tokens), max(0, len(whole.tokens) - len(tokens))
    return tokens, tuple(i if i < first else i + shift for i in range(len(tokens)))


def _shared(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Length of the common beginning."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        # Halves of surrogate pairs, which no tokenizer takes, become question marks.
        return content.encode(errors="replace").decode()
    if isinstance(content, Sequence):
        return _text("".join(_part(part) for part in content))
    raise errors.RequestError(f"a message's content must be text, got {type(content).__name__}")


def _part(part: Any) -> str:
    text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        kind = part.get("type", "no text") if isinstance(part, Mapping) else type(part).__name__
        raise errors.RequestError(f"a part of a message's content must be text, got {kind}")
    return text
