"""A projection in front of a layer, or a table of projected words, becomes part of the layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.fuse_passes.rewriting import fresh
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import RnnWeights, Weights
from onernn.reorders.gates import input_layer, summed_bias

# A projection in front of a layer without input weights becomes these.


PROJECTIONS = ("MatMul", "Gemm")


@dataclass(frozen=True, eq=False)
class Linear:
    """``x @ weight + bias`` and the nodes that compute it, the last one first."""

    nodes: tuple[Node, ...]
    x: str
    weight: Array
    bias: Array | None


class LinearRnn(NamedTuple):
    linear: Linear
    layout: Node
    node: Node


class FuseLinearRnn:
    """``Rnn(GateLayout(x @ W + b))`` -> ``Rnn(x)``: Paddle's fc_gru and mul_gru fusion.

    Input weights and bias are new arrays: the old ones may be shared with other nodes.
    """

    name = "linear_rnn"

    def match(self, graph: Graph, node: Node) -> LinearRnn | Refusal | None:
        order = graph.producer(node.inputs[0], "GateLayout") if node.op == "Rnn" else None
        if order is None:
            return None
        rnn = Recurrent.of(node)
        weights, *others = rnn.layers
        if weights.layer is not None or others:
            return None
        linear = _in_front(graph, order, rnn, rnn.spec.gates * rnn.spec.hidden_size)
        if isinstance(linear, Refusal):
            return linear
        if not graph.used_only_by(rnn.x, node):
            return Refusal(f"{rnn.x!r} has another user", rnn.y)
        return LinearRnn(linear, order, node)

    def rewrite(self, graph: Graph, match: LinearRnn) -> Graph:
        linear, rnn = match.linear, Recurrent.of(match.node)
        order, spec, (old,) = match.layout.attributes["layout"], rnn.spec, rnn.layers
        folded = summed_bias(order, linear.bias)
        bias = old.bias if folded is None else _added(old.bias, folded, spec, old.iter.dtype)
        layer = np.repeat(input_layer(linear.weight, order), spec.directions, axis=1)
        weights = replace(old, layer=layer, bias=bias)
        return folded_into(graph, rnn, weights, linear, (match.node, match.layout))


def _added(bias: Array | None, folded: Array, spec: RnnSpec, dtype: Any) -> Array:
    """A layer's bias and that of its gates' sums. The row u' of LBR cells is inside r*(...)."""
    rows = (1, spec.directions, spec.cell.bias_rows, spec.hidden_size)
    out = np.zeros(rows, dtype) if bias is None else bias.astype(dtype)
    out[:, :, : spec.gates] += folded
    return out


def of_another_input(rnn: Recurrent) -> str:
    """Why a layer that has a precision of its own keeps its input and weights."""
    return f"its precision, {rnn.precision.dtype}, belongs to the input that it has"


def folded_into(
    graph: Graph, rnn: Recurrent, weights: Weights, linear: Linear, behind: tuple[Node, ...]
) -> Graph:
    """The graph with a layer over what a projection reads, in the place of both.

    ``behind``: the nodes behind the projection, the layer first.
    """
    gone = (*behind, *linear.nodes)
    new = replace(
        rnn,
        x=linear.x,
        spec=replace(rnn.spec, input_size=linear.weight.shape[0]),
        weights=weights,
        origin=tuple(dict.fromkeys(op for node in reversed(gone) for op in node.origin)),
    )
    return graph.splice(gone, [new.node()])


def _in_front(graph: Graph, user: Node, rnn: Recurrent, width: int) -> Linear | Refusal:
    """The projection to so many columns that a layer reads through ``user``."""
    if rnn.precision.is_narrow:
        return Refusal(of_another_input(rnn), rnn.y)
    linear = find_linear(graph, user)
    if isinstance(linear, Refusal):
        return replace(linear, where=rnn.y)
    if linear.weight.dtype != rnn.layers[0].iter.dtype:
        return Refusal(f"the projection is {linear.weight.dtype}", rnn.y)
    if linear.weight.shape[1] != width:
        return Refusal(f"the projection gives {linear.weight.shape[1]} columns", rnn.y)
    return linear


