"""Kernels by operator: NumPy functions of a node and its values.

A kernel takes a node and its input values (None where absent) and gives the output value, or a
tuple of them. Values are arrays or `Ragged`; operators that work row by row run over a ragged
value's words and keep its offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.graph import Node
from onernn.core.ragged import Ragged, data_of

Kernel = Callable[..., Any]
Attributes = Mapping[str, Any]
Axes = Callable[..., Iterable[int]]
KERNELS: dict[str, Kernel] = {}


def kernel(name: str) -> Callable[[Kernel], Kernel]:
    def register(function: Kernel) -> Kernel:
        KERNELS[name] = function
        return function

    return register


def _axis(attributes: Attributes, *_: Any) -> Iterable[int]:
    return [attributes["axis"]] if "axis" in attributes else []


def row_wise(
    name: str, *, reshapes: bool = False, axes: Axes = _axis
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function of arrays; its results are ragged like the first ragged input.

    ``axes``: those of the first input along which the function mixes elements, from its arguments;
    the axis of the words is refused there. A result with another number of rows is refused, or
    is a plain array of one that ``reshapes``.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(node: Node, *values: Any) -> Any:
            arrays = [None if v is None else data_of(v) for v in values]
            like = next((value for value in values if isinstance(value, Ragged)), None)
            if like is not None:
                rank = next(array.ndim for array in arrays if array is not None)
                if any(axis in (0, -rank) for axis in axes(node.attributes, *arrays)):
                    raise ShapeError("axis 0 would mix the words of a LoD; drop the LoD before")
            with np.errstate(all="ignore"):  # infinity and NaN are results, not warnings
                out = function(node.attributes, *arrays)
            if like is None:
                return out
            if isinstance(out, tuple):
                return tuple(_ragged(each, like, reshapes) for each in out)
            return _ragged(out, like, reshapes)

        KERNELS[name] = run
        return function

    return register


def _ragged(out: Array, like: Ragged, reshapes: bool) -> Ragged | Array:
    if out.ndim and len(out) == len(like.data):
        return like.with_data(out)
    if reshapes:
        return out
    raise ShapeError(f"gives {out.shape} under a LoD of {len(like.data)} words")
