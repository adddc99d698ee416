"""How do the operations of a program become the weights of one network?

    weights = stacking.stack(program, assembler, words, max_length)

Every operation is assembled in the order of the program; heads of a layer stand side by side, hidden units one after
another, and what is left over is zero. All layers have the size of the largest. Costs milliseconds.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from sonde.bench import assembling, rasp


def stack(
    program: rasp.Variable, assembler: assembling.Assembler, words: Sequence[rasp.Value], max_length: int
) -> dict[str, Float[np.ndarray, "..."]]:
    """All weights under the names of the network, in single precision."""
    placement, width = assembler.placement, len(assembler.basis)
    heads: dict[tuple[int, int], assembling.Head] = {}
    units: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {layer: [] for layer in range(placement.n_layers)}
    for variable in rasp.variables(program):
        place = placement.of.get(variable)
        if place is not None and isinstance(variable, rasp.Aggregate | rasp.SelectorWidth):
            heads[place.layer, place.head or 0] = assembler.head(variable)
        if place is not None and place.mlp:
            units[place.layer].append(assembler.mlp(variable))
    tokens, positions = assembler.embeddings(words, max_length)
    found = {"model.embed_tokens.weight": tokens, "model.embed_positions.weight": positions}
    d_head = max((side.shape[1] for head in heads.values() for side in (head.query, head.value)), default=1)
    d_mlp = max(1, *(sum(into.shape[1] for into, _ in layer) for layer in units.values()))
    for layer in range(placement.n_layers):
        own = {index: head for (at, index), head in heads.items() if at == layer}
        attention = _attention(own, (width, placement.n_heads, d_head))
        for name, matrix in (attention | _mlp(units[layer], width, d_mlp)).items():
            found[f"model.layers.{layer}.{name}.weight"] = matrix.T
            found[f"model.layers.{layer}.{name}.bias"] = np.zeros(matrix.shape[1])
    columns = assembler.columns[program]
    found["lm_head.weight"], found["lm_head.bias"] = np.eye(width)[columns], np.zeros(len(columns))
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in found.items()}


def _attention(
    heads: Mapping[int, assembling.Head], sizes: tuple[int, int, int]
) -> dict[str, Float[np.ndarray, "_ _"]]:
    """The projections of a layer, heads side by side; those that are not used are zero."""
    width, n_heads, d_head = sizes
    query, key, value = (np.zeros((width, n_heads, d_head)) for _ in range(3))
    out = np.zeros((n_heads, d_head, width))
    for index, head in heads.items():
        query[:, index, : head.query.shape[1]] = head.query * math.sqrt(d_head)  # attention divides by it
        key[:, index, : head.key.shape[1]] = head.key
        value[:, index, : head.value.shape[1]] = head.value
        out[index, : head.out.shape[0]] = head.out
    flat = {"q_proj": query, "k_proj": key, "v_proj": value}
    found = {f"self_attn.{name}": matrix.reshape(width, -1) for name, matrix in flat.items()}
    return found | {"self_attn.o_proj": out.reshape(-1, width)}


def _mlp(units: Sequence[tuple[np.ndarray, np.ndarray]], width: int, d_mlp: int) -> dict[str, Float[np.ndarray, "_ _"]]:
    """The units of a layer one after another; those that are left over are zero."""
    into, out = np.zeros((width, d_mlp)), np.zeros((d_mlp, width))
    start = 0
    for reads, writes in units:
        end = start + reads.shape[1]
        into[:, start:end], out[start:end] = reads, writes
        start = end
    return {"mlp.fc_in": into, "mlp.fc_out": out}
