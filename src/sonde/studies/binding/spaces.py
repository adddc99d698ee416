"""The subspaces of the number and of the variable: ten directions each, found on training programs, tested on others.

1. Place: for the number the middle right-hand side of two-hop chains and the final token, for the variable the final
   token (or the query) in programs of which two letters are asked for; each at the layer where patching the whole stream
   does most, judged on training programs.
2. Two subspaces of ten directions: principal components in which the label can be read, and a learned rotation.
3. Interchange on held-out pairs, beside random subspaces, the whole stream and all that is outside.

Costs a minute or two for a small model.
"""

from typing import Any

import numpy as np

from sonde.analysis import subspaces
from sonde.models import model as models_model
from sonde.studies.binding import language, patching

COMPONENTS = 10
LEARNED_FROM = 600


def number(
    model: models_model.Model, grammar: language.Grammar, *, role: str, pairs: int, seed: int = 0
) -> dict[str, Any]:
    """The subspace of the root's value in two-hop programs, at a role."""
    sides = []
    for held_out, count in ((False, LEARNED_FROM), (True, pairs)):
        rng = np.random.default_rng([3, seed, held_out])
        programs = programs_of(grammar, 2, patching.TRIES * count, rng, held_out=held_out)
        sides.append(patching.root_pairs(model, programs, count, rng))
    return {"what": "number", **_measured(model, sides[0], sides[1], role)}


def variable(
    model: models_model.Model, grammar: language.Grammar, *, role: str, pairs: int, seed: int = 0
) -> dict[str, Any]:
    """The subspace of the letter that is asked for, at a role."""
    sides = []
    for held_out, count in ((False, LEARNED_FROM), (True, pairs)):
        rng = np.random.default_rng([4, seed, held_out])
        programs = language.draw(grammar, patching.TRIES * count, rng, held_out=held_out)
        sides.append(patching.query_pairs(model, programs, count, rng))
    return {"what": "variable", **_measured(model, sides[0], sides[1], role, label="letter")}


def programs_of(
    grammar: language.Grammar, hops: int, count: int, rng: np.random.Generator, *, held_out: bool
) -> language.Programs:
    """Programs of so many hops with the root after line 2."""
    found: list[language.Programs] = []
    while sum(map(len, found)) < count:
        some = language.draw(grammar, 8 * count, rng, held_out=held_out)
        found.append(some[(some.hops == hops) & (some.roots > 1)])
    return language.joined(*found)[:count]


def _measured(
    model: models_model.Model, training: patching.Traced, test: patching.Traced, role: str, label: str = "answer"
) -> dict[str, Any]:
    """Both kinds of subspace at the role's best layer."""
    layer = _layer(model, training, role)
    here, there = (subspaces.Place(layer, one.places(role)) for one in (training, test))
    rows = [side for pair in training.pairs for side in (pair.clean, pair.counterfactual)]
    twice = subspaces.Place(layer, [at for at in here.positions for _ in range(2)])
    if label == "letter":
        labels = np.array([row[-2] for row in rows])
    else:
        labels = np.array([one for pair in training.pairs for one in (pair.answer, pair.counterfactual_answer)])
    fitted = subspaces.of_labels(subspaces.states(model, rows, twice), labels, components=COMPONENTS)
    learned = subspaces.rotated(model, training.pairs, here, COMPONENTS)
    return {
        "role": role,
        "layer": layer,
        "components": COMPONENTS,
        "n": len(test.pairs),
        "repeated": test.repeated,
        "learned_from": len(training.pairs),
        "accuracy": fitted.accuracy.to_json(),
        "majority": fitted.majority,
        "variance": fitted.variance,
        "pca": subspaces.compare(model, test.pairs, there, fitted.basis).to_json(),
        "rotation": subspaces.compare(model, test.pairs, there, learned.basis).to_json(),
    }


def _layer(model: models_model.Model, training: patching.Traced, role: str) -> int:
    """The first layer from 1 on at which patching the whole stream does (almost) most."""
    rates = [
        subspaces.successes(model, training.pairs, subspaces.Place(layer, training.places(role))).mean()
        for layer in range(1, model.cfg.n_layers + 1)
    ]
    return 1 + next(at for at, rate in enumerate(rates) if rate >= max(rates) - 0.02)
