"""The trained models that come with the package: small ones, with their logs, recipes, and weights of earlier phases.

    shipped.names()                                   # ("seed-0", …)
    with sonde.load(shipped.folder("seed-0")) as model: ...
    shipped.at_step("seed-0", 500)                    # the network as it was after so many steps

`pack` makes such a folder of a training run. Costs nothing: files beside this module, some megabytes in all.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sonde.core import errors
from sonde.store import disk
from sonde.studies.binding import training

FOLDER = Path(__file__).parent / "checkpoints"
PHASES = "phases"


def names() -> tuple[str, ...]:
    """The models that come with the package."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/config.json")))


def folder(name: str) -> Path:
    """The folder of a model that comes with the package, or of one that a training run made.

    Raises:
        RequestError: There is no such model.
    """
    for path in (FOLDER / name, Path(name).expanduser(), Path(name).expanduser() / training.MODEL):
        if (path / "config.json").is_file():
            return path
    raise errors.RequestError(
        f"no binding model {name!r}{errors.suggest(name, names())} There are {', '.join(names()) or 'none'}, and folders "
        "that `sonde study binding train` made"
    )


def recipe(name: str) -> training.BindingTrainingSettings:
    """What a model was trained by."""
    return training.BindingTrainingSettings.from_json(_read(name, training.RECIPE))


def log(name: str) -> list[dict[str, Any]]:
    """What was measured while it was trained, from step 0 to the last."""
    return _read(name, training.LOG)


def steps(name: str) -> tuple[int, ...]:
    """The earlier steps of which there are weights."""
    return tuple(sorted(int(path.stem.removeprefix("step-")) for path in (folder(name) / PHASES).glob("step-*")))


def at_step(name: str, step: int) -> Any:
    """The network as it was after a step.

    Raises:
        RequestError: The weights of that step are not there.
    """
    import safetensors.torch
    import torch

    from sonde.studies.binding import network

    if step not in steps(name):
        raise errors.RequestError(f"{name} has no weights of step {step}; it has {', '.join(map(str, steps(name)))}")
    made = recipe(name)
    found = network.make(made.shape, made.grammar, made.seed)
    stored = safetensors.torch.load_file(folder(name) / PHASES / f"step-{step:06d}.safetensors")
    found.load_state_dict({key: value.to(torch.float32) for key, value in stored.items()})
    return found.eval()


def pack(run: Path, target: Path, phases: Iterable[int] = ()) -> None:
    """Copies the model of a finished training run into a folder to ship; weights of earlier steps in half precision."""
    import safetensors.torch
    import torch

    with disk.explained(target):
        shutil.copytree(run / training.MODEL, target, dirs_exist_ok=True)
        (target / PHASES).mkdir(exist_ok=True)
        for step in phases:
            name = f"step-{step:06d}.safetensors"
            weights = safetensors.torch.load_file(run / "snapshots" / name)
            half = {key: value.to(torch.float16) for key, value in weights.items()}
            disk.write_atomic(target / PHASES / name, safetensors.torch.save(half))


def _read(name: str, file: str) -> Any:
    """A file that stands with the model."""
    path = folder(name) / file
    if not path.is_file():
        raise errors.RequestError(f"{path} is missing: this is not a model that `sonde study binding train` made")
    with disk.explained(path, doing="read"):
        return json.loads(path.read_text())
