"""The whole study, stage by stage, each kept on disk as it is finished.

    found = study.run(model, size="full", run="my-study")
    print(found.claims[0].sentence, found.report)

Stages: `collect`, `probe`, `steer`, `evolution`, `report`. Each writes `stages/NAME.json` in the run's folder and is not
computed again; games go on where they were interrupted. `results.json` is the same for the same seed and settings, byte
by byte, but for what is under `timing`.

What is claimed is decided at the end, over all headlines together (Holm): the model knows before it speaks, it can be
read off after, steering works, the direction changes over steps.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sonde import store
from sonde.analysis import evolution, jackknife
from sonde.core import errors
from sonde.models import identity
from sonde.models import model as models_model
from sonde.store import documents, layout
from sonde.studies.twenty_questions import claims as study_claims
from sonde.studies.twenty_questions import collecting, kinds, probing, reporting, steering
from sonde.studies.twenty_questions import rows as study_rows
from sonde.studies.twenty_questions import settings as study_settings

KIND = "study-20q"
STAGES = ("collect", "probe", "steer", "evolution", "report")
RESULTS = "results.json"
Tell = Callable[[str, int, int], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Study:
    """What was found.

    Attributes:
        folder: The run's folder.
        claims: The headlines, with what holds of them.
        results: Everything, as in `results.json`.
        report: The page.
    """

    folder: Path
    claims: tuple[study_claims.Claim, ...]
    results: Mapping[str, Any]
    report: Path


def run(
    model: models_model.Model,
    settings: study_settings.Settings,
    *,
    games: study_settings.Games | None = None,
    run: str | None = None,
    runs_dir: Path | str | None = None,
    tell: Tell = lambda doing, done, of: None,
) -> Study:
    """Runs all stages that are not on disk yet.

    Args:
        model: The model.
        settings: See `settings.settings_of`.
        games: Games of your own, whose verdicts say `valid`; Twenty Questions if left out.
        run: A name; a run of that name and these settings is taken up.
        runs_dir: Where runs are kept.
        tell: Told what is being done, how much of it is done, and of how much.

    Raises:
        RequestError: A run of that name with other settings, or of another model.
        AnalysisError: The games do not support the analysis; the message says what to change.
    """
    kept = opened(settings, run, runs_dir, model=model)
    for stage in STAGES:
        run_stage(stage, model, kept, settings, games=games, tell=tell)
    return finished(kept, settings)


def run_stage(
    stage: str,
    model: models_model.Model | None,
    kept: store.Run,
    settings: study_settings.Settings,
    *,
    games: study_settings.Games | None = None,
    tell: Tell = lambda doing, done, of: None,
) -> dict[str, Any]:
    """One stage, read if it is on disk and computed if not.

    Raises:
        RequestError: There is no such stage, an earlier one that it needs is missing, or games of one's own are.
    """
    if stage not in STAGES:
        raise errors.RequestError(f"no stage {stage!r}: choose one of {', '.join(STAGES)}")
    path = kept.folder / "stages" / f"{stage}.json"
    if path.exists():
        return documents.kept(path, kinds.STAGES[stage])
    start = time.monotonic()
    found = _computed(stage, model, kept.folder, settings, (_games(settings, games), tell))
    if stage == "report":
        return found
    documents.keep(path, {**found, "seconds": time.monotonic() - start})
    return documents.kept(path, kinds.STAGES[stage])


def _computed(
    stage: str,
    model: models_model.Model | None,
    folder: Path,
    settings: study_settings.Settings,
    rest: tuple[study_settings.Games | None, Tell],
) -> dict[str, Any]:
    games, tell = rest
    if stage == "report":
        return written(folder, settings)
    if stage in ("collect", "steer") and (model is None or games is None):
        raise errors.RequestError(f"the stage {stage!r} plays games: give it a model, and games if they are your own")
    if stage == "collect":
        assert model is not None
        assert games is not None
        return collecting.collect(model, settings, games, folder, tell)
    collected, rows = _stage(folder, "collect", stage), study_rows.Rows.load(folder)
    if stage == "probe":
        with _one_thread():
            return probing.probe(rows, settings, tell)
    layer = _stage(folder, "probe", stage)["layer"]
    if stage == "steer":
        assert model is not None
        assert games is not None
        return steering.steer(model, settings, games, folder, (rows, collected["temperature"], layer), tell)
    tell("evolution", 0, 1)
    table, features = rows.examples, rows.features[layer, probing.BEFORE].astype("float64")
    options = evolution.Options(least=settings.least, permutations=settings.permutations, seed=settings.seed)
    try:
        with _one_thread():
            found = evolution.evolution(features, ~table.labels, table.steps, table.episodes, options)
    except errors.AnalysisError as error:  # no step has enough rows: a result, too
        return {"layer": layer, "skipped": str(error), "claim_p": 1.0}
    tell("evolution", 1, 1)
    return {"layer": layer, **found.to_json(), "claim_p": study_claims.change_p(found)}


def _games(settings: study_settings.Settings, own: study_settings.Games | None) -> study_settings.Games | None:
    """Where it is played; None if nobody said."""
    if settings.environment != study_settings.TWENTY_QUESTIONS:
        return own
    if own is not None:
        raise errors.RequestError("games of your own need a name of their own: settings_of(model, environment=NAME)")
    return study_settings.twenty_questions(settings)


def written(folder: Path, settings: study_settings.Settings) -> dict[str, Any]:
    """Writes `results.json`, `report.html` and the figures from what the stages left."""
    stages = {name: _stage(folder, name, "report") for name in STAGES[:-1]}
    timing = {name: found.pop("seconds") for name, found in stages.items()}
    found = study_claims.of_stages(stages)
    results = {
        "settings": settings.to_json(),
        "versions": store.Run.open(folder).manifest["versions"],
        "claims": [one.to_json() for one in found],
        **stages,
        "timing": timing,
    }
    documents.write_results(folder / RESULTS, results)
    try:
        reporting.write(results, found, folder)
    except (LookupError, TypeError, AttributeError) as error:
        raise errors.DamagedError(
            f"the stages in {folder / 'stages'} are not what this study writes ({error!r}): delete them, to have them "
            "computed again"
        ) from error
    return results


def finished(kept: store.Run, settings: study_settings.Settings) -> Study:
    """What a finished study found."""
    results = documents.read_results(kept.folder / RESULTS, kinds.RESULTS)
    found = tuple(study_claims.Claim(**one) for one in results["claims"])
    if kept.status != "finished":
        kept.finish({"claims": {one.name: one.holds for one in found}})
    return Study(kept.folder, found, results, kept.folder / "report.html")


def opened(
    settings: study_settings.Settings,
    run: str | None = None,
    runs_dir: Path | str | None = None,
    *,
    model: models_model.Model | None = None,
) -> store.Run:
    """The run to write to: a new one, or the one of that name.

    Raises:
        RequestError: It is of another kind or model, or has other settings.
    """
    told, held = settings.to_json(), {"name": settings.model} if model is None else identity.of(model)
    kept = store.Run.take_up(runs_dir, kind=KIND, model=held, settings=told, seed=settings.seed, id=run)
    if model is not None:
        identity.check(kept.manifest["model"], held, what=f"run {kept.id}")
    return kept


def settings_of_run(run: str, runs_dir: Path | str | None = None) -> study_settings.Settings:
    """The settings that a run was started with.

    Raises:
        RequestError: There is none of that name, or it is of another kind.
    """
    return study_settings.Settings.from_json(_manifest(run, runs_dir)["settings"])


def model_of_run(run: str, runs_dir: Path | str | None = None) -> models_model.Model:
    """The model that a run was started with, loaded again.

    Raises:
        RequestError: There is no run of that name, or it is of another kind.
        ModelError: The model cannot be loaded again, or what has its name now is another.
    """
    return identity.rebuilt(_manifest(run, runs_dir)["model"])


def _manifest(run: str, runs_dir: Path | str | None) -> dict[str, Any]:
    parent = Path(runs_dir if runs_dir is not None else store.default_runs_dir())
    if run not in layout.list_runs(parent):
        raise errors.RequestError(
            f"there is no run {run!r} at {parent}: start one with sonde study 20q collect --run {run}"
        )
    manifest = store.Run.open(parent / run).manifest
    if manifest["kind"] != KIND:
        raise errors.RequestError(f"run {run} is of kind {manifest['kind']!r}, not {KIND!r}: give another one")
    return manifest


def _stage(folder: Path, name: str, wanted: str) -> dict[str, Any]:
    path = folder / "stages" / f"{name}.json"
    if not path.exists():
        raise errors.RequestError(
            f"the stage {wanted!r} needs {name!r}, which is not finished: sonde study 20q {name} --run {folder.name}"
        )
    return documents.kept(path, kinds.STAGES[name])


def _one_thread() -> contextlib.AbstractContextManager[Any]:
    """Small matrices gain nothing from threads, and their number changes the last bits."""
    return jackknife.imported("threadpoolctl", "probing").threadpool_limits(1)


def stages_done(kept: store.Run) -> Sequence[str]:
    """The stages on disk."""
    return [name for name in STAGES[:-1] if (kept.folder / "stages" / f"{name}.json").exists()]
