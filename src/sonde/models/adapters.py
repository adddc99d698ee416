"""Models that were loaded elsewhere: by TransformerLens, by nnsight, or by transformers alone.

    bridge = TransformerBridge.boot_transformers("gpt2")
    model = adapters.as_model(bridge)

The Model works on the very parameters of what it was given, which stays usable.

- *transformers*: the network itself is adopted, and put into evaluation mode.
- *nnsight*: the network inside the envoy is adopted, its weights loaded first if it is still lazy. nnsight's own
  instruments are idle outside a trace and stay.
- *TransformerBridge*: the bridge has put components of its own into its network. So a plain module tree of the same
  class is built without weights, and each of its parameters and buffers becomes the one that the bridge's network
  holds under that name, below those components. Then both must give the same logits. The bridge is not touched.

Whatever was given, its Model is made once and lives in an attribute of the network, so both are freed together. A
weak dictionary would leak: a Model holds its network, so a dictionary that holds the Model keeps its own key alive.
Copies and pickles of the network leave the Model out.

Costs nothing until used: neither package is imported here. Making a Model costs the proof of its Sites (two forward
passes of six tokens), for a bridge two more; asking again costs a look at every parameter's address.
"""

import copy
import threading
import weakref
from collections.abc import Hashable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from sonde.core import errors
from sonde.models import model as models_model
from sonde.models import prove, zoo
from sonde.models import tokenizer as models_tokenizer

ACCEPTED = (
    "a sonde Model, a TransformerLens TransformerBridge, an nnsight model or a transformers causal language model"
)
_SEAT = "_sonde_seat"
_ORIGINAL = "_original_component"  # under this name a bridge component keeps the module that it replaced
_making = threading.RLock()


def as_model(obj: Any, *, tokenizer: Any = None) -> models_model.Model:
    """The Model for whatever holds a language model; for the same object always the same one.

    Args:
        obj: A Model, which is returned as it is; a TransformerBridge; an nnsight model; or a transformers model.
        tokenizer: Its tokenizer, where the object brings none. Without one, the name or folder that a transformers
            model was loaded from is asked.

    Raises:
        ModelError: It is none of these, its weights are not those that transformers would run, or it has no tokenizer.
        FamilyError: The architecture is unknown, or its row does not fit.
    """
    if isinstance(obj, models_model.Model):
        return obj
    bridged = _derives(obj, "transformer_lens", "TransformerBridge")
    if bridged:
        network, own = _in_bridge(obj), obj.tokenizer
    elif _derives(obj, "nnsight", "Envoy"):
        network, own = _in_envoy(obj), getattr(obj, "tokenizer", None)
    else:
        network, own = obj, None
    _check(network, obj, bridged=bridged)
    with _making:
        seat = network.__dict__.get(_SEAT)
        if seat is None or not seat.belongs(network, bridged=bridged):
            seat = network.__dict__[_SEAT] = _Seat.of(network, tokenizer or own, bridged=bridged)
        elif tokenizer is not None and tokenizer is not seat.model.tokenizer:
            raise errors.ModelError(
                f"{seat.model!r} already has another tokenizer: close it first, or set its .tokenizer yourself"
            )
        seat.follow(network)
        return seat.model


class Adopted(models_model.Model):
    """A Model on weights that belong to someone else."""

    closed = False

    def close(self) -> None:
        """Frees caches and leaves the weights alone; `as_model` then makes a new Model."""
        self.closed = True
        self._scheduler.close()
        self.pool.entries.clear()


class _Seat:
    """Where a network keeps its Model, and what its weights were when last looked at."""

    model: Adopted
    bridged = False
    _owner: "weakref.ref[nn.Module] | None" = None
    _mark: Hashable = None

    @classmethod
    def of(cls, network: Any, tokenizer: Any, *, bridged: bool) -> "_Seat":
        """Makes the Model."""
        seat = cls()
        tokenizer = tokenizer or _find_tokenizer(network)
        seat.model = Adopted(_plain(network) if bridged else network, tokenizer)
        seat.bridged, seat._owner = bridged, weakref.ref(network)
        return seat

    def belongs(self, network: nn.Module, *, bridged: bool) -> bool:
        """Whether the Model is usable, and of this network: a copy of a network has its seat but no Model."""
        mine = self._owner is not None and self._owner() is network and self.bridged == bridged
        return mine and not self.model.closed

    def follow(self, network: nn.Module) -> None:
        """Proves a new Model; later takes over what happened to the weights: moved, cast, replaced or trained."""
        hf = self.model.hf
        with self.model.lock:
            if self.bridged:
                _share(hf, network)
            mark = tuple(map(_mark, [*hf.parameters(), *hf.buffers()]))
            if mark != self._mark:
                self.model.pool.entries.clear()
                if self.bridged:
                    _check_agreement(hf, network)
                prove.prove(self.model)
                self._mark = mark

    def __deepcopy__(self, memo: Any) -> "_Seat":
        return _Seat()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Seat, ()


def _derives(obj: Any, package: str, name: str) -> bool:
    """Whether an object is of a class of a package that is not imported here."""
    return any(cls.__name__ == name and cls.__module__.split(".")[0] == package for cls in type(obj).__mro__)


