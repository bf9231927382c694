"""Out of MXNet: its weights in Keras give the numbers that MXNet recorded."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from support.recorded_operators import assert_gives, recorded_layers  # noqa: E402

from onernn import convert_weights  # noqa: E402

CASES = recorded_layers(forms="1_1")


@pytest.mark.parametrize("name", CASES)
def test_mxnets_weights_run_in_keras(name: str) -> None:
    case = CASES[name]
    graph = case.graph()
    (node,) = [node for node in graph.nodes if node.op == "Rnn"]
    spec = node.attributes["spec"]
    layers = keras.layers
    kind = {"rnn": layers.SimpleRNN, "lst": layers.LSTM, "gru": layers.GRU}[case.name[4:7]]
    plain = {"activation": spec.cell.value.removeprefix("rnn_")} if kind is layers.SimpleRNN else {}
    layer = kind(spec.hidden_size, return_sequences=True, return_state=True, **plain)
    x, *states = case.inputs.values()
    layer.build((x.shape[1], x.shape[0], x.shape[2]))
    layer.set_weights(list(convert_weights(node, "keras").values()))
    y, *after = layer(x.swapaxes(0, 1).copy(), initial_state=[state[0] for state in states])
    assert_gives(
        case, [np.asarray(y).swapaxes(0, 1), *(np.asarray(state)[None] for state in after)]
    )
