"""Reads a value as a sum of projections of earlier values by constant matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from weakref import WeakKeyDictionary

import numpy as np

from onernn.fuse_passes.rewriting import orders
from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node
from onernn.ir.records import NamedTuple, dataclass

_MOST = 64  # maximum number of nodes of a sum; the sum of a gate has ten


class Columns(NamedTuple):
    """The columns from ``start`` to ``stop`` of a constant matrix, vector or scalar.

    ``constant``: the name of the constant; "" means the identity matrix. If the constant has one
    element, every column contains this element. ``transposed``: whether the matrix is transposed
    first. ``sign``: -1 if the columns are subtracted. ``rows``: the first row and the end of the
    rows to use; None for all rows.
    """

    constant: str
    transposed: bool
    start: int
    stop: int
    sign: int = 1
    rows: tuple[int, int] | None = None

    def of(self, graph: Graph) -> Array:
        whole = graph.constants[self.constant]
        if whole.size == 1:
            whole = np.full((1, self.stop), whole.item(), whole.dtype)
        whole = whole.T if self.transposed else whole
        columns = whole.reshape(-1, whole.shape[-1])[:, self.start : self.stop]
        columns = columns if self.rows is None else columns[slice(*self.rows)]
        return columns if self.sign > 0 else -columns

    def cut(self, start: int, stop: int) -> Columns:
        return self._replace(start=self.start + start, stop=self.start + stop)

    def negative(self) -> Columns:
        return self._replace(sign=-self.sign)


@dataclass(frozen=True)
class Affine:
    """A sum of projections ``source @ columns`` and biases; ``nodes`` compute it.

    ``terms``: the columns that multiply each source. ``scaled``: the constant vectors that multiply
    values elementwise (peepholes), by the names of these values.
    """

    terms: Mapping[str, Columns]
    biases: tuple[Columns, ...]
    width: int
    nodes: tuple[Node, ...]
    scaled: Mapping[str, Columns] = field(default_factory=dict)

    def cut(self, start: int, stop: int, node: Node) -> Affine:
        return self._change(lambda columns: columns.cut(start, stop), stop - start, node)

    def plus(self, other: Affine, node: Node) -> Affine | None:
        shared = self.terms.keys() & other.terms or self.scaled.keys() & other.scaled
        if self.width != other.width or shared:
            return None
        biases = (*self.biases, *other.biases)
        nodes = (*self.nodes, *other.nodes, node)
        scaled = {**self.scaled, **other.scaled}
        return Affine({**self.terms, **other.terms}, biases, self.width, nodes, scaled)

    def minus(self, node: Node) -> Affine:
        return self._change(Columns.negative, self.width, node)

    def _change(self, change: Callable[[Columns], Columns], width: int, node: Node) -> Affine:
        terms = {source: change(columns) for source, columns in self.terms.items()}
        scaled = {source: change(columns) for source, columns in self.scaled.items()}
        return Affine(terms, tuple(map(change, self.biases)), width, (*self.nodes, node), scaled)


def affine(graph: Graph, name: str, *, peepholes: bool = False) -> Affine | None:
    """Returns a value as a sum of projections; None if it is not such a sum, or if a matrix is not
    constant.

    The value may be a part of a sum that Split or Slice divides along the last axis. ``peepholes``:
    whether the sum may include products of a value and a constant vector.
    """
    result = _table(graph).sums.get(name)
    return result if result and result.terms and (peepholes or not result.scaled) else None


def cut_affine(graph: Graph, cut: Node, whole: Affine, index: int) -> Affine | None:
    """Returns the part of a sum that is output ``index`` of a Split, or the result of a Slice."""
    return _table(graph).cut(cut, whole, index)


def take_apart(graph: Graph, whole: Affine) -> Affine:
    """Returns the sum Concat(x, h) @ W as x @ W' + h @ W''; returns any other sum unchanged."""
    (name, columns), *more = whole.terms.items()
    node = graph.producer(name, "Concat")
    if more or node is None or node.attributes["axis"] not in (1, -1) or not columns.constant:
        return whole
    widths = [graph.types[part].counts[1:] for part in node.inputs]
    if len(node.inputs) != 2 or any(len(each) != 1 or each[0] is None for each in widths):
        return whole
    first, last = (each[0] or 0 for each in widths)
    one, other = node.inputs
    if one == other or len(columns.of(graph)) != first + last:
        return whole
    rows = ((0, first), (first, first + last))
    terms = {
        part: columns._replace(rows=each) for part, each in zip((one, other), rows, strict=True)
    }
    return replace(whole, terms=terms, nodes=(node, *whole.nodes))


def _table(graph: Graph) -> _Table:
    if graph not in _TABLES:
        _TABLES[graph] = _Table(graph)
    return _TABLES[graph]


