"""Architectures in JSON with weights in HDF5, weights of CuDNN layers, and files of Keras 1."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import onernn
from onernn import ModelFormatError, UnsupportedError
from onernn.adapters.stacks import read_stacks

h5py = pytest.importorskip("h5py")
SMALL = Path(__file__).parents[2] / "data" / "keras" / "small_legacy"
RNG = np.random.default_rng(2)
N, T, WIDTH, HIDDEN = 3, 5, 2, 4
X = RNG.normal(size=(N, T, WIDTH)).astype(np.float32)
TOLERANCE = 64 * 2.0**-23  # five steps of sums of a few terms below 2, in float32
Entry = tuple[str, np.ndarray]


def random(*shape: int) -> np.ndarray:
    return (RNG.normal(size=shape) / 2).astype(np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def hard_sigmoid(x: np.ndarray) -> np.ndarray:
    """Keras 1 and 2's."""
    return np.clip(0.2 * x + 0.5, 0, 1)


def save_weights(path: Path, layers: dict[str, Sequence[Entry]], **attributes: str) -> Path:
    """A file as Keras 1 and 2's save_weights writes it."""
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [name.encode() for name in layers]
        for name, text in attributes.items():
            file.attrs[name] = text
        for name, entries in layers.items():
            group = file.create_group(name)
            group.attrs["weight_names"] = [entry.encode() for entry, _ in entries]
            for entry, array in entries:
                group.create_dataset(entry, data=array)
    return path


def save_json(path: Path, version: str, layers: list[Any], kind: str = "Sequential") -> Path:
    config: Any = layers if kind == "Sequential" else layers[0]
    path.write_text(json.dumps({"class_name": kind, "keras_version": version, "config": config}))
    return path


def lstm(x: Any, w: Any, u: Any, b: Any, gate: Any = sigmoid) -> np.ndarray:
    """The last h; arrays are those of one gate each, in the order i, f, c, o; float64."""
    h = c = np.zeros((len(x), len(u[0])))
    for step in range(x.shape[1]):
        i, f, g, o = (x[:, step] @ w[k] + h @ u[k] + b[k] for k in range(4))
        c = gate(f) * c + gate(i) * np.tanh(g)
        h = gate(o) * np.tanh(c)
    return h


def layer(kind: str, name: str, **options: Any) -> dict[str, Any]:
    return {"class_name": kind, "config": {"name": name, "trainable": True, **options}}


FIRST = {"batch_input_shape": [None, T, WIDTH]}


def run(path: Path, params: Path | None = None, x: np.ndarray = X) -> np.ndarray:
    model = onernn.load(path, params=params)
    (got,) = onernn.Session(model).run({model.inputs[0].name: x}).values()
    return np.asarray(got)


@pytest.mark.parametrize("whole", [True, False])
def test_an_architecture_in_json_takes_the_weights_of_its_params(
    whole: bool, tmp_path: Path
) -> None:
    """Weights of save_weights, or the file of a whole model."""
    params = SMALL / "model.h5"
    with h5py.File(params) as file:
        config, group = json.loads(file.attrs["model_config"]), file["model_weights"]
        version = str(file.attrs["keras_version"])
        layers: dict[str, list[Entry]] = {}
        for name in group.attrs["layer_names"]:
            names = [str(each) for each in group[name].attrs["weight_names"]]
            layers[str(name)] = [(each, group[name][each][()]) for each in names]
    if not whole:
        params = save_weights(tmp_path / "w.h5", layers, keras_version=version)
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**config, "keras_version": version}))
    with np.load(SMALL / "io.npz") as recorded:
        want = next(recorded[name] for name in recorded.files if name.startswith("out__"))
        got = run(path, params, recorded["in__x"])
    assert_allclose(got, want, rtol=0, atol=TOLERANCE)


