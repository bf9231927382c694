"""The rules of Paddle's operators that nets of its dynamic mode use around their layers.

There is no LoD in that mode, so one is refused. Slots and defaults: the operators' makers in 2.6.
Where the native kernel differs from its documentation, that is measured with 2.6.2 and 3.3.1.
"""

from __future__ import annotations

import math

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.rules import rule
from onernn.core.errors import UnsupportedError


def _input(op: PaddleOperator, slot: str = "X") -> str:
    value = op.value(slot)
    if op.is_ragged(value):
        raise UnsupportedError(f"input {slot}: a LoD")
    return value


def _number(op: PaddleOperator, value: float, slot: str = "X") -> str:
    return op.builder.constant(np.asarray(value, op.dtype(slot)), "number")


@rule("elementwise_floordiv", "elementwise_mod")
def _divide(op: PaddleOperator) -> Results:
    """The quotient towards minus infinity, and what it leaves: it has the sign of the divisor."""
    op.only("axis", -1)
    x, y, dtype = _input(op), _input(op, "Y"), op.dtype("X")
    if dtype.kind == "f":
        if op.at.type == "elementwise_floordiv":
            return op.emit("Floor", op.emit("Div", x, y))
        rest, zero = op.emit("Mod", x, y, fmod=1), _number(op, 0)
        apart = op.emit("Xor", op.emit("Less", rest, zero), op.emit("Less", y, zero))
        wrong = op.emit("And", apart, op.emit("Not", op.emit("Equal", rest, zero)))
        return op.emit("Where", wrong, op.emit("Add", rest, y), rest)
    if op.at.type == "elementwise_mod":
        return op.emit("Mod", x, y)
    divisor = op.builder.constants.get(y)
    if op.builder.type_of(x).sizes is not None and divisor is not None and (divisor > 0).all():
        return op.emit("Div", x, y)  # sizes: a plan keeps them as polynomials
    return op.emit("Div", op.emit("Sub", x, op.emit("Mod", x, y)), y)


@rule("bmm", "mv")
def _product(op: PaddleOperator) -> Results:
    return op.emit("MatMul", _input(op), _input(op, "Vec" if op.at.type == "mv" else "Y"))


@rule("einsum")
def _einsum(op: PaddleOperator) -> Results:
    values = op.values("Operands")
    if any(map(op.is_ragged, values)):
        raise UnsupportedError("input Operands: a LoD")
    return {"Out": op.emit("Einsum", *values, equation=op.attribute("equation", ""))}


@rule("log2", "log10")
def _log(op: PaddleOperator) -> Results:
    base = {"log2": 2, "log10": 10}[op.at.type]
    return op.emit("Mul", op.emit("Log", _input(op)), _number(op, 1 / math.log(base)))


@rule("mish")
def _mish(op: PaddleOperator) -> Results:
    """Above the threshold softplus is x itself, which is what rounding gives."""
    if op.attribute("threshold", 20.0) < 20:
        raise UnsupportedError("attribute threshold: below 20 the function jumps")
    x = _input(op)
    return op.emit("Mul", x, op.emit("Tanh", op.emit("Softplus", x)))


@rule("logsigmoid")
def _log_sigmoid(op: PaddleOperator) -> Results:
    return op.emit("Neg", op.emit("Softplus", op.emit("Neg", _input(op))))


@rule("isfinite_v2", "isinf_v2")
def _is_finite(op: PaddleOperator) -> Results:
    if op.dtype("X").kind != "f":
        raise UnsupportedError(f"{op.dtype('X')} numbers")
    kind = {"isfinite_v2": "Less", "isinf_v2": "Equal"}[op.at.type]
    return op.emit(kind, op.emit("Abs", _input(op)), _number(op, math.inf))


def _over(op: PaddleOperator, kind: str, x: str, axes: list[int], keep: bool) -> str:
    """The reduction; before 2.5 Paddle gave (1,) where all axes go."""
    out = op.emit(kind, x, op.ints(axes), keepdims=int(keep))
    every = not keep and len(axes) == len(op.shape("X"))
    return op.emit("Reshape", out, op.ints([1])) if every and op.gives_one() else out


@rule("logsumexp", "frobenius_norm")
def _reduce(op: PaddleOperator) -> Results:
    log = op.at.type == "logsumexp"
    names = ("axis", "keepdim") if log else ("dim", "keep_dim")
    axes, keep = op.attribute(names[0], (0,)), op.attribute(names[1], False)
    op.attribute("in_dtype", -1), op.attribute("out_dtype", -1)
    if op.attribute("reduce_all", False) or not axes:
        axes = range(len(op.shape("X")))
    return _over(op, "ReduceLogSumExp" if log else "ReduceL2", _input(op), list(axes), keep)


_NORMS = {1.0: "ReduceL1", 2.0: "ReduceL2", math.inf: "ReduceMax", -math.inf: "ReduceMin"}


@rule("p_norm")
def _p_norm(op: PaddleOperator) -> Results:
    """Epsilon is of the gradient alone."""
    order, axis = op.attribute("porder", 2.0), op.attribute("axis", -1)
    op.attribute("epsilon", 1e-12)
    if order not in _NORMS:
        raise UnsupportedError(f"attribute porder={order}: only 1, 2 and infinity are computed")
    x, keep = _input(op), op.attribute("keepdim", False)
    x = op.emit("Abs", x) if math.isinf(order) else x
    axes = list(range(len(op.shape("X")))) if op.attribute("asvector", False) else [axis]
    return _over(op, _NORMS[order], x, axes, keep)


