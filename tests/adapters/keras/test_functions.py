"""TensorFlow's functions in files of Keras 2, against NumPy, and layers that are not known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import onernn
from onernn import UnsupportedError
from onernn.engine.session import find_unsupported

h5py = pytest.importorskip("h5py")
RNG = np.random.default_rng(4)
X = RNG.normal(size=(3, 4, 2)).astype(np.float32)
Y = RNG.normal(size=(3, 4, 2)).astype(np.float32)
IDS = np.array([[1, 0, 2, 1], [3, 3, 0, 1], [2, 0, 0, 0]], np.int32)


def _input(name: str, shape: list[Any], dtype: str = "float32") -> dict[str, Any]:
    config = {"name": name, "batch_input_shape": shape, "dtype": dtype, "sparse": False}
    return {"class_name": "InputLayer", "name": name, "config": config, "inbound_nodes": []}


def _call(function: str, first: Any, kind: str = "TFOpLambda", **named: Any) -> dict[str, Any]:
    """A function as tf.keras 2.4 to 2.15 writes it: the first argument, and the others by name."""
    name = f"tf.{function}"
    config = {"name": name, "trainable": True, "dtype": "float32", "function": function}
    if isinstance(first, str):
        node: Any = [first, 0, 0, named]
    elif isinstance(first, list):
        node = [[each, 0, 0, named] for each in first]
    else:
        node = ["_CONSTANT_VALUE", -1, first, named]
    return {"class_name": kind, "name": name, "config": config, "inbound_nodes": [node]}


def save(folder: Path, layers: list[dict[str, Any]], last: str, count: int = 1) -> Path:
    """A model of Keras 2 without weights, in HDF5."""
    inputs = [each["name"] for each in layers if each["class_name"] == "InputLayer"]
    config = {
        "name": "m",
        "layers": layers,
        "input_layers": [[name, 0, 0] for name in inputs],
        "output_layers": [[last, 0, at] for at in range(count)],
    }
    path = folder / "model.h5"
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"], file.attrs["backend"] = "2.11.0", "tensorflow"
        file.attrs["model_config"] = json.dumps({"class_name": "Functional", "config": config})
        file.create_group("model_weights").attrs["layer_names"] = np.array([], "S1")
    return path


def ref(name: str) -> list[Any]:
    return [name, 0, 0]


ALL = {"start": None, "stop": None, "step": None}
LENGTHS = np.sqrt(np.maximum((X * X).sum(1, keepdims=True), 1e-12))
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "last": (
        _call("__operators__.getitem", "x", "SlicingOpLambda", slice_spec=[ALL, -1]),
        X[:, -1],
    ),
    "tuple": (
        _call(
            "__operators__.getitem",
            "x",
            "SlicingOpLambda",
            slice_spec={
                "class_name": "__tuple__",
                "items": [{"class_name": "__ellipsis__"}, None, {**ALL, "stop": 1}],
            },
        ),
        X[..., None, :1],
    ),
    "back": (
        _call(
            "__operators__.getitem", "x", "SlicingOpLambda", slice_spec=[ALL, {**ALL, "step": -1}]
        ),
        X[:, ::-1],
    ),
    "add": (_call("__operators__.add", "x", y=ref("y"), name=None), X + Y),
    "one less": (_call("math.subtract", 1.0, y=ref("x"), name=None), 1 - X),
    "times a list": (_call("math.multiply", "x", y=[[2.0, 3.0]], name=None), X * [[2, 3]]),
    "mean": (_call("math.reduce_mean", "x", axis=1, keepdims=False, name=None), X.mean(1)),
    "sum": (
        _call("math.reduce_sum", "x", axis=[1, 2], keepdims=True),
        X.sum((1, 2), keepdims=True),
    ),
    "concat": (_call("concat", ["x", "y"], axis=-1), np.concatenate([X, Y], -1)),
    "stack": (_call("stack", ["x", "y"], axis=1), np.stack([X, Y], 1)),
    "reshape": (_call("reshape", "x", shape=[-1, 8]), X.reshape(-1, 8)),
    "transpose": (
        _call("compat.v1.transpose", "x", perm=[0, 2, 1], conjugate=False),
        X.transpose(0, 2, 1),
    ),
    "expand": (_call("expand_dims", "x", axis=-1), X[..., None]),
    "reverse": (_call("reverse", "x", axis=[1]), X[:, ::-1]),
    "product": (_call("linalg.matmul", "x", b=ref("y"), transpose_b=True), X @ Y.swapaxes(1, 2)),
    "clip": (
        _call("clip_by_value", "x", clip_value_min=-0.5, clip_value_max=0.5),
        X.clip(-0.5, 0.5),
    ),
    "greater": (_call("math.greater", "x", y=0, name=None), X > 0),
    "not equal": (_call("__operators__.ne", "ids", other=0), IDS != 0),
    "quotient": (_call("math.truediv", "ids", y=3, name=None), IDS / 3),
    "cast": (_call("cast", "ids", dtype="float32"), IDS.astype(np.float32)),
    "one hot": (_call("one_hot", "ids", depth=4), np.eye(4, dtype=np.float32)[IDS]),
    "gather": (
        _call("compat.v1.gather", "x", indices=[2, 0], validate_indices=None, axis=1),
        X[:, [2, 0]],
    ),
    "argmax": (_call("math.argmax", "x", axis=-1), X.argmax(-1)),
    "l2": (_call("math.l2_normalize", "x", axis=1), X / LENGTHS),
    "norm": (
        _call("compat.v1.norm", "x", ord="euclidean", axis=-1, keepdims=None),
        np.sqrt((X * X).sum(-1)),
    ),
    "relu": (_call("nn.relu", "x", name=None), np.maximum(X, 0)),
    "swish": (_call("nn.silu", "x", beta=1.0), X / (1 + np.exp(-X))),
    "pad": (
        _call(
            "compat.v1.pad",
            "x",
            paddings=[[0, 0], [1, 0], [0, 2]],
            mode="CONSTANT",
            constant_values=0,
        ),
        np.pad(X, [(0, 0), (1, 0), (0, 2)]),
    ),
    "before": (
        _call("math.cumsum", "x", axis=1, exclusive=True, reverse=False),
        np.cumsum(X, 1) - X,
    ),
    "cut": (_call("slice", "x", begin=[0, 1, 0], size=[-1, 2, 1]), X[:, 1:3, :1]),
    "shape": (_call("compat.v1.shape", "x", out_type="int32"), np.array([3, 4, 2])),
}
INPUTS = [
    _input("x", [None, None, 2]),
    _input("y", [None, None, 2]),
    _input("ids", [None, 4], "int32"),
]


@pytest.mark.parametrize("name", CASES)
def test_a_function_of_tensorflow_computes_what_numpy_does(name: str, tmp_path: Path) -> None:
    layer, want = CASES[name]
    path = save(tmp_path, [*INPUTS, layer], layer["name"])
    (got,) = onernn.Session(path).run({"x": X, "y": Y, "ids": IDS}).values()
    assert got.shape == want.shape
    assert name != "quotient" or got.dtype == np.float64
    # A few roundings of sums of at most eight terms below 8.
    assert_allclose(got, want, rtol=0, atol=16 * 2.0**-23)


def _layer(kind: str, name: str, node: Any, **config: Any) -> dict[str, Any]:
    config = {"name": name, "trainable": True, **config}
    return {"class_name": kind, "name": name, "config": config, "inbound_nodes": [node]}


def test_an_inner_model_of_keras_2_takes_tensors_by_name(tmp_path: Path) -> None:
    minus = _layer("Subtract", "minus", [["p", 0, 0, {}], ["q", 0, 0, {}]])
    ends = {"input_layers": {"b": ref("q"), "a": ref("p")}, "output_layers": [ref("minus")]}
    layers = [_input("p", [None, None, 2]), _input("q", [None, None, 2]), minus]
    node = {"b": ["x", 0, 0, {}], "a": ["y", 0, 0, {}]}
    inner = _layer("Functional", "inner", node, layers=layers, **ends)
    last = _layer("Dropout", "last", [["inner", 1, 0, {"training": False}]], rate=0.5)
    path = save(tmp_path, [*INPUTS, inner, last], "last")
    (got,) = onernn.Session(path).run({"x": X, "y": Y, "ids": IDS}).values()
    assert_array_equal(got, Y - X)


def test_functions_of_keras_ops_compute_what_keras_recorded() -> None:
    folder = Path(__file__).parent / "functions"
    with np.load(folder / "io.npz") as recorded:
        feeds = {name[4:]: recorded[name] for name in recorded.files if name.startswith("in__")}
        want = {name[5:]: recorded[name] for name in recorded.files if name.startswith("out__")}
    got = onernn.Session(folder / "model.keras").run(feeds)
    assert got.keys() == want.keys() and len(want) > 90
    for name, theirs in want.items():
        ours = np.asarray(got[name])
        # Keras declares int32 for the places of top_k, PyTorch's backend returns int64.
        dtype = np.dtype("int32") if name == "top_k/1" else theirs.dtype
        assert (ours.shape, ours.dtype) == (theirs.shape, dtype), name
        # Sums of at most 12 terms and functions of numbers below 8, in float32.
        scale = max(1.0, float(np.abs(theirs).max(initial=0)))
        assert_allclose(ours, theirs, rtol=0, atol=40 * 2.0**-23 * scale, err_msg=name)


def test_a_shape_made_of_tensors_is_that_of_the_run(tmp_path: Path) -> None:
    shape = _call("shape", "x", out_type="int32")
    count = _call("__operators__.getitem", "tf.shape", "SlicingOpLambda", slice_spec=0)
    made = _call("reshape", "x", shape=[ref("tf.__operators__.getitem"), 8])
    path = save(tmp_path, [*INPUTS, shape, count, made], "tf.reshape")
    (got,) = onernn.Session(path).run({"x": X, "y": Y, "ids": IDS}).values()
    assert_array_equal(got, X.reshape(3, 8))


def test_parts_of_a_split_are_outputs(tmp_path: Path) -> None:
    layer = _call("split", "x", num_or_size_splits=[1, -1 + 2, 2], axis=1)
    inputs = [_input("x", [None, 4, 2]), *INPUTS[1:]]
    path = save(tmp_path, [*inputs, layer], "tf.split", 3)
    got = onernn.Session(path).run({"x": X, "y": Y, "ids": IDS}).values()
    for part, want in zip(got, np.split(X, [1, 2], 1), strict=True):
        assert_array_equal(part, want)


@pytest.mark.parametrize(
    "layer, reason",
    [
        (_call("linalg.inv", "x"), "function tf.linalg.inv: not known; pass a rule"),
        (_call("math.reduce_mean", "x", axis=1, where=3), "unexpected keyword argument 'where'"),
        (_call("nn.softmax", "x", axis=5), "attribute axis=5: expected one axis of 3"),
        (_call("gather", "x", indices=[0], axis=1, batch_dims=1), "batch_dims=1"),
        (
            _call("__operators__.getitem", "x", "SlicingOpLambda", slice_spec=[0, 0, 0, 0]),
            r"index \[0, 0, 0, 0\]: expected at most 3 axes",
        ),
        (
            _call("__operators__.getitem", "x", "SlicingOpLambda", slice_spec=[[0, 1], 0]),
            "one list or tensor, without integers, got 1",
        ),
        (
            _call("__operators__.getitem", "x", "SlicingOpLambda", slice_spec=[{**ALL, "step": 0}]),
            "slice step=0: expected",
        ),
        (_call("reshape", "x", shape=[-1, 0]), "newshape: expected sizes other than 0"),
        (_call("math.pow", "ids", y=2), "expected floats, got int32"),
        (_call("math.reduce_mean", "ids", axis=1), "expected floats, got int32"),
        (_call("math.reduce_sum", "x", axis=[]), r"axis=\[\]: expected one axis"),
        (_call("unstack", "x", num=10**9), "1000000000 parts: expected at most 4096"),
    ],
)
def test_what_a_function_does_not_take_is_refused(
    layer: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        onernn.Session(save(tmp_path, [*INPUTS, layer], layer["name"]))


def _dropout(name: str, of: str) -> dict[str, Any]:
    config = {"name": name, "trainable": True, "dtype": "float32", "rate": 0.1}
    node = [[[of, 0, 0, {}]]]
    return {"class_name": "Dropout", "name": name, "config": config, "inbound_nodes": node}


def _custom(name: str, of: str) -> dict[str, Any]:
    return {**_dropout(name, of), "class_name": "Squeezer"}


def test_an_unknown_layer_is_named_once_and_what_follows_is_read(tmp_path: Path) -> None:
    layers = [
        _custom("first", "x"),
        _call("nn.tanh", "first"),  # needs no shape
        _call("math.reduce_mean", "tf.nn.tanh", axis=1),  # needs one
        _custom("second", "tf.math.reduce_mean"),
        _call("math.exp", "second"),
    ]
    graph = onernn.load(save(tmp_path, [*INPUTS, *layers], "tf.math.exp"))
    reasons = [(each.where, each.reason) for each in find_unsupported(graph)]
    assert [reason.split(";")[0] for _, reason in reasons] == ["layer Squeezer: not known"] * 2
    assert ["first" in reasons[0][0], "second" in reasons[1][0]] == [True, True]
    assert "Exp" in [node.op for node in graph.nodes]


def test_a_fault_of_its_own_behind_an_unknown_layer_is_named_too(tmp_path: Path) -> None:
    layers = [_custom("first", "x"), _call("math.pow", "first", y=2, fast=True)]
    graph = onernn.load(save(tmp_path, [*INPUTS, *layers], "tf.math.pow"))
    reasons = [each.reason for each in find_unsupported(graph)]
    assert len(reasons) == 2 and "'fast'" in reasons[1]
