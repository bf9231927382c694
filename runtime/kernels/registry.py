"""Kernels by operator: NumPy functions of a node and its values.

A kernel takes a node and its input values (None where absent) and gives the output value, or a
tuple of them. Values are arrays or `Ragged`; operators that work row by row run over a ragged
value's words and keep its offsets. Every kernel is accounted: it asks the budget of the run before it
makes anything (`growth`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.budget import bytes_of, running
from onernn.core.errors import ShapeError
from onernn.core.graph import Node
from onernn.core.ragged import Ragged, data_of
from onernn.runtime.kernels.growth import (
    BY_PRODUCT,
    GROWTH,
    largest_input,
    no_new_bytes,
    product_of_sizes,
)

Kernel = Callable[..., Any]
Attributes = Mapping[str, Any]
Axes = Callable[..., Iterable[int]]
KERNELS: dict[str, Kernel] = {}
_ALWAYS_COUNTED = 2**16
"""Bytes up to which a view counts as if it were none: finding out costs more."""


def _register(name: str, run: Kernel) -> None:
    """Asks the run's budget before the kernel runs, and counts what it made."""
    growth = GROWTH.get(name, largest_input)
    by_product = growth in BY_PRODUCT
    may_share = growth in (no_new_bytes, largest_input)

    def accounted(node: Node, *values: Any) -> Any:
        budget = running()
        product = by_product and product_of_sizes(values)
        if not 0 < product < budget.most - budget.used:  # what is exact costs some microseconds
            budget.ask(growth(node, *values))
        made = run(node, *values)
        for each in made if type(made) is tuple else (made,):
            array = each.data if type(each) is Ragged else each
            size = getattr(array, "nbytes", 1)  # emit's sizes are Python objects
            if not (may_share and size > _ALWAYS_COUNTED and _is_view(array, values)):
                budget.used += size or bytes_of(array)
        if budget.used > budget.most:
            budget.ask(0)
        return made

    KERNELS[name] = accounted


def _is_view(array: Array, values: Iterable[Any]) -> bool:
    return any(np.may_share_memory(array, data_of(v)) for v in values if v is not None)


def kernel(name: str) -> Callable[[Kernel], Kernel]:
    def register(function: Kernel) -> Kernel:
        _register(name, function)
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

        _register(name, run)
        return function

    return register


def _ragged(out: Array, like: Ragged, reshapes: bool) -> Ragged | Array:
    if out.ndim and len(out) == len(like.data):
        return like.with_data(out)
    if reshapes:
        return out
    raise ShapeError(f"gives {out.shape} under a LoD of {len(like.data)} words")
