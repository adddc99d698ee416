"""What changes if one more edge is cut?

A `State` is a run under a mask with everything that was read and written on the way. Cutting one more edge then costs
only what it changes:

1. The destination's input changes by the source's ablated minus its written value. Nothing below is touched. Without a
   norm before it, queries, keys and values change by the projection of that.
2. Of an attention layer only the heads concerned are run; of the layers above, only destinations that a changed source
   still has an edge to.
3. Sources from which no kept edge leads on to the logits are left alone.
4. An edge to the logits needs no run at all: the final stream is a sum.

`cut` tells the logits of one cut, and what to take over if it is to stay (`keep`). Sums that are updated many times
gather rounding errors; `rebuild` runs everything anew. Memory: what every source writes and every destination reads.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sonde.circuits import graph as circuits_graph
from sonde.circuits import running_masks

if TYPE_CHECKING:
    from sonde.circuits import running


@dataclasses.dataclass(slots=True, eq=False)
class Cut:
    """What one more cut would change. Everything is a tensor of its own, so that taking it over copies nothing.

    Attributes:
        metric: The metric's value of every pair with it; None if it cannot change.
        final: The final stream at the positions that are read.
        written: What changed sources write, by index.
        changes: That, minus what they wrote before.
        inputs: What destinations of heads read, by layer and place, where a norm follows.
        parts: Queries (0), keys (1), values (2) and mixed values (3), by layer, letter and head.
        entered: What MLPs read, by layer.
    """

    metric: Float[Tensor, "pair"] | None = None
    final: Tensor | None = None
    written: dict[int, Tensor] = dataclasses.field(default_factory=dict)
    changes: dict[int, Tensor] = dataclasses.field(default_factory=dict)
    inputs: dict[tuple[int, int], Tensor] = dataclasses.field(default_factory=dict)
    parts: dict[tuple[int, int, int], Tensor] = dataclasses.field(default_factory=dict)
    entered: dict[int, Tensor] = dataclasses.field(default_factory=dict)


class State:
    """A run of one batch under a mask, from which single edges can be cut."""

    def __init__(
        self, runner: "running.Runner", batch: "running.Batch", mask: Bool[np.ndarray, "source destination"]
    ) -> None:
        """Runs the batch."""
        self.runner, self.batch, self.graph = runner, batch, runner.graph
        self.mask = mask.copy()
        self._layers = runner.network.layers
        self._group = self.graph.n_heads // self.graph.n_key_value_heads
        self._step = self.graph.n_heads + 2 * self.graph.n_key_value_heads + 1
        self._places = [_reader(self.graph, place) for place in range(self._step - 1)]
        self._nodes = _nodes(self.graph)
        self.rebuild()

    def rebuild(self) -> None:
        """Runs everything anew under the present mask."""
        runner, batch = self.runner, self.batch
        with runner.alone():
            self._ablated = runner.ablated(batch)
            run = running_masks.run(
                runner.network,
                self.graph,
                runner.start(batch, "clean"),
                ablated=self._ablated,
                masks=runner.as_masks(self.mask)[None],
                keep=True,
            )
            self._now = Cut(
                final=runner.at_places(batch, run.final[None])[0],
                written=dict(enumerate(run.streams.written())),
            )
            for layer, inside in enumerate(run.layers):
                self._now.entered[layer] = inside.entered
                self._now.inputs |= {(layer, place): one for place, one in enumerate(inside.inputs)}
                for letter, part in enumerate((*inside.parts, inside.mixed)):
                    heads = part.permute(2, 0, 1, 3).contiguous()
                    self._now.parts |= {(layer, letter, head): one for head, one in enumerate(heads)}
            self._now.metric = self._metric(self._now)
        runner.spent.forwards += len(batch.pairs)
        self._reach()

    @property
    def metric(self) -> Float[Tensor, "pair"]:
        """The metric's value of every pair under the present mask."""
        assert self._now.metric is not None
        return self._now.metric

    def cut(self, source: int, destination: int) -> Cut:
        """What it would change if one more edge were cut."""
        found = Cut()
        if not self.useful[destination]:
            return found
        with self.runner.alone():
            change = self._ablated[source] - self._now.written[source]
            if destination == len(self.graph.destinations) - 1:
                self._finish(found, [change])
            else:
                self._spread(found, destination, change)
                self._finish(found, [one for index, one in found.changes.items() if self.mask[index, -1]])
            if found.final is not None:
                found.metric = self._metric(found)
        work = len(found.entered) + len({layer for layer, _, _ in found.parts})
        self.runner.spent.forwards += work / (2 * self.graph.n_layers) * len(self.batch.pairs)
        return found

    def keep(self, source: int, destination: int, cut: Cut) -> None:
        """Cuts the edge for good."""
        self.mask[source, destination] = False
        now = self._now
        for name in ("written", "inputs", "parts", "entered"):
            getattr(now, name).update(getattr(cut, name))
        if cut.metric is not None:
            now.final, now.metric = cut.final, cut.metric
        if not (self.mask[source] & self.useful).any():
            self._reach()

    def _reach(self) -> None:
        """Finds the sources from which kept edges lead on to the logits, and the destinations that they read at."""
        self.reach = self.mask[:, -1].copy()
        self.useful = np.ones(len(self._nodes), dtype=bool)
        for j in range(len(self._nodes) - 2, -1, -1):
            self.useful[j] = self.reach[self._nodes[j]].any()
            if j % self._step != self._step - 1 and self._layers[j // self._step].mixes_heads:
                first = j // self._step * (self.graph.n_heads + 1) + 1  # the norm passes any head's change on to all
                self.useful[j] = self.reach[first : first + self.graph.n_heads].any()
            if self.useful[j]:
                self.reach |= self.mask[:, j]

    def _metric(self, state: Cut) -> Float[Tensor, "pair"]:
        assert state.final is not None
        return self.runner.batch_metric(self.batch, self.runner.network.unembed(state.final))

    def _finish(self, found: Cut, changes: list[Tensor]) -> None:
        """The final stream with what changed."""
        if changes:
            assert self._now.final is not None
            final = self._now.final + self.runner.at_places(self.batch, changes[0][None])[0]
            for change in changes[1:]:
                final += self.runner.at_places(self.batch, change[None])[0]
            found.final = final

    def _spread(self, found: Cut, destination: int, change: Tensor) -> None:
        """Runs the destination with a changed input, and then whatever reads something that changed."""
        layer, place = divmod(destination, self._step)
        if place == self._step - 1:
            self._run_mlp(found, layer, change)
        else:
            self._run_heads(found, layer, {place: change})
            self._mlp_after(found, layer)
        for above in range(layer + 1, self.graph.n_layers):
            first = above * self._step
            changed = [index for index in found.changes if index < self.graph.reads[first]]
            arriving = {
                place: total
                for place in range(self._step - 1)
                if self.useful[first + place] and (total := self._arriving(found, changed, first + place)) is not None
            }
            if arriving:
                self._run_heads(found, above, arriving)
            self._mlp_after(found, above)

    def _arriving(self, found: Cut, changed: list[int], destination: int) -> Tensor | None:
        """What changes in all that a destination reads; None if nothing does."""
        arriving = [found.changes[index] for index in changed if self.mask[index, destination]]
        if len(arriving) < 2:
            return arriving[0] if arriving else None
        total = arriving[0] + arriving[1]
        for one in arriving[2:]:
            total += one
        return total

    def _mlp_after(self, found: Cut, layer: int) -> None:
        """Runs the MLP of a layer if it reads something that changed."""
        column = (layer + 1) * self._step - 1
        if self.useful[column]:
            changed = [index for index in found.changes if index < self.graph.reads[column]]
            arriving = self._arriving(found, changed, column)
            if arriving is not None:
                self._run_mlp(found, layer, arriving)

    def _run_mlp(self, found: Cut, layer: int, change: Tensor) -> None:
        """Runs the MLP of a layer with what it reads changed."""
        found.entered[layer] = entered = self._now.entered[layer] + change
        self._write(found, (layer + 1) * (self.graph.n_heads + 1), self._layers[layer].mlp(entered))

    def _write(self, found: Cut, index: int, value: Tensor) -> None:
        if self.reach[index]:
            found.written[index] = value
            found.changes[index] = value - self._now.written[index]

    def _run_heads(self, found: Cut, layer: int, arriving: dict[int, Tensor]) -> None:
        """Runs the heads that read something changed, with all that share keys and values with them."""
        network, groups = self._layers[layer], set()
        for place, change in arriving.items():
            letter, head = self._places[place]
            key = (layer, letter, head)
            if network.reads_sums:
                found.parts[key] = network.read_more(letter, head, change, self._now.parts[key])
            else:
                found.inputs[layer, place] = value = self._now.inputs[layer, place] + change
                found.parts[key] = network.read_one(letter, head, value)
            groups.add(head if letter else head // self._group)
        some = sorted(groups)
        if network.one_by_one:
            self._run_each(found, layer, some)
            return
        heads = [head for group in some for head in range(group * self._group, (group + 1) * self._group)]
        made = [self._stacked(found, layer, letter, own) for letter, own in enumerate((heads, some, some))]
        mixed = network.attend(*made)
        if network.mixes_heads:
            found.parts |= {(layer, 3, head): mixed[:, :, row] for row, head in enumerate(heads)}
            heads = list(range(self.graph.n_heads))
            mixed = self._stacked(found, layer, 3, heads)
        first = layer * (self.graph.n_heads + 1) + 1
        for head, value in zip(heads, network.heads(mixed, heads), strict=True):
            self._write(found, first + head, value)

    def _run_each(self, found: Cut, layer: int, heads: list[int]) -> None:
        """Runs heads one at a time: nothing is put side by side for it."""
        network, before = self._layers[layer], self._now.parts
        for head in heads:
            index = layer * (self.graph.n_heads + 1) + 1 + head
            if self.reach[index]:
                keys = [(layer, letter, head) for letter in range(3)]
                mixed = network.mix_one(*(found.parts[key] if key in found.parts else before[key] for key in keys))
                self._write(found, index, network.write_one(head, mixed))

    def _stacked(self, found: Cut, layer: int, letter: int, heads: list[int]) -> Tensor:
        """Queries, keys, values or mixed values of some heads, changed or not."""
        before = self._now.parts
        keys = [(layer, letter, head) for head in heads]
        return torch.stack([found.parts[key] if key in found.parts else before[key] for key in keys], dim=2)


def _reader(graph: circuits_graph.Graph, place: int) -> tuple[int, int]:
    """Whether a place in a layer reads queries (0), keys (1) or values (2), and for which head."""
    if place < graph.n_heads:
        return 0, place
    letter, head = divmod(place - graph.n_heads, graph.n_key_value_heads)
    return letter + 1, head


def _nodes(graph: circuits_graph.Graph) -> list[list[int]]:
    """For each destination, the sources that write what comes of its reading."""
    index = {name: i for i, name in enumerate(graph.sources)}
    return [[index[node] for node in graph.nodes_of(name) if node in index] for name in graph.destinations]
