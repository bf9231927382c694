"""A small symbol for each operator that works element by element, or moves elements."""

from __future__ import annotations

import numpy as np
from tests.frameworks.mxnet_cases import DIVIDENDS, DIVISORS, POSITIVE, SPECIAL, S, case, values

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
for op in "logical_and logical_or logical_xor".split():
    case(
        f"_{op}_scalar",
        lambda a, op=op: getattr(S._internal, f"_{op}_scalar")(a, scalar=2.0),
        a=truths,
    )
for op in ("mod", "hypot"):
    case(
        f"_{op}", lambda a, b, op=op: getattr(S._internal, f"_{op}")(a, b), a=DIVIDENDS, b=DIVISORS
    )
    case(
        f"broadcast_{op}",
        lambda a, b, op=op: getattr(S, f"broadcast_{op}")(a, b),
        a=DIVIDENDS,
        b=DIVISORS[:1],
    )
    case(
        f"_{op}_scalar",
        lambda a, op=op: getattr(S._internal, f"_{op}_scalar")(a, scalar=-2.0),
        a=DIVIDENDS,
    )
case("_rmod_scalar", lambda a: S._internal._rmod_scalar(a, scalar=5.0), a=DIVISORS)
HUGE = np.array([3e30, -3e-30, 0], np.float32)
case("broadcast_hypot_of_the_large", lambda a, b: S.broadcast_hypot(a, b), a=HUGE, b=HUGE)
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
case(
    "_plus_scalar_that_is_no_integer",
    lambda x: S._internal._plus_scalar(x, scalar=2.0, is_int=False),
    x=values(2, 3, dtype="int32"),
)
for op in ("plus", "greater"):
    case(
        f"_{op}_scalar_of_bools",
        lambda x, op=op: getattr(S._internal, f"_{op}_scalar")(S.Cast(x, dtype="bool"), scalar=1.0),
        x=(2, 3),
    )
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
    "LeakyReLU_rrelu",
    lambda x: S.LeakyReLU(x, act_type="rrelu", lower_bound=0.1, upper_bound=0.3)[0],
    x=SPECIAL,
)
case(
    "LeakyReLU_prelu_images",
    lambda x, GAMMA: S.LeakyReLU(S.Pooling(x, kernel=(1, 1)), GAMMA, act_type="prelu"),
    x=(2, 3, 4, 5),
    GAMMA=(3,),
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
case("amp_cast_of_integers", lambda x: S.amp_cast(x, dtype="float32"), x=values(3, dtype="int32"))
case("amp_cast", lambda x: S.amp_cast(x, dtype="float32"), x=(2, 3))
case(
    "where",
    lambda c, x, y: S.where(c, x, y),
    c=np.array([[0, 1, 1], [1, 0, 2]], np.float32),
    x=(2, 3),
    y=(2, 3),
)
case(
    "where_of_rows",
    lambda c, x, y: S.where(c, x, y),
    c=np.array([0, 1, 1], np.float32),
    x=(3, 3, 2),
    y=(3, 3, 2),
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
case("squeeze_everything", lambda x: S.squeeze(x), x=(1, 1))
case("squeeze_axis", lambda x: S.squeeze(x, axis=(0,)), x=(1, 3, 1))
case("squeeze_negative", lambda x: S.squeeze(x, axis=-1), x=(1, 3, 1))
case("squeeze_the_only_axis", lambda x: S.squeeze(x, axis=0), x=(1,))
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
case("SliceChannel_into_one", lambda x: S.SliceChannel(x, num_outputs=1), x=(2, 4))
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
