"""Which part of a set is enough? Delta debugging, as a conversation: candidates out, verdicts in.

    search = minimising.ddmin(range(8))
    candidate = next(search)
    while True:
        try:
            candidate = search.send(fulfils(candidate))
        except StopIteration as end:
            smallest = end.value

ddmin (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002), for a property that the whole
set has:

1. Cut the set into n parts, two at first. If one part has the property, go on with that part, n = 2.
2. Otherwise, if the set without one part has it, go on with that, n one less.
3. Otherwise double n, up to single elements. When none of those can be left out, the set is 1-minimal: end.

The answer is 1-minimal, not minimal: no single element can be left out, though a quite different smaller set may exist.
Costs about 2 log2(N) questions if one element is enough, and at most N^2 + 3 N of them.
"""

import itertools
from collections.abc import Generator, Sequence

Set = tuple[int, ...]


def ddmin(items: Sequence[int]) -> Generator[Set, bool, Set]:
    """Asks about subsets of a set that has a property; returns a 1-minimal subset that has it."""
    now, parts = tuple(items), 2
    while len(now) >= 2:
        chunks = _cut(now, min(parts, len(now)))
        rest = [tuple(one for one in now if one not in chunk) for chunk in chunks] if len(chunks) > 2 else []
        for smaller, finer in [(chunk, 2) for chunk in chunks] + [(one, max(len(chunks) - 1, 2)) for one in rest]:
            if (yield smaller):
                now, parts = smaller, finer
                break
        else:
            if len(chunks) == len(now):
                return now
            parts = 2 * len(chunks)
    return now


def smaller(items: Sequence[int]) -> list[Set]:
    """The sets with one element left out: none of them has the property if the set is 1-minimal."""
    return [tuple(one for one in items if one != left) for left in items] if len(items) > 1 else []


def _cut(items: Set, parts: int) -> list[Set]:
    """Cuts into parts of nearly equal size, in order."""
    ends = [round(len(items) * part / parts) for part in range(parts + 1)]
    return [items[first:last] for first, last in itertools.pairwise(ends)]
