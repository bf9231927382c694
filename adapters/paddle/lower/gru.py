"""The rules of Paddle's GRU operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.rules import rule
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.spec import Activation, Cell, Direction, RnnSpec
from onernn.core.weights import RnnWeights, layers_of
from onernn.reorders import paddle
from onernn.reorders.gates import input_layer, summed_bias


@rule("gru")
def _gru(op: PaddleOperator) -> Results:
    flat, bias = op.constant("Weight"), op.optional_constant("Bias")
    spec, layout = _cell(op, flat)
    weights = RnnWeights(None, paddle.weight_h(flat, layout), summed_bias(layout, bias))
    x = op.emit("GateLayout", op.ragged("Input"), layout=layout)
    return _rnn(op, x, spec, weights)


@rule("fusion_gru")
def _fusion_gru(op: PaddleOperator) -> Results:
    flat, projection = op.constant("WeightH"), op.constant("WeightX")
    spec, layout = _cell(op, flat)
    weights = RnnWeights(
        input_layer(projection, layout),
        paddle.weight_h(flat, layout),
        summed_bias(layout, op.optional_constant("Bias")),
    )
    spec = spec.one_layer(projection.shape[0], spec.direction)
    return _rnn(op, op.ragged("X"), spec, weights)


@rule("multi_gru")
def _multi_gru(op: PaddleOperator) -> Results:
    """A stack of bidirectional layers: weights of l0 forward, l0 backward, l1 forward, ..."""
    op.only("Scale_data", 1.0)
    op.only("Shift_data", 0.0)
    layers = op.attribute("layers", 1)
    slots = {slot: op.constants(slot) for slot in ("WeightX", "WeightH", "Bias")}
    biases = slots["Bias"] or [None] * 2 * layers
    if layers < 1 or {len(slots["WeightX"]), len(slots["WeightH"]), len(biases)} != {2 * layers}:
        counts = {slot: len(arrays) for slot, arrays in slots.items()}
        raise UnsupportedError(f"{layers} layers in two directions of {counts} arrays")
    spec, layout = _cell(op, slots["WeightH"][0])
    parts = [
        RnnWeights(input_layer(x, layout), paddle.weight_h(h, layout), summed_bias(layout, bias))
        for x, h, bias in zip(slots["WeightX"], slots["WeightH"], biases, strict=True)
    ]
    stack = [paddle.side_by_side(parts[at : at + 2]) for at in range(0, 2 * layers, 2)]
    spec = replace(
        spec,
        input_size=slots["WeightX"][0].shape[0],
        layers=layers,
        direction="bidirectional_concat",
    )
    layers_of(spec, stack)
    weights = stack if layers > 1 else stack[0]
    return {"Hidden": op.emit("Rnn", op.ragged("X"), spec=spec, weights=weights)}


@rule("gru_unit")
def _gru_unit(op: PaddleOperator) -> Results:
    """One step of N sentences: a batch of one word each."""
    flat, bias = op.constant("Weight"), op.optional_constant("Bias")
    spec, layout = _cell(op, flat, _UNIT_FUNCTIONS)
    weights = RnnWeights(None, paddle.weight_h(flat, layout), summed_bias(layout, bias))
    weights.check(spec)
    x = op.emit("GateLayout", op.dense(op.value("Input")), layout=layout)
    x = op.emit("Unsqueeze", x, op.ints([0]))
    state = op.emit("Unsqueeze", op.dense(op.value("HiddenPrev")), op.ints([0, 1]))
    y = op.emit("Rnn", x, state, spec=spec, weights=weights)
    return {"Hidden": op.emit("Squeeze", y, op.ints([0]))}


_FUNCTIONS: Mapping[Any, str] = {name: name for name in ("sigmoid", "tanh", "relu", "identity")}
_UNIT_FUNCTIONS: Mapping[Any, str] = {0: "identity", 1: "sigmoid", 2: "tanh", 3: "relu"}


def functions(
    op: PaddleOperator, *named: tuple[str, str], known: Mapping[Any, str] = _FUNCTIONS
) -> tuple[Activation, ...]:
    """What attributes with these names and defaults choose among the functions Paddle has."""
    keys = {name: key for key, name in known.items()}
    found = [(name, op.attribute(name, keys[default])) for name, default in named]
    for name, key in found:
        if key not in known:
            raise UnsupportedError(f"attribute {name}={key!r}: expected one of {[*known]}")
    return tuple(Activation(known[key]) for _, key in found)


def _cell(
    op: PaddleOperator, flat: Array, known: Mapping[Any, str] = _FUNCTIONS
) -> tuple[RnnSpec, Any]:
    if flat.dtype != np.float32:
        raise UnsupportedError(f"its weights are {flat.dtype}, only float32 layers are supported")
    chosen = functions(op, ("gate_activation", "sigmoid"), ("activation", "tanh"), known=known)
    origin_mode = op.attribute("origin_mode", False)
    layout, update = paddle.gru_layout(origin_mode=origin_mode, gate_activation=chosen[0].name)
    direction: Direction = "right2left" if op.attribute("is_reverse", False) else "left2right"
    spec = RnnSpec(
        Cell.GRU,
        3 * flat.shape[0],
        flat.shape[0],
        direction=direction,
        activations=chosen,
        update=update,
    )
    return spec, layout


def _rnn(op: PaddleOperator, x: str, spec: RnnSpec, weights: RnnWeights) -> Results:
    weights.check(spec)
    state = op.optional("H0")
    if state:
        state = op.emit("Unsqueeze", op.dense(state), op.ints([0, 1]))
    return {"Hidden": op.emit("Rnn", x, state, spec=spec, weights=weights)}
