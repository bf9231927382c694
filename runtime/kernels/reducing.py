"""Kernels of ONNX operators that mix the elements of an axis, by name and meaning.

Where opsets differ these are the newest forms: axes come as an input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.runtime.kernels.registry import Attributes, row_wise


def _lowest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return False
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _highest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return True
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


Reduction = Callable[..., Any]
_REDUCTIONS: dict[str, Reduction] = {
    "Sum": lambda a, **over: a.sum(**over),
    "Mean": lambda a, **over: a.mean(**over),
    "Prod": lambda a, **over: a.prod(**over),
    "Max": lambda a, **over: a.max(initial=_lowest(a.dtype), **over),
    "Min": lambda a, **over: a.min(initial=_highest(a.dtype), **over),
    "L1": lambda a, **over: np.abs(a).sum(**over),
    "L2": lambda a, **over: np.sqrt(np.square(a).sum(**over)),
    "SumSquare": lambda a, **over: np.square(a).sum(**over),
    "LogSum": lambda a, **over: np.log(a.sum(**over)),
}


def _chosen(attributes: Attributes, a: Array, axes: Array | None = None) -> tuple[int, ...]:
    if axes is not None and axes.size:
        return tuple(axes.tolist())
    return () if attributes.get("noop_with_empty_axes", 0) else tuple(range(a.ndim))


def _reduces(reduction: Reduction) -> Callable[..., Array]:
    def run(attributes: Attributes, a: Array, axes: Array | None = None) -> Array:
        over = _chosen(attributes, a, axes)
        if not over and a.ndim:
            return a
        out = reduction(a, axis=over, keepdims=bool(attributes.get("keepdims", 1)))
        return np.asarray(out).astype(a.dtype, copy=False)

    return run


for name, reduction in _REDUCTIONS.items():
    row_wise(f"Reduce{name}", axes=_chosen)(_reduces(reduction))


@row_wise("ReduceLogSumExp", axes=_chosen)
def _reduce_log_sum_exp(attributes: Attributes, a: Array, axes: Array | None = None) -> Array:
    over = _chosen(attributes, a, axes)
    top = a.max(axis=over, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    out = np.log(np.exp(a - top).sum(axis=over, keepdims=True)) + top
    if not attributes.get("keepdims", 1):
        out = out.squeeze(over)
    return out.astype(a.dtype, copy=False)


def _first_axis(attributes: Attributes, *_: Any) -> list[int]:
    return [attributes.get("axis", 0)]


def _last_axis(attributes: Attributes, *_: Any) -> list[int]:
    return [attributes.get("axis", -1)]


def _extreme(find: Callable[..., Any]) -> Callable[..., Array]:
    def run(attributes: Attributes, a: Array) -> Array:
        axis, keep = attributes.get("axis", 0), bool(attributes.get("keepdims", 1))
        if not a.shape[axis]:
            raise ShapeError(f"no element along axis {axis} of {a.shape}")
        if not attributes.get("select_last_index", 0):
            return find(a, axis=axis, keepdims=keep)
        return a.shape[axis] - 1 - find(np.flip(a, axis), axis=axis, keepdims=keep)

    return run


row_wise("ArgMax", axes=_first_axis)(_extreme(np.argmax))
row_wise("ArgMin", axes=_first_axis)(_extreme(np.argmin))


def _shifted(attributes: Attributes, a: Array) -> tuple[Array, int]:
    axis = attributes.get("axis", -1)
    return a - a.max(axis=axis, keepdims=True, initial=-np.inf), axis


@row_wise("Softmax", axes=_last_axis)
def _softmax(attributes: Attributes, a: Array) -> Array:
    shifted, axis = _shifted(attributes, a)
    e = np.exp(shifted)
    return e / e.sum(axis=axis, keepdims=True)


@row_wise("LogSoftmax", axes=_last_axis)
def _log_softmax(attributes: Attributes, a: Array) -> Array:
    shifted, axis = _shifted(attributes, a)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


@row_wise("CumSum", axes=lambda _, a, axis: [int(axis)])
def _cum_sum(attributes: Attributes, a: Array, axis: Array) -> Array:
    at = int(axis.reshape(()))
    ordered = np.flip(a, at) if attributes.get("reverse", 0) else a
    out = np.cumsum(ordered, axis=at, dtype=a.dtype)
    if attributes.get("exclusive", 0):
        out = out - ordered
    return np.flip(out, at) if attributes.get("reverse", 0) else out


@row_wise("TopK", axes=_last_axis)
def _top_k(attributes: Attributes, a: Array, k: Array) -> tuple[Array, Array]:
    """(values, indices) in order; of equal ones the lower index comes first."""
    axis, count = attributes.get("axis", -1), int(k.reshape(-1)[0])
    size = a.shape[axis]
    if not 0 <= count <= size:
        raise ShapeError(f"k: expected at most {size}, got {count}")
    if attributes.get("largest", 1):
        order = size - 1 - np.flip(np.argsort(np.flip(a, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(a, axis=axis, kind="stable")
    at = np.take(order, np.arange(count), axis=axis)
    return np.take_along_axis(a, at, axis=axis), at


def _normalized_axes(attributes: Attributes, a: Array, *_: Any) -> range:
    axis = attributes.get("axis", -1)
    return range(axis + a.ndim if axis < 0 else axis, a.ndim)


@row_wise("LayerNormalization", axes=_normalized_axes)
def _layer_normalization(
    attributes: Attributes, a: Array, scale: Array, bias: Array | None = None
) -> tuple[Array, Array, Array]:
    """(y, mean, 1 / standard deviation), the statistics of halves in float32."""
    over = tuple(_normalized_axes(attributes, a))
    wide = a.astype(np.float32) if a.dtype == np.float16 else a
    mean = wide.mean(axis=over, keepdims=True)
    centred = wide - mean
    variance = np.square(centred).mean(axis=over, keepdims=True)
    inverse = 1 / np.sqrt(variance + wide.dtype.type(attributes.get("epsilon", 1e-5)))
    y = (centred * inverse).astype(a.dtype) * scale
    return (y if bias is None else y + bias), mean, inverse


@row_wise("BatchNormalization")
def _batch_normalization(
    attributes: Attributes, a: Array, scale: Array, bias: Array, mean: Array, variance: Array
) -> Array:
    """Inference only: over axis 1, with the statistics that training left."""
    if attributes.get("training_mode", 0):
        raise ShapeError("attribute training_mode=1: only inference is run")
    columns = (1, -1, *[1] * (a.ndim - 2))
    epsilon = variance.dtype.type(attributes.get("epsilon", 1e-5))
    factor = (scale / np.sqrt(variance + epsilon)).reshape(columns)
    return (a - mean.reshape(columns)) * factor + bias.reshape(columns)


@row_wise("Dropout")
def _dropout(
    _: Attributes, a: Array, ratio: Array | None = None, training: Array | None = None
) -> tuple[Array, Array]:
    """(a, a mask of ones): in inference nothing is dropped."""
    if training is not None and training.any():
        raise ShapeError("input training_mode is true: only inference is run")
    return a, np.ones(a.shape, bool)
