"""Where a model's tokenizer comes from: a folder, a GGUF file, or the hub."""

from pathlib import Path
from typing import Any

from sonde.core import errors
from sonde.models import checkpoint, downloads, folders, tokenizer_files, zoo
from sonde.models.gguf import tokenizer as gguf_tokenizer


def load(source: str | Path) -> Any:
    """The tokenizer of a folder, a GGUF file or a Hugging Face id.

    Raises:
        ModelError: There is none.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return gguf_tokenizer.load(path)
    try:
        folder = folders.Folder(path if path.is_dir() else downloads.fetch(str(source), weights=False))
    except (OSError, ValueError, RuntimeError, LookupError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise errors.ModelError(
            f"no folder, file or Hugging Face id {str(source)!r} with a tokenizer: {first}"
        ) from error
    with zoo.quiet():
        return tokenizer_files.read(folder, checkpoint.read_kind(folder))
