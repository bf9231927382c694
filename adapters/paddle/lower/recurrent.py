"""The rules of Paddle's recurrent operators.

Formulas and slots: lstm_op.cc, fusion_lstm_op.cc, fused_embedding_fc_lstm_op.cc and rnn_kernel.cc
of 2.6, and the documentation of paddle.nn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.blocks import listed
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.quantized import layer_numbers
from onernn.adapters.paddle.lower.rules import rule
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.precision import OWN, LayerPrecision
from onernn.core.spec import Activation, Cell, Direction, RnnSpec
from onernn.core.weights import RnnWeights, layers_of
from onernn.reorders import paddle
from onernn.reorders.gates import GateLayout, input_layer, summed_bias

_FUNCTIONS: Mapping[Any, str] = {name: name for name in ("sigmoid", "tanh", "relu", "identity")}
_UNIT_FUNCTIONS: Mapping[Any, str] = {0: "identity", 1: "sigmoid", 2: "tanh", 3: "relu"}


def _functions(
    op: PaddleOperator, known: Mapping[Any, str], **named: str
) -> tuple[Activation, ...]:
    """What attributes with these names and defaults choose among the functions Paddle has."""
    keys = {name: key for key, name in known.items()}
    found = {name: op.attribute(name, keys[default]) for name, default in named.items()}
    for name, key in found.items():
        if key not in known:
            raise UnsupportedError(f"attribute {name}={key!r}: expected one of {[*known]}")
    return tuple(Activation(known[key]) for key in found.values())


def _direction(op: PaddleOperator) -> Direction:
    return "right2left" if op.attribute("is_reverse", False) else "left2right"


def _check_float32(*weights: Array) -> None:
    if others := {array.dtype.name for array in weights} - {"float32"}:
        raise UnsupportedError(f"its weights are {others.pop()}, only float32 layers are supported")


def _over_words(
    op: PaddleOperator,
    x: str,
    spec: RnnSpec,
    weights: RnnWeights,
    count: int,
    *slots: str,
    precision: LayerPrecision = OWN,
) -> tuple[str, ...]:
    """So many outputs of a layer with initial states (N, O) in these slots, all or none."""
    weights.check(spec)
    states = [op.optional(slot) for slot in slots]
    if "" in states and any(states):
        raise UnsupportedError(f"inputs {' and '.join(slots)} go together")
    states = [state and op.emit("Unsqueeze", op.dense(state), op.ints([0, 1])) for state in states]
    attributes = {"spec": spec, "weights": weights, "precision": precision}
    return op.builder.emit_many("Rnn", (x, *states), count, attributes)


def _gru_cell(
    op: PaddleOperator, flat: Array, known: Mapping[Any, str] = _FUNCTIONS
) -> tuple[RnnSpec, GateLayout]:
    """A GRU whose input is projected already."""
    _check_float32(flat)
    chosen = _functions(op, known, gate_activation="sigmoid", activation="tanh")
    origin_mode = op.attribute("origin_mode", False)
    layout, update = paddle.gru_layout(origin_mode=origin_mode, gate_activation=chosen[0].name)
    hidden, direction = flat.shape[0], _direction(op)
    cell = RnnSpec(Cell.GRU, 3 * hidden, hidden, direction=direction)
    return replace(cell, activations=chosen, update=update), layout


@rule("gru")
def _gru(op: PaddleOperator) -> Results:
    flat, bias = op.constant("Weight"), op.optional_constant("Bias")
    spec, layout = _gru_cell(op, flat)
    weights = RnnWeights(None, paddle.weight_h(flat, layout), summed_bias(layout, bias))
    x = op.emit("GateLayout", op.ragged("Input"), layout=layout)
    return {"Hidden": _over_words(op, x, spec, weights, 1, "H0")[0]}


@rule("fusion_gru")
def _fusion_gru(op: PaddleOperator) -> Results:
    flat, projection = op.constant("WeightH"), op.constant("WeightX")
    spec, layout = _gru_cell(op, flat)
    weights = RnnWeights(
        input_layer(projection, layout),
        paddle.weight_h(flat, layout),
        summed_bias(layout, op.optional_constant("Bias")),
    )
    spec = spec.one_layer(projection.shape[0], spec.direction)
    numbers = layer_numbers(op, spec, [_scale_weights(op)])
    (y,) = _over_words(op, numbers.x, spec, weights, 1, "H0", precision=numbers.precision)
    return {"Hidden": numbers.given(y)}


def _scale_weights(op: PaddleOperator) -> Array:
    return np.asarray(op.attribute("Scale_weights", (1.0,)), np.float32)


@rule("multi_gru")
def _multi_gru(op: PaddleOperator) -> Results:
    """A stack of bidirectional layers: weights of l0 forward, l0 backward, l1 forward, ..."""
    layers = op.attribute("layers", 1)
    slots = {slot: op.constants(slot) for slot in ("WeightX", "WeightH", "Bias")}
    biases = slots["Bias"] or [None] * 2 * layers
    if layers < 1 or {len(slots["WeightX"]), len(slots["WeightH"]), len(biases)} != {2 * layers}:
        counts = {slot: len(arrays) for slot, arrays in slots.items()}
        raise UnsupportedError(f"{layers} layers in two directions of {counts} arrays")
    spec, layout = _gru_cell(op, slots["WeightH"][0])
    halves = [
        RnnWeights(input_layer(x, layout), paddle.weight_h(h, layout), summed_bias(layout, bias))
        for x, h, bias in zip(slots["WeightX"], slots["WeightH"], biases, strict=True)
    ]
    stack = [RnnWeights.joined(halves[at : at + 2], 1) for at in range(0, 2 * layers, 2)]
    spec = replace(
        spec,
        input_size=slots["WeightX"][0].shape[0],
        layers=layers,
        direction="bidirectional_concat",
    )
    layers_of(spec, stack)
    weights = stack if layers > 1 else stack[0]
    numbers = layer_numbers(op, spec, op.constants("Scale_weights"))
    at = {"spec": spec, "weights": weights, "precision": numbers.precision}
    return {"Hidden": numbers.given(op.emit("Rnn", numbers.x, **at))}


@rule("gru_unit")
def _gru_unit(op: PaddleOperator) -> Results:
    """One step of N sentences: a batch of one word each."""
    flat, bias = op.constant("Weight"), op.optional_constant("Bias")
    spec, layout = _gru_cell(op, flat, _UNIT_FUNCTIONS)
    weights = RnnWeights(None, paddle.weight_h(flat, layout), summed_bias(layout, bias))
    op.value("HiddenPrev")
    x = op.emit("GateLayout", op.dense(op.value("Input")), layout=layout)
    x = op.emit("Unsqueeze", x, op.ints([0]))
    (y,) = _over_words(op, x, spec, weights, 1, "HiddenPrev")
    return {"Hidden": op.emit("Squeeze", y, op.ints([0]))}


@rule("lstm")
def _lstm(op: PaddleOperator) -> Results:
    """The input is projected already; its bias is that of the gates."""
    x = op.emit("GateLayout", op.ragged("Input"), layout=paddle.LSTM)
    return _lstm_layer(op, x, op.constant("Weight"), op.constant("Bias"))


@rule("fusion_lstm")
def _fusion_lstm(op: PaddleOperator) -> Results:
    """Paddle's passes make Scale_weights for the gates c, i, f, o, but its kernel hands them to
    oneDNN for i, f, c, o: what it computes is what counts here, as for each fusion (0014)."""
    weight_x, weight_h, bias = (op.constant(slot) for slot in ("WeightX", "WeightH", "Bias"))
    spec, weights = _lstm_cell(op, weight_x, weight_h, bias)
    numbers = layer_numbers(op, spec, [_scale_weights(op)])
    found = _over_words(op, numbers.x, spec, weights, 4, "H0", "C0", precision=numbers.precision)
    if numbers.precision:
        return {"Hidden": numbers.given(found[0])}  # Paddle writes no Cell either
    return {"Hidden": found[0], "Cell": found[3]}


@rule("fused_embedding_fc_lstm")
def _fused_embedding_fc_lstm(op: PaddleOperator) -> Results:
    """Rows of a table that is projected and has the gates' bias added: Bias is for peepholes."""
    ids = op.emit("Squeeze", op.ragged("Ids"), op.ints([-1]))
    gates = op.builder.constant(paddle.LSTM(op.constant("Embeddings")), "Embeddings/gates")
    rows = op.emit("Gather", gates, ids, axis=0, non_negative=True)
    weight_h, bias = op.constant("WeightH"), op.constant("Bias").copy()
    bias[..., : weight_h.shape[1]] = 0
    return _lstm_layer(op, rows, weight_h, bias)


