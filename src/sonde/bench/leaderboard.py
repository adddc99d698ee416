"""Which method finds known circuits best, and at what cost? Every method on every model.

    board = leaderboard.Board(roster.embedded(), leaderboard.Settings(pairs=100))
    board.estimate(["eap", "exact"])                            # seconds each will take, about
    found = board.run(["eap", "exact", "random"], folder)       # rows of figures; again: goes on where it was stopped
    standings.of(found)                                         # means, intervals, paired tests

1. For each model: pairs of its inputs (see `finding`), fixed by the model's seed.
2. For each method: scores on those pairs; exact rank AUROC of nodes, of heads alone and of edges against the true circuit, heads whole; what
   cannot be judged is left out (`judging`), and models of which that is too much are dropped and named; forward and backward passes; seconds. Methods that need a slope at the clean run get `answer_diff`, all others `kl` (`mse` for numbers), unless
   one metric is asked for. Methods that learn masks take 25 pairs per step, in turn. What a method draws at random it draws anew for
   each model. `random` ranks nodes, and edges with heads whole. `priors` look at nothing but the shape of the model, and are run with the others.
3. A row is on disk as soon as it is measured: rows.jsonl. It is kept as long as weights, settings and the file of a method of one's own
   are what they were.

Methods that take little come first. Threads are pinned to one. With `engine="ray"` the same items run on a cluster. Costs the methods.
"""

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sonde import experiments
from sonde.bench import board_rows, contrast, finding, judging, priors, roster, shipped, standings
from sonde.circuits import experiment, method_files, registry, running
from sonde.circuits import graph as circuits_graph
from sonde.circuits import scores as circuits_scores
from sonde.core import errors

