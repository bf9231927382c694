"""A recurrent layer of a graph: its values by name, and a stack taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from onernn.ir.graph import Graph
from onernn.ir.node import NativeOp, Node
from onernn.ir.precision import OWN, LayerPrecision
from onernn.ir.records import dataclass
from onernn.ir.spec import Direction, RnnSpec
from onernn.ir.weights import RnnWeights, Weights, layers_of


@dataclass(frozen=True, eq=False)
class Recurrent:
    """An "Rnn" node whose inputs and outputs have names instead of positions; "" where absent.

    ``h``, ``c``: the initial states, (L, D, N, O). ``y``: the hidden state of every word;
    ``cells``: the cell state of every word. ``h_final``, ``c_final``: the states behind the last
    word of each sentence. ``precision``: the node's own, in place of the session's dtype.
    """

    spec: RnnSpec
    weights: Weights
    x: str
    y: str
    h: str = ""
    c: str = ""
    attention: str = ""
    h_final: str = ""
    c_final: str = ""
    cells: str = ""
    origin: tuple[NativeOp, ...] = ()
    precision: LayerPrecision = OWN

    @classmethod
    def of(cls, node: Node) -> Recurrent:
        """The view of an "Rnn" node."""
        if node.op != "Rnn":
            raise ValueError(f"{node.label}: expected an Rnn node")
        x, h, c, attention = (*node.inputs, "", "", "")[:4]
        y, h_final, c_final, cells = (*node.outputs, "", "", "")[:4]
        at = node.at
        given = at.spec, at.weights, x, y, h, c, attention, h_final, c_final, cells
        return cls(*given, origin=node.origin, precision=at.precision)

    def node(self) -> Node:
        """The node of these values; absent ones at the end have no position."""
        return Node(
            "Rnn",
            _cut(self.x, self.h, self.c, self.attention),
            _cut(self.y, self.h_final, self.c_final, self.cells),
            {"spec": self.spec, "weights": self.weights}
            | ({"precision": self.precision} if self.precision else {}),
            self.origin,
        )

    @property
    def layers(self) -> tuple[RnnWeights, ...]:
        """The weights (1, D, ...) of each layer, checked against the spec."""
        return layers_of(self.spec, self.weights)

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the initial states that the cell has, "" where one is absent."""
        return (self.h, self.c)[: len(self.spec.cell.states)]

    @property
    def finals(self) -> tuple[str, ...]:
        """The names of the final states that the cell has, "" where nobody asks for one."""
        return (self.h_final, self.c_final)[: len(self.spec.cell.states)]

    def with_states(self, states: tuple[str, ...], finals: tuple[str, ...] = ()) -> Recurrent:
        """The same layer between other initial and final states, in the order of the cell's."""
        (h, c), (h_final, c_final) = (*states, "", "")[:2], (*finals, "", "")[:2]
        return replace(self, h=h, c=c, h_final=h_final, c_final=c_final)


def with_precision(graph: Graph, of: Mapping[str, LayerPrecision]) -> Graph:
    """The graph whose recurrent nodes compute as told by their y; the others as the session says.

    So {} takes away every precision, that of layers inside loops and branches, too.
    """
    nodes = []
    for node in graph.nodes:
        inner = {k: v for k, v in node.attributes.items() if isinstance(v, Graph)}
        if inner:
            changed = {name: with_precision(body, of) for name, body in inner.items()}
            node = replace(node, attributes={**node.attributes, **changed})
        if node.op == "Rnn":
            rnn = Recurrent.of(node)
            node = replace(rnn, precision=of.get(rnn.y, OWN)).node()
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _cut(*names: str) -> tuple[str, ...]:
    """The names without those that are absent at the end."""
    while names and not names[-1]:
        names = names[:-1]
    return names


class Part(NamedTuple):
    """One layer in one direction of a stack, and its spec as a layer of its own."""

    layer: int
    direction: int
    """Its index on axis D."""
    spec: RnnSpec

    @property
    def side(self) -> Direction:
        """left2right or right2left."""
        return self.spec.direction

    @property
    def backwards(self) -> bool:
        return self.spec.direction == "right2left"


@lru_cache(256)  # for layers that are made anew with every step of training
def parts(spec: RnnSpec) -> tuple[Part, ...]:
    """Every layer and direction of a stack, layer by layer, from the lowest one."""
    both: tuple[Direction, ...] = ("left2right", "right2left")
    sides = both if spec.directions == 2 else (spec.direction,)
    found = []
    for layer in range(spec.layers):
        one = replace(spec, input_size=spec.reads(layer), layers=1, stacking="framework")
        for direction, side in enumerate(sides):
            found.append(Part(layer, direction, replace(one, direction=side)))
    return tuple(found)
