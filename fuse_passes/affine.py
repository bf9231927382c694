"""Reads a value as sums of constant projections: which columns of which constants, of what."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from onernn.core.arrays import Array
from onernn.core.graph import Graph, Node
from onernn.core.records import dataclass

_MOST = 64  # nodes of a sum; a gate has ten


class Columns(NamedTuple):
    """Columns start ... stop of a constant: of a matrix, transposed or not, or of a vector."""

    constant: str
    transposed: bool
    start: int
    stop: int

    def of(self, graph: Graph) -> Array:
        whole = graph.constants[self.constant]
        whole = whole.T if self.transposed else whole
        return whole.reshape(-1, whole.shape[-1])[:, self.start : self.stop]

    def cut(self, start: int, stop: int) -> Columns:
        return Columns(self.constant, self.transposed, self.start + start, self.start + stop)


@dataclass(frozen=True)
class Affine:
    """The sum over sources of source @ matrix, and of the biases; ``nodes`` compute it."""

    terms: Mapping[str, Columns]
    biases: tuple[Columns, ...]
    width: int
    nodes: tuple[Node, ...]

    def cut(self, start: int, stop: int, node: Node) -> Affine:
        terms = {source: columns.cut(start, stop) for source, columns in self.terms.items()}
        biases = tuple(columns.cut(start, stop) for columns in self.biases)
        return Affine(terms, biases, stop - start, (*self.nodes, node))

    def plus(self, other: Affine, node: Node) -> Affine | None:
        if self.width != other.width or set(self.terms) & set(other.terms):
            return None
        biases = (*self.biases, *other.biases)
        nodes = (*self.nodes, *other.nodes, node)
        return Affine({**self.terms, **other.terms}, biases, self.width, nodes)


NONE: Mapping[str, Columns] = MappingProxyType({})


def affine(graph: Graph, name: str) -> Affine | None:
    """The value as a sum of projections; None where it is none, or a matrix is no constant.

    Cuts are those along the last of two axes: a projection's rows are the batch.
    """
    if graph not in _TABLES:
        _TABLES[graph] = _Table(graph)
    return _TABLES[graph].sums.get(name)


class _Table:
    """The sums of a graph, made node by node: each value is read once, whoever uses it."""

    def __init__(self, graph: Graph) -> None:
        self.constants, self.types = graph.constants, graph.types
        self.sums: dict[str, Affine] = {}
        for node in graph.nodes:
            for at, name in enumerate(node.outputs[: None if node.op == "Split" else 1]):
                found = self._sum(node, at)
                if found is not None and len(found.nodes) <= _MOST:
                    self.sums[name] = found

    def _sum(self, node: Node, at: int) -> Affine | None:
        """What a node makes as its output ``at``."""
        if node.op == "Identity":
            return self.sums.get(node.input(0))
        if node.op in ("Gemm", "MatMul"):
            return self._projection(node)
        if node.op == "Add":
            return self._added(node)
        if node.op == "Split":
            return self._split(node, at)
        return self._slice(node) if node.op == "Slice" else None

    def _projection(self, node: Node) -> Affine | None:
        weight = self.constants.get(node.input(1))
        attributes = node.attributes
        if weight is None or weight.ndim != 2 or attributes.get("transA"):
            return None
        if self.types[node.outputs[0]].rank != 2:
            return None
        if attributes.get("alpha", 1.0) != 1 or attributes.get("beta", 1.0) != 1:
            return None
        flipped = bool(attributes.get("transB"))
        width = weight.shape[0 if flipped else 1]
        term = Columns(node.inputs[1], flipped, 0, width)
        made = Affine({node.inputs[0]: term}, (), width, (node,))
        return made if not node.input(2) else self._with_bias(made, node.inputs[2], None)

    def _with_bias(self, made: Affine, name: str, node: Node | None) -> Affine | None:
        bias = self.constants.get(name)
        if bias is None or bias.shape not in ((made.width,), (1, made.width)):
            return None
        biases = (*made.biases, Columns(name, False, 0, made.width))
        nodes = made.nodes if node is None else (*made.nodes, node)
        return Affine(made.terms, biases, made.width, nodes)

    def _added(self, node: Node) -> Affine | None:
        one, other = (self.sums.get(node.input(at)) for at in (0, 1))
        if one and other:
            return one.plus(other, node)
        if one:
            return self._with_bias(one, node.inputs[1], node)
        return self._with_bias(other, node.inputs[0], node) if other else None

    def _split(self, node: Node, at: int) -> Affine | None:
        whole = self.sums.get(node.input(0))
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
        start = int(sizes[:at].sum())
        return whole.cut(start, start + int(sizes[at]), node)

    def _slice(self, node: Node) -> Affine | None:
        whole = self.sums.get(node.input(0))
        cuts = [self.constants.get(name) for name in node.inputs[1:]]
        if whole is None or len(cuts) < 3 or any(cut is None or cut.size != 1 for cut in cuts):
            return None
        start, stop, axis, *step = (int(cut.reshape(())) for cut in cuts if cut is not None)
        if axis not in (1, -1) or step not in ([], [1]):
            return None
        first, last, _ = slice(start, stop).indices(whole.width)
        return whole.cut(first, last, node) if first < last else None


_TABLES: WeakKeyDictionary[Graph, _Table] = WeakKeyDictionary()
