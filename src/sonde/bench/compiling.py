"""How does a RASP program become a transformer whose circuit is known?

    found = compiling.compile(share, "abcx", max_length=5, causal=True)
    found.run([["x", "a", "x"]])                              # [[1.0, 0.5, 0.667]]
    found.circuit.names                                       # ("input->m0", "m0->a1.h0<v>", …)
    with found.model() as model:                              # an ordinary Sonde model: capture, tracing, circuits
        model.run_with_cache("x a x")

1. `rasp.values_of` lists the values that every variable may take.
2. `placing.place` puts every operation into a layer.
3. `assembling.Assembler` writes its weights, `stacking.stack` puts them into a `plain.PlainForCausalLM` with ReLU.
4. The true circuit: an edge from the node that writes a variable to every reader of it. A head reads queries only if its
   predicate depends on them. Constants (`one`, BOS, padding) are no edges: they are the same in every input.

The vocabulary is followed by BOS and PAD. Padding needs no mask: no compiled head looks at it. Clean and corrupt inputs
must be of equal length for the circuit to be the whole truth. Costs milliseconds; 129 cases take seconds.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int, Shaped

from sonde.bench import assembling, placing, rasp, stacking
from sonde.circuits import graph
from sonde.core import errors

#: Above the largest of the cases more than ten times; a quarter of a gigabyte.
MOST_WEIGHTS = 1 << 26

if TYPE_CHECKING:
    from sonde.models import model as models_model
    from sonde.models import plain


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A RASP program as a transformer, with its circuit.

    Attributes:
        program: The program.
        vocabulary: Its tokens, in the order of their ids.
        max_length: Positions, BOS included.
        bos: Whether inputs begin with BOS.
        config: Sizes, as `plain.PlainConfig` takes them.
        weights: As `plain.PlainForCausalLM` names them.
        basis: What every direction of the stream stands for.
        outputs: What every logit stands for; None if the result is a number.
        circuit: The true edges, with queries, keys and values apart.
        meanings: The variables that each node computes, by the node's name.
    """

    program: rasp.Variable
    vocabulary: tuple[rasp.Value, ...]
    max_length: int
    bos: bool
    config: Mapping[str, Any]
    weights: Mapping[str, Float[np.ndarray, "..."]]
    basis: tuple[str, ...]
    outputs: tuple[rasp.Value, ...] | None
    circuit: graph.Circuit
    meanings: Mapping[str, tuple[str, ...]]

    @property
    def causal(self) -> bool:
        """No position looks at later ones."""
        return not self.config["use_bidirectional_attention"]

    @property
    def bos_id(self) -> int:
        """The token that stands before the input."""
        return len(self.vocabulary)

    @property
    def pad_id(self) -> int:
        """The token that stands after shorter inputs."""
        return len(self.vocabulary) + 1

    @property
    def components(self) -> tuple[str, ...]:
        """Heads and MLPs of the circuit."""
        return tuple(name for name in self.circuit.nodes if name not in (graph.INPUT, graph.LOGITS))

    def encode(self, tokens: Sequence[rasp.Value]) -> list[int]:
        """Token ids of an input, after BOS.

        Raises:
            RequestError: A token is not in the vocabulary, or there are too many of them.
        """
        known = {word: index for index, word in enumerate(self.vocabulary)}
        lost = [token for token in tokens if token not in known]
        if lost:
            raise errors.RequestError(f"{lost[0]!r} is not in the vocabulary, {list(self.vocabulary)[:20]}")
        if len(tokens) + self.bos > self.max_length:
            raise errors.RequestError(f"{len(tokens)} tokens are too many: the longest input has {self.n_tokens}")
        return [self.bos_id] * self.bos + [known[token] for token in tokens]

    @property
    def n_tokens(self) -> int:
        """Tokens of the longest input, without BOS."""
        return self.max_length - self.bos

    def encode_batch(self, inputs: Sequence[Sequence[rasp.Value]]) -> Int[np.ndarray, "batch pos"]:
        """Token ids of several inputs, padded after the last token to the longest of them."""
        rows = [self.encode(tokens) for tokens in inputs]
        width = max(len(row) for row in rows)
        return np.array([row + [self.pad_id] * (width - len(row)) for row in rows])

    def decode(self, logits: Shaped[Any, "pos d_out"]) -> list[rasp.Value]:
        """What the logits at every position say, BOS left out: numbers, or values (None where there is none)."""
        rows = np.asarray(logits)[int(self.bos) :]
        if self.outputs is None:
            return [float(row[0]) for row in rows]
        best = rows.argmax(axis=1)
        return [self.outputs[at] if row[at] > 0.5 else None for at, row in zip(best, rows, strict=True)]

    def run(self, inputs: Sequence[Sequence[rasp.Value]]) -> list[list[rasp.Value]]:
        """What the compiled model says to several inputs."""
        import torch

        ids = self.encode_batch(inputs)
        with torch.no_grad():
            logits = self.network()(torch.from_numpy(ids)).logits.numpy()
        lengths = [len(tokens) + self.bos for tokens in inputs]
        return [self.decode(rows[:length]) for rows, length in zip(logits, lengths, strict=True)]

    def network(self) -> "plain.PlainForCausalLM":
        """The bare network, made anew."""
        import torch
        from transformers import initialization

        from sonde.models import plain

        with initialization.no_init_weights():
            network = plain.PlainForCausalLM(plain.PlainConfig(**self.config))
        network.load_state_dict({name: torch.from_numpy(value) for name, value in self.weights.items()})
        return network.eval()

    def model(self, name: str = "compiled") -> "models_model.Model":
        """The network as a Sonde model; its tokenizer takes words with spaces between."""
        from sonde.bench import words
        from sonde.models import model as models_model

        return models_model.Model(self.network(), words.tokenizer(self.vocabulary, bos=self.bos), name=name)


