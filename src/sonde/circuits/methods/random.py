"""The control: what does a method find that looks at nothing?

Every edge gets a number drawn at random, by a generator of its own that depends on the seed alone. Costs nothing.
"""

from typing import Any

import numpy as np

from sonde.circuits import pairs as circuits_pairs
from sonde.circuits import registry, running_options
from sonde.circuits import scores as circuits_scores
from sonde.models import model as models_model


@registry.register("random")
def random(
    model: models_model.Model, pairs: circuits_pairs.Pairs, metric: Any = "logit_diff", **options: Any
) -> circuits_scores.Scores:
    """Random scores between 0 and 1: the control that every other method must beat.

    Args:
        model: The model.
        pairs: Not looked at.
        metric: Not looked at.
        **options: `ablation`, `batch_size`, `seed`, `tell`.
    """
    search = running_options.Search("random", model, pairs, metric, options)
    generator = np.random.default_rng(search.options.seed)
    return search.scores(generator.random(search.runner.graph.allowed.shape))
