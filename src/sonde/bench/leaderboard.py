"""Which method finds known circuits best, and at what cost? Every method on every model.

    chosen = leaderboard.settings_of(methods=["eap", "exact"], pairs=100)
    found = experiments.run(leaderboard.Leaderboard(roster.embedded()), chosen, run="board")
    found.results["standings"]                                  # means, intervals, paired tests

1. For each model: pairs of its inputs (see `finding`), fixed by the model's seed.
2. For each method: scores on those pairs; exact rank AUROC of nodes, of heads alone and of edges against the true circuit, heads whole; what
   cannot be judged is left out (`judging`), and models of which that is too much are dropped and named; forward and backward passes; seconds. Methods that need a slope at the clean run get `answer_diff`, all others `kl` (`mse` for numbers), unless
   one metric is asked for. Methods that learn masks take 25 pairs per step, in turn. What a method draws at random it draws anew for
   each model. `random` ranks nodes, and edges with heads whole. `priors` look at nothing but the shape of the model, and are run with the others.
3. Each row is an item, which is on disk as soon as it is measured. Rows that an earlier board measured on the same weights, with the same pairs,
   metric and file of a method of one's own, are taken from it.

Methods that take little come first. Threads are pinned to one. Costs the methods.
"""

import dataclasses
import hashlib
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sonde import experiments
from sonde.bench import board_page, board_rows, contrast, finding, judging, priors, roster, shipped, standings
from sonde.bench import cases as bench_cases
from sonde.circuits import experiment, method_files, registry, running
from sonde.circuits import graph as circuits_graph
from sonde.circuits import scores as circuits_scores
from sonde.core import errors
from sonde.core import settings as core_settings
from sonde.report import page
from sonde.store import schemas

CORE = "core"
#: Of how pairs are made and what is judged: rows that are compared have one.
RULES = 2
SLOPE = frozenset({"eap", "hisp"})
#: Pairs per step of methods that learn masks, which go through all pairs in turn.
BATCHES = {"sp": 25, "sp-edges": 25}
#: What rows must have in common.
COMMON = ("pairs", "metric", "rules")


class LeaderboardSettings(core_settings.Settings):
    """What fixes the rows, beside the models' weights; `settings_of` makes them."""

    methods: tuple[str, ...] = core_settings.field(..., "Circuit finders, in the order in which they are run.")
    pairs: int = core_settings.field(100, "Pairs of inputs per model.", ge=2)
    metric: str | None = core_settings.field(None, "One for all methods; each its own if left out.")
    files: tuple[str, ...] = core_settings.field((), "Python files that register further methods.", option="")
    codes: dict[str, str] = core_settings.field({}, "Digests of those files, by method.", option="")
    tracr: bool = core_settings.field(False, "Compiled models instead of trained ones.")
    suite: str | None = core_settings.field(None, "A folder of models that were trained here.", option="--from")
    folder: str | None = core_settings.field(None, "A folder of published models.")
    cases: tuple[str, ...] | None = core_settings.field(None, "Only these cases.")
    seeds: tuple[int, ...] | None = core_settings.field(None, "Only these seeds.")
    least: float | None = core_settings.field(None, "What a model must reach.", ge=0, le=1)
    rules: int = core_settings.field(RULES, "Of how pairs are made and what is judged.", option="")
    threads: int = core_settings.field(1, "Threads of torch.", option="", ge=1)

    def common(self) -> dict[str, Any]:
        """What rows must have in common to be compared."""
        return {name: getattr(self, name) for name in COMMON}


def settings_of(methods: Iterable[str] | None = None, files: Iterable[str] = (), **chosen: Any) -> LeaderboardSettings:
    """Settings with the methods that were asked for, or all there are, those of files, and the priors; what takes little first.

    Raises:
        RequestError: There is no such method, or a file cannot be used.
    """
    files = tuple(files)
    codes = method_files.load_all(map(Path, files))
    names = list(registry.methods()) if methods is None else list(dict.fromkeys([*methods, *codes]))
    for name in names:
        if name not in priors.NAMES:
            registry.get(name)
    typical, names = circuits_graph.Graph(2, 4, 4), list(dict.fromkeys([*priors.NAMES, *names]))
    names.sort(key=lambda name: experiment.forward_passes(name, typical, {}) or 0.0)
    return LeaderboardSettings(methods=tuple(names), files=files, codes=codes, **chosen)


