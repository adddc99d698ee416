"""Weights of a published model: TransformerLens' names and shapes, read into a network of transformers.

    config = published_weights.config(folder)                # checked: sizes, activation, norms, attention
    state = published_weights.state(folder, config)          # checked: names, shapes, finite numbers
    published_weights.plain(config, state)                   # a cased model: no norms; for `batched.joined`
    published_weights.gpt2(config, state)                    # an IOI model: LNPre, which is a norm without weights

Attention scores are divided by `attn_scale`. The models' authors made their configurations from those of other models, and the scale
came along: it is the root of the other model's head width. Here queries take the difference.

A folder may come from anyone: see `models.folders`. Costs the reading of the file.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import safetensors
import torch
from torch import Tensor

from sonde.bench import batched
from sonde.core import errors
from sonde.models import folders

CONFIG, MODEL = "ll_model_cfg.json", "ll_model.safetensors"
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu_pytorch_tanh"}
SIZES = ("n_layers", "n_heads", "d_model", "d_head", "d_mlp", "d_vocab", "n_ctx")
#: Above every size of a published model.
MOST = 100_000
#: What a model of these families does not have.
WITHOUT = (
    "parallel_attn_mlp", "gated_mlp", "attn_only", "use_local_attn", "scale_attn_by_inverse_layer_idx", "post_embedding_ln",
    "use_normalization_before_and_after", "num_experts",
)  # fmt: skip
#: Kept beside the weights: masks, and the number that stands for a masked score.
BUFFERS = (".attn.mask", ".attn.IGNORE")


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """What a published configuration says.

    Attributes:
        shape: Sizes.
        norm: `None`, or `LNPre`.
        eps: Of the norms.
        scale: What attention scores are divided by.
    """

    shape: batched.Shape
    norm: str | None
    eps: float
    scale: float


def config(folder: folders.Folder, *, norms: tuple[str | None, ...] = (None,)) -> Config:
    """The configuration in a folder.

    Raises:
        ModelError: There is none that can be read.
        RequestError: It is that of a model of another kind.
    """
    found, where = folder.json(CONFIG), folder.path / CONFIG
    if found is None:
        raise errors.ModelError(f"{folder.path} has no {CONFIG}")
    expected: dict[str, tuple[Any, ...]] = {
        "normalization_type": norms,
        "positional_embedding_type": (None, "standard"),
        "attention_dir": (None, "causal", "bidirectional"),
        "act_fn": tuple(ACTIVATIONS),
        "n_key_value_heads": (None, found.get("n_heads")),
        **dict.fromkeys(WITHOUT, (None, False, 0)),
        **{f"{name}_soft_cap": (None, 0.0, -1.0) for name in ("attn_scores", "output_logits")},
    }
    for name, known in expected.items():
        value = found.get(name)
        if not any(type(value) is type(one) and value == one for one in known):
            wanted = " or ".join(dict.fromkeys(map(str, known)))
            raise errors.RequestError(f"{where}: {name} is {value!r:.80}, expected {wanted}")
    sizes = {name: _size(found, name, where) for name in SIZES}
    out, positions = found.get("d_vocab_out", -1), sizes.pop("n_ctx")
    out = sizes["d_vocab"] if out in (None, -1) else _size(found, "d_vocab_out", where)
    shape = batched.Shape(
        **sizes, d_out=out, n_positions=positions, causal=found.get("attention_dir") != "bidirectional",
        activation=ACTIVATIONS[found["act_fn"]],
    )  # fmt: skip
    scale = _number(found, "attn_scale", -1.0, where)
    scale = 1.0 if found.get("use_attn_scale") is False else math.sqrt(shape.d_head) if scale == -1.0 else scale
    eps = _number(found, "eps", 1e-5, where)
    for name, value in (("attn_scale", scale), ("eps", eps)):
        if not 0 < value < math.inf:
            raise errors.RequestError(f"{where}: {name} is {value}, expected a number above 0")
    return Config(shape, found.get("normalization_type"), eps, scale)


def state(folder: folders.Folder, config: Config) -> dict[str, Tensor]:
    """The weights in a folder, as float32.

    Raises:
        ModelError: They cannot be read, are not finite, or are those of a model of other sizes.
    """
    path = folder.file(MODEL)
    if path is None:
        raise errors.ModelError(f"{folder.path} has no {MODEL}")
    with folders.explained(f"{path} is damaged"), safetensors.safe_open(str(path), framework="pt") as stored:
        there = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118 (it is no dictionary)
        there = {name: size for name, size in there.items() if not name.endswith(BUFFERS)}
        _check_names(there, config.shape)
        return {name: _finite(stored.get_tensor(name), name) for name in there}


def plain(config: Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model without norms under the names and in the shapes of `plain.PlainForCausalLM`."""
    found = {
        "model.embed_tokens.weight": state["embed.W_E"],
        "model.embed_positions.weight": state["pos_embed.W_pos"],
        "lm_head.weight": state["unembed.W_U"].T,
        "lm_head.bias": state["unembed.b_U"],
    }
    for layer in range(config.shape.n_layers):
        theirs, ours = f"blocks.{layer}", f"model.layers.{layer}"
        for letter in "QKV":
            weight, bias = _projection(config, state, f"{theirs}.attn", letter)
            at = f"{ours}.self_attn.{letter.lower()}_proj"
            found |= {f"{at}.weight": weight.T, f"{at}.bias": bias}
        found[f"{ours}.self_attn.o_proj.weight"] = state[f"{theirs}.attn.W_O"].flatten(0, 1).T
        found[f"{ours}.self_attn.o_proj.bias"] = state[f"{theirs}.attn.b_O"]
        for name, letter in (("fc_in", "in"), ("fc_out", "out")):
            found[f"{ours}.mlp.{name}.weight"] = state[f"{theirs}.mlp.W_{letter}"].T
            found[f"{ours}.mlp.{name}.bias"] = state[f"{theirs}.mlp.b_{letter}"]
    return found


