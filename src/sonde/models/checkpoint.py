"""The one place that reads models from disk: configuration, weights and tokenizer, none of which is trusted.

1. `config.json` is read as data. What names code, other files or a hub is left out (a folder's own code is never run), what
   would make another model of it is refused, and sizes are checked before anything of them is built.
2. The network is built without memory, and must need no more weights than the files hold.
3. Weights come from safetensors files inside the folder, never from pickles, and are handed to transformers as tensors: it
   never sees the folder.
4. Every weight must be there, in its shape, and none left over; tied ones aside.

Costs one look at each file's header and building the modules twice, the first time without memory.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers

from sonde.core import errors
from sonde.models import (
    families,
    fitting,
    folders,
    plain,  # noqa: F401  # pyright: ignore[reportUnusedImport]  (importing it tells transformers of its architecture)
    tokenizer_files,
    zoo,
)

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
#: A header has about a hundred bytes per tensor.
LARGEST_HEADER = 16 * folders.MIB
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
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "use_kernels",
    }
)
_FLOATS = {"F16", "BF16", "F32", "F64"}


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
    made = _made(data)
    if made is None:
        raise errors.ModelError(
            f"transformers has no model type {data.get('model_type')!r:.80}, and a folder's own code is never run: see "
            "sonde.models.families on adding an architecture"
        )
    kept = _settings(data, made)
    families.refuse_encoder(
        type(made)(**{key: kept[key] for key in ("is_decoder", "is_encoder_decoder") if key in kept})
    )
    families.of_config(made)
    for size in fitting.SIZES:
        for key in {size, made.attribute_map.get(size, size)} & kept.keys():
            fitting.check_size(size, key, kept[key])
    config = type(made)(**kept)
    fitting.check_config(config)
    return config


def read_kind(folder: folders.Folder) -> Any:
    """The configuration of a model folder as far as its tokenizer depends on it; None if there is none that is known.

    Raises:
        ModelError: It cannot be read.
    """
    data = folder.json("config.json") or {}
    with folders.explained(f"cannot read config.json in {folder.path}"):
        made = _made(data)
        if made is not None and tokenizer_files.is_class(data.get("tokenizer_class")):
            made.tokenizer_class = data["tokenizer_class"]
        return made


def _made(data: Mapping[str, Any]) -> Any:
    """A configuration of the type that a folder names, as transformers makes it of nothing; None if that is unknown."""
    kind = data.get("model_type")
    return (
        transformers.CONFIG_MAPPING[kind]() if isinstance(kind, str) and kind in transformers.CONFIG_MAPPING else None
    )


def _settings(data: Mapping[str, Any], made: Any) -> dict[str, Any]:
    """What of config.json is data.

    Left out is what belongs to how configurations work: transformers would set any attribute, `__dict__` and methods too.
    """
    fields = {field.name for field in dataclasses.fields(made)} | made.attribute_map.keys() | {"rope_scaling"}
    return {
        key: value
        for key, value in data.items()
        if (key in fields or not (key.startswith("_") or hasattr(made, key)))
        and key not in _IGNORED
        and "_implementation" not in key
        and (key != "tokenizer_class" or tokenizer_files.is_class(value))
    }


def read_network(folder: folders.Folder, config: Any, dtype: torch.dtype) -> Any:
    """The network of a model folder: every weight from its files, and none left over.

    Raises:
        ModelError: Configuration and weights do not fit; names what is missing, unexpected or of another shape.
    """
    tensors = _tensors(folder)
    fitting.check_filled(fitting.bare(config), tensors, dtype)
    network, info = fitting.network_class(config).from_pretrained(
        None,
        config=config,
        state_dict=tensors,
        dtype=dtype,
        local_files_only=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    fitting.check_loaded(network, info)
    network.name_or_path = network.config.name_or_path = str(folder.path)
    _read_generation(folder, network)
    return network


def _tensors(folder: folders.Folder) -> dict[str, Any]:
    """Every floating point tensor in the folder's safetensors files, by name; none is read yet."""
    tensors: dict[str, Any] = {}
    holder: dict[str, str] = {}
    odd: list[str] = []
    placed = {} if folder.file(WEIGHTS) else _weight_map(folder)
    for name in sorted(set(placed.values())) or [WEIGHTS]:
        for key, tensor in _opened(folder, name).items():
            if key in holder:
                raise errors.ModelError(f"{key} is in two files, {holder[key]} and {name}")
            holder[key] = name
            if tensor.get_dtype() in _FLOATS:
                tensors[key] = tensor
            elif not fitting.OLD.search(key):
                odd.append(f"{key} ({tensor.get_dtype()})")
    lost = sorted(key for key, name in placed.items() if holder.get(key) != name)
    if lost:
        raise errors.ModelError(f"{INDEX} names tensors that are not in the file it says: {fitting.listed(lost)}")
    if odd:
        raise errors.ModelError(
            f"the files hold what are no weights, or quantised ones: {fitting.listed(odd)}; use the model before "
            "quantisation, or a GGUF file"
        )
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
            f"it has {fitting.listed(pickled)}, which can run code when read; convert them first"
            if pickled
            else "nor an index"
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