PAIRS = 100
#: Of how pairs are made and what is judged: rows of one folder have one.
RULES = 2
SLOPE = frozenset({"eap", "hisp"})
ENGINES = ("local", "ray")
#: Pairs per step of methods that learn masks, which go through all pairs in turn.
BATCHES = {"sp": 25, "sp-edges": 25}
Tell = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What fixes the rows, beside models and methods.

    Attributes:
        pairs: Pairs of inputs per model.
        metric: One for all methods; None for each its own.
        files: Python files that register further methods.
    """

    pairs: int = PAIRS
    metric: str | None = None
    files: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """What rows of one folder must have in common."""
        return {"pairs": self.pairs, "metric": self.metric, "rules": RULES}


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What was measured.

    Attributes:
        rows: One per model and method.
        failed: What went wrong, by model and method.
        settings: What it was measured with.
        dropped: Models of which too many nodes cannot be judged, and why.
    """

    rows: tuple[board_rows.Row, ...]
    failed: Mapping[str, str]
    settings: Settings
    dropped: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Board:
    """Methods on models.

    Attributes:
        entries: The models that methods are compared on.
        dropped: The others, and why.
        settings: What fixes the rows.
        codes: The digest of the file that a method of one's own is from.
    """

    def __init__(self, entries: Sequence[roster.Entry], settings: Settings | None = None) -> None:
        """Takes the models, and registers the methods of the settings' files."""
        why = judging.dropped({entry: judging.of(entry.subject()) for entry in entries})
        self.entries, self.settings = tuple(entry for entry in entries if entry not in why), settings or Settings()
        self.dropped = {f"case {one.case}, seed {one.seed}": said for one, said in why.items()}
        self.codes = method_files.load_all(Path(file) for file in self.settings.files)

    def methods(self, names: Iterable[str] | None = None) -> list[str]:
        """The names that were asked for, or all there are, and the priors; those that take little first.

        Raises:
            RequestError: There is no such method.
        """
        chosen = list(registry.methods()) if names is None else list(dict.fromkeys(names))
        for name in chosen:
            if name not in priors.NAMES:
                registry.get(name)
        typical, chosen = circuits_graph.Graph(2, 4, 4), list(dict.fromkeys([*priors.NAMES, *chosen]))
        return sorted(chosen, key=lambda name: experiment.forward_passes(name, typical, {}) or 0.0)

    def estimate(self, methods: Sequence[str], folder: Path) -> dict[str, float | None]:
        """Seconds that each method will still take, about; None where nobody knows."""
        with experiments.pinned(1):
            known = board_rows.read(folder, self.settings.to_json())
            todo = {
                name: [entry for entry in self.entries if self._row(known, entry, name) is None] for name in methods
            }
            speed = _speed({entry: None for many in todo.values() for entry in many}, self.settings.pairs)
        found: dict[str, float | None] = {}
        for name, many in todo.items():
            total: float | None = 0.0
            for entry in many:
                passes = experiment.forward_passes(name, entry.subject().truth.graph, {})
                passes = 0.0 if name in priors.NAMES else passes
                if passes is not None and name in BATCHES:
                    passes *= min(BATCHES[name] / self.settings.pairs, 1.0)
                total = None if passes is None or total is None else total + passes * speed[entry]
            found[name] = total
        return found

    def run(
        self, methods: Sequence[str], folder: Path, *, engine: str = "local", tell: Tell = lambda doing, done, of: None
    ) -> Found:
        """Measures what is not on disk yet.

        Args:
            methods: Names of circuit finders.
            folder: Where rows are kept.
            engine: `local`, or `ray`.
            tell: Told which method, on how many models it was run, and of how many.

        Raises:
            RequestError: The folder holds rows with other settings, or there is no such engine.
            MissingExtraError: Ray is not installed.
        """
        if engine not in ENGINES:
            raise errors.RequestError(
                f"no engine {engine!r}; there are {', '.join(ENGINES)}{errors.suggest(engine, ENGINES)}"
            )
        kept, failed, done = board_rows.Kept(folder, self.settings.to_json()), {}, dict.fromkeys(methods, 0)
        try:
            every = [(entry, name) for name in methods for entry in self.entries]
            todo = [item for item in every if self._row(kept.rows, *item) is None]
            for _, name in set(every) - set(todo):
                done[name] += 1
            work = _on_ray if engine == "ray" else _here
            for (entry, name), row in work(todo, self.settings, self.codes):
                if isinstance(row, str):
                    failed[f"{name}, case {entry.case}, seed {entry.seed}"] = row
                else:
                    kept.add(row)
                done[name] += 1
                tell(name, done[name], len(self.entries))
            rows = [self._row(kept.rows, *item) for item in every]
        finally:
            kept.close()
        return Found(tuple(row for row in rows if row is not None), failed, self.settings, self.dropped)

    def _row(self, known: Mapping[Any, board_rows.Row], entry: roster.Entry, method: str) -> board_rows.Row | None:
        row = known.get((entry.kind, entry.case, entry.seed, method))
        fresh = row is not None and (row.digest, row.code) == (entry.digest, self.codes.get(method, ""))
        return row if fresh else None


Item = tuple[roster.Entry, str]
Done = Iterator[tuple[Item, board_rows.Row | str]]


def measure(entry: roster.Entry, method: str, settings: Settings, code: str = "") -> board_rows.Row:
    """One method on one model."""
    subject, start = entry.subject(), time.perf_counter()
    drawn = int.from_bytes(hashlib.sha256(f"{entry.case} {entry.seed}".encode()).digest()[:4], "big")
    if method in priors.NAMES:
        scores, passes = priors.scores(method, circuits_graph.Graph.of(subject.model)), 0.0
    else:
        scores, passes = _found(subject, method, settings, pairs_seed=entry.seed, seed=drawn)
    by_level = dict.fromkeys(standings.LEVELS, scores)
    if method == standings.RANDOM:
        by_level = {level: _noise(scores, level, drawn) for level in standings.LEVELS}
    nodes = judging.of(subject)
    return board_rows.Row(
        kind=entry.kind, case=entry.case, seed=entry.seed, method=method, digest=entry.digest, code=code,
        metric=scores.metric, level=scores.level,
        node_auroc=finding.auroc(by_level["node"], subject, "node"),
        head_auroc=finding.auroc(by_level["head"], subject, "head"),
        edge_auroc=finding.auroc(by_level["edge"], subject, "edge"),
        true_nodes=len(nodes.true), left_out=len(nodes.left_out),
        passes=passes, seconds=time.perf_counter() - start,
    )  # fmt: skip