def gpt2(config: Config, state: Mapping[str, Tensor]) -> Any:
    """A network of GPT-2's kind with these weights; its norms have none, and its logits have a bias.

    Raises:
        RequestError: GPT-2 has no such sizes.
    """
    import transformers

    shape = config.shape
    if shape.n_heads * shape.d_head != shape.d_model or shape.d_out != shape.d_vocab or not shape.causal:
        raise errors.RequestError(
            f"{shape.n_heads} heads of {shape.d_head} in a stream of {shape.d_model}, {shape.d_vocab} tokens and {shape.d_out} "
            "logits, are no model of GPT-2's kind, which is causal and shares the stream among its heads"
        )
    hf: Any = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=shape.d_vocab, n_positions=shape.n_positions, n_embd=shape.d_model, n_layer=shape.n_layers,
            n_head=shape.n_heads, n_inner=shape.d_mlp, activation_function=shape.activation, layer_norm_epsilon=config.eps,
            tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    hf.lm_head = torch.nn.Linear(shape.d_model, shape.d_out)
    found = {
        "transformer.wte.weight": state["embed.W_E"], "transformer.wpe.weight": state["pos_embed.W_pos"],
        "lm_head.weight": state["unembed.W_U"].T, "lm_head.bias": state["unembed.b_U"],
    }  # fmt: skip
    for layer in range(shape.n_layers):
        theirs, ours = f"blocks.{layer}", f"transformer.h.{layer}"
        weights, biases = zip(*(_projection(config, state, f"{theirs}.attn", letter) for letter in "QKV"), strict=True)
        found |= {
            f"{ours}.attn.c_attn.weight": torch.cat(weights, dim=1),
            f"{ours}.attn.c_attn.bias": torch.cat(biases),
        }
        found |= {f"{ours}.attn.c_proj.weight": state[f"{theirs}.attn.W_O"].flatten(0, 1)}
        found |= {f"{ours}.attn.c_proj.bias": state[f"{theirs}.attn.b_O"]}
        for name, letter in (("c_fc", "in"), ("c_proj", "out")):
            found[f"{ours}.mlp.{name}.weight"] = state[f"{theirs}.mlp.W_{letter}"]
            found[f"{ours}.mlp.{name}.bias"] = state[f"{theirs}.mlp.b_{letter}"]
    norms = {
        name: torch.full_like(value, name.endswith("weight"))
        for name, value in hf.state_dict().items()
        if ".ln_" in name
    }
    hf.load_state_dict(found | norms)
    return hf.eval()