def test_weights_beside_an_architecture_are_found_and_missing_ones_are_told(
    tmp_path: Path,
) -> None:
    weights = {"dense": [("dense/kernel:0", random(WIDTH, 3)), ("dense/bias:0", random(3))]}
    path = save_json(tmp_path / "m.json", "2.2.4", [layer("Dense", "dense", units=3, **FIRST)])
    with pytest.raises(ModelFormatError, match=r"m\.json.*one of m\.h5.*got none; .*--params"):
        onernn.load(path)
    save_weights(tmp_path / "m.h5", weights, keras_version="2.2.4")
    (kernel, bias) = (array for _, array in weights["dense"])
    assert_allclose(run(path), X @ kernel + bias, rtol=0, atol=TOLERANCE)
    (tmp_path / "m.h5").rename(tmp_path / "m.weights.h5")
    assert run(path).shape == (N, T, 3)
    other = save_weights(tmp_path / "o.h5", {"other": weights["dense"]}, keras_version="2.2.4")
    with pytest.raises(
        ModelFormatError, match=r"o\.h5.*layers other.*: expected layers of the model.*dense"
    ):
        onernn.load(path, params=other)
    with pytest.raises(UnsupportedError, match="in their file|are in its file"):
        onernn.load(SMALL / "model.h5", params=other)


def test_paths_of_weights_name_only_the_innermost_of_nested_models(tmp_path: Path) -> None:
    first, second, last = random(WIDTH, 3), random(3, 4), random(4, 2)
    value = layer("Dense", "first", units=3, use_bias=False, **FIRST)
    for name, units in (("second", 4), ("last", 2)):
        dense = layer("Dense", name, units=units, use_bias=False)
        value = layer("Sequential", f"before_{name}", layers=[value, dense], **FIRST)
    entries = [("first/kernel:0", first), ("second/kernel:0", second), ("last/kernel:0", last)]
    weights = save_weights(tmp_path / "w.h5", {"before_last": entries}, keras_version="2.9.0")
    path = save_json(tmp_path / "m.json", "2.9.0", [value])
    assert_allclose(run(path, weights), X @ first @ second @ last, rtol=0, atol=TOLERANCE)


def cudnn(gates: int, *, summed: bool) -> tuple[list[Entry], Any]:
    """A CuDNN layer's arrays, and those of each gate (I, O), (O, O), and the rows of its bias.

    The memory of a gate's kernel is that of (O, I): Keras gives it the shape (I, O).
    """
    w = [random(WIDTH, HIDDEN) for _ in range(gates)]
    u = [random(HIDDEN, HIDDEN) for _ in range(gates)]
    b = random(2, gates, HIDDEN)
    kernel = np.hstack([each.T.reshape(WIDTH, HIDDEN) for each in w])
    entries = [
        ("l/kernel:0", kernel),
        ("l/recurrent_kernel:0", np.hstack([each.T for each in u])),
        ("l/bias:0", b.reshape(-1)),
    ]
    return entries, (w, u, b.sum(0) if summed else b)


@pytest.mark.parametrize("kind", ["CuDNNLSTM", "LSTM"])
def test_weights_of_a_cudnn_lstm_are_read_also_by_an_lstm(kind: str, tmp_path: Path) -> None:
    entries, (w, u, b) = cudnn(4, summed=True)
    params = save_weights(tmp_path / "w.h5", {"l": entries}, keras_version="2.1.6")
    more = {} if kind == "CuDNNLSTM" else {"recurrent_activation": "sigmoid"}
    made = layer(kind, "l", units=HIDDEN, **FIRST, **more)
    got = run(save_json(tmp_path / "m.json", "2.1.6", [made]), params)
    assert_allclose(got, lstm(X, w, u, b), rtol=0, atol=TOLERANCE)


def test_weights_of_a_cudnn_gru_have_the_reset_gate_after_the_product(tmp_path: Path) -> None:
    entries, (w, u, b) = cudnn(3, summed=False)
    params = save_weights(tmp_path / "w.h5", {"l": entries}, keras_version="2.1.6")
    made = layer("CuDNNGRU", "l", units=HIDDEN, return_sequences=True, go_backwards=True, **FIRST)
    got = run(save_json(tmp_path / "m.json", "2.1.6", [made]), params)
    h = np.zeros((N, HIDDEN))
    for at, step in enumerate(reversed(range(T))):
        of_x = [X[:, step] @ w[k] + b[0, k] for k in range(3)]
        of_h = [h @ u[k] + b[1, k] for k in range(3)]
        z, r = sigmoid(of_x[0] + of_h[0]), sigmoid(of_x[1] + of_h[1])
        h = z * h + (1 - z) * np.tanh(of_x[2] + r * of_h[2])
        assert_allclose(got[:, at], h, rtol=0, atol=TOLERANCE)


