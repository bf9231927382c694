"""Random Keras models, and models of single layers; and what Keras itself gives for them.

For Keras 3 and, given its module, for tf_keras.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TIME, BATCH, WIDTH = 5, 3, 4
GATES = ["sigmoid", "hard_sigmoid", "tanh", "relu", "linear", "softsign", "elu"]


def filled(model: Any, seed: int) -> Any:
    """The model with random weights, biases too; variances stay positive."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        shape = tuple(weight.shape)
        fan = shape[-2] if len(shape) > 1 else 4
        values = rng.normal(size=shape) / np.sqrt(fan)
        if "variance" in weight.name:
            values = 0.5 + np.abs(values)
        weight.assign(values)
    return model


def recurrent(keras: Any, rng: random.Random, **fixed: Any) -> Any:
    """A recurrent layer with random options."""
    layers = keras.layers
    kind = rng.choice(["SimpleRNN", "LSTM", "GRU", "RNN"])
    options: dict[str, Any] = {
        "go_backwards": rng.random() < 0.3,
        "return_sequences": rng.random() < 0.6,
        "unroll": rng.random() < 0.1,
        **fixed,
    }
    if kind == "RNN":
        cells = [cell(keras, rng) for _ in range(rng.choice([1, 2, 3]))]
        return layers.RNN(cells if len(cells) > 1 else cells[0], **options)
    return getattr(layers, kind)(**own(rng, kind), **options)


def own(rng: random.Random, kind: str) -> dict[str, Any]:
    """Options of a cell."""
    options: dict[str, Any] = {
        "units": rng.choice([1, 3, 4]),
        "use_bias": rng.random() < 0.8,
        "activation": rng.choice(["tanh", "tanh", *GATES]),
    }
    if not kind.startswith("SimpleRNN"):
        options["recurrent_activation"] = rng.choice(["sigmoid", "sigmoid", *GATES[:2]])
    if kind.startswith("GRU"):
        options["reset_after"] = rng.random() < 0.5
    return options


def cell(keras: Any, rng: random.Random) -> Any:
    kind = rng.choice(["SimpleRNNCell", "LSTMCell", "GRUCell"])
    return getattr(keras.layers, kind)(**own(rng, kind))


def random_model(keras: Any, seed: int) -> tuple[Any, list[np.ndarray]]:
    """A functional model of recurrent layers and others, and what to call it with."""
    rng, layers = random.Random(seed), keras.layers
    numbers = np.random.default_rng(seed)
    time = rng.choice([None, TIME])
    masked = rng.random() < 0.7
    if rng.random() < 0.4:
        x = keras.Input((time,), dtype="int32", name="ids")
        value = layers.Embedding(9, WIDTH, mask_zero=masked)(x)
        feed = numbers.integers(0, 9, (BATCH, TIME)).astype("int32")
        feed[numbers.random((BATCH, TIME)) < 0.3] = 0
    else:
        x = keras.Input((time, WIDTH), name="x")
        value = layers.Masking(0.0)(x) if masked else x
        feed = numbers.normal(size=(BATCH, TIME, WIDTH)).astype("float32")
        feed[numbers.random((BATCH, TIME)) < 0.3] = 0
    inputs, feeds, outputs = [x], [feed], []
    for _ in range(rng.choice([1, 2, 3])):
        last = len(value.shape) == 2
        if last:
            break
        value = _one_more(keras, rng, value, inputs, feeds, outputs, numbers, time)
    if len(value.shape) == 3 and rng.random() < 0.3:
        value = layers.GlobalAveragePooling1D()(value)
    outputs.append(layers.Dense(2)(value) if rng.random() < 0.5 else value)
    return filled(keras.Model(inputs, outputs), seed), feeds


def _one_more(
    keras: Any,
    rng: random.Random,
    value: Any,
    inputs: list[Any],
    feeds: list[Any],
    outputs: list[Any],
    numbers: Any,
    time: int | None,
) -> Any:
    layers = keras.layers
    unroll = {} if time else {"unroll": False}
    match rng.randrange(7):
        case 0:
            return layers.TimeDistributed(layers.Dense(3, activation="relu"))(value)
        case 1:
            return layers.LayerNormalization()(layers.Dropout(0.5)(value))
        case 2 | 3:
            return recurrent(keras, rng, **unroll)(value)
        case 4:
            merge = rng.choice(["concat", "sum", "mul", "ave"])
            # With a mask and unrolled, Keras's backends differ.
            inner = recurrent(keras, rng, go_backwards=False, unroll=False)
            return layers.Bidirectional(inner, merge_mode=merge)(value)
        case 5:
            kind = rng.choice(["LSTM", "GRU"])
            made = getattr(layers, kind)(3, return_state=True, return_sequences=True)(value)
            outputs.extend(made[1:])
            return made[0]
    state = keras.Input((3,))
    inputs.append(state)
    feeds.append(numbers.normal(size=(BATCH, 3)).astype("float32"))
    if keras.__version__ < "3":
        # Where a sequence begins with masked steps JAX gives the state, TensorFlow zeros: no mask.
        value = layers.Conv1D(3, 2, padding="same")(value)
    return layers.GRU(3, return_sequences=True)(value, initial_state=state)


