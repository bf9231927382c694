"""Keras's recurrent layers in PyTorch, by load_state_dict: live ones, and those of a file."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
pytest.importorskip("keras")
pytest.importorskip("torch")

import keras  # noqa: E402
import torch  # noqa: E402
from frameworks.keras_models import filled, given  # noqa: E402
from torch import nn  # noqa: E402

import onernn  # noqa: E402

layers = keras.layers
whole_lstm = partial(layers.LSTM, 4, return_sequences=True)


def _same(model: Any, rnn: Any, source: Any) -> None:
    """PyTorch's layer gives what Keras's model gives, with the weights of ``source`` in it."""
    state = onernn.convert_weights(source, to="torch")
    rnn.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    x = np.random.default_rng(0).normal(size=(2, 6, 3)).astype("float32")
    (want,) = given(model, [x])
    with torch.no_grad():
        made, _ = rnn(torch.from_numpy(x))
    np.testing.assert_allclose(made.numpy(), want, rtol=0, atol=2e-6)


class Mine(layers.LSTM):
    """A subclass that computes what its base does."""


class MyCell(layers.LSTMCell):
    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        return super().call(2 * inputs, states, training)


CASES: dict[str, tuple[list[Any], Any]] = {
    "stack": (
        [whole_lstm(), layers.Dropout(0.1), whole_lstm()],
        lambda: nn.LSTM(3, 4, num_layers=2, batch_first=True),
    ),
    "directions": (
        [layers.Bidirectional(layers.GRU(4, return_sequences=True)) for _ in range(2)],
        lambda: nn.GRU(3, 4, num_layers=2, bidirectional=True, batch_first=True),
    ),
    "cell": (
        [layers.RNN(layers.LSTMCell(4), return_sequences=True)],
        lambda: nn.LSTM(3, 4, batch_first=True),
    ),
    "cells": (
        [layers.RNN([layers.LSTMCell(4), layers.LSTMCell(4)], return_sequences=True)],
        lambda: nn.LSTM(3, 4, num_layers=2, batch_first=True),
    ),
    "plain": (
        [layers.SimpleRNN(4, activation="relu", return_sequences=True)],
        lambda: nn.RNN(3, 4, nonlinearity="relu", batch_first=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_sequential_of_keras_becomes_a_layer_of_pytorch(name: str, tmp_path: Path) -> None:
    held, make = CASES[name]
    model = filled(keras.Sequential([keras.Input((None, 3)), *held]), 3)
    _same(model, make(), model)
    # What stands in the file, as `onernn weights` writes it.
    model.save(tmp_path / "m.keras")
    (node,) = [n for n in onernn.fuse(tmp_path / "m.keras").model.nodes if n.op == "Rnn"]
    _same(model, make(), node)


@pytest.mark.parametrize(
    "held, named",
    [
        ([layers.Dense(3)], "no recurrent layer"),
        ([whole_lstm(name="a"), layers.Dense(4), layers.LSTM(4)], "'a'"),
        ([whole_lstm(name="b"), layers.LSTM(5)], "'b'"),
        ([whole_lstm(name="c"), layers.GRU(4)], "'c'"),
        ([layers.RNN([layers.LSTMCell(4), layers.LSTMCell(2)], name="d")], "'d'"),
        ([layers.LSTM(4, go_backwards=True)], "go_backwards"),
        ([layers.Bidirectional(layers.LSTM(4), merge_mode="mul")], "merge_mode=.*mul"),
        ([layers.ConvLSTM1D(2, 2)], "ConvLSTM1D"),
        ([layers.LSTM(4, recurrent_activation="hard_sigmoid")], "hardsigmoid"),
        ([layers.RNN(MyCell(4))], "MyCell"),
    ],
)
def test_what_is_not_one_stack_is_refused_by_name(held: list[Any], named: str) -> None:
    shape = (5, 6, 3) if "ConvLSTM1D" in str(type(held[0])) else (5, 3)
    model = keras.Sequential([keras.Input(shape), *held])
    with pytest.raises(onernn.UnsupportedError, match=named):
        onernn.convert_weights(model, to="torch")


@pytest.mark.parametrize(
    "second",
    [
        keras.Sequential([keras.Input((5, 4)), layers.GRU(2, return_sequences=True)], name="inner"),
        layers.TimeDistributed(keras.Sequential([keras.Input((4, 1)), layers.GRU(2)])),
        layers.Bidirectional(layers.GRU(2), name="both"),
    ],
)
def test_a_recurrent_layer_inside_another_layer_is_named_not_omitted(second: Any) -> None:
    between = [layers.Reshape((5, 4, 1))] * isinstance(second, layers.TimeDistributed)
    model = keras.Sequential([keras.Input((5, 3)), whole_lstm(), *between, second])
    with pytest.raises(onernn.UnsupportedError, match="(gru|both|GRU)"):
        onernn.convert_weights(model, to="torch")


def test_the_only_recurrent_layer_may_lie_inside_a_model() -> None:
    inner = keras.Sequential([keras.Input((None, 3)), whole_lstm()])
    model = filled(keras.Sequential([keras.Input((None, 3)), inner]), 3)
    _same(model, nn.LSTM(3, 4, batch_first=True), model)


@pytest.mark.parametrize("layer", [layers.LSTM(4), layers.RNN(layers.LSTMCell(4))])
def test_a_layer_that_is_not_built_is_told(layer: Any) -> None:
    with pytest.raises(onernn.UnsupportedError, match=layer.name):
        onernn.convert_weights(layer, to="torch")


def test_subclasses_are_what_they_inherit_from() -> None:
    model = filled(keras.Sequential([keras.Input((None, 3)), Mine(4, return_sequences=True)]), 3)
    for given_one in (model, model.layers[0]):
        _same(model, nn.LSTM(3, 4, batch_first=True), given_one)


def test_bfloat16_layers_of_keras_come_out_as_float32_exactly() -> None:
    layer = layers.GRU(4, dtype="bfloat16", recurrent_initializer="ones")  # JAX has no orthogonal
    layer.build((None, None, 3))
    state = onernn.convert_weights(layer, to="torch")
    (kernel, _, _) = layer.get_weights()
    z, r, h = np.split(np.asarray(kernel, np.float32), 3, axis=1)  # PyTorch's gates are r, z, n
    np.testing.assert_array_equal(state["weight_ih_l0"], np.concatenate([r, z, h], axis=1).T)
    assert all(array.dtype == np.float32 for array in state.values())


@pytest.mark.parametrize(
    "kind, options",
    [
        ("SimpleRNN", {}),
        ("SimpleRNN", {"activation": "relu"}),
        ("LSTM", {}),
        ("LSTM", {"use_bias": False}),
        ("GRU", {}),
        ("GRU", {"reset_after": False}),
        ("GRU", {"reset_after": False, "use_bias": False}),
        ("GRU", {"use_bias": False}),
        ("Bidirectional", {"merge_mode": "sum"}),
    ],
)
def test_arrays_for_keras_are_those_that_keras_sets(kind: str, options: dict[str, Any]) -> None:
    def make() -> Any:
        if kind == "Bidirectional":
            return layers.Bidirectional(layers.GRU(4, return_sequences=True), **options)
        return getattr(layers, kind)(4, return_sequences=True, **options)

    x = np.random.default_rng(0).normal(size=(2, 6, 3)).astype("float32")
    theirs, fresh = make(), make()
    for layer in (theirs, fresh):
        layer.build(x.shape)
    arrays = onernn.convert_weights(filled(theirs, 4), "keras")
    fresh.set_weights([*arrays.values()])
    np.testing.assert_allclose(np.asarray(fresh(x)), np.asarray(theirs(x)), rtol=0, atol=1e-6)
