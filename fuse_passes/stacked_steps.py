"""Joins the values of single steps to one value (T, ...)."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from onernn.fuse_passes.rewriting import Tape, rewrite
from onernn.fuse_passes.views import views_of
from onernn.ir.graph import Graph, Node
from onernn.ir.operator import OPERATORS
from onernn.ir.records import NamedTuple, dataclass

_END = -(2**62)
# The maximum number of consecutive operators, which limits the search in an unfused recurrence.
_DEEPEST = 16


class Stacked(NamedTuple):
    """The name of a value (T, ...) with the steps in their order, or backwards."""

    name: str
    backwards: bool = False


@dataclass
class Stacker(Tape):
    """Builds the nodes that join steps.

    Row t of the result of `stack` is the t-th value. If the steps are all parts of one value, the
    result is this value. If the same operator makes all steps, it is applied once, to the joined
    inputs. ``strict``: if true, `stack` returns None instead of copying steps.
    """

    strict: bool = False
    _known: dict[tuple[str, ...], Stacked | None] = field(default_factory=dict)

    def stack(self, names: tuple[str, ...], depth: int = 0) -> Stacked | None:
        """Returns the steps as one value; None if they would have to be copied and ``strict`` is
        true.

        ``depth``: the number of operators between these values and the steps. Values before an
        operator are never copied: operators broadcast, so their inputs may have different sizes.
        """
        if names not in self._known:
            result = self._pieces(names)
            if result is None and depth < _DEEPEST:
                result = self._lift(names, depth + 1)
            self._known[names] = result
        return self._known[names] or (None if depth else self._join(names))

    def forward(self, stacked: Stacked) -> str:
        """Returns the value with the steps in their order."""
        return self.reverse(stacked.name, 0) if stacked.backwards else stacked.name

    def reverse(self, name: str, axis: int) -> str:
        """Returns the value with the elements along an axis in reverse order."""
        return self.emit("Slice", name, [-1], [_END], [axis], [-1])

    def move(self, name: str, source: int, target: int) -> str:
        """Moves an axis of a value of any rank: from 0 to ``target``, or from ``source`` to 0."""
        axis = source or target
        if axis == 0:
            return name
        return self.emit("Einsum", name, equation=moving(source, target))

    def _pieces(self, names: tuple[str, ...]) -> Stacked | None:
        """Returns the value that was split into exactly these steps, in order or backwards."""
        result = [piece_of(self.graph, name) for name in names]
        first = result[0]
        if first is None or any(p is None or p[:2] != first[:2] for p in result):
            return None
        source, axis, _, count = first
        if not self.graph.is_dense(source):
            return None
        order = [p[2] for p in result if p is not None]
        if count != len(names) or sorted(order) != list(range(count)):
            return None
        if order != sorted(order) and order != sorted(order, reverse=True):
            return None
        return Stacked(self.move(source, axis, 0), order[0] > order[-1])

    def _lift(self, names: tuple[str, ...], depth: int) -> Stacked | None:
        """Returns all steps as the result of one operator, if the same operator makes each step."""
        nodes = [node for name in names if (node := self.graph.producer(name))]
        if len(nodes) < len(names) or len(set(map(id, nodes))) < len(nodes):
            return None
        first = nodes[0]
        if any(not _alike(node, first) for node in nodes):
            return None
        op, attributes = first.op, dict(first.attributes)
        columns = [*zip(*(node.inputs for node in nodes), strict=True)]
        if not all(map(all, columns)):
            return None
        ranks = {self.graph.types[name].rank for column in columns for name in column}
        if op == "Flatten" and attributes.get("axis", 1) == 1:
            inner = self.stack(columns[0], depth)
            if ranks == {2}:
                return inner
            if 0 in ranks:  # Flatten makes (1, 1) of a scalar
                return None
            return inner and Stacked(self.emit("Reshape", inner.name, [0, 0, -1]), inner.backwards)
        if op == "Concat" and attributes["axis"]:
            attributes["axis"] += attributes["axis"] > 0
        elif op not in OPERATORS or OPERATORS[op].kind != "elementwise":
            return None
        inputs = [
            (op != "Concat" and self._find_shared(column)) or self.stack(column, depth)
            for column in columns
        ]
        stacked = [each for each in inputs if isinstance(each, Stacked)]
        if None in inputs or not stacked or not self._is_aligned(columns, inputs):
            return None
        mixed = len({each.backwards for each in stacked}) > 1
        ready = [self.forward(e) if mixed else e.name for e in stacked]
        names = tuple(e if isinstance(e, str) else ready.pop(0) for e in inputs)
        return Stacked(self.emit(op, *names, **attributes), stacked[0].backwards and not mixed)

    def _find_shared(self, column: tuple[str, ...]) -> str | None:
        """Returns a constant vector or scalar that all steps have, and that broadcasts over the
        rows.
        """
        result = [self.graph.constants.get(name) for name in dict.fromkeys(column)]
        first = result[0]
        if first is None or first.ndim > 1:
            return None
        alike = all(a is not None and np.array_equal(a, first) for a in result)
        return column[0] if alike else None

    def _is_aligned(self, columns: list[tuple[str, ...]], inputs: list[Any]) -> bool:
        """Returns whether an operator broadcasts the joined inputs in the same way as the inputs of
        each step.

        This is true if all inputs have equal ranks; shared constants may have a lower rank.
        """
        graph = self.graph
        ranks = {
            graph.types[name].rank
            for column, result in zip(columns, inputs, strict=True)
            for name in column
            if isinstance(result, Stacked)
        }
        shared = [graph.constants[result].ndim for result in inputs if isinstance(result, str)]
        if len(inputs) - len(shared) == 1 and not any(shared):
            return True
        rank = ranks.pop()
        return not ranks and rank is not None and max(shared, default=0) <= rank

    def _join(self, names: tuple[str, ...]) -> Stacked | None:
        if self.strict:
            return None
        axis = self.constant([0])
        rows = [self.emit("Unsqueeze", name, axis) for name in names]
        return Stacked(self.emit("Concat", *rows, axis=0) if len(rows) > 1 else rows[0])


def _alike(node: Node, other: Node) -> bool:
    return (
        node.op == other.op
        and dict(node.attributes) == dict(other.attributes)
        and len(node.inputs) == len(other.inputs)
        and len(node.outputs) == 1
    )


def moving(source: int, target: int) -> str:
    """Returns the einsum equation that moves an axis from ``source`` to ``target``, one of which is
    0.
    """
    axis = source or target
    letters = "abcdefghijklmnopqrstuvwxyz"[: axis + 1 if axis > 0 else -axis]
    if axis < 0:
        sides = [f"...{letters}", f"{letters[0]}...{letters[1:]}"]
        return "->".join(sides if source else sides[::-1])
    moved = letters[-1] + letters[:-1] if source else letters[1:] + letters[0]
    return f"{letters}...->{moved}..."


def piece_of(graph: Graph, name: str) -> tuple[str, int, int, int] | None:
    """Returns (value, axis, index, number of parts) of a step that was split from a value and
    squeezed.
    """
    squeeze = graph.producer(name, "Squeeze")
    if squeeze is None or not squeeze.input(1):
        return None
    split = graph.producer(squeeze.inputs[0], "Split")
    if split is None or split.input(1):
        return None
    axis: int = split.attrs.axis
    if graph.number(squeeze.inputs[1]) != axis:
        return None
    return split.inputs[0], axis, split.outputs.index(squeeze.inputs[0]), len(split.outputs)


@rewrite("restacked_steps", "Concat")
def restack_steps(graph: Graph, node: Node) -> Graph | None:
    """Turns ``Concat(Unsqueeze(y[0]), Unsqueeze(y[1]), ...)`` into y with its time axis moved.

    Elementwise operators that are applied to each step are applied once to all steps.
    """
    axis, steps = node.attributes["axis"], []
    for name in node.inputs:
        unsqueeze = graph.producer(name, "Unsqueeze")
        axes = graph.constants.get(unsqueeze.inputs[1]) if unsqueeze else None
        if unsqueeze is None or axes is None or axes.tolist() != [axis]:
            return None
        steps.append(unsqueeze.inputs[0])
    stacker = Stacker(graph, node.outputs[0], node.origin, strict=True)
    result = stacker.stack(tuple(steps))
    if result is None:
        return None
    name = stacker.move(result.name, 0, axis)
    if result.backwards:
        name = stacker.reverse(name, axis)
    stacker.emit("Identity", name, output=node.outputs[0])
    return stacker.replace(node).bypass(stacker.nodes[-1:])


@rewrite("layer_sizes", "Shape")
def ask_inputs(graph: Graph, node: Node) -> Graph | None:
    """Computes ``Shape(Rnn(x))`` from Shape(x) and the layer's width, without running the layer.

    Keras computes the first output before a masked loop only for the shape of its zeros.
    """
    if node.attrs.start or node.attrs.end is not None:
        return None
    rnn = graph.producer(views_of(graph, node.inputs[0])[0], "Rnn")
    if rnn is None or not graph.is_dense(rnn.inputs[0]):
        return None
    asked, known = graph.types[node.inputs[0]].shape, graph.types[rnn.inputs[0]].shape
    if asked is None or known is None:
        return None
    to = Tape(graph, node.outputs[0], node.origin)
    of_x, parts = to.emit("Shape", rnn.inputs[0]), []
    for size in asked:
        if size is not None and size.number is not None:
            parts.append(to.constant([size.number]))
        elif size is not None and size in known:
            parts.append(to.emit("Gather", of_x, [known.index(size) - len(known)], axis=0))
        else:
            return None
    to.emit("Concat", *parts, output=node.outputs[0], axis=0)
    return to.replace(node)