def find_linear(graph: Graph, user: Node) -> Linear | Refusal:
    """The projection that makes ``user``'s first input and has no other reader."""
    name = user.inputs[0]
    nodes, bias = [], None
    if node := graph.producer(name, "Add"):
        one, other = node.inputs
        result, added = (other, one) if one in graph.constants else (one, other)
        if added not in graph.constants:
            return Refusal("the projection's bias is computed at run time")
        if not graph.used_only_by(name, user):
            return Refusal(f"{name!r} has another user")
        bias = graph.constants[added]
        nodes.append(node)
        user, name = node, result
    node = graph.producer(name, *PROJECTIONS)
    if node is None:
        return Refusal("the input is not a linear projection")
    if not graph.used_only_by(name, user):
        return Refusal(f"{name!r} has another user")
    if node.inputs[1] not in graph.constants:
        return Refusal(f"weight {node.inputs[1]!r} is computed at run time")
    weight = graph.constants[node.inputs[1]]
    if node.op == "Gemm":
        if node.attributes.get("transA") or bias is not None and node.input(2):
            return Refusal("a Gemm of this form is not folded")
        if node.attributes.get("alpha", 1.0) != 1 or node.attributes.get("beta", 1.0) != 1:
            return Refusal("a Gemm with alpha or beta is not folded")
        if node.input(2):
            if node.inputs[2] not in graph.constants:
                return Refusal("the projection's bias is computed at run time")
            bias = graph.constants[node.inputs[2]]
        weight = weight.T if node.attributes.get("transB") else weight
    if weight.ndim != 2:
        return Refusal(f"the projection's weight has {weight.ndim} axes")
    if bias is not None and (bias.size != weight.shape[1] or bias.shape[-1:] != (bias.size,)):
        return Refusal(f"the projection's bias {bias.shape} is not one a column")
    if bias is not None and bias.dtype != weight.dtype:
        return Refusal(f"the projection's bias is {bias.dtype}, its weight {weight.dtype}")
    rank = graph.types[name].rank
    if bias is not None and bias.ndim > 2 and (rank is None or rank < bias.ndim):
        return Refusal(f"the projection's bias {bias.shape} may add an axis")
    return Linear((*nodes, node), node.inputs[0], weight, bias)


# A projection in front of a layer with input weights is multiplied into them.


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
        linear = _in_front(graph, node, rnn, first.layer.shape[2])
        if isinstance(linear, Refusal):
            return linear
        (inner, outer), columns = linear.weight.shape, first.layer[0, :, 0].size
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
        own = linear.bias.reshape(-1).astype(np.float64)
        bias = _added(bias, np.einsum("j,ldjgo->ldgo", own, layer), spec, np.float64)
    return replace(
        first, layer=product.astype(dtype), bias=None if bias is None else bias.astype(dtype)
    )


# A constant table of words is projected once, not each word again.


LIMIT = 64 * 2**20
"""Bytes that a projected table may have."""
NARROWEST = 512
"""Channels of the narrowest table for which it pays.

Measured, one thread, 1000 words: 512 -> 512 gains a third; 128 -> 256 loses 2 to 10 %, as rows
three or four times as wide are read.
"""


class Embedded(NamedTuple):
    gather: Node
    node: Node
    table: Array
    projection: Array


class FuseEmbeddingRnn:
    """``Rnn(Gather(table, ids))`` -> ``Rnn(Gather(table @ weights, ids))``.

    Paddle's embedding_fc_lstm_fuse_pass. The bias stays in the rnn, so that a row of zeros stays
    one. ``limit``: bytes of the new table above which the pass refuses; ``narrowest``: channels of
    the old one below which it does.
    """

    name = "embedding_rnn"

    def __init__(self, limit: int = LIMIT, narrowest: int = NARROWEST) -> None:
        self.limit, self.narrowest = limit, narrowest

    def match(self, graph: Graph, node: Node) -> Embedded | Refusal | None:
        gather = graph.producer(node.inputs[0], "Gather") if node.op == "Rnn" else None
        if gather is None or gather.attrs.axis:
            return None
        rnn = Recurrent.of(node)
        weights, *others = rnn.layers
        if weights.layer is None:
            return None
        if rnn.precision.is_narrow:
            return Refusal(of_another_input(rnn), rnn.y)
        if others and rnn.spec.stacking == "onednn":
            return Refusal("oneDNN's own stacking has input weights in every layer", rnn.y)
        if weights.layer.shape[1] > 1:
            return Refusal("two directions would need two tables", rnn.y)
        table = graph.constants.get(gather.inputs[0])
        if table is None:
            return Refusal(f"the table {gather.inputs[0]!r} is computed at run time", rnn.y)
        if table.ndim != 2 or table.dtype != weights.iter.dtype:
            return Refusal(f"the table is {table.dtype} {table.shape}", rnn.y)
        if not graph.used_only_by(rnn.x, node):
            return Refusal(f"{rnn.x!r} has another user", rnn.y)
        if table.shape[1] < self.narrowest:
            return Refusal(f"{table.shape[1]} channels: wider rows would cost more", rnn.y)
        size = len(table) * weights.layer[0, 0, 0].nbytes
        if size > self.limit:
            return Refusal(f"the table would take {size} bytes, the limit is {self.limit}", rnn.y)
        return Embedded(gather, node, table, weights.layer[0, 0].reshape(table.shape[1], -1))

    def rewrite(self, graph: Graph, match: Embedded) -> Graph:
        gather, rnn = match.gather, Recurrent.of(match.node)
        first, *others = rnn.layers
        projected = replace(first, layer=None)
        table = fresh(graph, f"{rnn.y}/table")
        rows = fresh(graph, f"{rnn.y}/projected")
        words = replace(gather, inputs=(table, *gather.inputs[1:]), outputs=(rows,))
        new = replace(
            rnn,
            x=rows,
            spec=replace(rnn.spec, input_size=match.projection.shape[1]),
            weights=(projected, *others) if others else projected,
            origin=tuple(dict.fromkeys((*gather.origin, *rnn.origin))),
        )
        product = np.matmul(match.table, match.projection)
        return graph.splice((gather, match.node), (words, new.node()), {table: product})
