"""ONNX operators that normalize: by their own statistics, or by those that training left."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import REQUIRED, define
from onernn.core.types import Type
from onernn.operators import growth
from onernn.operators.rules import ONE, same


def _normalized_axes(at: Any, rank: int, *_: Any) -> range:
    return range(at.axis + rank if at.axis < 0 else at.axis, rank)


def _layer_normalization(
    at: Any, x: Array, scale: Array, bias: Array | None = None
) -> tuple[Array, Array, Array]:
    """(y, mean, 1 / standard deviation), the statistics of halves in float32."""
    over = tuple(_normalized_axes(at, x.ndim))
    mean = x.mean(axis=over, keepdims=True)
    centred = x - mean
    variance = np.square(centred).mean(axis=over, keepdims=True)
    inverse = 1 / np.sqrt(variance + x.dtype.type(at.epsilon))
    y = centred * inverse * scale
    return (y if bias is None else y + bias), mean, inverse


def _normalized(
    context: Context, x: Type, scale: Type, bias: Type | None = None
) -> tuple[Type, Type, Type]:
    if x.shape is None:
        return Type(x.dtype), Type(), Type()
    over = _normalized_axes(context.at, len(x.shape))
    wide = "float32" if x.dtype == "float16" else x.dtype
    statistic = Type(wide, tuple(ONE if k in over else size for k, size in enumerate(x.shape)))
    return Type(x.dtype, x.shape), statistic, statistic


define(
    "LayerNormalization",
    kind="mixes",
    inputs="x scale bias?",
    attributes={"axis": -1, "epsilon": 1e-5},
    outputs=3,
    mixes=_normalized_axes,
    type=_normalized,
    compute=_layer_normalization,
    since=17,
    growth=growth.layer_normalization,
)


def _per_channel(x: Array, scale: Array, bias: Array, **more: Array) -> list[Array]:
    """One number a channel, axis 1, each. Raises `ShapeError`."""
    channels = x.shape[1] if x.ndim > 1 else 1
    given = {"scale": scale, "B": bias, **more}
    for name, each in given.items():
        if each.shape != (channels,):
            raise ShapeError(f"{name}: expected ({channels},), got {each.shape}")
    return [each.reshape(-1, *[1] * (x.ndim - 2)) for each in given.values()]


def _batch_normalization(
    at: Any, x: Array, scale: Array, bias: Array, mean: Array, variance: Array
) -> Array:
    """Inference only: over axis 1, with the statistics that training left."""
    if at.training_mode:
        raise ShapeError("attribute training_mode=1: only inference is run")
    scale, bias, mean, variance = _per_channel(x, scale, bias, mean=mean, var=variance)
    factor = scale / np.sqrt(variance + variance.dtype.type(at.epsilon))
    y = (x - mean) * factor + bias
    return y.astype(x.dtype, copy=False)  # the statistics of halves may be float32


define(
    "BatchNormalization",
    kind="mixes",
    inputs="x scale bias mean variance",
    attributes={"epsilon": 1e-5, "training_mode": 0},
    type=same,
    compute=_batch_normalization,
    growth=growth.wide,
)


def _own(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """x by its own mean and variance along axes."""
    centred = x - x.mean(axis=axes, keepdims=True)
    variance = np.square(centred).mean(axis=axes, keepdims=True)
    return centred / np.sqrt(variance + x.dtype.type(epsilon))


def _instance_normalization(at: Any, x: Array, scale: Array, bias: Array) -> Array:
    """Over what is behind the channels."""
    factor, added = _per_channel(x, scale, bias)
    return _own(x, tuple(range(2, x.ndim)), at.epsilon) * factor + added


define(
    "InstanceNormalization",
    kind="mixes",
    inputs="x scale bias",
    attributes={"epsilon": 1e-5},
    since=7,
    type=same,
    compute=_instance_normalization,
    growth=growth.wide,
)


def _group_normalization(at: Any, x: Array, scale: Array, bias: Array) -> Array:
    """Over channels that follow each other, and what is behind them."""
    factor, added = _per_channel(x, scale, bias)
    groups = at.num_groups
    if groups < 1 or x.ndim < 2 or x.shape[1] % groups:
        raise ShapeError(f"attribute num_groups={groups}: channels of {x.shape}")
    rows = x.reshape(len(x), groups, x.shape[1] // groups * math.prod(x.shape[2:]))
    return _own(rows, (2,), at.epsilon).reshape(x.shape) * factor + added


define(
    "GroupNormalization",
    kind="mixes",
    inputs="x scale bias",
    attributes={"epsilon": 1e-5, "num_groups": REQUIRED},
    since=21,
    type=same,
    compute=_group_normalization,
    growth=growth.wide,
)
