"""Layers that read each other where a file only moves words between them: for their weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onernn.core.graph import Graph, Node, Value
from onernn.core.operator import OPERATORS
from onernn.core.rnn import Recurrent

JOINED = "/y"
"""Behind the name of a value of the file: what layers make of all words, alone or side by side."""

Way = tuple[str, bool]
"""A layer's y, or another value, and whether its steps come in the opposite order."""


def joined_layers(model: Graph) -> Graph:
    """The model in which a layer reads what it reads without views, masks and reversed steps.

    A mask takes words out in front of each layer and puts them back behind it, and a backward layer
    may be a forward one over reversed steps. To weights that means nothing, so the layers are one
    stack. Who reads outputs of several layers side by side reads an input of the graph.
    """
    found = _Ways(model)
    nodes, sizes = list[Node](), list[Value]()
    for node in model.nodes:
        ways = found.of(node.outputs[0]) if node.op == "Concat" else ()
        if node.op == "Rnn":
            nodes += found.layer(node)
        elif len(ways) > 1 and all(name in found.turned and not turned for name, turned in ways):
            end, made = found.beside(ways, node.outputs[0])
            found.names[node.outputs[0]] = end
            nodes += made
        elif node.op == "Shape":  # who asks how many sentences there are reads no layer
            sizes.append(Value(node.outputs[0]))
        else:
            nodes.append(node)
    inputs = (*model.inputs, *map(Value, found.names), *sizes)
    gone = {value.name for value in inputs}
    outputs = [value for value in model.outputs if value.name not in gone]
    ends = tuple(map(Value, dict.fromkeys(found.names.values())))
    whole = replace(model, inputs=inputs, outputs=(*outputs, *ends), nodes=tuple(nodes)).pruned()
    read = {end for name, end in found.names.items() if whole.users(name) or model.is_output(name)}
    inner = {end.name for end in ends if whole.users(end.name)} - read  # layers alone read these
    left = tuple(value for value in whole.outputs if value.name not in inner)
    return replace(whole, outputs=left).pruned()


class _Ways:
    """What values are moved from. ``turned``: by a layer's y whether its steps are reversed."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.turned: dict[str, bool] = {}
        self.names: dict[str, str] = {}  # what stands for the file's values of several layers
        self._beside: dict[tuple[str, ...], str] = {}
        self._known: dict[str, tuple[Way, ...]] = {}

    def beside(self, ways: tuple[Way, ...], name: str) -> tuple[str, list[Node]]:
        """The one value of layers side by side, and what makes it where nothing did so far."""
        names = tuple(each for each, _ in ways)
        made = self._beside.setdefault(names, f"{name}{JOINED}")
        node = Node("Concat", names, (made,), {"axis": -1})
        return made, [node] if made == f"{name}{JOINED}" else []

    def layer(self, node: Node) -> list[Node]:
        """The node over what its input is moved from; with what puts several side by side."""
        rnn = Recurrent.of(node)
        ways = self.of(rnn.x)
        orders = {turned for _, turned in ways}
        layers = all(name in self.turned for name, _ in ways)
        several = len(ways) > 1 and not layers
        if len(orders) > 1 or several or rnn.spec.directions == 2 and True in orders:
            self.turned[rnn.y] = False
            return [node]
        self.turned[rnn.y] = True in orders
        x, made = (ways[0][0], list[Node]()) if len(ways) == 1 else self.beside(ways, rnn.x)
        spec = rnn.spec
        if self.turned[rnn.y]:
            backward = spec.direction == "right2left"
            spec = replace(spec, direction="left2right" if backward else "right2left")
        return [*made, replace(replace(rnn, spec=spec, x=x).node(), origin=node.origin)]

    def of(self, name: str) -> tuple[Way, ...]:
        """What a value is moved from, side by side; itself where it is computed."""
        waiting = [name]
        while waiting:
            top = waiting[-1]
            node = self.graph.producer(top)
            needed = [] if node is None or top in self.turned else self._sources(node)
            missing = [each for each in needed if each not in self._known]
            if missing:
                waiting += missing
                continue
            self._known[top] = self._moved(top, node, needed)
            waiting.pop()
        return self._known[name]

    def _sources(self, node: Node) -> list[str]:
        """The inputs whose words a node may move; none where it computes."""
        if node.op in ("Concat", "Where"):
            return [*node.inputs[node.op == "Where" :]]
        known = OPERATORS.get(node.op)
        return [node.inputs[0]] if known is not None and known.keeps else []

    def _moved(self, name: str, node: Node | None, sources: list[str]) -> tuple[Way, ...]:
        alone = ((name, self.turned.get(name, False)),)
        if node is None or not sources:
            return alone
        every = [self._known[each] for each in sources]
        layers = [ways for ways in every if all(each in self.turned for each, _ in ways)]
        if node.op == "Concat" and self._is_last(node, node.at.axis):
            return tuple(way for ways in every for way in ways)
        if len(sources) > 1:  # words, and what stands where there is none
            return layers[0] if len(layers) == 1 else alone
        if node.op == "Gather":  # puts words back, one of these for each step
            maker = self.graph.producer(sources[0])
            return every[0] if layers and maker is not None and maker.op == "Concat" else alone
        if node.op == "Transpose":
            return every[0] if node.at.perm and node.at.perm[-1] == len(node.at.perm) - 1 else alone
        if node.op == "Slice":
            steps = self.graph.constants.get(node.input(4))
            if steps is None or not np.array_equal(steps.reshape(-1), [-1]):
                return alone
        if node.op in ("Slice", "ReverseSequence"):
            return tuple((each, not turned) for each, turned in every[0])
        if OPERATORS[node.op].kind not in ("view", "sequences") and node.op != "Compress":
            return alone
        widths = [self.graph.types[each].counts[-1:] for each in (name, node.inputs[0])]
        return alone if all(widths) and widths[0] != widths[1] else every[0]

    def _is_last(self, node: Node, axis: int) -> bool:
        rank = self.graph.types[node.outputs[0]].rank
        return axis == -1 or rank is not None and axis == rank - 1
