"""The functions that gates may go through, by their ONNX names in lower case."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.spec import Activation

Function = Callable[[Array], Array]


def sigmoid(a: Array) -> Array:
    """1 / (1 + exp(-a)), without overflow: exp only ever sees what is not positive."""
    small = np.exp(-np.abs(a))
    return np.where(a >= 0, 1, small) / (1 + small)


def function(activation: Activation) -> Function:
    """The NumPy function of an activation; dtype in is dtype out.

    Formulas: ONNX operator specification, RNN, attribute ``activations``. Raises
    `UnsupportedError` for a name that it does not list.
    """
    name, alpha, beta = activation
    plain: dict[str, Function] = {
        "sigmoid": sigmoid,
        "tanh": np.tanh,
        "relu": lambda a: np.maximum(a, 0),
        "identity": lambda a: a,
    }
    if name not in plain:
        raise UnsupportedError(f"activation {activation}: expected one of {', '.join(plain)}")
    return plain[name]
