"""Values of single steps, seen as rows of one value along time."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from onernn.fuse_passes.rewriting import Tape, exchanged, fresh
from onernn.fuse_passes.views import views_behind
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.operator import OPERATORS
from onernn.ir.records import dataclass

_END = -(2**62)
_DEEPEST = 16  # operators behind one another; a recurrence that is not fused has no end


@dataclass(frozen=True)
class Stacked:
    """The name of a value (T, ...); its rows are the steps, or the steps backwards."""

    name: str
    backwards: bool = False


@dataclass
class Stacker(Tape):
    """Builds the nodes that put steps together.

    Row t of `stack` is the t-th of the names. Steps that were cut from one value are that value,
    and operators that all steps go through are moved behind it; ``strict`` refuses to copy.
    """

    strict: bool = False
    _known: dict[tuple[str, ...], Stacked | None] = field(default_factory=dict)

    def stack(self, names: tuple[str, ...], depth: int = 0) -> Stacked | None:
        """The steps as one value; None where ``strict`` and there is nothing to move.

        What stands ``depth`` operators before the steps is never copied: an operator broadcasts,
        its inputs may be of different sizes.
        """
        if names not in self._known:
            result = self._pieces(names)
            if result is None and depth < _DEEPEST:
                result = self._lifted(names, depth + 1)
            self._known[names] = result
        return self._known[names] or (None if depth else self._joined(names))

    def forwards(self, stacked: Stacked) -> str:
        """The value whose rows are the steps in their order."""
        return self.reversed(stacked.name, 0) if stacked.backwards else stacked.name

    def reversed(self, name: str, axis: int) -> str:
        cuts = [self.constant([number]) for number in (-1, _END, axis, -1)]
        return self.emit("Slice", (name, *cuts))

    def moved(self, name: str, source: int, target: int) -> str:
        """An axis moved from 0 to ``target``, or from ``source`` to 0, of a value of any rank."""
        axis = source or target
        if axis == 0:
            return name
        return self.emit("Einsum", (name,), equation=moving(source, target))

    def one(self, dtype: np.dtype[Any]) -> str:
        name = fresh(self.graph, f"{self.stem}/one")
        self.constants[name] = np.ones((), dtype)
        return name

    def _pieces(self, names: tuple[str, ...]) -> Stacked | None:
        """All the pieces of one value, in order or backwards."""
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
        return Stacked(self.moved(source, axis, 0), order[0] > order[-1])

    def _lifted(self, names: tuple[str, ...], depth: int) -> Stacked | None:
        """The operator that each step comes out of, over all steps at once."""
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
            if 0 in ranks:  # a number becomes (1, 1): it has no axis to keep
                return None
            shape = (self.constant([0, 0, -1]),)
            return inner and Stacked(self.emit("Reshape", (inner.name, *shape)), inner.backwards)
        if op == "Concat" and attributes["axis"]:
            attributes["axis"] += attributes["axis"] > 0
        elif op not in OPERATORS or OPERATORS[op].kind != "elementwise":
            return None
        inputs = [
            (op != "Concat" and self._shared(column)) or self.stack(column, depth)
            for column in columns
        ]
        stacked = [each for each in inputs if isinstance(each, Stacked)]
        if None in inputs or not stacked or not self._aligned(columns, inputs):
            return None
        mixed = len({each.backwards for each in stacked}) > 1
        ready = [self.forwards(e) if mixed else e.name for e in stacked]
        names = tuple(e if isinstance(e, str) else ready.pop(0) for e in inputs)
        return Stacked(self.emit(op, names, **attributes), stacked[0].backwards and not mixed)

    def _shared(self, column: tuple[str, ...]) -> str | None:
        """A vector or number that all steps share: it stands beside rows of any number."""
        result = [self.graph.constants.get(name) for name in dict.fromkeys(column)]
        first = result[0]
        if first is None or first.ndim > 1:
            return None
        alike = all(a is not None and np.array_equal(a, first) for a in result)
        return column[0] if alike else None

    def _aligned(self, columns: list[tuple[str, ...]], inputs: list[Any]) -> bool:
        """Whether axes meet as step by step: all steps have as many, shared ones no more."""
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

    def _joined(self, names: tuple[str, ...]) -> Stacked | None:
        if self.strict:
            return None
        axis = self.constant([0])
        rows = tuple(self.emit("Unsqueeze", (name, axis)) for name in names)
        return Stacked(self.emit("Concat", rows, axis=0) if len(rows) > 1 else rows[0])


def _alike(node: Node, other: Node) -> bool:
    return (
        node.op == other.op
        and dict(node.attributes) == dict(other.attributes)
        and len(node.inputs) == len(other.inputs)
        and len(node.outputs) == 1
    )


def moving(source: int, target: int) -> str:
    """The einsum that moves an axis from ``source`` to ``target``, one of which is 0."""
    axis = source or target
    letters = "abcdefghijklmnopqrstuvwxyz"[: axis + 1 if axis > 0 else -axis]
    if axis < 0:
        sides = [f"...{letters}", f"{letters[0]}...{letters[1:]}"]
        return "->".join(sides if source else sides[::-1])
    moved = letters[-1] + letters[:-1] if source else letters[1:] + letters[0]
    return f"{letters}...->{moved}..."


def piece_of(graph: Graph, name: str) -> tuple[str, int, int, int] | None:
    """(value, axis, which piece, of how many) of a step that was cut from a value, squeezed."""
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


# Steps that were cut from one value and put together again are that value.


@dataclass(frozen=True, eq=False)
class Restacked:
    concat: Node
    axis: int
    backwards: bool
    name: str
    stacker: Stacker


class RestackSteps:
    """``Concat(Unsqueeze(y[0]), Unsqueeze(y[1]), ...)`` -> y with its time axis moved.

    Element-wise operators between, the same for all steps, run once over all of them.
    """

    name = "restacked_steps"

    def match(self, graph: Graph, node: Node) -> Restacked | Refusal | None:
        if node.op != "Concat":
            return None
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
        return Restacked(node, axis, result.backwards, result.name, stacker)

    def rewrite(self, graph: Graph, match: Restacked) -> Graph:
        stacker = match.stacker
        moved = stacker.moved(match.name, 0, match.axis)
        if match.backwards:
            moved = stacker.reversed(moved, match.axis)
        last = Node("Identity", (moved,), match.concat.outputs, {}, match.concat.origin)
        new = (*stacker.nodes, last)
        return exchanged(graph, (match.concat,), new, stacker.constants).bypass((last,))


# Sizes of a layer's output follow from its input: the layer need not run for them. Keras makes
# zeros like a first output before a masked loop; exporters write that step out.


@dataclass(frozen=True, eq=False)
class LayerSizes:
    """``sizes``: numbers, or names of axes of ``x``, which are counted from -1 downwards."""

    shape: Node
    x: str
    sizes: tuple[int, ...]


class AskInputs:
    """``Shape(Rnn(x))`` -> what Shape(x) and the layer's width say."""

    name = "layer_sizes"

    def match(self, graph: Graph, node: Node) -> LayerSizes | None:
        if node.op != "Shape" or node.attrs.start or node.attrs.end is not None:
            return None
        rnn = graph.producer(views_behind(graph, node.inputs[0])[0], "Rnn")
        if rnn is None or not graph.is_dense(rnn.inputs[0]):
            return None
        asked, known = graph.types[node.inputs[0]].shape, graph.types[rnn.inputs[0]].shape
        if asked is None or known is None:
            return None
        sizes = []
        for size in asked:
            if size is None or (size.number is None and size not in known):
                return None
            sizes.append(known.index(size) - len(known) if size.number is None else size.number)
        return LayerSizes(node, rnn.inputs[0], tuple(sizes))

    def rewrite(self, graph: Graph, match: LayerSizes) -> Graph:
        node = match.shape
        to = Stacker(graph, node.outputs[0], node.origin)
        of_x = to.emit("Shape", (match.x,))
        parts = [
            to.emit("Gather", (of_x, to.constant([size])), axis=0)
            if size < 0
            else to.constant([size])
            for size in match.sizes
        ]
        result = Node("Concat", tuple(parts), node.outputs, {"axis": 0}, node.origin)
        return graph.splice((node,), (*to.nodes, result), to.constants)
