"""The RNN operator of MXNet: small arrays for each mode, and symbols of it."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from onernn.ir.arrays import Array

MODES = ["rnn_tanh", "rnn_relu", "lstm", "gru"]
T, N, C, H = 6, 3, 5, 4


def arrays(mode: str, layers: int = 2, sides: int = 2, dtype: str = "float32") -> dict[str, Array]:
    rng = np.random.default_rng(7)
    gates = {"lstm": 4, "gru": 3}.get(mode, 1)
    rows = gates * H
    count = sum(sides * rows * ((H * sides if layer else C) + H + 2) for layer in range(layers))
    made = {
        "data": rng.uniform(-1, 1, (T, N, C)),
        "parameters": rng.uniform(-0.4, 0.4, count),
        "state": rng.uniform(-1, 1, (layers * sides, N, H)),
    }
    if mode == "lstm":
        made["state_cell"] = rng.uniform(-1, 1, (layers * sides, N, H))
    return {name: array.astype(dtype) for name, array in made.items()}


def symbol_of(mode: str, dtype: str = "float32", **attributes: Any) -> Any:
    names = list(arrays(mode))
    variables = {name: mx.sym.Variable(name, dtype=dtype) for name in names}
    options = {"num_layers": 2, "bidirectional": True, "state_outputs": True, **attributes}
    made = mx.sym.RNN(**variables, mode=mode, state_size=H, name="net", **options)
    return mx.sym.Group(list(made)) if options["state_outputs"] else made


def close(ours: Array, theirs: Array) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 + 1e-5 * np.abs(theirs).max())
