"""Which model is this, exactly? What to load, on what and as what, and digests that tell it from any other.

    held = identity.of(model)             # plain data, for a run's manifest or another process
    with identity.rebuilt(held) as same:  # elsewhere, later: that very model, or an error that says what differs
        ...

Three digests, SHA-256 each:

- `weights`: name, type, shape and bytes of every parameter and buffer, sorted by name, as the network holds them; the device
  makes no difference, nor whether two of them are tied.
- `network`: what is computed with them: the config, what ends a generation, each module's place, class, settings and
  functions (`scaling`, `variance_epsilon`), how many hooks of others it carries, and a forward method that it or its class
  was given by hand.
- `tokenizer`: its vocabulary, rules, special tokens and chat template; None for one that cannot be described.

Nothing is remembered, since weights can be changed without a trace: asking again computes again. Costs a third of a second
for 135 million weights in float32, which is what a processor needs to read and hash them.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sonde.core import errors
from sonde.models import loading
from sonde.models import model as models_model

#: What two records must agree on, if both have it, and how to say that they do not.
WORDS = {
    "dtype": "its weights are of type {1}, not {0}",
    "device": "it is on {1}, not on {0}",
    "options": "its options are {1}, not {0}",
    "weights": "its weights are others (digest {1:.12}, not {0:.12})",
    "network": "its config, modules or hooks are others",
    "tokenizer": "its tokenizer or chat template is another",
}
#: What `Model.options` can hold.
OPTIONS = frozenset({"kv_budget", "max_batch"})
_VOLATILE = {"_name_or_path", "_model_name_or_path", "transformers_version", "dtype", "torch_dtype"}
#: Where a module was loaded from, what its last call left behind, and what is looked at otherwise.
_NO_SETTINGS = {"name_or_path", "max_seq_len_cached", "forward"}
_TOKENIZER = ("chat_template", "special_tokens_map", "padding_side", "clean_up_tokenization_spaces",
              "split_special_tokens", "add_bos_token", "add_eos_token")  # fmt: skip


def outline(model: models_model.Model) -> dict[str, Any]:
    """What a record says without having looked at the weights; costs nothing."""
    model.check_open()
    return {
        "name": model.cfg.model_name,
        "source": model.source,
        "dtype": str(next(model.hf.parameters()).dtype).removeprefix("torch."),
        "device": model.device.type,
        "options": model.options,
    }


def of(model: models_model.Model) -> dict[str, Any]:
    """A model's record: `name`, `source` (what to load; None if it was made from an object), and what `WORDS` names."""
    with model.lock:  # no batch runs that has the layers in another order, or hooks
        return {
            **outline(model),
            "weights": _weights(model.hf),
            "network": _network(model),
            "tokenizer": _tokenizer(model.tokenizer),
        }


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, what a model has that was recorded otherwise; what a record does not say may be anything."""
    different = [key for key in WORDS if key in recorded and recorded[key] != now[key]]
    return [WORDS[key].format(str(recorded[key]), str(now[key])) for key in different]


def check(recorded: Mapping[str, Any], now: Mapping[str, Any], *, what: str) -> None:
    """Refuses a model that is not the recorded one.

    Raises:
        RequestError: It is another; says what differs.
    """
    different = differences(recorded, now)
    if different:
        raise errors.RequestError(f"{now['name']!r} is not the model that {what} has: {'; '.join(different)}")


def rebuilt(recorded: Mapping[str, Any]) -> models_model.Model:
    """Loads the recorded model again. A record with no more than a name, as of earlier versions, is taken at its word.

    Raises:
        ModelError: It was not loaded from anywhere, it is not to be had, or what is there now is another model.
    """
    name = recorded.get("name")
    source, options = recorded.get("source", name), recorded.get("options", {})
    texts = [name, *(recorded[key] for key in ("device", "dtype") if key in recorded)]
    if not all(isinstance(text, str) for text in texts) or not isinstance(source, str | None):
        raise errors.ModelError("the record does not say which model it is of: give the model itself")
    if not isinstance(options, Mapping) or not options.keys() <= OPTIONS:
        raise errors.ModelError(
            f"the record of {name!r} has options that no model has ({options!r:.100}): give the model itself"
        )
    if source is None:
        raise errors.ModelError(
            f"{name!r} was made from an object and cannot be loaded again: give the model, or save it to a folder (network "
            "and tokenizer) and load that"
        )
    placed = {key: recorded[key] for key in ("device", "dtype") if key in recorded}
    model = loading.load(source, name=name, **placed, **options)
    different = differences(recorded, of(model))
    if different:
        model.close()
        raise errors.ModelError(
            f"what {source!r} gives now is not the model that was recorded: {'; '.join(different)}. Put that one back, or give "
            "the model itself"
        )
    return model


def _weights(network: nn.Module) -> str:
    named = {
        **dict(network.named_parameters(remove_duplicate=False)),
        **dict(network.named_buffers(remove_duplicate=False)),
    }
    known: dict[int, str] = {}  # a tied tensor is read once
    told = hashlib.sha256()
    for name, tensor in sorted(named.items(), key=lambda item: item[0]):
        content = known.get(id(tensor)) or known.setdefault(id(tensor), _content(tensor))
        told.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {content}\n".encode())
    return told.hexdigest()


def _content(tensor: Tensor) -> str:
    plain = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(plain.numpy().data if plain.numel() else b"").hexdigest()


def _network(model: models_model.Model) -> str:
    config: Any = model.hf.config
    told = {name: value for name, value in config.to_diff_dict().items() if name not in _VOLATILE}
    ends = getattr(getattr(model.hf, "generation_config", None), "eos_token_id", None)
    return _digest([told, config._attn_implementation, ends, list(_modules(model))])


def _modules(model: models_model.Model) -> Iterator[list[Any]]:
    own = model.gate.hooks
    for path, module in model.hf.named_modules():
        hooks = [*module._forward_pre_hooks, *module._forward_hooks]
        forward = vars(module).get("forward")
        by_hand = forward is not None and not type(forward).__module__.startswith("sonde.models.")
        forward_of_class = _function(type(module).forward)
        yield [
            path,
            _class(module),
            forward_of_class,
            _settings(module),
            sum(hook not in own for hook in hooks),
            by_hand,
        ]


def _settings(module: nn.Module) -> dict[str, Any]:
    """What a module computes with besides weights and config: its own numbers, words, tensors and functions."""
    found = {
        name: value for name, value in vars(module).items() if not name.startswith("_") and name not in _NO_SETTINGS
    }
    return {name: _setting(value) for name, value in found.items()}


def _setting(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_setting(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _setting(one) for key, one in value.items()}
    if isinstance(value, Tensor):
        return _content(value)
    if isinstance(value, functools.partial):
        return [_function(value.func), _setting(value.args), _setting(value.keywords)]
    return _function(value) if callable(value) else _class(value)


def _function(function: Any) -> str:
    """The name of a function, or the class of what is called like one."""
    name = getattr(function, "__qualname__", None)
    return f"{function.__module__}.{name}" if name else _class(function)


def _tokenizer(tokenizer: Any) -> str | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        # What stands before is the truncation and padding of the last call.
        core: Any = backend.to_str().partition('"added_tokens":')[2]
    elif hasattr(tokenizer, "get_vocab"):
        core = sorted(tokenizer.get_vocab().items())
    else:
        return None
    return _digest([_class(tokenizer), core, *(getattr(tokenizer, name, None) for name in _TOKENIZER)])


def _class(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _digest(told: Any) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()
