"""The rules of operators that work element by element.

Formulas: documentation of MXNet 1.9.1's operators of the same names. Legacy comparisons give
numbers of the inputs' dtype; NumPy's (``_npi_``) give bools.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onernn.adapters.mxnet.native import MxnetOperator, rule
from onernn.core.errors import UnsupportedError

UNARY = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softsign": "Softsign",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "negative": "Neg",
    "floor": "Floor",
    "ceil": "Ceil",
    "sign": "Sign",
    "reciprocal": "Reciprocal",
    "sin": "Sin",
    "cos": "Cos",
    "erf": "Erf",
}
NUMPY_UNARY = "tanh exp log sqrt negative floor ceil sign reciprocal sin cos".split()
# What an operator does with two values; NumPy's name of it where it is another one.
BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "power": "Pow",
}
NUMPY = {"sub": "subtract", "mul": "multiply", "div": "true_divide"}
COMPARED = {
    "equal": "Equal",
    "not_equal": "Equal",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "lesser": "Less",
    "lesser_equal": "LessOrEqual",
}
LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}


def _unary(kind: str) -> Callable[[MxnetOperator], str]:
    def lower(op: MxnetOperator) -> str:
        x = op.value("data")
        _floats(op, x)
        return op.emit(kind, x)

    return lower


def _floats(op: MxnetOperator, *values: str) -> None:
    """NumPy would promote integers where MXNet keeps or refuses them."""
    for value in values:
        dtype = op.facts(value).dtype
        if dtype is not None and dtype.kind != "f":
            raise UnsupportedError(f"of {dtype} values")


for name, kind in UNARY.items():
    names = f"{name} _npi_{name}" if name in NUMPY_UNARY else name
    rule(names, "data", inferred="all")(_unary(kind))
rule("_npi_absolute", "data", inferred="all")(_unary("Abs"))
rule("_npx_relu _npx_sigmoid", "data", inferred="all")(
    lambda op: op.emit("Relu" if op.at.type.endswith("relu") else "Sigmoid", op.value("data"))
)


@rule("_copy _np_copy BlockGrad make_loss", "data", inferred="all")
def _identity(op: MxnetOperator) -> str:
    return op.value("data")


@rule("square _npi_square", "data", inferred="all")
def _square(op: MxnetOperator) -> str:
    return op.emit("Mul", op.value("data"), op.value("data"))


@rule("rsqrt", "data", inferred="all")
def _rsqrt(op: MxnetOperator) -> str:
    return op.emit("Reciprocal", op.emit("Sqrt", op.value("data")))


def _common(op: MxnetOperator) -> tuple[str, str]:
    one, other = op.value("lhs"), op.value("rhs")
    dtypes = {op.facts(value).dtype for value in (one, other)}
    if len(dtypes) > 1:
        raise UnsupportedError(f"of {' and '.join(sorted(map(str, dtypes)))} values")
    return one, other


def _binary(kind: str, alike: bool) -> Callable[[MxnetOperator], str]:
    """``alike``: both have the same shape, MXNet sees to that."""

    def lower(op: MxnetOperator) -> str:
        pair = _common(op)
        if kind in ("Div", "Pow"):
            _floats(op, *pair)
        return op.emit(kind, *pair, rank=op.shared_rank(*pair) if alike else None)

    return lower


def _compared(name: str, kind: str) -> Callable[[MxnetOperator], str]:
    def lower(op: MxnetOperator) -> str:
        pair = _common(op)
        return _verdict(op, name, op.emit(kind, *pair, dtype=bool), pair[0])

    return lower


def _verdict(op: MxnetOperator, name: str, out: str, like: str) -> str:
    if name.startswith("not_"):
        out = op.emit("Not", out)
    if op.at.type.startswith("_npi_"):
        return out
    return op.cast(out, op.facts(like).dtype or np.float32)


def _logical(kind: str) -> Callable[[MxnetOperator], str]:
    def lower(op: MxnetOperator) -> str:
        pair = _common(op)
        truths = [op.cast(value, bool) for value in pair]
        return op.cast(op.emit(kind, *truths), op.facts(pair[0]).dtype or np.float32)

    return lower


for name, kind in BINARY.items():
    same = f"elemwise_{name}" if name in ("add", "sub", "mul", "div") else f"_{name}"
    rule(same, "lhs rhs", inferred="all")(_binary(kind, alike=True))
    numpy = "" if name in ("maximum", "minimum") else f" _npi_{NUMPY.get(name, name)}"
    rule(f"broadcast_{name}{numpy}", "lhs rhs")(_binary(kind, alike=False))
for name, kind in COMPARED.items():
    rule(f"_{name}", "lhs rhs", inferred="all")(_compared(name, kind))
    numpy = name.replace("lesser", "less")
    rule(f"broadcast_{name} _npi_{numpy}", "lhs rhs")(_compared(name, kind))
for name, kind in LOGICAL.items():
    rule(f"_{name}", "lhs rhs", inferred="all")(_logical(kind))
    rule(f"broadcast_{name}", "lhs rhs")(_logical(kind))


@rule("logical_not", "data", inferred="all")
def _not(op: MxnetOperator) -> str:
    x = op.value("data")
    return op.cast(op.emit("Not", op.cast(x, bool)), op.facts(x).dtype or np.float32)


@rule("add_n", "*args", inferred="all")
def _add_n(op: MxnetOperator) -> str:
    return op.emit("Sum", *op.values("args"))


def _with_scalar(kind: str, reverse: bool) -> Callable[[MxnetOperator], str]:
    def lower(op: MxnetOperator) -> str:
        x = op.value("data")
        if kind in ("Div", "Pow"):
            _floats(op, x)
        number = op.scalar(op.number("scalar", 1.0), x)
        pair = (number, x) if reverse else (x, number)
        return op.emit(kind, *pair, rank=op.facts(x).rank)

    return lower


def _compared_with_scalar(name: str, kind: str) -> Callable[[MxnetOperator], str]:
    def lower(op: MxnetOperator) -> str:
        x = op.value("data")
        number = op.scalar(op.number("scalar", 1.0), x)
        out = op.emit(kind, x, number, dtype=bool, rank=op.facts(x).rank)
        return _verdict(op, name, out, x)

    return lower


_SCALARS = {"add": "plus", "sub": "minus"}
for name, kind in BINARY.items():
    legacy, numpy = _SCALARS.get(name, name), NUMPY.get(name, name)
    names = f"_{legacy}_scalar"
    names += "" if name in ("maximum", "minimum") else f" _npi_{numpy}_scalar"
    rule(names, "data", inferred="all")(_with_scalar(kind, reverse=False))
    if name in ("sub", "div", "power"):
        names = f"_r{legacy}_scalar _npi_r{numpy}_scalar"
        rule(names, "data", inferred="all")(_with_scalar(kind, reverse=True))
for name, kind in COMPARED.items():
    names = f"_{name}_scalar _npi_{name.replace('lesser', 'less')}_scalar"
    rule(names, "data", inferred="all")(_compared_with_scalar(name, kind))


@rule("clip", "data", inferred="all")
def _clip(op: MxnetOperator) -> str:
    x = op.value("data")
    low, high = (op.scalar(op.number(name, 0.0), x) for name in ("a_min", "a_max"))
    return op.emit("Clip", x, low, high, rank=op.facts(x).rank)


@rule("hard_sigmoid", "data", inferred="all")
def _hard_sigmoid(op: MxnetOperator) -> str:
    alpha, beta = op.number("alpha", 0.2), op.number("beta", 0.5)
    return op.emit("HardSigmoid", op.value("data"), alpha=alpha, beta=beta)


ACTIVATIONS = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softrelu": "Softplus",
    "softsign": "Softsign",
}


@rule("Activation", "data", inferred="all")
def _activation(op: MxnetOperator) -> str:
    kind = op.text("act_type", "")
    if kind not in ACTIVATIONS:
        raise UnsupportedError(f"attribute act_type={kind!r}")
    return op.emit(ACTIVATIONS[kind], op.value("data"))


@rule("LeakyReLU", "data gamma")
def _leaky_relu(op: MxnetOperator) -> str:
    x, kind = op.value("data"), op.text("act_type", "leaky")
    slope = op.number("slope", 0.25)
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
        if gamma.size > 1 and (rank := op.rank(x, "attribute act_type='prelu'")) > 2:
            gamma = gamma.reshape(-1, *[1] * (rank - 2))
        return op.emit("PRelu", x, op.context.constant(gamma, f"{op.node.name}/gamma"))
    raise UnsupportedError(f"attribute act_type={kind!r}")


@rule("Cast amp_cast", "data", inferred="all")
def _cast(op: MxnetOperator) -> str:
    x, dtype = op.value("data"), op.dtype("dtype")
    return op.emit("Cast", x, dtype=dtype, to=dtype.name)


@rule("where _npi_where", "condition x y", inferred="all")
def _where(op: MxnetOperator) -> str:
    condition, x, y = (op.value(slot) for slot in ("condition", "x", "y"))
    known = op.facts(condition).rank, op.facts(x).rank
    if op.at.type == "where" and known[0] != known[1] and 1 in known:
        raise UnsupportedError("a condition for each row")
    return op.emit("Where", op.cast(condition, bool), x, y, dtype=op.facts(x).dtype)


@rule("ones_like zeros_like", "data", inferred="all")
def _like(op: MxnetOperator) -> str:
    x = op.value("data")
    filled = np.full(1, op.at.type == "ones_like", op.facts(x).dtype or np.float32)
    rank = op.facts(x).rank
    return op.emit("ConstantOfShape", op.sizes_of(x), dtype=filled.dtype, rank=rank, value=filled)