def compile(  # noqa: A001 (called as compiling.compile)
    program: rasp.Variable, vocabulary: Iterable[rasp.Value], *, max_length: int, causal: bool = False, bos: bool = True
) -> Compiled:
    """Makes a transformer of a program.

    Args:
        program: The result wanted at every position.
        vocabulary: The tokens that an input may have.
        max_length: Positions of the longest input, BOS included.
        causal: No position looks at later ones.
        bos: Inputs begin with BOS. Without it every selector must always select something, and there are no widths.

    Raises:
        CompileError: The program cannot be compiled; says which operation, and why.
    """
    words = rasp.ordered(vocabulary)
    if not words or max_length - bos < 1:
        raise errors.CompileError(
            f"a model needs tokens and room for one; got {len(words)} tokens and max_length {max_length}"
        )
    values = rasp.values_of(program, words, max_length - bos)
    placement = placing.place(program)
    assembler = assembling.Assembler(program, values, placement, bos=bos)
    _check_size(placement, values, len(assembler.basis))
    weights = stacking.stack(program, assembler, words, max_length)
    outputs = None if program.kind == rasp.NUMERICAL else values[program]
    config = {
        "vocab_size": len(words) + 2,
        "hidden_size": len(assembler.basis),
        "intermediate_size": weights["model.layers.0.mlp.fc_in.weight"].shape[0],
        "num_hidden_layers": placement.n_layers,
        "num_attention_heads": placement.n_heads,
        "head_dim": weights["model.layers.0.self_attn.q_proj.weight"].shape[0] // placement.n_heads,
        "max_position_embeddings": max_length,
        "hidden_act": "relu",
        "d_out": weights["lm_head.weight"].shape[0],
        "use_bidirectional_attention": not causal,
        "bos_token_id": len(words),
        "pad_token_id": len(words) + 1,
    }
    circuit = graph.Circuit.of(
        graph.Graph(placement.n_layers, placement.n_heads, placement.n_heads), _edges(program, placement, values)
    )
    basis, meanings = tuple(assembler.basis), _meanings(placement)
    return Compiled(program, words, max_length, bos, config, weights, basis, outputs, circuit, meanings)


def _check_size(placement: placing.Placement, values: assembling.Values, width: int) -> None:
    """Refuses what would not fit, before anything is built: every layer's MLP is as wide as the widest."""
    units: dict[str, int] = {}
    for variable, place in placement.of.items():
        read = [len(values[one] or ()) for one in rasp.inputs(variable)] if place.node.startswith("m") else []
        units[place.node] = units.get(place.node, 0) + (
            math.prod(read) if isinstance(variable, rasp.SequenceMap) else sum(read)
        )
    hidden = max(units.values(), default=0)
    size = 2 * placement.n_layers * hidden * width
    if size > MOST_WEIGHTS:
        node = max(units, key=units.__getitem__)
        names = ", ".join(str(variable) for variable, place in placement.of.items() if place.node == node)
        raise errors.CompileError(
            f"cannot compile {names!r:.200}: {hidden:,} hidden units in each of {placement.n_layers} layers and a stream of {width:,} directions "
            f"are about {size:,} weights, {4 * size / 1e9:.1f} GB; at most {MOST_WEIGHTS:,} can be had: Map what is read to fewer values first"
        )


def _edges(program: rasp.Variable, placement: placing.Placement, values: assembling.Values) -> list[str]:
    found = [f"{placement.writer(program)}->{graph.LOGITS}"]
    for variable, place in placement.of.items():
        if not isinstance(variable, rasp.Aggregate | rasp.SelectorWidth):
            found += [f"{placement.writer(one)}->{place.node}" for one in rasp.inputs(variable)]
            continue
        head, select = place.nodes[0], variable.select
        table = assembling.table_of(select, values, variable)
        if (table != table[:, :1]).any() or rasp.may_be_missing(select.queries, values):
            found.append(f"{placement.writer(select.queries)}->{head}<q>")
        if table.any():
            found.append(f"{placement.writer(select.keys)}->{head}<k>")
        if isinstance(variable, rasp.Aggregate):
            found.append(f"{placement.writer(variable.values)}->{head}<v>")
        else:
            found.append(f"{head}->{place.node}")
    return found


def _meanings(placement: placing.Placement) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for variable, place in placement.of.items():
        for node in place.nodes:
            found[node] = (*found.get(node, ()), str(variable))
    return found
