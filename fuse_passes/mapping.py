"""A graph over one more axis: what it computes of one row, computed of all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from onernn.fuse_passes.pipeline import fuse
from onernn.fuse_passes.rewriting import fresh
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, UnsupportedError
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.operator import OPERATORS
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent

Part = int | str
"""Of a shape: a size, or the name of a vector of sizes."""


@dataclass
class Mapper:
    """Builds the nodes of a graph whose values in ``mapped`` have a new axis 0, that of rows.

    A value keeps its name. Values that no row reaches are computed once. ``add`` raises
    `UnsupportedError` naming an operator that no rule maps, or a rank that nobody knows.
    """

    graph: Graph
    mapped: set[str]
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    _count: str = ""

    @classmethod
    def of(cls, graph: Graph, inputs: Iterable[Value]) -> Mapper:
        """Where these inputs have rows. Raises `UnsupportedError` for one of unknown axes."""
        names = set[str]()
        for value in inputs:
            if value.shape is None or value.lod_depth:
                why = "expected dense inputs of a known number of axes"
                raise UnsupportedError(f"{graph.name}:", (Refusal(why, value.name),))
            names.add(value.name)
        return cls(graph, names)

    def model(self) -> Graph:
        """All rows at once, when all nodes are there."""

        def wide(value: Value) -> Value:
            if value.name not in self.mapped or value.shape is None:
                return value
            return replace(value, shape=(None, *value.shape))

        made = replace(
            self.graph,
            inputs=tuple(map(wide, self.graph.inputs)),
            outputs=tuple(map(wide, self.graph.outputs)),
            nodes=tuple(self.nodes),
            constants={**self.graph.constants, **self.constants},
        )
        return fuse(made.pruned()).model

    def add(self, node: Node) -> None:
        """The node for all rows."""
        if self.mapped.isdisjoint(node.inputs):
            self.nodes.append(node)
            return
        rule = _rule(node.op)
        if rule is None:
            raise self.refused(node, f"{node.op} is not computed for many rows at once")
        rule(self, node)

    def refused(self, node: Node, why: str) -> UnsupportedError:
        return UnsupportedError(f"{self.graph.name}:", (Refusal(why, node.label),))

    def rank(self, node: Node, name: str) -> int:
        """The number of axes of one row."""
        rank = self.graph.types[name].rank
        if rank is None:
            raise self.refused(node, f"nobody knows how many axes {name!r} has")
        return rank

    def known(self, node: Node, name: str) -> list[int]:
        """The integers of a value that every row has alike."""
        numbers = self.graph.types[name].numbers
        if name in self.mapped or numbers is None:
            raise self.refused(node, f"{name!r} is not known before a run")
        return [int(number) for number in np.ravel(numbers)]

    def emit(self, op: str, inputs: Sequence[str], stem: str, **attributes: Any) -> str:
        """A new value."""
        name = self.name(stem)
        self.nodes.append(Node(op, tuple(inputs), (name,), attributes))
        return name

    def put(self, node: Node, inputs: Iterable[str], **attributes: Any) -> None:
        """The node of other inputs and attributes, all of its outputs mapped."""
        made = Node(
            node.op,
            tuple(inputs),
            node.outputs,
            {**node.attributes, **attributes},
            node.origin,
        )
        self.nodes.append(made)
        self.mapped.update(filter(None, node.outputs))

    def end(self, node: Node, op: str, inputs: Sequence[str], **attributes: Any) -> None:
        """The node's first output, made by another operator."""
        self.nodes.append(Node(op, tuple(inputs), node.outputs[:1], attributes, node.origin))
        self.mapped.add(node.outputs[0])

    def name(self, stem: str) -> str:
        at = len(self.nodes) + len(self.constants)
        return fresh(self.graph, f"{stem}/rows{at}")

    def ints(self, numbers: Any, stem: str) -> str:
        name = self.name(stem)
        self.constants[name] = np.array(numbers, np.int64)
        return name

    def widened(self, node: Node, name: str, rank: int) -> str:
        """A mapped value whose rows have ones in front, so that they have ``rank`` axes."""
        missing = rank - self.rank(node, name)
        if name not in self.mapped or missing <= 0:
            return name
        axes = self.ints(range(1, 1 + missing), name)
        return self.emit("Unsqueeze", (name, axes), name)

    def sizes(self, name: str, start: int, end: int | None) -> str:
        ends = {} if end is None else {"end": end}
        return self.emit("Shape", (name,), name, start=start, **ends)

    def shape(self, parts: Sequence[Part], stem: str) -> str:
        """The vector of sizes and vectors one behind the other."""
        if all(isinstance(part, int) for part in parts):
            return self.ints(parts, stem)
        vectors = [part if isinstance(part, str) else self.ints([part], stem) for part in parts]
        return vectors[0] if len(vectors) == 1 else self.emit("Concat", vectors, stem, axis=0)

    def reshaped(self, name: str, parts: Sequence[Part]) -> str:
        return self.emit("Reshape", (name, self.shape(parts, name)), name)

    def merged(self, name: str, axis: int = 0) -> str:
        """The value with two axes from ``axis`` on made one."""
        front: list[Part] = [self.sizes(name, 0, axis)] if axis else []
        return self.reshaped(name, [*front, -1, self.sizes(name, axis + 2, None)])

    def rows(self, node: Node, name: str) -> str:
        """A value that has as many rows as there are, all alike where it is not mapped."""
        if name in self.mapped:
            return name
        wide = self.emit("Unsqueeze", (name, self.ints([0], name)), name)
        ones = [1] * self.rank(node, name)
        return self.emit("Expand", (wide, self.shape([self.count, *ones], name)), name)

    @property
    def count(self) -> str:
        """The number of rows, as a vector of one."""
        if not self._count:
            first = next(v.name for v in self.graph.inputs if v.name in self.mapped)
            self._count = self.sizes(first, 0, 1)
        return self._count


