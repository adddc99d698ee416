"""Which nodes of a model can be judged? Those outside its circuit, and those inside that change answers when they are exchanged.

    judged = judging.of(subject)
    judged.true, judged.left_out, judged.share_left_out
    judging.dropped({"case 3": judged, ...})            # models that a board leaves out, and why

A node of the program that changes less than 2 % of exchanges (see `lengths`), such as one that knows nothing but positions, teaches a
trained model nothing, and no method could find it. It is neither true nor false: rankings leave it out, with the edges at it. If that is more than
a fifth of the nodes of all models of a board, models are dropped until it is not, those with the largest share first (`dropped`). A model
with nothing left to tell apart stays, without an AUROC.

For a trained model the share is the one that training measured; else it is measured on 480 pairs. Costs that, once per task.
"""

import dataclasses
import functools
from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

from sonde.bench import correspondence, high, lengths, shipped

MOST = 0.2
ROWS, DRAWS = 20, 24
Model = TypeVar("Model", bound=Hashable)


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """The nodes of one model.

    Attributes:
        true: Nodes of the circuit that are judged.
        left_out: Nodes of the circuit that are not.
        false: All others.
    """

    true: tuple[str, ...]
    left_out: tuple[str, ...]
    false: tuple[str, ...]

    @property
    def share_left_out(self) -> float:
        """Of all heads and MLPs."""
        return len(self.left_out) / (len(self.true) + len(self.left_out) + len(self.false))


def of(subject: shipped.Subject) -> Judged:
    """The nodes of a subject."""
    places = subject.log.get("places", {})
    out = tuple(places.get(node, node) for node, share in shares(subject).items() if share < lengths.LEAST)
    inside = correspondence.nodes_of(subject.truth)
    false = tuple(node for node in subject.truth.graph.merged().sources[1:] if node not in (*inside, *out))
    return Judged(tuple(node for node in inside if node not in out), out, false)


def dropped(models: Mapping[Model, Judged]) -> dict[Model, str]:
    """The models that a board leaves out so that at most `MOST` of its nodes cannot be judged, and why."""
    kept, found = dict(models), dict[Model, str]()
    for name in sorted(models, key=lambda one: models[one].share_left_out, reverse=True):
        nodes = sum(len(one.true) + len(one.left_out) + len(one.false) for one in kept.values())
        if sum(len(one.left_out) for one in kept.values()) <= MOST * nodes:
            break
        out = kept.pop(name)
        found[name] = f"{out.share_left_out:.0%} of its nodes never matter in an exchange, {', '.join(out.left_out)}"
    return found


def shares(subject: shipped.Subject) -> dict[str, float]:
    """The share of exchanges that each node of the program changes."""
    if "program" in subject.log:
        return dict(subject.log["measured"]["moved"])
    return _shares(subject.task)


@functools.lru_cache(maxsize=256)
def _shares(task: high.Task) -> dict[str, float]:
    rng = np.random.default_rng(7)
    return lengths.moved(task, [lengths.pair(task, rng, ROWS) for _ in range(DRAWS)])
