"""Which names may runs and episodes have, and how are new ones made?

A name is one path component, safe on every file system. New run ids start with the UTC time to the
microsecond, so that they sort by time, and end in random digits, so that two processes never agree on one.
Costs nothing.
"""

import datetime
import os
import re
import secrets
from pathlib import Path

from sonde.core import errors

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=-]{0,126}")


def check(name: str, *, what: str) -> str:
    """Returns the name if it is safe as a folder name.

    Raises:
        StoreError: It could leave its folder, hide in it, or upset a file system.
    """
    if not _SAFE.fullmatch(name) or name.endswith("."):
        raise errors.StoreError(
            f"{what} {name!r} cannot be a folder name; use letters, digits, '_', '-', '+', '=' and '.', "
            "starting with a letter, digit or '_', at most 127 of them"
        )
    return name


def now() -> datetime.datetime:
    """Returns the time, in UTC."""
    return datetime.datetime.now(datetime.UTC)


def timestamp() -> str:
    """Returns the time as ISO 8601 in UTC, to the millisecond."""
    return now().isoformat(timespec="milliseconds")


def new_run_id() -> str:
    """Returns an id that sorts by time and that nobody else has."""
    return f"{now():%Y%m%d-%H%M%S-%f}-{secrets.token_hex(3)}"


def default_runs_dir() -> Path:
    """Returns where runs live unless told otherwise: $SONDE_RUNS, else ./runs."""
    return Path(os.environ.get("SONDE_RUNS") or "runs")