Rule = Callable[[Mapper, Node], None]


def _shifted(axis: int) -> int:
    """An axis of a row as one of all rows; those counted from the end stay."""
    return axis if axis < 0 else axis + 1


def _elementwise(m: Mapper, node: Node) -> None:
    rank = max(m.rank(node, name) for name in node.inputs if name)
    m.put(node, (m.widened(node, name, rank) if name else "" for name in node.inputs))


def _cast_like(m: Mapper, node: Node) -> None:
    """Of its second input the dtype counts, which all rows have alike."""
    if node.inputs[0] in m.mapped:
        m.put(node, node.inputs)
    else:
        m.nodes.append(node)


def _along(m: Mapper, node: Node) -> None:
    """Operators that tell an axis by an attribute; what stands beside the first input is alike."""
    if not m.mapped.isdisjoint(node.inputs[1:]):
        raise m.refused(node, "its parameters differ from row to row")
    m.put(node, node.inputs, axis=_shifted(node.at.axis))


def _joined(m: Mapper, node: Node) -> None:
    inputs = [m.rows(node, name) for name in node.inputs]
    m.put(node, inputs, axis=_shifted(node.at.axis))


def _over_axes(place: int) -> Rule:
    """Operators that tell axes by the input at ``place``."""

    def rule(m: Mapper, node: Node) -> None:
        x, rank = node.inputs[0], m.rank(node, node.inputs[0])
        given = (*node.inputs, "", "", "", "")[: max(len(node.inputs), place + 1)]
        if x not in m.mapped or not m.mapped.isdisjoint(given[1:]):
            raise m.refused(node, "its parameters differ from row to row")
        reduces = node.op.startswith("Reduce")
        if given[place] and not (reduces and m.graph.types[given[place]].counts == (0,)):
            axes = m.known(node, given[place])
        elif node.op == "Slice":
            axes = list(range(len(m.known(node, given[1]))))
        elif node.op == "Squeeze":
            sizes = m.graph.types[x].counts
            if None in sizes:
                raise m.refused(node, "which axes are of size 1 is not known before a run")
            axes = [axis for axis, size in enumerate(sizes) if size == 1]
        else:
            axes = [] if node.at.noop_with_empty_axes else list(range(rank))
        if reduces and not (axes or node.at.noop_with_empty_axes):  # none would be all of them
            raise m.refused(node, "it reduces a value without axes")
        numbers: Any = [_shifted(axis) for axis in axes]
        if node.op == "CumSum":
            (numbers,) = numbers
        told = m.ints(numbers, x)
        m.put(node, (*given[:place], told, *given[place + 1 :]))

    return rule


