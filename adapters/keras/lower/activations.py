"""Activation functions by their names in configurations.

Formulas: documentation of keras.activations. hard_sigmoid is x / 6 + 0.5 between 0 and 1 in
Keras 3, and 0.2 x + 0.5 before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onernn.adapters.keras.lower.layer import KerasLayer
from onernn.core.errors import UnsupportedError
from onernn.core.spec import Activation
from onernn.operators.activations import NAMES

_LIKE = {"swish": "silu", "hard_swish": "hard_silu", "keras_relu6": "relu6"}


def name_of(told: Any) -> str:
    """The name of Keras's own function. Raises `UnsupportedError` for one of a user's."""
    if told is None:
        return "linear"
    if isinstance(told, dict):
        name, known = told.get("config"), (None, "function", told.get("config"))
        if (
            told.get("class_name") != "function"
            or told.get("module") not in ("keras.activations", "builtins")
            or told.get("registered_name") not in known
        ):
            raise UnsupportedError(f"activation {name!r:.100}: a function of its own")
        told = name
    if not isinstance(told, str):
        raise UnsupportedError(f"activation {told!r:.100}: expected a name")
    return _LIKE.get(told, told)


def of_gates(told: Any, major: int) -> Activation | None:
    """The function as gates of our layers have it, None where they have it not."""
    name = name_of(told)
    known = {
        "linear": Activation("identity"),
        "hard_sigmoid": Activation("hardsigmoid", 1 / 6 if major > 2 else 0.2, 0.5),
        "leaky_relu": Activation("leakyrelu", 0.2),
        "elu": Activation("elu", 1.0),
    }
    plain = ("sigmoid", "tanh", "relu", "softsign", "softplus")
    return Activation(name) if name in plain else known.get(name)


def apply(op: KerasLayer, x: str, told: Any) -> str:
    """A function of a value. Raises `UnsupportedError` for one that is not known."""
    gate = of_gates(told, op.major)
    if gate is not None:
        if gate.name == "identity":
            return x
        numbers = zip(("alpha", "beta"), gate[1:], strict=True)
        return op.emit(NAMES[gate.name], x, **{k: v for k, v in numbers if v is not None})
    name = name_of(told)
    if name not in _FUNCTIONS:
        raise UnsupportedError(f"activation {name!r}: not known")
    return _FUNCTIONS[name](op, x)


def _clipped(op: KerasLayer, x: str, low: float, high: float) -> str:
    return op.emit("Clip", x, op.scalar(low, x), op.scalar(high, x))


def _hard_silu(op: KerasLayer, x: str) -> str:
    return op.emit("Mul", x, op.emit("HardSigmoid", x, alpha=1 / 6, beta=0.5))


def _mish(op: KerasLayer, x: str) -> str:
    return op.emit("Mul", x, op.emit("Tanh", op.emit("Softplus", x)))


def _log_sigmoid(op: KerasLayer, x: str) -> str:
    return op.emit("Neg", op.emit("Softplus", op.emit("Neg", x)))


_FUNCTIONS: dict[str, Callable[[KerasLayer, str], str]] = {
    "exponential": lambda op, x: op.emit("Exp", x),
    "softmax": lambda op, x: op.emit("Softmax", x, axis=-1),
    "log_softmax": lambda op, x: op.emit("LogSoftmax", x, axis=-1),
    "relu6": lambda op, x: _clipped(op, x, 0, 6),
    "hard_tanh": lambda op, x: _clipped(op, x, -1, 1),
    "selu": lambda op, x: op.emit("Selu", x),
    "gelu": lambda op, x: op.emit("Gelu", x),
    "celu": lambda op, x: op.emit("Celu", x),
    "silu": lambda op, x: op.emit("Mul", x, op.emit("Sigmoid", x)),
    "hard_silu": _hard_silu,
    "mish": _mish,
    "log_sigmoid": _log_sigmoid,
    "tanh_shrink": lambda op, x: op.emit("Sub", x, op.emit("Tanh", x)),
}
