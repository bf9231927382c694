"""OpenVINO's sequence operations against ours on the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset14 as ops

import onernn
from onernn import Cell, RnnSpec
from onernn.backend import open_backend
from onernn.reorders.layers import PivotLayer

DIRECTIONS = {
    "left2right": "forward",
    "right2left": "reverse",
    "bidirectional_concat": "bidirectional",
}
KINDS = [
    (Cell.RNN_TANH, "rnn_sequence", {"activations": ["tanh"]}),
    (Cell.LSTM, "lstm_sequence", {}),
    (Cell.GRU, "gru_sequence", {"linear_before_reset": False}),
    (Cell.LBR_GRU, "gru_sequence", {"linear_before_reset": True}),
]


def random_layer(spec: RnnSpec) -> PivotLayer:
    rng, d, units = np.random.default_rng(0), spec.directions, spec.hidden_size

    def uniform(*shape: int) -> np.ndarray:
        return rng.uniform(-0.5, 0.5, shape).astype(np.float32)

    weights = onernn.RnnWeights(
        uniform(1, d, spec.input_size, spec.gates, units),
        uniform(1, d, units, spec.gates, units),
        uniform(1, d, spec.cell.bias_rows, units),
    )
    return PivotLayer.of(spec, weights)


@pytest.mark.parametrize("direction", list(DIRECTIONS))
@pytest.mark.parametrize("cell, operation, options", KINDS)
def test_weights_of_ours_give_the_same_outputs_in_openvino(
    cell: Cell, operation: str, options: dict, direction: Any
) -> None:
    layer = random_layer(RnnSpec(cell, 3, 4, direction=direction))
    arrays = onernn.convert_weights(layer, "openvino")
    n, t, d, units = 2, 6, layer.spec.directions, 4
    x = np.random.default_rng(1).uniform(-1, 1, (n, t, 3)).astype(np.float32)
    source = ops.parameter([n, t, 3], np.float32)
    states = [ops.constant(np.zeros((n, d, units), np.float32)) for _ in cell.states]
    lengths = ops.constant(np.full(n, t, np.int32))
    constants = [ops.constant(arrays[name]) for name in "WRB"]
    made = getattr(ops, operation)(
        source, *states, lengths, *constants, units, DIRECTIONS[direction], **options
    )
    model = openvino.Model([made.output(0)], [source], "m")
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    want = compiled([x])[0]  # (N, D, T, O)
    y, _ = (
        open_backend()
        .prepare(layer.spec, layer.weights)
        .run(np.ascontiguousarray(x.swapaxes(0, 1)))
    )
    got = y.reshape(t, n, d, units).transpose(1, 2, 0, 3)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
