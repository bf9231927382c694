"""Recurrent models as TensorFlow's exporter, tf2onnx, writes them: loops, branches, layers.

``python -m tests.frameworks.tensorflow_exports`` records them anew under tests/data/onnx; it needs
tensorflow (or tensorflow-cpu) and tf2onnx.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import tensorflow as tf
import tf2onnx
from tests.frameworks.recording import record_onnx

from onernn import recording

WIDTH, H = 6, 5
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (3, 7, WIDTH)).astype(np.float32)
LENGTHS = np.array([7, 3, 1], np.int32)
IDS = np.array([[1, 2, 3, 4, 0, 0], [5, 6, 0, 0, 0, 0]], np.int32)
ANY = tf.TensorSpec([None, None, WIDTH], tf.float32, name="x")
FIXED = tf.TensorSpec([None, 7, WIDTH], tf.float32, name="x")
GRU, LSTM, BOTH = keras.layers.GRU, keras.layers.LSTM, keras.layers.Bidirectional


def filled(layer: Any, like: np.ndarray = X) -> Any:
    """The layer with weights of its own; Keras's biases are zeros."""
    layer(like)
    rng = np.random.default_rng(1)
    for weight in layer.weights:
        weight.assign(rng.uniform(-0.4, 0.4, weight.shape).astype(np.float32))
    return layer


def keras_layer(make: Callable[[], Any]) -> Any:
    layer = filled(make())
    return lambda x: layer(x)


def masked() -> Any:
    words = filled(keras.layers.Embedding(20, WIDTH, mask_zero=True), IDS)
    layer = filled(LSTM(H, return_sequences=True), words(IDS))
    return lambda ids: layer(words(ids))


