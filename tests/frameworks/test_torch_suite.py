"""What is read from torch.nn's layers, under the conformance kit, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from onernn.adapters.weight_conversion import read_layer
from onernn.verification.suite import Case, Conformance

LAYERS = {
    "rnn_tanh": (nn.RNN, {}),
    "rnn_relu": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "lstm_projection": (nn.LSTM, {}),
    "lbr_gru": (nn.GRU, {}),
}


class TestTorch(Conformance):
    framework = "torch"
    cells, directions = tuple(LAYERS), ("left2right", "bidirectional_concat")
    dtypes = ("f32", "f64")

    def layer(self, case: Case) -> nn.RNNBase:
        kind, options = LAYERS[case.cell]
        spec = case.spec
        if spec.projection_size:
            options = {"proj_size": spec.projection_size}
        made = kind(
            spec.input_size,
            spec.hidden_size,
            spec.layers,
            bidirectional=spec.directions == 2,
            dtype=torch.float64 if case.dtype == "f64" else torch.float32,
            **options,
        )
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.copy_(torch.from_numpy(case.contractive(*parameter.shape)))
        return made

    def outputs(self, layer: nn.RNNBase, case: Case) -> tuple[Any, Any]:
        packed = nn.utils.rnn.pack_sequence(
            [torch.from_numpy(np.array(words)) for words in case.x.to_list()], enforce_sorted=False
        )
        states = case.state
        if states is not None:
            flat = [torch.from_numpy(np.concatenate(list(part))) for part in states]
            states = tuple(flat) if len(flat) == 2 else flat[0]
        with torch.no_grad():
            y, after = layer(packed, states)
        padded, _ = nn.utils.rnn.pad_packed_sequence(y)
        final = after if isinstance(after, tuple) else (after,)
        shape = (case.spec.layers, case.spec.directions, len(case.x), -1)
        return case.cut(padded.numpy(), time_major=True), tuple(
            part.numpy().reshape(shape) for part in final
        )

    def weights(self, layer: nn.RNNBase, case: Case) -> Any:
        return tuple(read_layer(layer))
