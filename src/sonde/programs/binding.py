"""How are variable-binding programs drawn so that no shallow rule scores? Balanced over hops and root line.

Left to itself, a random program mostly has its answer on line 1, and a model that always says line 1's constant looks
as if it understood. So the hops (assignments from the query's down to the constant, the constant's included) and the
line of the constant are chosen first, and programs are drawn until one fits:

1. Draw the shape of many programs at once, line by line: a constant (35 %), or a reference to an earlier line. Half of
   the references go to one of the last three lines, half to any line in proportion to its chain's length cubed.
2. Reject the programs in which no variable has the hops and root line asked for; ask for one of those that have.
3. Give the lines names without repeats, and the constants digits.

No variable is assigned twice: after the 26 letters, names go on with two. The label comes from running the text.
Costs some 4 microseconds a drawn shape; at four hops, the rarest root line takes about two thousand shapes.
"""

import functools
import itertools
import keyword
import string
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from sonde.core import errors
from sonde.programs import chains, interpreter

Labelled = tuple[str, int, dict[str, Any]]
CONSTANTS = 0.35
RECENT = 0.5
WINDOW = 3
MAX_HOPS = 4
BATCH = 4096
MAX_DRAWS = 1 << 21
Lines = Int[np.ndarray, "program line"]


def program(
    seq_len: int, rng: np.random.Generator, *, hops: int | None = None, root_line: int | None = None
) -> Labelled:
    """Draws one program; hops (1 to 4) and then root line are uniform over what is possible unless asked for.

    Args:
        seq_len: Number of assignments.
        rng: Where randomness comes from.
        hops: Assignments from the query's down to the constant's.
        root_line: The line of the constant, from 1.

    Raises:
        RequestError: No such program exists, or it is so rare that two million draws gave none.
    """
    cell = _cell(seq_len, rng, hops, root_line)
    size, drawn = 64, 0
    while drawn < MAX_DRAWS:
        parents, depths, roots = shapes(seq_len, size, rng)
        fits = (depths == cell[0]) & (roots == cell[1] - 1)
        if fits.any():
            row = int(np.flatnonzero(fits.any(axis=1))[0])
            return _written(parents[row], fits[row], rng)
        drawn, size = drawn + size, min(2 * size, BATCH)
    raise _too_rare(seq_len, cell)


def balanced(seq_len: int, count: int, rng: np.random.Generator, *, max_hops: int = MAX_HOPS) -> list[Labelled]:
    """Draws a set of programs: hops equally often, and for each number of hops every root line equally often.

    Equally means that no two counts differ by more than one. The order is random.

    Args:
        seq_len: Number of assignments.
        count: How many programs.
        rng: Where randomness comes from.
        max_hops: The most hops.
    """
    wanted = _shares(seq_len, count, max_hops, rng)
    found: list[Labelled] = []
    idle = 0
    while wanted:
        order = list(wanted)
        chosen = rng.integers(len(order), size=BATCH)  # every shape is drawn for one cell, and fits it or not
        asked = np.array(order)[chosen]
        parents, depths, roots = shapes(seq_len, BATCH, rng)
        fits = (depths == asked[:, :1]) & (roots == asked[:, 1:] - 1)
        before = len(found)
        for row in np.flatnonzero(fits.any(axis=1)):
            cell = order[chosen[row]]
            if wanted.get(cell):
                found.append(_written(parents[row], fits[row], rng))
                wanted[cell] -= 1
        wanted = {cell: left for cell, left in wanted.items() if left}
        idle = 0 if len(found) > before else idle + BATCH
        if idle >= MAX_DRAWS:
            raise _too_rare(seq_len, order[0])
    return [found[at] for at in rng.permutation(len(found))]


def shapes(seq_len: int, count: int, rng: np.random.Generator) -> tuple[Lines, Lines, Lines]:
    """Draws shapes: for each line the line it refers to (-1: a constant), its depth, and the line of its constant."""
    parents = np.full((count, seq_len), -1)
    depths = np.ones((count, seq_len), dtype=np.int64)
    roots = np.tile(np.arange(seq_len), (count, 1))
    row = np.arange(count)
    weights = np.ones((count, seq_len))
    for line in range(1, seq_len):
        constant, recent, where = rng.random((3, count))
        near = rng.integers(max(0, line - WINDOW), line, count)
        reach = weights[:, line - 1] * where
        far = (weights[:, : line - 1] <= reach[:, None]).sum(axis=1)
        parent = np.where(recent < RECENT, near, far)
        refers = constant >= CONSTANTS
        parents[:, line] = np.where(refers, parent, -1)
        depths[:, line] = np.where(refers, depths[row, parent] + 1, 1)
        roots[:, line] = np.where(refers, roots[row, parent], line)
        weights[:, line] = weights[:, line - 1] + depths[:, line] ** 3
    return parents, depths, roots