def _projection(config: Config, state: Mapping[str, Tensor], at: str, letter: str) -> tuple[Tensor, Tensor]:
    """Weight (`d_model`, heads side by side) and bias of queries, keys or values; queries take the scale."""
    weight, bias = state[f"{at}.W_{letter}"].transpose(0, 1).flatten(1), state[f"{at}.b_{letter}"].flatten()
    by = math.sqrt(config.shape.d_head) / config.scale if letter == "Q" else 1.0
    return weight * by, bias * by


def _shapes(shape: batched.Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a TransformerLens state."""
    heads, stream, width = shape.n_heads, shape.d_model, shape.d_head
    found: dict[str, tuple[int, ...]] = {
        "embed.W_E": (shape.d_vocab, stream), "pos_embed.W_pos": (shape.n_positions, stream),
        "unembed.W_U": (stream, shape.d_out), "unembed.b_U": (shape.d_out,),
    }  # fmt: skip
    for layer in range(shape.n_layers):
        at = f"blocks.{layer}"
        for letter in "QKV":
            found |= {f"{at}.attn.W_{letter}": (heads, stream, width), f"{at}.attn.b_{letter}": (heads, width)}
        found |= {f"{at}.attn.W_O": (heads, width, stream), f"{at}.attn.b_O": (stream,)}
        found |= {f"{at}.mlp.W_in": (stream, shape.d_mlp), f"{at}.mlp.b_in": (shape.d_mlp,)}
        found |= {f"{at}.mlp.W_out": (shape.d_mlp, stream), f"{at}.mlp.b_out": (stream,)}
    return found


def _check_names(there: Mapping[str, tuple[int, ...]], shape: batched.Shape) -> None:
    if shape.n_layers > len(there):
        raise errors.ModelError(f"{CONFIG} says {shape.n_layers:,} layers, the file has {len(there)} tensors")
    wanted = _shapes(shape)
    for name in (*wanted, *there):
        if there.get(name) != wanted.get(name):
            raise errors.ModelError(
                f"{name:.80} is {there.get(name, 'not there')}, expected {wanted.get(name, 'nothing of that name')}: is "
                f"{MODEL} TransformerLens' state of the model that {CONFIG} describes?"
            )


def _finite(value: Tensor, name: str) -> Tensor:
    if not value.is_floating_point():
        raise errors.ModelError(f"{name} holds {value.dtype}, expected floating-point numbers")
    found = value.float()
    if not bool(found.isfinite().all()):
        raise errors.ModelError(f"{name} has numbers that are not finite")
    return found


def _size(found: Mapping[str, Any], name: str, where: object) -> int:
    value = found.get(name)
    if value is None:
        raise errors.RequestError(f"{where} does not say {name}")
    if type(value) is not int or not 0 < value <= MOST:
        raise errors.RequestError(f"{where}: {name} is {value!r:.80}, expected a whole number from 1 to {MOST:,}")
    return value


def _number(found: Mapping[str, Any], name: str, default: float, where: object) -> float:
    value = found.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or abs(value) > MOST:
        raise errors.RequestError(f"{where}: {name} is {value!r:.80}, expected a number up to {MOST:,}")
    return float(value)
