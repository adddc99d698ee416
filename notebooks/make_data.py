"""Where does the data of the notebooks come from? A finished study, cut down to what fits beside the code.

    sonde study 20q --full --run full
    python notebooks/make_data.py runs/full

1. Rows: the first games and steps, three layers before the model speaks and the chosen one after it spoke, as float16.
2. Results: all that the study found, but for the map of single steps.
3. Outcomes: what came of every steered game, condition by condition, so that it can be compared again.
4. Episodes: sixteen games are played once more under the study's settings, with attention patterns; the one with the
   fewest invalid messages and the one with the most are kept.

Steps 1 to 3 cost seconds, step 4 a minute or two: it needs the study's model. Every file says what made it.
"""

import argparse
import json
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import sonde
from sonde import store
from sonde.agents import history
from sonde.analysis import examples
from sonde.store import documents
from sonde.studies.twenty_questions import outcomes
from sonde.studies.twenty_questions import rows as study_rows
from sonde.studies.twenty_questions import settings as study_settings

HERE = Path(__file__).parent
GAMES, STEPS, LAYERS = 48, 8, 3
PLAYED, PLAYED_STEPS, PATTERNS = 16, 8, 5
#: What fits into a repository.
LIMIT = 3_000_000


def main(run: Path, out: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    settings = results["settings"]
    made_by = {
        "command": shlex.join(["sonde", "study", "20q", *study_settings.TwentyQuestionsSettings(**settings).typed()]),
        "then": "python notebooks/make_data.py RUN",
        "seed": settings["seed"],
        "model": settings["model"],
        "versions": results["versions"],
    }
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    layer = results["probe"]["layer"]
    write_rows(study_rows.Rows.load(run), layer, made_by, out)
    write(out / "results.json", {"made_by": made_by, **slim(results)})
    write(out / "steering.json", {"made_by": made_by, **steered(run, results)})
    write_episodes(results, made_by, out / "episodes")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{size / 1e6:.2f} MB in {out}")
    if size > LIMIT:
        raise SystemExit(f"that is more than {LIMIT / 1e6:g} MB: take fewer games or steps (GAMES, STEPS)")


def write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n")


def write_rows(rows: study_rows.Rows, layer: int, made_by: dict[str, Any], out: Path) -> None:
    """A part of the rows, as a study keeps them."""
    table = rows.examples
    games = np.unique(table.episodes)[:GAMES]
    at = np.flatnonzero(np.isin(table.episodes, games) & (table.steps < STEPS))
    layers = sorted({key[0] for key in rows.features})
    spread = [layers[0], layers[-1], layers[len(layers) // 2], *layers]
    kept = sorted(list(dict.fromkeys([layer, *spread]))[:LAYERS])
    keys = [*((one, "last_prompt") for one in kept), (layer, "mean_generated")]
    part = examples.Examples(
        table.labels[at],
        table.episodes[at],
        table.steps[at],
        tuple((table.texts or ())[index] for index in at),
        tuple((table.before or ())[index] for index in at),
    )
    features = {key: rows.features[key][at].astype(np.float16) for key in keys}
    study_rows.Rows(part, features, rows.left_out).save(out)
    written = documents.read(out / "rows.json")
    documents.write(out / "rows.json", {"made_by": made_by, **written})


def slim(results: dict[str, Any]) -> dict[str, Any]:
    """The results without the map of single steps, by far their largest part."""
    sweep = results["probe"]["sweep"]
    whole = {name: [one for one in sweep[name] if one["step"] is None] for name in ("cells", "baselines")}
    return {**results, "probe": {**results["probe"], "sweep": {**whole, "skipped": []}}}


def steered(run: Path, results: dict[str, Any]) -> dict[str, Any]:
    """For each condition and outcome a value per game, None where there is none; games are in the same order."""
    held: dict[str, dict[int, outcomes.EpisodeOutcome]] = {one["name"]: {} for one in results["steer"]["conditions"]}
    played = store.Run.open(run / "games" / "steer")
    for reader in played.episodes():
        if "error" not in reader.summary:
            record = sonde.TrajectoryActivations.load(reader.folder)
            held[record.metadata["condition"]][record.metadata["episode"]] = outcomes.of_episode(record)
    common = sorted(set.intersection(*(set(games) for games in held.values())))
    names = [name for name in outcomes.NAMES if name != "fluency"]  # that takes the model: it is in the results
    base = held[results["steer"]["conditions"][0]["name"]]
    return {
        "tasks": [base[game].task_id for game in common],
        "outcomes": {
            condition: {name: [rounded(games[game].values()[name]) for game in common] for name in names}
            for condition, games in held.items()
        },
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def write_episodes(results: dict[str, Any], made_by: dict[str, Any], out: Path) -> None:
    """Plays with attention patterns, and keeps the game with the fewest and the one with the most invalid messages."""
    settings = results["settings"]
    training, _ = study_settings.split(settings["seed"])
    with sonde.load(settings["model"]) as model, tempfile.TemporaryDirectory() as folder:
        depths = study_settings.spread(PATTERNS, model.cfg.n_layers)
        sites = [f"blocks.{layer}.hook_resid_post" for layer in range(0, model.cfg.n_layers, 3)]
        sites += [f"blocks.{layer}.attn.hook_pattern" for layer in depths]
        played = sonde.play(
            "20q",
            model,
            episodes=PLAYED,
            capture={"hook_filter": sites, "positions": "last_prompt", "dtype": "float16"},
            seed=settings["seed"],
            max_steps=PLAYED_STEPS,
            generation={"temperature": results["collect"]["temperature"]},
            options={"objects": training, **settings["options"]},
            runs_dir=folder,
        )
        whole = [one.trajectory for one in played if one.error is None and one.steps == PLAYED_STEPS]
        order = sorted(whole, key=lambda one: (invalid(one), one.metadata["episode"]))
        for name, rule, record in (("kept", "fewest", order[0]), ("broke", "most", order[-1])):
            record.metadata |= {"made_by": made_by, "rule": f"{rule} invalid messages of {len(whole)} games"}
            record.save(out / name)


def invalid(record: sonde.TrajectoryActivations) -> int:
    return sum(not moment.info["valid"] for moment in history.moments(record))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a finished study")
    parser.add_argument("--out", type=Path, default=HERE / "data")
    options = parser.parse_args()
    main(options.run, options.out)
