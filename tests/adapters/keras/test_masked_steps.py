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


@pytest.mark.parametrize("explicit", [False, True])
def test_beside_initial_states_only_the_mask_of_the_call_counts(
    explicit: bool, tmp_path: Path
) -> None:
    """In Keras 3; the formula is that of SimpleRNN, h = tanh(x W + h R + b)."""

    def tensor(name: str) -> dict[str, Any]:
        return {"class_name": "__keras_tensor__", "config": {"keras_history": [name, 0, 0]}}

    def layer(kind: str, config: dict[str, Any], *args: str, **kwargs: str) -> dict[str, Any]:
        named = {key: tensor(name) for key, name in kwargs.items()}
        calls = [{"args": [*map(tensor, args)], "kwargs": named}] if args else []
        known = {"module": "keras.layers", "registered_name": None, "inbound_nodes": calls}
        return {"class_name": kind, "name": config["name"], "config": config, **known}

    told = [
        layer("InputLayer", {"name": "x", "batch_shape": [None, None, WIDTH]}),
        layer("InputLayer", {"name": "h", "batch_shape": [None, UNITS]}),
        layer("InputLayer", {"name": "flags", "batch_shape": [None, None], "dtype": "bool"}),
        layer("Masking", {"name": "masking", "mask_value": 0.0}, "x"),
        layer(
            "SimpleRNN",
            {"name": "simple_rnn", "units": UNITS, "return_sequences": True},
            "masking",
            initial_state="h",
            **({"mask": "flags"} if explicit else {}),
        ),
    ]
    ends = [[name, 0, 0] for name in ("x", "h", "flags")], [["simple_rnn", 0, 0]]
    inside = {"name": "m", "layers": told, "input_layers": ends[0], "output_layers": ends[1]}
    config = {"module": "keras", "class_name": "Functional", "config": inside}
    rng = np.random.default_rng(2)
    shapes = (WIDTH, UNITS), (UNITS, UNITS), (UNITS,)
    kernel, recurrent, bias = arrays = [rng.normal(size=s).astype("float32") / 2 for s in shapes]
    held = io.BytesIO()
    with h5py.File(held, "w") as file:
        for at, array in enumerate(arrays):
            file[f"layers/simple_rnn/cell/vars/{at}"] = array
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.15.1"}')
        archive.writestr("config.json", json.dumps({**config, "registered_name": "Functional"}))
        archive.writestr("model.weights.h5", held.getvalue())
    x, h = (rng.normal(size=s).astype("float32") for s in ((3, 6, WIDTH), (3, UNITS)))
    x[0, 2], x[1, 4:] = 0, 0  # masked by their values
    flags = rng.random((3, 6)) < 0.6
    flags[:, 0] = True
    feed = {"x": x, "h": h, "flags": flags}
    graph = onernn.load(tmp_path / "m.keras")
    feed = {value.name: feed[value.name] for value in graph.inputs}
    (made,) = onernn.Session(graph, threads=1).run(feed).values()
    state, want = h.astype(np.float64), np.zeros((3, 6, UNITS))
    for t in range(6):
        after = np.tanh(x[:, t] @ kernel.astype(np.float64) + state @ recurrent + bias)
        state = np.where(flags[:, t, None], after, state) if explicit else after
        want[:, t] = state
    np.testing.assert_allclose(made, want, rtol=0, atol=100 * 2.0**-24)
