"""Out of MXNet: its weights in torch.nn give the numbers that MXNet recorded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.recorded_operators import Recorded, read_recorded

from onernn import convert_weights, fuse

CASES = [
    case for case in read_recorded() if case.name.startswith(("RNN_rnn_", "RNN_lstm_", "RNN_gru_"))
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mxnets_weights_run_in_torch(case: Recorded) -> None:
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
    got = [y, *(after if isinstance(after, tuple) else [after])]
    for ours, theirs in zip(got, case.outputs.values(), strict=True):
        assert str(ours.dtype) == f"torch.{theirs.dtype}"
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=2e-6)


def test_every_mode_is_among_them() -> None:
    assert len(CASES) == 16
