"""Do a configuration and the weights that files hold belong together? Every weight must be there, in its shape, none left over.

Asked before a network is filled, as far as headers can say it, since a library makes up what is missing before it tells; and
afterwards, by what the library says. Costs building the modules without memory.
"""

import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import transformers

from sonde.core import errors
from sonde.models import families, folders

LAYERS, MOST_LAYERS = "num_hidden_layers", 1_000
MOST = 2**31 - 1
#: What a configuration says that must be a whole number above 0.
SIZES = (
    LAYERS,
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
#: Masks and rotary frequencies, which checkpoints of the first years hold and models now compute.
OLD = re.compile(r"\.(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$")
# Buffers are not in the files: rotary frequencies, old causal masks.
_LARGEST_BUFFER = 2**26
_SHOWN = 5


def check_config(config: Any) -> None:
    """Checks that a configuration is of a known family, and its sizes can be.

    Raises:
        ModelError: A size is no whole number above 0, or absurd.
        FamilyError: The architecture is unknown.
    """
    families.of_config(config)
    for size in SIZES:
        check_size(size, size, getattr(config, size, None))


def check_size(size: str, name: str, value: object) -> None:
    """Refuses what cannot be a size.

    Args:
        size: Which one.
        name: What the file calls it.
        value: What the file says.

    Raises:
        ModelError: It is no whole number above 0, or absurd.
    """
    most = MOST_LAYERS if size == LAYERS else MOST
    if value is not None and (type(value) is not int or not 1 <= value <= most):
        raise errors.ModelError(
            f"{name} in the configuration must be a whole number from 1 to {most:,}, got {value!r:.40}"
        )


def network_class(config: Any) -> Any:
    """The class of the network of a configuration.

    Raises:
        ModelError: It is no causal language model.
    """
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise errors.ModelError(f"{config.model_type} is no causal language model")
    return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def bare(config: Any) -> Any:
    """The network of a configuration, without memory."""
    with torch.device("meta"):
        network = network_class(config)(config)
    large = [name for name, buffer in network.named_buffers() if buffer.numel() > _LARGEST_BUFFER]
    if large:
        raise errors.ModelError(f"the configuration asks for buffers that no model needs: {listed(large)}")
    return network


def needed(network: Any, dtype: torch.dtype) -> int:
    """How many weights a network has; more than the machine can hold are refused."""
    count = sum(parameter.numel() for parameter in network.parameters())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if count * dtype.itemsize > memory:
        raise errors.ModelError(
            f"its weights take {count * dtype.itemsize / 1e9:,.0f} GB, this machine has {memory / 1e9:,.0f} GB: "
            "a smaller dtype may help"
        )
    return count


def check_filled(network: Any, tensors: Mapping[str, Any], dtype: torch.dtype) -> None:
    """Refuses files that cannot fill a bare network, or hold a weight twice, before any of it is made up.

    Args:
        network: The bare network.
        tensors: What the files hold, by name: slices of safetensors files.
        dtype: What the weights will be.

    Raises:
        ModelError: Names what does not fit.
    """
    placed = _placed(network, tensors)
    count, held = needed(network, dtype), sum(math.prod(tensor.get_shape()) for tensor in tensors.values())
    if count <= held:
        return
    ours = {name: (tuple(one.shape), placed.get(name)) for name, one in network.named_parameters()}
    lost = [name for name, (_, there) in ours.items() if there is None]
    other = [
        f"{name} {shape}, in the file {tuple(tensors[there].get_shape())}"
        for name, (shape, there) in ours.items()
        if there is not None and tuple(tensors[there].get_shape()) != shape
    ]
    raise errors.ModelError(
        f"config.json describes {count:,} weights, the files hold {held:,}"
        + (f"; missing: {listed(lost)}" if lost else "")
        + (f"; of another shape: {listed(other)}" if other else "")
    )


def _placed(network: Any, tensors: Iterable[str]) -> dict[str, str]:
    """Which tensor is which weight: transformers adds the name of the network's body, or cuts it off, as it finds it."""
    body, names = network.base_model_prefix, network.state_dict().keys()
    found: dict[str, str] = {}
    for key in sorted(tensors):
        short, long = re.sub(rf"^{re.escape(body)}.", "", key, count=1), f"{body}.{key}"
        name = short if short in names else long if long in names else key
        if name in found:
            raise errors.ModelError(f"{found[name]} and {key} are one weight of the network, {name}: leave one out")
        found[name] = key
    return found


def check_loaded(network: Any, info: Mapping[str, Any]) -> None:
    """Refuses a network of which some weight is not the file's.

    Args:
        network: The network.
        info: What transformers says of its loading.

    Raises:
        ModelError: Names what is missing, unexpected or of another shape.
    """
    unexpected = [key for key in info["unexpected_keys"] if not OLD.search(key)]
    complaints = [
        f"{what}: {listed(found)}"
        for what, found in (
            ("missing", sorted(info["missing_keys"])),
            ("unexpected", sorted(unexpected)),
            ("of another shape", sorted(map(str, info["mismatched_keys"]))),
            ("unreadable", sorted(map(str, info["error_msgs"]))),
        )
        if found
    ]
    if complaints:
        raise errors.ModelError(f"the configuration and the weights do not fit: {'; '.join(complaints)}")
    ours, theirs = network.get_input_embeddings(), network.get_output_embeddings()
    if network.config.tie_word_embeddings and theirs is not None and theirs.weight is not ours.weight:
        raise errors.ModelError(
            "the configuration ties the unembedding to the embedding (tie_word_embeddings), but the files hold another one: "
            "set it to false, or leave the second one out"
        )


def check_shapes(network: Any, bare: Any) -> None:
    """Refuses a network with weights of other shapes than its configuration says.

    Raises:
        ModelError: Names them.
    """
    expected = {name: tuple(one.shape) for name, one in bare.named_parameters()}
    other = [
        f"{name} {tuple(one.shape)}, expected {expected[name]}"
        for name, one in network.named_parameters()
        if tuple(one.shape) != expected[name]
    ]
    if other:
        raise errors.ModelError(f"the metadata and the weights do not fit: of another shape: {listed(other)}")


def listed(names: list[str]) -> str:
    """The first few of some names."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(folders.shortened(name) for name in names[:_SHOWN]) + more
