"""Parameters of Paddle's lstm and rnn: each scalar lands where its formula wants it, and back."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.arrays import counted

from onernn import RnnWeights, ShapeError
from onernn.ir.arrays import digest
from onernn.reorders import paddle
from onernn.reorders.gates import input_layer, input_layer_back


@pytest.mark.parametrize("hidden", [1, 3])
def test_lstm_gates_c_i_f_o_become_i_f_c_o(hidden: int) -> None:
    weight = counted(2, 4 * hidden)
    got = input_layer(weight, paddle.LSTM)
    for k, o in itertools.product(range(2), range(hidden)):
        c, i, f, last = (weight[k, gate * hidden + o] for gate in range(4))
        assert got[0, 0, k, :, o].tolist() == [i, f, c, last]
    assert_array_equal(input_layer_back(got, paddle.LSTM), weight)


@pytest.mark.parametrize("hidden", [1, 4, 7])
@pytest.mark.parametrize("peephole", [False, True])
def test_lstm_bias_holds_the_peepholes_of_i_f_o_behind(hidden: int, peephole: bool) -> None:
    flat = counted(1, (7 if peephole else 4) * hidden)
    bias, diagonal = paddle.lstm_bias(flat, peephole=peephole)
    blocks = flat.reshape(-1, hidden)
    assert_array_equal(bias[0, 0], blocks[[1, 2, 0, 3]])
    if peephole:
        assert diagonal is not None
        assert_array_equal(diagonal[0, 0], blocks[4:])
    else:
        assert diagonal is None
    assert_array_equal(paddle.lstm_bias_back(bias, diagonal), flat)


@pytest.mark.parametrize("shape, peephole", [((1, 13), True), ((1, 14), False), ((2, 8), False)])
def test_an_lstm_bias_of_another_size_is_refused(shape: tuple[int, ...], peephole: bool) -> None:
    with pytest.raises(ShapeError, match="Bias: expected"):
        paddle.lstm_bias(counted(*shape), peephole=peephole)


def weight_list(mode: str, layers: int, directions: int, inputs: int, hidden: int) -> list:
    """As paddle.nn saves them: all matrices, then all biases."""
    rows = {"LSTM": 4, "GRU": 3}.get(mode, 1) * hidden
    matrices, biases = [], []
    for layer, d in itertools.product(range(layers), range(directions)):
        start = 1000 * (2 * layer + d) + 1
        width = inputs if layer == 0 else directions * hidden
        matrices += [counted(rows, width, start=start), counted(rows, hidden, start=start + 300)]
        biases += [counted(rows, start=start + 500), counted(rows, start=start + 600)]
    return matrices + biases


@pytest.mark.parametrize("layers, directions", [(1, 1), (1, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN_TANH", "RNN_RELU"])
def test_rnn_weights_by_their_formula(mode: str, layers: int, directions: int) -> None:
    arrays, hidden = weight_list(mode, layers, directions, 4, 3), 3
    got = paddle.rnn_weights(arrays, mode, layers, directions)
    order = {"LSTM": [0, 1, 2, 3], "GRU": [1, 0, 2]}.get(mode, [0])  # r, z, c -> z, r, c
    for layer, d in itertools.product(range(layers), range(directions)):
        at = 2 * (layer * directions + d)
        w_ih, w_hh = (a.reshape(len(order), hidden, -1)[order] for a in arrays[at : at + 2])
        b_ih, b_hh = (
            a.reshape(len(order), hidden)[order] for a in arrays[2 * layers * directions + at :][:2]
        )
        part = got[layer].part(0, d)
        assert_array_equal(part.layer[0, 0], w_ih.transpose(2, 0, 1))
        assert_array_equal(part.iter[0, 0], w_hh.transpose(2, 0, 1))
        expected = b_ih + b_hh
        if mode == "GRU":  # b_hh of the candidate stands inside r*(...)
            expected = np.stack([*(b_ih + b_hh)[:2], b_ih[2], b_hh[2]])
        assert_array_equal(part.bias[0, 0], expected)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN_TANH", "RNN_RELU"])
def test_rnn_weights_go_there_and_back_exactly(mode: str, directions: int, bias: bool) -> None:
    arrays = weight_list(mode, 2, directions, 4, 3)
    matrices = arrays[: len(arrays) // 2]
    given = arrays if bias else matrices
    weights = paddle.rnn_weights(given, mode, 2, directions)
    back = paddle.rnn_weights_back(weights, mode)
    assert [a.shape for a in back] == [a.shape for a in given]
    again = paddle.rnn_weights(back, mode, 2, directions)
    assert digest(again) == digest(weights) and digest(back[: len(matrices)]) == digest(matrices)


def test_a_weight_list_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ShapeError, match="WeightList: expected 8 arrays, got 5"):
        paddle.rnn_weights(weight_list("GRU", 1, 2, 4, 3)[:5], "GRU", 1, 2)


def test_a_projected_layer_has_no_weight_list() -> None:
    weights = RnnWeights(None, counted(1, 1, 3, 4, 3))
    with pytest.raises(ShapeError, match="input weights w_ih"):
        paddle.rnn_weights_back([weights], "LSTM")
