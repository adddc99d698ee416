"""What a forward pass gives back: logits, loss, and the values recorded on the way, by Site name."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sonde.core import errors, sites
from sonde.models import idioms


class ActivationCache(dict[str, Tensor]):
    """Recorded values by Site name, batch axis kept. They are copies: nothing changes them later.

    TransformerLens' short forms work too: `cache["resid_post", 0]`, `cache["pattern", -1]`, `cache["k6"]`.
    """

    def __init__(self, values: dict[str, Tensor], n_layers: int) -> None:
        """Keeps the values; the number of layers is what a negative layer is counted from."""
        super().__init__(values)
        self.n_layers = n_layers

    def __getitem__(self, key: Any) -> Tensor:
        """The values of a Site.

        Raises:
            CaptureError: It was not recorded.
        """
        name = key if key in self else sites.full_name(key, self.n_layers) or key
        if name not in self:
            raise errors.CaptureError(f"{name!r} was not recorded{errors.suggest(str(name), self)}")
        return super().__getitem__(name)

    if not TYPE_CHECKING:  # which is to find misspelt names

        def __getattr__(self, name: str) -> Any:
            """Says how another library's word is said here."""
            raise idioms.missing(self, name, idioms.CACHE)

    def stack_activation(self, name: str, layer: int = -1) -> Float[Tensor, "layer ..."]:
        """One Site's values at every layer before one; at all layers if it is -1."""
        count = self.n_layers if layer == -1 else layer
        return torch.stack([self[name, index] for index in range(count)])


class Logits(Tensor):
    """Logits that also answer to Site names.

    `run_with_cache` returns `logits, cache` as TransformerLens does. People unpack it the other way round too
    (`cache, _ = …`), so the first value can be asked for Sites as well. Every operation returns a plain tensor.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]
    cache: ActivationCache

    @classmethod
    def of(cls, logits: Tensor, cache: ActivationCache) -> "Logits":
        """Attaches a cache."""
        whole = logits.as_subclass(cls)
        whole.cache = cache
        return whole

    def __getitem__(self, index: Any) -> Tensor:
        """A Site's value for a name, the usual indexing otherwise."""
        first = index[0] if isinstance(index, tuple) and index else index
        return self.cache[index] if isinstance(first, str) else super().__getitem__(index)


def next_token_loss(
    logits: Float[Tensor, "batch pos d_vocab"],
    tokens: Int[Tensor, "batch pos"],
    attention_mask: Tensor | None = None,
    *,
    per_token: bool = False,
) -> Tensor:
    """Minus the log-probability of each next token, `batch pos-1`, or its mean; 0 and left out where there is padding."""
    found = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    counted = torch.ones_like(found, dtype=torch.bool)
    if attention_mask is not None:
        present = attention_mask.to(found.device).bool()
        counted = present[:, :-1] & present[:, 1:]
    found = found.where(counted, 0.0)
    return found if per_token else found.sum() / counted.sum()


def returned(
    kind: str | None, logits: Tensor, tokens: Tensor, attention_mask: Tensor | None, *, per_token: bool
) -> Tensor | tuple[Tensor, Tensor] | None:
    """What was asked for of one forward pass.

    Raises:
        RequestError: There is no such thing to return.
    """
    if kind not in ("logits", "loss", "both", None):
        raise errors.RequestError(f"return_type must be 'logits', 'loss', 'both' or None, got {kind!r}")
    if kind in ("logits", None):
        return None if kind is None else logits
    loss = next_token_loss(logits, tokens, attention_mask, per_token=per_token)
    return loss if kind == "loss" else (logits, loss)
