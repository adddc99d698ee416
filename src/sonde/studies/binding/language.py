"""The programs that the small model reads: two characters a line, one character a token, drawn by the thousand.

    programs = language.draw(language.Grammar(), 128, np.random.default_rng(0))
    programs.text(0)       # "a3b5cahcd1e2fdgb#h:": a = 3, b = 5, c = a, h = c, … what is h?
    programs.source(0)     # the same as a program that sonde.programs runs

The shapes (which line refers to which) are those of `sonde.programs.binding`, as they fall: most answers stand on the
first lines, which is what a heuristic lives on. Only hops are made equally frequent. No variable is assigned twice.
A program belongs to the held-out ones by a hash of its lines, blind to the values of constants and to what is asked, so
that a program, its counterfactual twins and its other queries are always on the same side.

1. Draw shapes, and for each a number of hops; reject those in which no line has that many; ask for one that has.
2. Give the lines letters without repeats, and the constants digits.
3. Drop the programs of the other side of the split; go on until there are enough.

Costs some 10 microseconds a program in batches of thousands.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from sonde.core import errors
from sonde.programs import binding

DIGITS = "0123456789"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
QUERY, COLON = "#", ":"
UNKNOWN, END = "<unk>", "<end>"
HELD_OUT = 16
MOST_TOKENS = 64
MAX_ROUNDS = 1000
Tokens = Int[np.ndarray, "program pos"]
Lines = Int[np.ndarray, "program line"]


@dataclasses.dataclass(frozen=True, slots=True)
class Grammar:
    """How large programs are.

    Attributes:
        lines: Assignments of a program.
        letters: Names to choose from, at least one per line.
        max_hops: The longest chain that is asked for.
    """

    lines: int = 8
    letters: int = 10
    max_hops: int = 3

    def __post_init__(self) -> None:
        """Checks that such programs exist."""
        if not 1 <= self.max_hops <= self.lines <= self.letters <= len(LETTERS):
            raise errors.RequestError(
                f"a program needs 1 <= max_hops <= lines <= letters <= 26, got max_hops {self.max_hops}, lines {self.lines}, "
                f"letters {self.letters}"
            )

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every token by its id; a digit is its own id."""
        return (*DIGITS, *LETTERS[: self.letters], QUERY, COLON, UNKNOWN, END)

    @property
    def length(self) -> int:
        """Tokens of a program, the colon included."""
        return 2 * self.lines + 3


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Programs:
    """Programs as arrays.

    Attributes:
        grammar: How large they are.
        tokens: Their tokens.
        parents: For each line the line it refers to, from 0; -1: a constant.
        query: The line that is asked for, from 0.
    """

    grammar: Grammar
    tokens: Tokens
    parents: Lines
    query: Int[np.ndarray, "program"]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, chosen: Any) -> "Programs":
        """Some of the programs, by index array, mask or slice."""
        return Programs(self.grammar, self.tokens[chosen], self.parents[chosen], self.query[chosen])

    @property
    def hops(self) -> Int[np.ndarray, "program"]:
        """Assignments from the query's down to the constant, the constant's included."""
        return (self.chains >= 0).sum(axis=1)

    @property
    def chains(self) -> Int[np.ndarray, "program hop"]:
        """The lines of each chain from the queried one to the root, from 0; -1 after the root."""
        lines, rows = [self.query], np.arange(len(self))
        for _ in range(self.grammar.lines - 1):
            lines.append(np.where(lines[-1] >= 0, self.parents[rows, lines[-1]], -1))
        return np.stack(lines, axis=1)

    @property
    def roots(self) -> Int[np.ndarray, "program"]:
        """The line of the constant, from 0."""
        return self.chains[np.arange(len(self)), self.hops - 1]

    @property
    def answers(self) -> Int[np.ndarray, "program"]:
        """The digit, which is also its token."""
        return self.tokens[np.arange(len(self)), right(self.roots)]

    def every_line(self) -> tuple[Lines, Lines]:
        """For each line the digit that its letter stands for, and its hops, whatever the query."""
        rows, at = np.arange(len(self))[:, None], np.tile(np.arange(self.grammar.lines), (len(self), 1))
        hops = np.ones_like(at)
        for _ in range(self.grammar.lines - 1):
            parent = self.parents[rows, at]
            hops, at = hops + (parent >= 0), np.where(parent >= 0, parent, at)
        return self.tokens[rows, right(at)], hops

    def text(self, index: int) -> str:
        """A program as the model reads it."""
        return "".join(self.grammar.vocabulary[token] for token in self.tokens[index])

    def source(self, index: int) -> str:
        """The same program as sonde.programs writes it."""
        text, end = self.text(index), 2 * self.grammar.lines
        lines = [f"{text[at]} = {text[at + 1]}" for at in range(0, end, 2)]
        return "\n".join([*lines, f"#{text[end + 1]}: "])

    def roles(self, index: int) -> dict[str, tuple[int, ...]]:
        """Positions of the right-hand sides from the root (`rhs_1`) to the queried line, of `query` and of `final`."""
        chain = [int(line) for line in self.chains[index] if line >= 0][::-1]
        sides = {f"rhs_{depth}": (right(line),) for depth, line in enumerate(chain, start=1)}
        return {**sides, "query": (self.grammar.length - 2,), "final": (self.grammar.length - 1,)}


