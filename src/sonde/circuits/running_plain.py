"""What does every source write, and how does the loss depend on what every destination reads?

`trace` runs the network layer by layer and keeps what each source wrote. `Gradients` come from one such run and one
backward pass, however many destinations there are:

1. The backward pass stops at queries, keys, values, MLP inputs and the final stream: each is a cut that only the paths
   through that destination cross.
2. A head's gradient goes back through its slice of the projection, and through the norm, when it is asked for, layer by
   layer. So only one layer's destinations are in memory at a time.

Memory: what sources wrote, `source x pair x pos x d_model`, and autograd's tape of a plain forward pass.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sonde.circuits import graph as circuits_graph
from sonde.circuits import parts


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One run.

    Attributes:
        sources: What each source wrote, detached.
        final: The final stream.
        streams: The stream into each layer.
        cuts: Queries, keys, values and MLP input of each layer in turn, and the final stream.
    """

    sources: Float[Tensor, "source pair pos d_model"]
    final: Float[Tensor, "pair pos d_model"]
    streams: list[Float[Tensor, "pair pos d_model"]]
    cuts: list[Tensor]


def trace(
    network: parts.Network,
    graph: circuits_graph.Graph,
    start: Float[Tensor, "pair pos d_model"],
    *,
    outputs: Mapping[int, Tensor] | None = None,
) -> Trace:
    """Runs the network from what enters its first layer.

    Args:
        network: The network.
        graph: Its graph.
        start: What `input` writes.
        outputs: What other sources write instead of what they would, by their index.
    """
    stream, outputs = start, outputs or {}
    found = start.new_empty(len(graph.sources), *start.shape)
    found[0] = start.detach()
    streams, cuts, first = [], [], 1
    for layer in network.layers:
        query, key, value = layer.project(stream)
        mixed = layer.attend(query, key, value)
        after = stream + layer.attention(mixed)
        heads = slice(first, first + graph.n_heads)
        with torch.no_grad():
            found[heads] = layer.heads(mixed.detach())
        for index in (index for index in range(heads.start, heads.stop) if index in outputs):
            after = after + (outputs[index] - found[index])
            found[index] = outputs[index]
        entered = (stream if graph.parallel else after).view_as(stream)  # a node that only the MLP hangs on
        written = outputs.get(heads.stop)
        written = layer.mlp(entered) if written is None else written
        found[heads.stop] = written.detach()
        streams.append(stream.detach())
        cuts += [query, key, value, entered]
        stream, first = after + written, heads.stop + 1
    cuts.append(stream.view_as(stream))
    return Trace(found, cuts[-1], streams, cuts)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """How the loss depends on what every destination reads.

    Attributes:
        network: The network.
        graph: Its graph.
        trace: The run.
        loss: Its loss.
        values: The gradient at each cut of the run.
    """

    network: parts.Network
    graph: circuits_graph.Graph
    trace: Trace
    loss: Float[Tensor, ""]
    values: list[Tensor]

    def stages(self) -> Iterator[tuple[slice, Float[Tensor, "destination pair pos d_model"]]]:
        """Destinations that read the same sources, from input to output, and the gradients of what they read."""
        per_layer = self.graph.n_heads + 2 * self.graph.n_key_value_heads
        start = 0
        for index, layer in enumerate(self.network.layers):
            at_heads, at_mlp = self.values[4 * index : 4 * index + 3], self.values[4 * index + 3]
            yield slice(start, start + per_layer), self._through(layer, at_heads, self.trace.streams[index])
            yield slice(start + per_layer, start + per_layer + 1), at_mlp[None]
            start += per_layer + 1
        yield slice(start, start + 1), self.values[-1][None]

    def dot(self, change: Float[Tensor, "source pair pos d_model"]) -> Float[Tensor, "source destination"]:
        """First-order change of the loss for each edge, if it alone carried this change of its source; 0 for no edge."""
        found = change.new_zeros(len(self.graph.sources), len(self.graph.destinations))
        flat = change.flatten(1)
        for where, gradient in self.stages():
            reads = self.graph.reads[where.start]
            found[:reads, where] = flat[:reads] @ gradient.flatten(1).T
        return found

    def _through(self, layer: parts.Layer, values: list[Tensor], stream: Tensor) -> Tensor:
        """Gradients at the heads' inputs from those at queries, keys and values."""
        rows, width = stream.shape[:2]
        back = torch.cat(
            [
                torch.bmm(value.permute(2, 0, 1, 3).reshape(value.shape[2], rows * width, -1), weight.mT)
                for value, weight in zip(values, layer.weights, strict=True)
            ]
        ).view(-1, rows, width, stream.shape[-1])
        if isinstance(layer.attn_norm, nn.Identity):
            return back
        with torch.enable_grad():
            shared = stream.expand_as(back).detach().requires_grad_()
            (found,) = torch.autograd.grad(layer.attn_norm(shared), shared, back)
        return found
