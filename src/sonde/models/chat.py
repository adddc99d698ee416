"""From messages to tokens: chat templates, untrusted text, and what happens when the context is full.

Message contents are untrusted: a text that spells a special token (`<|im_end|>`) is encoded as plain characters, so
neither a task nor a model can forge a turn. Nothing is ever truncated silently: a context policy chosen by name drops
whole messages, keeps the system prompt and the last message, and says how many tokens it dropped.
"""

import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from sonde.core import errors

Policy = Literal["error", "drop_oldest_turns", "keep_first_and_last"]
POLICIES = ("error", "drop_oldest_turns", "keep_first_and_last")
#: For tokenizers without a template of their own.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
Messages = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Part of a rendered chat; only trusted parts may contain special tokens."""

    text: str
    trusted: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """A chat that fits the context.

    Attributes:
        tokens: Its tokens.
        text: The rendered text.
        positions: Episode position of each token, or None if nothing was dropped.
        dropped: How many tokens were left out.
    """

    tokens: tuple[int, ...]
    text: str
    positions: tuple[int, ...] | None = None
    dropped: int = 0


def normalise(messages: Messages, system_prompt: str | None = None) -> list[dict[str, Any]]:
    """Plain copies of messages, contents as text, the system prompt first.

    Raises:
        RequestError: No messages, or one without a role.
    """
    plain = [{"role": "system", "content": system_prompt}] if system_prompt else []
    for message in messages:
        if "role" not in message:
            raise errors.RequestError(f"a message needs a role, got {dict(message)!r}")
        plain.append({**message, "content": _text(message.get("content"))})
    if not plain:
        raise errors.RequestError("a request needs at least one message")
    return plain


def render(
    tokenizer: Any, messages: Messages, *, tools: Sequence[Any] | None = None, template: str | None = None
) -> list[Piece]:
    """The chat as text, with the header of the answer; contents that spell special tokens marked as untrusted."""
    special = special_words(tokenizer)
    forged = [i for i, message in enumerate(messages) if any(word in message["content"] for word in special)]
    marks = {i: f"\ue000{secrets.token_hex(8)}\ue001" for i in forged}
    marked = [{**m, "content": marks.get(i, m["content"])} for i, m in enumerate(messages)]
    text = tokenizer.apply_chat_template(
        marked,
        tools=list(tools) if tools else None,
        chat_template=template or getattr(tokenizer, "chat_template", None) or PLAIN_TEMPLATE,
        add_generation_prompt=True,
        tokenize=False,
    )
    pieces = [Piece(text)]
    for index, mark in marks.items():
        last = pieces.pop()
        before, found, after = last.text.partition(mark)
        pieces += [Piece(before), Piece(messages[index]["content"], trusted=False), Piece(after)] if found else [last]
    return [piece for piece in pieces if piece.text]


def encode(tokenizer: Any, pieces: Sequence[Piece]) -> list[int]:
    """Tokens of rendered pieces."""
    ids: list[int] = []
    for piece in pieces:
        ids += tokenizer.encode(piece.text, add_special_tokens=False, split_special_tokens=not piece.trusted)
    return ids


def skip(pieces: Sequence[Piece], count: int) -> list[Piece]:
    """The pieces without their first `count` characters."""
    rest = []
    for piece in pieces:
        if count < len(piece.text):
            rest.append(Piece(piece.text[count:], piece.trusted))
        count = max(0, count - len(piece.text))
    return rest


def special_words(tokenizer: Any) -> frozenset[str]:
    """Every text that the tokenizer turns into a special token."""
    added = getattr(tokenizer, "added_tokens_decoder", {}) or {}
    return frozenset(
        [str(word) for word in added.values() if getattr(word, "special", False)] + list(tokenizer.all_special_tokens)
    )


def fit(
    messages: list[dict[str, Any]],
    tokenise: Callable[[list[dict[str, Any]]], tuple[tuple[int, ...], str]],
    *,
    room: int,
    policy: Policy,
) -> Prompt:
    """A prompt of at most `room` tokens, by a policy.

    Args:
        messages: The chat.
        tokenise: Tokens and text of a chat.
        room: Context length less the tokens to generate.
        policy: `error` drops nothing; `drop_oldest_turns` drops the oldest messages after the system prompt;
            `keep_first_and_last` keeps the first message after the system prompt too.

    Raises:
        ContextError: It does not fit, under `error`, or even with everything dropped that may be.
    """
    if policy not in POLICIES:
        raise errors.RequestError(f"no context policy {policy!r}{errors.suggest(policy, POLICIES)}; known: {POLICIES}")
    whole, text = tokenise(messages)
    if len(whole) <= room:
        return Prompt(whole, text)
    head = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    keep = head + (policy == "keep_first_and_last")
    most = max(0, len(messages) - 1 - keep)
    if policy != "error":
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            fits = len(tokenise(messages[:keep] + messages[keep + middle :])[0]) <= room
            low, high = (low, middle) if fits else (middle + 1, high)
        if most:
            tokens, text = tokenise(messages[:keep] + messages[keep + low :])
            if len(tokens) <= room:
                return Prompt(tokens, text, _positions(tokens, whole), len(whole) - len(tokens))
    advice = (
        "choose a context policy (drop_oldest_turns, keep_first_and_last), shorten the messages or lower max_new_tokens"
        if policy == "error"
        else "even with every turn dropped that may be: shorten the messages or lower max_new_tokens"
    )
    raise errors.ContextError(f"the chat takes {len(whole)} tokens but only {room} fit beside the answer; {advice}")


def _positions(kept: Sequence[int], whole: Sequence[int]) -> tuple[int, ...]:
    """Where the kept tokens stand in the whole chat: a shared beginning, and the rest aligned to the end."""
    first = next((i for i, (a, b) in enumerate(zip(kept, whole, strict=False)) if a != b), len(kept))
    shift = len(whole) - len(kept)
    return tuple(i if i < first else i + shift for i in range(len(kept)))


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)
    raise errors.RequestError(f"a message's content must be text, got {type(content).__name__}")
