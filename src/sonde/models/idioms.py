"""What people who come from TransformerLens or nnsight type, and how it is said here.

Words with the same meaning simply work. Each other one is a row of a table below, and its error says what to write
instead: an AttributeError for an attribute, so that `hasattr` stays honest, and a RequestError for an argument. See
`docs/coming-from.md`. Costs nothing until a name is missing.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import NoReturn, ParamSpec, TypeVar

from sonde.core import errors

P = ParamSpec("P")
R = TypeVar("R")


def _rows(groups: Mapping[str, str]) -> dict[str, str]:
    """A row per word, from what to say for several words at once."""
    return {name: way for names, way in groups.items() for name in names.split()}


_HOOKS = (
    "write `with model.hooks([(site, fn)]):` for a block, `sonde.InterventionManager(model)` for an episode; both end by "
    "themselves"
)
_RECORD = "write `model.run_with_cache(tokens, sites)`, or `with sonde.ActivationCapture(model, sites):` for an episode"
_LOAD = "write `sonde.load(name, device=…, dtype=…)`; weights stay as transformers has them, nothing is folded"
_NO_FOLDING = "Sonde runs the weights as transformers has them and folds nothing; `analysis.lenses` accounts for norms"
_FLAG = "there is nothing to switch on: name the Site, such as 'blocks.*.attn.hook_result'"
_MODULE = "write `model.hf` for the bare network, and call the method there"
_TRACE = (
    "Sonde has no tracing context: record with `model.run_with_cache(tokens, sites)`, change with "
    "`model.run_with_hooks(tokens, [(site, fn)])` or `interventions=[…]`; values are there at once and need no save()"
)
_LENSES = "write `from sonde.analysis import lenses`, and `lenses.{}`"
_ATTRIBUTE = _LENSES.format("direct_logit_attribution(model, tokens, answer, other)")
_STACK = "add up what you recorded, such as `cache.stack_activation('attn_out')`; for shares of a logit, " + _ATTRIBUTE

#: Attributes of a Model.
MODEL = _rows(
    {
        "add_hook add_perma_hook check_hooks_to_add": _HOOKS,
        "reset_hooks remove_all_hook_fns clear_contexts clear_hook_registry": "hooks end with their `with` block: nothing is left",
        "add_caching_hooks get_caching_hooks cache_all cache_some": _RECORD,
        "hook_dict hook_points hook_aliases get_hook_point list_hooks block_hooks mod_dict": "write `model.site_names`",
        "from_pretrained from_pretrained_no_processing boot_transformers boot_native boot_tl_legacy": _LOAD,
        "list_supported_models check_model_support": "write `from sonde.models import families`, and `families.FAMILIES`; a new architecture is one row",
        "enable_compatibility_mode process_weights fold_layer_norm center_writing_weights center_unembed": _NO_FOLDING,
        "fold_value_biases process_weights_ refactor_factored_attn_matrices": _NO_FOLDING,
        "set_use_attn_result set_use_attn_in set_use_split_qkv_input set_use_hook_mlp_in": _FLAG,
        "blocks pos_embed": "write `model.W_Q[layer]` or `model.W_pos` for weights, 'blocks.0.hook_resid_post' for a Site, `model.hf`",
        "blocks_with block_submodules stack_params_for layer_types": "write `model.site_names`: every layer has the same Sites",
        "hook_embed hook_pos_embed": "name the Site: `model.run_with_cache(tokens, 'hook_embed')`, or `model.hooks([('hook_embed', fn)])`",
        "original_model": "write `model.hf`",
        "forward": "write `model(tokens)`",
        "loss_fn": "write `model(tokens, return_type='loss')`",
        "tokens_to_residual_directions": "write `model.W_U[:, model.to_single_token(text)]`",
        "get_token_position": "write `model.to_tokens(text)[0].tolist().index(model.to_single_token(word))`",
        "QK QK_for_attn_layers": "write `model.W_Q[layer, head] @ model.W_K[layer, head].T`; W_K has key-value heads",
        "OV OV_for_attn_layers": "write `model.W_V[layer, head] @ model.W_O[layer, head]`; W_V has key-value heads",
        "W_E_pos": "write `torch.cat([model.W_E, model.W_pos])`",
        "accumulated_bias": "add up `model.b_O` and `model.b_out`",
        "all_composition_scores composition_layer_indices": "multiply `model.W_V`, `model.W_O`, `model.W_Q` and `model.W_K`",
        "all_head_labels attn_head_labels": "write `f'L{layer}H{head}'` for `model.cfg.n_layers` and `model.cfg.n_heads`",
        "tl_parameters tl_named_parameters get_params": "write `model.W_Q`, `model.b_in`, …, or `model.hf.named_parameters()`",
        "n_params_total": "write `sum(p.numel() for p in model.hf.parameters())`",
        "init_weights": "write `sonde.load('tiny-gpt2')` for random weights",
        "input_to_embed": "write `model.to_tokens(text)`",
        "generate_stream hf_generate": "write `model.generate(prompt, max_new_tokens=…)`, or `model.hf.generate(…)`",
        "diffusion_generate encoder_output predict_next_sentence to_sentence_pair_tokens prepare_multimodal_inputs": (
            "Sonde reads causal language models only"
        ),
        "to cuda cpu mps half float double bfloat16": _LOAD,
        "eval train apply parameters named_parameters buffers named_buffers modules named_modules": _MODULE,
        "children named_children state_dict load_state_dict zero_grad requires_grad_ get_submodule": _MODULE,
        "register_forward_hook register_forward_pre_hook register_full_backward_hook register_backward_hook": _HOOKS,
        "set_tokenizer": "write `model.tokenizer = …`",
        "config": "write `model.cfg` for sizes, `model.hf.config` for all of it",
        "trace scan session invoke iter all output outputs input inputs skip pipe save": _TRACE,
        "edit clear_edits": "Sonde changes no model for good: " + _HOOKS,
        "next all": "choose by step and phase: `sonde.Steer(…, steps=[0], phase='decode')`, or a hook's `hook.positions`",
        "interleave dispatch devices parent root get attn_implementation": _MODULE,
    }
)
#: Attributes of an ActivationCache, which is a dict of tensors.
CACHE = _rows(
    {
        "cache_dict": "a cache is a dict of tensors by itself",
        "model": "a cache holds values only; keep the Model yourself",
        "remove_batch_dim apply_slice_to_batch_dim": "index the values: `cache['resid_post', 0][0]`",
        "to": "move the values: `{name: value.to(device) for name, value in cache.items()}`",
        "toggle_autodiff": "recorded values carry no gradients",
        "save": "write `safetensors.torch.save_file(dict(cache), path)`; episodes are stored by `sonde.ActivationCapture`",
        "logit_attrs apply_ln_to_stack get_full_resid_decomposition": _ATTRIBUTE,
        "logit_lens accumulated_resid": _LENSES.format("logit_lens(model, tokens)")
        + ", or `cache.stack_activation('resid_pre')`",
        "decompose_resid": _STACK,
        "stack_head_results compute_head_results": "record 'blocks.*.attn.hook_result' and write `cache.stack_activation('result')`",
        "stack_neuron_results get_neuron_results": "multiply `cache['post', layer]` with `model.W_out[layer]`",
        "ssm_layers compute_ssm_state compute_ssm_effective_attention": "Sonde reads attention models only",
        "value": "recorded values are there at once: use them as tensors",
    }
)
#: Attributes of a ModelConfig.
CONFIG = _rows(
    {
        "device": "write `model.device`",
        "dtype": "write `model.hf.dtype`",
        "default_prepend_bos": "write `model.to_tokens(text, prepend_bos=True)`; a tokenizer adds what it was configured to add",
        "use_attn_result use_split_qkv_input use_attn_in use_hook_mlp_in": _FLAG,
        "layer_norm_folding": _NO_FOLDING,
        "gated_mlp": "write `hasattr(model, 'W_gate')`",
        "attn_only": "every family of Sonde has MLPs",
        "d_vocab_out": "write `model.cfg.d_vocab`",
        "tokenizer_name": "write `model.tokenizer.name_or_path`",
        "positional_embedding_type uses_rms_norm eps act_fn normalization_type num_experts experts_per_token final_rms": (
            "write `model.hf.config` for what transformers knows"
        ),
    }
)
#: Attributes of the package.
PACKAGE = _rows(
    {
        "HookedTransformer TransformerBridge LanguageModel NNsight TransformersModel HookedRootModule": (
            "write `sonde.load(name)`, or `sonde.as_model(…)` for a model of another library that you have already"
        ),
        "ActivationCache": "`model.run_with_cache(tokens)` returns one",
        "HookPoint": "name the Site: `model.site_names`",
        "FactoredMatrix": "multiply the weights: `model.W_V[layer, head] @ model.W_O[layer, head]`",
        "utils": "Site names are plain text, or `str(sonde.Site('attn.hook_z', 3))`; a cache takes `cache['z', 3]`",
        "patching": "write `from sonde.analysis import tracing`, or `sonde.Patch(values=…)`",
        "trace session save": _TRACE,
    }
)
_SAMPLING = "write `temperature=0` (the default) for the most likely token, above 0 to draw"
_HELD = "hooks end with their block and nothing else is touched: leave it out"
#: Arguments of a Model's methods.
ARGUMENTS = _rows(
    {
        "prepend_bos": "write `model.to_tokens(text, prepend_bos=…)` and pass the tokens",
        "return_type": "write `model(tokens, return_type=…)` for the loss",
        "truncate": "a text that does not fit is an error: cut the tokens yourself",
        "move_to_device": "tokens are where the weights are: `model.device`",
        "padding_side": "pad the tokens yourself and pass `attention_mask`; `generate` takes texts of any length",
        "return_cache_object": "a cache is a dict: `dict(cache)`",
        "remove_batch_dim": "index the values: `cache['resid_post', 0][0]`",
        "reset_hooks_end clear_contexts reset_hooks_start": _HELD,
        "bwd_hooks incl_bwd": "gradients are not recorded: write `sonde circuits find --method eap`, or autograd on `model.hf`",
        "stop_at_layer start_at_layer": "name the Sites: only those are recorded; `sonde.LayerOrder` leaves layers out",
        "pos_slice": "index the values: `cache['resid_post', 0][:, -1]`",
        "past_kv_cache past_key_values use_past_kv_cache": "the engine keeps keys and values by itself: leave it out",
        "labels": "the loss is that of the next tokens; compute others from the logits",
        "do_sample": _SAMPLING,
        "freq_penalty frequency_penalty repetition_penalty num_beams": "`generate` takes temperature, top_p, top_k, min_new_tokens",
        "eos_token_id stop_at_eos": "write `stop=('text',)`, or `min_new_tokens=…` against an early end",
        "verbose": "`generate` shows nothing: leave it out",
        "input": "the prompt is the first argument, without a name",
        "remote": "Sonde runs here",
    }
)


def missing(owner: object, name: str, table: Mapping[str, str], *, bare: object = None) -> AttributeError:
    """An error that says how a word of another library is said here.

    Args:
        owner: What has no such attribute; for a module or class, what to call it.
        name: The attribute.
        table: The words that are known.
        bare: A network whose attributes are had through `model.hf`.
    """
    way = table.get(name)
    if way is None and bare is not None and not name.startswith("_") and hasattr(bare, name):
        way = f"the bare network has it: write `model.hf.{name}`"
    kind = owner if isinstance(owner, str) else f"{type(owner).__name__!r} object"
    told = f"{kind} has no attribute {name!r}{f'; {way}' if way else ''}"
    return AttributeError(told) if isinstance(owner, str) else AttributeError(told, name=name, obj=owner)


class Elsewhere:
    """A class attribute that is not there, and says what to write instead."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self.table = table

    def __set_name__(self, owner: type, name: str) -> None:
        """Learns what it is called."""
        self.name = name

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        """Refuses."""
        raise missing("type object 'Model'", self.name, self.table)


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """Answers arguments that only other libraries take with what to write instead."""
    own = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs.keys() - own.keys():
            if name in ARGUMENTS:
                word = function.__name__.replace("__call__", "a Model")
                raise errors.RequestError(f"{word} takes no {name!r}: {ARGUMENTS[name]}")
        return function(*args, **kwargs)

    return call