def _in_bridge(bridge: Any) -> Any:
    if bridge._weights_processed:
        raise errors.ModelError(
            "this TransformerBridge has processed its weights (folded norms, centred matrices), so they are no longer "
            "those that transformers runs: boot it again and leave out enable_compatibility_mode, or call it with "
            "no_processing=True"
        )
    return bridge.original_model


def _in_envoy(envoy: Any) -> Any:
    if envoy._edits:
        raise errors.ModelError(
            "this nnsight model carries edits, which run only inside its own traces: pass the model without them "
            "(clear_edits) and write them as sonde interventions"
        )
    if not getattr(envoy, "dispatched", True):
        try:
            envoy.dispatch()
        except (OSError, ValueError, RuntimeError) as error:
            raise errors.ModelError(f"nnsight cannot load the weights of {envoy.repo_id!r}: {error}") from error
    return envoy._module


def _check(network: Any, obj: Any, *, bridged: bool) -> None:
    """Refuses what is no causal language model of transformers, whole and loaded."""
    what = type(network).__name__
    inside = "" if network is obj else f" inside {type(obj).__name__}"
    if not isinstance(network, transformers.PreTrainedModel):
        raise errors.ModelError(f"cannot make a Model of {what}{inside}: expected {ACCEPTED}{_advice(network)}")
    if not network.can_generate():
        raise errors.ModelError(f"{what}{inside} has no language-model head: load it with AutoModelForCausalLM")
    if not bridged and any(
        _derives(module, "transformer_lens", "GeneralizedComponent") for module in network.modules()
    ):
        raise errors.ModelError(f"a TransformerBridge has been built on this {what}{inside}: pass the bridge instead")
    if any(parameter.is_meta for parameter in network.parameters()):
        raise errors.ModelError(f"{what}{inside} has no weights yet (meta device, or offloaded): load them all first")


def _advice(obj: Any) -> str:
    if isinstance(obj, str):
        return ". To load a model by name, use sonde.load"
    if _derives(obj, "transformer_lens", "HookedTransformer"):
        return ". TransformerLens 4 has TransformerBridge.boot_transformers in place of HookedTransformer"
    if _derives(obj, "peft", "PeftModel"):
        return ". Merge the adapter into the weights first: model.merge_and_unload()"
    return ""


def _find_tokenizer(network: Any) -> Any:
    source = network.name_or_path
    try:
        if not source:
            raise ValueError("it was not loaded from anywhere")
        with zoo.quiet():
            return models_tokenizer.load(source)
    except (ValueError, errors.ModelError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise errors.ModelError(
            f"no tokenizer found for this {type(network).__name__} ({first}): give as_model(…, tokenizer=…)"
        ) from error


def _plain(network: Any) -> Any:
    """A module tree as transformers makes it, without weights."""
    config = copy.deepcopy(network.config)
    with torch.device("meta"), zoo.quiet():
        plain = type(network)(config)
    plain.generation_config = copy.deepcopy(network.generation_config)
    return plain


def _share(plain: nn.Module, network: nn.Module) -> None:
    """Makes each parameter and buffer of a plain tree the one that a bridged network has under its name."""
    for path, module in plain.named_modules():
        source = _below(network, path)
        held = {} if source is None else {**source._parameters, **source._buffers}
        for own in (module._parameters, module._buffers):
            for name, tensor in own.items():
                if tensor is not None:
                    if held.get(name) is None:
                        raise errors.ModelError(
                            f"the TransformerBridge has no tensor {path}.{name}, which {type(plain).__name__} needs"
                        )
                    own[name] = held[name]


def _below(network: nn.Module, path: str) -> nn.Module | None:
    """The module at a path, below the bridge's components; None if the bridge took it away."""
    module: nn.Module | None = network
    for part in path.split(".") if path else ():
        module = None if module is None else module._modules.get(part)
        while module is not None and _ORIGINAL in module._modules:
            module = module._modules[_ORIGINAL]
    return module


def _mark(tensor: Tensor) -> Hashable:
    """Changes when a tensor is moved, cast, replaced, or written to in place."""
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), tensor.dtype, tensor.device, version


def _check_agreement(plain: Any, network: Any) -> None:
    """Refuses a bridge that computes something else than its parameters say.

    A bridge runs fused attention projections through modules of its own, whose weights may have been replaced, and it
    may carry hooks.
    """
    vocabulary = network.config.vocab_size
    tokens = torch.arange(prove.LENGTH, device=network.device)[None] * max(1, vocabulary // prove.LENGTH - 1)
    modes = [(module, module.training) for module in network.modules()]
    try:
        with torch.no_grad():
            theirs, ours = (net.eval()(input_ids=tokens, use_cache=False).logits for net in (network, plain))
    finally:
        for module, mode in modes:
            module.training = mode
    tolerance = 1e-4 if ours.dtype in (torch.float32, torch.float64) else 5e-2
    worst = float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1e-3))
    if not worst <= tolerance:
        raise errors.ModelError(
            f"this TransformerBridge does not compute what its parameters say: logits differ by {worst:.1e} of the "
            "largest. Were weights of its q, k or v replaced, or has it hooks that change something (reset_hooks)?"
        )
