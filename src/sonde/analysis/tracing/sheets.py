"""Where a sweep writes its cells while it runs: one sheet per pair, filled with the clean result from the start."""

import numpy as np
from jaxtyping import Float
from torch import Tensor

from sonde.analysis.tracing import grids, planning
from sonde.analysis.tracing import pairs as tracing_pairs
from sonde.core import progress


class Counter:
    """Counts cells and tells."""

    def __init__(self, doing: str, of: int, tell: progress.Tell | None) -> None:
        """Nothing is done yet."""
        self._doing, self._of, self._tell = doing, of, tell
        self._done = 0

    def add(self, cells: int) -> None:
        """So many more are done."""
        self._done += cells
        if self._tell is not None and cells:
            self._tell(self._doing, self._done, self._of)


class Sheet:
    """The cells of one pair."""

    def __init__(
        self,
        pair: tracing_pairs.TracePair,
        plan: planning.Plan,
        positions: tuple[int, ...],
        clean: Float[Tensor, "d_vocab"],
        other: Float[Tensor, "d_vocab"],
    ) -> None:
        """Starts from the logits of the two inputs as they are."""
        self._pair, self._heads = pair, bool(plan.heads)
        self._positions = positions
        self._columns = {position: column for column, position in enumerate(positions)}
        self._clean, self._other = self._baseline(clean), self._baseline(other)
        shape = (len(plan.layers), len(positions), plan.variants)
        self._answer = np.full(shape, self._clean.answer_logit)
        self._counterfactual = np.full(shape, self._clean.counterfactual_logit)
        self._top = np.full(shape, self._clean.top, dtype=np.int64)

    def put(self, cell: tuple[int, int, int], logits: Float[Tensor, "d_vocab"], top: int) -> None:
        """Writes the result of a cell: layer index, position, variant."""
        layer, position, variant = cell
        at = (layer, self._columns[position], variant)
        self._answer[at] = float(logits[self._pair.answer])
        self._counterfactual[at] = float(logits[self._pair.counterfactual_answer])
        self._top[at] = top

    def grid(self) -> grids.Grid:
        """All of it."""
        arrays = (self._answer, self._counterfactual, self._top)
        answer, counterfactual, top = (array if self._heads else array[:, :, 0] for array in arrays)
        return grids.Grid(
            positions=self._positions,
            answer_logit=answer,
            counterfactual_logit=counterfactual,
            top=top,
            clean=self._clean,
            counterfactual=self._other,
            counterfactual_answer=self._pair.counterfactual_answer,
        )

    def _baseline(self, logits: Tensor) -> grids.Baseline:
        pair = self._pair
        answers = (float(logits[pair.answer]), float(logits[pair.counterfactual_answer]))
        return grids.Baseline(*answers, int(logits.argmax()))
