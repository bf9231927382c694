"""The rules of Paddle's LSTM operators over LoD.

Formulas and slots: lstm_op.cc, fusion_lstm_op.cc and fused_embedding_fc_lstm_op.cc of 2.6.
"""

from __future__ import annotations

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.gru import functions
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.rules import rule
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.spec import Cell, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.reorders import paddle
from onernn.reorders.gates import input_layer


@rule("lstm")
def _lstm(op: PaddleOperator) -> Results:
    """The input is projected already; its bias is that of the gates."""
    x = op.emit("GateLayout", op.ragged("Input"), layout=paddle.LSTM)
    return _layer(op, x, None, op.constant("Weight"), op.constant("Bias"))


@rule("fusion_lstm")
def _fusion_lstm(op: PaddleOperator) -> Results:
    op.only("Scale_data", 1.0)
    op.only("Shift_data", 0.0)
    weight_x, weight_h = op.constant("WeightX"), op.constant("WeightH")
    return _layer(op, op.ragged("X"), weight_x, weight_h, op.constant("Bias"))


@rule("fused_embedding_fc_lstm")
def _fused_embedding_fc_lstm(op: PaddleOperator) -> Results:
    """Rows of a table that is projected and has the gates' bias added: Bias is for peepholes."""
    ids = op.emit("Squeeze", op.ragged("Ids"), op.ints([-1]))
    gates = op.builder.constant(paddle.LSTM(op.constant("Embeddings")), "Embeddings/gates")
    rows = op.emit("Gather", gates, ids, axis=0, non_negative=True)
    weight_h, bias = op.constant("WeightH"), op.constant("Bias").copy()
    bias[..., : weight_h.shape[1]] = 0
    return _layer(op, rows, None, weight_h, bias)


def _layer(
    op: PaddleOperator, x: str, weight_x: Array | None, weight_h: Array, bias: Array
) -> Results:
    if weight_h.dtype != np.float32:
        raise UnsupportedError(f"its weights are {weight_h.dtype}, only float32 is supported")
    chosen = functions(
        op,
        ("gate_activation", "sigmoid"),
        ("candidate_activation", "tanh"),
        ("cell_activation", "tanh"),
    )
    peephole = op.attribute("use_peepholes", True)
    spec = RnnSpec(
        Cell.LSTM,
        weight_h.shape[1] if weight_x is None else weight_x.shape[0],
        weight_h.shape[0],
        direction="right2left" if op.attribute("is_reverse", False) else "left2right",
        peephole=peephole,
        activations=chosen,
    )
    biases, diagonal = paddle.lstm_bias(bias, peephole=peephole)
    weights = RnnWeights(
        None if weight_x is None else input_layer(weight_x, paddle.LSTM),
        input_layer(weight_h, paddle.LSTM),
        biases,
        diagonal,
    )
    weights.check(spec)
    states = [op.optional(slot) for slot in ("H0", "C0")]
    if states.count("") == 1:
        raise UnsupportedError("inputs H0 and C0 go together")
    states = [state and op.emit("Unsqueeze", op.dense(state), op.ints([0, 1])) for state in states]
    attributes = {"spec": spec, "weights": weights}
    # The final states are no outputs of Paddle's; the cell of each word is.
    hidden, cell = op.builder.emit_many("Rnn", (x, *states), 4, attributes)[::3]
    return {"Hidden": hidden, "Cell": cell}


@rule("attention_lstm")
def _attention_lstm(op: PaddleOperator) -> Results:
    raise UnsupportedError(
        "each step attends to the whole sentence anew: no recurrent primitive computes that"
    )
