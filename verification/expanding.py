"""Recurrent stacks taken apart: one node for each layer and direction, to the same numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from onernn.core.arrays import Array
from onernn.core.graph import Graph, Node, native_types
from onernn.core.weights import layers_of


@dataclass(frozen=True)
class Part:
    """Which layer and direction of which recurrent node something is, as a reader counts them."""

    node: str
    layer: int
    direction: str
    layers: int = 1

    def __str__(self) -> str:
        return f"{self._place}, {self.direction}"

    @property
    def _place(self) -> str:
        layer = f", layer {self.layer + 1} of {self.layers}" if self.layers > 1 else ""
        return self.node + layer


def told(parts: Iterable[Part]) -> str:
    """Several parts in few words: directions of one layer together."""
    sides: dict[str, list[str]] = {}
    for part in parts:
        sides.setdefault(part._place, []).append(part.direction)
    both = {place: "both directions" if len(s) == 2 else s[0] for place, s in sides.items()}
    return " and ".join(f"{place}, {side}" for place, side in both.items())


def _called(node: Node) -> str:
    """A recurrent node by the operators of the file, as "GRU (operator 3)"; else by its label."""
    if not node.origin:
        return node.label
    places = sorted({op.position for op in node.origin})
    some = ", ".join(map(str, places[:6])) + (", ..." if len(places) > 6 else "")
    return f"{native_types(node.origin)} (operator{'s' * (len(places) > 1)} {some})"


def expand(graph: Graph) -> tuple[Graph, dict[str, Part]]:
    """A graph in which every Rnn is one layer in one direction; and what part each is, by its y.

    Pairs are joined by Concat or Add, states cut by Slice and joined by Concat.
    """
    parts: dict[str, Part] = {}
    for node in graph.nodes:
        if node.op == "Rnn":
            nodes, constants = _taken_apart(node, parts)
            graph = _replaced(graph, node, nodes, constants)
    return graph, parts


def _replaced(graph: Graph, old: Node, new: list[Node], constants: dict[str, Array]) -> Graph:
    at = next(k for k, node in enumerate(graph.nodes) if node is old)
    nodes = (*graph.nodes[:at], *new, *graph.nodes[at + 1 :])
    return replace(graph, nodes=nodes, constants={**graph.constants, **constants})


def _taken_apart(node: Node, parts: dict[str, Part]) -> tuple[list[Node], dict[str, Array]]:
    spec, whole = node.attributes["spec"], node.outputs[0]
    layers = layers_of(spec, node.attributes["weights"])
    sides = ("forward", "backward") if spec.directions == 2 else (_side(spec.direction),)
    if spec.layers * spec.directions == 1:
        parts[whole] = Part(_called(node), 0, sides[0])
        return [replace(node, attributes={"spec": spec, "weights": layers[0]})], {}
    nodes: list[Node] = []
    constants: dict[str, Array] = {}
    ends: dict[tuple[int, int], tuple[str, ...]] = {}
    x, *states = (*node.inputs[:3], "", "")[:3]
    attention = node.input(3)
    ways = [x] * len(sides)
    handed_on = spec.output_size if spec.stacking == "framework" else spec.recurrent_size
    for layer in range(spec.layers):
        for d, side in enumerate(sides):
            stem = f"{whole}@{layer}.{side}"
            begin = []
            for name, state in zip("hc", states, strict=False):
                begin.append(f"{stem}.{name}0" if state else "")
                if state:
                    cut = [f"{stem}.{name}.{end}" for end in ("start", "end", "axes")]
                    values = [[layer, d], [layer + 1, d + 1], [0, 1]]
                    constants |= {n: np.array(v) for n, v in zip(cut, values, strict=True)}
                    nodes.append(Node("Slice", (state, *cut), (begin[-1],)))
            ends[layer, d] = tuple(f"{stem}.{name}" for name in spec.cell.states)
            given = (ways[d], *begin, attention)
            while not given[-1]:
                given = given[:-1]
            width = spec.input_size if layer == 0 else handed_on
            one = spec.one_layer(
                width,
                spec.direction if len(sides) == 1 else ("left2right", "right2left")[d],
            )
            attributes = {
                "spec": replace(one, stacking="framework"),
                "weights": layers[layer].part(0, d),
            }
            nodes.append(Node("Rnn", given, (stem, *ends[layer, d]), attributes, node.origin))
            parts[stem] = Part(_called(node), layer, side, spec.layers)
        made = [f"{whole}@{layer}.{side}" for side in sides]
        last = layer == spec.layers - 1
        if spec.stacking == "onednn" and not last:
            ways = made
            continue
        joined = whole if last else f"{whole}@{layer}"
        nodes.append(_joined(made, joined, -1, summed=spec.direction == "bidirectional_sum"))
        ways = [joined] * len(sides)
    for k, name in enumerate(spec.cell.states):
        final = node.outputs[1 + k] if len(node.outputs) > 1 + k else ""
        if final:
            rows = [f"{final}@{layer}.{name}" for layer in range(spec.layers)]
            for layer, row in enumerate(rows):
                both = [ends[layer, d][k] for d in range(len(sides))]
                nodes.append(_joined(both, row, 1))
            nodes.append(_joined(rows, final, 0))
    return nodes, constants


def _side(direction: str) -> str:
    return "backward" if direction == "right2left" else "forward"


def _joined(names: list[str], into: str, axis: int, *, summed: bool = False) -> Node:
    if len(names) == 1:
        return Node("Identity", tuple(names), (into,))
    return Node(
        "Add" if summed else "Concat", tuple(names), (into,), {} if summed else {"axis": axis}
    )
