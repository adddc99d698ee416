"""The task of the published IOI models: sentences in GPT-2's tokens.

    task = published_ioi.task("ioi", tokenizer, d_vocab=50257)
    published_ioi.truth(graph)                               # m0, a1.h1, a2.h1, a4.h1, heads whole

"<|endoftext|>Then, Mary and John went to the store. John gave the milk to" is answered by " Mary". As in the models' training, every
sentence is of this form: two names, the first or second of them again, one of a few places and things. The answer at the last position
counts, among all tokens.

The program's nodes: `m0` passes the tokens on to the heads, `a1.h1` finds which name comes again, `a2.h1` says at the end which one not to copy,
`a4.h1` copies the other. A swapped node has its value on the other sentence; with `m0` from there, everything is from there. Every
head is read as a whole.
"""

import dataclasses
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from sonde.bench import high
from sonde.circuits import graph as circuits_graph
from sonde.core import errors
from sonde.models import tokenizer_files

FRAME = (
    "Then",
    ",",
    " John",
    " and",
    " Mary",
    " went",
    " to",
    " the",
    " store",
    ".",
    " John",
    " gave",
    " the",
    " milk",
    " to",
)
FIRST, SECOND, PLACE, THIRD, THING, LENGTH = 3, 5, 9, 11, 14, 15
NAMES = (
    " Michael", " Jessica", " Matthew", " Jennifer", " Daniel", " David", " James", " Robert", " John", " Joseph", " Andrew", " Ryan",
    " Sarah", " William", " Brian", " Anthony", " Eric", " Elizabeth", " Adam", " Kevin", " Thomas", " Rachel", " Laura", " Richard",
    " Amy", " Mark", " Emily", " Charles", " Stephen", " Paul", " Scott", " Mary", " Lisa", " Samuel",
)  # fmt: skip
PLACES, THINGS = (" store", " market"), (" milk", " eggs", " bread")
BOS = "<|endoftext|>"
NODES = ("m0", "a1.h1", "a2.h1", "a4.h1")
#: Who reads whom.
READERS = {"input": ("m0",), "m0": NODES[1:], "a1.h1": ("a2.h1",), "a2.h1": ("a4.h1",)}


@dataclasses.dataclass(frozen=True, slots=True)
class Tokens:
    """Ids of the words, in one tokenizer.

    Attributes:
        frame: A sentence, BOS first.
        names: What stands for its names.
        places: What stands for its place.
        things: What stands for its thing.
    """

    frame: tuple[int, ...]
    names: tuple[int, ...]
    places: tuple[int, ...]
    things: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Sentences:
    """Where sentences come from; all have one length."""

    tokens: Tokens
    lengths: tuple[int, ...] = (LENGTH,)

    def pair(
        self, rng: np.random.Generator, rows: int, *, length: int | None = None, other: int | None = None
    ) -> tuple[Int[Tensor, "row pos"], Int[Tensor, "row pos"]]:
        """Sentences, and others drawn independently."""
        return self._draw(rng, rows), self._draw(rng, rows)

    def _draw(self, rng: np.random.Generator, rows: int) -> Int[Tensor, "row pos"]:
        known, found = self.tokens, np.tile(np.array(self.tokens.frame), (rows, 1))
        names = np.array(known.names)
        first = rng.integers(len(names), size=rows)
        second = (first + rng.integers(1, len(names), size=rows)) % len(names)
        found[:, FIRST], found[:, SECOND] = names[first], names[second]
        found[:, THIRD] = np.where(rng.random(rows) < 0.5, found[:, FIRST], found[:, SECOND])
        for column, words in ((PLACE, known.places), (THING, known.things)):
            found[:, column] = np.array(words)[rng.integers(len(words), size=rows)]
        return torch.from_numpy(found)


class Program:
    """The four nodes; the answer is the token of a name."""

    def __init__(self, circuit: circuits_graph.Circuit) -> None:
        self._circuit = circuit

    @property
    def circuit(self) -> circuits_graph.Circuit:
        """Its nodes and edges."""
        return self._circuit

    def answers(
        self, base: Int[Tensor, "row pos"], other: Int[Tensor, "row pos"], swapped: Bool[Tensor, "group row node"]
    ) -> Shaped[Tensor, "group row pos"]:
        """The name at every position, of which only the last one counts."""
        here, there = _repeats_second(base), _repeats_second(other)
        tokens, duplicate, inhibition, mover = swapped.unbind(-1)
        elsewhere = tokens | mover
        inhibited = torch.where(tokens | duplicate | inhibition, there, here)
        inhibited = torch.where(mover, there, inhibited)
        first, second = (torch.where(elsewhere, other[:, at], base[:, at]) for at in (FIRST, SECOND))
        return torch.where(inhibited, first, second)[..., None].expand(-1, -1, base.shape[1])


def task(name: str, tokenizer: Any, *, d_vocab: int) -> high.Task:
    """The task in a tokenizer's tokens.

    Raises:
        RequestError: A word of the sentences is no single token of it, or the model does not know the token.
    """
    low = circuits_graph.Graph(6, 4, 4)
    return high.Task(
        name, Program(truth(low)), Sentences(_tokens(tokenizer, d_vocab)), d_vocab, d_vocab, LENGTH + 1,
        positions=(LENGTH,), corrupt=swapped_names,
    )  # fmt: skip


def truth(low: circuits_graph.Graph) -> circuits_graph.Circuit:
    """The true circuit, heads whole.

    Raises:
        RequestError: The model is too small for it.
    """
    names = ["a4.h1->logits"]
    for source, readers in READERS.items():
        names += [
            f"{source}->{one}{part}" for one in readers for part in (("<q>", "<k>", "<v>") if one[0] == "a" else ("",))
        ]
    return circuits_graph.Circuit.of(low, names)


def swapped_names(base: Int[Tensor, "row pos"]) -> Int[Tensor, "row pos"]:
    """The same sentences with the other name in the third place, so that the right answer is the other one."""
    found = base.clone()
    found[:, THIRD] = torch.where(_repeats_second(base), base[:, FIRST], base[:, SECOND])
    return found


def _repeats_second(tokens: Int[Tensor, "row pos"]) -> Bool[Tensor, "row"]:
    return tokens[:, THIRD] == tokens[:, SECOND]


def _tokens(tokenizer: Any, d_vocab: int) -> Tokens:
    def one(word: str) -> int:
        found = tokenizer_files.encode(tokenizer, word, add_special_tokens=False)
        if len(found) != 1 or not 0 <= found[0] < d_vocab:
            raise errors.RequestError(
                f"{word!r} is {len(found)} tokens of this tokenizer ({found!r:.40}), expected one of GPT-2's {d_vocab:,}: is it GPT-2's?"
            )
        return found[0]

    frame = (one(BOS), *map(one, FRAME))
    return Tokens(frame, *(tuple(map(one, words)) for words in (NAMES, PLACES, THINGS)))
