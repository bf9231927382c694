"""A projection in front of a layer with input weights: one product where that is cheaper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.arrays import uniform
from support.fusing import check_fused, fired, reasons
from support.graphs import small_graph
from support.layers import random_weights

from onernn import Cell, FuseResult, Graph, RnnSpec, Session
from onernn.fuse_passes.projections import fuse_linear_input
from onernn.ir.graph import NativeOp, Node

C, F, H = 3, 6, 4


def graph(
    cell: Cell = Cell.LBR_GRU,
    *,
    layers: int = 1,
    inner: int = C,
    bias: bool = True,
    between: tuple[str, ...] = (),
    outputs: str = "y",
    dtype: str = "float32",
    direction: Any = "bidirectional_concat",
    with_bias: bool = True,
) -> Graph:
    spec = RnnSpec(cell, F, H, layers=layers, direction=direction)
    weights = random_weights(spec, 1)
    if not with_bias:
        weights = [replace(each, bias=None) for each in weights]
    constants = {"w": uniform(inner, F).astype(dtype), "b": uniform(F).astype(dtype)}
    nodes = [Node("MatMul", ("x", "w"), ("p",), {}, (NativeOp(0, "fc"),))]
    last = "p"
    if bias:
        nodes.append(Node("Add", ("p", "b"), ("s",), {}, (NativeOp(0, "fc"),)))
        last = "s"
    for op in between:
        nodes.append(Node(op, (last,), (f"{last}/{op}",)))
        last = nodes[-1].outputs[0]
    attributes = {"spec": spec, "weights": weights}
    nodes.append(Node("Rnn", (last, "h0"), ("y",), attributes, (NativeOp(1, "rnn"),)))
    return small_graph(nodes, outputs, constants, x=(None, None, inner), h0=None)


def checked(built: Graph) -> FuseResult:
    spec = built.nodes[-1].attributes["spec"]
    inner = built.inputs[0].shape[-1]  # type: ignore[index]
    feed = {"x": uniform(5, 2, inner), "h0": uniform(spec.layers, spec.directions, 2, H)}
    return check_fused(built, feed, passes=(fuse_linear_input,), atol=2e-6)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", [Cell.RNN_TANH, Cell.GRU, Cell.LBR_GRU])
def test_a_projection_is_folded(cell: Cell, layers: int, bias: bool, with_bias: bool) -> None:
    result = checked(graph(cell, layers=layers, bias=bias, with_bias=with_bias))
    (rnn,) = result.model.nodes
    assert rnn.op == "Rnn" and rnn.inputs == ("x", "h0")
    assert rnn.attributes["spec"].input_size == C
    assert [op.type for op in rnn.origin] == ["fc", "rnn"]
    assert fired(result) == ["linear_input"]


def test_a_session_folds_it_for_float32_only() -> None:
    for dtype, left in (("f32", ["Rnn"]), ("bf16", ["MatMul", "Add", "Rnn"])):
        session = Session(graph(), dtype=dtype)
        assert [node.op for node in session.graph.nodes] == left


REFUSED = {
    # 100 -> 6 -> 12 are 672 products a step, 100 -> 12 are 1200.
    "100 -> 12 costs more than 100 -> 6 -> 12": {"inner": 100, "direction": "left2right"},
    "'s' has another user": {"outputs": "y s"},
    "the projection is float64": {"dtype": "float64"},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_costs_more_or_does_not_fit_is_left_alone(reason: str) -> None:
    result = checked(graph(**REFUSED[reason]))
    assert result.applied == () and reasons(result) == [f"linear_input: {reason}"]


def test_behind_a_function_there_is_no_projection() -> None:
    result = checked(graph(between=("Relu",)))
    assert result.applied == () and result.refusals == ()
