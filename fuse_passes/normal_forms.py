"""Rewrites operators that exporters write in several ways to one form, to compare graphs.

`PASSES` does not contain these passes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from onernn.fuse_passes.polynomials import Polynomial, atom, polynomial
from onernn.fuse_passes.rewriting import Tape, orders, rewrite
from onernn.ir.graph import Graph, Node
from onernn.ir.operator import OPERATORS


@rewrite("split_gemm", "Gemm")
def split_gemm(graph: Graph, node: Node) -> Graph | None:
    """Turns ``Gemm(x, W, b)`` into ``x @ W + b``; a transposed W becomes a new constant."""
    if node.attrs.transA or (node.attrs.alpha, node.attrs.beta) != (1, 1):
        return None
    weight, end = graph.constants.get(node.inputs[1]), node.outputs[0]
    if weight is None or weight.ndim != 2:
        return None
    to, bias = Tape(graph, end, node.origin), node.input(2)
    name = to.constant(weight.T, weight.dtype) if node.attrs.transB else node.inputs[1]
    product = to.emit("MatMul", node.inputs[0], name, output="" if bias else end)
    if bias:
        to.emit("Add", product, bias, output=end)
    return to.replace(node)


@rewrite("unflatten_rows")
def unflatten_rows(graph: Graph, node: Node) -> Graph | None:
    """Turns ``f(Reshape(x, (-1, C)))`` into ``Reshape(f(x), (-1, O))`` if f computes row by row.

    Exporters merge the axes of steps and sequences before a Gemm, and split them later.
    """
    view = next((m for name in node.inputs if (m := graph.producer(name, "Reshape"))), None)
    if view is None or not graph.is_dense(view.inputs[0]) or len(node.outputs) != 1:
        return None
    sizes, counts = graph.constants.get(view.inputs[1]), graph.types[view.inputs[0]].counts
    if sizes is None or len(counts) < 3 or [*sizes] != [-1, counts[-1]]:
        return None
    others = [graph.constants.get(name) for name in node.inputs if name != view.outputs[0]]
    known = OPERATORS.get(node.op)
    if node.op == "MatMul" and node.inputs[0] == view.outputs[0]:
        if others[0] is None or others[0].ndim != 2:
            return None
        width = others[0].shape[1]
    elif known is not None and known.kind == "elementwise":
        if not all(each is not None and each.ndim <= 1 for each in others):
            return None
        width = int(sizes[1])
    else:
        return None
    to = Tape(graph, node.outputs[0], node.origin)
    names = {view.outputs[0]: view.inputs[0]}
    inputs = [names.get(name, name) for name in node.inputs]
    inner = to.emit(node.op, *inputs, **node.attributes)
    to.emit("Reshape", inner, [-1, width], output=node.outputs[0])
    return to.replace(node)


@rewrite("layer_norm", "Add")
def fuse_layer_norm(graph: Graph, node: Node) -> Graph | None:
    """Turns ``(x - mean) / sqrt(variance + epsilon) * scale + shift`` into one node.

    The mean is over the last axis. Exporters write this formula in several ways. All of them are
    the same polynomial of x, the mean, ``1 / sqrt(variance + epsilon)``, scale and shift.
    """

    def is_atom(name: str) -> bool:
        means = (_mean(graph, user.outputs[0]) for user in graph.users(name))
        return _is_vector(graph, name) or name in means

    value = polynomial(graph, node.outputs[0], is_atom)
    atoms = sorted(value.atoms) if value else []
    vectors = [name for name in atoms if _is_vector(graph, name)]
    for scale, shift, factor in product(vectors, vectors, atoms):
        unit, x, epsilon = _read_unit(graph, factor, atoms) or (None, "", 0)
        whole = unit and unit * atom(scale) + atom(shift)
        if value and whole and whole.terms == value.terms:
            to = Tape(graph, "", node.origin)
            to.emit(
                "LayerNormalization",
                *(x, scale, shift),
                output=node.outputs[0],
                axis=-1,
                epsilon=epsilon,
            )
            return to.replace(node)
    return None


def _read_unit(graph: Graph, factor: str, atoms: list[str]) -> tuple[Polynomial, str, float] | None:
    """Returns (polynomial of (x - mean) / deviation, name of x, epsilon); None if ``factor`` does
    not match.

    ``factor``: a value that may be the whole quotient, or only 1 / deviation. ``atoms``: the values
    that may be the mean.
    """
    quotient = graph.producer(factor, "Div")
    if quotient and (x := _find_centred(graph, quotient.inputs[0])):
        result = _deviation(graph, quotient.inputs[1])
        if result and result[0] == x:
            return atom(factor), *result
    result = _inverse(graph, factor)
    for mean in atoms if result else ():
        if result and _mean(graph, mean) == result[0]:
            centred = Polynomial({(result[0],): 1, (mean,): -1})
            return centred * atom(factor), *result
    return None


def _inverse(graph: Graph, name: str) -> tuple[str, float] | None:
    """Returns (x, epsilon) of 1 / sqrt(variance of x + epsilon), or None."""
    if node := graph.producer(name, "Reciprocal"):
        return _deviation(graph, node.inputs[0])
    node = graph.producer(name, "Div")
    return _deviation(graph, node.inputs[1]) if node and graph.number(node.inputs[0]) == 1 else None


def _deviation(graph: Graph, name: str) -> tuple[str, float] | None:
    """Returns (x, epsilon) of sqrt(variance of x + epsilon), or None."""
    root = graph.producer(name, "Sqrt", "Pow")
    if root is None or (root.op == "Pow" and graph.number(root.inputs[1]) != 0.5):
        return None
    for variance, added in orders(graph.producer(root.inputs[0], "Add")):
        epsilon = graph.number(added)
        node = graph.producer(_mean(graph, variance) or "", "Mul", "Pow")
        if epsilon is None or node is None:
            continue
        x = _find_centred(graph, node.inputs[0])
        twice = (
            graph.number(node.inputs[1]) == 2
            if node.op == "Pow"
            else (_find_centred(graph, node.inputs[1]) == x)
        )
        if x and twice:
            return x, epsilon
    return None


def _find_centred(graph: Graph, name: str) -> str | None:
    node = graph.producer(name, "Sub")
    return node.inputs[0] if node and _mean(graph, node.inputs[1]) == node.inputs[0] else None


def _mean(graph: Graph, name: str) -> str | None:
    """Returns x if a value is the mean of x over its last axis, which is kept; else None."""
    node = graph.producer(name, "ReduceMean")
    if node is None or not node.attrs.keepdims:
        return None
    axes = graph.constants.get(node.input(1))
    rank = graph.types[node.inputs[0]].rank
    last = axes is not None and [*axes.reshape(-1)] in ([-1], [None if rank is None else rank - 1])
    return node.inputs[0] if last else None


def _is_vector(graph: Graph, name: str) -> bool:
    array = graph.constants.get(name)
    return array is not None and array.ndim == 1 and np.issubdtype(array.dtype, np.floating)


NORMAL_FORMS = (split_gemm, unflatten_rows, fuse_layer_norm)


def constants_last(graph: Graph) -> Graph:
    """Returns the graph with constants as the second operands of sums and products."""
    nodes = tuple(
        replace(node, inputs=node.inputs[::-1])
        if node.op in ("Add", "Mul")
        and node.inputs[0] in graph.constants
        and node.inputs[1] not in graph.constants
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)
