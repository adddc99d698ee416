"""Texts to token ids and back, as a model's tokenizer has it.

Special tokens are added as the tokenizer was configured, which for most models means a BOS exactly where it was trained
with one. `prepend_bos` overrules it, as in TransformerLens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sonde.core import errors
from sonde.models import bos, idioms, tokenizer_files
from sonde.models import config as model_config

Tokens = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Tensor


class Texts:
    """The part of a Model that knows texts."""

    hf: Any
    tokenizer: Any
    cfg: model_config.ModelConfig

    def check_open(self) -> None:
        """Refuses a model that was closed."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.hf.parameters()).device

    @idioms.explained
    def to_tokens(self, text: Tokens, prepend_bos: bool | None = None) -> Tensor:
        """Token ids, `batch pos`, of a text, of several texts of equal length, of ids, or of a tensor of ids.

        Args:
            text: What to encode; ids are checked and left as they are.
            prepend_bos: Whether a text starts with the BOS token; as the tokenizer does it if left out.

        Raises:
            RequestError: It is no text and no ids of this model, it is empty, or the tokenizer has no BOS token.
            ContextError: It is too long.
        """
        self.check_open()
        if isinstance(text, str):
            text = self._encode(text, prepend_bos)
        elif not isinstance(text, Tensor) and len(text) and isinstance(text[0], str):
            rows = [self._encode(str(one), prepend_bos) for one in text]
            if len({len(row) for row in rows}) > 1:
                raise errors.RequestError(
                    f"these texts have {[len(row) for row in rows]} tokens: pad them yourself and pass attention_mask, "
                    "or run them one at a time"
                )
            text = torch.tensor(rows)
        try:
            given = torch.as_tensor(text, device=self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise no_tokens(text, " in rows of equal length") from error
        if given.numel() == 0:
            raise errors.RequestError("the prompt is empty: give at least one token (a BOS token will do)")
        whole = not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)
        if not whole or given.ndim not in (1, 2):
            raise no_tokens(text, ", `pos` or `batch pos`")
        tokens = given.long() if given.ndim == 2 else given.long()[None]
        if tokens.shape[1] > self.cfg.n_ctx:
            raise errors.ContextError(f"{tokens.shape[1]} tokens do not fit the context of {self.cfg.n_ctx}")
        least, most = int(tokens.min()), int(tokens.max())
        if least < 0 or most >= self.cfg.d_vocab:
            raise errors.RequestError(f"token ids must be 0 to {self.cfg.d_vocab - 1}, got {least} to {most}")
        return tokens

    @idioms.explained
    def to_str_tokens(self, text: Tokens, prepend_bos: bool | None = None) -> list[str] | list[list[str]]:
        """Each token of a text, or of ids, as text; a list per text for several texts or `batch pos` ids."""
        if not isinstance(text, str | Tensor) and len(text) and isinstance(text[0], str):
            return [self._pieces(self.to_tokens(str(one), prepend_bos)[0]) for one in text]
        rows = [self._pieces(row) for row in self.to_tokens(text, prepend_bos)]
        return rows if len(rows) > 1 else rows[0]

    def to_string(self, tokens: int | Sequence[int] | Sequence[Sequence[int]] | Tensor) -> str | list[str]:
        """The text of token ids; a list of texts for `batch pos` ids."""
        given = torch.as_tensor(tokens)
        found = [self._decode(row) for row in self.to_tokens(given[None] if given.ndim == 0 else given)]
        return found if given.ndim == 2 else found[0]

    def to_single_token(self, text: str) -> int:
        """The id of a text that is one token.

        Raises:
            RequestError: It is not one token.
        """
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if len(ids) != 1:
            pieces = self._pieces(torch.tensor(ids, dtype=torch.long))
            raise errors.RequestError(f"{text!r} is not one token but {len(ids)}: {pieces}")
        return ids[0]

    def to_single_str_token(self, token: int) -> str:
        """The text of one token id."""
        return self._pieces(self.to_tokens([token])[0])[0]

    def _encode(self, text: str, prepend_bos: bool | None) -> list[int]:
        ids = tokenizer_files.encode(self.tokenizer, text)
        if prepend_bos is None:
            return ids
        if prepend_bos and self.tokenizer.bos_token_id is None:
            raise errors.RequestError("this tokenizer has no BOS token to prepend: leave out prepend_bos")
        has_it = bos.added(self.tokenizer) is not None
        if prepend_bos and not has_it:
            return [self.tokenizer.bos_token_id, *ids]
        return ids[1:] if has_it and not prepend_bos else ids

    def _pieces(self, row: Tensor) -> list[str]:
        return [self._decode(token[None]) for token in row]

    def _decode(self, row: Tensor) -> str:
        return self.tokenizer.decode(row.tolist(), clean_up_tokenization_spaces=False)


def no_tokens(got: Any, form: str = "") -> errors.RequestError:
    """An error for what is neither text nor token ids."""
    return errors.RequestError(f"expected a text, or token ids{form}, got {got!r:.80}")
