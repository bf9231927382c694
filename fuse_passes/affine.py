"""Reads a value as sums of constant projections: which columns of which constants, of what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass

_MOST = 64  # nodes of a sum; a gate has ten


class Columns(NamedTuple):
    """Columns start ... stop of a constant: of a matrix, transposed or not, or of a vector.

    ``constant``: "" for the identity, where a source is the sum itself, or a part of it. ``sign``:
    -1 where they are subtracted.
    """

    constant: str
    transposed: bool
    start: int
    stop: int
    sign: int = 1

    def of(self, graph: Graph) -> Array:
        whole = graph.constants[self.constant]
        whole = whole.T if self.transposed else whole
        columns = whole.reshape(-1, whole.shape[-1])[:, self.start : self.stop]
        return columns if self.sign > 0 else -columns

    def cut(self, start: int, stop: int) -> Columns:
        return self._replace(start=self.start + start, stop=self.start + stop)

    def negative(self) -> Columns:
        return self._replace(sign=-self.sign)


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

    def minus(self, node: Node) -> Affine:
        terms = {source: columns.negative() for source, columns in self.terms.items()}
        biases = tuple(columns.negative() for columns in self.biases)
        return Affine(terms, biases, self.width, (*self.nodes, node))


NONE: Mapping[str, Columns] = MappingProxyType({})


def affine(graph: Graph, name: str) -> Affine | None:
    """Returns the value as a sum of projections; None where it is none, or a matrix is no constant.

    Cuts are those along the last of two axes: a projection's rows are the batch.
    """
    return _table(graph).sums.get(name)


def affine_inside(graph: Graph, name: str, function: str) -> Affine | None:
    """Returns the sum of which a value is a function, or a part of what is one; with their
    nodes.
    """
    cut = graph.producer(name, "Split", "Slice")
    node = graph.producer(cut.inputs[0] if cut else name, function)
    if node is None:
        return None
    result = affine(graph, node.inputs[0])
    if result is not None and cut is not None:
        result = _table(graph).cut(cut, result, cut.outputs.index(name))
    return None if result is None else replace(result, nodes=(*result.nodes, node))


def _table(graph: Graph) -> _Table:
    if graph not in _TABLES:
        _TABLES[graph] = _Table(graph)
    return _TABLES[graph]


class _Table:
    """The sums of a graph, made node by node: each value is read once, whoever uses it."""

    def __init__(self, graph: Graph) -> None:
        self.constants, self.types = graph.constants, graph.types
        self.sums: dict[str, Affine] = {}
        for value in graph.inputs:  # a step may be given what is projected already
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
        """Returns the sum that a node makes as its output ``index``."""
        if node.op == "Identity":
            return self.sums.get(node.input(0))
        if node.op in ("Gemm", "MatMul"):
            return self._projection(node)
        if node.op in ("Add", "Sub"):
            return self._add(node, subtracts=node.op == "Sub")
        if node.op == "Neg":
            whole = self.sums.get(node.input(0))
            return whole and whole.minus(node)
        if node.op in ("Split", "Slice"):
            return self.cut(node, self.sums.get(node.input(0)), index)
        return None

    def _projection(self, node: Node) -> Affine | None:
        weight = self.constants.get(node.input(1))
        attributes = node.attributes
        if weight is None or weight.ndim != 2 or attributes.get("transA"):
            return None
        if self.types[node.outputs[0]].rank != 2:
            return None
        if attributes.get("alpha", 1.0) != 1:
            return None
        if node.input(2) and attributes.get("beta", 1.0) != 1:
            return None
        flipped = bool(attributes.get("transB"))
        width = weight.shape[0 if flipped else 1]
        term = Columns(node.inputs[1], flipped, 0, width)
        result = Affine({node.inputs[0]: term}, (), width, (node,))
        return result if not node.input(2) else self._with_bias(result, node.inputs[2], None)

    def _with_bias(
        self, made: Affine, name: str, node: Node | None, sign: int = 1
    ) -> Affine | None:
        bias = self.constants.get(name)
        if bias is None or bias.shape not in ((made.width,), (1, made.width)):
            return None
        biases = (*made.biases, Columns(name, False, 0, made.width, sign))
        nodes = made.nodes if node is None else (*made.nodes, node)
        return Affine(made.terms, biases, made.width, nodes)

    def _add(self, node: Node, subtracts: bool) -> Affine | None:
        one, other = (self.sums.get(node.input(index)) for index in (0, 1))
        other = other.minus(node) if other and subtracts else other
        if one and other:
            return one.plus(other, node)
        if one:
            return self._with_bias(one, node.inputs[1], node, -1 if subtracts else 1)
        return self._with_bias(other, node.inputs[0], node) if other else None

    def cut(self, node: Node, whole: Affine | None, index: int) -> Affine | None:
        """Output ``index`` of a Split of a sum, or the result of a Slice of it."""
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
