"""In which layer does each operation of a RASP program go?

    found = placing.place(program)
    found.of[share].node                                      # "a1.h0"

1. The depth of an operation is the number of operations on the longest path to it.
2. Depth by depth, heads go into the next attention that comes after everything of lesser depth, maps into the next MLP,
   and a SelectorWidth into a head and the MLP of the same layer.
3. Operations of one depth share a layer: heads side by side in the order of the program, maps in one MLP.

Costs microseconds.
"""

import dataclasses
from collections.abc import Mapping

from sonde.bench import rasp


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where an operation is computed.

    Attributes:
        layer: The layer.
        head: Its head; None for one that is an MLP only.
        mlp: Whether the MLP is part of it.
    """

    layer: int
    head: int | None
    mlp: bool

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that compute it, from first to last."""
        heads = () if self.head is None else (f"a{self.layer}.h{self.head}",)
        return (*heads, f"m{self.layer}") if self.mlp else heads

    @property
    def node(self) -> str:
        """The node that writes its value."""
        return self.nodes[-1]


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The places of all operations, and how large a model they need.

    Attributes:
        of: The place of every variable that is computed.
        n_layers: Layers, at least one.
        n_heads: Heads in each, at least one.
    """

    of: Mapping[rasp.Variable, Place]
    n_layers: int
    n_heads: int

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that compute something, from input to output."""
        found = {(one.layer, node.startswith("m"), node) for one in self.of.values() for node in one.nodes}
        return tuple(node for _, _, node in sorted(found))

    def writer(self, variable: rasp.Variable) -> str:
        """The node of the graph that writes a variable."""
        from sonde.circuits import graph  # loads torch, which placing does not need

        return self.of[variable].node if variable in self.of else graph.INPUT


def place(program: rasp.Variable) -> Placement:
    """Puts every operation into a layer."""
    depths: dict[rasp.Variable, int] = {}
    for variable in rasp.variables(program):
        before = [depths[one] for one in rasp.inputs(variable)]
        depths[variable] = 1 + max(before) if before else 0
    places: dict[rasp.Variable, Place] = {}
    cursor, widest = 0, 1  # the next free half of a layer: attention is even, its MLP odd
    for depth in range(1, max(depths.values()) + 1):
        members = [variable for variable, at in depths.items() if at == depth]
        attention, mlp = cursor + cursor % 2, cursor + 1 - cursor % 2
        heads, used = 0, cursor
        for variable in members:
            if isinstance(variable, rasp.Aggregate | rasp.SelectorWidth):
                wide = isinstance(variable, rasp.SelectorWidth)
                places[variable] = Place(attention // 2, heads, wide)
                heads, used = heads + 1, max(used, attention + wide)
            else:
                places[variable] = Place(mlp // 2, None, True)
                used = max(used, mlp)
        cursor, widest = used + 1, max(widest, heads)
    return Placement(places, max((one.layer + 1 for one in places.values()), default=1), widest)
