"""A small symbol for each layer and reduction, and for what works along sequences."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from tests.frameworks.mxnet_cases import CASES, IDS, LENGTHS, OUTSIDE, POSITIVE, S, case, values
from tests.frameworks.mxnet_graphs import Case

from onernn.ir.arrays import Array

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
case(
    "pick_with_the_axis",
    lambda x, ids: S.pick(x, ids, axis=-1),
    x=(3, 4),
    ids=np.array([[0], [9], [-1]], np.float32),
)
case("pick_of_one_row", lambda x, ids: S.pick(x, ids), x=(4,), ids=np.array([2], np.float32))
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
case("SoftmaxOutput_of_four_axes", lambda x: S.SoftmaxOutput(x, name="softmax"), x=(2, 3, 4, 2))
case(
    "SoftmaxOutput_of_four_known_axes",
    lambda x: S.SoftmaxOutput(S.Reshape(x, shape=(2, 3, 4, 2)), name="softmax"),
    x=(6, 8),
)
case("SoftmaxActivation_deep", lambda x: S.SoftmaxActivation(x), x=(2, 3, 4))
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
            {"axis": (0, 1, 2)},
            {"axis": (), "exclude": True},
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
case("sum_of_a_list", lambda x: S.sum(x, axis=0), x=(5,))
for op in ("argmax", "argmin"):
    for number, options in enumerate(
        [{}, {"axis": 0}, {"axis": 1, "keepdims": True}, {"axis": -1}]
    ):
        case(
            f"{op}_{number}",
            lambda x, op=op, options=options: getattr(S, op)(x, **options),
            x=(2, 5),
        )
    case(f"{op}_of_a_list", lambda x, op=op: getattr(S, op)(x, axis=-1), x=(5,))
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

for mode, gates in {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}.items():
    for dtype in ("float32", "float64"):
        for layers, sides in ((1, 1), (2, 2)):
            more = (
                {"state_cell": values(layers * sides, 2, 4, dtype=dtype)} if mode == "lstm" else {}
            )
            rows = sides * gates * 4
            count = rows * (3 + 4 + 2) + (layers - 1) * rows * (4 * sides + 4 + 2)
            case(
                f"RNN_{mode}_{layers}_{sides}_{dtype}",
                lambda x, W, h, mode=mode, layers=layers, sides=sides, **c: S.Group(
                    list(
                        S.RNN(
                            x,
                            W,
                            h,
                            **c,
                            mode=mode,
                            state_size=4,
                            num_layers=layers,
                            bidirectional=sides == 2,
                            state_outputs=True,
                        )
                    )
                ),
                x=values(5, 2, 3, dtype=dtype),
                W=values(count, dtype=dtype) / 4,
                h=values(layers * sides, 2, 4, dtype=dtype),
                **more,
            )
for name, options in {
    "projection": {"projection_size": 2},
    "lengths": {"use_sequence_length": True},
    "clip": {"lstm_state_clip_min": -0.1, "lstm_state_clip_max": 0.1},
}.items():
    more = {"sequence_length": LENGTHS[:2]} if name == "lengths" else {}
    width = 2 if name == "projection" else 4
    case(
        f"RNN_{name}",
        lambda x, W, h, c, options=options, **more: S.Group(
            list(
                recurrent(x, W, h, mode="lstm", state_cell=c, state_outputs=True, **options, **more)
            )
        ),
        x=(5, 2, 3),
        W=values(16 * (3 + width + 2) + (8 if name == "projection" else 0)) / 4,
        h=(1, 2, width),
        c=(1, 2, 4),
        **more,
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


def counted(x: Any, h: Any, turns: int = 4, **_: Any) -> Any:
    """A cell over the steps of x while a count is below their number."""
    cell = mx.gluon.rnn.GRUCell(4, input_size=3, prefix="cell_")

    def step(i: Any, h: Any) -> tuple[Any, Any]:
        y, (h,) = cell(S.squeeze(S.take(x, i), axis=0), [h])
        return [y, y * 2], [i + 1, h]

    rows, states = S.contrib.while_loop(
        lambda i, h: i < turns, step, [S.zeros((1,)), h], max_iterations=5
    )
    return S.Group([*(S.slice_axis(each, axis=0, begin=0, end=turns) for each in rows), *states])


LOOPED = {"x": values(5, 2, 3), "h": values(2, 4)}
CASES.append(Case("_while_loop", counted, LOOPED, loop_weights()))
case(
    "_while_loop_by_values",
    lambda x, k, limit: S.Group(
        S.contrib.while_loop(
            lambda a, n: (a.sum() < limit.sum()) * (n < 9),
            lambda a, n: ([], [a * 2 + k, n + 1]),
            [x, S.zeros((1,))],
            max_iterations=20,
        )[1]
    ),
    x=np.array([1, 2], np.float32),
    k=(2,),
    limit=np.array([100], np.float32),
)
for sign in (1, -1):
    case(
        f"_cond_{sign}",
        lambda x, h, W: S.Group(
            S.contrib.cond(
                x.sum() > 0, lambda: [h * 2, x], lambda: [S.broadcast_add(h + W, x.sum()), x * 3]
            )
        ),
        x=np.array([[sign, 0.5]], np.float32),
        h=(1, 3),
        W=(1, 3),
    )