class _Table:
    """The sums of a graph by the names of their values; each sum is computed once and stored."""

    def __init__(self, graph: Graph) -> None:
        self.constants, self.types = graph.constants, graph.types
        self.sums: dict[str, Affine] = {}
        # If x is projected already, a gate adds x without a matrix.
        for value in graph.inputs:
            width = self.types[value.name].counts[1:]
            if len(width) == 1 and width[0] is not None:
                identity = Columns("", False, 0, width[0])
                self.sums[value.name] = Affine({value.name: identity}, (), width[0], ())
        for node in graph.nodes:
            for index, name in enumerate(node.outputs[: None if node.op == "Split" else 1]):
                result = self._sum(node, index)
                if result is not None and len(result.nodes) <= _MOST:
                    self.sums[name] = result

    def _sum(self, node: Node, index: int) -> Affine | None:
        if node.op == "Identity":
            return self.sums.get(node.input(0))
        if node.op in ("Gemm", "MatMul"):
            return self._projection(node)
        if node.op in ("Add", "Sub"):
            return self._add(node, subtracts=node.op == "Sub")
        if node.op == "Neg":
            whole = self.sums.get(node.input(0))
            return whole and whole.minus(node)
        if node.op == "Mul":
            return self._scale(node)
        if node.op in ("Split", "Slice"):
            return self.cut(node, self.sums.get(node.input(0)), index)
        return None

    def _projection(self, node: Node) -> Affine | None:
        weight = self.constants.get(node.input(1))
        attributes = node.attributes
        if weight is None or weight.ndim != 2 or attributes.get("transA"):
            return None
        if self.types[node.outputs[0]].rank != 2 or attributes.get("alpha", 1.0) != 1:
            return None
        if node.input(2) and attributes.get("beta", 1.0) != 1:
            return None
        flipped = bool(attributes.get("transB"))
        width = weight.shape[0 if flipped else 1]
        term = Columns(node.inputs[1], flipped, 0, width)
        result = Affine({node.inputs[0]: term}, (), width, (node,))
        return result if not node.input(2) else self._with_bias(result, node.inputs[2], None)

    def _scale(self, node: Node) -> Affine | None:
        """Returns the sum of one peephole: a value (N, O) times a constant vector."""
        for value, vector in orders(node):
            numbers, counts = self.constants.get(vector), self.types[value].counts
            if numbers is None or len(counts) != 2 or not counts[1]:
                continue
            if numbers.shape in ((counts[1],), (1, counts[1])):
                scaled = {value: Columns(vector, False, 0, counts[1])}
                return Affine({}, (), counts[1], (node,), scaled)
        return None

    def _with_bias(
        self, made: Affine, name: str, node: Node | None, sign: int = 1
    ) -> Affine | None:
        bias = self.constants.get(name)
        shapes = ((made.width,), (1, made.width), (), (1,), (1, 1))
        if bias is None or bias.shape not in shapes:
            return None
        biases = (*made.biases, Columns(name, False, 0, made.width, sign))
        nodes = made.nodes if node is None else (*made.nodes, node)
        return replace(made, biases=biases, nodes=nodes)

    def _add(self, node: Node, subtracts: bool) -> Affine | None:
        one, other = (self.sums.get(node.input(index)) for index in (0, 1))
        other = other.minus(node) if other and subtracts else other
        if one and other:
            return one.plus(other, node)
        if one:
            return self._with_bias(one, node.inputs[1], node, -1 if subtracts else 1)
        return self._with_bias(other, node.inputs[0], node) if other else None

    def cut(self, node: Node, whole: Affine | None, index: int) -> Affine | None:
        return self._split(node, whole, index) if node.op == "Split" else self._slice(node, whole)

    def _split(self, node: Node, whole: Affine | None, index: int) -> Affine | None:
        if whole is None or node.attributes.get("axis", 0) not in (1, -1):
            return None
        parts = len(node.outputs)
        if not node.input(1):
            sizes = np.full(parts, whole.width // parts)
        elif node.inputs[1] in self.constants:
            sizes = self.constants[node.inputs[1]]
        else:
            return None
        if sizes.shape != (parts,) or sizes.sum() != whole.width:
            return None
        start = int(sizes[:index].sum())
        return whole.cut(start, start + int(sizes[index]), node)

    def _slice(self, node: Node, whole: Affine | None) -> Affine | None:
        cuts = [self.constants.get(name) for name in node.inputs[1:]]
        if whole is None or len(cuts) < 3 or any(cut is None or cut.size != 1 for cut in cuts):
            return None
        start, stop, axis, *step = (int(cut.reshape(())) for cut in cuts if cut is not None)
        if axis not in (1, -1) or step not in ([], [1]):
            return None
        first, last, _ = slice(start, stop).indices(whole.width)
        return whole.cut(first, last, node) if first < last else None


_TABLES: WeakKeyDictionary[Graph, _Table] = WeakKeyDictionary()
