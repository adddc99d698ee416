"""Where on the machine could a command read the tests that will judge it? Wherever tasks lie in what a sandbox shows.

A sandbox shows the system's programs and the interpreter, and this package may be installed among them, more than once:
in `/usr/local`, in a virtual environment below the interpreter, as a source tree in `/usr/src`, built beside it. So
everything shown is searched, and these folders are covered with empty ones, under every name that leads to them:

1. installed packages of the interpreter that runs Sonde;
2. every copy of this package: a folder that holds `agents/code/repositories`, compiled files included;
3. every task: a folder that holds `task.json` and `hidden`.

Not found: tests in an archive, such as a wheel, or in a file copied or linked out of its folder. Costs one look at every folder
shown, 0.5 s for 16,000 of them, once per process; what is written later is found if it is loaded as a task.
"""

import functools
import os
from collections.abc import Collection, Iterator
from pathlib import Path

TASK_FILE = "task.json"
HIDDEN = "hidden"
_PACKAGE = ("agents", "code", "repositories")


def search(shown: tuple[Path, ...], packages: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    """The folders to cover.

    Args:
        shown: What a command sees; if one is this package itself, only the tasks in it are covered.
        packages: Folders that hold installed packages.
    """
    known = {os.path.realpath(path) for path in packages} | {str(path) for path in packages}
    return tuple(Path(found) for path in shown for found in _below(str(path), known))


remembered = functools.cache(search)
"""Searches once; `remembered.cache_clear()` when there is something new to find."""


def _below(root: str, known: Collection[str]) -> Iterator[str]:
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        folders, described = _entries(folder)
        copy = _PACKAGE[0] in folders and folder != root and os.path.isdir(os.path.join(folder, *_PACKAGE))  # noqa: PTH112, PTH118
        if folder in known or copy or (described and HIDDEN in folders):
            yield folder
        else:
            waiting += [os.path.join(folder, name) for name in folders]  # noqa: PTH118


def _entries(folder: str) -> tuple[list[str], bool]:
    """The folders in a folder, and whether a task's file is in it; what a link leads to is looked at in its own place."""
    folders, described = list[str](), False
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.name == TASK_FILE:
                    described = True
    except OSError:  # not a folder, or nobody here may look into it, and so nobody in the sandbox
        pass
    return folders, described
