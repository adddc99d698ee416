"""`sonde.load`: from a name, a folder or a GGUF file to a Model that has proved its Sites."""

import difflib
from pathlib import Path
from typing import Any

import torch

from sonde.core import errors
from sonde.models import checkpoint, downloads, folders, prove, tiny, waiting, zoo
from sonde.models import model as models_model
from sonde.models import tokenizer as models_tokenizer
from sonde.models.gguf import network as gguf_network


@waiting.loading
def load(
    name_or_path: str | Path = zoo.DEFAULT,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = torch.float32,
    tokenizer: Any = None,
    **options: Any,
) -> models_model.Model:
    """Loads a causal language model.

    Args:
        name_or_path: A zoo name (`smollm2-135m-instruct`, `tiny-gpt2`, …), a model folder, a GGUF file, or a Hugging
            Face id.
        device: Where to put it; `auto`: CUDA, else MPS, else the CPU.
        dtype: Type of the weights, as torch dtype or name.
        tokenizer: A tokenizer, or the folder, GGUF file or Hugging Face id of one; the model's own if left out.
        **options: Passed on to `Model`: `name` (what to call it), `kv_budget`, `max_batch`.

    Raises:
        ZooError: The model is not to be had.
        ModelError: The checkpoint cannot be read.
        FamilyError: The architecture is unknown, or its row does not fit.
    """
    name, kind, place = str(name_or_path), dtype_of(dtype), device_of(device)
    own = models_tokenizer.load(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    hf, found = _network(name, kind, own)
    with folders.explained(f"cannot load {name}"):
        model = models_model.Model(hf.to(device=place, dtype=kind), found, **{"name": name, **options})
        prove.prove(model)
    model.source = _source(name)
    return model


def _source(name: str) -> str:
    """The name as it is understood in any working folder."""
    path = Path(name).expanduser()
    return str(path.resolve()) if name not in zoo.names() and path.exists() else name


def _network(name: str, dtype: torch.dtype, own: Any) -> tuple[Any, Any]:
    path = Path(name).expanduser()
    if name in tiny.CONFIGS:
        network, found = tiny.make(name)
        return network, found if own is None else own
    if name in zoo.WHEELS:
        path = zoo.local_folder(name)
    near = difflib.get_close_matches(name.lower(), zoo.names(), n=1, cutoff=0.8)
    if near and "/" not in name and not path.exists():  # the hub would be asked for half a minute
        raise errors.ZooError(f"no model {name!r}; did you mean {near[0]!r}?")
    if path.is_file():
        if path.suffix != ".gguf":
            raise errors.ModelError(f"{name} is a file but not a GGUF file: give the model's folder")
        return gguf_network.read(path, dtype, own)
    return checkpoint.read(path if path.is_dir() else _from_hub(name), dtype, own)


def _from_hub(name: str) -> Path:
    try:
        return downloads.fetch(name)
    except errors.SondeError:
        raise
    except (OSError, ValueError, RuntimeError, LookupError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        known = zoo.names()
        raise errors.ZooError(
            f"no model {name!r}{errors.suggest(name, known)} It is no zoo name ({', '.join(known)}), no folder or file here, "
            f"and the Hugging Face hub did not give it: {first}"
        ) from error


def dtype_of(dtype: str | torch.dtype) -> torch.dtype:
    """A floating point type by name or as it is."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise errors.ModelError(f"dtype must be a floating point type such as 'float32' or 'bfloat16', got {dtype!r}")
    return found


def device_of(device: str | torch.device) -> torch.device:
    """A device that can be used here; `auto` is CUDA, else MPS, else the CPU."""
    if device == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        device = found if found is not None and found.type in ("cuda", "mps") else "cpu"
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        first = str(error).splitlines()[0]
        raise errors.ModelError(f"device {device!r} cannot be used here, 'cpu' always can: {first}") from error