def _pad(m: Mapper, node: Node) -> None:
    x, pads, value, axes = (*node.inputs, "", "")[:4]
    if axes:
        _over_axes(3)(m, node)
        return
    if x not in m.mapped or not m.mapped.isdisjoint((pads, value)):
        raise m.refused(node, "its parameters differ from row to row")
    zero = m.ints([0], x)
    half = m.rank(node, x)
    cuts = [(zero, m.ints([a], x), m.ints([b], x)) for a, b in ((0, half), (half, 2 * half))]
    begin, end = (m.emit("Slice", (pads, a, b), x) for _, a, b in cuts)
    m.put(node, (x, m.emit("Concat", (zero, begin, zero, end), x, axis=0), value))


def _transpose(m: Mapper, node: Node) -> None:
    perm = node.at.perm or range(m.rank(node, node.inputs[0]))[::-1]
    m.put(node, node.inputs, perm=(0, *(axis + 1 for axis in perm)))


def _reshape(m: Mapper, node: Node) -> None:
    x, shape = node.inputs
    if shape in m.mapped:
        raise m.refused(node, "its shape differs from row to row")
    m.put(node, (x, m.shape([m.count, shape], x)))  # a 0 takes the same axis: both moved by one


def _flatten(m: Mapper, node: Node) -> None:
    x = node.inputs[0]
    rank = m.rank(node, x)
    axis = node.at.axis + rank * (node.at.axis < 0)
    front = m.emit("ReduceProd", (m.sizes(x, 1, 1 + axis),), x) if axis else m.ints([1], x)
    back = m.emit("ReduceProd", (m.sizes(x, 1 + axis, None),), x) if axis < rank else 1
    m.end(node, "Reshape", (x, m.shape([m.count, front, back], x)))


def _expand(m: Mapper, node: Node) -> None:
    x, shape = node.inputs
    wanted = m.graph.types[shape].counts
    if shape in m.mapped or len(wanted) != 1 or wanted[0] is None:
        raise m.refused(node, "its shape is not known before a run")
    wide = m.widened(node, x, wanted[0])
    ones = [1] * (m.rank(node, x) - wanted[0])
    m.put(node, (wide, m.shape([1, *ones, shape], x)))


def _tile(m: Mapper, node: Node) -> None:
    x, repeats = node.inputs
    if repeats in m.mapped:
        raise m.refused(node, "its parameters differ from row to row")
    m.put(node, (x, m.shape([1, repeats], x)))


def _shape(m: Mapper, node: Node) -> None:
    """Rows are alike in their shape, so it is no value of a row."""

    def place(at: int) -> int:
        return 1 + (at if at >= 0 else max(0, at + m.rank(node, node.inputs[0])))

    start, end = place(node.at.start), node.at.end
    ends = {} if end is None else {"end": place(end)}
    m.nodes.append(Node("Shape", node.inputs, node.outputs, {"start": start, **ends}, node.origin))


def _gather(m: Mapper, node: Node) -> None:
    x, indices = node.inputs
    if x in m.mapped and indices in m.mapped:
        raise m.refused(node, "rows are looked up in themselves")
    if x in m.mapped:
        m.put(node, node.inputs, axis=_shifted(node.at.axis))
        return
    axis = node.at.axis % m.rank(node, x)
    if axis == 0:
        m.put(node, node.inputs)
        return
    found = m.emit("Gather", node.inputs, x, **node.attributes)
    rank = m.rank(node, x) + m.rank(node, indices)
    m.end(node, "Transpose", (found,), perm=(axis, *(at for at in range(rank) if at != axis)))


def _product(m: Mapper, node: Node) -> None:
    a, b, *others = node.inputs
    ranks = [m.rank(node, name) for name in (a, b)]
    if not m.mapped.isdisjoint(others) or (b in m.mapped and min(ranks) < 2):
        raise m.refused(node, "it multiplies vectors of rows")
    if ranks[0] == 1 and ranks[1] > 2:
        raise m.refused(node, "it multiplies vectors of rows")
    wide = max(ranks)
    if ranks[0] == 1:
        wide = 1  # (F, K) @ (K, M)
    m.put(node, (m.widened(node, a, wide), m.widened(node, b, wide), *others))


