"""Folding a projection into an rnn: fires, refuses with a reason, changes no number."""

from __future__ import annotations

import numpy as np
import pytest
from support.fusing import fired, fuse_and_check, reasons
from support.graphs import ADD, HIDDEN, INPUT, MATMUL, constants, graph, new_node, projected_gru

from onernn import fuse

STATE = {"state": "h0"}


@pytest.mark.parametrize("more", [{}, STATE], ids=["zero state", "initial state"])
@pytest.mark.parametrize("direction", ["left2right", "right2left"])
@pytest.mark.parametrize(
    "linear, made",
    [([MATMUL], "xw"), ([MATMUL, ADD], "xwb")],
    ids=["without bias", "with bias"],
)
def test_a_projection_becomes_input_weights(linear, made, direction, more) -> None:
    built = graph(
        [*linear, *projected_gru("y", made, direction=direction, **more)], ["y"], **constants()
    )
    result = fuse_and_check(built)
    assert fired(result) == ["linear_rnn"]
    (rnn,) = result.model.nodes
    assert rnn.op == "Rnn" and rnn.inputs == ("x", *more.values())
    assert rnn.attributes["spec"].input_size == INPUT
    types = [op.type for op in rnn.origin]
    assert types == [*(["mul", "elementwise_add"][: len(linear)]), "gru"]
    assert result.model.constants == {}


def test_a_gemm_with_transposed_weight_is_folded() -> None:
    arrays = constants()
    gemm = new_node("xwb = Gemm x wt b", transB=1)
    built = graph([gemm, *projected_gru("y", "xwb")], ["y"], wt=arrays["w"].T, b=arrays["b"])
    assert len(fuse_and_check(built).applied) == 1


def test_two_rnns_that_share_a_bias_and_a_weight_are_both_folded_on_copies() -> None:
    second = [
        new_node("xw2 = MatMul x w"),
        new_node("xwb2 = Add xw2 b"),
        *projected_gru("z", "xwb2", seed=5),
    ]
    built = graph([MATMUL, ADD, *projected_gru("y", "xwb"), *second], ["y", "z"], **constants())
    assert [a.where for a in fuse_and_check(built).applied] == ["y", "z"]


REFUSED = {
    "'xwb' has another user": (
        [MATMUL, ADD, *projected_gru("y", "xwb"), *projected_gru("z", "xwb", seed=1)],
        ["y", "z"],
    ),
    "'y/gates' has another user": ([MATMUL, *projected_gru("y", "xw")], ["y", "y/gates"]),
    "'xw' has another user": ([MATMUL, ADD, *projected_gru("y", "xwb")], ["y", "xw"]),
    "weight 'w2' is computed at run time": (
        [
            new_node("w2 = Tanh w"),
            new_node("xw = MatMul x w2"),
            *projected_gru("y", "xw"),
        ],
        ["y"],
    ),
    "the projection's bias is computed at run time": (
        [MATMUL, new_node("b2 = Tanh b"), new_node("xwb = Add xw b2"),
         *projected_gru("y", "xwb")],
        ["y"],
    ),
    "the input is not a linear projection": (
        [MATMUL, new_node("xwr = Relu xw"), *projected_gru("y", "xwr")],
        ["y"],
    ),
    "a Gemm with alpha or beta is not folded": (
        [new_node("xw = Gemm x w b", alpha=2.0), *projected_gru("y", "xw")],
        ["y"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_folded_is_refused_with_a_reason(reason: str) -> None:
    nodes, outputs = REFUSED[reason]
    result = fuse_and_check(graph(nodes, outputs, **constants()))
    assert result.applied == ()
    assert {*reasons(result)} == {f"linear_rnn: {reason}"}


MISFITS = {
    "(1, 1)": {"b": np.float32([[2.0]])},
    "18 columns": {"w": np.zeros((INPUT, 6 * HIDDEN), np.float32)},
    **{
        f"bias is {kind}": {"b": np.ones(3 * HIDDEN, kind)} for kind in ("bool", "int32", "float64")
    },
}


@pytest.mark.parametrize("reason", MISFITS)
def test_a_projection_of_another_width_or_dtype_stays_outside(reason: str) -> None:
    arrays = constants() | MISFITS[reason]
    made, linear = ("xw", [MATMUL]) if "w" in MISFITS[reason] else ("xwb", [MATMUL, ADD])
    result = fuse(graph([*linear, *projected_gru("y", made)], ["y"], **arrays))
    assert not result.applied and reason in reasons(result)[0]
