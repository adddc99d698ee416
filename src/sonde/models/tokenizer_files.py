"""How is a tokenizer read from a folder that nobody has vouched for?

The files that tokenizers are made of, and no others, are copied into a scratch folder, each of bounded size; of
`tokenizer_config.json` only settings that are data are kept, and transformers reads that folder. So neither code nor paths
named in the original are ever seen. `tokenizer.json` is checked for what would make encoding explode: parts that multiply
a text, tokens without end. Costs the copy and one more reading of the JSON.
"""

import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sonde.core import errors
from sonde.models import folders

CONFIG, WHOLE, SPECIAL = "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json"
#: Classes of tokenizers whose `tokenizer.json` is all there is to know; transformers would put some families' own rules over it.
GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")
#: Files by name, and the most bytes of each.
FILES = {
    WHOLE: 64 * folders.MIB,
    CONFIG: 16 * folders.MIB,
    SPECIAL: folders.MIB,
    "added_tokens.json": 16 * folders.MIB,
    "vocab.json": 64 * folders.MIB,
    "merges.txt": 64 * folders.MIB,
    "vocab.txt": 64 * folders.MIB,
    "tokenizer.model": 64 * folders.MIB,
    "tekken.json": 64 * folders.MIB,
    "tiktoken.model": 64 * folders.MIB,
    "chat_template.jinja": folders.MIB,
}
#: Settings of tokenizer_config.json that are data. Every `…_token` is one too; special_tokens_map.json, which transformers puts
#: over them, has no other.
SETTINGS = frozenset(
    {
        "add_bos_token",
        "add_eos_token",
        "add_prefix_space",
        "added_tokens_decoder",
        "chat_template",
        "clean_up_tokenization_spaces",
        "do_lower_case",
        "errors",
        "legacy",
        "model_max_length",
        "padding_side",
        "spaces_between_special_tokens",
        "split_special_tokens",
        "strip_accents",
        "tokenize_chinese_chars",
        "tokenizer_class",
        "truncation_side",
        "unk_id",
        "use_default_system_prompt",
    }
)
TOKENS = frozenset({"additional_special_tokens", "extra_special_tokens"})
#: Above every vocabulary that was seen.
MOST_TOKENS = 2**21
#: What is added to a vocabulary is searched for in every text, by a table that takes a hundred bytes for each letter.
MOST_ADDED, MOST_LETTERS = 2**16, 2**20
#: How many times longer a text may become.
MOST_GROWTH = 10_000
LARGEST_PROCESSOR = 2**16
_CLASS = re.compile(r"\w*Tokenizer(Fast)?|TokenizersBackend|PythonBackend|SentencePieceBackend")


def read(folder: folders.Folder, config: Any) -> Any:
    """The tokenizer in a folder.

    Args:
        folder: The folder.
        config: The model's configuration, which says what is made of files that do not; None if there is none.

    Raises:
        ModelError: There is none, or its files are not what they must be.
    """
    try:
        return _read(folder, config)
    except errors.ModelError as error:
        raise errors.ModelError(
            f"{error}; pass tokenizer=…, a tokenizer or the folder, GGUF file or hub name of one"
        ) from error.__cause__


def _read(folder: folders.Folder, config: Any) -> Any:
    import transformers

    with tempfile.TemporaryDirectory() as stage, folders.explained(f"the tokenizer of {folder.path} cannot be read"):
        settings = _settings(folder.json(CONFIG, most=FILES[CONFIG]) or {})
        for name, content in _contents(folder):
            (Path(stage) / name).write_bytes(content)
        for name, kept in (
            (CONFIG, settings),
            (SPECIAL, _kept(folder.json(SPECIAL, most=FILES[SPECIAL]) or {}, TOKENS)),
        ):
            (Path(stage) / name).write_text(json.dumps(kept), encoding="utf-8")
        whole = settings.get("tokenizer_class") in GENERIC and (Path(stage) / WHOLE).is_file()
        kind: Any = transformers.PreTrainedTokenizerFast if whole else transformers.AutoTokenizer
        own = {} if whole else {"config": config}
        tokenizer = kind.from_pretrained(
            stage, trust_remote_code=False, local_files_only=True, mistral_format=False, **own
        )
        if not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
            raise errors.ModelError(f"its tokenizer is none: {type(tokenizer).__name__}")
        # Where a class's files are missing, transformers makes up a tokenizer of special tokens alone.
        if len(tokenizer) <= len(set(tokenizer.all_special_tokens)):
            raise errors.ModelError("it has special tokens only: files are missing")
        tokenizer.name_or_path = str(folder.path)
        tokenizer.decode(tokenizer.encode("Is it one?"))
        return tokenizer


