"""Which optional packages does a command need, in all its stages?

They are asked for when the command is called, before anything is loaded or played: a study that ends with "install scipy"
after an hour has wasted it. Each command is a row; what depends on its options is worked out from them. Costs a look for
each package in the search path; none is imported.
"""

import functools
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from sonde.core import errors

#: The extra that brings a package, by the name it is imported under.
EXTRAS = {
    "matplotlib": "plot",
    "plotly": "study",
    "scipy": "study",
    "sklearn": "study",
    "threadpoolctl": "study",
    "pyarrow": "export",
    "nnsight": "nnsight",
    "openai": "openai",
    "mcp": "mcp",
    "ray": "ray",
}
_INSTALLED_AS = {"sklearn": "scikit-learn"}
_REPORT = ("matplotlib", "plotly")
_STATISTICS = ("scipy",)
_STUDY = (*_STATISTICS, *_REPORT)

#: What a command needs; commands that need nothing, or only what they import first, have no row.
COMMANDS: dict[str, tuple[str, ...]] = {
    "study 20q": ("sklearn", "threadpoolctl", *_STUDY),
    "study critical-steps": _STUDY,
    "study binding": ("sklearn", *_STUDY),
    "study layers": _STUDY,
    "study compare": _STUDY,
    "programs run": _STUDY,
    "programs seeds": _STUDY,
    "trace programs": _STUDY,
    "trace episode": _STUDY,
    "circuits find": _STUDY,
    "circuits compare": _STUDY,
    "bench leaderboard": _STUDY,
    "bench run acdc": _REPORT,
    "bench run sp": _REPORT,
    "bench run eap": _REPORT,
    "bench eval": _STUDY,
    "lab depth": _REPORT,
    "lab measure": _STUDY,
    "lab tasks check": _STATISTICS,
    "lab translate": _STUDY,
    "lab run": ("sklearn", *_STUDY),
    "lab fork": ("sklearn", *_STUDY),
    "lab replay": ("sklearn", *_STUDY),
    "lab mcp": ("mcp", "sklearn", *_STUDY),
}
#: What a value of an option needs on top, whichever command has the option.
OPTIONS = {
    ("engine", "ray"): ("ray",),
    ("backend", "nnsight"): ("nnsight",),
    ("planner", "openai"): ("openai",),
    ("to", "parquet"): ("pyarrow",),
}
#: Stages of a study that by themselves do without the study's packages.
LIGHT = {("study 20q", "collect")}


def of(command: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The packages that a command needs when it is called with these options."""
    needed = () if (command, given.get("stage")) in LIGHT else COMMANDS.get(command, ())
    chosen = [more for (option, value), more in OPTIONS.items() if given.get(option) == value]
    return tuple(dict.fromkeys((*needed, *(name for more in chosen for name in more))))


def check(command: str, given: Mapping[str, Any]) -> None:
    """Asks for the packages of a command.

    Raises:
        MissingExtraError: Some are not installed; it names them all, with the line that installs them.
    """
    lacking = [name for name in of(command, given) if not _installed(name)]
    if lacking:
        extras = {EXTRAS[name] for name in lacking}
        extras -= {"plot"} if "study" in extras else set()  # which brings it
        names = (_INSTALLED_AS.get(name, name) for name in lacking)
        raise errors.MissingExtraError(*names, extra=",".join(sorted(extras)), feature=f"sonde {command}")


def asked(command: str, callback: Callable[..., Any]) -> Callable[..., Any]:
    """A command's function that asks for its packages first."""

    @functools.wraps(callback)
    def call(**given: Any) -> Any:
        check(command, given)
        return callback(**given)

    return call


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # something in the search path refuses it
        return False
