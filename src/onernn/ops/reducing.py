"""ONNX operators that combine elements along axes: reductions and norms.

The operators have the form of ONNX's newest opset, in which axes are an input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context
from onernn.ir.operator import Axes, Axis, Path, at_axis, op, over, rank_of
from onernn.ir.types import Type
from onernn.ops.growth import wide
from onernn.ops.rules import ONE, Sizes, broadcast, integers, same, sizes_rule, with_size


def lowest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return False
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def highest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return True
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


def as_column(values: Array, axes: int) -> Array:
    """Returns a vector as an array with this number of axes: its elements are along the first axis,
    all further axes have size 1.
    """
    return values.reshape(-1, *[1] * (axes - 1))


Reduction = Callable[..., Any]


def _log_sum_exp(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    top = x.max(axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    out: Array = np.log(np.exp(x - top).sum(axis=axis, keepdims=True)) + top
    return out if keepdims else out.squeeze(axis)


_REDUCTIONS: dict[str, Reduction] = {
    "Sum": lambda x, **over: x.sum(**over),
    "Mean": lambda x, **over: x.mean(**over),
    "Prod": lambda x, **over: x.prod(**over),
    "Max": lambda x, **over: x.max(initial=lowest(x.dtype), **over),
    "Min": lambda x, **over: x.min(initial=highest(x.dtype), **over),
    "L1": lambda x, **over: np.abs(x).sum(**over),
    "L2": lambda x, **over: np.sqrt(np.square(x).sum(**over)),
    "SumSquare": lambda x, **over: np.square(x).sum(**over),
    "LogSum": lambda x, **over: np.log(x.sum(**over)),
    "LogSumExp": _log_sum_exp,
}


def _over(noop_with_empty_axes: int, rank: int, axes: Any = None) -> tuple[int, ...]:
    if axes is not None and len(axes):
        return tuple(map(int, axes))
    return () if noop_with_empty_axes else tuple(range(rank))


def _reduces(reduction: Reduction) -> Callable[..., Array]:
    def reduce(
        x: Array, axes: Axes | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Array:
        over = _over(noop_with_empty_axes, x.ndim, axes)
        out = reduction(x, axis=over, keepdims=bool(keepdims))
        return np.asarray(out).astype(x.dtype, copy=False)

    return reduce


@sizes_rule
def _reduce(context: Context, shape: Sizes, axes: Type | None = None) -> Sizes:
    noop, rank = context.attrs.noop_with_empty_axes, len(shape)
    over = {at_axis(each, rank) for each in _over(noop, rank, integers(axes))}
    return _reduce_sizes(shape, over, context.attrs.keepdims)


def _reduce_sizes(shape: Sizes, over: Container[int], keepdims: int) -> Sizes:
    kept = ((axis, size) for axis, size in enumerate(shape) if keepdims or axis not in over)
    return tuple(ONE if axis in over else size for axis, size in kept)


def _reduced_paths(attrs: Any, x: Type, axes: Type | None = None) -> list[Path] | None:
    if axes is not None and axes.numbers is None:
        return None
    along = _over(attrs.noop_with_empty_axes, rank_of(x), axes and axes.numbers)
    return over(x, along, attrs.keepdims)


for _name, _reduction in _REDUCTIONS.items():
    op(
        f"Reduce{_name}",
        kind="mixes",
        paths=_reduced_paths,
        type=_reduce,
        sized=_name == "Prod",
        scratch=8,
    )(_reduces(_reduction))


def _extreme(find: Callable[..., Any]) -> Callable[..., Array]:
    def extreme(
        x: Array, *, axis: Axis = 0, keepdims: int = 1, select_last_index: int = 0
    ) -> Array:
        if not x.shape[axis]:
            raise ShapeError(f"axis {axis} of {x.shape}: expected at least one element")
        if not select_last_index:
            return find(x, axis=axis, keepdims=bool(keepdims))
        return x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis, keepdims=bool(keepdims))

    return extreme


def _index(context: Context, x: Type) -> Type:
    if x.shape is None:
        return Type("int64")
    over = {at_axis(context.attrs.axis, len(x.shape))}
    return Type("int64", _reduce_sizes(x.shape, over, context.attrs.keepdims))


for _name, _find in {"ArgMax": np.argmax, "ArgMin": np.argmin}.items():
    op(_name, kind="mixes", type=_index, growth=wide)(_extreme(_find))


def _shift(x: Array, axis: int) -> Array:
    return x - x.max(axis=axis, keepdims=True, initial=-np.inf)


@op("Softmax", kind="mixes", type=same)
def softmax(x: Array, *, axis: Axis = -1) -> Array:
    e = np.exp(_shift(x, axis))
    return e / e.sum(axis=axis, keepdims=True)


@op("LogSoftmax", kind="mixes", type=same)
def log_softmax(x: Array, *, axis: Axis = -1) -> Array:
    shifted = _shift(x, axis)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


@op("CumSum", kind="mixes", paths=lambda _, x, axis: over(x, integers(axis) or ()), type=same)
def cum_sum(x: Array, axis: Axes, *, exclusive: int = 0, reverse: int = 0) -> Array:
    along = int(axis.reshape(()))
    ordered = np.flip(x, along) if reverse else x
    out = np.cumsum(ordered, axis=along, dtype=x.dtype)
    if exclusive:  # shifts the sums: subtracting x would round small ones
        lines = np.moveaxis(out, along, 0)
        lines[1:] = lines[:-1].copy()
        lines[:1] = 0
    return np.flip(out, along) if reverse else out


def _top_k_type(context: Context, x: Type, k: Type) -> tuple[Type, Type]:
    if x.shape is None:
        return Type(x.dtype), Type("int64")
    sizes = None if k.sizes is None else k.sizes.reshape(-1)[0]
    shape = with_size(x.shape, context.attrs.axis, None if sizes is None else ONE * sizes)
    return Type(x.dtype, shape), Type("int64", shape)


@op("TopK", kind="mixes", outputs=2, type=_top_k_type, growth=wide)
def top_k(x: Array, k: Array, *, axis: Axis = -1, largest: int = 1) -> tuple[Array, Array]:
    """Returns (values, indices) of the k largest or smallest elements, sorted. Of equal values, the
    one with the lower index comes first.
    """
    count = int(k.reshape(-1)[0])
    size = x.shape[axis]
    if not 0 <= count <= size:
        raise ShapeError(f"k: expected 0 to {size}, got {count}")
    if largest:
        order = size - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    chosen = np.take(order, np.arange(count), axis=axis)
    return np.take_along_axis(x, chosen, axis=axis), chosen


def _normalize_paths(attrs: Any, x: Type, *others: Type | None) -> list[Path]:
    (path,) = over(x, range(at_axis(attrs.axis, rank_of(x)), rank_of(x)))
    return [path, *(path[len(path) - rank_of(each) :] for each in others)]


def _normalize(
    context: Context, x: Type, scale: Type, bias: Type | None = None
) -> tuple[Type, Type, Type]:
    if x.shape is None:
        return Type(x.dtype), Type(), Type()
    over = range(at_axis(context.attrs.axis, len(x.shape)), len(x.shape))
    wide = "float32" if x.dtype == "float16" else x.dtype
    statistic = Type(wide, _reduce_sizes(x.shape, over, 1))
    return Type(x.dtype, broadcast(x.shape, scale.shape)), statistic, statistic


@op(
    "LayerNormalization",
    kind="mixes",
    outputs=3,
    paths=_normalize_paths,
    type=_normalize,
    since=17,
)
def layer_normalization(
    x: Array, scale: Array, bias: Array | None = None, *, axis: Axis = -1, epsilon: float = 1e-5
) -> tuple[Array, Array, Array]:
    """Returns (y, mean, 1 / standard deviation); for float16 inputs, the statistics are float32."""
    over = tuple(range(at_axis(axis, x.ndim), x.ndim))
    mean = x.mean(axis=over, keepdims=True)
    centred = x - mean
    variance = np.square(centred).mean(axis=over, keepdims=True)
    inverse = 1 / np.sqrt(variance + x.dtype.type(epsilon))
    y = centred * inverse * scale
    return (y if bias is None else y + bias), mean, inverse


def _per_channel(x: Array, scale: Array, bias: Array, **more: Array) -> list[Array]:
    """Returns the arrays (C,) in a shape that broadcasts along axis 1 of x. Raises `ShapeError` if
    an array does not have the shape (C,).
    """
    channels = x.shape[1] if x.ndim > 1 else 1
    given = {"scale": scale, "B": bias, **more}
    for name, each in given.items():
        if each.shape != (channels,):
            raise ShapeError(f"{name}: expected ({channels},), got {each.shape}")
    return [as_column(each, x.ndim - 1) for each in given.values()]


@op(
    "BatchNormalization",
    kind="mixes",
    type=same,
    growth=wide,
    paths=lambda _, x, *others: [*over(x, ()), *[[1]] * len(others)],
    batched="batch",
)
def batch_normalization(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float = 1e-5,
    training_mode: int = 0,
) -> Array:
    """Normalizes each channel of axis 1 by the statistics of training; inference only."""
    if training_mode:
        raise ShapeError("attribute training_mode=1: expected 0; export the model for inference")
    scale, bias, mean, variance = _per_channel(x, scale, bias, mean=mean, var=variance)
    factor = scale / np.sqrt(variance + variance.dtype.type(epsilon))
    y = (x - mean) * factor + bias
    return y.astype(x.dtype, copy=False)  # float16 inputs may have float32 statistics


def _standardize(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - x.mean(axis=axes, keepdims=True)
    variance = np.square(centred).mean(axis=axes, keepdims=True)
    return centred / np.sqrt(variance + x.dtype.type(epsilon))


@op("InstanceNormalization", kind="mixes", type=same, growth=wide, batched="batch")
def instance_normalization(x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5) -> Array:
    """Normalizes over the axes after the channels."""
    factor, added = _per_channel(x, scale, bias)
    return _standardize(x, tuple(range(2, x.ndim)), epsilon) * factor + added


@op("GroupNormalization", kind="mixes", since=21, type=same, growth=wide, batched="batch")
def group_normalization(
    x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5, num_groups: int
) -> Array:
    """Normalizes over each group of consecutive channels and the axes after them."""
    factor, added = _per_channel(x, scale, bias)
    groups = num_groups
    if groups < 1 or x.ndim < 2 or x.shape[1] % groups:
        raise ShapeError(
            f"attribute num_groups={groups}: expected a divisor of axis 1 of {x.shape}"
        )
    rows = x.reshape(len(x), groups, x.shape[1] // groups * math.prod(x.shape[2:]))
    return _standardize(rows, (2,), epsilon).reshape(x.shape) * factor + added
