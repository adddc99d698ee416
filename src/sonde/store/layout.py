"""Where in a folder are the runs, their episodes, and the runs within a run?

A study is a run that holds others: the games it played. They lie anywhere below its folder except among its
episodes. Costs one walk over the folders.
"""

import os
from collections.abc import Iterator
from pathlib import Path

MANIFEST = "manifest.json"
EPISODES = "episodes"


def list_runs(runs_dir: Path) -> list[str]:
    """Returns the ids of the runs in a folder, sorted; also those whose manifest is damaged or gone."""
    if not runs_dir.is_dir():
        return []
    found = [entry for entry in runs_dir.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    return sorted(entry.name for entry in found if _is_run(entry))


def list_episodes(folder: Path) -> list[str]:
    """Returns the ids of the episodes in a run folder, sorted; also those that are damaged."""
    episodes = folder / EPISODES
    if not episodes.is_dir():
        return []
    return sorted(entry.name for entry in episodes.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def with_runs_within(folder: Path) -> list[Path]:
    """Returns a run's folder, and then the folders of all runs within it, sorted."""
    return [folder, *sorted(place for place, _ in _walk(folder) if place != folder and _is_run(place))]


def all_episodes(folder: Path) -> list[Path]:
    """Returns the folders of all episodes of a run and of the runs within it."""
    return [run / EPISODES / id for run in with_runs_within(folder) for id in list_episodes(run)]


def loose_json(folder: Path) -> list[Path]:
    """Returns the JSON files of a run and of the runs within it that are neither a manifest nor an episode's."""
    files = (place / name for place, names in _walk(folder) for name in names)
    return sorted(file for file in files if file.suffix == ".json" and file.name != MANIFEST)


def _is_run(folder: Path) -> bool:
    return (folder / MANIFEST).exists() or (folder / EPISODES).is_dir()


def _walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    for place, subfolders, files in os.walk(folder):
        subfolders[:] = [name for name in subfolders if name != EPISODES and not name.startswith(".")]
        yield Path(place), [name for name in files if not name.startswith(".")]
