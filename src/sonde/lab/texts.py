"""On which texts is a corruption judged? Ten short ones, of ten kinds, that come with Sonde.

    texts.load()["lighthouse"]

A story, two explanations, a recipe, a program, a dialogue, a news report, a letter, the rules of a game, questions and
answers: 130 to 200 tokens each for most tokenizers, written for this purpose, so that no model was trained on them.
"""

import importlib.resources
import json


def load() -> dict[str, str]:
    """The texts by name."""
    place = importlib.resources.files("sonde.lab").joinpath("data", "texts.json")
    return json.loads(place.read_text(encoding="utf-8"))["texts"]
