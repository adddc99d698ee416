"""Which models does a leaderboard run on?

    roster.embedded(seeds=(0, 1))                       # those that come with Sonde
    roster.suite_of(Path("runs/core"))                  # those that training made, if they are good enough
    roster.compiled(cases.ids("core"))
    entry.subject()                                     # loads one

An Entry is plain data, so that it can be sent to another process, and says by a digest which weights it means: rows that were
measured on other weights are not taken for its own. Costs reading the logs; loading a subject costs milliseconds.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sonde.bench import cases as bench_cases
from sonde.bench import published, shipped, suite, training
from sonde.core import errors
from sonde.core import settings as core_settings

LEAST = 0.995


class ModelsSettings(core_settings.Settings):
    """Which models are asked for, in the words of `sonde bench run` and `eval`."""

    indices: str | None = core_settings.field(None, "A case, ioi or ioi_next_token.", option="-i")
    tracr: bool = core_settings.field(False, "The compiled model.")
    siit_weights: int | None = core_settings.field(None, "A model trained here: 10 iit + 100 b + 1000 s.")
    interp_bench: bool = core_settings.field(False, "The models that come with Sonde.")
    folder: str | None = core_settings.field(None, "Published models.")
    seed: int | None = core_settings.field(None, "Of the trained model and of the pairs.", ge=0)


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A model that methods are run on.

    Attributes:
        kind: `embedded`, `trained`, `compiled` or `published`; for one that was asked for by its weights, their id.
        case: Its case.
        seed: Of its training; it also fixes the pairs.
        place: Its folder; empty for a compiled one.
        digest: Changes when the weights do.
        least: The share of its task that a published model must do; see `published`.
    """

    kind: str
    case: str
    seed: int = 0
    place: str = ""
    digest: str = ""
    least: float = published.LEAST

    def subject(self) -> shipped.Subject:
        """The model, its task and its true circuit; loaded once."""
        return _subject(self)

    def to_json(self) -> dict[str, Any]:
        """Its attributes."""
        return dataclasses.asdict(self)


def record(entries: Sequence[Entry]) -> dict[str, Any]:
    """What a run's manifest says of its models: how many, and a digest of their weights."""
    told = [[entry.kind, entry.case, entry.seed, entry.digest] for entry in entries]
    name = entries[0].subject().name if len(entries) == 1 else f"{len(entries)} models of {n_cases(entries)} cases"
    return {"name": name, "weights": hashlib.sha256(json.dumps(told).encode()).hexdigest()}


def n_cases(entries: Iterable[Entry]) -> int:
    """How many cases there are."""
    return len({entry.case for entry in entries})


def models_of(settings: ModelsSettings, runs_dir: Path | None = None) -> tuple[list[Entry], dict[str, str]]:
    """The models that settings ask for, and those of a published folder that cannot be loaded, with why.

    Args:
        settings: Which.
        runs_dir: The folder of runs in which trained models are looked for.

    Raises:
        RequestError: They ask for none, or for models of two places, or there is no such model.
    """
    index, weights, seed = settings.indices, settings.siit_weights, settings.seed
    if settings.tracr + (weights is not None) + settings.interp_bench + (settings.folder is not None) != 1:
        raise errors.RequestError("give one of --tracr, --siit-weights, --interp-bench and --folder")
    if settings.folder is not None:
        found, broken = folder_of(Path(settings.folder), cases=None if index is None else [index])
        return found, {f"case {name}": why for name, why in broken.items()}
    if settings.interp_bench:
        return _first_embedded(index, seed), {}
    if index is None:
        raise errors.RequestError("name a case with -i (only --interp-bench and --folder run all)")
    if settings.tracr:
        made = Entry("compiled", index)
    else:
        place = shipped.place_of(index, weights or 0, seed=seed or 0, runs_dir=runs_dir)
        made = _trained(str(weights), index, seed or 0, place)
    made.subject()  # says what is wrong with it before anything is written
    return [made], {}


def _first_embedded(index: str | None, seed: int | None) -> list[Entry]:
    """The embedded model of a case, or of each: with a seed, or the first that there is."""
    there = shipped.list_embedded()
    named = dict.fromkeys(case for case, number in there if seed in (None, number)) if index is None else [index]
    found = []
    for case in named or ["3"]:  # where there is none, this says what there is and how to train
        number = min((one for name, one in there if name == case), default=0) if seed is None else seed
        found.append(_trained("embedded", case, number, shipped.embedded_place(case, number)))
    return found


def embedded(*, cases: Sequence[str] | None = None, seeds: Iterable[int] | None = None) -> list[Entry]:
    """The models that come with Sonde.

    Raises:
        RequestError: There are none of these cases and seeds.
    """
    wanted = None if seeds is None else set(seeds)
    found = [
        _trained("embedded", case, seed, shipped.EMBEDDED / f"case-{case}" / f"seed-{seed}")
        for case, seed in shipped.list_embedded()
        if (cases is None or case in cases) and (wanted is None or seed in wanted)
    ]
    if not found:
        shipped.embedded(cases[0] if cases else "3", seed=min(wanted or {0}))  # says what there is and how to train
        raise errors.RequestError("no embedded model of these cases and seeds: see `sonde bench cases --group core`")
    return _ordered(found)


