"""ONNX operators that put elements to places that are told."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.operator import define
from onernn.operators import growth
from onernn.operators.rules import at_axis, same

_REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _inside(indices: Array, sizes: Array | int) -> Array:
    """Indices counted from the front. Raises `ShapeError` for those outside of [-size, size)."""
    if indices.dtype.kind not in "iu":
        raise ShapeError(f"indices of {indices.dtype}: expected integers")
    outside = (indices < -sizes) | (indices >= sizes)
    if outside.any():
        raise ShapeError(f"index {indices[outside][0]} is outside of an axis: sizes {sizes}")
    return np.where(indices < 0, indices + sizes, indices)


def _put(at: Any, out: Array, places: Any, updates: Array) -> None:
    """Where a place is told twice, the last one stays: so does ONNX Runtime."""
    if updates.dtype != out.dtype:
        raise ShapeError(f"updates of {updates.dtype}: expected {out.dtype}")
    if at.reduction == "none":
        out[places] = updates
    elif at.reduction in _REDUCTIONS:
        _REDUCTIONS[at.reduction].at(out, places, updates)
    else:
        raise ShapeError(f"attribute reduction={at.reduction!r}")


def _scatter_elements(at: Any, x: Array, indices: Array, updates: Array) -> Array:
    axis = at_axis(at.axis, x.ndim)
    fits = indices.ndim == x.ndim and all(
        k == axis or few <= many
        for k, (few, many) in enumerate(zip(indices.shape, x.shape, strict=True))
    )
    if not fits or indices.shape != updates.shape:
        shapes = f"indices {indices.shape} and updates {updates.shape}"
        raise ShapeError(f"{shapes}: expected equal shapes, no larger than {x.shape}")
    places = list(np.ogrid[tuple(map(slice, indices.shape))])
    places[axis] = _inside(indices, x.shape[axis])
    out = x.copy()
    _put(at, out, tuple(places), updates)
    return out


define(
    "ScatterElements",
    kind="mixes",
    inputs="x indices updates",
    attributes={"axis": 0, "reduction": "none"},
    since=11,
    mixes=lambda *_: (0,),
    type=same,
    compute=_scatter_elements,
    growth=growth.wide,
)


def _scatter_nd(at: Any, x: Array, indices: Array, updates: Array) -> Array:
    depth = indices.shape[-1] if indices.ndim else 0
    if not indices.ndim or depth > x.ndim:
        raise ShapeError(f"indices {indices.shape}: expected at most {x.ndim} for each place")
    outer, inner = x.shape[:depth], x.shape[depth:]
    if updates.shape != (*indices.shape[:-1], *inner):
        raise ShapeError(f"updates {updates.shape}: expected {(*indices.shape[:-1], *inner)}")
    places = np.zeros(indices.shape[:-1], np.int64)
    whole = _inside(indices, np.array(outer, np.int64))
    for at_k, size in enumerate(outer):
        places = places * size + whole[..., at_k]
    out = x.reshape(math.prod(outer), *inner).copy()
    _put(at, out, places, updates)
    return out.reshape(x.shape)


define(
    "ScatterND",
    kind="mixes",
    inputs="x indices updates",
    attributes={"reduction": "none"},
    since=11,
    mixes=lambda *_: (0,),
    type=same,
    compute=_scatter_nd,
    growth=growth.wide,
)
