"""ONNX operators that work element by element, by name and meaning.

Formulas: ONNX operator specification. dtype in is dtype out, except where the operator says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from types import MappingProxyType
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import REQUIRED, Compute, TypeRule, define
from onernn.core.sizes import Size
from onernn.core.spec import Activation
from onernn.core.types import Type
from onernn.operators import growth
from onernn.operators.activations import function
from onernn.operators.rules import broadcast, common, elementwise, of_dtype, same, truths


def _elementwise(
    name: str,
    inputs: str,
    compute: Compute,
    attributes: Mapping[str, Any] = MappingProxyType({}),
    type: TypeRule = elementwise,
    **more: Any,
) -> None:
    define(
        name,
        kind="elementwise",
        inputs=inputs,
        attributes=attributes,
        type=type,
        compute=compute,
        **{"growth": growth.broadcast, **more},
    )


for _name, _unary in {
    "Neg": np.negative,
    "Abs": np.abs,
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sign": np.sign,
    "Reciprocal": lambda x: 1 / x,
    "Sin": np.sin,
    "Cos": np.cos,
}.items():
    _elementwise(_name, "x", lambda _, x, f=_unary: f(x))
_elementwise("IsNaN", "x", lambda _, x: np.isnan(x), type=of_dtype("bool"))
_elementwise("Not", "x", lambda _, x: np.logical_not(x), type=of_dtype("bool"), sized=True)

for _name, _sum in {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}.items():
    _elementwise(_name, "a b", lambda _, a, b, f=_sum: f(a, b), sized=True)


def _compared(compare: Any, a: Array, b: Array) -> Any:
    """Sizes are compared where the answer is the same whatever their names stand for."""
    if object not in (a.dtype, b.dtype):
        return compare(a, b)
    apart = np.asarray(a - b, object)
    signs = [Size.of(each).signs or (-1, 0, 1) for each in apart.flat]
    answers = [{bool(compare(sign, 0)) for sign in each} for each in signs]
    if any(len(each) > 1 for each in answers):
        raise ShapeError("a call tells which of two sizes is larger")
    return np.array([each.pop() for each in answers]).reshape(apart.shape)


for _name, _binary in {
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
}.items():
    _elementwise(
        _name, "a b", lambda _, a, b, f=_binary: _compared(f, a, b), type=truths, sized=True
    )
for _name, _logic in {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}.items():
    _elementwise(_name, "a b", lambda _, a, b, f=_logic: f(a, b), type=truths, sized=True)

for _name, _joining in {"Min": np.minimum, "Max": np.maximum, "Sum": np.add}.items():
    _elementwise(
        _name,
        "first rest*",
        lambda _, *arrays, f=_joining: reduce(f, arrays),
        keeps=_joining is not np.add,
    )


def _mean(_: Any, *arrays: Array) -> Array:
    total: Array = reduce(np.add, arrays)
    return total / total.dtype.type(len(arrays))


_elementwise("Mean", "first rest*", _mean)


def _div(_: Any, a: Array, b: Array) -> Array:
    """Integers are cut towards zero, as C does."""
    if a.dtype == object:  # sizes: whole quotients only
        return a // b
    if a.dtype.kind not in "iu":
        return a / b
    if (b == 0).any():
        raise ShapeError("integer division by zero")
    cut = (a % b != 0) & ((a < 0) != (b < 0))
    return a // b + cut.astype(a.dtype)


_elementwise("Div", "a b", _div, sized=True)


def _mod(at: Any, a: Array, b: Array) -> Array:
    """The sign of the divisor, or with fmod=1 of the dividend."""
    if a.dtype.kind in "iu" and (b == 0).any():
        raise ShapeError("integer division by zero")
    if at.fmod:
        return np.fmod(a, b)
    if a.dtype.kind == "f":
        raise ShapeError("attribute fmod=0 is defined for integers only")
    return np.mod(a, b)


_elementwise("Mod", "a b", _mod, {"fmod": 0})


def _like_first(_: Context, a: Type, b: Type) -> Type:
    return Type(a.dtype, broadcast(a.shape, b.shape))


_elementwise(
    "Pow", "a b", lambda _, a, b: np.power(a, b).astype(a.dtype, copy=False), type=_like_first
)


def _clip(_: Any, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """Where the bounds cross, the upper one holds."""
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


_elementwise("Clip", "x low? high?", _clip, keeps=True)


def _chosen(_: Context, condition: Type, a: Type, b: Type) -> Type:
    return Type(common(a, b), broadcast(condition.shape, a.shape, b.shape))


_elementwise("Where", "condition a b", lambda _, c, a, b: np.where(c, a, b), type=_chosen)


def _cast(at: Any, x: Array) -> Array:
    """``to`` is NumPy's name of a dtype, not ONNX's number; bfloat16 is float32 rounded to it."""
    if x.dtype == object:  # sizes
        return _compared(np.not_equal, x, np.array(0)) if at.to == "bool" else x
    if at.to != "bfloat16":
        return x.astype(at.to)
    bits = x.astype(np.float32).view(np.uint32)
    even = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)
    rounded = (even & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded).astype(np.float32)


def _cast_type(context: Context, x: Type) -> Type:
    to = context.at.to
    return Type("float32" if to == "bfloat16" else np.dtype(to).name, x.shape)


_elementwise(
    "Cast",
    "x",
    _cast,
    {"to": REQUIRED},
    type=_cast_type,
    sized=True,
    keeps=True,
    growth=growth.wide,
)
_elementwise(
    "CastLike",
    "x like",
    lambda _, x, like: x.astype(like.dtype),
    type=lambda _, x, like: Type(like.dtype, x.shape),
    keeps=True,
    growth=growth.wide,
)

_ERF = np.vectorize(math.erf, otypes=[float])
_elementwise("Erf", "x", lambda _, x: _ERF(x).astype(x.dtype), growth=growth.wide)


def _gelu(at: Any, x: Array) -> Array:
    of = x.dtype.type
    if at.approximate == "tanh":
        inner = of(math.sqrt(2 / math.pi)) * (x + of(0.044715) * x * x * x)
        return of(0.5) * x * (of(1) + np.tanh(inner))
    return of(0.5) * x * (of(1) + _ERF(x * of(math.sqrt(0.5))).astype(x.dtype))


_elementwise("Gelu", "x", _gelu, {"approximate": "none"}, since=20, growth=growth.wide)
_elementwise("PRelu", "x slope", lambda _, x, slope: np.where(x < 0, x * slope, x))


def _selu(at: Any, x: Array) -> Array:
    alpha, gamma = x.dtype.type(at.alpha), x.dtype.type(at.gamma)
    return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


_elementwise(
    "Selu",
    "x",
    _selu,
    {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
)


def _celu(at: Any, x: Array) -> Array:
    alpha = x.dtype.type(at.alpha)
    return np.maximum(x, 0) + np.minimum(alpha * np.expm1(x / alpha), 0)


_elementwise("Celu", "x", _celu, {"alpha": 1.0})


def _hard_swish(_: Any, x: Array) -> Array:
    of = x.dtype.type
    return x * np.clip(x * of(1 / 6) + of(0.5), 0, 1).astype(x.dtype)


_elementwise("HardSwish", "x", _hard_swish, since=14)


def _gate_function(name: str, **numbers: float) -> None:
    """Those that gates may go through, too."""

    def compute(at: Any, x: Array) -> Array:
        return function(Activation(name.lower(), *(getattr(at, key) for key in numbers)))(x)

    _elementwise(name, "x", compute, numbers)


for _name in ("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign"):
    _gate_function(_name)
_gate_function("LeakyRelu", alpha=0.01)
_gate_function("ThresholdedRelu", alpha=1.0)
_gate_function("HardSigmoid", alpha=0.2, beta=0.5)
_gate_function("Elu", alpha=1.0)

define(
    "Dropout",
    kind="elementwise",
    keeps=True,
    inputs="x ratio? training?",
    outputs=2,
    type=lambda _, x, *__: (Type(x.dtype, x.shape), Type("bool", x.shape)),
    compute=lambda _, *given: _dropout(*given),
)


def _dropout(
    x: Array, ratio: Array | None = None, training: Array | None = None
) -> tuple[Array, Array]:
    """(x, a mask of ones): in inference nothing is dropped."""
    if training is not None and training.any():
        raise ShapeError("input training_mode is true: only inference is run")
    return x, np.ones(x.shape, bool)


define(
    "GateLayout",
    kind="moves",
    inputs="gates",
    attributes={"layout": REQUIRED},
    since=0,
    type=same,
    compute=lambda at, gates: at.layout(gates),
)
