"""Which models with a known circuit are there to be used: compiled, trained here, or shipped?

    subject = shipped.compiled(3)
    subject = shipped.trained("3", weight_id=510, seed=0)          # what `sonde bench train iit -i 3` made
    subject = shipped.embedded("3", seed=0)                        # what comes with Sonde
    subject.model, subject.truth, subject.task, subject.log

A Subject is a model, its true circuit and its task. Trained ones have their log: recipe, places of the nodes, accuracy, IIA and
strict accuracy. `collect` copies the best seeds of a suite into the package.

A model is true only of the program that it was trained for. If the case has another program today, or seeds have other places, the model is
refused by name, and not listed (`outdated`). Costs the loading of one tiny model.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sonde.bench import (
    batched,
    cases,
    correspondence,
    high,
    ioi,
    rasp,
    recipes,
    sizes,
    starting,
    suite,
    training,
    words,
)
from sonde.circuits import graph as circuits_graph
from sonde.core import errors
from sonde.models import model as models_model
from sonde.store import documents, layout, names

#: Where models may be that were trained with `--out results/bench/…`.
RESULTS = Path("results") / "bench"
EMBEDDED = Path(__file__).parent / "weights"
IOI = (ioi.NAME, ioi.NEXT)
WEIGHTS, IOI_WEIGHTS = 510, 1010  # of the commands' defaults


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A model whose circuit is known.

    Attributes:
        name: Which case, and where the weights are from.
        model: The model.
        truth: Its true circuit.
        task: What it does.
        log: Of its training; empty for a compiled one.
        positional: Its program reads positions, so edges may carry nothing else.
    """

    name: str
    model: models_model.Model
    truth: circuits_graph.Circuit
    task: high.Task
    log: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    positional: bool = False


@functools.lru_cache(maxsize=256)
def task_of(case: str) -> high.Task:
    """The task of a case, by number, or `ioi`; made once.

    Raises:
        RequestError: There is no such case.
    """
    if case in IOI:
        return ioi.task(next_token=case == ioi.NEXT)
    if not case.isdecimal():
        raise errors.RequestError(f"no case {case!r}: write a number, as in `sonde bench cases`, or {' or '.join(IOI)}")
    return high.of_case(cases.get(int(case)))


def sizes_of(case: str) -> sizes.Sizes:
    """The sizes of a case's trained model."""
    return ioi.SIZES if case in IOI else sizes.of(int(case))


def compiled(case: str) -> Subject:
    """The compiled model of a case.

    Raises:
        RequestError: It has none.
    """
    if case in IOI:
        raise errors.RequestError(f"{case} has no compiled model: its program is no RASP; leave out --tracr")
    found = cases.get(int(case)).compiled()
    model = found.model(f"case {case}, compiled")
    return Subject(f"case-{case}-compiled", model, found.circuit, task_of(case), positional=positional(case))


def positional(case: str) -> bool:
    """Whether the program of a case reads positions."""
    return case.isdecimal() and rasp.INDICES in rasp.variables(cases.get(int(case)).program)


def folder_of(case: str, weight_id: int, results: Path = RESULTS) -> Path:
    """Where training puts a case."""
    return results / (case if case in IOI else f"case-{case}") / str(weight_id)


def command_of(case: str, weight_id: int, *, seed: int = 0) -> str:
    """The command that trains a case so that its weights have an id, 10 iit + 100 behaviour + 1000 strict."""
    iit = min(weight_id / 10, 1.0)
    behaviour = 0.0 if weight_id < 110 or (case in IOI and weight_id == IOI_WEIGHTS) else 1.0
    strict = (weight_id - 10 * iit - 100 * behaviour) / 1000
    how = {ioi.NAME: "ioi", ioi.NEXT: "ioi --next-token"}.get(case, f"iit -i {case}")
    return f"sonde bench train {how} -s {strict:g} -iit {iit:g} -b {behaviour:g} --seeds {seed} --early-stop"


