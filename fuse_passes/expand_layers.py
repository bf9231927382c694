"""Splits recurrent stacks into one layer node per layer, or one per layer and direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby

from onernn.fuse_passes.rewriting import fresh
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.rnn import Part, Recurrent, parts

_SIDES = {"left2right": "forward", "right2left": "backward"}


def part_name(rnn: Recurrent, part: Part) -> str:
    """Returns the name of the output of one layer and direction after `ExpandLayers`."""
    if rnn.spec.directions == 2:
        return f"{rnn.y}@{part.layer}.{_SIDES[part.side]}"
    return _name(rnn, part.layer)


def _name(rnn: Recurrent, layer: int) -> str:
    return rnn.y if layer == rnn.spec.layers - 1 else f"{rnn.y}@{layer}"


class ExpandLayers:
    """A pass that turns an ``Rnn`` of several layers into one ``Rnn`` per layer, or per direction.

    It is not in `PASSES`. Code that writes or compares models uses it to get single layers. Concat
    or Add joins the directions; Split and Concat divide and join the states. ``directions``:
    returns for a node whether its directions become separate nodes. If a stack does not join its
    directions between layers, they become separate nodes in any case.
    """

    name, ops = "expand_layers", frozenset({"Rnn"})

    def __init__(self, *, directions: Callable[[Recurrent], bool] = lambda _: True) -> None:
        self.directions = directions

    def __call__(self, graph: Graph, node: Node) -> Graph | Refusal | None:
        """Rewrites a node; `Pass` describes the result."""
        rnn = Recurrent.of(node)
        if rnn.spec.layers == 1 and not self._splits(rnn):
            return None
        if rnn.cells:
            return Refusal("the cell state of every step is read", rnn.y)
        spec, last = rnn.spec, rnn.spec.layers - 1
        count = spec.directions if self._splits(rnn) else 1
        nodes: list[Node] = []
        begin = [
            [
                _cut(graph, nodes, row, 1, count, f"{rnn.y}.{kind}0@{layer}")
                for layer, row in enumerate(
                    _cut(graph, nodes, state, 0, spec.layers, f"{rnn.y}.{kind}0")
                )
            ]
            for kind, state in zip("hc", rnn.states, strict=False)
        ]
        ends: list[list[tuple[str, ...]]] = []
        ways = [rnn.x] * count
        for layer, result in enumerate(self._layers(rnn)):
            for side, one in enumerate(result):
                states = tuple(rows[layer][side] for rows in begin)
                finals = tuple(f"{one.y}.{kind}" for kind in spec.cell.states)
                result[side] = replace(one, x=ways[side]).with_states(states, finals)
                nodes.append(result[side].node())
            ends.append([one.finals for one in result])
            ways = [one.y for one in result]
            if count == 2 and spec.joins(layer):
                joined = _name(rnn, layer)
                if spec.direction == "bidirectional_sum":
                    nodes.append(Node("Add", tuple(ways), (joined,)))
                else:
                    _join(nodes, ways, -1, joined)
                ways = [joined] * count
        for index, name in enumerate(rnn.finals):
            if name:
                rows = [
                    _join(nodes, [e[index] for e in row], 1, f"{name}@{layer}" if last else name)
                    for layer, row in enumerate(ends)
                ]
                _join(nodes, rows, 0, name)
        return graph.splice((node,), nodes)

    def _splits(self, rnn: Recurrent) -> bool:
        return rnn.spec.directions == 2 and (self.directions(rnn) or not rnn.spec.joins(0))

    def _layers(self, rnn: Recurrent) -> Iterator[list[Recurrent]]:
        """Yields the nodes of each layer, which still have the input and the states of the
        stack.
        """
        spec, layers = rnn.spec, rnn.layers
        apart = self._splits(rnn) or spec.directions == 1
        for layer, sides in groupby(parts(spec), key=lambda part: part.layer):
            yield [
                replace(
                    rnn,
                    spec=part.spec if apart else replace(part.spec, direction=spec.direction),
                    weights=layers[layer].part(0, part.direction) if apart else layers[layer],
                    precision=rnn.precision.of(
                        layer * spec.directions + part.direction, 1 if apart else spec.directions
                    ),
                    y=part_name(rnn, part) if apart else _name(rnn, layer),
                )
                for part in sides
                if apart or part.direction == 0
            ]


def _cut(graph: Graph, nodes: list[Node], name: str, axis: int, count: int, stem: str) -> list[str]:
    if not name or count == 1:
        return [name] * count
    result = [fresh(graph, f"{stem}@{index}") for index in range(count)]
    nodes.append(Node("Split", (name,), tuple(result), {"axis": axis}))
    return result


def _join(nodes: list[Node], names: list[str], axis: int, into: str) -> str:
    if len(names) == 1:
        return names[0]
    nodes.append(Node("Concat", tuple(names), (into,), {"axis": axis}))
    return into
