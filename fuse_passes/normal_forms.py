"""One form for what exporters write in several: to compare graphs; none of `PASSES`."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from onernn.fuse_passes.rewriting import exchanged, fresh, orders
from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node
from onernn.ir.operator import OPERATORS


class SplitGemm:
    """``Gemm(x, W, b)`` -> ``x @ W + b``, with a weight of its own where W is read transposed."""

    name = "split_gemm"

    def match(self, graph: Graph, node: Node) -> Node | None:
        if node.op != "Gemm" or node.attrs.transA or (node.attrs.alpha, node.attrs.beta) != (1, 1):
            return None
        weight = graph.constants.get(node.inputs[1])
        return node if weight is not None and weight.ndim == 2 else None

    def rewrite(self, graph: Graph, match: Node) -> Graph:
        name, constants = match.inputs[1], dict[str, Array]()
        if match.attrs.transB:
            turned = graph.constants[name].T
            name = fresh(graph, f"{name}.T")
            constants[name] = turned
        end = match.outputs[0]
        product = fresh(graph, f"{end}/MatMul") if match.input(2) else end
        new = [Node("MatMul", (match.inputs[0], name), (product,), origin=match.origin)]
        if match.input(2):
            new.append(Node("Add", (product, match.inputs[2]), (end,), origin=match.origin))
        return exchanged(graph, [match], new, constants)


class UnflattenRows:
    """``f(Reshape(x, (-1, C)))`` -> ``Reshape(f(x), (-1, O))`` of what works row by row.

    Exporters flatten steps and sentences to one axis in front of a Gemm, and take them apart later.
    """

    name = "unflatten_rows"

    def match(self, graph: Graph, node: Node) -> tuple[Node, Node, int] | None:
        view = next((m for name in node.inputs if (m := graph.producer(name, "Reshape"))), None)
        if view is None or not graph.is_dense(view.inputs[0]) or len(node.outputs) != 1:
            return None
        sizes, counts = graph.constants.get(view.inputs[1]), graph.types[view.inputs[0]].counts
        if sizes is None or len(counts) < 3 or [*sizes] != [-1, counts[-1]]:
            return None
        others = [graph.constants.get(name) for name in node.inputs if name != view.outputs[0]]
        known = OPERATORS.get(node.op)
        if node.op == "MatMul" and node.inputs[0] == view.outputs[0]:
            if others[0] is not None and others[0].ndim == 2:
                return node, view, others[0].shape[1]
        elif known is not None and known.kind == "elementwise":
            if all(each is not None and each.ndim <= 1 for each in others):
                return node, view, int(sizes[1])
        return None

    def rewrite(self, graph: Graph, match: tuple[Node, Node, int]) -> Graph:
        node, view, width = match
        end = node.outputs[0]
        inner, sizes = fresh(graph, f"{end}/{node.op}"), fresh(graph, f"{end}/sizes")
        whole = node.renamed({view.outputs[0]: view.inputs[0]})
        new = [
            replace(whole, outputs=(inner,)),
            Node("Reshape", (inner, sizes), (end,), origin=view.origin),
        ]
        return exchanged(graph, [node], new, {sizes: np.array([-1, width], np.int64)})


class LayerNorm(NamedTuple):
    node: Node
    x: str
    scale: str
    shift: str
    epsilon: float


class FuseLayerNorm:
    """``(x - mean) / sqrt(variance + epsilon) * scale + shift`` over the last axis, as one node.

    As PyTorch writes it, and as TensorFlow does: ``x * inv + (shift - mean * inv)`` with ``inv =
    scale / sqrt(variance + epsilon)``.
    """

    name = "layer_norm"

    def match(self, graph: Graph, node: Node) -> LayerNorm | None:
        for scaled, shift in orders(node) if node.op == "Add" else ():
            for one, two in orders(graph.producer(scaled, "Mul")):
                result = _unit(graph, one, two, shift) or _at_once(graph, one, two, shift)
                if result is not None:
                    x, scale, bias, epsilon = result
                    if _is_vector(graph, scale) and _is_vector(graph, bias):
                        return LayerNorm(node, x, scale, bias, epsilon)
        return None

    def rewrite(self, graph: Graph, match: LayerNorm) -> Graph:
        old = match.node
        inputs = (match.x, match.scale, match.shift)
        attributes = {"axis": -1, "epsilon": match.epsilon}
        new = Node("LayerNormalization", inputs, old.outputs, attributes, old.origin)
        return exchanged(graph, [old], [new])


_Found = tuple[str, str, str, float]


def _unit(graph: Graph, unit: str, scale: str, shift: str) -> _Found | None:
    """(x, scale, shift, epsilon) of a centred value over its deviation."""
    quotient = graph.producer(unit, "Div")
    if quotient is not None:
        centred, epsilon = quotient.inputs[0], _deviation(graph, quotient.inputs[1])
        if (x := _centred(graph, centred)) and epsilon and epsilon[0] == x:
            return x, scale, shift, epsilon[1]
    for centred, inverse in orders(graph.producer(unit, "Mul")):
        result = _inverse(graph, inverse)
        if result and _centred(graph, centred) == result[0]:
            return result[0], scale, shift, result[1]
    return None


def _at_once(graph: Graph, x: str, factor: str, rest: str) -> _Found | None:
    """The same of x * factor + rest, where x may be centred, too."""
    for inverse, scale in orders(graph.producer(factor, "Mul")):
        result = _inverse(graph, inverse)
        if result and result[0] == _centred(graph, x):
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
    """Whether a value is x's mean times a factor, or what is opposite to it."""
    product = graph.producer(name, "Mul")
    if product is None or factor not in product.inputs:
        return False
    mean = product.inputs[product.inputs[0] == factor]
    if negative:
        node = graph.producer(mean, "Neg")
        mean = node.inputs[0] if node else ""
    return _mean(graph, mean) == x


