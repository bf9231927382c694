"""ONNX operators that mix the elements of an axis, by name and meaning.

Where opsets differ these are the newest forms: axes come as an input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import along_axis, define
from onernn.core.types import Type
from onernn.operators import growth
from onernn.operators.rules import ONE, at_axis, integers, same, with_size


def _lowest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return False
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _highest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return True
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


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
    "Max": lambda x, **over: x.max(initial=_lowest(x.dtype), **over),
    "Min": lambda x, **over: x.min(initial=_highest(x.dtype), **over),
    "L1": lambda x, **over: np.abs(x).sum(**over),
    "L2": lambda x, **over: np.sqrt(np.square(x).sum(**over)),
    "SumSquare": lambda x, **over: np.square(x).sum(**over),
    "LogSum": lambda x, **over: np.log(x.sum(**over)),
    "LogSumExp": _log_sum_exp,
}


def _over(at: Any, rank: int, axes: Any = None) -> tuple[int, ...]:
    if axes is not None and len(axes):
        return tuple(map(int, axes))
    return () if at.noop_with_empty_axes else tuple(range(rank))


def _reduces(reduction: Reduction) -> Callable[..., Array]:
    def run(at: Any, x: Array, axes: Array | None = None) -> Array:
        over = _over(at, x.ndim, axes)
        if not over and x.ndim:
            return x
        out = reduction(x, axis=over, keepdims=bool(at.keepdims))
        return np.asarray(out).astype(x.dtype, copy=False)

    return run


def _reduced(context: Context, x: Type, axes: Type | None = None) -> Type:
    if x.shape is None:
        return Type(x.dtype)
    over = {at_axis(each, len(x.shape)) for each in _over(context.at, len(x.shape), integers(axes))}
    if context.at.keepdims:
        return Type(x.dtype, tuple(ONE if k in over else s for k, s in enumerate(x.shape)))
    return Type(x.dtype, tuple(size for k, size in enumerate(x.shape) if k not in over))


for _name, _reduction in _REDUCTIONS.items():
    define(
        f"Reduce{_name}",
        kind="mixes",
        inputs="x #axes?",
        attributes={"keepdims": 1, "noop_with_empty_axes": 0},
        mixes=_over,
        type=_reduced,
        compute=_reduces(_reduction),
        sized=_name == "Prod",
    )


def _extreme(find: Callable[..., Any]) -> Callable[..., Array]:
    def run(at: Any, x: Array) -> Array:
        if not x.shape[at.axis]:
            raise ShapeError(f"no element along axis {at.axis} of {x.shape}")
        keep = bool(at.keepdims)
        if not at.select_last_index:
            return find(x, axis=at.axis, keepdims=keep)
        return x.shape[at.axis] - 1 - find(np.flip(x, at.axis), axis=at.axis, keepdims=keep)

    return run


def _index(context: Context, x: Type) -> Type:
    if x.shape is None:
        return Type("int64")
    at = at_axis(context.at.axis, len(x.shape))
    kept = (ONE,) if context.at.keepdims else ()
    return Type("int64", (*x.shape[:at], *kept, *x.shape[at + 1 :]))


for _name, _find in {"ArgMax": np.argmax, "ArgMin": np.argmin}.items():
    define(
        _name,
        kind="mixes",
        inputs="x",
        attributes={"axis": 0, "keepdims": 1, "select_last_index": 0},
        mixes=along_axis,
        type=_index,
        compute=_extreme(_find),
        growth=growth.wide,
    )


def _shifted(at: Any, x: Array) -> Array:
    return x - x.max(axis=at.axis, keepdims=True, initial=-np.inf)


def _softmax(at: Any, x: Array) -> Array:
    e = np.exp(_shifted(at, x))
    return e / e.sum(axis=at.axis, keepdims=True)


def _log_softmax(at: Any, x: Array) -> Array:
    shifted = _shifted(at, x)
    return shifted - np.log(np.exp(shifted).sum(axis=at.axis, keepdims=True))


for _name, _compute in {"Softmax": _softmax, "LogSoftmax": _log_softmax}.items():
    define(
        _name,
        kind="mixes",
        inputs="x",
        attributes={"axis": -1},
        mixes=along_axis,
        type=same,
        compute=_compute,
    )


def _cum_sum(at: Any, x: Array, axis: Array) -> Array:
    along = int(axis.reshape(()))
    ordered = np.flip(x, along) if at.reverse else x
    out = np.cumsum(ordered, axis=along, dtype=x.dtype)
    if at.exclusive:  # what was added up before; taking it off again would lose small numbers
        lines = np.moveaxis(out, along, 0)
        lines[1:] = lines[:-1].copy()
        lines[:1] = 0
    return np.flip(out, along) if at.reverse else out


define(
    "CumSum",
    kind="mixes",
    inputs="x #axis",
    attributes={"exclusive": 0, "reverse": 0},
    mixes=lambda at, rank, axis: (int(axis.reshape(())),),
    type=same,
    compute=_cum_sum,
)


def _top_k(at: Any, x: Array, k: Array) -> tuple[Array, Array]:
    """(values, indices) in order; of equal ones the lower index comes first."""
    axis, count = at.axis, int(k.reshape(-1)[0])
    size = x.shape[axis]
    if not 0 <= count <= size:
        raise ShapeError(f"k: expected at most {size}, got {count}")
    if at.largest:
        order = size - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    chosen = np.take(order, np.arange(count), axis=axis)
    return np.take_along_axis(x, chosen, axis=axis), chosen


def _top_k_type(context: Context, x: Type, k: Type) -> tuple[Type, Type]:
    if x.shape is None:
        return Type(x.dtype), Type("int64")
    sizes = None if k.sizes is None else k.sizes.reshape(-1)[0]
    shape = with_size(x.shape, context.at.axis, None if sizes is None else ONE * sizes)
    return Type(x.dtype, shape), Type("int64", shape)


define(
    "TopK",
    kind="mixes",
    inputs="x k",
    attributes={"axis": -1, "largest": 1},
    outputs=2,
    mixes=along_axis,
    type=_top_k_type,
    compute=_top_k,
    growth=growth.wide,
)
