"""Small Keras models with the outputs that Keras computed for them, under tests/data/keras.

``python -m frameworks.record_keras`` in tests records those of Keras 3 anew, with ``2`` behind it
those of Keras 2, by tf_keras.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from frameworks.keras_models import FUNCTIONS, LAYERS, filled, given

import onernn

DATA = Path(__file__).parents[1] / "data" / "keras"
Made = tuple[Any, list[np.ndarray]]


def _numbers(*shape: int, masked: bool = False) -> np.ndarray:
    rng = np.random.default_rng(7)
    made = rng.normal(size=shape).astype("float32")
    if masked:
        made[rng.random(shape[:2]) < 0.4] = 0
        made[0] = 0
    return made


def _ids() -> np.ndarray:
    return np.array([[3, 1, 0, 2, 0], [1, 2, 3, 4, 5], [0, 0, 5, 0, 1], [0] * 5], "int32")


def text_classifier(keras: Any) -> Made:
    """Words with holes, both directions, two layers."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32", name="words"),
            layers.Embedding(6, 4, mask_zero=True),
            layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
            layers.Dropout(0.3),
            layers.Bidirectional(layers.GRU(2)),
            layers.Dense(2, activation="softmax"),
        ]
    )
    return model, [_ids()]


def states(keras: Any) -> Made:
    """A state from outside, all states given back, a layer used twice, a model in the model."""
    layers = keras.layers
    x, other = keras.Input((None, 3), name="x"), keras.Input((None, 3), name="other")
    h, c = keras.Input((4,), name="h"), keras.Input((4,), name="c")
    inner = keras.Sequential([keras.Input((None, 3)), layers.Dense(3, "tanh"), layers.ELU()])
    shared = layers.LSTM(4, return_sequences=True, return_state=True)
    first, h1, c1 = shared(inner(x), initial_state=[h, c])
    second, h2, c2 = shared(inner(other), initial_state=[h1, c1])
    joined = layers.Concatenate()([first, second])
    top = layers.GRU(2, reset_after=False, go_backwards=True, return_sequences=True)(joined)
    model = keras.Model([x, other, h, c], [top, h2, c2])
    feeds = [_numbers(2, 5, 3), _numbers(2, 5, 3)[::-1].copy(), _numbers(2, 4), _numbers(2, 4) / 2]
    return model, feeds


def cells(keras: Any) -> Made:
    """Three cells in one layer, under a mask."""
    layers = keras.layers
    held = [layers.LSTMCell(3), layers.GRUCell(4), layers.SimpleRNNCell(2, activation="relu")]
    model = keras.Sequential(
        [
            keras.Input((6, 3), name="x"),
            layers.Masking(),
            layers.RNN(held, return_sequences=True),
            layers.TimeDistributed(layers.Dense(2)),
        ]
    )
    return model, [_numbers(3, 6, 3, masked=True)]


def reader(keras: Any) -> Made:
    """Convolutions before a recurrent layer, norms and pooling around it."""
    layers = keras.layers
    x = keras.Input((6, 8, 1), name="image")
    value = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    value = layers.BatchNormalization()(value)
    value = layers.MaxPooling2D((2, 1))(value)
    value = layers.Permute((2, 1, 3))(value)
    value = layers.Reshape((8, 12))(value)
    value = layers.Bidirectional(layers.GRU(3, return_sequences=True), merge_mode="sum")(value)
    value = layers.LayerNormalization()(value)
    model = keras.Model(x, [value, layers.GlobalAveragePooling1D()(value)])
    return model, [_numbers(2, 6, 8, 1)]


def stateful(keras: Any) -> Made:
    layers = keras.layers
    x = keras.Input(batch_shape=(2, 4, 3), name="x")
    value = layers.LSTM(3, stateful=True, return_sequences=True)(x)
    return keras.Model(x, layers.GRU(2, stateful=True)(value)), [_numbers(2, 4, 3)]


def masked_steps(keras: Any) -> Made:
    """Each cell under a mask, both ways, with repeated and with zero outputs; and a layer with a
    state, which Keras 3 masks only if the call names the mask."""
    layers = keras.layers
    x, h = keras.Input((None, 3), name="x"), keras.Input((4,), name="h")
    flags = keras.Input((None,), dtype="bool", name="flags")
    masked = layers.Masking()(x)
    outputs = [
        kind(4, return_sequences=True, go_backwards=back, zero_output_for_mask=zeros, **options)(
            masked
        )
        for kind, options in (
            (layers.SimpleRNN, {}),
            (layers.LSTM, {}),
            (layers.GRU, {}),
            (layers.GRU, {"reset_after": False}),
        )
        for back in (False, True)
        for zeros in (False, True)
    ]
    for mask in ({}, {"mask": flags}):
        layer = layers.SimpleRNN(4, return_sequences=True)
        outputs.append(layer(masked, initial_state=h, **mask))
    feeds = [_numbers(4, 7, 3, masked=True), _numbers(4, 4), _numbers(4, 7) < 0.5]
    feeds[2][:, 0] = True  # where a sequence begins with masked steps the backends differ
    return keras.Model([x, h, flags], outputs), feeds


