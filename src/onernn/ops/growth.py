"""Bounds for the bytes of an operator's results, computed before the operator runs.

If the size depends on data, the operator's own module computes the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from onernn.ir.budget import bytes_of
from onernn.ir.graph import FAILURES, Context, Node, Sizes
from onernn.ir.operator import OPERATORS
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.types import as_tuple, type_of

_MANY = 32


def results(node: Node, *values: Any) -> int:
    """Returns the bytes of the results, by the operator's type rule, plus the bytes that its
    `Operator.scratch` counts.

    A result whose shape only a run knows counts as the bytes of the largest input.
    """
    operator, most = OPERATORS[node.op], largest_input(node, *values)
    try:
        given = (None if value is None else type_of(value) for value in values)
        result = operator.type(Context(node, Sizes()), *given)
    except FAILURES:  # the operator itself will raise an error for these values
        result = ()
    total = 0
    for each in as_tuple(result):
        if each.shape is None or None in each.counts:
            total += most
        else:
            total += elements(each.counts) * (np.dtype(each.dtype).itemsize if each.dtype else 8)
    if operator.scratch:
        largest = max(elements(data_of(value).shape) for value in values if value is not None)
        total += operator.scratch * largest
    return total or most


def largest_input(_: Node, *values: Any) -> int:
    return max([bytes_of(data_of(value)) for value in values if value is not None], default=0)


def wide(_: Node, *values: Any) -> int:
    """Returns 16 bytes for each element of the largest input: eight for a copy of the element,
    eight for an index.
    """
    return 16 * max(elements(data_of(value).shape) for value in values if value is not None)


def no_new_bytes(*_: Any) -> int:
    """Returns 0, for operators that return views or a few elements, or that ask the run's budget
    for memory themselves.
    """
    return 0


def elements(sizes: Iterable[Any]) -> int:
    """Returns the product of the sizes. A size of 0 counts as 1, because a sum over this axis is
    not empty.
    """
    return math.prod(max(int(size), 1) for size in sizes)


def word_bytes(x: Any) -> int:
    """Returns the bytes of one step of x."""
    data = data_of(x)
    return elements(data.shape[1:]) * data.dtype.itemsize


def product_of_sizes(values: Iterable[Any]) -> int:
    """Returns a bound for the bytes of results whose shapes depend only on the inputs' shapes.

    The bound is a product of the inputs' sizes. Returns 0 if an input is empty: then no bound is
    known.
    """
    product = 16
    for value in values:
        if value is not None:
            product *= 2 * (value.data if type(value) is Ragged else value).size
    return product


def product_with_numbers(values: Sequence[Any]) -> int:
    """Returns a bound for the bytes of results whose shapes depend on integers in the inputs.

    Returns 0 if an input has more than `_MANY` integers: then no bound is known.
    """
    product = product_of_sizes(values)
    for value in values:
        if value is not None and (array := data_of(value)).dtype.kind in "iu":
            if array.size > _MANY:
                return 0
            for number in array.reshape(-1).tolist():
                product *= 1 + abs(number)
    return product
