"""What does a program answer when some of its nodes are given other values?

    task = high.of_case(cases.get(3))
    task.program.answers(base, other, swapped)                          # Shaped[group row pos]

A Task is what training needs of a case: the program (here a compiled model, run by `batched` like the trained ones), its
circuit, where inputs come from, and whether answers are numbers. Programs that are no transformers have the same face.

Costs one forward pass of the compiled model per group and one on the other inputs.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from sonde.bench import batched, correspondence, identity, sampling
from sonde.circuits import graph as circuits_graph

#: The answer where a program has none: a swap can make a state that it never meets.
UNKNOWN = -1
SURE = 0.9


@runtime_checkable
class Program(Protocol):
    """A program whose nodes can be swapped."""

    @property
    def circuit(self) -> circuits_graph.Circuit:
        """Its nodes and edges."""
        ...

    def answers(
        self, base: Int[Tensor, "row pos"], other: Int[Tensor, "row there"], swapped: Bool[Tensor, "group row node"]
    ) -> Shaped[Tensor, "group row pos"]:
        """Its answers at every position; the nodes of the circuit, in order, have their outputs on `other` where asked.

        A node is swapped at the positions that both inputs have, and keeps its own at those that the other does not have.
        Where there is no answer it is `UNKNOWN`.
        """
        ...


@runtime_checkable
class Inputs(Protocol):
    """Where pairs of inputs come from."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """How long inputs may be."""
        ...

    def pair(
        self, rng: np.random.Generator, rows: int, *, length: int | None = None, other: int | None = None
    ) -> tuple[Int[Tensor, "row pos"], Int[Tensor, "row there"]]:
        """Base inputs, all of one length, and others, of the same length unless another is given."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """What is learned.

    Attributes:
        name: Of the case.
        program: What the answers come from.
        inputs: What is asked.
        d_vocab: Tokens.
        d_out: Classes, or 1.
        n_positions: Positions, BOS included.
        causal: Whether a position sees only those before it.
        regression: Answers are numbers.
        positions: Those whose answers count; None for all but BOS.
        corrupt: The corruption that circuit finders should use; None to draw other inputs.
        digest: Changes when what the program does changes; see `identity`.
        seated: Whose places in trained models it shares, by name; empty for places of its own.
    """

    name: str
    program: Program
    inputs: Inputs
    d_vocab: int
    d_out: int
    n_positions: int
    causal: bool = True
    regression: bool = False
    positions: tuple[int, ...] | None = None
    corrupt: Callable[[Tensor], Tensor] | None = None
    digest: str = ""
    seated: str = ""

    @property
    def counted(self) -> slice | list[int]:
        """The positions whose answers count, as an index."""
        return slice(1, None) if self.positions is None else list(self.positions)


class Compiled:
    """A compiled model as a program."""

    def __init__(self, hf: Any, circuit: circuits_graph.Circuit, *, regression: bool) -> None:
        """Takes a `plain.PlainForCausalLM` and its true circuit."""
        self.shape, self.weights = batched.Shape.of(hf.config), batched.from_plain(hf)
        self._circuit, self.regression = circuit, regression
        places = circuit.graph.sources[1:]
        names = correspondence.nodes_of(circuit)
        self.seats = torch.tensor([[place == name for place in places] for name in names]).reshape(len(names), -1)

    @property
    def circuit(self) -> circuits_graph.Circuit:
        """Its true circuit."""
        return self._circuit

    def answers(
        self, base: Int[Tensor, "row pos"], other: Int[Tensor, "row there"], swapped: Bool[Tensor, "group row node"]
    ) -> Shaped[Tensor, "group row pos"]:
        """The class of the highest logit, or the number, at every position."""
        with torch.no_grad():
            chosen = (swapped.float() @ self.seats.float())[None] > 0
            logits = batched.exchanged(self.shape, self.weights, (base, other), batched.Masks(chosen))[0]
        return self.read(logits)

    def read(self, logits: Float[Tensor, "*any d_out"]) -> Shaped[Tensor, "*any"]:
        """Answers of logits: the number, or the class that has a logit of 1 while the others have 0."""
        if self.regression:
            return logits[..., 0]
        best, answer = logits.max(dim=-1)
        sure = (best > SURE) & ((logits > 1 - SURE).sum(dim=-1) == 1)
        return torch.where(sure, answer, UNKNOWN)


def of_case(case: Any) -> Task:
    """The task of one of `cases`."""
    compiled = case.compiled()
    network = compiled.network()
    regression = case.kind == "reg"
    return Task(
        name=f"case {case.id}",
        program=Compiled(network, compiled.circuit, regression=regression),
        inputs=sampling.Inputs(_ordered(compiled.vocabulary), compiled.bos_id, range_of(case)),
        d_vocab=network.config.vocab_size,
        d_out=network.config.d_out,
        n_positions=case.max_length,
        causal=case.causal,
        regression=regression,
        digest=identity.of_case(case),
    )


def range_of(case: Any) -> tuple[int, ...]:
    """How many tokens may follow BOS."""
    return tuple(range(case.min_length - 1, case.max_length))


def _ordered(vocabulary: Sequence[Any]) -> tuple[int, ...]:
    """Token ids in the order of the tokens: numbers by size, words as they stand."""
    ids = range(len(vocabulary))
    if all(isinstance(token, int | float) for token in vocabulary):
        return tuple(sorted(ids, key=lambda index: vocabulary[index]))
    return tuple(ids)
