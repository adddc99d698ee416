"""Where a model's tokenizer comes from: a folder, a GGUF file, the hub, or the caller."""

import json
from pathlib import Path
from typing import Any

import transformers

from sonde.core import errors
from sonde.models import hub
from sonde.models.gguf import tokenizer

WHOLE = ("TokenizersBackend", "PreTrainedTokenizerFast")


def load(source: str | Path, **options: Any) -> Any:
    """The tokenizer of a folder, a GGUF file or a Hugging Face id.

    Args:
        source: Where it is.
        **options: For `from_pretrained`; found out if left out.

    Raises:
        ModelError: There is none.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return tokenizer.load(path)
    options = options or hub.options(str(path) if path.is_dir() else str(source))
    kind = transformers.PreTrainedTokenizerFast if _is_whole(path) else transformers.AutoTokenizer
    try:
        made = kind.from_pretrained(path if path.is_dir() else source, **options)
    except Exception as error:  # the tokenizers library raises bare ones
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise _missing(source, f"cannot be read ({first})") from error
    # Where a class's files are missing, transformers makes up a tokenizer of special tokens alone.
    if len(made) <= len(set(made.all_special_tokens)):
        raise _missing(source, "is missing")
    return made


def _is_whole(folder: Path) -> bool:
    """Whether a folder's `tokenizer.json` is all there is to know; transformers would put some families' own rules over it."""
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("tokenizer_class") in WHOLE and (folder / "tokenizer.json").is_file()


def _missing(source: str | Path, what: str) -> errors.ModelError:
    return errors.ModelError(
        f"the tokenizer of {source} {what}: pass tokenizer=…, a tokenizer or the folder, GGUF file or hub name of one"
    )
