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

    def one_more(value: Any) -> Any:
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
            # No mask: before the first unmasked step JAX returns the state, TensorFlow zeros.
            value = layers.Conv1D(3, 2, padding="same")(value)
        return layers.GRU(3, return_sequences=True)(value, initial_state=state)

    for _ in range(rng.choice([1, 2, 3])):
        if len(value.shape) == 2:
            break
        value = one_more(value)
    if len(value.shape) == 3 and rng.random() < 0.3:
        value = layers.GlobalAveragePooling1D()(value)
    outputs.append(layers.Dense(2)(value) if rng.random() < 0.5 else value)
    return filled(keras.Model(inputs, outputs), seed), feeds


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
    cases["rescaled"] = [ids], layers.GRU(2)(layers.Rescaling(0.5, 1.0)(words))
    for name in ("Attention", "AdditiveAttention"):
        attention = getattr(layers, name)
        mean = layers.GlobalAveragePooling1D()(attention()([begun, begun]))
        own = attention(use_scale=True)([words, x], use_causal_mask=True)
        cases[f"{name}, then a mean"] = [ids, states[0]], mean
        cases[f"{name} to earlier steps"] = [ids, x, other], [own, attention()([x, more, words])]
    nested = keras.Input((3, 4), dtype="int32")
    y = layers.Embedding(9, 5, mask_zero=True)(nested)
    y = layers.TimeDistributed(layers.Bidirectional(layers.GRU(3, return_sequences=True)))(y)
    cases["distributed under a mask of its steps"] = (
        [nested],
        layers.TimeDistributed(layers.GRU(2))(y),
    )
    one, many = keras.Input((None, 1)), keras.Input((5,))
    inner = keras.Model(one, layers.GRU(3)(one)), keras.Model(many, layers.Dense(2)(many))
    column = keras.Input((5, 1), name="column")
    cases["models of one axis more or less"] = (
        [states[0], column],
        [
            inner[0](states[0]),
            inner[1](column),
        ],
    )
    if keras.__version__ >= "3":
        y = layers.Embedding(9, 5, mask_zero=True)(nested)
        y = layers.TimeDistributed(keras.Sequential([layers.Dense(3), layers.LSTM(2)]))(y)
        cases["distributed model under a mask of its steps"] = [nested], y
        dense = keras.Sequential([layers.Dense(3), layers.Dropout(0.5), layers.Dense(2)])
        cases["distributed model that reads no mask"] = (
            [ids],
            layers.GRU(2)(layers.TimeDistributed(dense)(words)),
        )
        named = {"state": keras.Input((3,), name="a"), "first": keras.Input((None, 5), name="b")}
        y = layers.GRU(3, return_sequences=True)(named["first"], named["state"])
        inner = keras.Model(named, {"y": y, "last": y[:, -1]})
        found = inner({"first": words, "state": states[0]})
        cases["model called with a dict"] = [ids, states[0]], [found["y"], found["last"]]
        inner = keras.Model([*named.values()], y)
        found = inner({"b": words, "a": states[0]})
        cases["model of a list called by names"] = [ids, states[0]], layers.GRU(2)(found)
        joined = layers.Concatenate(axis=1)([words, x, more])
        cases["steps of masked and unmasked"] = [ids, x, other], layers.GRU(2)(joined)
        y = words
        for layer in (layers.Reshape((5, 1)), layers.Conv1D(3, 2), layers.Flatten()):
            y = layers.TimeDistributed(layer)(y)
        cases["distributed without masks"] = [ids], layers.GRU(2)(y)
        picked = layers.GRU(3, return_sequences=True)(words)
        same = keras.ops.cast(picked, "float32")  # is the tensor itself, mask and all
        cases["functions"] = [ids], [layers.GRU(2)(same), layers.GRU(2)(picked * 1), picked[:, -1]]
    for name in ("Add", "Multiply", "Subtract", "Average", "Maximum", "Minimum", "Concatenate"):
        for second in (more, x):
            third = {"Concatenate": [begun], "Subtract": []}.get(name, [words])
            y = getattr(layers, name)()([words, second, *third])
            key = f"{name} of {'masked' if second is more else 'mixed'}"
            own = [ids, other if second is more else x, *states[: name == "Concatenate"]]
            cases[key] = own, [y, layers.GRU(3, return_sequences=True)(y)]
    return cases


