"""Keras's SimpleRNN, LSTM, GRU and Bidirectional against ours on the same weights, both ways."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

from typing import Any  # noqa: E402

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from support.arrays import uniform

import onernn  # noqa: E402
from onernn import UnsupportedError  # noqa: E402
from onernn.adapters.weight_conversion import read_layer  # noqa: E402

X = uniform(2, 6, 3)
LAYERS = [
    (keras.layers.SimpleRNN, {}),
    (keras.layers.SimpleRNN, {"activation": "relu"}),
    (keras.layers.LSTM, {}),
    (keras.layers.LSTM, {"use_bias": False}),
    (keras.layers.GRU, {}),
    (keras.layers.GRU, {"reset_after": False}),
    (keras.layers.GRU, {"reset_after": False, "use_bias": False}),
    (keras.layers.GRU, {"use_bias": False}),
]


def built(kind: Any, options: dict) -> Any:
    layer = kind(4, return_sequences=True, **options)
    layer.build(X.shape)
    rng = np.random.default_rng(4)
    layer.set_weights([rng.uniform(-0.5, 0.5, w.shape) for w in layer.get_weights()])
    return layer


@pytest.mark.parametrize("kind, options", LAYERS)
def test_weights_of_ours_are_those_that_keras_sets(kind: Any, options: dict) -> None:
    theirs, fresh = built(kind, options), built(kind, options)
    arrays = onernn.convert_weights(theirs, "keras")
    names = ("kernel", "recurrent_kernel", "bias")
    fresh.set_weights([arrays[name] for name in names if name in arrays])
    np.testing.assert_allclose(np.asarray(fresh(X)), np.asarray(theirs(X)), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "layer, reason",
    [
        (keras.layers.LSTM(4, recurrent_activation="hard_sigmoid"), "LSTM with hard_sigmoid"),
        (keras.layers.GRU(4, go_backwards=True), "go_backwards"),
        (keras.layers.Bidirectional(keras.layers.LSTM(4), merge_mode="mul"), "merge_mode='mul'"),
    ],
)
def test_what_is_another_layer_in_ours_is_refused(layer: Any, reason: str) -> None:
    layer.build(X.shape)
    with pytest.raises(UnsupportedError, match=reason):
        read_layer(layer)
