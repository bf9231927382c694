"""Merges a projection before a layer into the layer, and projects embedding tables once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from onernn.fuse_passes.rewriting import Tape, rewrite
from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import Weights
from onernn.reorders.gates import input_layer, split_bias

# A projection before a layer without input weights becomes the layer's input weights.


PROJECTIONS = ("MatMul", "Gemm")


@dataclass(frozen=True, eq=False)
class Linear:
    """A projection ``x @ weight + bias``, and the nodes that compute it, the last one first."""

    nodes: tuple[Node, ...]
    x: str
    weight: Array
    bias: Array | None


@rewrite("linear_rnn", "Rnn")
def fuse_linear_rnn(graph: Graph, node: Node) -> Graph | str | None:
    """Turns ``Rnn(GateLayout(x @ W + b))`` into ``Rnn(x)``: Paddle's fc_gru and mul_gru fusion.

    Input weights and bias become new arrays, because other nodes may read the old ones.
    """
    layout = graph.producer(node.inputs[0], "GateLayout")
    if layout is None:
        return None
    rnn = Recurrent.of(node)
    old, *others = rnn.layers
    if old.layer is not None or others:
        return None
    linear = _projection_before(graph, layout, rnn, rnn.spec.gates * rnn.spec.hidden_size)
    if isinstance(linear, str):
        return linear
    if not graph.is_used_only_by(rnn.x, node):
        return f"{rnn.x!r} has another user"
    order, spec = layout.attributes["layout"], rnn.spec
    added = split_bias(linear.bias, order)
    bias = old.bias if added is None else _add_bias(old.bias, added, spec, old.iter.dtype)
    layer = np.repeat(input_layer(linear.weight, order), spec.directions, axis=1)
    return _fold(graph, rnn, replace(old, layer=layer, bias=bias), linear, (node, layout))


def _add_bias(bias: Array | None, folded: Array, spec: RnnSpec, dtype: Any) -> Array:
    """Adds ``folded`` to the biases of the gates. The row u' of LBR cells, which is the bias inside
    r*(...), stays the same.
    """
    rows = (1, spec.directions, spec.cell.bias_rows, spec.hidden_size)
    out = np.zeros(rows, dtype) if bias is None else bias.astype(dtype)
    out[:, :, : spec.gates] += folded
    return out


def _why_input_stays(rnn: Recurrent) -> str:
    return f"its precision, {rnn.precision.dtype}, belongs to the input that it has"


def _fold(
    graph: Graph, rnn: Recurrent, weights: Weights, linear: Linear, behind: tuple[Node, ...]
) -> Graph:
    """Returns the graph in which a layer with new ``weights`` replaces a layer and the projection
    before it.

    ``behind``: the layer's node, and the nodes between it and the projection.
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


def _projection_before(graph: Graph, user: Node, rnn: Recurrent, width: int) -> Linear | str:
    """Returns the projection to ``width`` columns that ``user`` reads, or why it cannot be
    merged.
    """
    if rnn.precision.is_narrow:
        return _why_input_stays(rnn)
    linear = find_linear(graph, user)
    if isinstance(linear, str):
        return linear
    if linear.weight.dtype != rnn.layers[0].iter.dtype:
        return f"the projection is {linear.weight.dtype}"
    if linear.weight.shape[1] != width:
        return f"the projection has {linear.weight.shape[1]} columns"
    return linear


def find_linear(graph: Graph, user: Node) -> Linear | str:
    """Returns the projection that only ``user`` reads as its first input, or why there is none."""
    name = user.inputs[0]
    nodes, bias = [], None
    if node := graph.producer(name, "Add"):
        one, other = node.inputs
        result, added = (other, one) if one in graph.constants else (one, other)
        if added not in graph.constants:
            return "the projection's bias is computed at run time"
        if not graph.is_used_only_by(name, user):
            return f"{name!r} has another user"
        bias = graph.constants[added]
        nodes.append(node)
        user, name = node, result
    node = graph.producer(name, *PROJECTIONS)
    if node is None:
        return "the input is not a linear projection"
    if not graph.is_used_only_by(name, user):
        return f"{name!r} has another user"
    if node.inputs[1] not in graph.constants:
        return f"weight {node.inputs[1]!r} is computed at run time"
    weight = graph.constants[node.inputs[1]]
    if node.op == "Gemm":
        if node.attributes.get("transA") or bias is not None and node.input(2):
            return "a Gemm with transA, or with a second bias, is not folded"
        if node.attributes.get("alpha", 1.0) != 1 or node.attributes.get("beta", 1.0) != 1:
            return "a Gemm with alpha or beta is not folded"
        if node.input(2):
            if node.inputs[2] not in graph.constants:
                return "the projection's bias is computed at run time"
            bias = graph.constants[node.inputs[2]]
        weight = weight.T if node.attributes.get("transB") else weight
    if weight.ndim != 2:
        return f"the projection's weight has {weight.ndim} axes"
    if bias is not None and (bias.size != weight.shape[1] or bias.shape[-1:] != (bias.size,)):
        return f"the projection's bias {bias.shape} does not have one value per column"
    if bias is not None and bias.dtype != weight.dtype:
        return f"the projection's bias is {bias.dtype}, its weight {weight.dtype}"
    rank = graph.types[name].rank
    if bias is not None and bias.ndim > 2 and (rank is None or rank < bias.ndim):
        return f"the projection's bias {bias.shape} may add an axis"
    return Linear((*nodes, node), node.inputs[0], weight, bias)


