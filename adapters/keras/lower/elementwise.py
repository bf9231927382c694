"""The rules of activations, of layers that rest at inference, and of those that make masks.

Formulas: documentation of keras.layers of these names.
"""

from __future__ import annotations

import numpy as np

from onernn.adapters.keras.lower import activations
from onernn.adapters.keras.lower.layer import KerasLayer, Tensor, rule
from onernn.core.errors import UnsupportedError


@rule(
    "Dropout",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    "GaussianDropout",
    "GaussianNoise",
    "AlphaDropout",
    "ActivityRegularization",
    "Identity",
    masks=True,
)
def _nothing(op: KerasLayer) -> str:
    """Training's layers."""
    op.attribute("data_format", None)
    return op.x


@rule("Activation", masks=True)
def _activation(op: KerasLayer) -> str:
    told = op.config.get("activation")
    op.attribute("activation", None)
    return activations.apply(op, op.floats, told)


@rule("ReLU", masks=True)
def _relu(op: KerasLayer) -> str:
    """max(x, 0), slope * (x - threshold) below the threshold, at most max_value."""
    x, threshold = op.floats, op.number("threshold", 0.0)
    slope, most = op.number("negative_slope", 0.0), op.attribute("max_value", None)
    if threshold:
        over = op.emit("GreaterOrEqual", x, op.scalar(threshold, x))
        low = op.emit("Mul", op.emit("Sub", x, op.scalar(threshold, x)), op.scalar(slope, x))
        y = op.emit("Where", over, x, low)
    else:
        y = op.emit("LeakyRelu", x, alpha=slope) if slope else op.emit("Relu", x)
    return y if most is None else op.emit("Min", y, op.scalar(op.number("max_value", 0.0), y))


@rule("LeakyReLU", masks=True)
def _leaky(op: KerasLayer) -> str:
    name = "negative_slope" if "negative_slope" in op.config else "alpha"
    return op.emit("LeakyRelu", op.floats, alpha=op.number(name, 0.3))


@rule("ELU", masks=True)
def _elu(op: KerasLayer) -> str:
    return op.emit("Elu", op.floats, alpha=op.number("alpha", 1.0))


@rule("ThresholdedReLU", masks=True)
def _thresholded(op: KerasLayer) -> str:
    return op.emit("ThresholdedRelu", op.floats, alpha=op.number("theta", 1.0))


@rule("PReLU", masks=True)
def _prelu(op: KerasLayer) -> str:
    op.attribute("shared_axes", None)
    (alpha,) = op.weights("alpha")
    return op.emit("PRelu", op.floats, op.constant(alpha, "alpha"))


@rule("Softmax", masks=True)
def _softmax(op: KerasLayer) -> str:
    op.attribute("robust_masking", False)
    if op.tensor.mask:
        raise UnsupportedError("Softmax of a tensor with a mask")
    axis = op.attribute("axis", None)
    axis = -1 if axis is None else axis
    if isinstance(axis, list) and len(axis) == 1:
        (axis,) = axis
    if type(axis) is not int:
        raise UnsupportedError(f"attribute axis={axis!r}: expected one")
    return op.emit("Softmax", op.floats, axis=axis)


@rule("Rescaling", masks=True)
def _rescaling(op: KerasLayer) -> str:
    x = op.floats
    scaled = op.emit("Mul", x, op.scalar(op.number("scale", 1.0), x))
    return op.emit("Add", scaled, op.scalar(op.number("offset", 0.0), x))


@rule("Masking")
def _masking(op: KerasLayer) -> Tensor:
    """Steps that are nothing but ``mask_value`` become zeros, and are masked."""
    x = op.x
    differs = op.emit("Not", op.emit("Equal", x, op.scalar(op.number("mask_value", 0.0), x)))
    some = op.emit("ReduceMax", op.emit("Cast", differs, to="int32"), op.ints(-1), keepdims=0)
    mask = op.emit("Cast", some, to="bool")
    column = op.emit("Unsqueeze", mask, op.ints(-1))
    return Tensor(op.emit("Where", column, x, op.scalar(0, x)), mask)


@rule("Embedding")
def _embedding(op: KerasLayer) -> Tensor:
    op.attribute("output_dim", None)
    op.attribute("sparse", False)
    ids = op.x
    if op.dtype(ids) not in ("int32", "int64"):
        ids = op.emit("Cast", ids, to="int32")
    (table,) = op.weights("embeddings")
    y = op.emit("Gather", op.constant(table, "embeddings"), ids, axis=0, non_negative=1)
    if not op.flag("mask_zero"):
        return Tensor(y)
    zero = op.constant(np.zeros((), op.dtype(op.x)), "zero")
    return Tensor(y, op.emit("Not", op.emit("Equal", op.x, zero)))
