"""The one place that reads models from disk: configuration, weights and tokenizer, none of which is trusted.

1. `config.json` is read as data. What names code, other files or a hub is left out (a folder's own code is never run), what
   would make another model of it is refused, and sizes are checked before anything of them is built.
2. The network is built without memory, and must need no more weights than the files hold.
3. Weights come from safetensors files inside the folder, never from pickles, and are handed to transformers as tensors: it
   never sees the folder.
4. Every weight must be there, in its shape, and none left over; tied ones aside.

Costs one look at each file's header and building the modules twice, the first time without memory.
"""

import contextlib
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers

from sonde.core import errors
from sonde.models import (
    families,
    folders,
    plain,  # noqa: F401  # pyright: ignore[reportUnusedImport]  (importing it tells transformers of its architecture)
    tokenizer_files,
    zoo,
)
from sonde.models.gguf import header, metadata
from sonde.models.gguf import tokenizer as gguf_tokenizer

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
#: A header has about a hundred bytes per tensor.
LARGEST_HEADER = 16 * folders.MIB
MOST_LAYERS = 1_000
MOST = 2**31 - 1
_LAYERS = "num_hidden_layers"
_SIZES = (
    _LAYERS,
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
# Buffers are not in the files: rotary frequencies, old causal masks.
_LARGEST_BUFFER = 2**26
_REFUSED = {
    "quantization_config": "its weights are quantised; use the model before quantisation, or a GGUF file",
    "compression_config": "its weights are compressed; use the model before compression",
    "per_layer_config": "its layers are of different makes",
    "transformers_weights": f"it names a file of weights; they must be in {WEIGHTS}",
    "fusion_config": "it replaces modules",
}
_IGNORED = frozenset(
    {
        "auto_map",
        "custom_pipelines",
        "distributed_config",
        "dtype",
        "id2label",
        "kernel_config",
        "label2id",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "torch_dtype",
        "use_kernels",
        "use_return_dict",
    }
)
#: Masks and rotary frequencies, which checkpoints of the first years hold and models now compute.
_OLD = re.compile(r"\.(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$")
_FLOATS = {"F16", "BF16", "F32", "F64"}
_SHOWN = 5


def read(path: Path, dtype: torch.dtype, tokenizer: Any = None) -> tuple[Any, Any]:
    """Network and tokenizer of a model folder; a tokenizer that is given takes the place of the folder's.

    Raises:
        ModelError: Something in the folder is not what it must be; says what.
        FamilyError: The architecture is unknown.
    """
    folder = folders.Folder(path)
    with folders.explained(f"cannot read the checkpoint at {path}"), zoo.quiet():
        config = read_config(folder)
        found = tokenizer_files.read(folder, config) if tokenizer is None else tokenizer
        return read_network(folder, config, dtype), found


def read_gguf(path: Path, dtype: torch.dtype, tokenizer: Any = None) -> tuple[Any, Any]:
    """Network and tokenizer of a GGUF file, weights dequantised; a tokenizer that is given takes the place of the file's.

    transformers drops part of what a file says of its tokenizer, so that is made here, from its metadata.

    Raises:
        ModelError: The file is not what it must be; says what.
        FamilyError: The architecture is unknown.
    """
    with folders.explained(f"cannot read the checkpoint at {path}"), zoo.quiet(), _staged(path) as stage:
        held = header.check(path)
        vocabulary = metadata.read(path) if tokenizer is None else None
        found: Any = gguf_tokenizer.build(vocabulary) if vocabulary else tokenizer
        network = _gguf_network(path, stage, dtype, held)
        if vocabulary is not None:
            gguf_tokenizer.fit(network, vocabulary)
            found.name_or_path = str(path)
        return network, found


@contextlib.contextmanager
def _staged(gguf: Path) -> Iterator[dict[str, Any]]:
    """What transformers is given for a GGUF file: a folder with nothing else in it."""
    with tempfile.TemporaryDirectory() as stage:
        (Path(stage) / "model.gguf").symlink_to(gguf.resolve())
        yield {
            "pretrained_model_name_or_path": stage,
            "gguf_file": "model.gguf",
            "local_files_only": True,
            "trust_remote_code": False,
        }


def _gguf_network(path: Path, stage: dict[str, Any], dtype: torch.dtype, held: int) -> Any:
    config = transformers.AutoConfig.from_pretrained(**stage)
    check_config(config)
    needed = _needed(_bare(config), dtype)
    if needed > 2 * held:  # what is missing is made up before it is told: not more than the file has
        raise errors.ModelError(f"its metadata describe {needed:,} weights, it holds {held:,}")
    network, info = _class(config).from_pretrained(
        config=config,
        dtype=dtype,
        quantization_config=transformers.GgufConfig(dequantize=True),
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **stage,
    )
    _check_loaded(network, info)
    vars(network.config).pop("quantization_config", None)
    network.name_or_path = network.config.name_or_path = str(path)
    return network


def read_config(folder: folders.Folder) -> Any:
    """The configuration of a model folder, as data: nothing that it names is opened or run.

    Raises:
        ModelError: There is none, or it describes no model that can be loaded.
        FamilyError: The architecture is unknown.
    """
    data = folder.json("config.json")
    if data is None:
        raise errors.ModelError(f"no config.json in {folder.path}")
    for key, why in _REFUSED.items():
        if data.get(key):
            raise errors.ModelError(f"config.json has {key}: {why}")
    model_type = data.pop("model_type", None)
    kept = {key: value for key, value in data.items() if key not in _IGNORED and "_implementation" not in key}
    if not tokenizer_files.is_class(kept.get("tokenizer_class")):
        kept.pop("tokenizer_class", None)
    if model_type not in transformers.CONFIG_MAPPING:
        raise errors.ModelError(
            f"transformers has no model type {model_type!r}, and a folder's own code is never run: see "
            "sonde.models.families on adding an architecture"
        )
    made = transformers.CONFIG_MAPPING[model_type]
    families.refuse_encoder(made(**{key: kept[key] for key in ("is_decoder", "is_encoder_decoder") if key in kept}))
    families.of_config(made)
    for size in _SIZES:
        for key in {size, made.attribute_map.get(size, size)} & kept.keys():
            _check_size(key, kept[key], MOST_LAYERS if size == _LAYERS else MOST)
    config = made(**kept)
    check_config(config)
    return config


def check_config(config: Any) -> None:
    """Checks that a configuration is of a known family, and its sizes can be.

    Raises:
        ModelError: A size is no whole number above 0, or absurd.
        FamilyError: The architecture is unknown.
    """
    families.of_config(config)
    for size in _SIZES:
        _check_size(size, getattr(config, size, None), MOST_LAYERS if size == _LAYERS else MOST)


def _check_size(name: str, value: object, most: int) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= most):
        raise errors.ModelError(
            f"{name} in the configuration must be a whole number from 1 to {most:,}, got {value!r:.40}"
        )


