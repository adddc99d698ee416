"""What a GGUF file says of its tokenizer, read once and checked.

Keys that are absent have the values that llama.cpp, whose format this is, gives them.
"""

import dataclasses
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sonde.core import errors
from sonde.models.gguf import splits

SENTENCEPIECE, BYTE_LEVEL = "llama", "gpt2"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
ENCODERS = ("bert", "t5")
_LISTS = ("tokens", "scores", "token_type", "merges")
_NAMED = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}


@dataclasses.dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokenizer that a file describes.

    Attributes:
        kind: `llama`, SentencePiece merges by score, or `gpt2`, byte-level merges from a list.
        split: How text is cut up before merging; for `gpt2` only.
        tokens: Every token as the file spells it, in the order of the ids.
        types: Type of each token: normal, unknown, control, user-defined, unused or byte.
        scores: Score of each token, for `llama`.
        merges: Pairs to merge, first come first, for `gpt2`.
        special: Ids by role: `bos`, `eos`, `unk`, `pad`.
        ends: Ids that end an answer.
        add_bos: Whether BOS is put before a text.
        add_eos: Whether EOS is put after a text.
        add_space_prefix: Whether a space is put before a text.
        chat_template: The file's own, or None.
    """

    kind: str
    split: splits.Split | None
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...]
    merges: tuple[tuple[str, str], ...]
    special: Mapping[str, int]
    ends: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    chat_template: str | None


def read(path: Path) -> Vocabulary:
    """Reads a file's tokenizer.

    Raises:
        ModelError: It is no GGUF file, its tokenizer is of a kind that is not known here, or contradicts itself.
    """
    from transformers.integrations.gguf import reader

    try:
        found, _ = reader.read_gguf_metadata(str(path), [f"tokenizer.ggml.{name}" for name in _LISTS])
    except (OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError, struct.error) as error:
        raise errors.ModelError(f"cannot read {path} as a GGUF file: {type(error).__name__}: {error}") from error
    return _vocabulary(_Keys(path.name, found))


class _Keys:
    """The metadata of a file, by key and type."""

    def __init__(self, name: str, found: Mapping[str, Any]) -> None:
        self.name, self.found = name, found

    def one(self, key: str, kind: type, default: Any = None) -> Any:
        """A value of a type, or the default where the file says nothing."""
        value = self.found.get(f"tokenizer.{key}", default)
        if value is not default and not (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
            raise self.wrong(f"tokenizer.{key} is {value!r:.80}, expected {kind.__name__}")
        return value

    def many(self, key: str, kind: type, length: int | None = None) -> tuple[Any, ...]:
        """A list of a type, empty where the file says nothing."""
        values = self.one(f"ggml.{key}", list, ())
        if any(not isinstance(value, kind) for value in values):
            raise self.wrong(f"tokenizer.ggml.{key} holds something else than {kind.__name__}")
        if values and length is not None and len(values) != length:
            raise self.wrong(f"tokenizer.ggml.{key} has {len(values)} entries for {length} tokens")
        return tuple(values)

    def wrong(self, what: str) -> errors.ModelError:
        """An error that says what to do."""
        return errors.ModelError(f"{self.name}: {what}. Pass tokenizer=… to load the model with another tokenizer")


def _vocabulary(keys: _Keys) -> Vocabulary:
    kind, architecture = keys.one("ggml.model", str), keys.found.get("general.architecture")
    if kind in ENCODERS:
        raise errors.ModelError(f"{keys.name} holds an encoder ({architecture}), which is not a causal language model")
    if kind not in (SENTENCEPIECE, BYTE_LEVEL):
        raise keys.wrong(f"its tokenizer is of kind {kind!r}; known are {SENTENCEPIECE!r} and {BYTE_LEVEL!r}")
    tokens = keys.many("tokens", str)
    if len(set(tokens)) != len(tokens) or not tokens:
        raise keys.wrong(f"{len(tokens) - len(set(tokens))} of its {len(tokens)} tokens are there twice")
    split = _split(keys) if kind == BYTE_LEVEL else None
    special = _special(keys, kind, len(tokens))
    vocabulary = Vocabulary(
        kind=kind,
        split=split,
        tokens=tokens,
        types=keys.many("token_type", int, len(tokens)) or (NORMAL,) * len(tokens),
        scores=keys.many("scores", float, len(tokens)),
        merges=tuple(_pair(keys, merge) for merge in keys.many("merges", str)),
        special=special,
        ends=frozenset(_id(keys, key, len(tokens)) for key in ("eos", "eot", "eom")) - {None},  # pyright: ignore[reportArgumentType]
        add_bos=keys.one("ggml.add_bos_token", bool, split.bos if split else True),
        add_eos=keys.one("ggml.add_eos_token", bool, False),
        add_space_prefix=keys.one("ggml.add_space_prefix", bool, kind == SENTENCEPIECE) and kind == SENTENCEPIECE,
        chat_template=keys.one("chat_template", str),
    )
    if kind == SENTENCEPIECE and not vocabulary.scores:
        raise keys.wrong("it has no scores, by which its tokens are merged")
    for role, added in (("bos", vocabulary.add_bos), ("eos", vocabulary.add_eos)):
        if added and role not in special:
            raise keys.wrong(f"it says that {role.upper()} is added to every text, but names none")
    return vocabulary


def _split(keys: _Keys) -> splits.Split:
    name = keys.one("ggml.pre", str, "default")
    if name not in splits.SPLITS:
        known = splits.SPLITS
        raise keys.wrong(f"no pre-tokenizer {name!r}{errors.suggest(name, known)} Known: {', '.join(known)}")
    return splits.SPLITS[name]


def _special(keys: _Keys, kind: str, count: int) -> dict[str, int]:
    usual = {"unk": 0, "bos": 1, "eos": 2} if kind == SENTENCEPIECE and count > 2 else {}
    said = {role: _id(keys, key, count) for key, role in _NAMED.items()}
    return usual | {role: found for role, found in said.items() if found is not None}


def _id(keys: _Keys, key: str, count: int) -> int | None:
    found = keys.one(f"ggml.{key}_token_id", int)
    if found is not None and not 0 <= found < count:
        raise keys.wrong(f"tokenizer.ggml.{key}_token_id is {found}, but there are {count} tokens")
    return found


def _pair(keys: _Keys, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise keys.wrong(f"{merge!r:.80} is no merge of two tokens")
    return left, right
