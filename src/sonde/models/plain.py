"""A transformer without norms, for models whose weights are written by hand or trained to have a known circuit.

    hf = plain.PlainForCausalLM(plain.PlainConfig(vocab_size=20, hidden_size=12, num_hidden_layers=2))
    model = model.Model(hf, tokenizer)

Learned positions; queries, keys, values and output with biases; heads of any width; an MLP with ReLU or another
activation; causal or, with `use_bidirectional_attention`, looking both ways; logits of any width (`d_out`). Where other
families have norms there is `nn.Identity`, so that everything in this room that is written against family rows works.
transformers does the rest: saving, loading, attention kernels, masks, caches and generation.
"""

from typing import Any, ClassVar

import torch
import transformers
from huggingface_hub import dataclasses as hub_dataclasses
from torch import Tensor, nn
from transformers import activations, cache_utils, masking_utils, modeling_outputs, modeling_utils

MODEL_TYPE = "sonde_plain"


@hub_dataclasses.strict
class PlainConfig(transformers.PreTrainedConfig):
    """Sizes of a plain model.

    Attributes:
        d_out: Width of the logits; None for that of the vocabulary.
        head_dim: Width of a head; None to share the stream among the heads.
        use_bidirectional_attention: Every position sees all others.
    """

    model_type = MODEL_TYPE
    # transformers fills a config with more than its fields, which checkers of dataclasses do not expect.
    __no_type_check__: ClassVar[bool] = True
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (transformers reads it from the class)

    vocab_size: int = 32
    hidden_size: int = 16
    intermediate_size: int | None = None
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    head_dim: int | None = None
    max_position_embeddings: int = 64
    hidden_act: str = "relu"
    d_out: int | None = None
    use_bidirectional_attention: bool = False
    initializer_range: float = 0.2
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        """Fills in the sizes that follow from others."""
        self.head_dim = self.head_dim or max(1, self.hidden_size // self.num_attention_heads)
        self.intermediate_size = self.intermediate_size or 4 * self.hidden_size
        self.d_out = self.d_out or self.vocab_size
        super().__post_init__(**kwargs)


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float = 1.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention step by step, under the name by which transformers' modules call theirs."""
    scores = torch.matmul(query, key.transpose(-1, -2)) * scaling
    pattern = (scores if attention_mask is None else scores + attention_mask).softmax(dim=-1)
    return torch.matmul(pattern, value).transpose(1, 2), pattern


class PlainAttention(nn.Module):
    """Attention with a bias on every projection."""

    def __init__(self, config: PlainConfig, layer_idx: int) -> None:
        super().__init__()
        assert config.head_dim is not None
        self.config, self.layer_idx, self.head_dim = config, layer_idx, config.head_dim
        self.scaling = config.head_dim**-0.5
        self.num_key_value_groups = 1
        self.is_causal = not config.use_bidirectional_attention
        inner = config.num_attention_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, inner)
        self.k_proj = nn.Linear(config.hidden_size, inner)
        self.v_proj = nn.Linear(config.hidden_size, inner)
        self.o_proj = nn.Linear(inner, config.hidden_size)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """What the heads add to the stream."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (
            project(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for project in projections
        )
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        kernels = modeling_utils.ALL_ATTENTION_FUNCTIONS
        kernel: Any = kernels.get_interface(str(self.config._attn_implementation), eager_attention_forward)
        mixed, pattern = kernel(self, query, key, value, attention_mask, scaling=self.scaling, dropout=0.0, **kwargs)
        return self.o_proj(mixed.flatten(2)), pattern


class PlainMLP(nn.Module):
    """Two projections with an activation between."""

    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        assert config.intermediate_size is not None
        self.fc_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.act = activations.ACT2FN[config.hidden_act]
        self.fc_out = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """What the MLP adds to the stream."""
        return self.fc_out(self.act(self.fc_in(hidden_states)))


class PlainLayer(nn.Module):
    """Attention, then an MLP, each added to the stream."""

    def __init__(self, config: PlainConfig, layer_idx: int) -> None:
        super().__init__()
        self.input_layernorm = nn.Identity()
        self.self_attn = PlainAttention(config, layer_idx)
        self.post_attention_layernorm = nn.Identity()
        self.mlp = PlainMLP(config)

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        """The stream after the layer."""
        attended, _ = self.self_attn(self.input_layernorm(hidden_states), **kwargs)
        # The stream between is a tensor of its own, so that what is recorded or edited there is the stream itself.
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class PlainPreTrainedModel(transformers.PreTrainedModel):
    """What transformers must know of both classes below."""

    config_class = PlainConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True
    _no_split_modules = ["PlainLayer"]  # noqa: RUF012 (transformers reads it from the class)


class PlainModel(PlainPreTrainedModel):
    """Embeddings and layers."""

    def __init__(self, config: PlainConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList([PlainLayer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = nn.Identity()
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.embed_tokens

    def set_input_embeddings(self, value: Any) -> None:
        """Replaces it."""
        self.embed_tokens = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> modeling_outputs.BaseModelOutputWithPast:
        """The final stream."""
        stream = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if self.config.use_bidirectional_attention:
            past_key_values, use_cache = None, False  # what comes later changes what came before
        elif use_cache and past_key_values is None:
            past_key_values = cache_utils.DynamicCache(config=self.config)
        if position_ids is None:
            seen = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = (torch.arange(stream.shape[1], device=stream.device) + seen)[None]
        mask = self._mask(stream, attention_mask, past_key_values, position_ids)
        stream = stream + self.embed_positions(position_ids)
        cache = past_key_values if use_cache else None
        for layer in self.layers[: self.config.num_hidden_layers]:
            stream = layer(stream, attention_mask=mask, past_key_values=cache, position_ids=position_ids, **kwargs)
        return modeling_outputs.BaseModelOutputWithPast(last_hidden_state=self.norm(stream), past_key_values=cache)

    def _mask(self, stream: Tensor, attention_mask: Tensor | None, past: Any, positions: Any) -> Any:
        if self.config.use_bidirectional_attention:
            return masking_utils.create_bidirectional_mask(  # a mask in any case: without one, kernels are causal
                self.config, stream, attention_mask, allow_is_bidirectional_skip=False
            )
        return masking_utils.create_causal_mask(
            config=self.config,
            inputs_embeds=stream,
            attention_mask=attention_mask,
            past_key_values=past,
            position_ids=positions,
        )


class PlainForCausalLM(PlainPreTrainedModel, transformers.GenerationMixin):
    """A plain model with logits."""

    def __init__(self, config: PlainConfig) -> None:
        super().__init__(config)
        assert config.d_out is not None
        self.model = PlainModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.d_out)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The projection to the logits."""
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> modeling_outputs.CausalLMOutputWithPast:
        """Logits, and with labels the next-token loss."""
        found = self.model(input_ids, **kwargs)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(found.last_hidden_state[:, kept])
        loss: Any = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return modeling_outputs.CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=found.past_key_values)


def _register() -> None:
    transformers.AutoConfig.register(MODEL_TYPE, PlainConfig)
    transformers.AutoModelForCausalLM.register(PlainConfig, PlainForCausalLM)


_register()
