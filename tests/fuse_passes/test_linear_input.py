"""A projection in front of a layer with input weights: one product where that is cheaper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.graphs import unfused
from support.layers import random_weights

from onernn import Cell, FuseResult, Graph, RnnSpec, Session, fuse
from onernn.fuse_passes.projections import fuse_linear_input
from onernn.ir.graph import NativeOp, Node, Value

C, F, H = 3, 6, 4


def graph(
    cell: Cell = Cell.LBR_GRU,
    *,
    layers: int = 1,
    inner: int = C,
    bias: bool = True,
    between: tuple[str, ...] = (),
    outputs: tuple[str, ...] = ("y",),
    dtype: str = "float32",
    direction: Any = "bidirectional_concat",
    with_bias: bool = True,
) -> Graph:
    rng = np.random.default_rng(0)
    spec = RnnSpec(cell, F, H, layers=layers, direction=direction)
    weights = random_weights(spec, 1)
    if not with_bias:
        weights = [replace(each, bias=None) for each in weights]
    constants = {"w": rng.uniform(-1, 1, (inner, F)).astype(dtype)}
    constants["b"] = rng.uniform(-1, 1, F).astype(dtype)
    nodes = [Node("MatMul", ("x", "w"), ("p",), {}, (NativeOp(0, "fc"),))]
    last = "p"
    if bias:
        nodes.append(Node("Add", ("p", "b"), ("s",), {}, (NativeOp(0, "fc"),)))
        last = "s"
    for op in between:
        nodes.append(Node(op, (last,), (f"{last}/{op}",)))
        last = nodes[-1].outputs[0]
    attributes = {"spec": spec, "weights": weights if layers > 1 else weights[0]}
    nodes.append(Node("Rnn", (last, "h0"), ("y",), attributes, (NativeOp(1, "rnn"),)))
    inputs = (Value("x", "float32", (None, None, inner)), Value("h0", "float32"))
    return Graph("m", inputs, tuple(map(Value, outputs)), tuple(nodes), constants)


def checked(built: Graph) -> FuseResult:
    result = fuse(built, (fuse_linear_input,))
    assert fuse(result.model, (fuse_linear_input,)).applied == ()
    spec = built.nodes[-1].attributes["spec"]
    rng = np.random.default_rng(2)
    inner = built.inputs[0].shape[-1]  # type: ignore[index]
    feed = {
        "x": rng.uniform(-1, 1, (5, 2, inner)).astype(np.float32),
        "h0": rng.uniform(-1, 1, (spec.layers, spec.directions, 2, H)).astype(np.float32),
    }
    before = {name: array.copy() for name, array in built.constants.items()}
    want = unfused(built, feed)
    got = unfused(result.model, feed)
    for name, array in want.items():
        # The products of some ten terms are summed in another order.
        np.testing.assert_allclose(got[name], array, rtol=0, atol=2e-6)
    for name, array in before.items():
        np.testing.assert_array_equal(built.constants[name], array)
    return result


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
    assert [each.name for each in result.applied] == ["linear_input"]


def test_a_session_folds_it_for_float32_only() -> None:
    for dtype, left in (("f32", ["Rnn"]), ("bf16", ["MatMul", "Add", "Rnn"])):
        session = Session(graph(), dtype=dtype)
        assert [node.op for node in session.graph.nodes] == left


def reason(built: Graph) -> str:
    result = checked(built)
    assert result.applied == () and len(result.refusals) == 1
    return result.refusals[0].reason


def test_what_would_cost_more_is_left_alone() -> None:
    """100 -> 6 -> 12 are 672 products a word, 100 -> 12 are 1200."""
    text = reason(graph(inner=100, direction="left2right", cell=Cell.LBR_GRU))
    assert text == "linear_input: 100 -> 12 costs more than 100 -> 6 -> 12"


def test_values_that_somebody_else_reads_are_left_alone() -> None:
    assert reason(graph(outputs=("y", "s"))) == "linear_input: 's' has another user"


def test_other_numbers_are_left_alone() -> None:
    assert "the projection is float64" in reason(graph(dtype="float64"))


def test_behind_a_function_there_is_no_projection() -> None:
    result = checked(graph(between=("Relu",)))
    assert result.applied == () and result.refusals == ()
