"""Which positions: half-open ranges of absolute token positions in an episode.

Positions never mean indices of one forward pass: under a KV cache those change meaning at every token.
A set of positions is a tuple of sorted, disjoint, non-empty Spans; the functions here keep it so. All are linear in
the number of Spans.
"""

import dataclasses
from collections.abc import Iterable, Iterator

from sonde.core import errors


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Span:
    """Positions `start` to `stop - 1`."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        """Refuses a Span that runs backwards."""
        if self.stop < self.start:
            raise errors.InterventionError(f"a Span must not run backwards: got start {self.start}, stop {self.stop}")

    def __len__(self) -> int:
        """How many positions it covers."""
        return self.stop - self.start

    def __iter__(self) -> Iterator[int]:
        """The positions, in order."""
        return iter(range(self.start, self.stop))

    def __contains__(self, position: int) -> bool:
        """Whether a position is inside."""
        return self.start <= position < self.stop


Spans = tuple[Span, ...]


def union(parts: Iterable[Span]) -> Spans:
    """Merges Spans, in any order and overlapping, into a set of positions."""
    merged: list[Span] = []
    for span in sorted(part for part in parts if len(part)):
        if merged and span.start <= merged[-1].stop:
            merged[-1] = Span(merged[-1].start, max(merged[-1].stop, span.stop))
        else:
            merged.append(span)
    return tuple(merged)


def of_positions(positions: Iterable[int]) -> Spans:
    """The set of positions of single integers."""
    return union(Span(position, position + 1) for position in positions)


def intersect(left: Spans, right: Spans) -> Spans:
    """The positions in both sets."""
    return union(
        Span(max(a.start, b.start), min(a.stop, b.stop))
        for a in left
        for b in right
        if max(a.start, b.start) < min(a.stop, b.stop)
    )


def clip(spans: Spans, start: int, stop: int) -> Spans:
    """The part of a set between two positions."""
    return intersect(spans, (Span(start, stop),)) if stop > start else ()


def first_difference(left: Spans, right: Spans) -> int | None:
    """The smallest position that is in one set and not in the other, or None if the sets are equal."""
    for a, b in zip(left, right, strict=False):
        if a.start != b.start:
            return min(a.start, b.start)
        if a.stop != b.stop:
            return min(a.stop, b.stop)
    shorter = min(len(left), len(right))
    rest = left[shorter:] or right[shorter:]
    return rest[0].start if rest else None
