"""The true circuit of a published model: pairs of names as its authors write them, read into a Circuit.

    published_edges.circuit([["hook_embed", "blocks.1.hook_v_input[2]"], …], graph)

| source | name |
|---|---|
| input | `hook_embed`, `hook_pos_embed` |
| head | `blocks.1.attn.hook_result[2]`, also `hook_z` |
| MLP | `blocks.0.hook_mlp_out`, also `mlp.hook_post` |

| destination | name |
|---|---|
| queries, keys or values of a head | `blocks.1.hook_v_input[2]` |
| a whole head: all three | `blocks.1.attn.hook_result[2]`, `hook_z` |
| MLP | `blocks.0.hook_mlp_in`, `blocks.0.hook_mlp_out`, `mlp.hook_post` |
| logits | `hook_resid_post` of the last layer |

Sonde's names (`m0`, `a1.h2`, `a1.h2<v>`, `input`, `logits`) do as well. Edges inside a head or an MLP (`hook_q_input[2]` to `hook_q[2]` to
`hook_result[2]`, `hook_mlp_in` to `hook_mlp_out`) are no edges of the graph and left out. Costs microseconds.
"""

import re
from typing import Any

from sonde.circuits import graph as circuits_graph
from sonde.core import errors

#: More pairs than any graph here has edges, those inside heads included.
MOST = 100_000
INPUTS = frozenset({"hook_embed", "hook_pos_embed", "blocks.0.hook_resid_pre", circuits_graph.INPUT})
_PART = re.compile(r"blocks\.(\d{1,4})\.(?:attn\.)?hook_([qkv])(_input)?\[(?:.*[^\d])?(\d{1,4})[^\d]*\]")
_HEAD = re.compile(r"blocks\.(\d{1,4})\.attn\.hook_(?:result|z)\[(?:.*[^\d])?(\d{1,4})[^\d]*\]")
_MLP = re.compile(r"blocks\.(\d{1,4})\.(?:hook_mlp_in|hook_mlp_out|mlp\.hook_pre|mlp\.hook_post)")
_OWN = re.compile(r"(a\d{1,4}\.h\d{1,4}|m\d{1,4})(?:<([qkv])>)?")


def circuit(pairs: Any, low: circuits_graph.Graph) -> circuits_graph.Circuit:
    """The circuit that pairs of names describe.

    Raises:
        RequestError: They are no such pairs, name what the graph does not have, or make no edge.
    """
    if not isinstance(pairs, list) or not pairs or len(pairs) > MOST:
        raise errors.RequestError(f"expected a list of 1 to {MOST:,} pairs of names, got {_shown(pairs)}")
    names: list[str] = []
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, str) for one in pair)):
            raise errors.RequestError(f"{_shown(pair)} is no pair of names")
        names += _edges(pair[0], pair[1], low)
    if not names:
        raise errors.RequestError(f"none of the {len(pairs)} pairs leads from one node to another")
    return circuits_graph.Circuit.of(low, names)


def _edges(source: str, destination: str, low: circuits_graph.Graph) -> list[str]:
    """The edges of a pair; none if both are parts of one node."""
    (one, part), (two, letter) = (_node(text, low) for text in (source, destination))
    if one == two:
        return []
    if part:
        raise errors.RequestError(
            f"{_shown(source)} is read by its head alone: no edge leads from it to {_shown(destination)}"
        )
    if one == circuits_graph.LOGITS or two == circuits_graph.INPUT:
        raise errors.RequestError(f"no edge leads from {_shown(source)} to {_shown(destination)}")
    letters = (letter or "qkv") if two.startswith("a") else ""
    return [f"{one}->{two}<{one_letter}>" for one_letter in letters] if letters else [f"{one}->{two}"]


def _node(text: str, low: circuits_graph.Graph) -> tuple[str, str]:
    """The node of a name, and which of its inputs is meant."""
    node, letter = "", ""
    if text in INPUTS:
        node = circuits_graph.INPUT
    elif text in (circuits_graph.LOGITS, f"blocks.{low.n_layers - 1}.hook_resid_post"):
        node = circuits_graph.LOGITS
    elif found := _PART.fullmatch(text):
        node, letter = f"a{int(found[1])}.h{int(found[4])}", found[2]
    elif found := _HEAD.fullmatch(text):
        node = f"a{int(found[1])}.h{int(found[2])}"
    elif found := _MLP.fullmatch(text):
        node = f"m{int(found[1])}"
    elif found := _OWN.fullmatch(text):
        node, letter = found[1], found[2] or ""
    if node not in (*low.sources, circuits_graph.LOGITS):
        raise errors.RequestError(
            f"{_shown(text)} is no node of this model of {low.n_layers} layers and {low.n_heads} heads; names are "
            "blocks.0.attn.hook_result[1], blocks.1.hook_v_input[2], blocks.0.hook_mlp_out, hook_embed, m0, input …"
        )
    return node, letter


def _shown(text: object) -> str:
    return f"{text!r:.80}"
