"""Masked recurrent layers beside a loop over steps in float64: holes, both ways, repeats, zeros."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onernn

h5py = pytest.importorskip("h5py")
WIDTH, UNITS = 3, 4
GATES = {"SimpleRNN": 1, "LSTM": 4, "GRU": 3}


def _saved(path: Path, layer: dict[str, Any], arrays: list[np.ndarray]) -> Path:
    """A Sequential as Keras 3 saves it: Masking, and one recurrent layer."""
    told = [
        {"class_name": "InputLayer", "config": {"name": "x", "batch_shape": [None, None, WIDTH]}},
        {"class_name": "Masking", "config": {"name": "masking", "mask_value": 0.0}},
        layer,
    ]
    listed = [{"module": "keras.layers", "registered_name": None, **each} for each in told]
    config = {"module": "keras", "class_name": "Sequential", "registered_name": None}
    held = io.BytesIO()
    with h5py.File(held, "w") as file:
        for at, array in enumerate(arrays):
            file[f"layers/{layer['config']['name']}/cell/vars/{at}"] = array
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.15.1"}')
        config["config"] = {"name": "model", "layers": listed}  # type: ignore[assignment]
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("model.weights.h5", held.getvalue())
    return path


def _sigmoid(a: Any) -> Any:
    return 1 / (1 + np.exp(-a))


def _step(
    kind: str, x: Any, states: list[Any], kernel: Any, recurrent: Any, bias: Any
) -> list[Any]:
    """The states behind a step, by the formulas of Keras's documentation."""
    h = states[0]
    if kind == "SimpleRNN":
        return [np.tanh(x @ kernel + bias + h @ recurrent)]
    if kind == "LSTM":
        i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4)
        c = _sigmoid(f) * states[1] + _sigmoid(i) * np.tanh(g)
        return [_sigmoid(o) * np.tanh(c), c]
    if bias.ndim == 2:  # reset_after
        (xz, xr, xh), (hz, hr, hh) = (
            np.split(x @ kernel + bias[0], 3),
            np.split(h @ recurrent + bias[1], 3),
        )
        z, r = _sigmoid(xz + hz), _sigmoid(xr + hr)
        new = np.tanh(xh + r * hh)
    else:
        xz, xr, xh = np.split(x @ kernel + bias, 3)
        wz, wr, wh = np.split(recurrent, 3, axis=1)
        z, r = _sigmoid(xz + h @ wz), _sigmoid(xr + h @ wr)
        new = np.tanh(xh + (r * h) @ wh)
    return [z * h + (1 - z) * new]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("zeros", [False, True], ids=["repeats", "zeros"])
@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU", "GRU before"])
def test_masked_steps_hold_states_and_repeat_or_are_zero(
    kind: str, zeros: bool, backwards: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(len(kind) + 2 * zeros + backwards)
    kind, after = kind.split()[0], kind != "GRU before"
    wide = GATES[kind] * UNITS
    shapes = [(WIDTH, wide), (UNITS, wide), (2, wide) if kind == "GRU" and after else (wide,)]
    arrays = [rng.normal(size=shape).astype("float32") / 2 for shape in shapes]
    options = {"go_backwards": backwards, "zero_output_for_mask": zeros, "return_sequences": True}
    options |= {"reset_after": after} if kind == "GRU" else {}
    options |= {} if kind == "SimpleRNN" else {"recurrent_activation": "sigmoid"}
    config = {"name": kind.lower(), "units": UNITS, "activation": "tanh", **options}
    if kind == "SimpleRNN":
        config["name"] = "simple_rnn"
    path = _saved(tmp_path / "m.keras", {"class_name": kind, "config": config}, arrays)
    x = rng.normal(size=(4, 7, WIDTH)).astype("float32")
    masked = rng.random((4, 7)) < 0.4
    masked[0], masked[1] = True, False
    x[masked] = 0
    want = np.zeros((4, 7, UNITS))
    for n in range(4):
        states = [np.zeros(UNITS), np.zeros(UNITS)]
        before = np.zeros(UNITS)
        for place, t in enumerate(range(7)[:: -1 if backwards else 1]):
            if not masked[n, t]:
                states = _step(kind, x[n, t].astype(float), states, *map(np.float64, arrays))
                before = states[0]
            want[n, place] = 0 if masked[n, t] and zeros else before
    (made,) = onernn.Session(path, threads=1).run({"x": x}).values()
    # Sums of 8 products a gate, 7 steps, functions that shrink: some roundings each.
    np.testing.assert_allclose(made, want, rtol=0, atol=100 * 2.0**-24)
