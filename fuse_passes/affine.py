"""Reads a value as sums of constant projections: which columns of which constants, of what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from onernn.core.arrays import Array
from onernn.core.graph import Graph, Node

_DEEPEST = 32  # sums within sums
_MATRICES = ("Gemm", "Flatten")


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
        return self._replace(start=self.start + start, stop=self.start + stop)


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


def affine(graph: Graph, name: str, depth: int = 0) -> Affine | None:
    """The value as a sum of projections; None where it is none, or a matrix is no constant.

    Cuts are those along the last of two axes: a projection's rows are the batch.
    """
    node = graph.producer(name)
    if node is None or depth > _DEEPEST:
        return None
    if node.op == "Identity":
        return affine(graph, node.inputs[0], depth + 1)
    if node.op in ("Gemm", "MatMul"):
        return _projection(graph, node)
    if node.op == "Add":
        return _sum(graph, node, depth)
    if node.op == "Split":
        return _split(graph, node, name, depth)
    return _slice(graph, node, depth) if node.op == "Slice" else None


def _projection(graph: Graph, node: Node) -> Affine | None:
    weight = graph.constants.get(node.inputs[1])
    attributes = node.attributes
    if weight is None or weight.ndim != 2 or attributes.get("transA"):
        return None
    if node.op == "MatMul" and not _is_matrix(graph, node.inputs[0]):
        return None
    if attributes.get("alpha", 1.0) != 1 or attributes.get("beta", 1.0) != 1:
        return None
    flipped = bool(attributes.get("transB"))
    width = weight.shape[0 if flipped else 1]
    term = Columns(node.inputs[1], flipped, 0, width)
    made = Affine({node.inputs[0]: term}, (), width, (node,))
    return made if not node.input(2) else _with_bias(graph, made, node.inputs[2], None)


def _is_matrix(graph: Graph, name: str) -> bool:
    """Whether a value is known to have two axes: MatMul takes any number."""
    shape = next((value.shape for value in graph.inputs if value.name == name), None)
    node = graph.producer(name)
    return shape is not None and len(shape) == 2 or node is not None and node.op in _MATRICES


def _with_bias(graph: Graph, made: Affine, name: str, node: Node | None) -> Affine | None:
    bias = graph.constants.get(name)
    if bias is None or bias.size != made.width or bias.shape[-1:] != (made.width,):
        return None
    biases = (*made.biases, Columns(name, False, 0, made.width))
    return Affine(
        made.terms, biases, made.width, made.nodes if node is None else (*made.nodes, node)
    )


def _sum(graph: Graph, node: Node, depth: int) -> Affine | None:
    one, other = (affine(graph, name, depth + 1) for name in node.inputs)
    if one and other:
        return one.plus(other, node)
    if one:
        return _with_bias(graph, one, node.inputs[1], node)
    return _with_bias(graph, other, node.inputs[0], node) if other else None


def _split(graph: Graph, node: Node, name: str, depth: int) -> Affine | None:
    whole = affine(graph, node.inputs[0], depth + 1)
    if whole is None or node.attributes.get("axis", 0) not in (1, -1):
        return None
    parts = len(node.outputs)
    if not node.input(1):
        sizes = np.full(parts, whole.width // parts)
    elif node.inputs[1] in graph.constants:
        sizes = graph.constants[node.inputs[1]]
    else:
        return None
    if sizes.sum() != whole.width:
        return None
    at = node.outputs.index(name)
    start = int(sizes[:at].sum())
    return whole.cut(start, start + int(sizes[at]), node)


def _slice(graph: Graph, node: Node, depth: int) -> Affine | None:
    whole = affine(graph, node.inputs[0], depth + 1)
    cuts = [graph.constants.get(name) for name in node.inputs[1:]]
    if whole is None or len(cuts) < 3 or any(cut is None or cut.size != 1 for cut in cuts):
        return None
    start, stop, axis, *step = (int(cut.reshape(())) for cut in cuts if cut is not None)
    if axis not in (1, -1) or step not in ([], [1]):
        return None
    first, last, _ = slice(start, stop).indices(whole.width)
    return whole.cut(first, last, node) if first < last else None
