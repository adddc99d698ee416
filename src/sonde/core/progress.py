"""How far work has come, told the same way by everything that runs.

def on_progress(now: progress.Progress) -> None:
    print(f"{now.what}: {now.done} of {now.total}")
"""

import dataclasses
from collections.abc import Callable, Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far one thing has come.

    Attributes:
        what: What is being done, such as `collect: games`.
        done: How much of it is finished.
        total: Of how much.
        counts: What else was counted, such as `tokens`, by name.
    """

    what: str
    done: int
    total: int
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)


#: What callers give, to be called after each piece of work.
OnProgress = Callable[[Progress], None]
#: What a function takes that reports its own progress: what, done, total.
Tell = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int, **counts: int) -> None:
    """Reports nothing."""
