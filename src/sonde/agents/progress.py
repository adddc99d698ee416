"""How far playing has come, told after every step."""

import dataclasses
import time
from collections.abc import Callable

from sonde.agents import waves


@dataclasses.dataclass(slots=True)
class Progress:
    """How far playing has come.

    Attributes:
        episodes: Episodes in all, and `done` of them.
        steps: Steps played now, and `tokens` generated in them.
        again: Steps run once more to take up an interrupted wave.
        failed: Episodes that could not go on.
        seconds: Since the start.
    """

    episodes: int
    done: int = 0
    steps: int = 0
    tokens: int = 0
    again: int = 0
    failed: int = 0
    seconds: float = 0.0


class Reporter:
    """Counts ticks and tells the caller."""

    def __init__(self, episodes: int, tell: Callable[[Progress], None] | None) -> None:
        """Starts the clock."""
        self.progress = Progress(episodes)
        self._tell, self._start = tell, time.monotonic()

    def skip(self, episodes: int) -> None:
        """Counts episodes that were finished before."""
        self.progress.done += episodes

    def __call__(self, tick: waves.Tick) -> None:
        """Counts one step."""
        now = self.progress
        now.seconds = time.monotonic() - self._start
        if tick.failed is not None:
            now.failed += 1
        elif tick.again:
            now.again += 1
        else:
            now.steps += 1
            now.tokens += tick.tokens
        now.done += tick.over
        if self._tell is not None:
            self._tell(now)
