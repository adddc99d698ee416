"""Where in a folder are the runs, their episodes, and the runs within a run?

A study is a run that holds others: the games it played. They lie anywhere below its folder except among its
episodes. A folder of runs and a run may be links, which is how they are named; inside a run no link is followed. Costs
one walk over the folders.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sonde.store import damage, disk, files

MANIFEST = "manifest.json"
EPISODES = "episodes"
#: Locked by whoever is at work on a run.
LOCK = ".lock"


def list_runs(runs_dir: Path) -> list[str]:
    """Returns the ids of the runs in a folder, sorted; also those whose manifest is damaged or gone.

    Raises:
        StoreError: The folder may not be read.
    """
    if not os.path.isdir(runs_dir):  # noqa: PTH112  # unlike Path.is_dir, it bears any name
        return []
    with disk.explained(runs_dir, doing="list"), os.scandir(runs_dir) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and _is_dir(entry)]
    return sorted(name for name in names if _is_run(runs_dir / name))


def list_episodes(folder: Path) -> list[str]:
    """Returns the ids of the episodes in a run folder, sorted; also those that are damaged, or links.

    None if `check` would raise.
    """
    episodes = folder / EPISODES
    try:
        if episodes.is_symlink():
            return []
        with os.scandir(episodes) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_dir(entry))
    except OSError:
        return []


def check(folder: Path) -> None:
    """Checks that the episodes of a run lie in its folder.

    Raises:
        DamagedError: They are elsewhere, or may not be read.
    """
    episodes = folder / EPISODES
    try:
        mode = episodes.lstat().st_mode
        if stat.S_ISDIR(mode):
            os.scandir(episodes).close()
            return
        problem = files.LINK if stat.S_ISLNK(mode) else "is not a folder"
    except FileNotFoundError:
        return
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    raise damage.Damage(episodes, problem).error()


def with_runs_within(folder: Path) -> list[Path]:
    """Returns a run's folder, and then the folders of all runs within it, sorted."""
    return [folder, *sorted(place for place, _ in _walk(folder) if place != folder and _is_run(place))]


def all_episodes(folder: Path) -> list[Path]:
    """Returns the folders of all episodes of a run and of the runs within it, but for links."""
    found = (run / EPISODES / id for run in with_runs_within(folder) for id in list_episodes(run))
    return [episode for episode in found if not episode.is_symlink()]


def loose_json(folder: Path) -> list[Path]:
    """Returns the JSON files of a run and of the runs within it that are neither a manifest nor an episode's."""
    found = (place / entry.name for place, entries in _walk(folder) for entry in entries)
    return sorted(
        path for path in found if path.suffix == ".json" and path.name != MANIFEST and stat.S_ISREG(_mode(path))
    )


def strange(folder: Path) -> list[tuple[Path, str]]:
    """Returns what is in a run that is neither a file nor a folder that can be read, and what is wrong with it."""
    found: list[tuple[Path, str]] = []
    for place, entries in _walk(folder, episodes=True, refused=found):
        for entry in entries:
            mode = _mode(path := place / entry.name)
            if mode and not stat.S_ISREG(mode):
                found.append((path, files.LINK if stat.S_ISLNK(mode) else "is not a regular file"))
    return sorted(found)


def _is_run(folder: Path) -> bool:
    """Returns whether a folder is a run; one that may not be looked into is taken for one."""
    try:
        (folder / MANIFEST).lstat()
    except PermissionError:
        return True
    except OSError:
        return os.path.isdir(folder / EPISODES)  # noqa: PTH112
    return True


def _is_dir(entry: os.DirEntry[str], *, follow_links: bool = True) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follow_links)
    except OSError:  # a link in a circle
        return False


def _mode(path: Path) -> int:
    """Returns what sort of thing is at a path; 0 if that cannot be told."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def _walk(
    folder: Path, *, episodes: bool = False, refused: list[tuple[Path, str]] | None = None
) -> Iterator[tuple[Path, list[os.DirEntry[str]]]]:
    """Yields each folder with what is in it but folders, and notes those that cannot be read; it bears any depth."""
    todo = [folder]
    while todo:
        place = todo.pop()
        try:
            with os.scandir(place) as found:
                entries = [entry for entry in found if not entry.name.startswith(".")]
        except OSError as error:
            if refused is not None:
                refused.append((place, f"cannot be read: {error.strerror}"))
            continue
        rest: list[os.DirEntry[str]] = []
        for entry in entries:
            if not _is_dir(entry, follow_links=False):
                rest.append(entry)
            elif episodes or entry.name != EPISODES:
                todo.append(place / entry.name)
        yield place, rest