def _batches(m: Mapper, node: Node) -> None:
    """Operators whose axis 0 is a batch, which rows join."""
    x, *others = node.inputs
    if x not in m.mapped or not m.mapped.isdisjoint(others):
        raise m.refused(node, "its parameters differ from row to row")
    if node.op == "Gemm":
        c = others[1] if len(others) > 1 else ""
        if node.at.transA or (c and m.rank(node, c) > 1 and m.graph.types[c].counts[0] != 1):
            raise m.refused(node, "what it adds, or multiplies, belongs to a place in the batch")
    made = m.emit(node.op, (m.merged(x), *others), x, **node.attributes)
    parts = [m.sizes(x, 0, 2), m.sizes(made, 1, None)]
    m.end(node, "Reshape", (made, m.shape(parts, x)))


def _layer(m: Mapper, node: Node) -> None:
    """A recurrent layer: rows join its batch."""
    rnn = Recurrent.of(node)
    if m.graph.types[rnn.x].lod != ():
        raise m.refused(node, "its sequences are ragged")

    def within(name: str, axes: int) -> str:
        """(F, ``axes`` others, N, ...) as (others, F * N, ...)."""
        if not name:
            return ""
        all_rows = m.rows(node, name)
        rank = m.rank(node, name) + 1
        perm = (*range(1, 1 + axes), 0, *range(1 + axes, rank))
        return m.merged(m.emit("Transpose", (all_rows,), name, perm=perm), axes)

    states = [within(name, 2) for name in (rnn.h, rnn.c)]
    inputs = [within(rnn.x, 1), *states, within(rnn.attention, 1)]
    while not inputs[-1]:
        inputs.pop()
    outputs = tuple(m.name(name) if name else "" for name in node.outputs)
    m.nodes.append(Node("Rnn", tuple(inputs), outputs, node.attributes, node.origin))
    batch = m.sizes(m.rows(node, rnn.x), 2, 3)
    for at, (made, name) in enumerate(zip(outputs, node.outputs, strict=True)):
        if not name:
            continue
        axes = 2 if 0 < at < 1 + len(rnn.spec.cell.states) else 1
        parts: list[Part] = [m.sizes(made, 0, axes), m.count, batch, m.sizes(made, axes + 1, None)]
        apart = m.reshaped(made, parts)
        perm = (axes, *range(axes), *range(1 + axes, 3 + axes))
        m.nodes.append(Node("Transpose", (apart,), (name,), {"perm": perm}))
        m.mapped.add(name)


_RULES: dict[str, Rule] = {
    "Softmax": _along,
    "LogSoftmax": _along,
    "ArgMax": _along,
    "ArgMin": _along,
    "TopK": _along,
    "LayerNormalization": _along,
    "Split": _along,
    "QuantizeLinear": _along,
    "DequantizeLinear": _along,
    "Concat": _joined,
    "GatherElements": _joined,
    "Squeeze": _over_axes(1),
    "Unsqueeze": _over_axes(1),
    "CumSum": _over_axes(1),
    "Slice": _over_axes(3),
    "Pad": _pad,
    "Transpose": _transpose,
    "Identity": _elementwise,
    "CastLike": _cast_like,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Expand": _expand,
    "Tile": _tile,
    "Shape": _shape,
    "Gather": _gather,
    "MatMul": _product,
    "MatMulInteger": _product,
    "Conv": _batches,
    "ConvTranspose": _batches,
    "ConvInteger": _batches,
    "MaxPool": _batches,
    "AveragePool": _batches,
    "GlobalAveragePool": _batches,
    "GlobalMaxPool": _batches,
    "BatchNormalization": _batches,
    "InstanceNormalization": _batches,
    "GroupNormalization": _batches,
    "Gemm": _batches,
    "STFT": _batches,
    "Rnn": _layer,
}


def _rule(op: str) -> Rule | None:
    if op in _RULES:
        return _RULES[op]
    if op.startswith("Reduce"):
        return _over_axes(1)
    return _elementwise if op in OPERATORS and OPERATORS[op].kind == "elementwise" else None
