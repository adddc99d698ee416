"""The numbers of a model, under the names TransformerLens users know."""

import dataclasses
from typing import TYPE_CHECKING, Any

from sonde.models import idioms


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and name of a loaded model.

    Attributes:
        sliding_window: Keys each query can see at most in the layers that have a window; None if none has.
        causal: False for bidirectional models: no KV reuse, no storing once.
    """

    model_name: str
    n_layers: int
    n_heads: int
    n_key_value_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    d_vocab: int
    n_ctx: int
    sliding_window: int | None = None
    causal: bool = True

    if not TYPE_CHECKING:  # which is to find misspelt names

        def __getattr__(self, name: str) -> Any:
            """Says where else to look for what TransformerLens keeps here."""
            raise idioms.missing(self, name, idioms.CONFIG)

    @classmethod
    def of_transformers(cls, config: Any, model_name: str) -> "ModelConfig":
        """Reads a transformers config."""
        d_model = config.hidden_size
        n_heads = config.num_attention_heads
        inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * d_model
        return cls(
            model_name=model_name,
            n_layers=config.num_hidden_layers,
            n_heads=n_heads,
            n_key_value_heads=getattr(config, "num_key_value_heads", None) or n_heads,
            d_model=d_model,
            d_head=getattr(config, "head_dim", None) or d_model // n_heads,
            d_mlp=inner,
            d_vocab=config.vocab_size,
            n_ctx=config.max_position_embeddings,
            sliding_window=getattr(config, "sliding_window", None),
            causal=not getattr(config, "use_bidirectional_attention", False),
        )