def cell() -> Any:
    """An LSTM's step, gates i, j, f, o."""
    rng = np.random.default_rng(2)
    of_x, of_h, bias = (
        tf.Variable(rng.uniform(-0.4, 0.4, shape).astype(np.float32))
        for shape in ((WIDTH, 4 * H), (H, 4 * H), (4 * H,))
    )

    def step(x: Any, h: Any, c: Any) -> Any:
        i, j, f, o = tf.split(x @ of_x + h @ of_h + bias, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(j)
        return tf.sigmoid(o) * tf.tanh(c), c

    return step


def loop(mask: bool = False) -> Any:
    """tf.while_loop over a cell and a TensorArray; behind a sentence's end its state stays."""
    step = cell()

    def run(x: Any, lengths: Any = None) -> Any:
        steps = tf.transpose(x, [1, 0, 2])
        time = tf.shape(steps)[0]
        zeros = tf.zeros([tf.shape(steps)[1], H])
        source = tf.TensorArray(tf.float32, size=time).unstack(steps)

        def turn(t: Any, h: Any, c: Any, out: Any) -> Any:
            new, cell_state = step(source.read(t), h, c)
            if mask:
                inside = (t < lengths)[:, None]
                new, cell_state = tf.where(inside, new, h), tf.where(inside, cell_state, c)
            return t + 1, new, cell_state, out.write(t, new)

        begin = [0, zeros, zeros, tf.TensorArray(tf.float32, size=time, element_shape=[None, H])]
        _, h, c, out = tf.while_loop(lambda t, *_: t < time, turn, begin)
        return tf.transpose(out.stack(), [1, 0, 2]), h, c

    return run


def scanned() -> Any:
    step = cell()

    def run(x: Any) -> Any:
        zeros = tf.zeros([tf.shape(x)[0], H])
        steps = tf.transpose(x, [1, 0, 2])
        return tf.scan(lambda state, each: step(each, *state), steps, initializer=(zeros, zeros))

    return run


def branches() -> Any:
    """A layer in each branch of a condition."""
    layers = [filled(GRU(H, return_sequences=True)), filled(LSTM(H))]

    def run(x: Any) -> Any:
        last = layers[1]
        return tf.cond(tf.shape(x)[1] > 5, lambda: layers[0](x), lambda: last(x)[:, None, :])

    return run


LAYERS: dict[str, Callable[[], Any]] = {
    "keras_gru": lambda: GRU(H, return_sequences=True, return_state=True),
    "keras_gru_fixed": lambda: GRU(H, return_sequences=True),
    "keras_gru_before": lambda: GRU(H, return_sequences=True, reset_after=False),
    "keras_gru_both": lambda: BOTH(GRU(H, return_sequences=True)),
    "keras_lstm_both": lambda: BOTH(LSTM(H, return_sequences=True)),
    "keras_simple": lambda: keras.layers.SimpleRNN(H, return_sequences=True),
    "keras_stacked_cells": lambda: keras.layers.RNN(
        [keras.layers.LSTMCell(H), keras.layers.LSTMCell(4)]
    ),
}
EXPORTS: dict[str, tuple[Callable[[], Any], list[Any], list[np.ndarray]]] = {
    **{
        name: (partial(keras_layer, make), [FIXED if name == "keras_gru_fixed" else ANY], [X])
        for name, make in LAYERS.items()
    },
    "keras_masked": (masked, [tf.TensorSpec([None, None], tf.int32, name="ids")], [IDS]),
    "tensorflow_while": (loop, [ANY], [X]),
    "tensorflow_while_lengths": (
        lambda: loop(mask=True),
        [ANY, tf.TensorSpec([None], tf.int32, name="lengths")],
        [X, LENGTHS],
    ),
    "tensorflow_scan": (scanned, [ANY], [X]),
    "tensorflow_cond": (branches, [ANY], [X]),
}


def words(*layers: Any) -> tuple[list[Any], Any, np.ndarray]:
    """Layers behind words of which some are masked, in the middle, too."""
    front = keras.layers.Embedding(20, WIDTH, mask_zero=True)
    return [front, *layers], keras.Input((None,), dtype="int32", name="ids"), SOME


def steps(*layers: Any, time: int | None = 7) -> tuple[list[Any], Any, np.ndarray]:
    return list(layers), keras.Input((time, WIDTH), name="x"), X


SOME = np.array([[1, 2, 3, 4, 0, 0], [5, 6, 0, 0, 0, 0], [7, 0, 8, 9, 0, 1], [0] * 6], np.int32)
KERAS3: dict[str, Callable[[], tuple[list[Any], Any, np.ndarray]]] = {
    "keras3_unrolled_lstm_both": lambda: steps(BOTH(LSTM(H, return_sequences=True, unroll=True))),
    "keras3_unrolled_gru": lambda: steps(GRU(H, unroll=True), keras.layers.Dense(3)),
    "keras3_masked_stack": lambda: words(LSTM(H, return_sequences=True), LSTM(4)),
    "keras3_masked_stack_both": lambda: words(
        *(BOTH(LSTM(3, return_sequences=True)) for _ in range(2))
    ),
    "keras3_masked_gru_both": lambda: words(BOTH(GRU(H, return_sequences=True))),
    "keras3_masking": lambda: steps(keras.layers.Masking(), LSTM(H), time=None),
}
"""What ``model.export(format="onnx")`` of Keras 3 writes: layers, what they read, an input."""


def export_keras3(name: str, folder: Path) -> None:
    layers, begin, inputs = KERAS3[name]()
    value = begin
    for layer in layers:
        value = layer(value)
    model = filled(keras.Model(begin, value), inputs)
    folder.mkdir(parents=True, exist_ok=True)
    model.export(folder / "model.onnx", format="onnx", verbose=False)
    fed = onnx.load(folder / "model.onnx").graph.input[0].name
    recording.save(folder / "io.npz", {fed: inputs}, [model(inputs)])


def export(name: str, folder: Path) -> None:
    """Writes ``model.onnx`` and the recording ``io.npz`` into a folder."""
    if name in KERAS3:
        return export_keras3(name, folder)
    make, specs, inputs = EXPORTS[name]
    function = tf.function(make(), input_signature=specs)
    model, _ = tf2onnx.convert.from_function(function, input_signature=specs, opset=17)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    outputs = tf.nest.flatten(function(*map(tf.constant, inputs)))
    names = [spec.name for spec in specs]
    recording.save(folder / "io.npz", dict(zip(names, inputs, strict=True)), outputs)


if __name__ == "__main__":
    record_onnx((*EXPORTS, *KERAS3), export)