def is_class(name: object) -> bool:
    """Whether this can be the name of a tokenizer class."""
    return isinstance(name, str) and _CLASS.fullmatch(name) is not None


def encode(tokenizer: Any, text: str, **options: Any) -> list[int]:
    """Tokens of a text.

    Raises:
        ModelError: The tokenizer fails at it; the regular expressions of some do at some texts.
    """
    with folders.explained("the tokenizer cannot encode this text"):
        return tokenizer.encode(text, **options)


def decode(tokenizer: Any, tokens: Sequence[int], **options: Any) -> str:
    """Text of tokens.

    Raises:
        ModelError: The tokenizer fails at them.
    """
    with folders.explained("the tokenizer cannot decode these tokens"):
        return tokenizer.decode(list(tokens), **options)


def _contents(folder: folders.Folder) -> Iterator[tuple[str, bytes]]:
    found = False
    for name, most in FILES.items():
        content = folder.read(name, most=most) if name not in (CONFIG, SPECIAL) else None
        if content is None:
            continue
        found = found or not name.startswith(("added", "chat"))
        if name.endswith(".json"):
            _check(name, folder.json(name, most=most))
        yield name, content
    if not found:
        raise errors.ModelError(f"there is none: it needs {WHOLE}, tokenizer.model or vocab.json")


def _kept(found: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key in known or key.endswith("_token")}


def _settings(found: Mapping[str, Any]) -> dict[str, Any]:
    kept = _kept(found, SETTINGS | TOKENS)
    named = kept.get("tokenizer_class")
    if named is not None and not is_class(named):
        raise errors.ModelError(f"{CONFIG} names the tokenizer class {named!r:.80}, which is none")
    _check_numbers(CONFIG, kept.get("added_tokens_decoder") or {})
    return kept


def _check(name: str, content: Any) -> None:
    if name == WHOLE:
        model = content.get("model")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        _check_numbers(name, vocabulary.values() if isinstance(vocabulary, dict) else ())
        added = [one for one in content.get("added_tokens") or [] if isinstance(one, dict)]
        _check_numbers(name, [one.get("id") for one in added])
        letters = sum(len(str(one.get("content"))) for one in added)
        if len(added) > MOST_ADDED or letters > MOST_LETTERS:
            raise errors.ModelError(f"{name} adds {len(added):,} tokens of {letters:,} letters to its vocabulary")
        if len(json.dumps(content.get("post_processor"))) > LARGEST_PROCESSOR:
            raise errors.ModelError(f"the post_processor in {name} is too large")
        for part in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
            growth = math.prod(_growths(content.get(part)))
            if growth > MOST_GROWTH:
                raise errors.ModelError(f"the {part} in {name} would make texts {growth:,} times longer")
    elif name in ("added_tokens.json", "vocab.json"):
        _check_numbers(name, content.values())


def _check_numbers(name: str, ids: Any) -> None:
    for one in ids:
        if not str(one).isdecimal() or int(one) >= MOST_TOKENS:
            raise errors.ModelError(f"{name} has a token of number {one!r:.40}: expected one below {MOST_TOKENS:,}")


def _growths(part: Any) -> Iterator[int]:
    """By how much each thing in a tokenizer's part can multiply a text."""
    if isinstance(part, dict):
        content = part.get("content", part.get("prepend"))
        if part.get("type") in ("Replace", "Prepend") and isinstance(content, str):
            pattern = part.get("pattern")
            found = pattern.get("String") if isinstance(pattern, dict) else None
            # A regular expression, or an empty text, is found between any two letters.
            yield math.ceil(len(content) / len(found)) or 1 if isinstance(found, str) and found else len(content) + 1
        single = part.get("single")
        yield max(1, len(single)) if isinstance(single, list) else 1
        for below in part.values():
            yield from _growths(below)
    elif isinstance(part, list):
        for below in part:
            yield from _growths(below)
