"""What is broken in a folder, said so that a person can act on it?

Costs nothing: one small record per damaged place.
"""

from dataclasses import dataclass
from pathlib import Path

from sonde.core import errors

ADVICE = "restore it from a copy or record it again; `sonde runs verify` lists everything that is damaged"


class UnreadableError(ValueError):
    """Something is torn or damaged; the caller knows where it is and whether that matters."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged place: the file, and inside it the array and the step where they are known."""

    file: Path
    problem: str
    array: str | None = None
    step: int | None = None

    def __str__(self) -> str:
        """Returns one line: file, array, step and the problem."""
        places = [str(self.file)]
        if self.array is not None:
            places.append(f"array {self.array!r}")
        if self.step is not None:
            places.append(f"step {self.step}")
        return f"{', '.join(places)}: {self.problem}"

    def error(self) -> errors.DamagedError:
        """Returns the exception that says this and what to do next."""
        return errors.DamagedError(f"{self}; {ADVICE}")
