"""The rules of operators on each element of a value.

Formulas: documentation of MXNet 1.9.1's operators of the same names.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from onernn.adapters.mxnet.lower.operator import MxnetOperator
from onernn.adapters.mxnet.lower.rules import rule
from onernn.core.errors import UnsupportedError
from onernn.operators import OPERATORS

PLAIN = {
    "Relu": "relu _npx_relu",
    "Sigmoid": "sigmoid _npx_sigmoid",
    "Tanh": "tanh _npi_tanh",
    "Softsign": "softsign",
    "HardSigmoid": "hard_sigmoid",
    "Exp": "exp _npi_exp",
    "Log": "log _npi_log",
    "Sqrt": "sqrt _npi_sqrt",
    "Abs": "abs _npi_absolute",
    "Neg": "negative _npi_negative",
    "Floor": "floor _npi_floor",
    "Ceil": "ceil _npi_ceil",
    "Sign": "sign _npi_sign",
    "Reciprocal": "reciprocal _npi_reciprocal",
    "Sin": "sin _npi_sin",
    "Cos": "cos _npi_cos",
    "Erf": "erf",
}
"""The operators that are one of ours; attributes have its names, and its defaults."""


def _plain(kind: str, op: MxnetOperator, x: str) -> str:
    op.check_floats(x)
    numbers = OPERATORS[kind].attributes
    return op.emit(kind, x, **{name: op.number(name, numbers[name]) for name in numbers})


for kind, names in PLAIN.items():
    rule(names, "data", inferred="all")(partial(_plain, kind))


rule("_copy _np_copy BlockGrad make_loss", "data", inferred="all")(lambda _, x: x)
rule("square _npi_square", "data", inferred="all")(lambda op, x: op.emit("Mul", x, x))


@rule("rsqrt", "data", inferred="all")
def _rsqrt(op: MxnetOperator, x: str) -> str:
    op.check_floats(x)
    return op.emit("Reciprocal", op.emit("Sqrt", x))


@rule("logical_not", "data", inferred="all")
def _not(op: MxnetOperator, x: str) -> str:
    return op.cast(op.emit("Not", op.cast(x, bool)), op.dtype_of(x))


@rule("clip", "data", inferred="all")
def _clip(op: MxnetOperator, x: str) -> str:
    return op.emit("Clip", x, *(op.scalar(op.number(k, 0.0), x) for k in ("a_min", "a_max")))


@rule("Activation", "data", inferred="all")
def _activation(op: MxnetOperator, x: str) -> str:
    kind = op.text("act_type", "")
    if kind not in ("relu", "sigmoid", "tanh", "softrelu", "softsign"):
        raise UnsupportedError(f"attribute act_type={kind!r}")
    return op.emit("Softplus" if kind == "softrelu" else kind.capitalize(), x)


@rule("LeakyReLU", "data gamma?")
def _leaky_relu(op: MxnetOperator, x: str) -> str:
    kind, slope = op.text("act_type", "leaky"), op.number("slope", 0.25)
    low, high = op.number("lower_bound", 0.125), op.number("upper_bound", 0.334)
    if kind == "leaky":
        return op.emit("LeakyRelu", x, alpha=slope)
    if kind == "rrelu":  # random in training; in inference the middle of its range
        return op.emit("LeakyRelu", x, alpha=(low + high) / 2)
    if kind == "elu":
        return op.emit("Elu", x, alpha=slope)
    if kind in ("selu", "gelu"):
        return op.emit(kind.capitalize(), x)
    if kind == "prelu":  # a slope for each channel, which is axis 1
        gamma = op.array("gamma").reshape(-1)
        if gamma.size > 1 and (rank := op.known_rank(x, "attribute act_type='prelu'")) > 2:
            gamma = gamma.reshape(-1, *[1] * (rank - 2))
        return op.emit("PRelu", x, op.constant(gamma, "gamma"))
    raise UnsupportedError(f"attribute act_type={kind!r}")


@rule("Cast amp_cast", "data", inferred="all")
def _cast(op: MxnetOperator, x: str) -> str:
    """``amp_cast`` leaves whole numbers as they are."""
    dtype = op.dtype("dtype")
    if op.name == "amp_cast" and op.dtype_of(x).kind != "f":
        return x
    return op.emit("Cast", x, to=dtype.name)


@rule("where _npi_where", "condition x y", inferred="all")
def _where(op: MxnetOperator, condition: str, x: str, y: str) -> str:
    """A legacy condition may be a list, for the rows of x and y, which are alike."""
    condition, rank = op.cast(condition, bool), op.rank(x)
    if not op.numpy and (rank is None or rank != op.rank(condition)):
        sizes = op.sizes_of(condition)
        axes = [op.sizes_of(each) for each in (op.sizes_of(x), sizes)]
        ones = np.ones(1, np.int64)
        more = op.emit("ConstantOfShape", op.emit("Sub", *axes), value=ones)
        condition = op.emit("Reshape", condition, op.emit("Concat", sizes, more, axis=0))
    return op.emit("Where", condition, x, y)


@rule("ones_like zeros_like", "data", inferred="all")
def _like(op: MxnetOperator, x: str) -> str:
    filled = np.full(1, op.name == "ones_like", op.dtype_of(x))
    return op.emit("ConstantOfShape", op.sizes_of(x), value=filled)
