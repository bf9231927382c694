"""What is known of a value before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any
from weakref import ref

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.sizes import Size

_name_of = cache(str)
"""A dtype's name; NumPy makes it anew each time."""

LodName = str
"""Two ragged values share their offsets where the names of their levels are the same."""

_MOST_NUMBERS = 64
"""Longest vector of integers that is followed: it describes a shape or axes, not data."""

Numbers = Size | tuple[Size, ...]


@dataclass(frozen=True)
class Type:
    """dtype by NumPy's name, shape of the data, LoD levels from the outermost; None is unknown.

    The shape of a ragged value is that of its words, (W, ...). A single size may be unknown, too.
    ``lod`` is () for a dense value. ``value`` holds the integers of a scalar or short vector that
    describes a shape or axes, or the truths (0 or 1) that follow from such.
    """

    dtype: str | None = None
    shape: tuple[Size | None, ...] | None = None
    lod: tuple[LodName, ...] | None = None
    value: Numbers | None = None

    @property
    def rank(self) -> int | None:
        """The number of axes; the words of a ragged value count as one."""
        return None if self.shape is None else len(self.shape)

    @property
    def counts(self) -> tuple[int | None, ...]:
        """The sizes that are numbers, None in the place of others; () where the rank is unknown."""
        return tuple(None if size is None else size.number for size in self.shape or ())

    @property
    def depth(self) -> int:
        """The number of LoD levels, 0 where it is unknown."""
        return len(self.lod or ())

    @property
    def ragged(self) -> bool | None:
        """Whether the value carries offsets; None where nobody can tell."""
        return None if self.lod is None else bool(self.lod)

    @property
    def sizes(self) -> Array | None:
        """``value`` as an array: int64 where all are numbers, else of `Size`."""
        if self.value is None:
            return None
        sizes = np.array(self.value, object)
        numbers = [size.number for size in sizes.reshape(-1)]
        if any(number is None for number in numbers):
            return sizes
        return np.array(numbers, np.int64).reshape(sizes.shape)

    @property
    def numbers(self) -> Array | None:
        """``value`` as int64; None where a size among them has a name."""
        sizes = self.sizes
        return None if sizes is None or sizes.dtype == object else sizes

    def __str__(self) -> str:
        sizes = "..." if self.shape is None else ", ".join(str(s or "?") for s in self.shape)
        levels = "" if not self.lod else f" under LoD {' > '.join(self.lod)}"
        return f"{self.dtype or 'any'}({sizes}){levels}"


UNKNOWN = Type()


def dense(dtype: str | None, shape: Iterable[Any] | None) -> Type:
    """The type of an array; sizes are numbers, names, `Size`, or None."""
    if shape is None:
        return Type(dtype, None, ())
    return Type(dtype, tuple(None if size is None else Size.of(size) for size in shape), ())


def valued(dtype: str | None, sizes: Any) -> Type:
    """The type of integers: of a scalar or a vector, whose elements are numbers or `Size`."""
    array = np.asarray(sizes)
    out = dense(dtype, array.shape)
    if array.ndim > 1 or array.size > _MOST_NUMBERS:
        return out
    known = tuple(map(Size.of, array.reshape(-1)))
    return Type(dtype, out.shape, (), known if array.ndim else known[0])


def type_of(value: Array | Ragged, name: str = "") -> Type:
    """The type of a value at hand; the levels of a ragged one are named after it."""
    array = data_of(value)
    if isinstance(value, Ragged):
        shape = dense(None, array.shape).shape
        return Type(_name_of(array.dtype), shape, lod_names(name, len(value.outer) + 1))
    if array.dtype.kind in "biu" and array.ndim < 2:
        return valued(_name_of(array.dtype), array)
    return dense(_name_of(array.dtype), array.shape)


_CONSTANTS: dict[int, tuple[ref[Any], Type]] = {}


def constant_type(array: Array) -> Type:
    """`type_of` an array that nobody changes: found once, as graphs share their constants."""
    key = id(array)
    known = _CONSTANTS.get(key)
    if known is None or known[0]() is not array:
        known = ref(array, lambda _: _CONSTANTS.pop(key, None)), type_of(array)
        _CONSTANTS[key] = known
    return known[1]


def lod_names(name: str, depth: int) -> tuple[LodName, ...]:
    return tuple(f"{name}.lod{level}" for level in range(depth))


def words_of(lod: tuple[LodName, ...]) -> Size:
    """The number of words of all sequences under a LoD."""
    return Size.of(f"{lod[-1]}.words")


def counts_of(found: Type) -> tuple[Size, ...]:
    """The number of sequences in each LoD level of a value, from the outermost."""
    return tuple(Size.of(f"{level}.count") for level in found.lod or ())


def sequences_of(found: Type) -> Size | None:
    """The number of sequences of a ragged value, None where it is dense or unknown."""
    return counts_of(found)[-1] if found.lod else None