Case = tuple[tuple[int | None, ...], Callable[[Any], list[Any]]]


def masked_calls(keras: Any) -> dict[str, tuple[list[Any], Any]]:
    """Models whose layers get several tensors, some of them with masks: inputs and outputs.

    Inputs are ids (N, T) below 9, of which 0 is masked, x (N, T, 5) and states (N, 3).
    """
    layers = keras.layers
    ids, other = (keras.Input((None,), dtype="int32", name=name) for name in ("ids", "other"))
    x, states = keras.Input((None, 5), name="x"), [keras.Input((3,), name=f"s{k}") for k in "0123"]
    words, more = (layers.Embedding(9, 5, mask_zero=True)(each) for each in (ids, other))
    cases: dict[str, tuple[list[Any], Any]] = {}
    for kind, count in (("SimpleRNN", 1), ("GRU", 1), ("LSTM", 2)):
        begin = states[:count]
        for more_options in ({}, {"return_sequences": True, "return_state": True}):
            y = getattr(layers, kind)(3, **more_options)(words, initial_state=begin)
            cases[f"{kind} {len(more_options)}"] = [ids, *begin], y
        both = layers.Bidirectional(getattr(layers, kind)(3, return_sequences=True))
        y = both(words, initial_state=states[: 2 * count])
        cases[f"both {kind}, then another"] = [ids, *states[: 2 * count]], layers.GRU(2)(y)
    gru = layers.GRU(3, return_sequences=True)
    begun = gru(words, initial_state=states[0])
    cases["positional, shared"] = [ids, states[0]], [gru(words, states[0]), gru(words)]
    cases["mean"] = [ids, states[0]], layers.GlobalAveragePooling1D()(begun)
    y, h, c = layers.LSTM(3, return_sequences=True, return_state=True)(words)
    decoded = layers.LSTM(3, return_sequences=True)(more, initial_state=[h, c])
    cases["decoder"] = (
        [ids, other],
        layers.Concatenate()([decoded, layers.Attention()([decoded, y])]),
    )
    first, state = keras.Input((None, 5)), keras.Input((3,))
    inner = keras.Model([first, state], layers.GRU(3, return_sequences=True)(first, state))
    cases["model inside"] = [ids, states[0]], layers.GRU(2)(inner([words, states[0]]))
    cases["model at the end"] = [ids, states[0]], inner([words, states[0]])
    for name in ("Add", "Multiply", "Subtract", "Average", "Maximum", "Minimum", "Concatenate"):
        for second in (more, x):
            third = {"Concatenate": [begun], "Subtract": []}.get(name, [words])
            y = getattr(layers, name)()([words, second, *third])
            key = f"{name} of {'masked' if second is more else 'mixed'}"
            own = [ids, other if second is more else x, *states[: name == "Concatenate"]]
            cases[key] = own, [y, layers.GRU(3, return_sequences=True)(y)]
    return cases