def place_of(
    case: str, weight_id: int, *, seed: int = 0, runs_dir: Path | None = None, results: Path = RESULTS
) -> Path:
    """Where a model that was trained here is: in the latest run that trained it, or in a folder of `results`.

    Raises:
        RequestError: There is no such case, or it was never trained; names the command that does it.
    """
    task_of(case)
    runs = Path(runs_dir if runs_dir is not None else names.default_runs_dir())
    for folder in (*_trained_in(runs, case, weight_id), folder_of(case, weight_id, results)):
        if (folder / f"seed-{seed}" / training.LOG).is_file():
            return folder / f"seed-{seed}"
    raise errors.RequestError(
        f"no trained model of case {case} with weights {weight_id} and seed {seed} in the runs of {runs}, nor in "
        f"{folder_of(case, weight_id, results)}: train it with `{command_of(case, weight_id, seed=seed)}`"
    )


def _trained_in(runs_dir: Path, case: str, weight_id: int) -> list[Path]:
    """The runs that trained a case with an id of weights, the latest first."""
    found: list[tuple[str, Path]] = []
    for id in layout.list_runs(runs_dir):
        with contextlib.suppress(errors.SondeError):
            manifest = documents.read(runs_dir / id / layout.MANIFEST, "manifest")
            told = manifest["settings"]
            if manifest["kind"] != recipes.KIND or told.get("case") != case:
                continue
            weights = {name: told.get(name) for name in ("iit", "behaviour", "strict")}
            if recipes.Recipe(**weights).weight_id == weight_id:
                found.append((manifest["created"], runs_dir / id))
    return [folder for _, folder in sorted(found, reverse=True)]


def trained(case: str, weight_id: int, *, seed: int = 0, results: Path = RESULTS) -> Subject:
    """A model that was trained here; see `place_of`."""
    return opened(case, place_of(case, weight_id, seed=seed, results=results), f"case-{case}-{weight_id}-seed-{seed}")


def embedded_place(case: str, seed: int = 0) -> Path:
    """Where a model that comes with Sonde is.

    Raises:
        RequestError: There is none of this case and seed.
    """
    task_of(case)
    place = _place(case, seed)
    if not (place / training.LOG).is_file():
        there = sorted({one for one, _ in list_embedded()}, key=lambda one: (len(one), one))
        own = ", ".join(str(number) for one, number in list_embedded() if one == case)
        what = f"this case has: {own}" if own else f"cases there are: {', '.join(there) or 'none'}"
        raise errors.RequestError(
            f"no embedded model of case {case}, seed {seed} ({what}). Train one "
            f"with `{command_of(case, IOI_WEIGHTS if case in IOI else WEIGHTS, seed=seed)}`"
        )
    return place


def embedded(case: str, *, seed: int = 0) -> Subject:
    """A model that comes with Sonde; see `embedded_place`."""
    return opened(case, embedded_place(case, seed), f"case-{case}-embedded-seed-{seed}")


def list_embedded() -> list[tuple[str, int]]:
    """Cases and seeds of the models that come with Sonde; outdated ones are left out."""
    return [(case, seed) for case, seed in _all_embedded() if outdated(case, _place(case, seed)) is None]


def list_outdated() -> list[tuple[str, int]]:
    """Cases and seeds of weights in the package that were trained for an older program, or for other places."""
    return [(case, seed) for case, seed in _all_embedded() if outdated(case, _place(case, seed)) is not None]


def outdated(case: str, place: Path) -> str | None:
    """What the model in a folder was trained for that is not so today; None if all is as it was.

    Raises:
        RequestError: There is no such case.
        StoreError: Its log is damaged.
    """
    task, log = task_of(case), starting.read_log(place)
    if log.get("program") != task.digest:
        return f"for another program ({log.get('program', 'older')}, today's is {task.digest})"
    shape = batched.Shape(**log["shape"])
    low = circuits_graph.Graph(shape.n_layers, shape.n_heads, shape.n_heads)
    same = bool(log["recipe"]["same_place"])
    if log["places"] != training.places_of(task, low, log["seed"], same_place=same):
        return "with its nodes at places that are no longer those of its seed"
    return None