# A projection before a layer with input weights is multiplied by them.


@rewrite("linear_input", "Rnn")
def fuse_linear_input(graph: Graph, node: Node) -> Graph | str | None:
    """Turns ``Rnn(x @ W + b)`` into ``Rnn(x)``, with W multiplied into the input weights.

    An example is MXNet's FullyConnected before RNN. The weights' product is computed in float64 and
    rounded once. The pass refuses unless the one new product of a step costs less than the two old
    products.
    """
    if not _is_linear(graph, node.inputs[0]):
        return None
    rnn = Recurrent.of(node)
    first, *others = rnn.layers
    if first.layer is None:
        return None  # the pass linear_rnn handles this case
    linear = _projection_before(graph, node, rnn, first.layer.shape[2])
    if isinstance(linear, str):
        return linear
    (inner, outer), columns = linear.weight.shape, first.layer[0, :, 0].size
    if others and rnn.spec.stacking == "onednn" and inner != outer:
        return "oneDNN's own stacking has one input size for all layers"
    if inner * columns >= inner * outer + outer * columns:
        reason = f"{inner} -> {columns} costs more than {inner} -> {outer} -> {columns}"
        return reason
    layer, dtype, bias = first.layer.astype(np.float64), first.iter.dtype, first.bias
    product = np.einsum("ij,ldjgo->ldigo", linear.weight.astype(np.float64), layer)
    if linear.bias is not None:
        own = linear.bias.reshape(-1).astype(np.float64)
        bias = _add_bias(bias, np.einsum("j,ldjgo->ldgo", own, layer), rnn.spec, np.float64)
    bias = None if bias is None else bias.astype(dtype)
    weights = replace(first, layer=product.astype(dtype), bias=bias)
    return _fold(graph, rnn, (weights, *others) if others else weights, linear, (node,))


def _is_linear(graph: Graph, name: str) -> bool:
    added = graph.producer(name, "Add")
    return any(graph.producer(each, *PROJECTIONS) for each in (added.inputs if added else (name,)))


# Projects a constant embedding table once, instead of its rows in each step.


LIMIT = 64 * 2**20
"""The maximum number of bytes of a projected table."""
NARROWEST = 512
"""The minimum number of channels of a table for which `fuse_embedding_rnn` makes runs faster.

Measured with one thread and 1000 words: with 512 channels and hidden size 512, runs are faster by a
third. With 128 channels and hidden size 256, runs are slower by 2 to 10 %, because projected rows
are several times as wide as rows of the table.
"""


@rewrite("embedding_rnn", "Rnn")
def fuse_embedding_rnn(graph: Graph, node: Node) -> Graph | str | None:
    """Turns ``Rnn(Gather(table, ids))`` into ``Rnn(Gather(table @ weights, ids))``.

    It is Paddle's embedding_fc_lstm_fuse_pass. The bias stays in the layer, so that a row of zeros
    in the table stays a row of zeros. The pass refuses if the new table would exceed `LIMIT`, or if
    the old one has fewer channels than `NARROWEST`.
    """
    gather = graph.producer(node.inputs[0], "Gather")
    if gather is None or gather.attrs.axis:
        return None
    rnn = Recurrent.of(node)
    weights, *others = rnn.layers
    if weights.layer is None:
        return None
    if rnn.precision.is_narrow:
        return _why_input_stays(rnn)
    if others and rnn.spec.stacking == "onednn":
        return "oneDNN's own stacking has input weights in every layer"
    if weights.layer.shape[1] > 1:
        return "two directions would need two tables"
    table = graph.constants.get(gather.inputs[0])
    if table is None:
        return f"the table {gather.inputs[0]!r} is computed at run time"
    if table.ndim != 2 or table.dtype != weights.iter.dtype:
        return f"the table is {table.dtype} {table.shape}"
    if not graph.is_used_only_by(rnn.x, node):
        return f"{rnn.x!r} has another user"
    if table.shape[1] < NARROWEST:
        return f"{table.shape[1]} channels: wider rows would cost more"
    size = len(table) * weights.layer[0, 0, 0].nbytes
    if size > LIMIT:
        return f"the table would take {size} bytes, the limit is {LIMIT}"
    projection = weights.layer[0, 0].reshape(table.shape[1], -1)
    to = Tape(graph, rnn.y, gather.origin)
    product = to.constant(np.matmul(table, projection), table.dtype)
    rows = to.emit("Gather", product, *gather.inputs[1:], **gather.attributes)
    left = replace(weights, layer=None)
    new = replace(
        rnn,
        x=rows,
        spec=replace(rnn.spec, input_size=projection.shape[1]),
        weights=(left, *others) if others else left,
        origin=tuple(dict.fromkeys((*gather.origin, *rnn.origin))),
    )
    to.nodes.append(new.node())
    return to.replace(gather, node)