def _class(config: Any) -> Any:
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise errors.ModelError(f"{config.model_type} is no causal language model")
    return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def read_network(folder: folders.Folder, config: Any, dtype: torch.dtype) -> Any:
    """The network of a model folder: every weight from its files, and none left over.

    Raises:
        ModelError: Configuration and weights do not fit; names what is missing, unexpected or of another shape.
    """
    tensors = _tensors(folder)
    _check_needs(_bare(config), tensors, dtype)
    network, info = _class(config).from_pretrained(
        None,
        config=config,
        state_dict=tensors,
        dtype=dtype,
        local_files_only=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    _check_loaded(network, info)
    network.name_or_path = network.config.name_or_path = str(folder.path)
    _read_generation(folder, network)
    return network


def _tensors(folder: folders.Folder) -> dict[str, Any]:
    """Every floating point tensor in the folder's safetensors files, by name; none is read yet."""
    tensors: dict[str, Any] = {}
    holder: dict[str, str] = {}
    placed = {} if folder.file(WEIGHTS) else _weight_map(folder)
    for name in sorted(set(placed.values())) or [WEIGHTS]:
        for key, tensor in _opened(folder, name).items():
            if key in holder:
                raise errors.ModelError(f"{key} is in two files, {holder[key]} and {name}")
            holder[key] = name
            if tensor.get_dtype() in _FLOATS:  # else an old mask, or quantised: then it will be missed
                tensors[key] = tensor
    lost = sorted(key for key, name in placed.items() if holder.get(key) != name)
    if lost:
        raise errors.ModelError(f"{INDEX} names tensors that are not in the file it says: {_list(lost)}")
    return tensors


def shards(folder: folders.Folder) -> set[str]:
    """The files that the index of a folder's weights names.

    Raises:
        ModelError: One is no safetensors file in the folder, or there is no index.
    """
    return set(_weight_map(folder).values())


def _weight_map(folder: folders.Folder) -> dict[str, str]:
    index = folder.json(INDEX, most=LARGEST_HEADER)
    if index is None:
        pickled = sorted(path.name for path in folder.path.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        found = (
            f"it has {_list(pickled)}, which can run code when read; convert them first" if pickled else "nor an index"
        )
        raise errors.ModelError(f"no {WEIGHTS} in {folder.path}; {found}")
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise errors.ModelError(f"{INDEX} has no weight_map")
    outside = [name for name in placed.values() if not folders.is_plain(name) or not name.endswith(".safetensors")]
    if outside:
        raise errors.ModelError(f"{INDEX} names {outside[0]!r:.200}, which is no safetensors file in its folder")
    return placed


def _opened(folder: folders.Folder, name: str) -> dict[str, Any]:
    path = folder.file(name)
    if path is None:
        raise errors.ModelError(f"{INDEX} names {name}, which is not in {folder.path}")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > LARGEST_HEADER:
        raise errors.ModelError(f"{name} is damaged: its header says it has {length:,} bytes")
    with folders.explained(f"{name} is damaged"):
        opened = safetensors.safe_open(str(path), framework="pt")
        return {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118 (it is no dictionary)


def _bare(config: Any) -> Any:
    """The network without memory."""
    with torch.device("meta"):
        bare = _class(config)(config)
    large = [name for name, buffer in bare.named_buffers() if buffer.numel() > _LARGEST_BUFFER]
    if large:
        raise errors.ModelError(f"the configuration asks for buffers that no model needs: {_list(large)}")
    return bare


def _needed(bare: Any, dtype: torch.dtype) -> int:
    """How many weights a network has; more than the machine can hold are refused."""
    needed = sum(parameter.numel() for parameter in bare.parameters())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed * dtype.itemsize > memory:
        raise errors.ModelError(
            f"its weights take {needed * dtype.itemsize / 1e9:,.0f} GB, this machine has {memory / 1e9:,.0f} GB: "
            "a smaller dtype may help"
        )
    return needed


def _check_needs(bare: Any, tensors: Mapping[str, Any], dtype: torch.dtype) -> None:
    """Refuses a network that the files cannot fill, before any of it is made up."""
    needed, held = _needed(bare, dtype), sum(math.prod(tensor.get_shape()) for tensor in tensors.values())
    if needed <= held:
        return
    prefix = f"{bare.base_model_prefix}."
    shapes = {key.removeprefix(prefix): tuple(tensor.get_shape()) for key, tensor in tensors.items()}
    ours = {name: (tuple(one.shape), shapes.get(name.removeprefix(prefix))) for name, one in bare.named_parameters()}
    lost = [name for name, (_, there) in ours.items() if there is None]
    other = [
        f"{name} {shape}, in the file {there}" for name, (shape, there) in ours.items() if there not in (None, shape)
    ]
    raise errors.ModelError(
        f"config.json describes {needed:,} weights, the files hold {held:,} (whole numbers not counted)"
        + (f"; missing: {_list(lost)}" if lost else "")
        + (f"; of another shape: {_list(other)}" if other else "")
    )


def _check_loaded(network: Any, info: Mapping[str, Any]) -> None:
    """Refuses a network of which some weight is not the file's."""
    unexpected = [key for key in info["unexpected_keys"] if not _OLD.search(key)]
    complaints = [
        f"{what}: {_list(found)}"
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


def _read_generation(folder: folders.Folder, network: Any) -> None:
    """Takes the ids of special tokens from generation_config.json: other settings are Sonde's own."""
    found = folder.json("generation_config.json") or {}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if key in found:
            ids = found[key] if isinstance(found[key], list) else [found[key]]
            if not all(one is None or type(one) is int for one in ids):
                raise errors.ModelError(
                    f"{key} in generation_config.json must be a token's number, got {found[key]!r:.40}"
                )
            setattr(network.generation_config, key, found[key])


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(folders.shortened(name) for name in names[:_SHOWN]) + more
