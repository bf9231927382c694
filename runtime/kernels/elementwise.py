"""Kernels of ONNX operators that work element by element, by name and meaning.

Formulas: ONNX operator specification. dtype in is dtype out, except where the operator says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from onernn.backend.activations import function
from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.spec import Activation
from onernn.runtime.kernels.registry import Attributes, row_wise

for name, unary in {
    "Identity": lambda a: a,
    "Neg": np.negative,
    "Abs": np.abs,
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sign": np.sign,
    "Reciprocal": lambda a: 1 / a,
    "Sin": np.sin,
    "Cos": np.cos,
    "IsNaN": np.isnan,
    "Not": np.logical_not,
}.items():
    row_wise(name)(lambda _, a, unary=unary: unary(a))

for name, binary in {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}.items():
    row_wise(name)(lambda _, a, b, binary=binary: binary(a, b))

for name, joining in {"Min": np.minimum, "Max": np.maximum, "Sum": np.add}.items():
    row_wise(name)(lambda _, *arrays, joining=joining: reduce(joining, arrays))


@row_wise("Mean")
def _mean(_: Attributes, *arrays: Array) -> Array:
    total: Array = reduce(np.add, arrays)
    return total / total.dtype.type(len(arrays))


@row_wise("Div")
def _div(_: Attributes, a: Array, b: Array) -> Array:
    """Integers are cut towards zero, as C does."""
    if a.dtype.kind not in "iu":
        return a / b
    if (b == 0).any():
        raise ShapeError("integer division by zero")
    cut = (a % b != 0) & ((a < 0) != (b < 0))
    return a // b + cut.astype(a.dtype)


@row_wise("Mod")
def _mod(attributes: Attributes, a: Array, b: Array) -> Array:
    """The sign of the divisor, or with fmod=1 of the dividend."""
    if a.dtype.kind in "iu" and (b == 0).any():
        raise ShapeError("integer division by zero")
    if attributes.get("fmod", 0):
        return np.fmod(a, b)
    if a.dtype.kind == "f":
        raise ShapeError("attribute fmod=0 is defined for integers only")
    return np.mod(a, b)


@row_wise("Pow")
def _pow(_: Attributes, a: Array, b: Array) -> Array:
    return np.power(a, b).astype(a.dtype, copy=False)


@row_wise("Clip")
def _clip(_: Attributes, a: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """Where the bounds cross, the upper one holds."""
    a = a if low is None else np.maximum(a, low)
    return a if high is None else np.minimum(a, high)


@row_wise("Where")
def _where(_: Attributes, condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


@row_wise("Cast")
def _cast(attributes: Attributes, a: Array) -> Array:
    """``to`` is NumPy's name of a dtype, not ONNX's number; bfloat16 is float32 rounded to it."""
    if attributes["to"] != "bfloat16":
        return a.astype(attributes["to"])
    bits = a.astype(np.float32).view(np.uint32)
    even = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)
    rounded = (even & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(a), np.float32(np.nan), rounded).astype(np.float32)


@row_wise("CastLike")
def _cast_like(_: Attributes, a: Array, like: Array) -> Array:
    return a.astype(like.dtype)


_ERF = np.vectorize(math.erf, otypes=[float])


@row_wise("Erf")
def _erf(_: Attributes, a: Array) -> Array:
    return _ERF(a).astype(a.dtype)


@row_wise("Gelu")
def _gelu(attributes: Attributes, a: Array) -> Array:
    of = a.dtype.type
    if attributes.get("approximate", "none") == "tanh":
        inner = of(math.sqrt(2 / math.pi)) * (a + of(0.044715) * a * a * a)
        return of(0.5) * a * (of(1) + np.tanh(inner))
    return of(0.5) * a * (of(1) + _ERF(a * of(math.sqrt(0.5))).astype(a.dtype))


@row_wise("PRelu")
def _prelu(_: Attributes, a: Array, slope: Array) -> Array:
    return np.where(a < 0, a * slope, a)


@row_wise("Selu")
def _selu(attributes: Attributes, a: Array) -> Array:
    alpha = a.dtype.type(attributes.get("alpha", 1.67326319217681884765625))
    gamma = a.dtype.type(attributes.get("gamma", 1.05070102214813232421875))
    return gamma * np.where(a > 0, a, alpha * np.expm1(np.minimum(a, 0)))


@row_wise("Celu")
def _celu(attributes: Attributes, a: Array) -> Array:
    alpha = a.dtype.type(attributes.get("alpha", 1.0))
    return np.maximum(a, 0) + np.minimum(alpha * np.expm1(a / alpha), 0)


@row_wise("HardSwish")
def _hard_swish(_: Attributes, a: Array) -> Array:
    of = a.dtype.type
    return a * np.clip(a * of(1 / 6) + of(0.5), 0, 1).astype(a.dtype)


def _gate_function(name: str, *defaults: float) -> Callable[[Attributes, Array], Array]:
    """Those that gates may go through, too."""
    numbers = dict(zip(("alpha", "beta"), defaults, strict=False))

    def run(attributes: Attributes, a: Array) -> Array:
        chosen: Any = {key: attributes.get(key, value) for key, value in numbers.items()}
        return function(Activation(name, **chosen))(a)

    return run


for name in ("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign"):
    row_wise(name)(_gate_function(name.lower()))
row_wise("LeakyRelu")(_gate_function("leakyrelu", 0.01))
row_wise("ThresholdedRelu")(_gate_function("thresholdedrelu", 1.0))
row_wise("HardSigmoid")(_gate_function("hardsigmoid", 0.2, 0.5))
row_wise("Elu")(_gate_function("elu", 1.0))