def suite_of(
    folder: Path, *, cases: Sequence[str] | None = None, seeds: Iterable[int] | None = None, least: float = LEAST
) -> tuple[list[Entry], dict[str, float]]:
    """The best try of each case and seed of a suite, and the figures of those that are not good enough; outdated ones are left out.

    Args:
        folder: What `sonde bench train core --out` made.
        cases: Only these.
        seeds: Only these.
        least: What the lowest of accuracy, IIA and strict accuracy must reach.

    Raises:
        RequestError: Nothing in the folder is good enough.
    """
    there = sorted({path.name.removeprefix("case-") for path in folder.glob("case-*") if path.is_dir()})
    wanted = range(1000) if seeds is None else tuple(seeds)
    found, short = [], {}
    for case in (case for case in there if case.isdecimal() and (cases is None or case in cases)):
        for one in suite.best(folder, int(case), _seeds(folder, case, wanted)):
            if shipped.outdated(case, one.folder) is not None:
                continue
            if suite.score(one) >= least:
                found.append(_trained("trained", case, one.seed, one.folder))
            else:
                short[f"case {case}, seed {one.seed}"] = suite.score(one)
    for name in (name for name in shipped.IOI if cases is None or name in cases):
        for one in shipped.best_below(folder / name, wanted):
            if shipped.outdated(name, one.folder) is not None:
                continue
            good = suite.score(one) >= least
            found += [_trained("trained", name, one.seed, one.folder)] if good else []
            short |= {} if good else {f"{name}, seed {one.seed}": suite.score(one)}
    if not found:
        best = f"; the best has {max(short.values()):.2%}" if short else ""
        raise errors.RequestError(
            f"{folder} has no trained model with {least:.1%} accuracy, IIA and strict accuracy{best}: train with "
            f"`sonde bench train core --out {folder}`, or lower --least"
        )
    return _ordered(found), short


def compiled(ids: Iterable[int]) -> list[Entry]:
    """The compiled models of cases."""
    return [Entry("compiled", str(case)) for case in ids]


def numbered(cases: Sequence[str] | None) -> list[int]:
    """The numbers of compiled cases: those that were asked for, or the core ones.

    Raises:
        RequestError: One is no number, or there is no such case.
    """
    if cases is None:
        return list(bench_cases.ids("core"))
    for case in cases:
        if not case.isdecimal():
            raise errors.RequestError(f"{case!r} is no number of a compiled case")
    return [bench_cases.get(int(case)).id for case in cases]


def folder_of(
    folder: Path, *, cases: Sequence[str] | None = None, least: float = published.LEAST
) -> tuple[list[Entry], dict[str, str]]:
    """The models of a published InterpBench folder that can be loaded, and why the others cannot; see `published`.

    Args:
        folder: With a folder for each case.
        cases: Only these.
        least: The share of answers that a model must give as its program does.

    Raises:
        RequestError: There are none.
    """
    places, broken = published.places(folder.resolve())
    if cases is not None:
        places = {case: places[case] for case in cases if case in places}
        broken = {case: broken[case] for case in cases if case in broken}
    found: list[Entry] = []
    for case, place in places.items():
        try:
            published.opened(case, place, least=least)  # before the digest, which trusts the files
            files = (path for path in (place / name for name in published.FILES) if path.is_file())
            found.append(Entry("published", case, 0, str(place), _digest(*files), least))
        except errors.SondeError as error:
            broken[case] = str(error)
    if not found:
        why = "; ".join(f"{name}: {reason}" for name, reason in broken.items()) or "none of these cases is there"
        raise errors.RequestError(f"{folder} has no published model that can be loaded: {why}")
    return _ordered(found), {name: broken[name] for name in sorted(broken, key=lambda one: (len(one), one))}


def core(entries: Iterable[Entry]) -> list[Entry]:
    """Those on whose cases methods are compared: `core` and IOI."""
    known = {str(case) for case in bench_cases.ids("core")}
    return [entry for entry in entries if entry.case in known or not entry.case.isdecimal()]


def _trained(kind: str, case: str, seed: int, place: Path) -> Entry:
    return Entry(kind, case, seed, str(place.resolve()), _digest(place / training.MODEL))


def _seeds(folder: Path, case: str, wanted: Iterable[int]) -> tuple[int, ...]:
    there = {int(path.name.removeprefix("seed-")) for path in folder.glob(f"case-{case}/try-*/seed-*")}
    return tuple(sorted(there & set(wanted)))


def _digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def _ordered(entries: list[Entry]) -> list[Entry]:
    return sorted(
        entries, key=lambda one: (not one.case.isdecimal(), int(one.case) if one.case.isdecimal() else 0, one.seed)
    )


@functools.lru_cache(maxsize=128)
def _subject(entry: Entry) -> shipped.Subject:
    if entry.kind == "compiled":
        return shipped.compiled(entry.case)
    if entry.kind == "published":
        return published.opened(entry.case, Path(entry.place), least=entry.least)
    return shipped.opened(entry.case, Path(entry.place), f"case-{entry.case}-{entry.kind}-seed-{entry.seed}")