def _found(
    subject: shipped.Subject, method: str, settings: Settings, *, pairs_seed: int, seed: int
) -> tuple[circuits_scores.Scores, float]:
    """A method's scores, and the passes over the pairs that it took."""
    pairs = finding.pairs_of(subject, n=settings.pairs, seed=pairs_seed)
    asked = settings.metric or (contrast.NAME if method in SLOPE else None)
    metric = finding.metric_named(subject, pairs, asked)
    own = {"batch_size": BATCHES[method]} if method in BATCHES else {}
    scores = registry.find(subject.model, pairs, metric=metric, method=method, seed=seed, **own)
    extra = 2 * len(pairs) if asked == contrast.NAME else 0  # what the metric itself takes
    return scores, (scores.cost.forwards + scores.cost.backwards + extra) / len(pairs)


def _noise(scores: circuits_scores.Scores, level: Any, seed: int) -> circuits_scores.Scores:
    """A random ranking of what is ranked: nodes, or edges with heads whole.

    Noise on single edges would rank below chance: a node has the largest score of the edges that leave it, and an edge into a head the
    largest of three, so that what has many of them comes first, and circuits are mostly made of what has few.
    """
    whole, rng = scores.graph.merged(), np.random.default_rng(seed)
    own, size = ("edge", whole.allowed.shape) if level == "edge" else ("node", len(whole.sources))
    return dataclasses.replace(scores.merged(), level=own, values=rng.random(size), kept=None)


def _here(todo: Sequence[Item], settings: Settings, codes: Mapping[str, str]) -> Done:
    with experiments.pinned(1):
        for entry, method in todo:
            yield (entry, method), _tried(entry, method, settings, codes.get(method, ""))


def _tried(entry: roster.Entry, method: str, settings: Settings, code: str) -> board_rows.Row | str:
    """The row, or what Sonde has against it."""
    try:
        return measure(entry, method, settings, code)
    except errors.SondeError as error:
        return str(error)


def _on_ray(todo: Sequence[Item], settings: Settings, codes: Mapping[str, str]) -> Done:
    """The items on the cluster that Ray is connected to: $RAY_ADDRESS, or one started here."""
    import logging

    try:
        import ray
    except ImportError as error:
        raise errors.MissingExtraError("ray", extra="ray", feature="engine='ray'") from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    task = ray.remote(num_cpus=1, max_retries=2)(_remote)
    refs = {task.remote(entry, method, settings, codes.get(method, "")): (entry, method) for entry, method in todo}
    left = list(refs)
    try:
        while left:
            (ready,), left = ray.wait(left, num_returns=1)
            yield refs[ready], ray.get(ready)
    except BaseException:
        for ref in left:
            ray.cancel(ref)
        raise


def _remote(entry: roster.Entry, method: str, settings: Settings, code: str) -> board_rows.Row | str:
    """One item in a worker, which does not know the methods of files yet."""
    method_files.load_all(Path(file) for file in settings.files)
    with experiments.pinned(1):
        return _tried(entry, method, settings, code)


def _speed(entries: Mapping[roster.Entry, None], pairs: int) -> dict[roster.Entry, float]:
    """Seconds of a forward pass over the pairs: timed on the smallest and the largest model, and between by size."""
    if not entries:
        return {}
    size = {entry: _size(entry) for entry in entries}
    ends = min(size, key=size.__getitem__), max(size, key=size.__getitem__)
    low, high = (_timed(entry, pairs) for entry in ends)
    span = max(size[ends[1]] - size[ends[0]], 1)
    return {entry: low + max(high - low, 0.0) * (one - size[ends[0]]) / span for entry, one in size.items()}


def _size(entry: roster.Entry) -> int:
    """How much a forward pass takes, but for a factor."""
    cfg, length = entry.subject().model.cfg, max(entry.subject().task.inputs.lengths)
    return cfg.n_layers * length * cfg.d_model * (cfg.d_model + length)


def _timed(entry: roster.Entry, pairs: int) -> float:
    subject = entry.subject()
    runner = running.Runner(subject.model, finding.pairs_of(subject, n=pairs), finding.metric_of(subject))
    whole, times = circuits_graph.Circuit.full(runner.graph), []
    for _ in range(3):
        start = time.perf_counter()
        runner.metric_of(whole)
        times.append(time.perf_counter() - start)
    return min(times)
