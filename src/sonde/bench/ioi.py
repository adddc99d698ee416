"""Indirect object identification as a program of three nodes: what is a model trained to do inside?

    task = ioi.task()                     # "<bos> then Ann and Bob went to the park and Bob gave a ring to" -> Ann
    task = ioi.task(next_token=True)      # and "and" after "Ann", "went" after "Bob", …

Two names, then the first or second of them again; the answer is the other one (2211.00593, simplified):

1. `a1.h1` *duplicate token*: at the third name, which of the first two it repeats.
2. `a2.h1` *S-inhibition*: at the end, the same, to say which name not to copy.
3. `a4.h1` *name mover*: at the end, the name of the two that is not inhibited.

A swapped node has its value on the other input: with S-inhibition from there, the program answers the name of its own input
that stands where the other input's answer stands. Only the last position counts. For circuit finders `swapped_names`
gives the corruption under which all three nodes change: the third name becomes the other of the two.

The second model, `next_token`, is a language model of these sentences: at every position whose next word the sentence decides it must say
that word, from the word and its place alone (`input->logits`), and at the end the name. Where any name, place or thing may follow,
nothing counts. The three nodes are the same.
Costs nothing beside the model: answers are table look-ups.
"""

import dataclasses

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from sonde.bench import high, identity, sizes
from sonde.circuits import graph as circuits_graph

NAMES = (
    "Ann", "Bob", "Carl", "Dora", "Emil", "Fay", "Gus", "Hal", "Ida", "Jim", "Kay", "Lee", "Mia", "Ned", "Olga", "Pam",
    "Rob", "Sue", "Tom", "Una",
)  # fmt: skip
PLACES = ("park", "shop", "lake", "school", "office", "station")
THINGS = ("ring", "book", "key", "cup", "letter", "coin")
OPENINGS = ("then", "when", "after", "while")
REST = ("and", "went", "to", "the", "gave", "a")
BOS = "<bos>"
WORDS = (*NAMES, *PLACES, *THINGS, *OPENINGS, *REST)
FIRST, SECOND, THIRD, LENGTH = 2, 4, 10, 14
SIZES = sizes.Sizes(n_layers=6, n_heads=4, d_model=64, d_head=16)
#: The positions whose next word is decided by what stands before it.
DECIDED = (2, 4, 5, 6, 8, 10, 11, 13, 14)
NAME, NEXT = "ioi", "ioi_next_token"
TASKS = {
    NAME: "Of two names one comes again; the answer, at the end, is the other.",
    NEXT: "As ioi, and before the end the next word wherever the sentence decides it.",
}
MEANINGS = {
    "a1.h1": "duplicate token: at the third name, which of the first two it repeats",
    "a2.h1": "S-inhibition: at the end, the same, to say which name not to copy",
    "a4.h1": "name mover: at the end, the name of the two that is not inhibited",
}
EDGES = (
    "input->a1.h1<q>", "input->a1.h1<k>", "input->a1.h1<v>", "a1.h1->a2.h1<v>", "input->a2.h1<q>", "input->a2.h1<k>",
    "a2.h1->a4.h1<q>", "input->a4.h1<k>", "input->a4.h1<v>", "a4.h1->logits",
)  # fmt: skip
_ID = {word: index for index, word in enumerate((*WORDS, BOS))}
_GRAPH = circuits_graph.Graph(SIZES.n_layers, SIZES.n_heads, SIZES.n_heads)
CIRCUIT = circuits_graph.Circuit.of(_GRAPH, EDGES)
NEXT_CIRCUIT = circuits_graph.Circuit.of(_GRAPH, (*EDGES, "input->logits"))


@dataclasses.dataclass(frozen=True, slots=True)
class Sentences:
    """Where sentences come from; all have one length."""

    lengths: tuple[int, ...] = (LENGTH,)

    def pair(
        self, rng: np.random.Generator, rows: int, *, length: int | None = None, other: int | None = None
    ) -> tuple[Int[Tensor, "row pos"], Int[Tensor, "row pos"]]:
        """Sentences, and others drawn independently."""
        return _draw(rng, rows), _draw(rng, rows)


