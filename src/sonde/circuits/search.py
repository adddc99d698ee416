"""One task for one model, and one way of judging: the pairs in two halves, and what circuits do on them.

    found = search.Search(model, settings)
    found.begin(found.measured())                 # the whole model, and the model with every edge cut
    found.alone(found.circuit(found.scored("eap"), {"n_edges": 100}))

Costs a pass over the judging pairs for each circuit.
"""

import dataclasses
import hashlib
import inspect
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from sonde.analysis import stats
from sonde.circuits import faithfulness, graph, metrics, pairs, registry, running, scores, tasks
from sonde.circuits import settings as circuits_settings
from sonde.core import errors, progress
from sonde.models import model as models_model

ENDS = ("whole", "empty")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """A circuit that was chosen, and how it does alone.

    Attributes:
        method: Who found it.
        circuit: Its edges.
        f: Faithfulness of the circuit alone; None if it is empty.
        without: Faithfulness of the model without the circuit: near 0 if nothing else does the same.
        thresholds: The least and the largest threshold that keeps any edge.
    """

    method: str
    circuit: graph.Circuit
    f: stats.Estimate | None
    without: stats.Estimate | None
    thresholds: tuple[float, float]


class Search:
    """One model, one task, one way of judging."""

    def __init__(self, model: models_model.Model, settings: circuits_settings.CircuitsSettings) -> None:
        """Makes the pairs.

        Raises:
            RequestError: The task does not fit the tokenizer.
        """
        self.model, self.settings = model, settings
        self.metric, make = metrics.get(settings.metric), tasks.get(settings.task)
        count = settings.pairs if settings.pairs is not None or settings.task.endswith(".jsonl") else (
            circuits_settings.PAIRS
        )  # fmt: skip
        self.pairs, self.report = make(model, n=count, seed=settings.seed)
        self.scoring, self.judging = halves(self.pairs, seed=settings.seed) if settings.holdout else [self.pairs] * 2
        self.graph = graph.Graph.of(model)
        self.count = faithfulness.ROUNDED[settings.sizes]
        how: Any = {"ablation": settings.ablation, "batch_size": settings.batch_size}
        self._runner = running.Runner(model, self.judging, self.metric, **how)
        self.judge: faithfulness.Judge

    def measured(self) -> dict[str, Any]:
        """The ends, measured."""
        ends = faithfulness.Judge(self._runner, count=self.count).ends
        return {"tokens": self._digest(), **{name: getattr(ends, name).tolist() for name in ENDS}}

    def begin(self, kept: Mapping[str, Any]) -> None:
        """Judges between ends that were measured.

        Raises:
            RequestError: They were measured on other pairs.
        """
        if kept["tokens"] != self._digest():
            raise errors.RequestError(
                f"{self.settings.task} gives other pairs than those that the run was started with: give it another name"
            )
        whole, empty = (np.array(kept[name], dtype=np.float64) for name in ENDS)
        ends = faithfulness.Ends(whole, empty, tuple(self.judging.clusters))
        self.judge = faithfulness.Judge(self._runner, ends=ends, count=self.count)

    def scored(self, method: str, tell: progress.Tell) -> scores.Scores:
        """What a method finds."""
        finder, settings = registry.get(method), self.settings
        return finder(
            self.model,
            self.scoring,
            self.metric,
            ablation=settings.ablation,
            batch_size=settings.batch_size,
            seed=settings.seed,
            tell=lambda doing, done, total: tell(f"scores {method}", done, total),
            **{name: value for name, value in settings.method_options.items() if name in own_options(finder)},
        )

    def sizes(self) -> list[int]:
        """The numbers of edges that are run alone, but for none and all."""
        counts = {self.count(share * self.graph.n_edges) for share in faithfulness.SIZES}
        return sorted(counts - {0, self.graph.n_edges})

    def best(self, found: scores.Scores, n_edges: int) -> Float[np.ndarray, "pair"]:
        """The metric of each pair with a method's best edges alone."""
        return self.judge.values(found.circuit(n_edges=n_edges, absolute=self.settings.absolute))

    def circuit(self, found: scores.Scores, how: Mapping[str, Any]) -> graph.Circuit:
        """A circuit by `n_edges`, `share` or `threshold`; without either, what the method kept, or a readable size."""
        if not any(value is not None for value in how.values()) and found.kept is None:
            how = {"n_edges": min(100, max(1, self.graph.n_edges // 10))}
        if (share := how.get("share")) is not None and 0 <= share <= 1:
            how = {**how, "share": None, "n_edges": self.count(share * self.graph.n_edges)}
        return found.circuit(**how, absolute=self.settings.absolute)

    def alone(self, circuit: graph.Circuit) -> list[Float[np.ndarray, "pair"]]:
        """The metric of each pair with the circuit alone, and with the model without it; nothing of an empty one."""
        rest = graph.Circuit(circuit.graph, circuit.graph.allowed & ~circuit.edges)
        return [self.judge.values(one) for one in (circuit, rest)] if len(circuit) else []

    def judged(self, found: scores.Scores, circuit: graph.Circuit, *values: Float[np.ndarray, "pair"]) -> Chosen:
        """A circuit with what it does, from what `alone` gave."""
        every = found.edge_values(absolute=self.settings.absolute)
        finite = every[np.isfinite(every)]
        span = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        alone, without = (self.judge.ends.estimate(one) for one in values) if values else (None, None)
        return Chosen(found.method, circuit, alone, without, span)

    def checks(self, circuit: graph.Circuit, choice: circuits_settings.Choice, tell: progress.Tell) -> dict[str, Any]:
        """Minimality and completeness, as far as they are asked for."""
        told: dict[str, Any] = {}
        if not len(circuit) or not self.judge.ends.enough:
            return told
        if choice.minimality:
            one = self.judge.minimality(circuit, most=choice.minimality, seed=self.settings.seed, tell=tell)
            told["minimality"] = {**dataclasses.asdict(one), "idle": one.idle()}
        if choice.completeness:
            two = self.judge.completeness(circuit, parts=choice.completeness, seed=self.settings.seed, tell=tell)
            told["completeness"] = {**dataclasses.asdict(two), "gaps": list(two.gaps)}
        return told

    def seconds(self) -> float:
        """How long a circuit takes to run alone."""
        start = time.monotonic()
        self._runner.metric_of(graph.Circuit.empty(self.graph))
        return time.monotonic() - start

    def _digest(self) -> str:
        """Changes when any token of any pair does."""
        given = self.pairs
        tokens = (given.clean, given.corrupt, given.ends, given.answers, given.wrongs)
        return hashlib.sha256(b"".join(one.cpu().numpy().tobytes() for one in tokens)).hexdigest()[:16]


def halves(given: pairs.Pairs, *, seed: int = 0) -> tuple[pairs.Pairs, pairs.Pairs]:
    """Two halves without a common pair, drawn within each cluster.

    Raises:
        RequestError: There is only one pair.
    """
    if len(given) < 2:
        raise errors.RequestError("one pair cannot both score and judge: give more pairs, or turn the holdout off")
    drawn = np.random.default_rng(seed).permutation(len(given))
    order = sorted(drawn.tolist(), key=lambda row: given.clusters[row])  # stable: drawn within a cluster
    return given.select(sorted(order[::2])), given.select(sorted(order[1::2]))


def own_options(finder: registry.Method) -> set[str]:
    """Options that only this method has: those that its signature names."""
    named = inspect.signature(finder).parameters.values()
    common = {"ablation", "batch_size", "seed", "tell"}
    return {one.name for one in named if one.kind is one.KEYWORD_ONLY} - common
