"""What does the model say if some edges carry what their source would write in another run?

One forward pass in which every destination has an input of its own: the sum over its sources of what they write in this
very run, where the edge is kept, and of their ablated value, where it is cut. Attention's output biases are always added.

    input of v = constants + sum over u of ablated[u] + mask[u, v] (written[u] - ablated[u])

A mask between 0 and 1 interpolates, and gradients reach it. Several masks run side by side in one batch. Costs a norm and
a slice of a projection per destination, and sources x destinations x positions x d_model products: about two forward
passes of a small model.
"""

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor

from sonde.circuits import graph as circuits_graph
from sonde.circuits import parts


class Streams:
    """What destinations read, as sources write one after the other.

    The part that all destinations share (constants and ablated values) is one running sum; the rest is a product of the
    mask with what was written.
    """

    def __init__(
        self, ablated: Float[Tensor, "source pair pos d_model"], masks: Float[Tensor, "many source destination"]
    ) -> None:
        """Nothing is written yet."""
        self._ablated, self._masks = ablated.flatten(1), masks.to(ablated.dtype)
        self._shape, self._count = ablated.shape[1:], 0
        self._shared = torch.zeros_like(self._ablated[0])
        self._taped = torch.is_grad_enabled() and masks.requires_grad
        self._pieces: list[Tensor] = []
        many = len(masks)
        # Autograd wants every piece untouched; without it one table that grows is faster.
        self._table = self._shared.new_empty(0 if self._taped else many, *self._ablated.shape)

    def write(self, written: Float[Tensor, "some row pos d_model"]) -> None:
        """Takes what the next sources write, for each mask and pair."""
        some, many = len(written), len(self._masks)
        here = slice(self._count, self._count + some)
        change = written.reshape(some, many, -1).transpose(0, 1) - self._ablated[here]
        if self._taped:
            self._pieces.append(change)
        else:
            self._table[:, here] = change
        self._shared = self._shared + self._ablated[here].sum(dim=0)
        self._count += some

    def written(self) -> Float[Tensor, "source row pos d_model"]:
        """What every source wrote, of a run without a tape."""
        whole = (self._table + self._ablated).transpose(0, 1)
        return whole.reshape(len(whole), -1, *self._shape[1:])

    def add(self, constant: Tensor | None) -> None:
        """Adds a constant that belongs to no source."""
        if constant is not None:
            self._shared = (self._shared.view(self._shape) + constant).flatten()

    def read(self, where: slice) -> Float[Tensor, "some row pos d_model"]:
        """The input of each of some destinations, for each mask and pair."""
        chosen = self._masks[:, : self._count, where].mT
        if not self._taped:
            mixed = torch.bmm(chosen, self._table[:, : self._count])
        else:
            mixed, start = torch.zeros((), dtype=chosen.dtype, device=chosen.device), 0
            for piece in self._pieces:
                mixed = mixed + torch.bmm(chosen[:, :, start : start + piece.shape[1]], piece)
                start += piece.shape[1]
        mixed = (mixed + self._shared).transpose(0, 1)
        return mixed.reshape(len(mixed), -1, *self._shape[1:])


@dataclasses.dataclass(slots=True, eq=False)
class Inside:
    """What one layer read and made on the way.

    Attributes:
        inputs: What queries, keys and values read, destination by destination.
        parts: Queries, keys and values, each `row pos head d_head`.
        mixed: Values as the heads mix them.
        entered: What the MLP reads.
    """

    inputs: Float[Tensor, "destination row pos d_model"]
    parts: list[Float[Tensor, "row pos _ d_head"]]
    mixed: Float[Tensor, "row pos head d_head"]
    entered: Float[Tensor, "row pos d_model"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run under masks.

    Attributes:
        final: The final stream, mask by mask: `row` is mask times pair.
        streams: What was written.
        layers: What each layer read, if it was to be kept.
    """

    final: Float[Tensor, "row pos d_model"]
    streams: Streams
    layers: list[Inside]


def run(
    network: parts.Network,
    graph: circuits_graph.Graph,
    start: Float[Tensor, "pair pos d_model"],
    *,
    ablated: Float[Tensor, "source pair pos d_model"],
    masks: Float[Tensor, "many source destination"],
    keep: bool = False,
) -> Run:
    """Runs the network under each mask.

    Args:
        network: The network.
        graph: Its graph.
        start: What `input` writes in this run.
        ablated: What edges carry that are cut.
        masks: 1 where an edge is kept, 0 where it is cut.
        keep: Whether to keep what each layer read.
    """
    streams, many = Streams(ablated, masks), len(masks)
    streams.write(start.repeat(many, 1, 1)[None])
    n_heads, n_kv, at, layers = graph.n_heads, graph.n_key_value_heads, 0, []
    for layer in network.layers:
        inputs = streams.read(slice(at, at + n_heads + 2 * n_kv))
        split = inputs.split((n_heads, n_kv, n_kv))
        made = [layer.read(letter, part, slice(None)) for letter, part in enumerate(split)]
        at += n_heads + 2 * n_kv
        entered = streams.read(slice(at, at + 1))[0] if graph.parallel else None
        mixed = layer.attend(*made)
        streams.write(layer.heads(mixed))
        streams.add(layer.constant)
        entered = streams.read(slice(at, at + 1))[0] if entered is None else entered
        streams.write(layer.mlp(entered)[None])
        at += 1
        if keep:
            layers.append(Inside(inputs, made, mixed, entered))
    return Run(streams.read(slice(at, at + 1))[0], streams, layers)