def _lstm_layer(op: PaddleOperator, x: str, weight_h: Array, bias: Array) -> Results:
    """The input is projected. The final states are no outputs of Paddle's; each word's cell is."""
    spec, weights = _lstm_cell(op, None, weight_h, bias)
    y, _, _, cells = _over_words(op, x, spec, weights, 4, "H0", "C0")
    return {"Hidden": y, "Cell": cells}


def _lstm_cell(
    op: PaddleOperator, weight_x: Array | None, weight_h: Array, bias: Array
) -> tuple[RnnSpec, RnnWeights]:
    _check_float32(weight_h)
    chosen = _functions(
        op,
        _FUNCTIONS,
        gate_activation="sigmoid",
        candidate_activation="tanh",
        cell_activation="tanh",
    )
    peephole = op.attribute("use_peepholes", True)
    biases, diagonal = paddle.lstm_bias(bias, peephole=peephole)
    weights = RnnWeights(
        None if weight_x is None else input_layer(weight_x, paddle.LSTM),
        input_layer(weight_h, paddle.LSTM),
        biases,
        diagonal,
    )
    inputs, hidden = weight_h.shape[1] if weight_x is None else len(weight_x), len(weight_h)
    spec = RnnSpec(Cell.LSTM, inputs, hidden, direction=_direction(op), peephole=peephole)
    return replace(spec, activations=chosen), weights


