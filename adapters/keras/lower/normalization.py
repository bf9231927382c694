"""The rules of layers that normalize, at inference.

Formulas: documentation of keras.layers of these names.
"""

from __future__ import annotations

import numpy as np

from onernn.adapters.keras.lower.layer import KerasLayer, rule
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError


def _axes(op: KerasLayer) -> list[int]:
    told = op.attribute("axis", None)
    told = -1 if told is None else told
    listed = told if isinstance(told, list) else [told]
    rank = op.rank(op.x)
    if not listed or not all(type(axis) is int and -rank <= axis < rank for axis in listed):
        raise UnsupportedError(f"attribute axis={told!r}: the input has {rank} axes")
    return sorted(axis % rank for axis in listed)


def _affine(op: KerasLayer) -> tuple[str, ...]:
    """The names of the weights behind the norm."""
    return ("gamma",) * op.flag("scale", True) + ("beta",) * op.flag("center", True)


@rule("BatchNormalization", masks=True)
def _batch(op: KerasLayer) -> str:
    """By the statistics that training left."""
    op.only("renorm", False)
    for name in ("renorm_clipping", "renorm_momentum"):
        op.attribute(name, None)
    x, axes = op.floats, _axes(op)
    if len(axes) != 1:
        raise UnsupportedError(f"attribute axis={axes}: expected one")
    names = _affine(op)
    arrays = op.weights(*names, "moving_mean", "moving_variance")
    held = dict(zip((*names, "mean", "variance"), arrays, strict=True))
    epsilon = op.number("epsilon", 1e-3)
    factor = 1 / np.sqrt(held["variance"].astype(np.float64) + epsilon)
    factor = factor * held["gamma"] if "gamma" in held else factor
    shape = [1] * op.rank(x)
    shape[axes[0]] = -1

    def along(array: Array, name: str) -> str:
        return op.constant(array.astype(op.compute).reshape(shape), name)

    y = op.emit("Mul", op.emit("Sub", x, along(held["mean"], "mean")), along(factor, "factor"))
    return op.emit("Add", y, along(held["beta"], "beta")) if "beta" in held else y


@rule("LayerNormalization", masks=True)
def _layer(op: KerasLayer) -> str:
    x, axes, rank = op.floats, _axes(op), op.rank(op.x)
    op.only("rms_scaling", False)
    if axes != [*range(axes[0], rank)]:
        raise UnsupportedError(f"attribute axis={axes}: only the last axes, of {rank}")
    names = _affine(op)
    held = dict(zip(names, op.weights(*names), strict=True))
    sizes = op.shape(x)[axes[0] :]
    if "gamma" not in held and None in sizes:
        raise UnsupportedError("axes of open sizes")
    scale = held.get("gamma", np.ones([size or 1 for size in sizes], op.compute))
    given = [op.constant(scale, "gamma")]
    given += [op.constant(held["beta"], "beta")] if "beta" in held else []
    return op.emit(
        "LayerNormalization", x, *given, axis=axes[0], epsilon=op.number("epsilon", 1e-3)
    )


@rule("RMSNormalization")
def _rms(op: KerasLayer) -> str:
    x, axes = op.floats, _axes(op)
    if axes != [op.rank(x) - 1]:
        raise UnsupportedError(f"attribute axis={axes}: only the last one")
    (scale,) = op.weights("scale")
    mean = op.emit("ReduceMean", op.emit("Mul", x, x), op.ints(-1), keepdims=1)
    root = op.emit("Sqrt", op.emit("Add", mean, op.scalar(op.number("epsilon", 1e-6), x)))
    return op.emit("Mul", op.emit("Div", x, root), op.constant(scale, "scale"))


@rule("GroupNormalization", masks=True)
def _group(op: KerasLayer) -> str:
    x, axes, rank = op.floats, _axes(op), op.rank(op.x)
    if axes not in ([1], [rank - 1]):
        raise UnsupportedError(f"attribute axis={axes}: expected the first or the last one")
    last = axes == [rank - 1]
    channels = op.shape(x)[axes[0]]
    if channels is None:
        raise UnsupportedError("channels of an open number")
    names = _affine(op)
    held = dict(zip(names, op.weights(*names), strict=True))
    groups = op.integer("groups", 32)
    groups = channels if groups == -1 else groups
    given = [
        op.constant(held.get(name, np.full(channels, fill, op.compute)), name)
        for name, fill in (("gamma", 1), ("beta", 0))
    ]
    x = op.channels_first(x) if last and rank > 2 else x
    epsilon = op.number("epsilon", 1e-3)
    y = op.emit("GroupNormalization", x, *given, num_groups=groups, epsilon=epsilon)
    return op.channels_last(y) if last and rank > 2 else y
