"""What do all circuit finders have in common? Four options, a Runner, a clock, and the Scores at the end.

    @registry.register("mine")
    def mine(model, pairs, metric, *, steps: int = 5, **options):
        \"\"\"What it does.\"\"\"
        search = running_options.Search("mine", model, pairs, metric, options)
        …search.runner, search.options.seed, search.tell("looking", done, of)…
        return search.scores(values, settings={"steps": steps})

An option that no finder knows is an error, never ignored.
"""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from sonde.circuits import graph as circuits_graph
from sonde.circuits import metrics as circuits_metrics
from sonde.circuits import pairs as circuits_pairs
from sonde.circuits import running
from sonde.circuits import scores as circuits_scores
from sonde.core import errors, progress
from sonde.models import model as models_model


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What every finder can be told.

    Attributes:
        ablation: What a cut edge carries: `resample`, `zero` or `mean`.
        batch_size: Pairs to run at once; None for as many as fit.
        seed: Of whatever is drawn at random.
        tell: Called with what is being done, how much, and of how much.
    """

    ablation: str = "resample"
    batch_size: int | None = None
    seed: int = 0
    tell: progress.Tell = progress.silent

    @classmethod
    def of(cls, method: str, given: Mapping[str, Any]) -> "Options":
        """Checks the names of options.

        Raises:
            RequestError: There is no such option.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise errors.RequestError(
                    f"method {method!r} has no option {name!r}{errors.suggest(name, known)} Beside its own it takes "
                    f"{', '.join(known)}"
                )
        return cls(**given)


class Search:
    """One run of a finder."""

    def __init__(
        self,
        method: str,
        model: models_model.Model,
        pairs: circuits_pairs.Pairs,
        metric: Any,
        options: Mapping[str, Any],
    ) -> None:
        """Starts the clock.

        Args:
            method: The finder's name.
            model: The model.
            pairs: Clean and corrupt inputs.
            metric: What they are judged by.
            options: What the finder was told beside its own options.
        """
        self._start = time.perf_counter()
        self.method, self.options = method, Options.of(method, options)
        self.runner = running.Runner(
            model,
            pairs,
            circuits_metrics.get(metric),
            ablation=self.options.ablation,
            batch_size=self.options.batch_size,
        )

    def tell(self, doing: str, done: int, of: int) -> None:
        """Says how far it is."""
        self.options.tell(doing, done, of)

    def scores(
        self,
        values: Float[np.ndarray, "source *destination"],
        *,
        settings: Mapping[str, Any] | None = None,
        kept: circuits_graph.Circuit | None = None,
    ) -> circuits_scores.Scores:
        """The Scores of edges (a matrix) or nodes (a vector), with what they took."""
        spent, graph = self.runner.spent, self.runner.graph
        level: circuits_scores.Level = "edge" if values.ndim == 2 else "node"
        values = values.astype(np.float64)
        return circuits_scores.Scores(
            graph=graph,
            method=self.method,
            level=level,
            values=np.where(graph.allowed, values, np.nan) if level == "edge" else values,
            metric=self.runner.metric.name,
            ablation=self.runner.ablation,
            cost=circuits_scores.Cost(spent.forwards, spent.backwards, time.perf_counter() - self._start),
            settings={"seed": self.options.seed, "n_pairs": len(self.runner.pairs), **(settings or {})},
            kept=kept,
        )