@rule("size")
def _count(op: PaddleOperator) -> Results:
    out = op.emit("Size", op.dense(op.value("Input")))
    return op.emit("Reshape", out, op.ints([1])) if op.gives_one() else out


@rule("arg_min")
def _arg_min(op: PaddleOperator) -> Results:
    x, axis, dtype = _input(op), op.attribute("axis", -1), op.attribute("dtype", 3)
    keep, flat = op.attribute("keepdims", False), op.attribute("flatten", False)
    if dtype not in (-1, 2, 3) or flat and keep:
        raise UnsupportedError(f"attributes dtype={dtype}, flatten={flat}, keepdims={keep}")
    if flat:
        x, axis = op.emit("Reshape", x, op.ints([-1])), 0
    out = op.emit("ArgMin", x, axis=axis, keepdims=int(keep))
    return op.emit("Cast", out, to="int32") if dtype == 2 else out


@rule("argsort")
def _argsort(op: PaddleOperator) -> Results:
    x, axis = _input(op), op.attribute("axis", -1) % max(len(op.shape("X")), 1)
    op.attribute("stable", False)  # without it Paddle gives equal ones in any order
    count = op.emit("Shape", x, start=axis, end=axis + 1)
    attributes = {"axis": axis, "largest": int(op.attribute("descending", False))}
    values, at = op.builder.emit_many("TopK", (x, count), 2, attributes)
    return {"Out": values, "Indices": at}


def _picked(op: PaddleOperator, kind: str, x: str, at: str, **axis: int) -> str:
    """Up to Paddle 3 indices count from zero alone; what 2.6 makes of negative ones is an error,
    but for take_along_axis, which reads what lies before a row.
    """
    from_zero = op.version < 3_000_000 or op.at.type == "index_sample"
    return op.emit(kind, x, at, non_negative=from_zero, **axis)


@rule("index_select")
def _index_select(op: PaddleOperator) -> Results:
    return _picked(op, "Gather", _input(op), _input(op, "Index"), axis=op.attribute("dim", 0))


@rule("gather_nd")
def _gather_nd(op: PaddleOperator) -> Results:
    return _picked(op, "GatherND", _input(op), op.emit("Cast", _input(op, "Index"), to="int64"))


@rule("index_sample")
def _index_sample(op: PaddleOperator) -> Results:
    return _picked(op, "GatherElements", _input(op), _input(op, "Index"), axis=1)


@rule("take_along_axis")
def _take_along(op: PaddleOperator) -> Results:
    x, at, axis = _input(op, "Input"), _input(op, "Index"), op.attribute("Axis", 0)
    return {"Result": _picked(op, "GatherElements", x, at, axis=axis)}


@rule("where_index")
def _nonzero(op: PaddleOperator) -> Results:
    return op.emit("Transpose", op.emit("NonZero", _input(op, "Condition")), perm=[1, 0])


@rule("masked_select")
def _masked_select(op: PaddleOperator) -> Results:
    """Those of X where the mask, of the same shape, says so."""
    x, mask = _input(op), _input(op, "Mask")
    if len(op.shape("X")) != len(op.shape("Mask")):
        raise UnsupportedError("input Mask: of another rank than X")
    places = op.emit("Transpose", op.emit("NonZero", mask), perm=[1, 0])
    return {"Y": op.emit("GatherND", x, places)}


@rule("one_hot_v2")
def _one_hot(op: PaddleOperator) -> Results:
    """Zeros where an index is out of range, which a program has to allow."""
    op.absent("depth_tensor")
    at, depth, dtype = _input(op), op.attribute("depth", -1), op.chosen_dtype("dtype", 5)
    if depth < 1:
        raise UnsupportedError(f"attribute depth={depth}")
    if not op.attribute("allow_out_of_range", False):
        rows = op.builder.constant(np.eye(depth, dtype=dtype), "rows")
        return op.emit("Gather", rows, at, axis=0, non_negative=True)
    places = op.builder.constant(np.arange(depth, dtype=op.dtype("X")), "places")
    same = op.emit("Equal", op.emit("Unsqueeze", at, op.ints([-1])), places)
    return op.emit("Cast", same, to=dtype)


@rule("roll")
def _roll(op: PaddleOperator) -> Results:
    """What leaves an axis at its end comes in at its beginning."""
    op.absent("ShiftsTensor")
    x, sizes = _input(op), op.shape("X")
    shifts, axes = op.attribute("shifts", ()), op.attribute("axis", ())
    flat = not axes
    out = op.emit("Reshape", x, op.ints([-1])) if flat else x
    sizes = (None if None in sizes else math.prod(size or 0 for size in sizes),) if flat else sizes
    for shift, axis in zip(shifts, axes or (0,), strict=True):
        size = sizes[axis]
        if size is None:  # a run tells how often it goes round
            place = axis % len(sizes)
            counted = op.emit("Shape", out, start=place, end=place + 1)
            round_ = op.emit("Mod", op.ints([-shift]), op.emit("Max", counted, op.ints([1])))
            cut = op.emit("Sub", round_, counted)
        else:
            cut = op.ints([-shift % max(size, 1) - size])
        last = op.emit("Slice", out, cut, op.ints([2**31 - 1]), op.ints([axis]))
        first = op.emit("Slice", out, op.ints([0]), cut, op.ints([axis]))
        out = op.emit("Concat", last, first, axis=axis)
    return op.emit("Reshape", out, op.emit("Shape", x)) if flat else op.emit("Identity", out)
