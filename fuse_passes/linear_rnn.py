"""A projection in front of an rnn becomes its input weights."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.weights import Weights
from onernn.reorders.gates import input_layer, summed_bias

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
        if rnn.precision.is_narrow:
            return Refusal(of_another_input(rnn), rnn.y)
        if not graph.used_only_by(rnn.x, node):
            return Refusal(f"{rnn.x!r} has another user", rnn.y)
        linear = find_linear(graph, order)
        if isinstance(linear, Refusal):
            return replace(linear, where=rnn.y)
        if linear.weight.dtype != weights.iter.dtype:
            return Refusal(f"the projection is {linear.weight.dtype}", rnn.y)
        if linear.weight.shape[1] != rnn.spec.gates * rnn.spec.hidden_size:
            return Refusal(f"the projection gives {linear.weight.shape[1]} columns", rnn.y)
        return LinearRnn(linear, order, node)

    def rewrite(self, graph: Graph, match: LinearRnn) -> Graph:
        linear, rnn = match.linear, Recurrent.of(match.node)
        order, spec, (old,) = match.layout.attributes["layout"], rnn.spec, rnn.layers
        bias, folded = old.bias, summed_bias(order, linear.bias)
        if folded is not None:
            rows = (1, spec.directions, spec.cell.bias_rows, spec.hidden_size)
            # The row u' of LBR cells stands inside r*(...): it stays.
            bias = np.zeros(rows, old.iter.dtype) if bias is None else bias.copy()
            bias[:, :, : spec.gates] += folded
        layer = np.repeat(input_layer(linear.weight, order), spec.directions, axis=1)
        weights = replace(old, layer=layer, bias=bias)
        return folded_into(graph, rnn, weights, linear, (match.node, match.layout))


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


def find_linear(graph: Graph, user: Node) -> Linear | Refusal:
    """The projection that makes ``user``'s first input and nobody else sees."""
    name = user.inputs[0]
    nodes, bias = [], None
    if node := graph.producer(name, "Add"):
        one, other = node.inputs
        made, added = (other, one) if one in graph.constants else (one, other)
        if added not in graph.constants:
            return Refusal("the projection's bias is computed at run time")
        if not graph.used_only_by(name, user):
            return Refusal(f"{name!r} has another user")
        bias = graph.constants[added]
        nodes.append(node)
        user, name = node, made
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
