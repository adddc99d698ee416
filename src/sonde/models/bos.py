"""Does a prompt begin as the model's texts do? Many models answer nonsense where the BOS they learned is missing.

A text is encoded with the BOS its tokenizer adds, and a chat begins with it. Tokens are taken as they come: where they
lack BOS, or have it twice, one warning per model is logged.
"""

import functools
import logging
from collections.abc import Iterable, Sequence
from typing import Any

_log = logging.getLogger(__name__)


def added(tokenizer: Any) -> int | None:
    """The BOS token, if the tokenizer puts one before every text."""
    bos = getattr(tokenizer, "bos_token_id", None)
    return bos if bos is not None and tokenizer.encode("")[:1] == [bos] else None


class Watch:
    """Looks at the beginnings of a model's prompts until there is something to say."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._tokenizer, self._name, self._said = tokenizer, name, False

    @functools.cached_property
    def _bos(self) -> int | None:
        return added(self._tokenizer)

    def see(self, prompts: Iterable[Sequence[int]]) -> None:
        """Warns if a prompt lacks BOS, or has it twice; once."""
        if self._said or self._bos is None:
            return
        bos = self._bos
        counts = {_leading(prompt, bos) for prompt in prompts if len(prompt)}
        self._said = bool(counts - {1})
        if 0 in counts:
            _log.warning(
                "a prompt for %s lacks BOS (token %d), which its tokenizer puts before every text: put it first",
                self._name,
                bos,
            )
        elif self._said:
            _log.warning("a prompt for %s begins with BOS (token %d) more than once: take one away", self._name, bos)


def _leading(prompt: Sequence[int], bos: int) -> int:
    return next((count for count, token in enumerate(prompt) if token != bos), len(prompt))
