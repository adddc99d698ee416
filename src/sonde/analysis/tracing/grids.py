"""What a sweep found: one grid of patched runs per pair, and the figures that are read off it.

Clean logits c, counterfactual logits f and patched logits p at the final position; answers y and y'; LD(z) = z[y] - z[y'].

| figure | formula | reads |
|---|---|---|
| `recovery` | (LD(c) - LD(p)) / (LD(c) - LD(f)) | 0: the patch does nothing, 1: it does all that the other input does |
| `normalised_logit_difference` | (p[y'] - c[y']) / its largest value in the grid | 1 at the strongest cell |
| `success` | argmax p = y' | the patch brings the other answer about |
| `changed` | argmax p != argmax c | any other answer; counts damage as well |

Costs nothing but small arrays.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int

from sonde.analysis.tracing import pairs as tracing_pairs

Component = Literal["residual_stream", "attention_heads", "attention", "mlp"]
COMPONENTS: tuple[str, ...] = get_args(Component)


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """An input that was run as it is: the logits of both answers at its final position, and the most likely token."""

    answer_logit: float
    counterfactual_logit: float
    top: int

    @property
    def difference(self) -> float:
        """How far the answer is above the counterfactual one."""
        return self.answer_logit - self.counterfactual_logit


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Grid:
    """All patched runs of one pair.

    Attributes:
        positions: The positions patched, in the order of the second axis; -1, -2, … are groups patched together.
        answer_logit: Logit of the answer under each patch.
        counterfactual_logit: Logit of the counterfactual answer.
        top: The most likely token.
        clean: The clean input as it is.
        counterfactual: The counterfactual input as it is.
        counterfactual_answer: The token that counts as success.
    """

    positions: tuple[int, ...]
    answer_logit: Float[np.ndarray, "layer pos *head"]
    counterfactual_logit: Float[np.ndarray, "layer pos *head"]
    top: Int[np.ndarray, "layer pos *head"]
    clean: Baseline
    counterfactual: Baseline
    counterfactual_answer: int

    @property
    def recovery(self) -> Float[np.ndarray, "layer pos *head"]:
        """How much of the counterfactual run each patch brings about; nan where the two runs do not differ in it."""
        whole = self.clean.difference - self.counterfactual.difference
        moved = self.clean.difference - (self.answer_logit - self.counterfactual_logit)
        return moved / whole if whole else np.full_like(moved, np.nan)

    @property
    def normalised_logit_difference(self) -> Float[np.ndarray, "layer pos *head"]:
        """How much each patch raises the counterfactual answer, against the strongest; nan if none raises it."""
        raised = self.counterfactual_logit - self.clean.counterfactual_logit
        most = raised.max(initial=0.0)
        return raised / most if most > 0 else np.full_like(raised, np.nan)

    @property
    def success(self) -> Bool[np.ndarray, "layer pos *head"]:
        """Where the counterfactual answer becomes the most likely one."""
        return self.top == self.counterfactual_answer

    @property
    def changed(self) -> Bool[np.ndarray, "layer pos *head"]:
        """Where the most likely token is another than without a patch."""
        return self.top != self.clean.top

    def to_json(self) -> dict[str, Any]:
        """The grid as JSON data."""
        return {
            "positions": list(self.positions),
            "answer_logit": self.answer_logit.tolist(),
            "counterfactual_logit": self.counterfactual_logit.tolist(),
            "top": self.top.tolist(),
            "clean": dataclasses.asdict(self.clean),
            "counterfactual": dataclasses.asdict(self.counterfactual),
            "counterfactual_answer": self.counterfactual_answer,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Grid":
        """Reads what `to_json` wrote."""
        return cls(
            positions=tuple(data["positions"]),
            answer_logit=np.array(data["answer_logit"], dtype=np.float64),
            counterfactual_logit=np.array(data["counterfactual_logit"], dtype=np.float64),
            top=np.array(data["top"], dtype=np.int64),
            clean=Baseline(**data["clean"]),
            counterfactual=Baseline(**data["counterfactual"]),
            counterfactual_answer=data["counterfactual_answer"],
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """A sweep over pairs.

    Attributes:
        component: What was patched; `knockout` where attention was forbidden instead.
        pairs: The pairs.
        layers: The layers patched, in the order of the first axis of every grid. In the residual stream, layer L means
            the stream into layer L, and a last row, the number of layers, the stream after the last.
        grids: One per pair, in their order.
        heads: The heads patched, in the order of the last axis; empty where the component has none.
    """

    component: Component | Literal["knockout"]
    pairs: tuple[tracing_pairs.TracePair, ...]
    layers: tuple[int, ...]
    grids: list[Grid]
    heads: tuple[int, ...] = ()

    def select(self, indices: Sequence[int]) -> "Sweep":
        """The same sweep with only some of its pairs."""
        chosen = tuple(self.pairs[index] for index in indices)
        return dataclasses.replace(self, pairs=chosen, grids=[self.grids[index] for index in indices])

    def to_json(self) -> dict[str, Any]:
        """The sweep as JSON data."""
        return {
            "component": self.component,
            "layers": list(self.layers),
            "heads": list(self.heads),
            "pairs": [pair.to_json() for pair in self.pairs],
            "grids": [grid.to_json() for grid in self.grids],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Sweep":
        """Reads what `to_json` wrote."""
        return cls(
            data["component"],
            tuple(tracing_pairs.TracePair.from_json(pair) for pair in data["pairs"]),
            tuple(data["layers"]),
            [Grid.from_json(grid) for grid in data["grids"]],
            tuple(data["heads"]),
        )
