"""The rules of operators on two values, or on a value and a number.

MXNet has each of them several times: for values of one shape, with broadcasting, with a scalar,
with the scalar in front, and under NumPy's names. Formulas: documentation of MXNet 1.9.1's
operators. Legacy comparisons give numbers of the inputs' dtype, NumPy's (``_npi_``) bools.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onernn.adapters.mxnet.lower.operator import MxnetOperator
from onernn.adapters.mxnet.lower.rules import Function, rule
from onernn.core.errors import UnsupportedError

Formula = Callable[[MxnetOperator, str, str], str]


def _plain(kind: str) -> Formula:
    def formula(op: MxnetOperator, one: str, other: str) -> str:
        if kind in ("Div", "Pow"):
            op.check_floats(one, other)
        return op.emit(kind, one, other)

    return formula


def _comparison(kind: str, *, opposite: bool = False) -> Formula:
    def formula(op: MxnetOperator, one: str, other: str) -> str:
        out = op.emit(kind, one, other)
        out = op.emit("Not", out) if opposite else out
        return out if op.numpy else op.cast(out, op.dtype_of(one))

    return formula


def _logic(kind: str) -> Formula:
    def formula(op: MxnetOperator, one: str, other: str) -> str:
        truths = [op.cast(value, bool) for value in (one, other)]
        return op.cast(op.emit(kind, *truths), op.dtype_of(one))

    return formula


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
    squares = [
        op.emit("Mul", wide, wide) for wide in (op.cast(v, np.float64) for v in (one, other))
    ]
    return op.cast(op.emit("Sqrt", op.emit("Add", *squares)), np.float32)


FORMULAS: dict[str, Formula] = {
    "add": _plain("Add"),
    "sub": _plain("Sub"),
    "mul": _plain("Mul"),
    "div": _plain("Div"),
    "maximum": _plain("Max"),
    "minimum": _plain("Min"),
    "power": _plain("Pow"),
    "mod": _remainder,
    "hypot": _hypotenuse,
    "equal": _comparison("Equal"),
    "not_equal": _comparison("Equal", opposite=True),
    "greater": _comparison("Greater"),
    "greater_equal": _comparison("GreaterOrEqual"),
    "lesser": _comparison("Less"),
    "lesser_equal": _comparison("LessOrEqual"),
    "logical_and": _logic("And"),
    "logical_or": _logic("Or"),
    "logical_xor": _logic("Xor"),
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


def _on_two(formula: Formula, *, alike: bool = False) -> Function:
    """``alike``: both have the same shape, MXNet sees to that."""

    def lower(op: MxnetOperator) -> str:
        pair = op.value("lhs"), op.value("rhs")
        dtypes = {op.builder.type_of(value).dtype for value in pair}
        if len(dtypes) > 1:
            raise UnsupportedError(f"of {' and '.join(sorted(map(str, dtypes)))} values")
        if alike:
            op.share_rank(*pair)
        return formula(op, *pair)

    return lower


def _with_scalar(formula: Formula, *, reverse: bool = False) -> Function:
    def lower(op: MxnetOperator) -> str:
        x = _beside_scalar(op)
        number = op.scalar(op.number("scalar", 1.0), x)
        return formula(op, number, x) if reverse else formula(op, x, number)

    return lower


def _beside_scalar(op: MxnetOperator) -> str:
    """The value in the dtype in which MXNet computes with it and the scalar.

    Whole numbers stay, unless ``is_int`` says that the scalar is none: float64. Bools: int64.
    """
    x, whole = op.value("data"), op.flag("is_int", True)
    if op.name.endswith("true_divide_scalar"):
        op.check_floats(x)  # NumPy mode's default dtype, whatever the scalar is
    kind = op.dtype_of(x).kind
    if kind == "f" or (whole and kind != "b"):
        return x
    return op.cast(x, np.int64 if whole else np.float64)


for name, formula in FORMULAS.items():
    numpy = NUMPY.get(name, name)
    same = f"elemwise_{name}" if name in ("add", "sub", "mul", "div") else f"_{name}"
    rule(same, "lhs rhs", inferred="all")(_on_two(formula, alike=True))
    rule(f"broadcast_{name}", "lhs rhs")(_on_two(formula))
    legacy = {"add": "plus", "sub": "minus"}.get(name, name)
    rule(f"_{legacy}_scalar", "data", inferred="all")(_with_scalar(formula))
    if numpy:
        rule(f"_npi_{numpy}", "lhs rhs")(_on_two(formula))
        rule(f"_npi_{numpy}_scalar", "data", inferred="all")(_with_scalar(formula))
    if name in ("sub", "div", "power", "mod"):
        names = f"_r{legacy}_scalar _npi_r{numpy}_scalar"
        rule(names, "data", inferred="all")(_with_scalar(formula, reverse=True))
rule("_npi_hypot", "lhs rhs")(_on_two(_hypotenuse))


@rule("add_n", "*args", inferred="all")
def _add_n(op: MxnetOperator) -> str:
    return op.emit("Sum", *op.values("args"))
