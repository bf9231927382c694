"""Functions of ``keras.ops`` that Keras 3 lists among a model's layers: arithmetic, and masks.

They hand on no mask. Formulas: documentation of keras.ops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.adapters.keras.lower import activations
from onernn.adapters.keras.lower.joining import ARITHMETIC
from onernn.adapters.keras.lower.layer import KerasLayer, Rule, Tensor
from onernn.core.errors import UnsupportedError

_COMPARED = {
    **{"Equal": "Equal", "Less": "Less", "LessEqual": "LessOrEqual", "Greater": "Greater"},
    **{"GreaterEqual": "GreaterOrEqual", "LogicalOr": "Or", "LogicalAnd": "And"},
}
_FUNCTIONS = {
    **{
        "Relu": "relu",
        "Sigmoid": "sigmoid",
        "Tanh": "tanh",
        "Silu": "silu",
        "Softplus": "softplus",
    },
    **{"Softsign": "softsign", "Selu": "selu", "HardSigmoid": "hard_sigmoid", "Exp": "exponential"},
}


def _operands(op: KerasLayer) -> tuple[str, str]:
    """Two values of one type; a number becomes one of the other's."""
    given = op.arguments
    tensors = [each for each in given if isinstance(each, Tensor)]
    numbers = [each for each in given if isinstance(each, int | float)]
    if len(given) != 2 or not tensors or len(tensors) + len(numbers) != 2:
        raise UnsupportedError("expected two tensors, or one and a number")
    like = tensors[0].value
    if any(type(each) is float for each in numbers) and not op.dtype(like).startswith("float"):
        raise UnsupportedError(f"{op.dtype(like)} and {numbers[0]}")
    a, b = (e.value if isinstance(e, Tensor) else op.scalar(e, like) for e in given)
    if op.dtype(a) != op.dtype(b):
        raise UnsupportedError(f"{op.dtype(a)} and {op.dtype(b)}")
    return a, b


def _arithmetic(op: KerasLayer) -> Tensor:
    a, b = _operands(op)
    name = ARITHMETIC[op.at.type]
    if name == "Div" and not op.dtype(a).startswith("float") or op.dtype(a) == "bool":
        raise UnsupportedError(f"of {op.dtype(a)}")
    return Tensor(op.emit(name, a, b))


def _not_equal(op: KerasLayer) -> Tensor:
    return Tensor(op.emit("Not", op.emit("Equal", *_operands(op))))


def _compared(op: KerasLayer) -> Tensor:
    return Tensor(op.emit(_COMPARED[op.at.type], *_operands(op)))


def _axes(op: KerasLayer) -> list[int] | None:
    axis: Any = op.attribute("axis", None)
    return axis if isinstance(axis, list) or axis is None else [axis]


def _any(op: KerasLayer) -> Tensor:
    axes = _axes(op)
    over = op.ints(*(range(op.rank(op.x)) if axes is None else axes))
    numbers = op.emit("Cast", op.emit("Cast", op.x, to="bool"), to="int32")
    top = op.emit("ReduceMax", numbers, over, keepdims=int(op.flag("keepdims")))
    return Tensor(op.emit("Cast", top, to="bool"))


def _expand_dims(op: KerasLayer) -> Tensor:
    return Tensor(op.emit("Unsqueeze", op.x, op.ints(*(_axes(op) or [0]))))


def _squeeze(op: KerasLayer) -> Tensor:
    axes = _axes(op)
    if axes is None:
        raise UnsupportedError("attribute axis is missing")
    return Tensor(op.emit("Squeeze", op.x, op.ints(*axes)))


def _concatenate(op: KerasLayer) -> Tensor:
    values = [each.value for each in op.tensors]
    return Tensor(op.emit("Concat", *values, axis=op.integer("axis", 0)))


def _filled(op: KerasLayer) -> Tensor:
    """Zeros or ones, as many as a value has elements; bool where that is asked for."""
    dtype = op.config.get("dtype") or op.option("dtype") or op.dtype(op.x)
    fill = np.full(1, op.at.type == "OnesLike", str(dtype))
    return Tensor(op.emit("Expand", op.constant(fill, "fill"), op.emit("Shape", op.x)))


def _function(op: KerasLayer) -> Tensor:
    return Tensor(activations.apply(op, op.floats, _FUNCTIONS[op.at.type]))


OPERATIONS: dict[str, Rule] = {
    **dict.fromkeys(ARITHMETIC, _arithmetic),
    **dict.fromkeys(_COMPARED, _compared),
    **dict.fromkeys(_FUNCTIONS, _function),
    "NotEqual": _not_equal,
    "LogicalNot": lambda op: Tensor(op.emit("Not", op.x)),
    "Any": _any,
    "ExpandDims": _expand_dims,
    "Squeeze": _squeeze,
    "Concatenate": _concatenate,
    "ZerosLike": _filled,
    "OnesLike": _filled,
}
"""By the name of the class."""
