"""A small symbol for each operator of MXNet that we read, and for each of its attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
from tests.frameworks.mxnet_graphs import Case

from onernn.core.arrays import Array

CASES: list[Case] = []
S: Any = mx.sym


def values(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    rng = np.random.default_rng((seed, *shape))
    if dtype.startswith(("int", "uint")):
        return rng.integers(0, 9, shape).astype(dtype)
    return rng.uniform(-2, 2, shape).astype(dtype)


def given(spec: Any, seed: int) -> Array:
    return values(*spec, seed=seed) if isinstance(spec, tuple) else np.asarray(spec)


def case(name: str, build: Callable[..., Any], numpy: bool = False, **inputs: Any) -> None:
    """Inputs are arrays or shapes; those with a name in capitals are parameters."""
    arrays = {key: given(spec, seed) for seed, (key, spec) in enumerate(inputs.items())}
    CASES.append(
        Case(
            name,
            build,
            {key: a for key, a in arrays.items() if not key.isupper()},
            {key: a for key, a in arrays.items() if key.isupper()},
            numpy,
        )
    )


POSITIVE = np.abs(values(2, 3)) + np.float32(0.1)
SPECIAL = np.array([[-2.5, -1.5, -0.5, 0, 0.5], [1.5, 2.5, 7, -7, 1e-3]], np.float32)
IDS = np.array([[0, 3, 5], [4, 1, 1]], np.float32)
OUTSIDE = np.array([[-1, 0, 5], [6, 9, 2]], np.float32)
LENGTHS = np.array([4, 1, 3], np.float32)

# Element by element.
for op in "relu sigmoid tanh softsign exp abs negative floor ceil sign sin cos erf square".split():
    case(op, lambda x, op=op: getattr(S, op)(x), x=SPECIAL)
for op in "log sqrt reciprocal rsqrt".split():
    case(op, lambda x, op=op: getattr(S, op)(x), x=POSITIVE)
for op in "identity BlockGrad make_loss".split():
    case(op, lambda x, op=op: getattr(S, op)(x) * 2, x=(2, 3))
for op in "add sub mul div".split():
    case(
        f"elemwise_{op}", lambda a, b, op=op: getattr(S, f"elemwise_{op}")(a, b), a=(2, 3), b=(2, 3)
    )
for op in "add sub mul div maximum minimum".split():
    for other in ((2, 3), (2, 1), (1, 3)):
        name = f"broadcast_{op}_{other}"
        case(name, lambda a, b, op=op: getattr(S, f"broadcast_{op}")(a, b), a=(2, 3), b=other)
case("broadcast_power", lambda a, b: S.broadcast_power(a, b), a=POSITIVE, b=(2, 1))
case("_maximum", lambda a, b: S.maximum(a, b), a=(2, 3), b=(2, 3))
case("_minimum", lambda a, b: S.minimum(a, b), a=(2, 3), b=(2, 3))
case("_power", lambda a, b: S.pow(a, b), a=POSITIVE, b=(2, 3))
for op in "equal not_equal greater greater_equal lesser lesser_equal".split():
    rounded = np.round(values(2, 3))
    case(
        f"broadcast_{op}",
        lambda a, b, op=op: getattr(S, f"broadcast_{op}")(a, b),
        a=rounded,
        b=rounded[:1],
    )
    case(
        f"_{op}",
        lambda a, b, op=op: getattr(S._internal, f"_{op}")(a, b),
        a=rounded,
        b=rounded[::-1].copy(),
    )
    case(
        f"_{op}_scalar",
        lambda a, op=op: getattr(S._internal, f"_{op}_scalar")(a, scalar=1.0),
        a=rounded,
    )
for op in "logical_and logical_or logical_xor".split():
    truths = np.array([[0, 1, -2], [0, 0, 3]], np.float32)
    case(
        f"broadcast_{op}",
        lambda a, b, op=op: getattr(S, f"broadcast_{op}")(a, b),
        a=truths,
        b=truths[:1],
    )
    case(
        f"_{op}",
        lambda a, b, op=op: getattr(S._internal, f"_{op}")(a, b),
        a=truths,
        b=truths[::-1].copy(),
    )
case("logical_not", lambda x: S.logical_not(x), x=np.array([[0, 1, -2]], np.float32))
case("add_n", lambda a, b, c: S.add_n(a, b, c), a=(2, 3), b=(2, 3), c=(2, 3))
for name, scalar in {
    "plus": lambda x: x + 1.5,
    "minus": lambda x: x - 1.5,
    "rminus": lambda x: 1.5 - x,
    "mul": lambda x: x * 0.1,
    "div": lambda x: x / 3,
    "rdiv": lambda x: 1.5 / x,
    "maximum": lambda x: S.maximum(x, 1.0),
    "minimum": lambda x: S.minimum(x, 1.0),
    "power": lambda x: x**1.5,
    "rpower": lambda x: S.pow(1.5, x),
}.items():
    case(f"_{name}_scalar", scalar, x=POSITIVE)
case("_plus_scalar_of_integers", lambda x: x + 2, x=values(2, 3, dtype="int32"))
case("_mul_scalar_float64", lambda x: x * 0.1, x=values(2, 3, dtype="float64"))
case("clip", lambda x: S.clip(x, -1, 0.5), x=(2, 3))
case("hard_sigmoid", lambda x: S.hard_sigmoid(x, alpha=0.3, beta=0.4), x=SPECIAL)
for kind in "relu sigmoid tanh softrelu softsign".split():
    case(f"Activation_{kind}", lambda x, kind=kind: S.Activation(x, act_type=kind), x=SPECIAL)
for kind in "leaky elu selu gelu".split():
    case(
        f"LeakyReLU_{kind}",
        lambda x, kind=kind: S.LeakyReLU(x, act_type=kind, slope=0.1),
        x=SPECIAL,
    )
case(
    "LeakyReLU_prelu",
    lambda x, GAMMA: S.LeakyReLU(x, GAMMA, act_type="prelu"),
    x=SPECIAL,
    GAMMA=values(1),
)
case(
    "LeakyReLU_prelu_channels",
    lambda x, W, GAMMA: S.LeakyReLU(
        S.FullyConnected(x, W, num_hidden=3, no_bias=True), GAMMA, act_type="prelu"
    ),
    x=(4, 2),
    W=(3, 2),
    GAMMA=(3,),
)
for dtype in "int32 int64 float64 uint8 int8 bool float32".split():
    case(
        f"Cast_{dtype}",
        lambda x, dtype=dtype: S.Cast(x, dtype=dtype),
        x=np.array([[0, 1.7, 3.2]], np.float32),
    )
case("amp_cast", lambda x: S.amp_cast(x, dtype="float32"), x=(2, 3))
case(
    "where",
    lambda c, x, y: S.where(c, x, y),
    c=np.array([[0, 1, 1], [1, 0, 2]], np.float32),
    x=(2, 3),
    y=(2, 3),
)
case("ones_like", lambda x: S.ones_like(x) - x, x=(2, 3))
case("zeros_like", lambda x: S.zeros_like(x) - x, x=(2, 3))

# Moving elements.
for number, options in enumerate(
    [
        {"shape": (4, 6)},
        {"shape": (-1,)},
        {"shape": (0, -1)},
        {"shape": (-2,)},
        {"shape": (0, -2)},
        {"shape": (-3, -2)},
        {"shape": (-3, 0)},
        {"shape": (0, -3)},
        {"shape": (-4, 1, 2, -2)},
        {"shape": (-4, -1, 2, -2)},
        {"shape": (0, -4, 3, -1, 0)},
        {"shape": (0, 0, -4, 2, 2)},
        {"shape": (3, 2, -2)},
        {"shape": (-1, 0), "reverse": True},
        {"shape": (-1, 0, 0), "reverse": True},
        {"shape": (-3, 0), "reverse": True},
    ]
):
    case(f"Reshape_{number}", lambda x, options=options: S.Reshape(x, **options), x=(2, 3, 4))
case(
    "Reshape_joins_after_shape",
    lambda x: S.Reshape(S.Reshape(x, shape=(0, -4, 2, -1, 0)), shape=(-3, -3)),
    x=(2, 4, 3),
)
case("Reshape_target_shape", lambda x: S.Reshape(x, target_shape=(4, 0)), x=(2, 3, 4))
case("Flatten", lambda x: S.Flatten(x), x=(2, 3, 4))
case("reshape_like", lambda x, y: S.reshape_like(x, y), x=(2, 6), y=(3, 4))
for axis in (0, 2, -1):
    case(f"expand_dims_{axis}", lambda x, axis=axis: S.expand_dims(x, axis=axis), x=(2, 3))
    case(f"stack_{axis}", lambda x, y, axis=axis: S.stack(x, y, axis=axis), x=(2, 3), y=(2, 3))
case("squeeze", lambda x: S.squeeze(x), x=(1, 3, 1))
case("squeeze_axis", lambda x: S.squeeze(x, axis=(0,)), x=(1, 3, 1))
case("squeeze_negative", lambda x: S.squeeze(x, axis=-1), x=(1, 3, 1))
for pair in ((0, 1), (2, 0), (1, 1)):
    case(
        f"SwapAxis_{pair}",
        lambda x, pair=pair: S.SwapAxis(x, dim1=pair[0], dim2=pair[1]),
        x=(2, 3, 4),
    )
case(
    "SwapAxis_of_known_rank",
    lambda x, W: S.SwapAxis(S.FullyConnected(x, W, num_hidden=3, no_bias=True), dim1=0, dim2=1),
    x=(4, 2),
    W=(3, 2),
)
case("transpose", lambda x: S.transpose(x), x=(2, 3, 4))
case("transpose_axes", lambda x: S.transpose(x, axes=(1, 2, 0)), x=(2, 3, 4))
for dim in (0, 1, -1):
    case(f"Concat_{dim}", lambda x, y, dim=dim: S.Concat(x, y, dim=dim), x=(2, 3), y=(2, 3))
case("SliceChannel", lambda x: S.SliceChannel(x, num_outputs=2), x=(2, 4))
case(
    "SliceChannel_squeezed",
    lambda x: S.SliceChannel(x, num_outputs=3, axis=1, squeeze_axis=True),
    x=(2, 3, 4),
)
case("SliceChannel_one_used", lambda x: S.SliceChannel(x, num_outputs=3, axis=0)[1], x=(3, 2))
case("_split_v2_sections", lambda x: S.split_v2(x, 2, axis=0), x=(4, 3))
case("_split_v2_indices", lambda x: S.split_v2(x, (1, 3), axis=1), x=(2, 5))
case("slice", lambda x: S.slice(x, begin=(0, 1), end=(2, 3)), x=(3, 4))
case("slice_open", lambda x: S.slice(x, begin=(None, -2), end=(None, None)), x=(3, 4))
case("slice_steps", lambda x: S.slice(x, begin=(2, None), end=(0, None), step=(-1, 2)), x=(3, 5))
case("slice_backwards", lambda x: S.slice(x, begin=(None,), end=(None,), step=(-1,)), x=(3, 5))
case("slice_axis", lambda x: S.slice_axis(x, axis=1, begin=1, end=3), x=(2, 4))
case("slice_axis_open", lambda x: S.slice_axis(x, axis=-1, begin=-2, end=None), x=(2, 4))
case("slice_like", lambda x, y: S.slice_like(x, y, axes=(0, 1)), x=(4, 5), y=(2, 3))
case("reverse", lambda x: S.reverse(x, axis=1), x=(2, 3))
case("reverse_two", lambda x: S.reverse(x, axis=(0, 2)), x=(2, 3, 4))
case("broadcast_to", lambda x: S.broadcast_to(x, shape=(2, 3)), x=(1, 3))
case("broadcast_to_kept", lambda x: S.broadcast_to(x, shape=(4, 0)), x=(1, 3))
case("broadcast_axis", lambda x: S.broadcast_axis(x, axis=(0, 2), size=(2, 3)), x=(1, 2, 1))
case("broadcast_like", lambda x, y: S.broadcast_like(x, y), x=(1, 3), y=(2, 3))
case(
    "tile",
    lambda x, W: S.tile(S.FullyConnected(x, W, num_hidden=3, no_bias=True), reps=(2, 2)),
    x=(4, 2),
    W=(3, 2),
)
for axis in (None, 0, 1):
    case(f"repeat_{axis}", lambda x, axis=axis: S.repeat(x, repeats=2, axis=axis), x=(2, 3))
case("_zeros", lambda x: x + S.zeros(shape=(2, 3)), x=(2, 3))
case("_zeros_inferred", lambda x: x + S.zeros(shape=(0, 3)), x=(2, 3))
case(
    "_ones_inferred",
    lambda x, W: x * S.FullyConnected(S.ones(shape=(0, 3)), W, num_hidden=2, no_bias=True),
    x=(4, 2),
    W=(2, 3),
)
case("_full", lambda x: x + S.full((2, 3), 0.5), x=(2, 3))
case("_arange", lambda x: x + S.arange(1, 4), x=(3,))
case("_arange_repeat", lambda x: x + S.arange(0, 1, 0.5, repeat=2), x=(4,))

# Layers.
for name, options in {"": {}, "_flat": {"flatten": False}, "_deep": {"flatten": True}}.items():
    shape = (4, 3) if not name else (2, 4, 3)
    inner = 12 if name == "_deep" else 3
    case(
        f"FullyConnected{name}",
        lambda x, W, B, options=options: S.FullyConnected(x, W, B, num_hidden=5, **options),
        x=shape,
        W=(5, inner),
        B=(5,),
    )
case(
    "FullyConnected_no_bias",
    lambda x, W: S.FullyConnected(x, W, num_hidden=5, no_bias=True),
    x=(4, 3),
    W=(5, 3),
)
case(
    "FullyConnected_computed_weight",
    lambda x, w, B: S.FullyConnected(x, w * 2, B, num_hidden=5, flatten=False),
    x=(4, 3),
    w=(5, 3),
    B=(5,),
)
case("Embedding", lambda ids, W: S.Embedding(ids, W, input_dim=6, output_dim=4), ids=IDS, W=(6, 4))
case(
    "Embedding_outside",
    lambda ids, W: S.Embedding(ids, W, input_dim=6, output_dim=4),
    ids=OUTSIDE,
    W=(6, 4),
)
case(
    "Embedding_fractions",
    lambda ids, W: S.Embedding(ids, W, input_dim=6, output_dim=4),
    ids=IDS + np.float32(0.7),
    W=(6, 4),
)
case(
    "Embedding_integers",
    lambda ids, W: S.Embedding(ids, W, input_dim=6, output_dim=4),
    ids=IDS.astype(np.int32),
    W=(6, 4),
)
case("take", lambda ids, W: S.take(W, ids), ids=IDS, W=(6, 4))
case("take_clip", lambda x, ids: S.take(x, ids, axis=1), x=(3, 6), ids=OUTSIDE)
case("take_wrap", lambda x, ids: S.take(x, ids, axis=0, mode="wrap"), x=(6, 2), ids=OUTSIDE)
case("one_hot", lambda ids: S.one_hot(ids, depth=6), ids=OUTSIDE)
case(
    "one_hot_values",
    lambda ids: S.one_hot(ids, depth=6, on_value=2, off_value=-1, dtype="int32"),
    ids=IDS,
)
case("pick", lambda x, ids: S.pick(x, ids, axis=1), x=(3, 4), ids=np.array([0, 3, 1], np.float32))
case(
    "pick_keepdims",
    lambda x, ids: S.pick(x, ids, axis=-1, keepdims=True),
    x=(3, 4),
    ids=np.array([0, 9, -1], np.float32),
)
case("Dropout", lambda x: S.Dropout(x, p=0.4) + 1, x=(2, 3))
for axis in (1, -1):
    for fixed in (True, False):
        case(
            f"BatchNorm_{axis}_{fixed}",
            lambda x, GAMMA, BETA, MEAN, VAR, axis=axis, fixed=fixed: S.BatchNorm(
                x, GAMMA, BETA, MEAN, VAR, axis=axis, fix_gamma=fixed, eps=1e-3
            ),
            x=(2, 3, 3),
            GAMMA=(3,),
            BETA=(3,),
            MEAN=(3,),
            VAR=POSITIVE[0],
        )
case(
    "LayerNorm",
    lambda x, GAMMA, BETA: S.LayerNorm(x, GAMMA, BETA),
    x=(2, 3, 4),
    GAMMA=(4,),
    BETA=(4,),
)
case(
    "L2Normalization",
    lambda x, W: S.L2Normalization(S.FullyConnected(x, W, num_hidden=3, no_bias=True)),
    x=(4, 2),
    W=(3, 2),
)
case("L2Normalization_channel", lambda x: S.L2Normalization(x, mode="channel"), x=(4, 2, 3))
for axis in (-1, 0, 1):
    case(f"softmax_{axis}", lambda x, axis=axis: S.softmax(x, axis=axis), x=(2, 3))
    case(f"log_softmax_{axis}", lambda x, axis=axis: S.log_softmax(x, axis=axis), x=(2, 3))
case("softmax_temperature", lambda x: S.softmax(x, temperature=2.5), x=(2, 3))
case("log_softmax_temperature", lambda x: S.log_softmax(x, temperature=0.5), x=(2, 3))
case("softmax_float64", lambda x: S.softmax(x, dtype="float64"), x=(2, 3))
case("softmin", lambda x: S.softmin(x), x=(2, 3))
case("SoftmaxOutput", lambda x: S.SoftmaxOutput(x, name="softmax"), x=(4, 3))
case("SoftmaxOutput_flattens", lambda x: S.SoftmaxOutput(x, name="softmax"), x=(2, 3, 4))
case(
    "SoftmaxOutput_multi",
    lambda x: S.SoftmaxOutput(x, name="softmax", multi_output=True),
    x=(2, 3, 4),
)
case(
    "SoftmaxOutput_preserve",
    lambda x: S.SoftmaxOutput(x, name="softmax", preserve_shape=True),
    x=(2, 3, 4),
)
case("SoftmaxActivation", lambda x: S.SoftmaxActivation(x), x=(4, 3))
case("SoftmaxActivation_channel", lambda x: S.SoftmaxActivation(x, mode="channel"), x=(2, 3, 4))
case("LinearRegressionOutput", lambda x: S.LinearRegressionOutput(x * 2, name="out"), x=(4, 3))
case("MAERegressionOutput", lambda x: S.MAERegressionOutput(x * 2, name="out"), x=(4, 3))
case("LogisticRegressionOutput", lambda x: S.LogisticRegressionOutput(x, name="out"), x=(4, 3))
for op in "sum mean max min prod".split():
    for number, options in enumerate(
        [
            {},
            {"axis": 1},
            {"axis": (0, 2)},
            {"axis": -1, "keepdims": True},
            {"keepdims": True},
            {"axis": ()},
        ]
    ):
        case(
            f"{op}_{number}",
            lambda x, op=op, options=options: getattr(S, op)(x, **options),
            x=(2, 3, 4),
        )
case(
    "mean_exclude",
    lambda x, W: S.mean(S.FullyConnected(x, W, num_hidden=3, no_bias=True), axis=0, exclude=True),
    x=(4, 2),
    W=(3, 2),
)
for op in ("argmax", "argmin"):
    for number, options in enumerate(
        [{}, {"axis": 0}, {"axis": 1, "keepdims": True}, {"axis": -1}]
    ):
        case(
            f"{op}_{number}",
            lambda x, op=op, options=options: getattr(S, op)(x, **options),
            x=(2, 5),
        )
for flips in ((False, False), (True, False), (False, True), (True, True)):
    case(
        f"dot_{flips}",
        lambda a, W, V, flips=flips: S.dot(
            S.FullyConnected(a, V, num_hidden=2, no_bias=True),
            W,
            transpose_a=flips[0],
            transpose_b=flips[1],
        ),
        a=(2, 3),
        V=(2, 3),
        W=(2, 2),
    )
    shapes = {"a": (2, 3, 4), "b": (2, 4, 5)}
    case(
        f"batch_dot_{flips}",
        lambda a, b, flips=flips: S.batch_dot(a, b, transpose_a=flips[0], transpose_b=flips[1]),
        a=(2, 4, 3) if flips[0] else (2, 3, 4),
        b=(2, 5, 4) if flips[1] else (2, 4, 5),
    )
case("_contrib_div_sqrt_dim", lambda x: S.contrib.div_sqrt_dim(x), x=(2, 3))

# Along sequences.
for axis in (0, 1):
    shape = (5, 3, 2) if axis == 0 else (3, 5, 2)
    case(
        f"SequenceMask_{axis}",
        lambda x, n, axis=axis: S.SequenceMask(x, n, use_sequence_length=True, axis=axis),
        x=shape,
        n=LENGTHS,
    )
    case(
        f"SequenceMask_value_{axis}",
        lambda x, n, axis=axis: S.SequenceMask(x, n, use_sequence_length=True, axis=axis, value=-1),
        x=shape,
        n=LENGTHS,
    )
    case(
        f"SequenceLast_{axis}",
        lambda x, n, axis=axis: S.SequenceLast(x, n, use_sequence_length=True, axis=axis),
        x=shape,
        n=LENGTHS,
    )
    case(f"SequenceLast_whole_{axis}", lambda x, axis=axis: S.SequenceLast(x, axis=axis), x=shape)
case("SequenceMask_whole", lambda x: S.SequenceMask(x) + 1, x=(5, 3, 2))
case(
    "SequenceReverse",
    lambda x, n: S.SequenceReverse(x, n, use_sequence_length=True),
    x=(5, 3, 2),
    n=LENGTHS,
)
case("SequenceReverse_whole", lambda x: S.SequenceReverse(x), x=(5, 3, 2))


def recurrent(x: Any, W: Any, h: Any, **options: Any) -> Any:  # noqa: N803
    return S.RNN(x, W, h, state_size=4, num_layers=1, **options)


case(
    "RNN",
    lambda x, W, h: recurrent(x, W, h, mode="gru"),
    x=(5, 2, 3),
    W=(12 * (3 + 4 + 2),),
    h=(1, 2, 4),
)
case(
    "RNN_in_the_middle",
    lambda x, W, h: S.SwapAxis(
        recurrent(S.SwapAxis(x, dim1=0, dim2=1), W, h, mode="rnn_tanh"), dim1=0, dim2=1
    ),
    x=(2, 5, 3),
    W=(4 * (3 + 4 + 2),),
    h=(1, 2, 4),
)


def gru_loop(x: Any, h: Any, **_: Any) -> Any:
    cell = mx.gluon.rnn.GRUCell(4, input_size=3, prefix="cell_")
    outputs, states = S.contrib.foreach(lambda a, s: cell(a, s), x, [h])
    return S.Group([outputs, states[0]])


def loop_weights() -> dict[str, Array]:
    shapes = {"i2h_weight": (12, 3), "h2h_weight": (12, 4), "i2h_bias": (12,), "h2h_bias": (12,)}
    return {f"cell_{name}": values(*shape, seed=9) / 3 for name, shape in shapes.items()}


CASES.append(Case("_foreach", gru_loop, {"x": values(5, 2, 3), "h": values(2, 4)}, loop_weights()))
case(
    "_foreach_captures",
    lambda x, s, k: S.Group(S.contrib.foreach(lambda a, b: (a * k + b, b + a), x, s)),
    x=(4, 2),
    s=(2,),
    k=(2,),
)
case(
    "_foreach_several",
    lambda x, y, s: S.Group(
        sum(
            (
                list(part)
                for part in S.contrib.foreach(
                    lambda a, b: ([a[0] + a[1], b[0] * 2], [b[0] + a[1]]), [x, y], [s]
                )
            ),
            [],
        )
    ),
    x=(4, 2),
    y=(4, 2),
    s=(2,),
)

# NumPy mode.
NP: Any = mx.sym.np
NPX: Any = mx.sym.npx


def np_case(name: str, build: Callable[..., Any], **inputs: Any) -> None:
    case(f"np_{name}", build, numpy=True, **inputs)


for op in "tanh exp abs negative floor ceil sign sin cos square".split():
    np_case(op, lambda x, op=op: getattr(NP, op)(x), x=SPECIAL)
for op in "log sqrt reciprocal".split():
    np_case(op, lambda x, op=op: getattr(NP, op)(x), x=POSITIVE)
for op in "relu sigmoid erf".split():
    np_case(f"npx_{op}", lambda x, op=op: getattr(NPX, op)(x), x=SPECIAL)
for op in "add subtract multiply true_divide maximum minimum".split():
    np_case(op, lambda a, b, op=op: getattr(NP, op)(a, b), a=(2, 3), b=(3,))
np_case("power", lambda a, b: NP.power(a, b), a=POSITIVE, b=(3,))
for op in "equal not_equal greater greater_equal less less_equal".split():
    rounded = np.round(values(2, 3))
    np_case(op, lambda a, b, op=op: getattr(NP, op)(a, b), a=rounded, b=rounded[:1])
    np_case(f"{op}_scalar", lambda a, op=op: getattr(NP, op)(a, 1.0), a=rounded)
for name, scalar in {
    "add": lambda x: x + 1.5,
    "subtract": lambda x: x - 1.5,
    "rsubtract": lambda x: 1.5 - x,
    "multiply": lambda x: x * 0.1,
    "true_divide": lambda x: x / 3,
    "rtrue_divide": lambda x: 1.5 / x,
    "maximum": lambda x: NP.maximum(x, 1.0),
    "minimum": lambda x: NP.minimum(x, 1.0),
    "power": lambda x: x**1.5,
    "rpower": lambda x: NP.power(1.5, x),
}.items():
    np_case(f"{name}_scalar", scalar, x=POSITIVE)
np_case(
    "where",
    lambda c, x, y: NP.where(c, x, y),
    c=np.array([[0, 1, 1], [1, 0, 2]], np.float32),
    x=(2, 3),
    y=(2, 3),
)
np_case("copy", lambda x: NP.copy(x) + 1, x=(2, 3))
for number, shape in enumerate([(4, 6), (-1,), (2, -1)]):
    np_case(f"reshape_{number}", lambda x, shape=shape: NP.reshape(x, shape), x=(2, 3, 4))
for number, shape in enumerate([(-2, -1), (-5, -2), (-4,), (-2, -6, 1, 3, -4), (-2, -4)]):
    np_case(f"npx_reshape_{number}", lambda x, shape=shape: NPX.reshape(x, shape), x=(2, 3, 4))
np_case("squeeze", lambda x: NP.squeeze(x), x=(1, 3, 1))
np_case("squeeze_axis", lambda x: NP.squeeze(x, axis=0), x=(1, 3, 1))
np_case("expand_dims", lambda x: NP.expand_dims(x, -1), x=(2, 3))
np_case("swapaxes", lambda x: NP.swapaxes(x, 0, 1), x=(2, 3, 4))
np_case("transpose", lambda x: NP.transpose(x), x=(2, 3))
np_case("transpose_axes", lambda x: NP.transpose(x, (1, 0, 2)), x=(2, 3, 4))
np_case("concatenate", lambda x, y: NP.concatenate([x, y], axis=1), x=(2, 3), y=(2, 1))
np_case("stack", lambda x, y: NP.stack([x, y], axis=1), x=(2, 3), y=(2, 3))
np_case("split", lambda x: NP.split(x, 2, axis=1)[1], x=(2, 4))
np_case("slice", lambda x: NPX.slice(x, begin=(0, 1), end=(2, 3)), x=(3, 4))
np_case("flip", lambda x: NP.flip(x, 1), x=(2, 3))
np_case("broadcast_to", lambda x: NP.broadcast_to(x, (2, 3)), x=(1, 3))
np_case("zeros", lambda x: x + NP.zeros((2, 3)), x=(2, 3))
np_case("ones", lambda x: x + NP.ones((2, 3)), x=(2, 3))
np_case("full", lambda x: x + NP.full((2, 3), 0.5), x=(2, 3))
np_case("arange", lambda x: x + NP.arange(3), x=(2, 3))
np_case("take", lambda x, ids: NP.take(x, ids, axis=0, mode="clip"), x=(6, 2), ids=IDS)
np_case("clip", lambda x: NP.clip(x, -1, 0.5), x=(2, 3))
for op in "sum mean max min prod".split():
    for number, options in enumerate([{}, {"axis": 1}, {"axis": -1, "keepdims": True}]):
        np_case(
            f"{op}_{number}",
            lambda x, op=op, options=options: getattr(NP, op)(x, **options),
            x=(2, 3, 4),
        )
for op in ("argmax", "argmin"):
    np_case(f"{op}", lambda x, op=op: getattr(NP, op)(x), x=(2, 5))
    np_case(f"{op}_axis", lambda x, op=op: getattr(NP, op)(x, axis=1), x=(2, 5))
np_case("matmul", lambda a, b: NP.matmul(a, b), a=(2, 3, 4), b=(2, 4, 5))
np_case(
    "dot",
    lambda x, W, V: NP.dot(NPX.fully_connected(x, V, num_hidden=2, no_bias=True), W),
    x=(4, 3),
    V=(2, 3),
    W=(2, 5),
)
np_case(
    "npx_fully_connected",
    lambda x, W, B: NPX.fully_connected(x, W, B, num_hidden=5, flatten=False),
    x=(2, 4, 3),
    W=(5, 3),
    B=(5,),
)
np_case(
    "npx_embedding",
    lambda ids, W: NPX.embedding(ids, W, input_dim=6, output_dim=4),
    ids=IDS,
    W=(6, 4),
)
np_case("npx_softmax", lambda x: NPX.softmax(x, axis=-1), x=(2, 3))
np_case("npx_log_softmax", lambda x: NPX.log_softmax(x, axis=-1), x=(2, 3))
np_case("npx_activation", lambda x: NPX.activation(x, act_type="tanh"), x=(2, 3))
np_case("npx_leaky_relu", lambda x: NPX.leaky_relu(x, act_type="leaky", slope=0.2), x=(2, 3))
np_case("npx_dropout", lambda x: NPX.dropout(x, p=0.3) + 1, x=(2, 3))
np_case(
    "npx_layer_norm",
    lambda x, GAMMA, BETA: NPX.layer_norm(x, GAMMA, BETA),
    x=(2, 4),
    GAMMA=(4,),
    BETA=(4,),
)
np_case("npx_one_hot", lambda ids: NPX.one_hot(ids, depth=6), ids=IDS)
np_case(
    "npx_pick",
    lambda x, ids: NPX.pick(x, ids, axis=1),
    x=(3, 4),
    ids=np.array([0, 3, 1], np.float32),
)
np_case("npx_batch_dot", lambda a, b: NPX.batch_dot(a, b), a=(2, 3, 4), b=(2, 4, 5))
np_case("npx_batch_flatten", lambda x: NPX.batch_flatten(x), x=(2, 3, 4))
np_case("npx_reshape_like", lambda x, y: NPX.reshape_like(x, y), x=(2, 6), y=(3, 4))
np_case(
    "npx_sequence_mask",
    lambda x, n: NPX.sequence_mask(x, n, use_sequence_length=True),
    x=(5, 3, 2),
    n=LENGTHS,
)
np_case(
    "npx_rnn",
    lambda x, W, h: S.Group(
        list(
            NPX.rnn(
                data=x,
                parameters=W,
                state=h,
                mode="lstm",
                state_size=4,
                num_layers=1,
                state_cell=h,
                state_outputs=True,
            )
        )
    ),
    x=(5, 2, 3),
    W=(16 * (3 + 4 + 2),),
    h=(1, 2, 4),
)