def right(line: Any) -> Any:
    """The position of a line's right-hand side."""
    return 2 * line + 1


def draw(
    grammar: Grammar, count: int, rng: np.random.Generator, *, easy: float = 0.0, held_out: bool = False
) -> Programs:
    """Draws programs of one side of the split, hops equally frequent.

    Args:
        grammar: How large they are.
        count: How many.
        rng: Where randomness comes from.
        easy: Share of programs that are only constants, with a one-hop query: they teach to look a letter up.
        held_out: From which side of the split.
    """
    simple = round(easy * count)
    hard = _collected(grammar, count - simple, rng, held_out=held_out, constants=False)
    if not simple:
        return hard
    return joined(hard, _collected(grammar, simple, rng, held_out=held_out, constants=True))


def balanced(grammar: Grammar, count: int, rng: np.random.Generator, *, held_out: bool = True) -> Programs:
    """Draws programs in which hops, and for each of them all root lines, are equally frequent (counts differ by one)."""
    wanted = {}
    for at in range(grammar.max_hops):
        lines = grammar.lines - at
        share = count // grammar.max_hops + (at < count % grammar.max_hops)
        wanted |= {(at + 1, root): share // lines + (root < share % lines) for root in range(lines)}
    found: list[Programs] = []
    for _ in range(MAX_ROUNDS):
        some = _side(_drawn(grammar, 4096, rng), held_out)
        hops, roots = some.hops, some.roots
        for (depth, root), left in wanted.items():
            rows = np.flatnonzero((hops == depth) & (roots == root))[:left]
            wanted[depth, root] -= len(rows)
            found.append(some[rows])
        if not any(wanted.values()):
            every = joined(*found)
            return every[rng.permutation(len(every))]
    raise errors.RequestError(f"programs of {grammar} with {wanted} are too rare; ask for fewer hops")


def twins(programs: Programs, rng: np.random.Generator) -> Programs:
    """The same programs with another root constant, and so another answer, which occurs nowhere in the program.

    Raises:
        RequestError: A program has all ten digits.
    """
    return _changed(programs, programs.roots, rng)


def distractor_twins(programs: Programs, rng: np.random.Generator) -> tuple[Programs, Int[np.ndarray, "program"]]:
    """The same programs with another constant off the query's chain, new to them, and its line; the answer stays.

    Raises:
        RequestError: A program has no constant beside its root, or all ten digits.
    """
    free = programs.parents < 0
    free[np.arange(len(programs)), programs.roots] = False
    if not free.any(axis=1).all():
        raise errors.RequestError("a program has no constant beside its root, so there is no control: leave it out")
    lines = _any_of(free, rng)
    return _changed(programs, lines, rng), lines


def present(programs: Programs) -> Bool[np.ndarray, "program digit"]:
    """Which digits occur in each program."""
    return np.stack([(programs.tokens == digit).any(axis=1) for digit in range(len(DIGITS))], axis=1)


def repeated(programs: Programs) -> Bool[np.ndarray, "program"]:
    """In which programs the answer is also the constant of another line."""
    return (programs.tokens == programs.answers[:, None]).sum(axis=1) > 1


def joined(*some: Programs) -> Programs:
    """All of them, in their order."""
    parts = zip(*((one.tokens, one.parents, one.query) for one in some), strict=True)
    return Programs(some[0].grammar, *(np.concatenate(part) for part in parts))


def is_held_out(grammar: Grammar, tokens: Tokens) -> Bool[np.ndarray, "program"]:
    """Which programs are held out: one in 16, by a hash that sees neither the values of constants nor the query."""
    mixed = np.full(len(tokens), 1469598103934665603, dtype=np.uint64)
    for column in np.where(tokens < len(DIGITS), 0, tokens)[:, : 2 * grammar.lines].T.astype(np.uint64):
        mixed = (mixed ^ (column + np.uint64(1))) * np.uint64(1099511628211)
        mixed ^= mixed >> np.uint64(29)
    return (mixed >> np.uint64(20)) % np.uint64(HELD_OUT) == 0


@functools.cache
def tokenizer(grammar: Grammar) -> Any:
    """A tokenizer with a token per character, which says at which characters its tokens stand."""
    import tokenizers
    import transformers

    vocabulary = {word: number for number, word in enumerate(grammar.vocabulary)}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=UNKNOWN))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    core.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token=UNKNOWN, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )


def _collected(grammar: Grammar, count: int, rng: np.random.Generator, *, held_out: bool, constants: bool) -> Programs:
    found = [_drawn(grammar, 0, rng)]
    for _ in range(MAX_ROUNDS):
        missing = count - sum(map(len, found))
        if missing <= 0:
            return joined(*found)[:count]
        size = (missing + 16) * (HELD_OUT if held_out else 1) * (1 if constants else 2)
        found.append(_side(_drawn(grammar, size, rng, constants=constants), held_out))
    raise errors.RequestError(f"programs of {grammar} are too rare; ask for fewer hops")


def _drawn(grammar: Grammar, size: int, rng: np.random.Generator, *, constants: bool = False) -> Programs:
    """At most so many programs, of both sides of the split."""
    if constants:
        parents, depths = np.full((size, grammar.lines), -1), np.ones((size, grammar.lines), dtype=np.int64)
        hops = np.ones(size, dtype=np.int64)
    else:
        parents, depths, _ = binding.shapes(grammar.lines, size, rng)
        hops = rng.integers(1, grammar.max_hops + 1, size)
    fits = depths == hops[:, None]
    kept = fits.any(axis=1)
    parents, query = parents[kept], _any_of(fits[kept], rng)
    count, rows = len(parents), np.arange(len(parents))
    names = len(DIGITS) + rng.permuted(np.tile(np.arange(grammar.letters), (count, 1)), axis=1)[:, : grammar.lines]
    digits = rng.integers(len(DIGITS), size=(count, grammar.lines))
    tokens = np.empty((count, grammar.length), dtype=np.int64)
    tokens[:, 0 : 2 * grammar.lines : 2] = names
    tokens[:, 1 : 2 * grammar.lines : 2] = np.where(parents < 0, digits, np.take_along_axis(names, parents, axis=1))
    mark = len(DIGITS) + grammar.letters
    tokens[:, -3], tokens[:, -2], tokens[:, -1] = mark, names[rows, query], mark + 1
    return Programs(grammar, tokens, parents, query)


def _side(programs: Programs, held_out: bool) -> Programs:
    return programs[is_held_out(programs.grammar, programs.tokens) == held_out]


def _any_of(allowed: Bool[np.ndarray, "program choice"], rng: np.random.Generator) -> Int[np.ndarray, "program"]:
    """One of what is allowed of each program."""
    return np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)


def _changed(programs: Programs, lines: Int[np.ndarray, "program"], rng: np.random.Generator) -> Programs:
    """The programs with a digit that occurs nowhere in them as the constant of the given lines."""
    tokens, rows, free = programs.tokens.copy(), np.arange(len(programs)), ~present(programs)
    if not free.any(axis=1).all():
        raise errors.RequestError(
            "a program has all ten digits, so no constant is new to it, and a changed answer could be another line's: leave "
            "it out"
        )
    tokens[rows, right(lines)] = _any_of(free, rng)
    return Programs(programs.grammar, tokens, programs.parents, programs.query)