_OVER_STEPS: dict[str, Callable[[Any], list[Any]]] = {
    "conv1d": lambda L: [L.Conv1D(6, 3, strides=2, activation="relu")],
    "conv1d_same": lambda L: [L.Conv1D(6, 3, padding="same", dilation_rate=2)],
    "conv1d_causal": lambda L: [L.Conv1D(6, 3, padding="causal", dilation_rate=2)],
    "conv1d_groups": lambda L: [L.Conv1D(6, 2, groups=2, use_bias=False)],
    "separable": lambda L: [L.SeparableConv1D(5, 3, depth_multiplier=2, padding="same")],
    "max1d": lambda L: [L.MaxPooling1D(2)],
    "max1d_same": lambda L: [L.MaxPooling1D(3, strides=2, padding="same")],
    "global_max": lambda L: [L.GlobalMaxPooling1D()],
    "batch": lambda L: [L.BatchNormalization()],
    "batch_axis": lambda L: [L.BatchNormalization(axis=1, scale=False)],
    "layer": lambda L: [L.LayerNormalization(center=False)],
    "layer_axes": lambda L: [L.LayerNormalization(axis=[1, 2])],
    "group": lambda L: [L.GroupNormalization(groups=2)],
    "unit": lambda L: [L.UnitNormalization()],
    "relu": lambda L: [L.ReLU(max_value=1.0, negative_slope=0.1, threshold=0.2)],
    "leaky": lambda L: [L.LeakyReLU(), L.ELU(0.5), L.PReLU()],
    "softmax": lambda L: [L.Softmax(axis=1)],
    "rest": lambda L: [L.GaussianNoise(0.1), L.SpatialDropout1D(0.2), L.Dropout(0.1)],
    "flatten": lambda L: [L.Flatten(), L.RepeatVector(3), L.Permute((2, 1))],
    "backwards": lambda L: [L.LSTM(3, go_backwards=True, return_sequences=True)],
}
_OVER_IMAGES: dict[str, Callable[[Any], list[Any]]] = {
    "conv2d": lambda L: [L.Conv2D(4, (3, 2), strides=(2, 1), padding="same")],
    "depthwise": lambda L: [L.DepthwiseConv2D(3, depth_multiplier=2)],
    "separable2d": lambda L: [L.SeparableConv2D(5, 3)],
    "average2d": lambda L: [L.AveragePooling2D(3, strides=2, padding="same")],
    "global_average": lambda L: [L.GlobalAveragePooling2D(keepdims=True)],
}
LAYERS: dict[str, Case] = {
    **{name: ((7, 4), make) for name, make in _OVER_STEPS.items()},
    **{name: ((7, 6, 3), make) for name, make in _OVER_IMAGES.items()},
    "dense": ((4,), lambda L: [L.Dense(3, activation="gelu")]),
    "dense_3d": ((5, 4), lambda L: [L.Dense(3, use_bias=False, activation="softmax")]),
    "einsum": ((5, 4), lambda L: [L.EinsumDense("abc,cd->abd", (None, 3), bias_axes="d")]),
    "reshape": ((6, 4), lambda L: [L.Reshape((3, -1)), L.Reshape((2, 3, 4))]),
    "padding": ((6, 4), lambda L: [L.ZeroPadding1D((1, 2)), L.Cropping1D((2, 0))]),
    "upsampling": ((6, 4), lambda L: [L.UpSampling1D(3)]),
    "padding2d": ((6, 4, 2), lambda L: [L.ZeroPadding2D(((1, 2), (0, 3))), L.Cropping2D(1)]),
    "upsampling2d": ((3, 4, 2), lambda L: [L.UpSampling2D((2, 3))]),
    "distributed": ((3, 6, 4), lambda L: [L.TimeDistributed(L.Conv1D(3, 2)), L.Reshape((3, 15))]),
    "distributed_rnn": ((None, 6, 4), lambda L: [L.TimeDistributed(L.LSTM(3)), L.GRU(2)]),
}
"""By name: the shape of an input without its batch, and the layers behind it."""


def _of_one(name: str) -> Callable[[Any, Any, Any], Any]:
    return lambda ops, x, i: getattr(ops, name)(x)


FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    **{
        "".join(word.title() for word in name.split("_")): _of_one(name)
        for name in (
            "negative absolute sign exp sin cos arctan erf reciprocal isnan floor ceil round square"
            " relu relu6 sigmoid tanh silu softplus softsign selu hard_sigmoid hard_silu hard_tanh"
            " log_sigmoid tanh_shrink celu leaky_relu stop_gradient ravel zeros_like ones_like"
        ).split()
    },
    "Abs": lambda ops, x, i: abs(i),
    "Log": lambda ops, x, i: ops.log(x * x + 1),
    "Sqrt": lambda ops, x, i: ops.sqrt(abs(x)),
    "Rsqrt": lambda ops, x, i: ops.rsqrt(x * x + 1),
    "Add": lambda ops, x, i: x + i[:, :, None],
    "Subtract": lambda ops, x, i: 1 - x,
    "Multiply": lambda ops, x, i: i * 2.5,
    "Divide": lambda ops, x, i: ops.divide(i, 3),
    "TrueDivide": lambda ops, x, i: x / i[:, :, None],
    "Maximum": lambda ops, x, i: ops.maximum(x, 0.25),
    "Minimum": lambda ops, x, i: ops.minimum(0.25, x),
    "Mod": lambda ops, x, i: [x % 0.3, (i - 4) % 3],
    "Power": lambda ops, x, i: x**3,
    "Equal": lambda ops, x, i: ops.equal(i, 2),
    "NotEqual": lambda ops, x, i: ops.not_equal(i, 2),
    "Less": lambda ops, x, i: x < 0,
    "LessEqual": lambda ops, x, i: i <= 2,
    "Greater": lambda ops, x, i: i > 2,
    "GreaterEqual": lambda ops, x, i: x >= 0.5,
    "LogicalNot": lambda ops, x, i: ops.logical_not(x > 0),
    "LogicalAnd": lambda ops, x, i: ops.logical_and(x > 0, x < 1),
    "LogicalOr": lambda ops, x, i: ops.logical_or(x < 0, i[:, :, None]),
    "LogicalXor": lambda ops, x, i: ops.logical_xor(x < 0, x < 1),
    "Elu": lambda ops, x, i: ops.elu(x, 0.5),
    "Gelu": lambda ops, x, i: [ops.gelu(x), ops.gelu(x, approximate=False)],
    "Softmax": lambda ops, x, i: [ops.softmax(x), ops.softmax(x, axis=1)],
    "LogSoftmax": lambda ops, x, i: ops.log_softmax(x, axis=1),
    "Clip": lambda ops, x, i: [ops.clip(x, -0.5, 1), ops.clip(i, 2, 3)],
    "Where": lambda ops, x, i: [ops.where(x > 0, x, 0.0), ops.where(x > 0, i[:, :, None], x)],
    "Where numbers": lambda ops, x, i: [ops.where(x > 0, 1, 0), ops.where(i > 2, 1.5, 0)],
    "Cast": lambda ops, x, i: [ops.cast(x, "int32"), ops.cast(i, "float32"), ops.cast(i, bool)],
    "Mean": lambda ops, x, i: [ops.mean(x, 1), ops.mean(i, -1, keepdims=True), ops.mean(x)],
    "Sum": lambda ops, x, i: [ops.sum(x, axis=(0, 2)), ops.sum(x > 0, axis=1)],
    "Amax": lambda ops, x, i: ops.amax(x, axis=1),
    "Amin": lambda ops, x, i: ops.amin(x, axis=-1),
    "Copy": lambda ops, x, i: ops.copy(x),
    "ConvertToTensor": lambda ops, x, i: ops.convert_to_tensor(x),
    "Max": lambda ops, x, i: ops.max(x, axis=(1, 2), keepdims=True),
    "Min": lambda ops, x, i: ops.min(i, axis=-1),
    "Prod": lambda ops, x, i: ops.prod(x, axis=1),
    "Any": lambda ops, x, i: ops.any(x > 1, axis=1),
    "All": lambda ops, x, i: ops.all(x > -1, axis=-1, keepdims=True),
    "Argmax": lambda ops, x, i: [ops.argmax(x, axis=1), ops.argmax(x, axis=-1, keepdims=True)],
    "Argmin": lambda ops, x, i: ops.argmin(x, axis=2),
    "Logsumexp": lambda ops, x, i: ops.logsumexp(x, axis=1),
    "Var": lambda ops, x, i: ops.var(x, axis=1),
    "Std": lambda ops, x, i: ops.std(x, axis=(1, 2), keepdims=True),
    "Average": lambda ops, x, i: ops.average(x, axis=1),
    "CountNonzero": lambda ops, x, i: ops.count_nonzero(i, axis=1),
    "Norm": lambda ops, x, i: [ops.norm(x, axis=-1), ops.norm(x, ord=2, axis=1, keepdims=True)],
    "Normalize": lambda ops, x, i: ops.normalize(x, axis=1),
    "Cumsum": lambda ops, x, i: ops.cumsum(x, axis=1),
    "Matmul": lambda ops, x, i: x @ ops.transpose(x, (0, 2, 1)),
    "Dot": lambda ops, x, i: ops.dot(x, x[0, 0]),
    "Einsum": lambda ops, x, i: ops.einsum("btc,bsc->bts", x, x),
    "GetItem last": lambda ops, x, i: x[:, -1],
    "GetItem": lambda ops, x, i: [x[:, 1:3], x[..., :2], x[0], x[:, None, 1:-1:2, 0], x[..., 1, :]],
    "GetItem far": lambda ops, x, i: [x[:, -9:2], x[:, 2:2], x[:, :, 5:], x[-1, ..., -2:]],
    "Flip": lambda ops, x, i: [ops.flip(x, 1), ops.flip(x, axis=(1, 2)), ops.flip(x)],
    "ExpandDims": lambda ops, x, i: [ops.expand_dims(x, 1), ops.expand_dims(x, (0, -1))],
    "Squeeze": lambda ops, x, i: ops.squeeze(x[:, :1], axis=1),
    "Concatenate": lambda ops, x, i: [ops.concatenate([x, i[:, :, None]], -1)],
    "Stack": lambda ops, x, i: [ops.stack([x, x * 2], axis=1), ops.stack([i, i], axis=-1)],
    "Unstack": lambda ops, x, i: ops.unstack(x, axis=1)[1],
    "Split": lambda ops, x, i: [ops.split(x, 2, axis=1)[1], *ops.split(x, [1, 3], axis=1)],
    "Reshape": lambda ops, x, i: [ops.reshape(x, (-1, 12)), ops.reshape(x, (-1, 2, 6))],
    "Transpose": lambda ops, x, i: [ops.transpose(x), ops.transpose(x, (0, 2, 1))],
    "Swapaxes": lambda ops, x, i: ops.swapaxes(x, -1, 1),
    "Moveaxis": lambda ops, x, i: [ops.moveaxis(x, 2, 0), ops.moveaxis(x, (0, 1), (1, 2))],
    "Tile": lambda ops, x, i: [ops.tile(x, (1, 2, 1)), ops.tile(x, 2)],
    "Repeat": lambda ops, x, i: ops.repeat(x, 2, axis=1),
    "BroadcastTo": lambda ops, x, i: ops.broadcast_to(x[:, None], (3, 2, 4, 3)),
    "Take": lambda ops, x, i: [ops.take(x, [2, 0], axis=1), ops.take(x, i[0] - 2, axis=1)],
    "TakeAlongAxis": lambda ops, x, i: ops.take_along_axis(i, i % 4, axis=1),
    "Pad": lambda ops, x, i: ops.pad(x, [[0, 0], [1, 2], [0, 1]]),
    "Roll": lambda ops, x, i: [ops.roll(x, 1, axis=1), ops.roll(x, -6, axis=1)],
    "Slice": lambda ops, x, i: ops.slice(x, [0, 1, 0], [2, 2, 3]),
    "Triu": lambda ops, x, i: ops.triu(x),
    "Tril": lambda ops, x, i: ops.tril(x, -1),
    "OneHot": lambda ops, x, i: ops.one_hot(i, 5),
    "TopK": lambda ops, x, i: [*ops.top_k(x, 2)],
    "FullLike": lambda ops, x, i: ops.full_like(x, 2.5),
    "Arange": lambda ops, x, i: x + ops.cast(ops.arange(4), "float32")[None, :, None],
}
"""By name of a class: functions of keras.ops, of x (N, 4, 3) and of integers i (N, 4)."""
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


def check(model: Any, path: Path, feeds: list[np.ndarray]) -> None:
    """Saves a model; ours gives the same: to 40 roundings of float32, of the largest one."""
    import onernn

    model.save(path)
    compare(model, onernn.load(path), feeds)


def compare(model: Any, graph: Any, feeds: list[np.ndarray]) -> None:
    """Runs a graph that was read from a model's files, and compares it with the model."""
    import onernn

    want = given(model, feeds)
    session = onernn.Session(graph, threads=1)
    names = [value.name for value in graph.inputs]
    made = [*session.run(dict(zip(names, feeds, strict=True))).values()]
    assert len(made) == len(want)
    for ours, theirs in zip(made, want, strict=True):
        assert ours.shape == theirs.shape
        scale = max(1.0, float(np.abs(theirs).max(initial=0)))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=40 * 2.0**-23 * scale)
