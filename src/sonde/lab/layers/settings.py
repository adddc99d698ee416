"""What fixes the study of layers: model, texts, windows and seed, with their checks. Costs nothing."""

import dataclasses
from typing import Any

from sonde.core import errors
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is to be done.

    Attributes:
        model: The model's name.
        texts: How many texts.
        tokens: Tokens of each.
        sizes: Window sizes; windows lie in the middle of the model.
        orders: Random orders per window.
        words: Tokens that prompts are continued by.
        seed: Draws random orders and noise.
    """

    model: str
    texts: int = 10
    tokens: int = 64
    sizes: tuple[int, ...] = (2, 4, 8, 12)
    orders: int = 5
    words: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks what can be checked without a model."""
        if not 2 <= self.texts <= len(lab_texts.load()):
            raise errors.RequestError(f"choose 2 to {len(lab_texts.load())} texts, got {self.texts}")
        if self.tokens < 8 or self.orders < 1 or self.words < 1 or not self.sizes or min(self.sizes) < 2:
            raise errors.RequestError(
                f"the study needs at least 8 tokens, an order, a word, and windows of two layers or more; got "
                f"{self.tokens} tokens, {self.orders} orders, {self.words} words, windows {list(self.sizes)}"
            )

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON data."""
        return {**dataclasses.asdict(self), "sizes": list(self.sizes)}


def settings_of(cfg: model_config.ModelConfig, **chosen: Any) -> Settings:
    """Settings for a model: windows that leave its first and last layer alone; None keeps a default.

    Raises:
        RequestError: The model has fewer than four layers, or a window does not fit.
    """
    if cfg.n_layers < 4:
        raise errors.RequestError(f"{cfg.model_name} has {cfg.n_layers} layers: the study needs at least four")
    given = {name: value for name, value in chosen.items() if value is not None}
    most = cfg.n_layers - 2
    default = tuple(size for size in Settings(model="").sizes if size <= most)
    given["sizes"] = tuple(given.get("sizes", default))
    wrong = [size for size in given["sizes"] if size > most]
    if wrong:
        raise errors.RequestError(f"a window of {wrong[0]} layers does not fit: {cfg.model_name} allows up to {most}")
    return Settings(model=cfg.model_name, **given)


def window(size: int, n_layers: int) -> tuple[int, int]:
    """First and last layer of the window of a size in the middle of a model."""
    first = (n_layers - size) // 2
    return first, first + size - 1
