"""How is a circuit found and judged from beginning to end, so that nothing is lost? The search: task, scores, faithfulness.

    search = experiment.Search(model, experiment.Settings(task="ioi", pairs=64))
    found = search.run(["eap", "eap-ig", "random"], folder="circuits/mine")
    found.curves["eap-ig"].cpr, found.chosen("eap-ig", n_edges=100).f

1. The task makes pairs that fit the model's tokenizer. Half of them, drawn within each cluster (template), give the scores;
   the others judge: the two halves share templates, and no pair (`holdout=False`: all do both, and f is too high).
2. Each method scores the edges; its scores are on disk before the next begins.
3. The best edges run alone, from few to all; each size is on disk before the next begins (`faithfulness`).
4. A circuit is chosen by number of edges, share or threshold, run alone, and cut out of the whole model.

The same settings and folder go on where it was stopped. Costs the methods, and a pass over the judging pairs for each size.
"""

import dataclasses
import hashlib
import inspect
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sonde.analysis import stats
from sonde.circuits import faithfulness, graph, keeping, metrics, pairs, registry, running, scores, tasks
from sonde.core import errors
from sonde.models import identity
from sonde.models import model as models_model

PAIRS = 64
FOLDER = Path("circuits")
ENDS = ("whole", "empty")
BACKWARD = 3.0  # a forward and a backward pass, in forward passes
CUT = 0.35  # cutting one edge, in forward passes under a mask: only what is above it runs; measured 0.3 to 0.5
ACDC = 0.15  # the same where what was cut before need not run either; measured 0.03 to 0.26, by how much is kept
Tell = faithfulness.Tell


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What fixes the results of a search, beside the model and the methods.

    Attributes:
        task: The name of a task, or a `.jsonl` file of pairs.
        pairs: How many; 64, or all of a file.
        metric: What the behaviour is measured by.
        ablation: What a cut edge carries.
        holdout: Whether other pairs judge than those that gave the scores.
        absolute: Whether a large negative score counts as much as a positive one.
        seed: Fixes pairs, halves and methods.
        batch_size: Pairs that go through the model together; as many as are comfortable if None.
        options: Further options, for those methods that take them.
        sizes: Whether a part of all edges is rounded to a number of edges (`round`), or down (`floor`) as in MIB's evaluation.
    """

    task: str = "ioi"
    pairs: int | None = None
    metric: str = "logit_diff"
    ablation: str = "resample"
    holdout: bool = True
    absolute: bool = True
    seed: int = 0
    batch_size: int | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sizes: str = "round"

    def __post_init__(self) -> None:
        """Refuses a rounding that is not known."""
        known = tuple(faithfulness.ROUNDED)
        if self.sizes not in known:
            raise errors.RequestError(
                f"no sizes {self.sizes!r}; there are {', '.join(known)}{errors.suggest(self.sizes, known)}"
            )

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON data."""
        found = {**dataclasses.asdict(self), "options": dict(self.options)}
        if self.sizes == "round":  # as searches were written that knew no other
            del found["sizes"]
        return found

    def count(self, share: float, n_edges: int) -> int:
        """How many edges a part of all is."""
        return faithfulness.ROUNDED[self.sizes](share * n_edges)


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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A finished search.

    Attributes:
        model_id: The model's name.
        search: What was searched, and by what.
        scores: What each method found.
        curves: How its best edges do alone.
        folder: Where it is kept.
    """

    model_id: str
    search: "Search"
    scores: dict[str, scores.Scores]
    curves: dict[str, faithfulness.Curve]
    folder: Path

    def chosen(self, method: str, **how: Any) -> Chosen:
        """A circuit of one method, chosen by `n_edges`, `share` or `threshold`, and run alone."""
        return self.search.choose(self.scores[method], self.folder, **how)


class Search:
    """One model, one task, one way of judging."""

    def __init__(self, model: models_model.Model, settings: Settings) -> None:
        """Makes the pairs.

        Raises:
            RequestError: Task, metric or ablation is unknown, or the task does not fit the tokenizer.
        """
        self.model, self.settings, self.held = model, settings, identity.of(model)
        self.metric, make = metrics.get(settings.metric), tasks.get(settings.task)
        count = settings.pairs if settings.pairs is not None or settings.task.endswith(".jsonl") else PAIRS
        self.pairs, self.report = make(model, n=count, seed=settings.seed)
        self.scoring, self.judging = halves(self.pairs, seed=settings.seed) if settings.holdout else [self.pairs] * 2
        self.graph = graph.Graph.of(model)
        how: Any = {"ablation": settings.ablation, "batch_size": settings.batch_size}
        self._runner = running.Runner(model, self.judging, self.metric, **how)
        self._judge: faithfulness.Judge | None = None
        self.seconds = 0.0

    def prepare(self, folder: str | Path, methods: Sequence[str]) -> dict[str, float | None]:
        """Opens the folder and measures the whole model and the model with every edge cut.

        Returns:
            Seconds that each method and its curve will still take, about; None where nobody knows.
        """
        chosen = {name: registry.get(name) for name in methods}
        self._check_options(chosen)
        kept = self._open(folder)
        try:
            self._measure_ends(kept)
            return {name: self._estimate(name, kept) for name in chosen}
        finally:
            kept.close()

    def run(self, methods: Sequence[str], *, folder: str | Path, tell: Tell = lambda doing, done, of: None) -> Found:
        """Runs what is not on disk yet.

        Args:
            methods: Names of circuit finders.
            folder: Where to keep it; a search that is there is taken up.
            tell: Told what is being done, how much, and of how much.
        """
        self.prepare(folder, methods)
        kept = self._open(folder)
        try:
            found = {name: self._scores(name, kept, tell) for name in dict.fromkeys(methods)}
            curves = {name: self._curve(one, kept, tell) for name, one in found.items()}
            result = Found(self.model.cfg.model_name, self, found, curves, Path(folder))
            kept.finish(self.told(result))
        finally:
            kept.close()
        return result

    def choose(self, found: scores.Scores, folder: str | Path, **how: Any) -> Chosen:
        """A circuit by `n_edges`, `share` or `threshold`; without either, what the method kept, or a readable size."""
        if not any(value is not None for value in how.values()) and found.kept is None:
            how = {"n_edges": min(100, max(1, self.graph.n_edges // 10))}
        if (share := how.get("share")) is not None and 0 <= share <= 1:
            how = {**how, "share": None, "n_edges": self.settings.count(share, self.graph.n_edges)}
        circuit = found.circuit(**how, absolute=self.settings.absolute)
        values = found.edge_values(absolute=self.settings.absolute)
        finite = values[np.isfinite(values)]
        span = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        if not len(circuit):
            return Chosen(found.method, circuit, None, None, span)
        rest = graph.Circuit(circuit.graph, circuit.graph.allowed & ~circuit.edges)
        kept, judge = self._open(folder), self.judge
        try:
            own = "/kept" if circuit is found.kept else ""
            alone, cut = (
                judge.ends.estimate(self._values(f"{found.method}{own}{what}", one, kept))
                for what, one in (("", circuit), ("/without", rest))
            )
        finally:
            kept.close()
        return Chosen(found.method, circuit, alone, cut, span)

    @property
    def judge(self) -> faithfulness.Judge:
        """Runs circuits alone on the judging pairs; there after `prepare`."""
        if self._judge is None:
            raise errors.RequestError("the whole model was not measured yet: call prepare or run first")
        return self._judge

    def told(self, found: Found) -> dict[str, Any]:
        """What is written to results.json."""
        ends = self.judge.ends
        return {
            "model": found.model_id,
            "settings": self.settings.to_json(),
            "pairs": {
                "scoring": len(self.scoring),
                "judging": len(self.judging),
                "enough": ends.enough,
                "report": self.report.to_json(),
            },
            "graph": {**self.graph.to_json(), "n_edges": self.graph.n_edges},
            "metric": {"whole": float(ends.whole.mean()), "empty": float(ends.empty.mean())},
            "methods": {
                name: {"level": one.level, "cost": dataclasses.asdict(one.cost), **found.curves[name].to_json()}
                for name, one in found.scores.items()
            },
        }

    def _open(self, folder: str | Path) -> keeping.Kept:
        told = {"model": self.held["name"], **self.settings.to_json(), "tokens": _digest(self.pairs)}
        return keeping.Kept(Path(folder), told, self.held)

    def _measure_ends(self, kept: keeping.Kept) -> None:
        if self._judge is not None:
            return
        known = [kept.point(name, 0) for name in ENDS]
        clusters = tuple(self.judging.clusters)
        began, count = time.perf_counter(), faithfulness.ROUNDED[self.settings.sizes]
        if known[0] is not None and known[1] is not None:
            self._judge = faithfulness.Judge(
                self._runner, ends=faithfulness.Ends(known[0], known[1], clusters), count=count
            )
            self._judge.values(graph.Circuit.empty(self.graph))  # only to see how long one takes
            self.seconds = time.perf_counter() - began
            return
        self._judge = faithfulness.Judge(self._runner, count=count)
        self.seconds = (time.perf_counter() - began) / 2
        for name in ENDS:
            kept.add_point(name, 0, getattr(self._judge.ends, name))

    def _estimate(self, method: str, kept: keeping.Kept) -> float | None:
        counts = {self.settings.count(share, self.graph.n_edges) for share in faithfulness.SIZES}
        sizes = counts - {0, self.graph.n_edges}
        left = self.seconds * len(sizes - set(kept.points(method)))
        if kept.found(method) is not None:
            return left
        passes = forward_passes(method, self.graph, self.settings.options)
        return None if passes is None else left + passes * self.seconds * len(self.scoring) / len(self.judging)

    def _scores(self, method: str, kept: keeping.Kept, tell: Tell) -> scores.Scores:
        known = kept.found(method)
        if known is not None:
            return known
        finder, settings = registry.get(method), self.settings
        own = {name: value for name, value in settings.options.items() if name in _own(finder)}
        found = finder(
            self.model,
            self.scoring,
            self.metric,
            ablation=settings.ablation,
            batch_size=settings.batch_size,
            seed=settings.seed,
            tell=lambda doing, done, of: tell(f"scores {method}", done, of),
            **own,
        )
        kept.add_found(method, found)
        return found

    def _curve(self, found: scores.Scores, kept: keeping.Kept, tell: Tell) -> faithfulness.Curve:
        return self.judge.curve(
            found,
            absolute=self.settings.absolute,
            known=kept.points(found.method),
            keep=lambda count, values: kept.add_point(found.method, count, values),
            tell=tell,
        )

    def _values(self, name: str, circuit: graph.Circuit, kept: keeping.Kept) -> Any:
        """The metric of each pair with a circuit alone, kept."""
        known = kept.point(name, len(circuit))
        if known is None:
            known = self.judge.values(circuit)
            kept.add_point(name, len(circuit), known)
        return known

    def _check_options(self, chosen: Mapping[str, registry.Method]) -> None:
        known = sorted({name for finder in chosen.values() for name in _own(finder)})
        for name in self.settings.options:
            if name not in known:
                there = f"there are {', '.join(known)}" if known else "they have none of their own"
                raise errors.RequestError(
                    f"no option {name!r} of {', '.join(chosen)}{errors.suggest(name, known)}; {there}"
                )


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


def forward_passes(method: str, whole: graph.Graph, options: Mapping[str, Any]) -> float | None:
    """About how many forward passes over its pairs a method takes; None where nobody knows."""
    steps = int(options.get("steps", 5))
    known: dict[str, float] = {
        "random": 0.0,
        "eap": BACKWARD,
        "hisp": BACKWARD,
        "eap-ig": BACKWARD * steps,
        "mask-ig": BACKWARD * steps,
        "eap-ig-activations": BACKWARD * steps * (2 * whole.n_layers + 1) / 2,
        "exact-node": float(len(whole.sources)),
        "exact": CUT * whole.n_edges,
        "acdc": (ACDC if options.get("fast", True) else 1.0) * whole.n_edges,
        "sp": BACKWARD * int(options.get("steps", 200)),
        "sp-edges": BACKWARD * int(options.get("steps", 200)),
    }
    return known.get(method)


def _own(finder: registry.Method) -> set[str]:
    """Options that only this method has: those that its signature names."""
    named = inspect.signature(finder).parameters.values()
    common = {"ablation", "batch_size", "seed", "tell"}
    return {one.name for one in named if one.kind is one.KEYWORD_ONLY} - common


def _digest(given: pairs.Pairs) -> str:
    """Changes when any token of any pair does."""
    tokens = (given.clean, given.corrupt, given.ends, given.answers, given.wrongs)
    return hashlib.sha256(b"".join(one.cpu().numpy().tobytes() for one in tokens)).hexdigest()[:16]
