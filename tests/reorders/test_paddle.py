"""Paddle's layouts <-> the pivot: every scalar by its address, every way back exact."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from support.arrays import counted

from onernn.ir.errors import ShapeError
from onernn.reorders import gates, paddle
from onernn.reorders.gates import GateLayout

SIZES = st.integers(1, 7)
MODES = st.sampled_from(
    [(mode, gate) for mode in (True, False) for gate in ("sigmoid", "tanh", "relu", "identity")]
)


@pytest.mark.parametrize("hidden", [1, 2, 5])  # 1: block and row layouts coincide
@pytest.mark.parametrize("origin_mode", [True, False], ids=["origin", "not-origin"])
def test_weight_h_places_each_scalar_by_its_address(hidden: int, origin_mode: bool) -> None:
    flat = counted(hidden, 3 * hidden)
    layout, _ = paddle.gru_layout(origin_mode=origin_mode, gate_activation="sigmoid")
    got = paddle.weight_h(flat, layout)
    memory, sign = flat.reshape(-1), 1 if origin_mode else -1
    for i, o in itertools.product(range(hidden), repeat=2):
        u, r = memory[i * 2 * hidden + o], memory[i * 2 * hidden + hidden + o]
        c = memory[2 * hidden**2 + i * hidden + o]
        assert got[0, 0, i, :, o].tolist() == [sign * u, r, c]


@pytest.mark.parametrize("inputs, hidden", [(1, 1), (3, 2), (2, 5)])
@pytest.mark.parametrize("origin_mode", [True, False], ids=["origin", "not-origin"])
def test_weight_x_and_bias_keep_columns_and_turn_the_update_gate(
    inputs: int, hidden: int, origin_mode: bool
) -> None:
    weight, bias = counted(inputs, 3 * hidden), counted(1, 3 * hidden)
    layout, _ = paddle.gru_layout(origin_mode=origin_mode, gate_activation="sigmoid")
    layer, summed = gates.input_layer(weight, layout), gates.split_bias(bias, layout)
    sign = 1 if origin_mode else -1
    for i, g, o in itertools.product(range(inputs), range(3), range(hidden)):
        factor = sign if g == 0 else 1
        assert layer[0, 0, i, g, o] == factor * weight[i, g * hidden + o]
        assert summed is not None and summed[0, 0, g, o] == factor * bias[0, g * hidden + o]


@pytest.mark.parametrize("gate", ["tanh", "relu", "identity"])
def test_the_sign_turns_only_under_a_sigmoid_gate(gate: str) -> None:
    layout, update = paddle.gru_layout(origin_mode=False, gate_activation=gate)
    assert (layout.signs, update) == ((1, 1, 1), "replace")
    layout, update = paddle.gru_layout(origin_mode=True, gate_activation=gate)
    assert (layout.signs, update) == ((1, 1, 1), "keep")


@given(SIZES, SIZES, MODES)
def test_every_way_back_is_exact(inputs: int, hidden: int, mode: tuple) -> None:
    layout, _ = paddle.gru_layout(origin_mode=mode[0], gate_activation=mode[1])
    flat, weight = counted(hidden, 3 * hidden), counted(inputs, 3 * hidden)
    bias = counted(1, 3 * hidden)
    before = [a.copy() for a in (flat, weight, bias)]
    summed = gates.split_bias(bias, layout)
    assert summed is not None
    back = [
        paddle.weight_h_back(paddle.weight_h(flat, layout), layout),
        gates.input_layer_back(gates.input_layer(weight, layout), layout),
        gates.bias_back(summed, layout),
    ]
    for original, returned, kept in zip((flat, weight, bias), back, before, strict=True):
        assert_array_equal(returned, original)
        assert_array_equal(original, kept)  # nothing was changed in place


@given(st.permutations(range(4)), st.lists(st.sampled_from([1, -1]), min_size=4, max_size=4))
def test_a_layout_and_its_inverse_cancel(order: list[int], signs: list[int]) -> None:
    layout = GateLayout(tuple(order), tuple(signs))
    array = counted(2, 12)
    assert_array_equal(layout.inverse(layout(array)), array)
    assert_array_equal(layout(layout.inverse(array)), array)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_signs_turn_their_gate_and_no_other(count: int, width: int, dtype: str) -> None:
    """Number by number: NumPy 2.4 negates every fourth float32, in place, wrongly."""
    array = counted(5, count * width).astype(dtype)
    for turned in range(count):
        signs = tuple(-1 if gate == turned else 1 for gate in range(count))
        made = GateLayout(tuple(range(count)), signs).split(array)
        for row, gate, unit in itertools.product(range(5), range(count), range(width)):
            assert made[row, gate, unit] == signs[gate] * array[row, gate * width + unit]


def test_a_bias_is_split_into_a_new_array() -> None:
    layout, _ = paddle.gru_layout(origin_mode=True, gate_activation="sigmoid")
    bias = counted(6)
    got = gates.split_bias(bias, layout)
    assert got is not None and not np.shares_memory(got, bias)
    assert gates.split_bias(None, layout) is None


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda p: paddle.weight_h(counted(3, 6), p),
            r"WeightH: expected \(O, 3\*O\), got \(3, 6\)",
        ),
        (lambda p: gates.input_layer(counted(2, 4), p), "multiple of 3 columns"),
        (lambda p: gates.split_bias(counted(2, 3), p), r"bias: .*, got \(2, 3\)"),
    ],
)
def test_wrong_shapes_are_refused_by_name(call, message: str) -> None:
    layout, _ = paddle.gru_layout(origin_mode=True, gate_activation="sigmoid")
    with pytest.raises(ShapeError, match=message):
        call(layout)


def test_a_layout_that_is_no_permutation_is_refused() -> None:
    with pytest.raises(ValueError, match="expected each of"):
        GateLayout((0, 0, 1), (1, 1, 1))
