"""Files of Keras 3 beside Keras itself: random stacks of recurrent layers, and each layer alone.

The backend is JAX's, unless KERAS_BACKEND names another one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
pytest.importorskip("keras")

import keras  # noqa: E402
from frameworks import keras_models as models  # noqa: E402

import onernn  # noqa: E402
from onernn.adapters.registry import RUNTIMES  # noqa: E402
from onernn.engine.session import find_unsupported  # noqa: E402

SEEDS = int(os.environ.get("ONERNN_KERAS_MODELS", 60))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_models_give_what_keras_gives(seed: int, tmp_path: Path) -> None:
    model, feeds = models.random_model(keras, seed)
    models.check(model, tmp_path / ("model.keras" if seed % 3 else "model.h5"), feeds)


MASKED = models.masked_calls(keras)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MASKED)
def test_masks_of_calls_with_several_tensors_are_those_of_keras(name: str, tmp_path: Path) -> None:
    model = models.filled(keras.Model(*MASKED[name]), 5)
    rng, feeds = np.random.default_rng(1), []
    for value in model.inputs:
        size = (4, *(each or 4 for each in value.shape[1:]))
        feeds.append(rng.normal(size=size).astype("float32"))
        if value.dtype == "int32" and len(size) == 3:
            feeds[-1] = rng.integers(0, 3, size).astype("int32")
        elif value.dtype == "int32":
            feeds[-1] = np.array([[1, 2, 0, 0], [1, 2, 3, 4], [0, 1, 0, 2], [3, 0, 0, 5]], "int32")
            feeds[-1] = feeds[-1][:: -1 if value.name == "other" else 1].copy()
    models.check(model, tmp_path / "model.keras", feeds)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_a_model_inside_a_model_inside_a_model_has_its_weights(suffix: str, tmp_path: Path) -> None:
    x = value = keras.Input((5, 4))
    for size in (2, 3, 4):
        value = keras.layers.GRU(size, return_sequences=True)(value)
        value = keras.Model(x, value)(x := keras.Input((5, 4)))
    model = models.filled(keras.Model(x, value), 3)
    feeds = [np.random.default_rng(0).normal(size=(3, 5, 4)).astype("float32")]
    models.check(model, tmp_path / f"model.{suffix}", feeds)


def test_an_argument_that_is_not_read_is_refused_by_its_name(tmp_path: Path) -> None:
    x = keras.Input((None, 3))
    keras.Model(x, keras.layers.Attention()([x, x], return_attention_scores=True)).save(
        tmp_path / "model.keras"
    )
    with pytest.raises(
        onernn.UnsupportedError, match="attribute return_attention_scores=True: only False"
    ):
        onernn.Session(tmp_path / "model.keras")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", ["keras", "h5"])
@pytest.mark.parametrize("name", models.LAYERS)
def test_each_layer_gives_what_keras_gives(name: str, suffix: str, tmp_path: Path) -> None:
    shape, layers = models.LAYERS[name]
    model = models.sequential(keras, shape, layers(keras.layers))
    rng = np.random.default_rng(0)
    feeds = [rng.normal(size=(3, *(size or 5 for size in shape))).astype("float32")]
    models.check(model, tmp_path / f"model.{suffix}", feeds)


@pytest.mark.parametrize("name", models.ACTIVATIONS)
def test_each_activation_gives_what_keras_gives(name: str, tmp_path: Path) -> None:
    model: Any = models.sequential(keras, (4,), [keras.layers.Dense(5, activation=name)])
    feeds = [np.random.default_rng(0).normal(size=(9, 4)).astype("float32") * 3]
    models.check(model, tmp_path / "model.keras", feeds)


def test_each_function_that_is_read_has_a_case() -> None:
    from onernn.adapters.keras.lower import functions
    from onernn.adapters.keras.table import OPERATIONS

    assert functions
    cases = {name.partition(" ")[0] for name in models.FUNCTIONS}
    inner = {"Shape", "SquaredDifference"}  # only TensorFlow's functions use them
    assert OPERATIONS.keys() - inner == cases


FUNCTIONS_INPUTS = [
    np.random.default_rng(3).normal(size=(3, 4, 3)).astype("float32"),
    np.array([[1, 2, 3, 4], [2, 3, 2, 1], [4, 1, 1, 2]], "int32"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", models.FUNCTIONS)
def test_each_function_gives_what_keras_gives(name: str, tmp_path: Path) -> None:
    suffix = "h5" if name in ("GetItem", "Cast", "Split", "Where", "Arange") else "keras"
    x, i = keras.Input((4, 3), name="x"), keras.Input((4,), dtype="int32", name="i")
    model = keras.Model([x, i], models.FUNCTIONS[name](keras.ops, x, i))
    models.check(model, tmp_path / f"model.{suffix}", FUNCTIONS_INPUTS)


@pytest.mark.parametrize("name", ["Average", "LSTM", "tanh"])
def test_layers_give_for_integers_what_keras_gives(name: str, tmp_path: Path) -> None:
    inputs = [keras.Input((None, 3), dtype="int32") for _ in range(2)]
    results = {
        "Average": lambda a, b: keras.layers.Average()([a, b]),
        "LSTM": lambda a, b: keras.layers.LSTM(2)(keras.ops.add(a, b)),
        "tanh": lambda a, b: keras.layers.Activation("tanh")(keras.ops.multiply(a, b)),
    }
    model = models.filled(keras.Model(inputs, results[name](*inputs)), 0)
    feeds = [np.array([[[1, -2, 3], [4, 0, 1]]], "int32"), np.ones((1, 2, 3), "int32")]
    models.check(model, tmp_path / "model.keras", feeds)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Activation", {"activation": "linear"}),
        ("ReLU", {}),
        ("GlobalMaxPooling1D", {}),
        ("UpSampling1D", {}),
        ("LayerNormalization", {}),
        ("GroupNormalization", {"groups": 1}),
        ("RMSNormalization", {}),
    ],
)
def test_integers_for_which_keras_returns_integers_are_refused(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    x = keras.Input((4, 3), dtype="int32")
    path = tmp_path / "model.keras"
    keras.Model(x, getattr(keras.layers, name)(**options)(x)).save(path)
    with pytest.raises(onernn.UnsupportedError, match=f"{name}.: expected floats, got int32"):
        onernn.Session(path)


@pytest.mark.parametrize(
    ("name", "dtype", "reason"),
    [
        ("relu", "int32", "expected floats, got int32"),
        ("square", "bool", "expected integers or floats, got bool"),
    ],
)
def test_functions_whose_dtype_is_keras_s_own_are_refused(
    name: str, dtype: str, reason: str, tmp_path: Path
) -> None:
    x = keras.Input((4,), dtype=dtype)
    path = tmp_path / "model.keras"
    keras.Model(x, getattr(keras.ops, name)(x)).save(path)
    with pytest.raises(onernn.UnsupportedError, match=reason):
        onernn.Session(path)


def test_an_option_in_which_none_is_no_default_is_refused(tmp_path: Path) -> None:
    x = keras.Input((4, 3))
    path = tmp_path / "model.keras"
    keras.Model(x, keras.ops.softmax(x, axis=None)).save(path)
    with pytest.raises(
        onernn.UnsupportedError, match="attribute axis=None: expected one axis of 3"
    ):
        onernn.Session(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(4))
def test_an_architecture_in_json_with_its_weights_gives_what_keras_gives(
    seed: int, tmp_path: Path
) -> None:
    model, feeds = models.random_model(keras, seed)
    path, weights = tmp_path / "model.json", tmp_path / "some.weights.h5"
    path.write_text(model.to_json())
    model.save_weights(weights)
    graph = onernn.load(path, params=weights)
    models.compare(model, graph, feeds)
    names = [value.name for value in graph.inputs]
    again = RUNTIMES["keras"].run(str(path), str(weights), dict(zip(names, feeds, strict=True)))
    for ours, theirs in zip(again, models.given(model, feeds), strict=True):
        np.testing.assert_array_equal(ours, theirs)


class Squeezer(keras.layers.Layer):
    """A class of a user's own: its code is not in a file."""

    def call(self, x: Any) -> Any:
        return keras.ops.mean(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("kind", ["Functional", "Sequential"])
def test_layers_after_an_unknown_one_are_read_with_the_sizes_that_keras_tells(
    kind: str, tmp_path: Path
) -> None:
    layers = [Squeezer(), keras.layers.LSTM(3), Squeezer(), keras.layers.Dense(2)]
    x = keras.Input((5, 4))
    if kind == "Sequential":
        model = keras.Sequential([x, *layers])
    else:
        y = x
        for layer in layers:
            y = layer(y)
        model = keras.Model(x, y)
    model.save(tmp_path / "model.keras")
    graph = onernn.load(tmp_path / "model.keras")
    refused = [each.reason for each in find_unsupported(graph)]
    assert len(refused) == 2 and all("Squeezer" in reason for reason in refused)
    assert {"Rnn", "MatMul"} <= {node.op for node in graph.nodes}


def _dict_in_dict() -> tuple[Any, Any]:
    x = keras.Input((5, 4))
    inner = keras.Model(x, {"a": {"z": keras.layers.Dense(2)(x), "y": keras.layers.Dense(2)(x)}})
    outer = keras.Input((5, 4))
    return outer, inner(outer)["a"]["z"]


def _stateful(kind: str) -> tuple[Any, Any]:
    x, lstm = keras.Input(batch_shape=(2, 5, 4)), keras.layers.LSTM(3, stateful=True)
    if kind == "by steps":
        x = keras.Input(batch_shape=(2, 3, 5, 4))
        return x, keras.layers.TimeDistributed(lstm)(x)
    if kind == "inside":
        lstm = keras.Model(x, lstm(x))
        x = keras.Input(batch_shape=(2, 5, 4))
    return x, [lstm(x), lstm(x)]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (_dict_in_dict, "dictionaries inside dictionaries: expected sorted keys"),
        (lambda: _stateful("by steps"), "around LSTM: expected no stateful layer"),
        (lambda: _stateful("twice"), "stateful, and called twice"),
        (lambda: _stateful("inside"), "stateful, and called twice"),
    ],
)
def test_a_model_whose_file_leaves_an_order_open_is_refused(
    made: Any, reason: str, tmp_path: Path
) -> None:
    keras.Model(*made()).save(tmp_path / "model.keras")
    with pytest.raises(onernn.UnsupportedError, match=reason):
        onernn.Session(tmp_path / "model.keras")