@functools.cache
def names(count: int) -> tuple[str, ...]:
    """The first names: the letters, then pairs of letters, then triples; no keywords of Python."""
    letters = string.ascii_lowercase
    every = ("".join(one) for size in itertools.count(1) for one in itertools.product(letters, repeat=size))
    return tuple(itertools.islice((name for name in every if not keyword.iskeyword(name)), count))


def cells(seq_len: int, max_hops: int = MAX_HOPS) -> list[tuple[int, int]]:
    """Every possible pair of hops and root line."""
    return [(hops, line) for hops in range(1, min(max_hops, seq_len) + 1) for line in range(1, seq_len - hops + 2)]


def _written(parents: Int[np.ndarray, "line"], fits: Bool[np.ndarray, "line"], rng: np.random.Generator) -> Labelled:
    """A shape as text, queried at one of the lines that fit, with its answer and metadata."""
    count = len(parents)
    pool = names(max(26, count))
    called = [pool[at] for at in rng.permutation(len(pool))[:count].tolist()]
    digits = rng.integers(10, size=count).tolist()
    lines = [
        f"{called[line]} = {called[parent] if parent >= 0 else digits[line]}"
        for line, parent in enumerate(parents.tolist())
    ]
    fitting = np.flatnonzero(fits)
    query = called[fitting[int(rng.integers(len(fitting)))]]
    text = "\n".join([*lines, f"#{query}: "])
    return text, int(interpreter.answer(text)), chains.VariableChain.of(text).metadata()


def _cell(seq_len: int, rng: np.random.Generator, hops: int | None, root_line: int | None) -> tuple[int, int]:
    """What to draw: as asked, and uniform over what is possible where nothing was asked."""
    _check_length(seq_len)
    most = seq_len if root_line is None else seq_len - root_line + 1
    if (hops is not None and not 1 <= hops <= most) or not 1 <= most <= seq_len:
        raise errors.RequestError(
            f"no program of {seq_len} assignments has {hops or 'any'} hops with its constant on line "
            f"{root_line or 'any'}: hops must be at least 1, and root_line 1 to seq_len - hops + 1"
        )
    hops = int(rng.integers(1, min(MAX_HOPS, most) + 1)) if hops is None else hops
    return hops, int(rng.integers(1, seq_len - hops + 2)) if root_line is None else root_line


def _shares(seq_len: int, count: int, max_hops: int, rng: np.random.Generator) -> dict[tuple[int, int], int]:
    """How many programs each cell gets; what does not divide goes to cells drawn at random."""
    _check_length(seq_len)
    if count < 1 or max_hops < 1:
        raise errors.RequestError(f"count and max_hops must be at least 1, got {count} and {max_hops}")
    depths = min(max_hops, seq_len)
    shares: dict[tuple[int, int], int] = {}
    for hops, some in zip(range(1, depths + 1), _parts(count, depths, rng), strict=True):
        lines = seq_len - hops + 1
        shares |= {(hops, at + 1): part for at, part in enumerate(_parts(some, lines, rng)) if part}
    return shares


def _parts(count: int, parts: int, rng: np.random.Generator) -> list[int]:
    extra = set(rng.permutation(parts)[: count % parts].tolist())
    return [count // parts + (at in extra) for at in range(parts)]


def _too_rare(seq_len: int, cell: tuple[int, int]) -> errors.RequestError:
    return errors.RequestError(
        f"programs of {seq_len} assignments with {cell[0]} hops and the constant on line {cell[1]} are too rare: "
        f"{MAX_DRAWS} draws gave none; ask for fewer hops, or leave the root line open"
    )


def _check_length(seq_len: int) -> None:
    if seq_len < 1:
        raise errors.RequestError(f"a program needs at least one assignment, got seq_len {seq_len}")
