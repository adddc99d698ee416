"""What can be predicted without looking inside the model?

A probe is worth something if it beats what an observer knows anyway at the same moment:

- `majority`: nothing. A constant score, AUROC 0.5.
- `step index`: how far the episode has gone.
- `previous label`: whether the message before was invalid.
- `history`: step, previous label and the share of invalid messages so far, together. Activations carry all three, so a
  probe that only combines them beats each one alone and knows nothing new.
- `bag of words`: the words in view at that moment: before speaking the conversation so far, after it the message.
- `random features`: as many Gaussian numbers as the probe has features; shows what fitting so many gains by itself.

The control on shuffled labels is in `held_out`. Costs a few fits of small or sparse features.
"""

import numpy as np
from jaxtyping import Float, Int

from sonde.analysis import examples as examples_
from sonde.analysis import held_out, jackknife

KNOWN = ("majority", "step index", "previous label", "history", "bag of words")
WORDS = 5000
MARKS = r"\w+|[?!.]"
TEXT_STRENGTH = 0.1
FEW_STRENGTH = 1.0


def scorers(
    examples: examples_.Examples, moment: examples_.Moment, width: int, settings: examples_.Settings
) -> held_out.Scorers:
    """Returns the baselines for probes that look at a moment; without texts there is no bag of words.

    Args:
        examples: The rows.
        moment: Before or after speaking.
        width: Number of random features.
        settings: Strength of the fit on random features, as for the probe, and the seed.
    """
    labels = examples.labels
    exists, last, mean = examples.previous()
    steps = one_hot(examples.steps)
    before = np.stack([exists, last, exists & ~last], axis=1).astype(np.float64)
    history = np.concatenate([steps, before, mean[:, None]], axis=1)
    found: dict[str, held_out.Scorer] = {
        "majority": _constant,
        "step index": held_out.linear(steps, labels, FEW_STRENGTH),
        "previous label": held_out.linear(before, labels, FEW_STRENGTH),
        "history": held_out.linear(history, labels, FEW_STRENGTH),
    }
    texts = examples.known(moment)
    if texts is not None:
        found["bag of words"] = bag_of_words(texts, examples)
    noise = np.random.default_rng([settings.seed, width]).normal(size=(len(examples), width))
    found["random features"] = held_out.linear(noise, labels, settings.strength)
    return found


def one_hot(steps: Int[np.ndarray, "row"]) -> Float[np.ndarray, "row feature"]:
    """A column per step, and the step itself."""
    columns = (steps[:, None] == np.unique(steps)[None, :]).astype(np.float64)
    return np.concatenate([columns, steps[:, None].astype(np.float64)], axis=1)


def bag_of_words(texts: tuple[str, ...], examples: examples_.Examples) -> held_out.Scorer:
    """Which words occur, and which of `? ! .`; no counts, no weights that would have to be learned from test rows."""
    text = jackknife.imported("sklearn.feature_extraction.text", held_out.FEATURE)
    reader = text.CountVectorizer(binary=True, max_features=WORDS, token_pattern=MARKS, dtype=np.float64)
    if not any(map(reader.build_analyzer(), texts)):
        return _constant
    return held_out.linear(reader.fit_transform(texts).tocsr(), examples.labels, TEXT_STRENGTH, scale=False)


def _constant(train: Int[np.ndarray, "train"], test: Int[np.ndarray, "test"]) -> Float[np.ndarray, "test"]:
    return np.zeros(len(test))
