"""Out of MXNet: its weights as W, R and B run in ONNX Runtime."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import helper
from support.onnx_models import model, theirs
from support.recorded_operators import read_recorded

from onernn import convert_weights

CASES = {c.name: c for c in read_recorded() if re.fullmatch("RNN_.*_1_1_float32", c.name)}
# The operator, and what else it has to say for MXNet's cells.
OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "RNN_rnn_relu": ("RNN", {"activations": ["Relu"]}),
    "RNN_rnn_tanh": ("RNN", {}),
    "RNN_lstm": ("LSTM", {}),
    "RNN_gru": ("GRU", {"linear_before_reset": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_mxnets_weights_run_in_onnx_runtime(name: str) -> None:
    case = CASES[name]
    graph = case.graph()
    (node,) = [node for node in graph.nodes if node.op == "Rnn"]
    arrays = convert_weights(node, "onnx")
    assert sorted(arrays) == ["B", "R", "W"]
    op, more = OPERATORS[case.name.removesuffix("_1_1_float32")]
    x, *states = case.inputs.values()
    begun = dict(zip(("h", "c"), states, strict=False))
    outputs = ["Y", "Y_h", "Y_c"][: 1 + len(states)]
    made = helper.make_node(op, ["X", "W", "R", "B", "", *begun], outputs, hidden_size=4, **more)
    feeds = {"X": x, **arrays, **begun}
    y, *after = theirs(model([made], feeds, outputs), feeds)
    for found, want in zip([y[:, 0], *after], case.outputs.values(), strict=True):
        np.testing.assert_allclose(found, want, rtol=0, atol=2e-6)
