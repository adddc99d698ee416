"""What fixes the study of layers: model, texts, windows and seed, with their checks. Costs nothing."""

from typing import Any

import pydantic

from sonde.core import errors
from sonde.core import settings as core_settings
from sonde.lab import texts as lab_texts
from sonde.models import config as model_config

METHODS = ("looped-parallel", "random", "parallel", "reverse", "skip", "middle-repeat")
#: Prompts to watch while layers are taken away: a fact with a number, arithmetic, JSON, a year.
PROMPTS = {
    "distance": "The distance between Rome and Paris is approximately",
    "addition": "1 + 3 = 4\n4 + 5 = 9\n2 + 3 =",
    "JSON": '{"name": "Ada", "langs": ["en", "fr"], "home": {"city": "Oslo", "zip": 150',
    "year": "Barack Obama was elected president in the year",
}
_SIZES = (2, 4, 8, 12)
_TEXTS = len(lab_texts.load())


class LayersSettings(core_settings.Settings):
    """What is to be done; window sizes lie in the middle of the model."""

    model: str = core_settings.field(..., "The model's name.")
    texts: int = core_settings.field(_TEXTS, "How many of the texts.", ge=2, le=_TEXTS)
    tokens: int = core_settings.field(64, "Tokens of each text.", ge=8)
    sizes: tuple[int, ...] = core_settings.field(_SIZES, "Window sizes.", option="--windows", min_length=1)
    orders: int = core_settings.field(5, "Random orders of each window.", ge=1)
    words: int = core_settings.field(12, "Tokens that prompts are continued by.", option="", ge=1)
    seed: int = core_settings.field(0, "Draws random orders and noise.", ge=0)

    @pydantic.field_validator("sizes")
    @classmethod
    def _of_two(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if min(sizes) < 2:
            raise ValueError(f"a window has two layers or more, got {list(sizes)}")
        return sizes


def settings_of(cfg: model_config.ModelConfig, **chosen: Any) -> LayersSettings:
    """Settings for a model: windows that leave its first and last layer alone; None keeps a default.

    Raises:
        RequestError: The model has fewer than four layers, or a window does not fit.
    """
    if cfg.n_layers < 4:
        raise errors.RequestError(f"{cfg.model_name} has {cfg.n_layers} layers: the study needs at least four")
    given = {name: value for name, value in chosen.items() if value is not None}
    most = cfg.n_layers - 2
    given["sizes"] = tuple(given.get("sizes", [size for size in _SIZES if size <= most]))
    wrong = [size for size in given["sizes"] if size > most]
    if wrong:
        raise errors.RequestError(f"a window of {wrong[0]} layers does not fit: {cfg.model_name} allows up to {most}")
    return LayersSettings(model=cfg.model_name, **given)


def window(size: int, n_layers: int) -> tuple[int, int]:
    """First and last layer of the window of a size in the middle of a model."""
    first = (n_layers - size) // 2
    return first, first + size - 1