def test_weights_of_cudnn_layers_alone_have_sigmoid_gates(tmp_path: Path) -> None:
    entries, (w, u, b) = cudnn(4, summed=True)
    params = save_weights(tmp_path / "w.h5", {"l": entries}, keras_version="2.1.6")
    state = onernn.convert_weights(onernn.read_layer(dict(_short(entries)), "keras"), to="torch")
    assert_array_equal(state["weight_ih_l0"][:HIDDEN], w[0].T)
    assert_array_equal(state["weight_hh_l0"][-HIDDEN:], u[3].T)
    (found,) = read_stacks(params).values()
    assert found.spec.activations is None


def _short(entries: Iterable[Entry]) -> Iterable[Entry]:
    return ((path.rpartition("/")[2].partition(":")[0], array) for path, array in entries)


def test_a_cudnn_layer_takes_no_mask(tmp_path: Path) -> None:
    entries, _ = cudnn(4, summed=True)
    params = save_weights(tmp_path / "w.h5", {"l": entries}, keras_version="2.1.6")
    layers = [layer("Masking", "m", mask_value=0.0, **FIRST), layer("CuDNNLSTM", "l", units=HIDDEN)]
    path = save_json(tmp_path / "m.json", "2.1.6", layers)
    with pytest.raises(UnsupportedError, match="its input has a mask: expected none"):
        onernn.Session(onernn.load(path, params=params))


# Keras 1: an array for each gate, other names of options, hard_sigmoid gates.


def old(gates: str, name: str = "lstm_1") -> tuple[list[Entry], Any]:
    """Arrays W_i, U_i, b_i, ... in Keras 1's order of gates; and by their letters."""
    arrays = {g: (random(WIDTH, HIDDEN), random(HIDDEN, HIDDEN), random(HIDDEN)) for g in gates}
    entries = [
        (f"{name}_{letter}_{gate}:0", array)
        for gate, three in arrays.items()
        for letter, array in zip("WUb", three, strict=True)
    ]
    return entries, arrays


OLD = {
    "init": "glorot_uniform",
    "inner_init": "orthogonal",
    "activation": "tanh",
    "W_regularizer": None,
    "dropout_W": 0.0,
    "dropout_U": 0.0,
    "input_dim": WIDTH,
    "input_length": None,
    "consume_less": "cpu",
}


@pytest.mark.parametrize("stated", [True, False])
def test_an_lstm_of_keras_1_has_hard_sigmoid_gates(stated: bool, tmp_path: Path) -> None:
    entries, arrays = old("icfo")
    dense = random(HIDDEN, 2), random(2)
    params = save_weights(
        tmp_path / "w.h5",
        {
            "lstm_1": entries,
            "dropout_1": [],
            "dense_1": list(zip(("dense_1_W:0", "dense_1_b:0"), dense, strict=True)),
        },
    )
    inner = {"inner_activation": "hard_sigmoid"} if stated else {}
    layers = [
        layer("LSTM", "lstm_1", output_dim=HIDDEN, input_dtype="float32", **FIRST, **OLD, **inner),
        layer("Dropout", "dropout_1", p=0.5),
        layer("Dense", "dense_1", output_dim=2, activation="linear", bias=True, init="uniform"),
    ]
    got = run(save_json(tmp_path / "m.json", "1.2.2", layers), params)
    w, u, b = ([arrays[gate][k] for gate in "ifco"] for k in range(3))
    want = lstm(X, w, u, b, hard_sigmoid) @ dense[0] + dense[1]
    assert_allclose(got, want, rtol=0, atol=TOLERANCE)


