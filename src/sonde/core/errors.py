"""Every error Sonde raises on purpose, in one tree.

    SondeError
    ├── SiteError              a Site name does not parse or the model has no such Site   (also ValueError)
    ├── InterventionError      an intervention that cannot be applied as written          (also ValueError)
    │   └── OpaqueError        replay or storage asked of a plain Python function
    ├── ModelError             a model that cannot be loaded or driven
    │   ├── ZooError           the model is not to be had (offline, checksum, unknown name)
    │   └── FamilyError        no row in the family table, or the row does not fit
    ├── RequestError           a request that makes no sense: empty prompt, bad limits    (also ValueError)
    │   └── ContextError       prompt and new tokens do not fit the context
    ├── CompileError           a RASP program that cannot become a transformer           (also ValueError)
    ├── SelectorError          an unknown preset, or a selector that does not parse     (also ValueError)
    ├── EpisodeError           an environment used out of order, or an episode that cannot go on
    │   └── SandboxError       no sandbox on this machine, or it cannot run what it is given
    ├── BudgetError            the cost or token budget of a client is used up
    ├── ServerError            a model server is down, too slow, or answers nonsense
    ├── CaptureError           recording used out of order, or a step or Site not recorded
    ├── AnalysisError          data that cannot answer the question: one class, too few episodes  (also ValueError)
    ├── StoreError             what is on disk cannot be written or read
    │   ├── DamagedError       a length or checksum does not match; names what is damaged
    │   └── VersionError       written by a newer Sonde
    └── MissingExtraError      an optional package is missing; says what to install       (also ImportError)

A message says what, where, got and expected, and what to do next.
"""

import difflib
from collections.abc import Iterable


class SondeError(Exception):
    """The root: `except SondeError` catches whatever Sonde raises on purpose."""


class SiteError(SondeError, ValueError):
    """A Site name does not parse, or the model has no such Site."""


class InterventionError(SondeError, ValueError):
    """An intervention cannot be applied as written."""


class OpaqueError(InterventionError):
    """Replay or storage was asked of a plain Python function."""


class ModelError(SondeError):
    """A model cannot be loaded or driven."""


class ZooError(ModelError):
    """A model is not to be had: offline, wrong checksum, unknown name."""


class FamilyError(ModelError):
    """The architecture has no row in the family table, or the row does not fit the model."""


class RequestError(SondeError, ValueError):
    """A request makes no sense: empty prompt, impossible limits."""


class ContextError(RequestError):
    """Prompt and new tokens do not fit the model's context."""


class CompileError(SondeError, ValueError):
    """A RASP program cannot become a transformer; says which operation and why."""


class SelectorError(SondeError, ValueError):
    """A preset is unknown, or a selector does not parse or selects nothing."""


class EpisodeError(SondeError):
    """An environment was used out of order, or an episode cannot go on."""


class SandboxError(EpisodeError):
    """There is no sandbox on this machine, or it cannot run what it is given."""


class BudgetError(SondeError):
    """The cost or token budget of a client is used up."""


class ServerError(SondeError):
    """A model server is down, too slow, or answers nonsense."""


class CaptureError(SondeError):
    """Recording was used out of order, or what was asked for was not recorded."""


class AnalysisError(SondeError, ValueError):
    """The data cannot answer the question: one class only, too few episodes, rows that do not fit together."""


class StoreError(SondeError):
    """What is on disk cannot be written or read."""


class DamagedError(StoreError):
    """A length or checksum does not match."""


class VersionError(StoreError):
    """The folder was written by a newer Sonde."""


class MissingExtraError(SondeError, ImportError):
    """An optional package is missing."""

    def __init__(self, *packages: str, extra: str, feature: str) -> None:
        names = " and ".join(filter(None, (", ".join(map(repr, packages[:-1])), repr(packages[-1]))))
        what, them = ("package", "it") if len(packages) == 1 else ("packages", "them")
        super().__init__(f'{feature} needs the {what} {names}; install {them} with: pip install "sonde[{extra}]"')


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` for the nearest known word, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
