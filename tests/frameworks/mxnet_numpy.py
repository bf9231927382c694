"""A small symbol for each operator of MXNet's NumPy mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
from tests.frameworks.mxnet_cases import (
    DIVIDENDS,
    DIVISORS,
    IDS,
    LENGTHS,
    POSITIVE,
    SPECIAL,
    S,
    case,
    values,
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
for op in ("mod", "hypot"):
    np_case(op, lambda a, b, op=op: getattr(NP, op)(a, b), a=DIVIDENDS, b=DIVISORS[:1])
    np_case(f"{op}_scalar", lambda a, op=op: getattr(NP, op)(a, -2.0), a=DIVIDENDS)
np_case("rmod_scalar", lambda a: NP.mod(5.0, a), a=DIVISORS)
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
np_case("npx_pick_of_a_list", lambda x, i: NPX.pick(x, i) + 1, x=(4,), i=np.array(2, np.float32))
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
