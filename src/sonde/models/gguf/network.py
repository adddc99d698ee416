"""From a GGUF file to a network in which every weight is the file's, dequantised.

transformers reads the file, and leaves out what it has no place for: tensors, and how positions are scaled. A network without
them would be another model, so a file that has such things is refused. Costs building the modules twice, and the reading.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from sonde.core import errors
from sonde.models import fitting, folders, zoo
from sonde.models.gguf import header, metadata, tokenizer


def read(path: Path, dtype: torch.dtype, own: Any = None) -> tuple[Any, Any]:
    """Network and tokenizer of a GGUF file; a tokenizer that is given takes the place of the file's.

    transformers drops part of what a file says of its tokenizer, so that is made here, from its metadata.

    Raises:
        ModelError: The file is not what it must be; says what.
        FamilyError: The architecture is unknown.
    """
    with folders.explained(f"cannot read the checkpoint at {path}"), zoo.quiet(), _staged(path) as stage:
        held = header.check(path)
        vocabulary = metadata.read(path) if own is None else None
        found: Any = tokenizer.build(vocabulary) if vocabulary else own
        network = _network(stage, dtype, held)
        network.name_or_path = network.config.name_or_path = str(path)
        if vocabulary is not None:
            tokenizer.fit(network, vocabulary)
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


def _network(stage: dict[str, Any], dtype: torch.dtype, held: Mapping[str, int]) -> Any:
    """The network; `held` says how many weights each tensor of the file has."""
    config = transformers.AutoConfig.from_pretrained(**stage)
    fitting.check_config(config)
    bare = fitting.bare(config)
    count, there = fitting.needed(bare, dtype), sum(held.values())
    if count > 2 * there:  # what is missing is made up before it is told: not more than the file has
        raise errors.ModelError(f"its metadata describe {count:,} weights, it holds {there:,}")
    left_over = sorted(held.keys() - _read_by_transformers(bare))
    if left_over:
        raise errors.ModelError(f"it has tensors that this model has no place for: {fitting.listed(left_over)}")
    network, info = fitting.network_class(config).from_pretrained(
        config=config,
        dtype=dtype,
        quantization_config=transformers.GgufConfig(dequantize=True),
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **stage,
    )
    fitting.check_loaded(network, info)
    fitting.check_shapes(network, bare)
    vars(network.config).pop("quantization_config", None)
    return network


def _read_by_transformers(bare: Any) -> set[str]:
    """Names of the tensors that transformers takes from a GGUF file for a network."""
    from transformers import modeling_gguf_pytorch_utils as reading

    return set(reading.get_gguf_hf_weights_map(bare, reading.TensorProcessor()))