def _inverse(graph: Graph, name: str) -> tuple[str, float] | None:
    """(x, epsilon) of 1 / sqrt(variance of x + epsilon)."""
    if node := graph.producer(name, "Reciprocal"):
        return _deviation(graph, node.inputs[0])
    node = graph.producer(name, "Div")
    return _deviation(graph, node.inputs[1]) if node and graph.number(node.inputs[0]) == 1 else None


def _deviation(graph: Graph, name: str) -> tuple[str, float] | None:
    """(x, epsilon) of sqrt(variance of x + epsilon)."""
    root = graph.producer(name, "Sqrt", "Pow")
    if root is None or (root.op == "Pow" and graph.number(root.inputs[1]) != 0.5):
        return None
    for variance, added in orders(graph.producer(root.inputs[0], "Add")):
        epsilon = graph.number(added)
        node = graph.producer(_mean(graph, variance) or "", "Mul", "Pow")
        if epsilon is None or node is None:
            continue
        x = _centred(graph, node.inputs[0])
        twice = (
            graph.number(node.inputs[1]) == 2
            if node.op == "Pow"
            else (_centred(graph, node.inputs[1]) == x)
        )
        if x and twice:
            return x, epsilon
    return None


def _centred(graph: Graph, name: str) -> str | None:
    """The x of x - mean, or of mean - x, which is squared alike."""
    node = graph.producer(name, "Sub")
    return node.inputs[0] if node and _mean(graph, node.inputs[1]) == node.inputs[0] else None


def _mean(graph: Graph, name: str) -> str | None:
    """The value of which this one is the mean along the last axis, with that axis kept."""
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


NORMAL_FORMS = (SplitGemm(), UnflattenRows(), FuseLayerNorm())


def constants_last(graph: Graph) -> Graph:
    """The graph in which sums and products of a constant name it last."""
    nodes = tuple(
        replace(node, inputs=node.inputs[::-1])
        if node.op in ("Add", "Mul")
        and node.inputs[0] in graph.constants
        and node.inputs[1] not in graph.constants
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)
