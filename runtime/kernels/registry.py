"""Kernels by operator: NumPy functions of a node and its values.

A kernel takes a node and its input values (None where absent) and gives the output value, or a
tuple of them. Values are arrays or `Ragged`; operators that work row by row run over a ragged
value's words and keep its offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onernn.core.arrays import Array
from onernn.core.graph import Node
from onernn.core.ragged import Ragged, data_of

Kernel = Callable[..., Any]
KERNELS: dict[str, Kernel] = {}


def kernel(name: str) -> Callable[[Kernel], Kernel]:
    def register(function: Kernel) -> Kernel:
        KERNELS[name] = function
        return function

    return register


def row_wise(name: str) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Registers a function of arrays; the result is ragged like the first ragged input."""

    def register(function: Callable[..., Array]) -> Callable[..., Array]:
        def run(node: Node, *values: Any) -> Any:
            arrays = [None if v is None else data_of(v) for v in values]
            out = function(node.attributes, *arrays)
            for value in values:
                if isinstance(value, Ragged) and out.ndim and len(out) == len(value.data):
                    return value.with_data(out)
            return out

        KERNELS[name] = run
        return function

    return register
