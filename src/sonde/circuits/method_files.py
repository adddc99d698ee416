"""How does a circuit finder of one's own get onto the command line? A file that registers it.

    # my_method.py
    from sonde.circuits import registry, running_options

    @registry.register("mine")
    def mine(model, pairs, metric, **options):
        \"\"\"One line that says what it does.\"\"\"
        search = running_options.Search("mine", model, pairs, metric, options)
        …
        return search.scores(values)

    method_files.load(Path("my_method.py"))                  # ("mine",)

The file is run as Python, once; so give only files that you trust. Costs what the file's imports cost.
"""

import hashlib
import importlib.util
import traceback
from collections.abc import Iterable
from pathlib import Path

from sonde.circuits import registry
from sonde.core import errors

_loaded: dict[tuple[Path, str], tuple[str, ...]] = {}


def load(path: Path) -> tuple[str, ...]:
    """Runs a file and returns the names of the methods that it registers; a file that has not changed is run once.

    Raises:
        RequestError: The file is not there, fails, or registers nothing; says where.
    """
    if not path.is_file():
        raise errors.RequestError(f"no file {path}: give a Python file that registers a circuit finder")
    key = path.resolve(), digest(path)
    if key not in _loaded:
        before = set(registry.methods())
        _run(path)
        found = tuple(sorted(set(registry.methods()) - before))
        if not found:
            raise errors.RequestError(
                f"{path} registers no method: put @registry.register('name') of sonde.circuits.registry before a function"
            )
        _loaded[key] = found
    return _loaded[key]


def load_all(paths: Iterable[Path]) -> dict[str, str]:
    """The methods of several files, each with the digest of its file."""
    return {name: digest(path) for path in paths for name in load(path)}


def digest(path: Path) -> str:
    """Changes when the file does."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _run(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"sonde_method_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise errors.RequestError(f"{path} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except errors.SondeError:
        raise
    except Exception as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
        line = getattr(error, "lineno", None) or (own[-1].lineno if own else None)
        where = f"{path}, line {line}" if line else str(path)
        raise errors.RequestError(f"{where}: {type(error).__name__}: {error}") from error
