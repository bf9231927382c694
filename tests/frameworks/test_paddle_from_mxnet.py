"""Out of MXNet: its weights in paddle.nn give the numbers that MXNet recorded."""

from __future__ import annotations

import paddle
import pytest
from support.recorded_operators import assert_gives, recorded_layers

from onernn import convert_weights, fuse

CASES = recorded_layers()


@pytest.mark.usefixtures("dynamic_mode")
@pytest.mark.parametrize("name", CASES)
def test_mxnets_weights_run_in_paddle(name: str) -> None:
    case = CASES[name]
    graph = fuse(case.graph()).model
    (node,) = [node for node in graph.nodes if node.op == "Rnn"]
    spec = node.attributes["spec"]
    nn = paddle.nn
    kind = {"rnn": nn.SimpleRNN, "lst": nn.LSTM, "gru": nn.GRU}[case.name[4:7]]
    plain = {"activation": spec.cell.value.removeprefix("rnn_")} if kind is nn.SimpleRNN else {}
    direction = "bidirect" if spec.directions == 2 else "forward"
    sizes = spec.input_size, spec.hidden_size, spec.layers
    layer = kind(*sizes, direction=direction, time_major=True, **plain)
    layer.eval()
    arrays = convert_weights(node, "paddle-rnn")
    missing, unexpected = layer.set_state_dict(
        {name: paddle.to_tensor(array) for name, array in arrays.items()}
    )
    assert unexpected == [] and not set(missing) & set(arrays)
    x, *states = (paddle.to_tensor(array.copy()) for array in case.inputs.values())
    y, after = layer(x, tuple(states) if len(states) > 1 else states[0])
    assert_gives(case, [y, *(after if isinstance(after, tuple) else [after])])