def models_of(settings: LeaderboardSettings) -> tuple[list[roster.Entry], Mapping[str, float | str]]:
    """The models that settings ask for; those that are not good enough, with their figure, or cannot be loaded, with why.

    Raises:
        RequestError: They ask for models of two places, or there are none.
    """
    suite, folder, cases, seeds = settings.suite, settings.folder, settings.cases, settings.seeds
    core, cases = cases == (CORE,), None if cases == (CORE,) else cases
    if settings.tracr + (suite is not None) + (folder is not None) > 1:
        raise errors.RequestError("give one of --tracr, --from and --folder")
    least = {} if settings.least is None else {"least": settings.least}
    if settings.tracr:
        return roster.compiled(roster.numbered(cases)), {}
    if folder is not None:
        names = [*map(str, bench_cases.ids(CORE)), *shipped.IOI] if core else cases
        found, broken = roster.folder_of(Path(folder), cases=names, **least)
        return found, {f"case {name}": why for name, why in broken.items()}
    if suite is not None:
        found, short = roster.suite_of(Path(suite), cases=cases, seeds=seeds, **least)
        return (found if cases else roster.core(found) or found), short
    return roster.embedded(cases=cases, seeds=seeds), {}


def _items(context: experiments.Context[LeaderboardSettings]) -> list[dict[str, Any]]:
    """Every method on every model, with the row where it is known."""
    board: Leaderboard = context.experiment
    known = board.known(context.settings)
    return [
        {
            "entry": entry.to_json(),
            "method": method,
            "row": None if row is None else dataclasses.asdict(row),
        }
        for (entry, method), row in known.items()
    ]


def _measured(context: experiments.Context[LeaderboardSettings], item: Mapping[str, Any]) -> dict[str, Any]:
    """The row of an item, or what Sonde has against it."""
    settings = context.settings
    if item["row"] is not None:
        return item["row"]
    try:
        method_files.load_all(map(Path, settings.files))  # a worker does not know them yet
        return dataclasses.asdict(measure(roster.Entry(**item["entry"]), item["method"], settings))
    except errors.SondeError as error:
        return {"failed": str(error)}


def _joined(
    context: experiments.Context[LeaderboardSettings], made: Sequence[Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]] | dict[str, str]]:
    """Rows, and what went wrong by method and model."""
    board: Leaderboard = context.experiment
    items = [(method, entry) for method in context.settings.methods for entry in board.entries]
    failed = {
        f"{method}, case {entry.case}, seed {entry.seed}": one["failed"]
        for (method, entry), one in zip(items, made, strict=True)
        if "failed" in one
    }
    return {"rows": [dataclasses.asdict(board_rows.of(one)) for one in made if "failed" not in one], "failed": failed}


