"""The rules of operators on two values, or on a value and a number.

MXNet has each of them several times: for values of one shape, with broadcasting, with a scalar,
with the scalar in front, and under NumPy's names. Formulas: documentation of MXNet 1.9.1's
operators. Legacy comparisons give numbers of the inputs' dtype, NumPy's (``_npi_``) bools.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from onernn.adapters.mxnet.lower.operator import MxnetOperator
from onernn.adapters.mxnet.lower.rules import rule
from onernn.core.errors import UnsupportedError

Formula = Callable[[MxnetOperator, str, str], str]


def _plain(kind: str, op: MxnetOperator, one: str, other: str) -> str:
    if kind in ("Div", "Pow"):
        op.check_floats(one, other)
    return op.emit(kind, one, other)


def _comparison(kind: str, op: MxnetOperator, one: str, other: str) -> str:
    out = op.emit(kind, one, other)
    return out if op.numpy else op.cast(out, op.dtype_of(one))


def _unequal(op: MxnetOperator, one: str, other: str) -> str:
    out = op.emit("Not", op.emit("Equal", one, other))
    return out if op.numpy else op.cast(out, op.dtype_of(one))


def _logic(kind: str, op: MxnetOperator, one: str, other: str) -> str:
    truths = [op.cast(value, bool) for value in (one, other)]
    return op.cast(op.emit(kind, *truths), op.dtype_of(one))


def _remainder(op: MxnetOperator, one: str, other: str) -> str:
    """Of the sign of the divisor, and 0 where that is 0."""
    op.check_floats(one, other)
    zero = op.scalar(0.0, one)
    rest = op.emit("Mod", one, other, fmod=1)  # of the sign of the dividend
    negative = [op.emit("Less", each, zero) for each in (rest, other)]
    moved = op.emit("Add", rest, other)
    rest = op.emit("Where", op.emit("Xor", *negative), moved, rest)
    exact = op.emit("Equal", op.emit("Mod", one, other, fmod=1), zero)
    none = op.emit("Or", exact, op.emit("Equal", other, zero))
    return op.emit("Where", none, zero, rest)


def _hypotenuse(op: MxnetOperator, one: str, other: str) -> str:
    """In float64, in which no square of a float32 overflows."""
    if (dtype := op.dtype_of(one)) != np.float32:
        raise UnsupportedError(f"of {dtype} values")
    wide = [op.cast(value, np.float64) for value in (one, other)]
    squares = [op.emit("Mul", value, value) for value in wide]
    return op.cast(op.emit("Sqrt", op.emit("Add", *squares)), np.float32)


FORMULAS: dict[str, Formula] = {
    "add": partial(_plain, "Add"),
    "sub": partial(_plain, "Sub"),
    "mul": partial(_plain, "Mul"),
    "div": partial(_plain, "Div"),
    "maximum": partial(_plain, "Max"),
    "minimum": partial(_plain, "Min"),
    "power": partial(_plain, "Pow"),
    "mod": _remainder,
    "hypot": _hypotenuse,
    "equal": partial(_comparison, "Equal"),
    "not_equal": _unequal,
    "greater": partial(_comparison, "Greater"),
    "greater_equal": partial(_comparison, "GreaterOrEqual"),
    "lesser": partial(_comparison, "Less"),
    "lesser_equal": partial(_comparison, "LessOrEqual"),
    "logical_and": partial(_logic, "And"),
    "logical_or": partial(_logic, "Or"),
    "logical_xor": partial(_logic, "Xor"),
}
NUMPY = {
    "sub": "subtract",
    "mul": "multiply",
    "div": "true_divide",
    "lesser": "less",
    "lesser_equal": "less_equal",
    # Other names of the legacy ones (`ALIASES`), or not there at all.
    **dict.fromkeys("maximum minimum hypot logical_and logical_or logical_xor".split(), ""),
}
"""What NumPy mode calls them, where it is another name."""


def _on_two(formula: Formula, op: MxnetOperator, one: str, other: str) -> str:
    dtypes = {op.builder.type_of(value).dtype for value in (one, other)}
    if len(dtypes) > 1:
        raise UnsupportedError(f"of {' and '.join(sorted(map(str, dtypes)))} values")
    return formula(op, one, other)


def _on_alike(formula: Formula, op: MxnetOperator, one: str, other: str) -> str:
    """Both have the same shape, MXNet sees to that."""
    op.share_rank(one, other)
    return _on_two(formula, op, one, other)


def _with_scalar(formula: Formula, op: MxnetOperator, x: str) -> str:
    x = _beside_scalar(op, x)
    return formula(op, x, op.scalar(op.number("scalar", 1.0), x))


def _behind_scalar(formula: Formula, op: MxnetOperator, x: str) -> str:
    x = _beside_scalar(op, x)
    return formula(op, op.scalar(op.number("scalar", 1.0), x), x)


def _beside_scalar(op: MxnetOperator, x: str) -> str:
    """The value in the dtype in which MXNet computes with it and the scalar.

    Whole numbers stay, unless ``is_int`` says that the scalar is none: float64. Bools: int64.
    """
    whole, kind = op.flag("is_int", True), op.dtype_of(x).kind
    if op.name.endswith("true_divide_scalar"):
        op.check_floats(x)  # NumPy mode's default dtype, whatever the scalar is
    if kind == "f" or (whole and kind != "b"):
        return x
    return op.cast(x, np.int64 if whole else np.float64)


for name, formula in FORMULAS.items():
    numpy = NUMPY.get(name, name)
    alike = f"elemwise_{name}" if name in ("add", "sub", "mul", "div") else f"_{name}"
    legacy = {"add": "plus", "sub": "minus"}.get(name, name)
    two, scalar = f"broadcast_{name}", f"_{legacy}_scalar"
    if numpy:
        two, scalar = f"{two} _npi_{numpy}", f"{scalar} _npi_{numpy}_scalar"
    rule(alike, "lhs rhs", inferred="all")(partial(_on_alike, formula))
    rule(two, "lhs rhs")(partial(_on_two, formula))
    rule(scalar, "data", inferred="all")(partial(_with_scalar, formula))
    if name in ("sub", "div", "power", "mod"):
        behind = f"_r{legacy}_scalar _npi_r{numpy}_scalar"
        rule(behind, "data", inferred="all")(partial(_behind_scalar, formula))
rule("_npi_hypot", "lhs rhs")(partial(_on_two, _hypotenuse))
rule("add_n", "*args", inferred="all")(lambda op, *values: op.emit("Sum", *values))
