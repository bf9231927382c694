"""A projection in front of a layer that has input weights is multiplied into them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import Refusal
from onernn.core.graph import Graph, Node
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights, layers_of
from onernn.fuse_passes.linear_rnn import Linear, find_linear

_LINEAR = ("MatMul", "Gemm")


@dataclass(frozen=True, eq=False)
class LinearInput:
    linear: Linear
    rnn: Node


class FuseLinearInput:
    """``Rnn(x @ W + b)`` -> ``Rnn(x)`` with W multiplied into its input weights.

    MXNet's FullyConnected in front of RNN. Where no function stands between, the two products are
    one; it is made in float64 and rounded once. Refused where it would cost more than the two.
    """

    name = "linear_input"

    def match(self, graph: Graph, node: Node) -> LinearInput | Refusal | None:
        if node.op != "Rnn" or not _is_linear(graph, node.inputs[0]):
            return None
        spec = node.attributes["spec"]
        first, *others = layers_of(spec, node.attributes["weights"])
        if first.layer is None:
            return None  # the pass linear_rnn's business
        linear, where = find_linear(graph, node), node.outputs[0]
        if isinstance(linear, Refusal):
            return replace(linear, where=where)
        if linear.weight.dtype != first.iter.dtype:
            return Refusal(f"the projection is {linear.weight.dtype}", where)
        (inner, outer), columns = linear.weight.shape, first.layer[0, :, 0].size
        if first.layer.shape[2] != outer:
            return Refusal(f"the projection gives {outer} columns", where)
        if others and spec.stacking == "onednn" and inner != outer:
            return Refusal("oneDNN's own stacking has one input size for all layers", where)
        if inner * columns >= inner * outer + outer * columns:
            return Refusal(
                f"{inner} -> {columns} costs more than {inner} -> {outer} -> {columns}", where
            )
        return LinearInput(linear, node)

    def rewrite(self, graph: Graph, match: LinearInput) -> Graph:
        linear, rnn = match.linear, match.rnn
        spec = rnn.attributes["spec"]
        first, *others = layers_of(spec, rnn.attributes["weights"])
        layers = [_folded(first, linear, spec), *others]
        gone = (rnn, *linear.nodes)
        attributes = {
            "spec": replace(spec, input_size=linear.weight.shape[0]),
            "weights": tuple(layers) if others else layers[0],
        }
        new = Node(
            "Rnn",
            (linear.x, *rnn.inputs[1:]),
            rnn.outputs,
            attributes,
            tuple(dict.fromkeys(op for node in reversed(gone) for op in node.origin)),
        )
        return graph.splice(gone, [new])


def _is_linear(graph: Graph, name: str) -> bool:
    node = graph.producer(name)
    if node is not None and node.op == "Add":
        return any((made := graph.producer(i)) and made.op in _LINEAR for i in node.inputs)
    return node is not None and node.op in _LINEAR


def _folded(first: RnnWeights, linear: Linear, spec: RnnSpec) -> RnnWeights:
    """Input weights (1, D, I, G, O) behind the projection, and the bias that it brings."""
    layer = np.asarray(first.layer, np.float64)
    product: Array = np.einsum("ij,ldjgo->ldigo", linear.weight.astype(np.float64), layer)
    dtype, bias = first.iter.dtype, first.bias
    if linear.bias is not None:
        added = np.einsum("j,ldjgo->ldgo", linear.bias.reshape(-1).astype(np.float64), layer)
        rows = (*added.shape[:2], spec.cell.bias_rows, spec.hidden_size)
        bias = np.zeros(rows) if bias is None else bias.astype(np.float64)
        bias[:, :, : spec.gates] += added  # the row u' of LBR cells stands inside r*(...): it stays
    return replace(
        first, layer=product.astype(dtype), bias=None if bias is None else bias.astype(dtype)
    )
