"""Type rules that several operators share. A rule takes a `Context` and the inputs' types.

A rule infers the dtype and shape of the data. The LoD follows from the fields of the `Operator`,
unless its field ``offsets`` is true. A rule returns None for parts that it cannot infer. A rule may
raise an error if a run would raise one as well. The types of the outputs are then unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul

import numpy as np

from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context
from onernn.ir.operator import at_axis
from onernn.ir.types import Size, Type

Sizes = tuple[Size | None, ...]
ONE = Size.of(1)


def same(_: Context, x: Type, *others: Type | None) -> Type:
    """Returns the dtype and shape of the first input."""
    return Type(x.dtype, x.shape)


def sizes_rule(rule: Callable[..., Sizes | None]) -> Callable[..., Type]:
    """Returns the type rule of a result that has the dtype of the first input.

    ``rule(context, shape, *others)`` returns the sizes of the result. It is called only if the
    shape of the first input is known.
    """

    def infer(context: Context, x: Type, *others: Type | None) -> Type:
        return Type(x.dtype, None if x.shape is None else rule(context, x.shape, *others))

    return infer


def elementwise(_: Context, *given: Type | None) -> Type:
    """Returns the type with the inputs' common dtype and their broadcast shape."""
    there = [each for each in given if each is not None]
    return Type(common(*there), broadcast(*(each.shape for each in there)))


def truths(_: Context, *given: Type) -> Type:
    return Type("bool", broadcast(*(each.shape for each in given)))


def common(*given: Type) -> str | None:
    """Returns the dtype that all inputs have, None if they differ."""
    dtypes = {each.dtype for each in given}
    return dtypes.pop() if len(dtypes) == 1 else None


def broadcast(*shapes: Sizes | None) -> Sizes | None:
    """Returns the shape to which NumPy broadcasts shapes. If two named sizes differ, the result's
    size is unknown, since each of them may be 1.
    """
    if any(shape is None for shape in shapes):
        return None
    rank = max(len(shape or ()) for shape in shapes)
    aligned = [(ONE,) * (rank - len(shape or ())) + (shape or ()) for shape in shapes]
    return tuple(_stretch(sizes) for sizes in zip(*aligned, strict=True))


def _stretch(sizes: Sequence[Size | None]) -> Size | None:
    rest = set(sizes) - {ONE}
    numbers = [size for size in rest if size is not None and size.number is not None]
    if numbers:
        return numbers[0]
    return rest.pop() if len(rest) == 1 else None if rest else ONE


def volume(sizes: Sequence[Size | None]) -> Size | None:
    """Returns the number of elements, None if a size is unknown."""
    known = [size for size in sizes if size is not None]
    return None if len(known) < len(sizes) else reduce(mul, known, ONE)


def quotient(size: Size | None, by: Size | None) -> Size | None:
    """Returns the exact quotient; None if the quotient is not known to be an integer."""
    if size is None or by is None or by == Size(()):
        return None
    try:
        return ONE if size == by else size // by
    except ValueError:
        return None


def word_behind(x: Type, front: Sizes) -> Sizes | None:
    """Returns the sizes ``front``, followed by the sizes of x without axis 0."""
    return None if x.shape is None else (*front, *x.shape[1:])


def with_size(shape: Sizes, axis: int, size: Size | None) -> Sizes:
    at = at_axis(axis, len(shape))
    return (*shape[:at], size, *shape[at + 1 :])


def integers(found: Type | None) -> list[int] | None:
    """Returns the integers of an input, None if it is absent. Raises `ShapeError` if they are
    unknown.
    """
    if found is None:
        return None
    numbers = found.numbers
    if numbers is None:
        raise ShapeError("an input that names axes: expected a constant, got values of a run")
    return np.atleast_1d(numbers).tolist()
