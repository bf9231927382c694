"""The functions that gates may apply, by their ONNX names in lower case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.spec import Activation

Function = Callable[[Array], Array]


def sigmoid(a: Array) -> Array:
    """Computes 1 / (1 + exp(-a)) without overflow: no argument of exp is positive."""
    small = np.exp(-np.abs(a))
    return np.where(a >= 0, 1, small) / (1 + small)


def _clip_affine(a: Array, alpha: Array, beta: Array) -> Array:
    return np.maximum(0, np.minimum(1, alpha * a + beta))


_OF_ONNX: dict[str, tuple[Callable[..., Array], *tuple[float | None, ...]]] = {
    "Sigmoid": (sigmoid,),
    "Tanh": (np.tanh,),
    "Relu": (lambda a: np.maximum(a, 0),),
    "Identity": (lambda a: a,),
    "Softsign": (lambda a: a / (1 + np.abs(a)),),
    "Softplus": (lambda a: np.logaddexp(0, a).astype(a.dtype),),
    "Affine": (lambda a, alpha, beta: alpha * a + beta, None, None),
    "LeakyRelu": (lambda a, alpha: np.where(a < 0, alpha * a, a), 0.01),
    # no default for alpha: ONNX says 1, but ONNX Runtime uses 0
    "ThresholdedRelu": (lambda a, alpha: np.where(a > alpha, a, 0).astype(a.dtype), None),
    "ScaledTanh": (lambda a, alpha, beta: alpha * np.tanh(beta * a), None, None),
    "HardSigmoid": (_clip_affine, 0.2, 0.5),
    "Elu": (lambda a, alpha: np.where(a < 0, alpha * np.expm1(np.minimum(a, 0)), a), 1.0),
}
FUNCTIONS = {name.lower(): compute for name, (compute, *_) in _OF_ONNX.items()}
NAMES: Mapping[str, str] = MappingProxyType({name.lower(): name for name in _OF_ONNX})
"""Each function's name in ONNX's spelling; operators that compute a function have the same name."""

DEFAULTS: Mapping[str, tuple[float | None, ...]] = MappingProxyType(
    {name.lower(): tuple(numbers) for name, (_, *numbers) in _OF_ONNX.items()}
)
"""The default alpha and beta of each function that takes them; None for a value without a
default.
"""


def complete(activation: Activation) -> Activation:
    """Returns the activation with its own alpha and beta, or with the defaults of its function.

    The defaults equal the defaults of the ONNX operators of the same names. Raises
    `UnsupportedError` for a name that is not listed in the ONNX specification of RNN, for an alpha
    or beta that the function does not take, and for a missing one without a default.
    """
    name, *given = activation
    if name not in FUNCTIONS:
        raise UnsupportedError(f"activation {activation}: expected one of {', '.join(FUNCTIONS)}")
    default = DEFAULTS[name]
    if any(number is not None for number in given[len(default) :]):
        raise UnsupportedError(
            f"activation {activation}: expected at most {len(default)} numbers for {name}"
        )
    numbers = [d if g is None else g for d, g in zip(default, given, strict=False)]
    if None in numbers:
        raise UnsupportedError(
            f"activation {activation}: expected alpha and beta; {name} has no default that all"
            " frameworks share"
        )
    return Activation(name, *numbers)


def function(activation: Activation) -> Function:
    """Returns the NumPy function of an activation; it returns an array in the dtype of its
    argument.

    Raises the same errors as `complete`.
    """
    name, *both = complete(activation)
    compute, numbers = FUNCTIONS[name], [number for number in both if number is not None]
    # alpha and beta get the dtype of a: NumPy 1 would compute a float32 scalar and a Python float
    # in float64.
    return lambda a: compute(a, *map(a.dtype.type, numbers)) if numbers else compute(a)