def test_a_functional_model_of_keras_1_merges_an_embedding_and_a_gru(tmp_path: Path) -> None:
    entries, arrays = old("zrh", "gru_1")
    table = random(7, WIDTH)
    weights = {"embedding_1": [("embedding_1_W:0", table)], "gru_1": entries}
    params = save_weights(tmp_path / "w.h5", weights)
    nodes = [
        ("InputLayer", "input_1", {"batch_input_shape": [None, T], "input_dtype": "int32"}, []),
        (
            "Embedding",
            "embedding_1",
            {"input_dim": 7, "output_dim": WIDTH, "input_dtype": "int32", "mask_zero": False},
            ["input_1"],
        ),
        ("GRU", "gru_1", {"output_dim": HIDDEN, "inner_activation": "sigmoid"}, ["embedding_1"]),
        (
            "Merge",
            "merge_1",
            {"mode": "concat", "concat_axis": 1, "mode_type": "raw", "dot_axes": -1},
            ["gru_1", "gru_1"],
        ),
    ]
    layers = [
        {
            **layer(kind, name, **options),
            "name": name,
            "inbound_nodes": [[[each, 0, 0] for each in reads]] if reads else [],
        }
        for kind, name, options, reads in nodes
    ]
    ends = {"input_layers": [["input_1", 0, 0]], "output_layers": [["merge_1", 0, 0]]}
    config = {"name": "m", "layers": layers, **ends}
    ids = np.array([[1, 2, 3, 0, 6], [4, 4, 0, 1, 2]], np.int32)
    got = run(save_json(tmp_path / "m.json", "1.2.2", [config], "Model"), params, ids)
    h, x = np.zeros((2, HIDDEN)), table[ids]
    for step in range(T):
        at = x[:, step]
        z, r = (
            sigmoid(at @ arrays[gate][0] + h @ arrays[gate][1] + arrays[gate][2]) for gate in "zr"
        )
        w, u, b = arrays["h"]
        h = z * h + (1 - z) * np.tanh(at @ w + (r * h) @ u + b)
    assert_allclose(got, np.hstack([h, h]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "made, reason",
    [
        (
            layer("Convolution1D", "l", nb_filter=2, filter_length=3, **FIRST),
            "its backend decides",
        ),
        (layer("Merge", "l", mode="cos", **FIRST), "Merge of 'cos'"),
        (layer("BatchNormalization", "l", mode=1, epsilon=1e-3, **FIRST), "a mode other than 0"),
        (layer("Highway", "l", **FIRST), "layer Highway: not known"),
    ],
)
def test_what_keras_1_leaves_open_is_refused(made: Any, reason: str, tmp_path: Path) -> None:
    params = save_weights(tmp_path / "w.h5", {"l": []})
    path = save_json(tmp_path / "m.json", "1.1.0", [made])
    with pytest.raises(UnsupportedError, match=reason):
        onernn.Session(onernn.load(path, params=params))


@pytest.mark.parametrize("backend", ["tensorflow", "theano"])
def test_kernels_that_theano_trained_are_turned(backend: str, tmp_path: Path) -> None:
    kernel, bias = random(3, WIDTH, 2), random(2)
    entries = [("c/kernel:0", kernel), ("c/bias:0", bias)]
    params = save_weights(tmp_path / "w.h5", {"c": entries}, keras_version="2.0.8", backend=backend)
    made = layer("Conv1D", "c", filters=2, kernel_size=[3], **FIRST)
    got = run(save_json(tmp_path / "m.json", "2.0.8", [made]), params)
    turned = kernel[::-1] if backend == "theano" else kernel
    want = sum(X[:, k : k + T - 2] @ turned[k] for k in range(3)) + bias
    assert_allclose(got, want, rtol=0, atol=TOLERANCE)


def test_other_files_in_json_are_not_keras_s(tmp_path: Path) -> None:
    from onernn.adapters.registry import adapter_of

    path = tmp_path / "m.json"
    path.write_text('{"base_code": {"magic": "pir", "version": 1}, "program": {}}')
    assert adapter_of(path).name == "Paddle"
