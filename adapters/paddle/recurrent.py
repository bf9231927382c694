"""The rules of Paddle's recurrent operators, and of the decoding behind them."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.adapters.paddle.native import PaddleOperator
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.spec import Activation, Cell, Direction, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.reorders import paddle
from onernn.reorders.gates import input_layer, summed_bias


def gru(op: PaddleOperator) -> None:
    flat, bias = op.constant("Weight"), op.optional_constant("Bias")
    spec, layout = _cell(op, flat)
    weights = RnnWeights(None, paddle.weight_h(flat, layout), summed_bias(layout, bias))
    x = op.emit("GateLayout", op.value("Input"), layout=layout)
    _rnn(op, x, spec, weights)


def fusion_gru(op: PaddleOperator) -> None:
    flat, projection = op.constant("WeightH"), op.constant("WeightX")
    spec, layout = _cell(op, flat)
    weights = RnnWeights(
        input_layer(projection, layout),
        paddle.weight_h(flat, layout),
        summed_bias(layout, op.optional_constant("Bias")),
    )
    _rnn(op, op.value("X"), spec.one_layer(projection.shape[0], spec.direction), weights)


def _cell(op: PaddleOperator, flat: Array) -> tuple[RnnSpec, Any]:
    if flat.dtype != np.float32:
        raise UnsupportedError(f"its weights are {flat.dtype}, only float32 layers are supported")
    functions = (
        op.attribute("gate_activation", "sigmoid"),
        op.attribute("activation", "tanh"),
    )
    origin_mode = op.attribute("origin_mode", False)
    layout, update = paddle.gru_layout(origin_mode=origin_mode, gate_activation=functions[0])
    direction: Direction = "right2left" if op.attribute("is_reverse", False) else "left2right"
    spec = RnnSpec(
        Cell.GRU,
        3 * flat.shape[0],
        flat.shape[0],
        direction=direction,
        activations=(Activation(functions[0]), Activation(functions[1])),
        update=update,
    )
    return spec, layout


def _rnn(op: PaddleOperator, x: str, spec: RnnSpec, weights: RnnWeights) -> None:
    weights.check(spec)
    state = op.optional("H0")
    if state:
        state = op.emit("Unsqueeze", op.dense(state), op.ints([0, 1]))
    if not op.is_ragged(x):
        raise UnsupportedError("its input carries no LoD")
    op.give("Hidden", op.emit("Rnn", x, state, spec=spec, weights=weights))


def crf_decoding(op: PaddleOperator) -> None:
    emission = op.value("Emission")
    if op.optional("Length"):
        raise UnsupportedError("input Length: padded emissions are not supported")
    if not op.is_ragged(emission):
        raise UnsupportedError("its input carries no LoD")
    path = op.emit("CrfDecode", emission, op.value("Transition"))
    if label := op.optional("Label"):  # then the output tells where the path agrees with it
        agreed = op.emit("Equal", path, op.emit("Reshape", op.dense(label), op.ints([-1, 1])))
        path = op.emit("Cast", agreed, to="int64")
    op.give("ViterbiPath", path)