@rule("attention_lstm")
def _attention_lstm(op: PaddleOperator) -> Results:
    raise UnsupportedError(
        "each step attends to the whole sentence anew: no recurrent primitive computes that"
    )


@rule("rnn")
def _rnn(op: PaddleOperator) -> Results:
    """Time-major; what stands behind a sentence's length does not run, and gives zeros."""
    mode, layers = op.attribute("mode", "RNN_TANH"), op.attribute("num_layers", 1)
    if mode not in paddle.RNN_CELLS:
        raise UnsupportedError(f"attribute mode={mode!r}: expected one of {[*paddle.RNN_CELLS]}")
    both = op.attribute("is_bidirec", False)
    if op.attribute("dropout_prob", 0.0):
        op.note_dropout()
    arrays = op.constants("WeightList")
    if others := {array.dtype.name for array in arrays} - {arrays[0].dtype.name}:
        raise UnsupportedError(f"its weights are {arrays[0].dtype} and {others.pop()}")
    if arrays[0].dtype.name not in ("float32", "float64"):
        raise UnsupportedError(f"its weights are {arrays[0].dtype}, not float32 or float64")
    stack = paddle.rnn_weights(arrays, mode, layers, 2 if both else 1)
    spec = RnnSpec(
        paddle.RNN_CELLS[mode][0],
        op.attribute("input_size", 10),
        op.attribute("hidden_size", 100),
        layers=layers,
        direction="bidirectional_concat" if both else "left2right",
    )
    layers_of(spec, stack)

    x, states = op.dense(op.value("Input")), op.values("PreState")
    if len(states) != len(spec.cell.states):
        raise UnsupportedError(f"input PreState: {len(states)} states for {spec.cell.name}")
    parts = [spec.layers, spec.directions, -1, spec.hidden_size]
    given = [op.emit("Reshape", state, op.ints(parts)) for state in states]
    attributes = {"spec": spec, "weights": stack if len(stack) > 1 else stack[0]}
    lengths, words = op.optional("SequenceLength"), x
    if lengths:
        words = op.emit("SequenceUnpad", x, lengths, time_major=True)
    count = 1 + len(states)
    y, *finals = op.builder.emit_many("Rnn", (words, *given), count, attributes)
    if lengths:
        y = op.emit("SequencePad", y, x, time_major=True)
    rows = op.ints([spec.layers * spec.directions, -1, spec.hidden_size])
    flat = [op.emit("Reshape", final, rows) for final in finals]
    return {"Out": y, **dict(listed("State", flat))}
