"""The whole study of layers: measure, and write what was found.

    with sonde.load("smollm2-135m-instruct") as model:
        found = study.run(model, settings.settings_of(model.cfg), run="layers")
    found.results["verdict"]["worst_skips"]

Each stage (see `stages`) leaves a JSON file in the run's folder, written as a whole, and the same run goes on where it was
stopped. `results.json` holds everything, `report.html` shows it. The same seed gives the same numbers. Costs about as much
as `seconds` says: some minutes for a model of 135 million weights on a core.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np

from sonde import store
from sonde.analysis import jackknife
from sonde.core import errors
from sonde.lab import rows as lab_rows
from sonde.lab.layers import settings as study_settings
from sonde.lab.layers import stages
from sonde.models import identity
from sonde.models import model as models_model
from sonde.store import documents

KIND, RESULTS = "layers", "results.json"
STAGES = tuple(stages.STAGES)
#: What no mean of a measure can be below or above.
LIMITS = {"kl": lab_rows.NO_LESS, "loss": lab_rows.NO_LESS, "entropy": lab_rows.NO_LESS, "agreement": lab_rows.SHARE}
#: A layer stands out if skipping it does so many times the harm of the median one in the middle.
STANDS_OUT = 3.0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A finished study: the run's folder, and all that was measured."""

    folder: Path
    results: dict[str, Any]


def run(
    model: models_model.Model,
    settings: study_settings.Settings,
    *,
    run: str | None = None,
    runs_dir: Path | str | None = None,
    tell: stages.Tell = lambda doing, done, of: None,
) -> Found:
    """Runs the stages that are not on disk yet, and writes `results.json`.

    Args:
        model: The model.
        settings: What is to be done.
        run: A name for the run; one that is there is taken up.
        runs_dir: Where runs are kept.
        tell: Called with what is done, how much of it, and of how much.

    Raises:
        RequestError: The settings are another model's, or a run of that name has others.
    """
    if settings.model != model.cfg.model_name:
        raise errors.RequestError(f"the settings are for {settings.model!r}, the model is {model.cfg.model_name!r}")
    told, held = settings.to_json(), identity.of(model)
    kept = store.Run.take_up(runs_dir, kind=KIND, model=held, settings=told, seed=settings.seed, id=run)
    identity.check(kept.manifest["model"], held, what=f"run {kept.id}")
    bench: stages.Bench | None = None
    measured: dict[str, Any] = {}
    for name in STAGES:
        path = kept.folder / "stages" / f"{name}.json"
        if not path.is_file():
            bench = bench or stages.Bench(model, settings, tell)
            documents.keep(path, stages.STAGES[name](bench))
        measured[name] = documents.kept(path, stages.KINDS[name])
    results = {"study": KIND, "settings": told, "n_layers": model.cfg.n_layers, **measured}
    results["verdict"] = verdict(results)
    documents.write_results(kept.folder / RESULTS, results)
    if kept.status != "finished":
        kept.finish({"worst skips": results["verdict"]["worst_skips"]})
    return Found(kept.folder, documents.read_results(kept.folder / RESULTS, stages.RESULTS))


def pending(run: str | None, runs_dir: Path | str | None) -> list[str]:
    """The stages that are not on disk yet."""
    if run is None:
        return list(STAGES)
    folder = Path(runs_dir if runs_dir is not None else store.default_runs_dir()) / run / "stages"
    return [name for name in STAGES if not (folder / f"{name}.json").is_file()]


def seconds(model: models_model.Model, settings: study_settings.Settings) -> dict[str, float]:
    """About how long each stage takes, judged by one forward pass over a text."""
    ids = model.to_tokens([*model.tokenizer.encode(""), *range(20, 20 + settings.tokens)][: settings.tokens])
    model.run_with_hooks(ids)
    start = time.monotonic()
    model.run_with_hooks(ids)
    whole = (time.monotonic() - start) * settings.texts
    count = model.cfg.n_layers
    return {
        "single": 1.8 * count * whole,
        "windows": len(settings.sizes) * (5 + settings.orders) * 0.8 * whole,
        "shape": 0.1 * whole,
        "depth": (0.8 + 0.04 * settings.words) * count * whole,
    }


def verdict(results: dict[str, Any]) -> dict[str, Any]:
    """What the numbers say: the worst skips, layers that stand out, the order of methods, what influence tells."""
    skip = means(results["single"]["skip"], "kl")
    noise = means(results["single"]["noise"], "kl")
    count = len(skip)
    middle = [layer for layer in range(count) if 3 <= layer < count - 2] if count > 8 else list(range(1, count - 1))
    median = float(np.median([skip[layer] for layer in middle]))
    influence = [float(np.mean(one)) for one in results["shape"]["influence"]]
    window = next((one for one in results["windows"]["windows"] if one["size"] == 4), results["windows"]["windows"][0])
    harm = {
        method: float(np.mean(window[method]["kl"])) for method in study_settings.METHODS if window[method] is not None
    }
    spearman = jackknife.imported("scipy.stats", "rank correlations").spearmanr
    ranks = spearman(influence, skip)
    return {
        "worst_skips": [int(layer) for layer in np.argsort(-np.array(skip))[:4]],
        "middle": [middle[0], middle[-1]],
        "median_kl": median,
        "stand_out": [layer for layer in middle if skip[layer] >= STANDS_OUT * median],
        "more_than_noise": int(sum(a > b for a, b in zip(skip, noise, strict=True))),
        "agreement": float(np.median([means(results["single"]["skip"], "agreement")[layer] for layer in middle])),
        "window": {
            "first": window["first"],
            "last": window["last"],
            "kl": dict(sorted(harm.items(), key=lambda x: x[1])),
        },
        "influence_spearman": {"rho": float(ranks.statistic), "p": float(ranks.pvalue), "n": count},
    }


def means(columns: list[dict[str, list[float]] | None], measure: str) -> list[float]:
    """Means over texts; nan for what could not be run."""
    return [float("nan") if one is None else float(np.mean(one[measure])) for one in columns]


def estimates(columns: list[dict[str, list[float]] | None], measure: str) -> dict[str, np.ndarray]:
    """Means over texts with the ends of their intervals; nan for what could not be run."""
    made: dict[str, list[float]] = {"value": [], "low": [], "high": []}
    for one in columns:
        values = np.array([np.nan] if one is None else one[measure], dtype=np.float64)
        found = lab_rows.mean(values, np.arange(len(values)), limits=LIMITS[measure])
        for end, numbers in made.items():
            numbers.append(getattr(found, end))
    return {end: np.array(numbers) for end, numbers in made.items()}