def _all_embedded() -> list[tuple[str, int]]:
    found = [path.parent for path in EMBEDDED.glob(f"case-*/seed-*/{training.LOG}")]
    named = [(place.parent.name.removeprefix("case-"), int(place.name.removeprefix("seed-"))) for place in found]
    return sorted(named, key=lambda one: (len(one[0]), *one))  # 3 before 11, and words last


def _place(case: str, seed: int) -> Path:
    return EMBEDDED / f"case-{case}" / f"seed-{seed}"


def opened(case: str, place: Path, name: str) -> Subject:
    """The model in a folder that training wrote.

    Raises:
        RequestError: It is one of another case.
        StoreError: It is damaged.
    """
    task = task_of(case)
    log, weights = starting.read_log(place), starting.read_model(place)
    if log["task"] != task.name:
        raise errors.RequestError(f"{place} holds a model of {log['task']}, not of {task.name}: name another folder")
    if (why := outdated(case, place)) is not None:
        raise errors.RequestError(
            f"{place} was trained {why}, so its true circuit is not known any more: train it again, in another folder, with "
            f"`{command_of(case, log['weight_id'], seed=log['seed'])}`"
        )
    shape = batched.Shape(**log["shape"])
    try:
        hf = batched.to_plain(shape, batched.joined(shape, weights)[0])
    except errors.RequestError as error:
        raise errors.RequestError(f"{place / training.MODEL} does not belong to {task.name}: {error}") from error
    truth = correspondence.carried(
        task.program.circuit, log["places"], circuits_graph.Graph(shape.n_layers, shape.n_heads, shape.n_heads)
    )
    vocabulary = ioi.WORDS if case in IOI else cases.get(int(case)).compiled().vocabulary
    return Subject(
        name, models_model.Model(hf, words.tokenizer(vocabulary), name=name), truth, task, log, positional(case)
    )


def earlier(case: str, where: str, seeds: Iterable[int]) -> list[training.Trained]:
    """Earlier trainings to begin with: in a folder with seed-0, seed-1, … or, for `embedded`, those that come with Sonde.

    Of these, the next-token model of IOI begins with the plain one.

    Raises:
        RequestError: There is none of a seed.
    """
    own = ioi.NAME if case == ioi.NEXT else case
    wanted, folder = tuple(seeds), EMBEDDED / f"case-{own}" if where == "embedded" else Path(where)
    found = training.finished(folder, wanted)
    if missing := set(wanted) - {one.seed for one in found}:
        raise errors.RequestError(f"nothing to begin seed {min(missing)} with: {folder} has no seed-{min(missing)}")
    return found


def best_below(folder: Path, seeds: Iterable[int]) -> list[training.Trained]:
    """The best model of each seed in any folder below one; for cases without a number."""
    best: dict[int, training.Trained] = {}
    for path in sorted(folder.glob(f"**/seed-*/{training.LOG}")):
        for one in training.finished(path.parent.parent, (int(path.parent.name.removeprefix("seed-")),)):
            if one.seed in seeds and (one.seed not in best or suite.score(one) > suite.score(best[one.seed])):
                best[one.seed] = one
    return list(best.values())


def collect(
    folder: Path,
    target: Path = EMBEDDED,
    *,
    seeds: Iterable[int] = range(8),
    least: float = 0.995,
    only: Iterable[str] | None = None,
) -> int:
    """Copies each case's best seeds of a suite that are good enough into a folder to ship; returns how many.

    Only weights and log are copied; a case that was better before stays as it was, unless it is outdated.
    """
    wanted, count = tuple(seeds), 0
    for case in (*map(str, cases.ids("all")), *IOI) if only is None else only:
        found = suite.best(folder, int(case), wanted) if case.isdecimal() else best_below(folder / case, wanted)
        for one in (one for one in found if suite.score(one) >= least):
            place = target / f"case-{case}" / f"seed-{one.seed}"
            (before,) = training.finished(place.parent, (one.seed,)) or [None]
            if outdated(case, one.folder) is not None:
                continue
            if before is None or outdated(case, place) is not None or suite.score(before) < suite.score(one):
                one.copy(place)
            count += 1
    return count