LAYERS: dict[str, Case] = {
    "dense": ((4,), lambda L: [L.Dense(3, activation="gelu")]),
    "dense_3d": ((5, 4), lambda L: [L.Dense(3, use_bias=False, activation="softmax")]),
    "einsum": ((5, 4), lambda L: [L.EinsumDense("abc,cd->abd", (None, 3), bias_axes="d")]),
    "conv1d": ((7, 4), lambda L: [L.Conv1D(6, 3, strides=2, activation="relu")]),
    "conv1d_same": ((7, 4), lambda L: [L.Conv1D(6, 3, padding="same", dilation_rate=2)]),
    "conv1d_causal": ((7, 4), lambda L: [L.Conv1D(6, 3, padding="causal", dilation_rate=2)]),
    "conv1d_groups": ((7, 4), lambda L: [L.Conv1D(6, 2, groups=2, use_bias=False)]),
    "conv2d": ((7, 6, 3), lambda L: [L.Conv2D(4, (3, 2), strides=(2, 1), padding="same")]),
    "depthwise": ((7, 6, 3), lambda L: [L.DepthwiseConv2D(3, depth_multiplier=2)]),
    "separable": ((7, 4), lambda L: [L.SeparableConv1D(5, 3, depth_multiplier=2, padding="same")]),
    "separable2d": ((7, 6, 3), lambda L: [L.SeparableConv2D(5, 3)]),
    "max1d": ((7, 4), lambda L: [L.MaxPooling1D(2)]),
    "max1d_same": ((7, 4), lambda L: [L.MaxPooling1D(3, strides=2, padding="same")]),
    "average2d": ((7, 6, 3), lambda L: [L.AveragePooling2D(3, strides=2, padding="same")]),
    "global_max": ((7, 4), lambda L: [L.GlobalMaxPooling1D()]),
    "global_average": ((7, 6, 3), lambda L: [L.GlobalAveragePooling2D(keepdims=True)]),
    "batch": ((7, 4), lambda L: [L.BatchNormalization()]),
    "batch_axis": ((7, 4), lambda L: [L.BatchNormalization(axis=1, scale=False)]),
    "layer": ((7, 4), lambda L: [L.LayerNormalization(center=False)]),
    "layer_axes": ((7, 4), lambda L: [L.LayerNormalization(axis=[1, 2])]),
    "group": ((7, 4), lambda L: [L.GroupNormalization(groups=2)]),
    "unit": ((7, 4), lambda L: [L.UnitNormalization()]),
    "relu": ((7, 4), lambda L: [L.ReLU(max_value=1.0, negative_slope=0.1, threshold=0.2)]),
    "leaky": ((7, 4), lambda L: [L.LeakyReLU(), L.ELU(0.5), L.PReLU()]),
    "softmax": ((7, 4), lambda L: [L.Softmax(axis=1)]),
    "rest": ((7, 4), lambda L: [L.GaussianNoise(0.1), L.SpatialDropout1D(0.2), L.Dropout(0.1)]),
    "flatten": ((7, 4), lambda L: [L.Flatten(), L.RepeatVector(3), L.Permute((2, 1))]),
    "reshape": ((6, 4), lambda L: [L.Reshape((3, -1)), L.Reshape((2, 3, 4))]),
    "padding": ((6, 4), lambda L: [L.ZeroPadding1D((1, 2)), L.Cropping1D((2, 0))]),
    "padding2d": ((6, 4, 2), lambda L: [L.ZeroPadding2D(((1, 2), (0, 3))), L.Cropping2D(1)]),
    "upsampling": ((6, 4), lambda L: [L.UpSampling1D(3)]),
    "upsampling2d": ((3, 4, 2), lambda L: [L.UpSampling2D((2, 3))]),
    "distributed": ((3, 6, 4), lambda L: [L.TimeDistributed(L.Conv1D(3, 2)), L.Reshape((3, 15))]),
    "distributed_rnn": ((None, 6, 4), lambda L: [L.TimeDistributed(L.LSTM(3)), L.GRU(2)]),
    "backwards": ((7, 4), lambda L: [L.LSTM(3, go_backwards=True, return_sequences=True)]),
}
"""By name: the shape of an input without its batch, and the layers behind it."""
ACTIVATIONS = [
    *GATES,
    *("softplus", "selu", "gelu", "swish", "mish", "exponential", "softmax", "relu6"),
    *("leaky_relu", "log_softmax"),
]


def sequential(keras: Any, shape: Any, layers: list[Any], seed: int = 0) -> Any:
    return filled(keras.Sequential([keras.Input(shape), *layers]), seed)


def given(model: Any, feeds: list[np.ndarray]) -> list[np.ndarray]:
    """What Keras gives."""
    made = model(feeds if len(feeds) > 1 else feeds[0], training=False)
    tensors = made if isinstance(made, list | tuple) else [made]
    return [np.asarray(t.detach() if hasattr(t, "detach") else t) for t in tensors]


def compared(path: Path, feeds: list[np.ndarray], want: list[np.ndarray]) -> None:
    """Whether ours gives the same for the file: to 40 roundings of float32, of the largest one."""
    import onernn

    graph = onernn.load(path)
    session = onernn.Session(graph, threads=1)
    names = [value.name for value in graph.inputs]
    made = [*session.run(dict(zip(names, feeds, strict=True))).values()]
    assert len(made) == len(want)
    for ours, theirs in zip(made, want, strict=True):
        assert ours.shape == theirs.shape
        scale = max(1.0, float(np.abs(theirs).max(initial=0)))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=40 * 2.0**-23 * scale)
