"""Out of MXNet: its weights in torch.nn give the numbers that MXNet recorded."""

from __future__ import annotations

import pytest
import torch
from support.recorded_operators import assert_gives, recorded_layers

from onernn import convert_weights, fuse

CASES = recorded_layers("float32 float64")


@pytest.mark.parametrize("name", CASES)
def test_mxnets_weights_run_in_torch(name: str) -> None:
    case = CASES[name]
    graph = fuse(case.graph()).model
    (node,) = [node for node in graph.nodes if node.op == "Rnn"]
    spec = node.attributes["spec"]
    kind = {"rnn": torch.nn.RNN, "lst": torch.nn.LSTM, "gru": torch.nn.GRU}[case.name[4:7]]
    plain = {"nonlinearity": spec.cell.value.removeprefix("rnn_")} if kind is torch.nn.RNN else {}
    x, *states = (torch.from_numpy(array.copy()) for array in case.inputs.values())
    layer = kind(
        spec.input_size,
        spec.hidden_size,
        spec.layers,
        bidirectional=spec.directions == 2,
        dtype=x.dtype,
        **plain,
    )
    state_dict = {k: torch.from_numpy(a.copy()) for k, a in convert_weights(node, "torch").items()}
    layer.load_state_dict(state_dict)  # strict: no name is missing, and none is left over
    with torch.no_grad():
        y, after = layer(x, tuple(states) if len(states) > 1 else states[0])
    assert str(y.dtype) == f"torch.{case.inputs['x'].dtype}"
    assert_gives(case, [y, *(after if isinstance(after, tuple) else [after])])