class Leaderboard(experiments.Experiment[LeaderboardSettings]):
    """Methods on models.

    Attributes:
        entries: The models that methods are compared on.
        dropped: Those of which too many nodes cannot be judged, and why.
        left_out: Those that are not good enough, with their figure, or cannot be loaded, with why.
    """

    kind, verb, results_kind = (
        board_rows.KIND,
        ("bench", "leaderboard"),
        schemas.register("results of a leaderboard", schemas.Data),
    )
    settings_type = LeaderboardSettings
    stages = (
        experiments.Items(
            board_rows.STAGE,
            schemas.register("rows of a leaderboard", schemas.Data),
            _items,
            _measured,
            board_rows.ITEM,
            _joined,
        ),
    )

    def __init__(
        self,
        entries: Sequence[roster.Entry],
        left_out: Mapping[str, float | str] | None = None,
        *,
        earlier: Path | None = None,
    ) -> None:
        """Takes the models, and the folder of runs whose boards' rows may be taken; none: all is measured anew."""
        super().__init__()
        why = judging.dropped({entry: judging.of(entry.subject()) for entry in entries})
        self.entries, self.left_out = tuple(entry for entry in entries if entry not in why), dict(left_out or {})
        self.dropped = {f"case {one.case}, seed {one.seed}": said for one, said in why.items()}
        self._earlier = earlier

    def known(self, settings: LeaderboardSettings) -> dict[tuple[roster.Entry, str], board_rows.Row | None]:
        """Every method on every model, with the row that an earlier board has of it."""
        rows = {} if self._earlier is None else board_rows.earlier(self._earlier, settings.common())
        found: dict[tuple[roster.Entry, str], board_rows.Row | None] = {}
        for method in settings.methods:
            for entry in self.entries:
                row = rows.get((entry.kind, entry.case, entry.seed, method))
                same = row is not None and (row.digest, row.code) == (entry.digest, settings.codes.get(method, ""))
                found[entry, method] = row if same else None
        return found

    def record(self) -> dict[str, Any]:
        """See `roster`."""
        return roster.record(self.entries)

    def headline(self, settings: LeaderboardSettings) -> str:
        """Models and methods."""
        broken = sum(isinstance(why, str) for why in self.left_out.values())
        reasons = ((len(self.left_out) - broken, "not good enough"), (broken, "they cannot be loaded, see below"))
        left_out = "".join(f" ({count} left out: {why})" for count, why in reasons if count)
        models = f"{len(self.entries)} models of {roster.n_cases(self.entries)} cases"
        return f"{models}{left_out}, {len(settings.methods)} methods"

    def estimate(self, settings: LeaderboardSettings) -> dict[str, float]:
        """Judged by the passes that methods take, and the speed of the smallest and the largest model."""
        todo = [item for item, row in self.known(settings).items() if row is None]
        with experiments.pinned(settings.threads):
            speed = _speed(dict.fromkeys(entry for entry, _ in todo), settings.pairs)
        took = sum((speed[entry] * _passes(entry, name, settings.pairs) for entry, name in todo), start=0.0)
        return {board_rows.STAGE: took}

    def results(self, context: experiments.Context[LeaderboardSettings]) -> dict[str, Any]:
        """Standings, what is missing, and all rows."""
        found = context.found(board_rows.STAGE)
        return {
            "settings": context.settings.common(), "standings": standings.of(board_rows.rows_of(found)).to_json(),
            "failed": found["failed"], "left_out": self.left_out, "dropped": self.dropped, "rows": found["rows"],
        }  # fmt: skip

    def summary(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """What is said of it."""
        return {"standings": list(board_page.sentences(results))}

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """See `board_page`."""
        return board_page.report(results)

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """The methods in brief, and what is missing."""
        return (board_page.brief(standings.of(board_rows.rows_of(results))), *board_page.missing(results))

    def command(self, settings: LeaderboardSettings) -> str:
        """With a flag for each file."""
        return " ".join([super().command(settings), *(f"--method-file {shlex.quote(file)}" for file in settings.files)])


def measure(entry: roster.Entry, method: str, settings: LeaderboardSettings) -> board_rows.Row:
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
        kind=entry.kind, case=entry.case, seed=entry.seed, method=method, digest=entry.digest,
        code=settings.codes.get(method, ""),
        metric=scores.metric, level=scores.level,
        node_auroc=finding.auroc(by_level["node"], subject, "node"),
        head_auroc=finding.auroc(by_level["head"], subject, "head"),
        edge_auroc=finding.auroc(by_level["edge"], subject, "edge"),
        true_nodes=len(nodes.true), left_out=len(nodes.left_out),
        passes=passes, seconds=time.perf_counter() - start,
    )  # fmt: skip


def _found(
    subject: shipped.Subject, method: str, settings: LeaderboardSettings, *, pairs_seed: int, seed: int
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


def _passes(entry: roster.Entry, method: str, pairs: int) -> float:
    """About how many forward passes over the pairs a method takes; none where nobody knows."""
    if method in priors.NAMES:
        return 0.0
    passes = experiment.forward_passes(method, entry.subject().truth.graph, {}) or 0.0
    return passes * min(BATCHES.get(method, pairs) / pairs, 1.0)


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
