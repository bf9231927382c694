"""The rules of operators on each element of tensors, with a second tensor or a number, and of
sizes, which Python computes with.

Formulas: documentation of torch.NAME. Results have the dtype that the program tells.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from onernn.adapters.torch.lower.operator import DType, TorchOperator, rule
from onernn.adapters.torch.read.exported import Open
from onernn.core.errors import UnsupportedError

_PLAIN = {
    "Relu": "relu",
    "Abs": "abs",
    "Neg": "neg",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Sign": "sign sgn",
}
_OF_FLOATS = {  # integers become floats before
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Reciprocal": "reciprocal",
    "Sin": "sin",
    "Cos": "cos",
    "Erf": "erf",
    "HardSwish": "hardswish",
}


def _plain(kind: str, op: TorchOperator) -> str:
    x = op.value()
    return op.emit(kind, op.cast(x, op.made()) if kind in _OF_FLOATS else x)


for kind, names in {**_PLAIN, **_OF_FLOATS}.items():
    rule(names)(partial(_plain, kind))


@rule("rsqrt")
def _rsqrt(op: TorchOperator) -> str:
    return op.emit("Reciprocal", op.emit("Sqrt", op.cast(op.value(), op.made())))


@rule("square")
def _square(op: TorchOperator) -> str:
    return op.emit("Mul", op.value(), op.value())


@rule("silu")
def _silu(op: TorchOperator) -> str:
    return op.emit("Mul", op.value(), op.emit("Sigmoid", op.value()))


@rule("gelu")
def _gelu(op: TorchOperator) -> str:
    return op.emit("Gelu", op.value(), approximate=op.attribute("approximate", "none"))


@rule("softplus")
def _softplus(op: TorchOperator) -> str:
    """The identity beyond the threshold, where they differ by less than float32 tells."""
    op.only("beta", 1.0)
    if op.attribute("threshold", 20.0) < 17:
        raise UnsupportedError("argument threshold below 17")
    return op.emit("Softplus", op.value())


@rule("hardsigmoid")
def _hardsigmoid(op: TorchOperator) -> str:
    return op.emit("HardSigmoid", op.value(), alpha=1 / 6, beta=0.5)


_BOUNDS = (0, 1, -1, 6)


@rule("hardtanh relu6")
def _hardtanh(op: TorchOperator) -> str:
    low, high = (0.0, 6.0) if op.at.type.startswith("relu6") else (-1.0, 1.0)
    bounds = op.number("min_val", low, _BOUNDS), op.number("max_val", high, _BOUNDS)
    return op.emit("Clip", op.value(), *(op.scalar(each, op.made()) for each in bounds))


@rule("clamp clamp_min clamp_max")
def _clamp(op: TorchOperator) -> str:
    bounds = [
        op.scalar(op.number(name, plain=_BOUNDS), op.made()) if op.given(name) else ""
        for name in ("min", "max")
    ]
    return op.emit("Clip", op.cast(op.value(), op.made()), *bounds)


@rule("leaky_relu")
def _leaky_relu(op: TorchOperator) -> str:
    return op.emit("LeakyRelu", op.value(), alpha=float(op.number("negative_slope", 0.01)))


@rule("elu")
def _elu(op: TorchOperator) -> str:
    op.only("scale", 1.0)
    op.only("input_scale", 1.0)
    return op.emit("Elu", op.value(), alpha=float(op.number("alpha", 1.0)))


@rule("selu")
def _selu(op: TorchOperator) -> str:
    return op.emit("Selu", op.value())


@rule("prelu _prelu_kernel")
def _prelu(op: TorchOperator) -> str:
    """A slope for each channel, which is axis 1."""
    x, slope = op.value(), op.array("weight").reshape(-1)
    if slope.size > 1:
        slope = slope.reshape(-1, *[1] * (op.rank(x) - 2))
    return op.emit("PRelu", x, op.constant(slope, "slope"))


@rule("dropout feature_dropout alpha_dropout native_dropout")
def _dropout(op: TorchOperator) -> str:
    op.attribute("p", 0.5)
    if op.attribute("train", False):
        raise UnsupportedError("exported for training, with dropout; call model.eval() before")
    return op.alias("input")


@rule("glu")
def _glu(op: TorchOperator) -> str:
    axis = op.axis(op.value(), default=-1)
    one, other = op.emit_many("Split", 2, op.value(), axis=axis)
    return op.emit("Mul", one, op.emit("Sigmoid", other))


_TWO = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow"}


def _two(kind: str, op: TorchOperator) -> str:
    """In the dtype of the result, as PyTorch promotes; ``alpha`` scales the second."""
    dtype = op.made()
    slot = "exponent" if kind == "Pow" else "other"
    one, other = (op.operand(each, dtype, _usual(kind, dtype)) for each in ("self", slot))
    if op.given("alpha") and (alpha := op.number("alpha", 1.0)) != 1:
        other = op.emit("Mul", other, op.scalar(alpha, dtype))
    if op.given("rounding_mode"):
        raise UnsupportedError("argument rounding_mode")
    if kind == "Div" and dtype.kind != "f":
        raise UnsupportedError(f"a quotient that is {dtype}")
    return op.emit(kind, one, other)


def _usual(kind: str, dtype: DType) -> tuple[float, ...]:
    """Numbers that say nothing of a size: 1 - z, or a square; of integers they may."""
    if dtype.kind != "f":
        return ()
    return (2, 0.5) if kind == "Pow" else (1, -1) if kind in ("Add", "Sub") else ()


for kind, name in _TWO.items():
    overloads = (
        ["Tensor_Tensor", "Tensor_Scalar", "Scalar"] if kind == "Pow" else ["Tensor", "Scalar"]
    )
    rule(" ".join(f"{name}.{each}" for each in overloads))(partial(_two, kind))


@rule("rsub.Scalar rsub.Tensor")
def _rsub(op: TorchOperator) -> str:
    op.only("alpha", 1.0)
    pair = (op.operand(slot, op.made(), _usual("Sub", op.made())) for slot in ("other", "self"))
    return op.emit("Sub", *pair)


@rule("maximum minimum max.other min.other")
def _larger(op: TorchOperator) -> str:
    kind = "Max" if "max" in op.at.type else "Min"
    return op.emit(kind, op.operand("self", op.made()), op.operand("other", op.made()))


@rule("addcmul")
def _addcmul(op: TorchOperator) -> str:
    op.only("value", 1.0)
    values = [op.operand(slot, op.made()) for slot in ("self", "tensor1", "tensor2")]
    return op.emit("Add", values[0], op.emit("Mul", *values[1:]))


@rule("lerp.Tensor lerp.Scalar")
def _lerp(op: TorchOperator) -> str:
    start, end, weight = (op.operand(slot, op.made()) for slot in ("self", "end", "weight"))
    return op.emit("Add", start, op.emit("Mul", weight, op.emit("Sub", end, start)))


_COMPARISONS = {
    "eq": "Equal",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
    "lt": "Less",
    "le": "LessOrEqual",
}


def _comparison(kind: str, op: TorchOperator) -> str:
    dtype = _common(op)
    return op.emit(kind, op.operand("self", dtype), op.operand("other", dtype))


def _common(op: TorchOperator) -> DType:
    """What two operands are compared in: a tensor's dtype counts more than a number's."""
    mine = op.dtype_of(op.value())
    if "other" in op.inputs:
        theirs = op.dtype_of(op.value("other"))
        if mine != theirs and 0 in (op.rank(op.value()), op.rank(op.value("other"))):
            raise UnsupportedError(f"compares {mine} and {theirs}, one of them a scalar")
        if (mine.kind == "f") != (theirs.kind == "f"):
            return mine if mine.kind == "f" else theirs
        return np.promote_types(mine, theirs)
    whole = not isinstance(op.attribute("other", None), float)
    return mine if whole or mine.kind == "f" else np.dtype(np.float32)


for name, kind in _COMPARISONS.items():
    rule(f"{name}.Tensor {name}.Scalar")(partial(_comparison, kind))


@rule("ne.Tensor ne.Scalar")
def _unequal(op: TorchOperator) -> str:
    return op.emit("Not", _comparison("Equal", op))


@rule("logical_not bitwise_not")
def _not(op: TorchOperator) -> str:
    if op.at.type.startswith("bitwise") and op.dtype_of(op.value()) != np.bool_:
        raise UnsupportedError("of bits")
    return op.emit("Not", op.cast(op.value(), bool))


def _logic(kind: str, op: TorchOperator) -> str:
    pair = [op.value(), op.value("other")]
    if op.at.type.startswith(("bitwise", "__")) and {op.dtype_of(x).kind for x in pair} != {"b"}:
        raise UnsupportedError("of bits")
    return op.emit(kind, *(op.cast(x, bool) for x in pair))


for name, kind in {"and": "And", "or": "Or", "xor": "Xor"}.items():
    rule(f"logical_{name} bitwise_{name}.Tensor __{name}__.Tensor")(partial(_logic, kind))


@rule("where.self where.ScalarOther where.ScalarSelf where.Scalar")
def _where(op: TorchOperator) -> str:
    condition = op.cast(op.value("condition"), bool)
    pair = (op.operand(slot, op.made(), _BOUNDS[:3]) for slot in ("self", "other"))
    return op.emit("Where", condition, *pair)


@rule("masked_fill.Scalar masked_fill.Tensor")
def _masked_fill(op: TorchOperator) -> str:
    """-inf is a number like others."""
    dtype = op.made()
    found = None if "value" in op.inputs else op.attribute("value", 0.0)
    finite = isinstance(found, int) or found is None or np.isfinite(found)
    value = op.operand("value", dtype) if finite else op.constant(np.asarray(found, dtype))
    return op.emit("Where", op.value("mask"), value, op.value())


@rule("to.dtype to.dtype_layout to.device to.other _to_copy type_as")
def _to(op: TorchOperator) -> str:
    for ignored in ("dtype", "copy"):
        op.attribute(ignored, None)
    op.variables("other")
    x = op.alias()
    return x if op.dtype_of(x) == op.made() else op.cast(op.value(), op.made())


@rule(
    "clone contiguous detach detach_ alias lift_fresh lift_fresh_copy lift requires_grad_ positive"
    " _assert_tensor_metadata.not_kept"
)
def _same(op: TorchOperator) -> str:
    return op.alias()


@rule("sym_size.int")
def _sym_size(op: TorchOperator) -> str:
    x = op.value()
    return op.emit("Gather", op.sizes_of(x), op.constant(np.int64(op.axis(x)), "axis"), axis=0)


@rule("sym_numel")
def _sym_numel(op: TorchOperator) -> str:
    return op.emit("Size", op.value())


def _of_sizes(kind: str, op: TorchOperator) -> str:
    """Python's arithmetic with sizes, which are not negative; who reads it ties its numbers."""
    pair, numbers = [], list[int]()
    for slot in ("a", "b"):
        found = op.attribute(slot, None)
        if isinstance(found, Open):
            pair.append(op.builder.value(found.name))
            numbers += op.builder.computed.get(found.name, ())
        elif type(found) is int:
            pair.append(op.constant(np.int64(found)))
            numbers.append(found)
        else:
            raise UnsupportedError(f"argument {slot}: no size, and no integer")
    op.builder.computed[op.node.outputs[0]] = numbers
    return op.emit(kind, *pair)


for name, kind in {
    "_operator.add": "Add",
    "_operator.sub": "Sub",
    "_operator.mul": "Mul",
    "_operator.floordiv": "Div",
    "_operator.mod": "Mod",
    "torch.sym_max": "Max",
    "torch.sym_min": "Min",
}.items():
    rule(name)(partial(_of_sizes, kind))
