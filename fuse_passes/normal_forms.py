"""One form for what exporters write in several: to compare graphs; none of `PASSES`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onernn.fuse_passes.rewriting import Tape, orders, rewrite
from onernn.ir.graph import Graph, Node
from onernn.ir.operator import OPERATORS


@rewrite("split_gemm")
def split_gemm(graph: Graph, node: Node) -> Graph | None:
    """``Gemm(x, W, b)`` -> ``x @ W + b``, with a weight of its own if W is read transposed."""
    if node.op != "Gemm" or node.attrs.transA or (node.attrs.alpha, node.attrs.beta) != (1, 1):
        return None
    weight, end = graph.constants.get(node.inputs[1]), node.outputs[0]
    if weight is None or weight.ndim != 2:
        return None
    to, bias = Tape(graph, end, node.origin), node.input(2)
    name = to.constant(weight.T, weight.dtype) if node.attrs.transB else node.inputs[1]
    product = to.emit("MatMul", (node.inputs[0], name), "" if bias else end)
    if bias:
        to.emit("Add", (product, bias), end)
    return to.replace(node)


@rewrite("unflatten_rows")
def unflatten_rows(graph: Graph, node: Node) -> Graph | None:
    """``f(Reshape(x, (-1, C)))`` -> ``Reshape(f(x), (-1, O))`` of what works row by row.

    Exporters flatten steps and sequences to one axis before a Gemm, and take them apart later.
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
    inner = to.emit(node.op, inputs, **node.attributes)
    to.emit("Reshape", (inner, to.constant([-1, width])), node.outputs[0])
    return to.replace(node)


@rewrite("layer_norm")
def fuse_layer_norm(graph: Graph, node: Node) -> Graph | None:
    """``(x - mean) / sqrt(variance + epsilon) * scale + shift`` over the last axis, as one node.

    As PyTorch writes it, and as TensorFlow does: ``x * inv + (shift - mean * inv)`` with ``inv =
    scale / sqrt(variance + epsilon)``.
    """
    for scaled, shift in orders(node) if node.op == "Add" else ():
        for one, two in orders(graph.producer(scaled, "Mul")):
            result = _unit(graph, one, two, shift) or _at_once(graph, one, two, shift)
            if result and _is_vector(graph, result[1]) and _is_vector(graph, result[2]):
                *inputs, epsilon = result
                to = Tape(graph, "", node.origin)
                attributes = {"axis": -1, "epsilon": epsilon}
                to.emit("LayerNormalization", inputs, node.outputs[0], **attributes)
                return to.replace(node)
    return None


_Found = tuple[str, str, str, float]


def _unit(graph: Graph, unit: str, scale: str, shift: str) -> _Found | None:
    """Returns (x, scale, shift, epsilon) of a centred value over its deviation."""
    quotient = graph.producer(unit, "Div")
    if quotient is not None:
        centred, epsilon = quotient.inputs[0], _deviation(graph, quotient.inputs[1])
        if (x := _find_centred(graph, centred)) and epsilon and epsilon[0] == x:
            return x, scale, shift, epsilon[1]
    for centred, inverse in orders(graph.producer(unit, "Mul")):
        result = _inverse(graph, inverse)
        if result and _find_centred(graph, centred) == result[0]:
            return result[0], scale, shift, result[1]
    return None


def _at_once(graph: Graph, x: str, factor: str, rest: str) -> _Found | None:
    """Returns the same of x * factor + rest, where x may be centred, too."""
    for inverse, scale in orders(graph.producer(factor, "Mul")):
        result = _inverse(graph, inverse)
        if result and result[0] == _find_centred(graph, x):
            return result[0], scale, rest, result[1]
        if not result or result[0] != x:
            continue
        if (node := graph.producer(rest, "Sub")) and _is_mean_of(graph, node.inputs[1], x, factor):
            return x, scale, node.inputs[0], result[1]
        for moved, shift in orders(graph.producer(rest, "Add")):
            if _is_mean_of(graph, moved, x, factor, negative=True):
                return x, scale, shift, result[1]
    return None


def _is_mean_of(graph: Graph, name: str, x: str, factor: str, negative: bool = False) -> bool:
    """Returns whether a value is x's mean times a factor, or what is opposite to it."""
    product = graph.producer(name, "Mul")
    if product is None or factor not in product.inputs:
        return False
    mean = product.inputs[product.inputs[0] == factor]
    if negative:
        node = graph.producer(mean, "Neg")
        mean = node.inputs[0] if node else ""
    return _mean(graph, mean) == x


def _inverse(graph: Graph, name: str) -> tuple[str, float] | None:
    """Returns (x, epsilon) of 1 / sqrt(variance of x + epsilon)."""
    if node := graph.producer(name, "Reciprocal"):
        return _deviation(graph, node.inputs[0])
    node = graph.producer(name, "Div")
    return _deviation(graph, node.inputs[1]) if node and graph.number(node.inputs[0]) == 1 else None


def _deviation(graph: Graph, name: str) -> tuple[str, float] | None:
    """Returns (x, epsilon) of sqrt(variance of x + epsilon)."""
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
    """Returns the x of x - mean, or of mean - x, which is squared alike."""
    node = graph.producer(name, "Sub")
    return node.inputs[0] if node and _mean(graph, node.inputs[1]) == node.inputs[0] else None


def _mean(graph: Graph, name: str) -> str | None:
    """Returns the value of which this one is the mean along the last axis, with that axis kept."""
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
    """Returns the graph in which sums and products of a constant name it last."""
    nodes = tuple(
        replace(node, inputs=node.inputs[::-1])
        if node.op in ("Add", "Mul")
        and node.inputs[0] in graph.constants
        and node.inputs[1] not in graph.constants
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)