class Program:
    """The three nodes; with `next_token` every position says the next word."""

    def __init__(self, *, next_token: bool = False) -> None:
        self.next_token = next_token

    @property
    def circuit(self) -> circuits_graph.Circuit:
        """Its nodes and edges."""
        return NEXT_CIRCUIT if self.next_token else CIRCUIT

    def answers(
        self, base: Int[Tensor, "row pos"], other: Int[Tensor, "row pos"], swapped: Bool[Tensor, "group row node"]
    ) -> Shaped[Tensor, "group row pos"]:
        """The other name at every position, of which only the last one counts; or the next words, and then that name."""
        here, there = _repeats_second(base), _repeats_second(other)
        duplicate, inhibition, mover = swapped.unbind(-1)
        inhibited = torch.where(duplicate | inhibition, there, here)
        named = torch.where(inhibited, base[:, FIRST], base[:, SECOND])
        moved = torch.where(there, other[:, FIRST], other[:, SECOND])
        found = torch.where(mover, moved, named)[..., None]
        if not self.next_token:
            return found.expand(-1, -1, base.shape[1])
        return torch.cat([base[:, 1:].expand(len(swapped), -1, -1), found], dim=-1)


def task(*, next_token: bool = False) -> high.Task:
    """IOI as something to be learned."""
    program, inputs = Program(next_token=next_token), Sentences()
    name, answers, positions = (NEXT, WORDS, DECIDED) if next_token else (NAME, NAMES, (LENGTH,))
    return high.Task(
        name, program, inputs, len(_ID), len(answers), LENGTH + 1, positions=positions, corrupt=swapped_names,
        digest=_digest(name, program), seated=NAME,
    )  # fmt: skip


def _digest(name: str, program: Program) -> str:
    """Of the circuit, and of what is said on some sentences with each node swapped."""
    base, other = Sentences().pair(np.random.default_rng(0), identity.ROWS)
    swapped = torch.eye(4, 3, dtype=torch.bool)[:, None].expand(-1, len(base), -1)
    answers = program.answers(base, other, swapped)
    return identity.of([name, WORDS, program.circuit.names, base.tolist(), answers.tolist()])


def examples(n: int = 2) -> list[tuple[str, str]]:
    """Sentences and the names that end them."""
    tokens = _draw(np.random.default_rng(0), n)
    named = Program().answers(tokens, tokens, torch.zeros(1, n, 3, dtype=torch.bool))[0, :, -1]
    words = (*WORDS, BOS)
    return [
        (" ".join(words[one] for one in row), words[name])
        for row, name in zip(tokens.tolist(), named.tolist(), strict=True)
    ]


def swapped_names(base: Int[Tensor, "row pos"]) -> Int[Tensor, "row pos"]:
    """The same sentences with the other name in the third place, so that the right answer is the other one."""
    found = base.clone()
    found[:, THIRD] = torch.where(_repeats_second(base), base[:, FIRST], base[:, SECOND])
    return found


def _repeats_second(tokens: Int[Tensor, "row pos"]) -> Bool[Tensor, "row"]:
    return tokens[:, THIRD] == tokens[:, SECOND]


def _draw(rng: np.random.Generator, rows: int) -> Int[Tensor, "row pos"]:
    frame = f"{BOS} then Ann and Ann went to the park and Ann gave a ring to".split()
    tokens = np.tile(np.array([_ID[word] for word in frame]), (rows, 1))
    first = rng.integers(len(NAMES), size=rows)
    second = (first + rng.integers(1, len(NAMES), size=rows)) % len(NAMES)
    tokens[:, FIRST], tokens[:, SECOND] = first, second
    tokens[:, THIRD] = np.where(rng.random(rows) < 0.5, first, second)
    for column, words in ((1, OPENINGS), (8, PLACES), (13, THINGS)):
        tokens[:, column] = np.array([_ID[word] for word in words])[rng.integers(len(words), size=rows)]
    return torch.from_numpy(tokens)
