"""Where does Python inside a sandbox come from? From the interpreter that runs Sonde, shown read-only.

The programs and libraries of its base prefix (not the virtual environment: that one may hold anything, and so may what
lies beside them in the prefix) are bound at their own paths, so that `python` and `python3` inside are this version with
its standard library; what was installed for it is hidden. Packages are bound one by one into a folder of their own,
which `PYTHONPATH` names; pytest and what it needs are there unless the caller says otherwise.
"""

import functools
import importlib.metadata
import re
import site
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

_NEEDED = ("bin", "include", "lib", "lib32", "lib64", "libexec", "share", "ssl")


def prefix() -> Path:
    """The folder that the running interpreter was installed to."""
    return Path(sys.base_prefix)


def shown() -> tuple[Path, ...]:
    """The folders of that installation which Python needs; some keep virtual environments beside them."""
    return tuple(path for path in (prefix() / name for name in _NEEDED) if path.is_dir())


def installed() -> tuple[Path, ...]:
    """Folders of that installation which hold what somebody installed there: not shown inside."""
    paths = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    found = {paths["purelib"], paths["platlib"], *site.getsitepackages([sys.base_prefix])}
    return tuple(Path(path) for path in sorted(found))


def executable() -> Path:
    """The interpreter itself, outside any virtual environment."""
    named = prefix() / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return named if named.exists() else Path(sys.executable).resolve()


@functools.cache
def packages(*names: str) -> tuple[Path, ...]:
    """The files and folders that installed distributions and what they require consist of, without their scripts.

    Args:
        *names: Distributions, such as `"pytest"`; one that is not installed is left out.
    """
    found: dict[str, Path] = {}
    waiting, seen = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in distribution.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not file.is_absolute():
                found[top] = Path(str(distribution.locate_file(top)))
        for requirement in distribution.requires or ():
            needed = re.match(r"[\w.-]+", requirement)
            if needed and "extra ==" not in requirement and needed[0] not in seen:
                seen.add(needed[0])
                waiting.append(needed[0])
    return tuple(path for _, path in sorted(found.items()) if path.exists())


def chosen(given: Sequence[Path] | None) -> Sequence[Path]:
    """The packages to show: those given, or pytest's."""
    return packages("pytest") if given is None else given
