"""The rule of Paddle's operator ``rnn``: paddle.nn.SimpleRNN, LSTM and GRU.

Formulas and slots: rnn_kernel.cc of 2.6, and the documentation of paddle.nn.
"""

from __future__ import annotations

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.operator import PaddleOperator, listed
from onernn.adapters.paddle.lower.rules import rule
from onernn.core.errors import UnsupportedError
from onernn.core.spec import RnnSpec
from onernn.core.weights import layers_of
from onernn.reorders import paddle


@rule("rnn")
def _rnn(op: PaddleOperator) -> Results:
    """Time-major; what stands behind a sentence's length does not run, and gives zeros."""
    mode, layers = op.attribute("mode", "RNN_TANH"), op.attribute("num_layers", 1)
    if mode not in paddle.RNN_CELLS:
        raise UnsupportedError(f"attribute mode={mode!r}: expected one of {[*paddle.RNN_CELLS]}")
    both = op.attribute("is_bidirec", False)
    if op.attribute("dropout_prob", 0.0) and not op.attributes.get("is_test", False):
        op.builder.notes["dropout saved in training mode runs as in inference"] = None
    arrays = op.constants("WeightList")
    if any(array.dtype != np.float32 for array in arrays):
        raise UnsupportedError("its weights are not float32, only float32 layers are supported")
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
        words = op.emit("SequenceUnpad", x, lengths, time_major=True, depth=1)
    count = 1 + len(states)
    y, *finals = op.builder.emit_many("Rnn", (words, *given), count, attributes)
    if lengths:
        y = op.emit("SequencePad", y, x, time_major=True, depth=0)
    rows = op.ints([spec.layers * spec.directions, -1, spec.hidden_size])
    flat = [op.emit("Reshape", final, rows, depth=0) for final in finals]
    return {"Out": y, **dict(listed("State", flat))}
