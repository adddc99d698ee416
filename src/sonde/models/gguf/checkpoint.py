"""A GGUF file's network and tokenizer.

The weights are transformers' business, the tokenizer is not: transformers 5.22 drops the file's `add_bos_token`,
`add_space_prefix` and most pre-tokenizers. Weights become plain ones, which takes seconds to minutes.
"""

from pathlib import Path
from typing import Any

import torch
import transformers

from sonde.models.gguf import metadata, tokenizer


def load(path: Path, dtype: torch.dtype, own: Any = None) -> tuple[Any, Any]:
    """Network and tokenizer of a file.

    Args:
        path: The file.
        dtype: Type of the weights.
        own: A tokenizer in place of the file's, which then need not be readable.

    Raises:
        ModelError: The file's tokenizer cannot be had, or does not fit the network.
    """
    vocabulary = metadata.read(path) if own is None else None
    made = tokenizer.build(vocabulary) if vocabulary else own
    network: Any = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=dtype,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    vars(network.config).pop("quantization_config", None)
    if vocabulary is not None:
        tokenizer.fit(network, vocabulary)
    return network, made