def old_gates(keras: Any) -> Made:
    """hard_sigmoid of Keras 2, the reset gate before the product, steps before samples."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Embedding(6, 3, input_length=5),
            layers.GRU(
                3, recurrent_activation="hard_sigmoid", reset_after=False, return_sequences=True
            ),
            layers.LSTM(2, recurrent_activation="hard_sigmoid", time_major=True),
        ]
    )
    model.build((None, 5))
    return model, [_ids()]


def frozen(keras: Any) -> Made:
    """A model in the model whose frozen layer's weights stand behind the others."""
    layers = keras.layers
    inner = keras.Sequential(
        [
            keras.Input((None, 4)),
            layers.Dense(4, name="still", trainable=False),
            layers.BatchNormalization(name="norm"),
            layers.Dense(3, name="moving"),
        ],
        name="inner",
    )
    x = keras.Input((None, 3), name="x")
    value = layers.LSTM(4, return_sequences=True)(layers.Masking()(x))
    value = layers.Bidirectional(layers.SimpleRNN(4, return_sequences=True), "ave")(value)
    return keras.Model(x, inner(value)), [_numbers(3, 5, 3, masked=True)]


def layers(keras: Any) -> Made:
    """Each of LAYERS, side by side."""
    inputs, outputs, feeds = [], [], []
    for shape, make in LAYERS.values():
        value = keras.Input(shape)
        inputs.append(value)
        feeds.append(_numbers(2, *(size or 3 for size in shape)))
        for layer in make(keras.layers):
            value = layer(value)
        outputs.append(value)
    return keras.Model(inputs, outputs), feeds


def functions(keras: Any) -> Made:
    """Each of FUNCTIONS, side by side."""
    x, i = keras.Input((4, 3), name="x"), keras.Input((4,), dtype="int32", name="i")
    outputs: list[Any] = []
    for function in FUNCTIONS.values():
        made = function(keras.ops, x, i)
        outputs += made if isinstance(made, list) else [made]
    ids = np.array([[1, 2, 3, 4], [2, 3, 2, 1], [4, 1, 1, 2]], "int32")
    return keras.Model([x, i], outputs), [_numbers(3, 4, 3), ids]


def small(keras: Any) -> Made:
    """As few bytes as there can be: damaged files are made of it."""
    layers = keras.layers
    model = keras.Sequential([keras.Input((3, 2), name="x"), layers.Masking(), layers.GRU(2)])
    return model, [_numbers(2, 3, 2, masked=True)]


KERAS_3: dict[str, Callable[[Any], Made]] = {
    "text_classifier.keras": text_classifier,
    "states.keras": states,
    "cells.keras": cells,
    "reader.keras": reader,
    "stateful.keras": stateful,
    "layers.keras": layers,
    "masked_steps.keras": masked_steps,
    "small.keras": small,
    "small_legacy.h5": small,
    "states_legacy.h5": states,
    "cells_legacy.h5": cells,
}
KERAS_2: dict[str, Callable[[Any], Made]] = {
    "old_gates.h5": old_gates,
    "old_frozen.h5": frozen,
    "old_states.h5": states,
    "old_cells.keras": cells,
    "old_text_classifier.keras": text_classifier,
}


def states_of(layer: Any) -> list[Any]:
    """The variables of a stateful layer."""
    return list(layer.states) if getattr(layer, "stateful", False) else []


def record(keras: Any, name: str, make: Callable[[Any], Made], data: Path = DATA) -> None:
    folder = data / name.partition(".")[0]
    folder.mkdir(parents=True, exist_ok=True)
    model, feeds = make(keras)
    filled(model, 11)
    file = folder / f"model.{name.partition('.')[2]}"
    model.save(file)
    held = [state for layer in model.layers for state in states_of(layer)]
    for _ in range(2):  # the second call goes on where the first one ended
        begin = [np.array(state) for state in held]
        want = given(model, feeds) + [np.array(state) for state in held]
    feeds = [*feeds, *begin]
    graph = onernn.load(file)
    given_by_name, wanted = (
        {value.name: array for value, array in zip(values, arrays, strict=True)}
        for values, arrays in ((graph.inputs, feeds), (graph.outputs, want))
    )
    onernn.recording.save(folder / "io.npz", given_by_name, wanted)


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "jax")
    if sys.argv[1:] == ["2"]:
        import tf_keras as framework
    else:
        import keras as framework
    if sys.argv[1:] != ["2"]:  # which no test of whole models needs to write, emit or compile
        tests = Path(__file__).parents[1] / "adapters" / "keras"
        record(framework, "functions.keras", functions, tests)
    for name, make in (KERAS_2 if sys.argv[1:] == ["2"] else KERAS_3).items():
        record(framework, name, make)
