"""Masked recurrent layers beside a loop over steps in float64: holes, both ways, repeats, zeros."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx_rnn import Case, run_oracle

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


def _states(kind: str, x: Any, kernel: Any, recurrent: Any, bias: Any) -> Any:
    """h behind each of the steps x (T, I), by ONNX's formulas: they are those of Keras."""
    order = [0, 3, 1, 2] if kind == "LSTM" else range(GATES[kind])  # i, f, c, o as i, o, f, c

    def gates(array: Any) -> Any:
        parts = np.split(array, GATES[kind], axis=-1)
        return np.concatenate([parts[k] for k in order], axis=-1)

    both = bias if bias.ndim == 2 else np.stack([bias, 0 * bias])
    arrays = {"X": x[:, None], "W": gates(kernel).T[None], "R": gates(recurrent).T[None]}
    arrays["B"] = gates(both).reshape(1, -1)
    more = {"linear_before_reset": int(bias.ndim == 2)} if kind == "GRU" else {}
    op = kind.removeprefix("Simple")
    return run_oracle(Case(op, more, arrays, ["Y"], hidden=UNITS))["Y"][:, 0, 0]


@pytest.mark.parametrize(
    ("kind", "zeros", "backwards"),
    [
        (kind, zeros, zeros == bool(k % 2))
        for k, kind in enumerate(["SimpleRNN", "LSTM", "GRU", "GRU before"])
        for zeros in (False, True)
    ],
)
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
        steps = np.arange(7)[:: -1 if backwards else 1]
        runs = ~masked[n, steps]
        held = np.array([np.zeros(UNITS), *_states(kind, x[n, steps[runs]], *arrays)])
        want[n] = held[np.cumsum(runs)]
        if zeros:
            want[n, ~runs] = 0
    (made,) = onernn.Session(path, threads=1).run({"x": x}).values()
    # Sums of 8 products a gate, 7 steps, functions that shrink: some roundings each.
    np.testing.assert_allclose(made, want, rtol=0, atol=100 * 2.0**-24)
