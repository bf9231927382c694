"""Types of values, known before a run, whose sizes may be symbolic because they differ from call to
call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache, reduce
from math import gcd, lcm, prod
from operator import mul
from typing import Any, Union
from weakref import ref
from zlib import crc32

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.budget import spend
from onernn.ir.errors import UnsupportedError
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import cached_property, dataclass

Factor = Union[str, "Quotient"]
Product = tuple[Factor, ...]
_MOST_FACTORS = 256
_FEW = 8  # sums of at most this many terms do not count as `Work`


class SizeError(UnsupportedError, ValueError):
    """The error for a size that is too large, or for an invalid computation with sizes."""


@dataclass(frozen=True, eq=False)
class Size:
    """A symbolic size: a sum of products, ``terms`` = ((names, coefficient), ...); (((), 3),) is
    the number 3.

    Sizes are equal if they have the same value for all values of their names, such as T - T / 2 and
    (T + 1) / 2. `_is_zero` compares their values at points (values of the names); if that needs
    more than `_POINTS` points, the sizes count as different.
    """

    terms: tuple[tuple[Product, int], ...]
    __array_ufunc__ = None  # makes NumPy scalars use this class's operators

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Size):
            return NotImplemented
        if self is other or self.terms == other.terms:
            return True
        if self._sample != other._sample or not self.quotients and not other.quotients:
            return False
        try:
            return _is_zero(self - other)
        except SizeError:
            return False

    def __hash__(self) -> int:
        return hash(self._sample)

    @cached_property
    def _sample(self) -> int:
        """The size's value for one fixed value of each name: equal sizes have the same sample."""
        total = 0
        for factors, by in self.terms:
            for each in factors:
                by *= _number_of(each) if isinstance(each, str) else each.whole._sample // each.by
            total += by
        return total

    def at(self, numbers: Mapping[str, Any]) -> Any:
        """Returns the value of the size for these values of its names, which may be arrays."""
        total: Any = 0
        for factors, by in self.terms:
            each = (
                numbers[factor]
                if isinstance(factor, str)
                else factor.whole.at(numbers) // factor.by
                for factor in factors
            )
            total = total + reduce(mul, each, by)
        return total

    def degree(self, name: str) -> int:
        """Returns the highest power of a name in the size."""
        return max((sum(_degree(each, name) for each in f) for f, _ in self.terms), default=0)

    def period(self, name: str) -> int:
        """Returns a period p: for values of the name with the same remainder modulo p, the size is
        a polynomial.
        """
        return lcm(*(each.period(name) for each in self.quotients if name in each.names))

    @classmethod
    def of(cls, value: Any) -> Size:
        """Returns the size of a name or a number."""
        if isinstance(value, Size):
            return value
        return _size_of(value if isinstance(value, str) else int(value))

    @classmethod
    def _sum(cls, terms: Mapping[Product, int]) -> Size:
        if len(terms) > _FEW:
            spend(len(terms))
        left = cls(tuple(sorted((factors, by) for factors, by in terms.items() if by)))
        # Limits the number of terms and the coefficients: thirty operators can square a size thirty
        # times.
        if left.length > _MOST_FACTORS or any(not -(2**63) <= by < 2**63 for _, by in left.terms):
            raise SizeError("a size: expected fewer names in it, and numbers below 2**63")
        return left

    @cached_property
    def number(self) -> int | None:
        """The number if the size contains no name, otherwise None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def name(self) -> str | None:
        """The name if the size is one name, otherwise None."""
        if len(self.terms) == 1 and len(self.terms[0][0]) == 1 and self.terms[0][1] == 1:
            factor = self.terms[0][0][0]
            return factor if isinstance(factor, str) else None
        return None

    @cached_property
    def names(self) -> frozenset[str]:
        inner = (each.whole.names for each in self.quotients)
        plain = (each for factors, _ in self.terms for each in factors if isinstance(each, str))
        return frozenset(plain).union(*inner)

    @property
    def quotients(self) -> list[Quotient]:
        """The quotients, such as T // 2, among the factors of the terms."""
        return [each for factors, _ in self.terms for each in factors if isinstance(each, Quotient)]

    @cached_property
    def length(self) -> int:
        """The number of names and numbers in the size as text, which limits its length."""
        factors = sum(len(factors) + 1 for factors, _ in self.terms)
        return factors + sum(each.whole.length for each in self.quotients)

    def __add__(self, other: Any) -> Size:
        own, more = self.number, Size.of(other)
        if own is not None and more.number is not None and abs(own + more.number) < 2**63:
            return _size_of(own + more.number)
        terms = dict(self.terms)
        for names, by in more.terms:
            terms[names] = terms.get(names, 0) + by
        return Size._sum(terms)

    def __mul__(self, other: Any) -> Size:
        own, factor = self.number, Size.of(other)
        if own is not None and factor.number is not None and abs(own * factor.number) < 2**63:
            return _size_of(own * factor.number)
        terms = dict[Product, int]()
        if len(self.terms) * len(factor.terms) > _FEW:
            spend(len(self.terms) * len(factor.terms))
        for names, by in self.terms:
            for more, times in factor.terms:
                product = tuple(sorted((*names, *more)))
                terms[product] = terms.get(product, 0) + by * times
        return Size._sum(terms)

    def __sub__(self, other: Any) -> Size:
        return self + Size.of(other) * -1

    def __rsub__(self, other: Any) -> Size:
        return Size.of(other) - self

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: Any) -> Size:
        """Returns the quotient by a size of one term, such as 2 * T. Raises `ValueError` unless the
        quotient is known to be exact.
        """
        by = Size.of(other)
        if len(by.terms) != 1:
            raise ValueError(f"{self} / {by} is not known to be an integer")
        (names, count) = by.terms[0]
        terms: dict[Product, int] = {}
        for own, times in self.terms:
            left = list(own)
            for name in names:
                if name not in left:
                    raise ValueError(f"{self} / {by} is not known to be an integer")
                left.remove(name)
            if times % count:
                raise ValueError(f"{self} / {by} is not known to be an integer")
            terms[tuple(left)] = times // count
        return Size._sum(terms)

    def floor_div(self, by: int) -> Size:
        """Returns the quotient by a positive number, rounded down.

        Terms that ``by`` divides are divided exactly, and a `Quotient` holds the rest: (4 * T + 3)
        / 4 is T. A `Quotient` contains no negative number, so C++ rounds it in the same way as
        Python.
        """
        if not 0 < by < 2**63:
            raise SizeError(f"{self} / {by}: expected a positive number of 64 bits")
        whole = Size._sum({factors: times // by for factors, times in self.terms})
        left = {factors: times % by for factors, times in self.terms}
        common = gcd(by, *(times for factors, times in left.items() if factors))
        left, by = {factors: times // common for factors, times in left.items()}, by // common
        rest = Size._sum(left)
        if rest.number is not None:
            return whole
        for factors, times in rest.terms:  # a quotient of a quotient becomes one quotient
            if times == len(factors) == 1 and isinstance(inner := factors[0], Quotient):
                more = (rest - Size(((factors, 1),))) * inner.by
                return whole + (inner.whole + more).floor_div(inner.by * by)
        return whole + Size((((Quotient(rest, by),), 1),))

    @property
    def signs(self) -> tuple[int, int] | None:
        """The smallest and the largest sign (-1, 0 or 1) that the size may have if names and
        quotients are at least 0. None means any sign.
        """
        number = dict(self.terms).get((), 0)
        named = [by for names, by in self.terms if names]
        own = (number > 0) - (number < 0)
        if all(by > 0 for by in named) and number >= 0:
            return own, max(own, *(1 for _ in named), 0)
        if all(by < 0 for by in named) and number <= 0:
            return min(own, *(-1 for _ in named), 0), own
        return None

    def substitute(self, sizes: Mapping[str, Any]) -> Size:
        """Returns the size with sizes, or numbers, in place of names."""
        out = Size(())
        for factors, by in self.terms:
            result = (
                Size.of(sizes.get(factor, factor))
                if isinstance(factor, str)
                else factor.substitute(sizes)
                for factor in factors
            )
            out = out + reduce(mul, result, Size.of(by))
        return out

    def most(self) -> Size:
        """Returns the size without its subtracted terms, an upper bound that grows with each
        name.
        """
        return Size(tuple((names, by) for names, by in self.terms if by > 0))

    def __str__(self) -> str:
        """Returns the size as text, which is also a C++ expression."""
        text = ""
        for names, by in reversed(self.terms):
            factors = [str(name) for name in names]
            factors += [] if names and abs(by) == 1 else [str(abs(by))]
            sign = "-" if by < 0 else "+"
            text += (
                f" {sign} {' * '.join(factors)}" if text else "-" * (by < 0) + " * ".join(factors)
            )
        return text or "0"

    @property
    def factor(self) -> str:
        """Returns the size as a factor of a C++ product."""
        return f"({self})" if len(self.terms) > 1 else str(self)


@lru_cache(2**12)
def _size_of(value: str | int) -> Size:
    if isinstance(value, str):
        return Size((((value,), 1),))
    return Size((((), value),) if value else ())


_POINTS, _PIECE = 2 * 10**7, 10**6
"""The maximum number of points at which two sizes are compared (a point has a value for each name),
and the number of points computed at a time.
"""


@cache
def _number_of(name: str) -> int:
    return crc32(name.encode())


def _names(factor: Factor) -> frozenset[str]:
    return frozenset([factor]) if isinstance(factor, str) else factor.names


def _degree(factor: Factor, name: str) -> int:
    return int(factor == name) if isinstance(factor, str) else factor.whole.degree(name)


def _is_zero(size: Size) -> bool:
    """Returns whether a size is 0 for all values of its names; False if this needs too many points.

    If the size is constant, each sum of `_apart` is constant, since the sums share no names. For
    values with the same remainder (`Size.period`), a sum is a polynomial. A polynomial of degree n
    is 0 if it is 0 at more than n points.
    """
    rest = 0
    for part in _apart(size):
        first = part.at(dict.fromkeys(part.names, 0))
        rest += first
        if part.names and not _is_zero_on_grid(part - first):
            return False
    return rest == 0


def _apart(size: Size) -> list[Size]:
    """Returns sums that add up to the size and share no names."""
    parts: list[Size] = []
    for term in size.terms:
        own = Size((term,))
        met = [each for each in parts if not each.names.isdisjoint(own.names)]
        parts = [each for each in parts if each not in met] + [sum(met, own)]
    return parts


def _is_zero_on_grid(size: Size) -> bool:
    names = sorted(size.names)
    counts = [size.period(name) * (size.degree(name) + 1) for name in names]
    if prod(counts) > _POINTS:
        return False
    largest = dict(zip(names, counts, strict=True))
    bound = Size(tuple((factors, abs(by)) for factors, by in size.terms)).at(largest)
    kind = np.int64 if bound < 2**62 else object
    step = max(1, _PIECE // prod(counts[1:]))
    for begin in range(0, counts[0], step):
        ends = [slice(begin, min(begin + step, counts[0])), *map(slice, counts[1:])]
        numbers = dict(
            zip(names, (axis.astype(kind) for axis in np.ogrid[tuple(ends)]), strict=True)
        )
        if np.any(size.at(numbers)):
            return False
    return True


@dataclass(frozen=True)
class Quotient:
    """A size divided by a number, rounded down. The size has no negative coefficient, and the
    number is positive.
    """

    whole: Size
    by: int

    @property
    def names(self) -> frozenset[str]:
        return self.whole.names

    def period(self, name: str) -> int:
        """Returns a period p: for values of the name with the same remainder modulo p, the quotient
        is a polynomial.
        """
        inner = self.whole.period(name)
        if inner > 1:
            return self.by * inner
        holders = (
            by for factors, by in self.whole.terms if any(name in _names(f) for f in factors)
        )
        return self.by // gcd(self.by, *holders)

    def __lt__(self, other: Factor) -> bool:
        """Orders the factors of a product: names before quotients."""
        if isinstance(other, str):
            return False
        return (self.by, self.whole.terms) < (other.by, other.whole.terms)

    def __gt__(self, other: Factor) -> bool:
        return isinstance(other, str) or other < self

    def substitute(self, sizes: Mapping[str, Any]) -> Size:
        return self.whole.substitute(sizes).floor_div(self.by)

    def __str__(self) -> str:
        return f"({self.whole.factor} / {self.by})"


Shape = tuple[Size, ...]
Counts = tuple[int | None, ...]
"""The sizes of a shape as numbers; None for sizes that are not known."""


def shape_of(sizes: Any) -> Shape:
    return tuple(map(Size.of, sizes))


def volume(shape: Shape) -> Size:
    """Returns the number of elements of a shape."""
    return reduce(mul, shape, Size.of(1))


def write_shape(shape: Shape) -> str:
    """Returns a shape as text, such as (T, N, 128)."""
    return f"({', '.join(map(str, shape))})"


_name_of = cache(str)

LodName = str
"""The name of a LoD level; ragged values with equal names share the offsets of the level."""

_MOST_NUMBERS = 64
"""Maximum length of a vector of integers whose values are known: such a vector describes a shape or
axes, not data.
"""

Numbers = Size | tuple[Size, ...]


@dataclass(frozen=True)
class Type:
    """A value's dtype (NumPy's name), shape, and LoD levels from the outermost; None means unknown.

    The shape of a ragged value is the shape of its steps, (W, ...). Some sizes of a known shape may
    be unknown. ``lod`` is () for a dense value. ``value``: the elements of an integer or Boolean
    scalar or short vector, if they are known before a run, for example a shape; True is 1.
    """

    dtype: str | None = None
    shape: tuple[Size | None, ...] | None = None
    lod: tuple[LodName, ...] | None = None
    value: Numbers | None = None

    @property
    def rank(self) -> int | None:
        """The number of axes; the steps of a ragged value count as one axis."""
        return None if self.shape is None else len(self.shape)

    @property
    def counts(self) -> Counts:
        """The sizes as integers, None for a size that is not a number; () if the rank is
        unknown.
        """
        return tuple(None if size is None else size.number for size in self.shape or ())

    @property
    def depth(self) -> int:
        """The number of LoD levels, 0 if it is unknown."""
        return len(self.lod or ())

    @property
    def ragged(self) -> bool | None:
        """Whether the value has offsets; None if that is not known."""
        return None if self.lod is None else bool(self.lod)

    @property
    def sizes(self) -> Array | None:
        """``value`` as an array: int64 if all elements are numbers, otherwise of `Size`."""
        value = self.value
        if value is None:
            return None
        numbers: Any = value.number if isinstance(value, Size) else [each.number for each in value]
        if numbers is None or isinstance(numbers, list) and None in numbers:
            return np.array(value, object)
        return np.array(numbers, np.int64)

    @property
    def numbers(self) -> Array | None:
        """``value`` as int64; None if one of the elements contains a name."""
        sizes = self.sizes
        return None if sizes is None or sizes.dtype == object else sizes

    def __str__(self) -> str:
        sizes = "..." if self.shape is None else ", ".join(str(s or "?") for s in self.shape)
        levels = "" if not self.lod else f" under LoD {' > '.join(self.lod)}"
        return f"{self.dtype or 'any'}({sizes}){levels}"


UNKNOWN = Type()


def dense(dtype: str | None, shape: Iterable[Any] | None) -> Type:
    """Returns the type of an array; each of its sizes is a number, a name, a `Size`, or None."""
    if shape is None:
        return Type(dtype, None, ())
    return Type(dtype, tuple(None if size is None else Size.of(size) for size in shape), ())


def evaluate(dtype: str | None, sizes: Any) -> Type:
    """Returns the type of an integer scalar or vector with its ``value``; elements are numbers or
    `Size`.
    """
    array = np.asarray(sizes)
    out = dense(dtype, array.shape)
    if array.ndim > 1 or array.size > _MOST_NUMBERS:
        return out
    known = tuple(map(Size.of, array.reshape(-1)))
    return Type(dtype, out.shape, (), known if array.ndim else known[0])


def as_tuple(result: Any) -> tuple[Any, ...]:
    """Returns the outputs of an operator that returned one output, or a tuple of outputs."""
    return result if isinstance(result, tuple) else (result,)


def type_of(value: Array | Ragged, name: str = "") -> Type:
    """Returns the type of an existing value; the levels of a ragged value are named after it."""
    array = data_of(value)
    if isinstance(value, Ragged):
        shape = dense(None, array.shape).shape
        return Type(_name_of(array.dtype), shape, lod_names(name, len(value.outer) + 1))
    if array.dtype.kind in "biu" and array.ndim < 2:
        return evaluate(_name_of(array.dtype), array)
    return dense(_name_of(array.dtype), array.shape)


_CONSTANTS: dict[int, tuple[ref[Any], Type]] = {}


def constant_type(array: Array) -> Type:
    """Returns `type_of` a read-only array, computed once: graphs share their constants."""
    key = id(array)
    known = _CONSTANTS.get(key)
    if known is None or known[0]() is not array:
        known = ref(array, lambda _: _CONSTANTS.pop(key, None)), type_of(array)
        _CONSTANTS[key] = known
    return known[1]


def lod_names(name: str, depth: int) -> tuple[LodName, ...]:
    return tuple(f"{name}.lod{level}" for level in range(depth))


def words_of(lod: tuple[LodName, ...]) -> Size:
    """Returns the size whose name stands for the total number of steps of values with this LoD."""
    return Size.of(f"{lod[-1]}.words")


def counts_of(found: Type) -> tuple[Size, ...]:
    """Returns the named sizes for the number of sequences in each LoD level, from the outermost."""
    return tuple(Size.of(f"{level}.count") for level in found.lod or ())


def sequences_of(found: Type) -> Size | None:
    """Returns the number of sequences of a ragged value, None if it is dense or unknown."""
    return counts_of(found)[-1] if found.lod else None
