"""A projection in front of a layer that has input weights is multiplied into them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from onernn.fuse_passes.linear_rnn import (
    PROJECTIONS,
    Linear,
    find_linear,
    folded_into,
    of_another_input,
)
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import RnnWeights


class LinearInput(NamedTuple):
    linear: Linear
    node: Node


class FuseLinearInput:
    """``Rnn(x @ W + b)`` -> ``Rnn(x)`` with W multiplied into its input weights.

    MXNet's FullyConnected in front of RNN. Where no function stands between, the two products are
    one; it is made in float64 and rounded once. Refused where it would cost more than the two.
    """

    name = "linear_input"

    def match(self, graph: Graph, node: Node) -> LinearInput | Refusal | None:
        if node.op != "Rnn" or not _is_linear(graph, node.inputs[0]):
            return None
        rnn = Recurrent.of(node)
        first, *others = rnn.layers
        if first.layer is None:
            return None  # the pass linear_rnn's business
        if rnn.precision.is_narrow:
            return Refusal(of_another_input(rnn), rnn.y)
        linear = find_linear(graph, node)
        if isinstance(linear, Refusal):
            return replace(linear, where=rnn.y)
        if linear.weight.dtype != first.iter.dtype:
            return Refusal(f"the projection is {linear.weight.dtype}", rnn.y)
        (inner, outer), columns = linear.weight.shape, first.layer[0, :, 0].size
        if first.layer.shape[2] != outer:
            return Refusal(f"the projection gives {outer} columns", rnn.y)
        if others and rnn.spec.stacking == "onednn" and inner != outer:
            return Refusal("oneDNN's own stacking has one input size for all layers", rnn.y)
        if inner * columns >= inner * outer + outer * columns:
            return Refusal(
                f"{inner} -> {columns} costs more than {inner} -> {outer} -> {columns}", rnn.y
            )
        return LinearInput(linear, node)

    def rewrite(self, graph: Graph, match: LinearInput) -> Graph:
        linear, rnn = match.linear, Recurrent.of(match.node)
        first, *others = rnn.layers
        folded = _folded(first, linear, rnn.spec)
        weights = (folded, *others) if others else folded
        return folded_into(graph, rnn, weights, linear, (match.node,))


def _is_linear(graph: Graph, name: str) -> bool:
    added = graph.producer(name, "Add")
    return any(graph.producer(each, *PROJECTIONS) for each in (added.inputs if added else (name,)))


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
