"""Sizes that a call may choose: polynomials with integer coefficients over names as T and N.

A quotient that is rounded down may stand where a name does: the size of ``(T + 1) / 2 - 4``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import gcd
from operator import mul
from typing import Any, Union

from onernn.ir.cached import cached_property
from onernn.ir.errors import UnsupportedError
from onernn.ir.records import dataclass

Factor = Union[str, "Quotient"]
Product = tuple[Factor, ...]
_MOST_FACTORS = 256


class SizeError(UnsupportedError, ValueError):
    """A size is none that anybody computes with."""


@dataclass(frozen=True)
class Size:
    """A sum of products, ``terms`` = ((names, coefficient), ...); (((), 3),) is the number 3."""

    terms: tuple[tuple[Product, int], ...]
    __array_ufunc__ = None  # NumPy's numbers leave arithmetic to us

    @classmethod
    def of(cls, value: Any) -> Size:
        """A name's size, or a number's."""
        if isinstance(value, Size):
            return value
        if isinstance(value, str):
            return cls((((value,), 1),))
        number = int(value)  # any number that a constant holds
        return cls((((), number),) if number else ())

    @classmethod
    def _sum(cls, terms: Mapping[Product, int]) -> Size:
        left = cls(tuple(sorted((factors, by) for factors, by in terms.items() if by)))
        # A model of thirty operators can square a size thirty times.
        if left.length > _MOST_FACTORS or any(not -(2**63) <= by < 2**63 for _, by in left.terms):
            raise SizeError("a size with too many names, or numbers of 2**63 and more, in it")
        return left

    @property
    def number(self) -> int | None:
        """The number it is, None where a name is left."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def name(self) -> str | None:
        """The name it is, None for everything else."""
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
        """Those that stand in it where a name does."""
        return [each for factors, _ in self.terms for each in factors if isinstance(each, Quotient)]

    @cached_property
    def length(self) -> int:
        """How many names and numbers it is written with."""
        factors = sum(len(factors) + 1 for factors, _ in self.terms)
        return factors + sum(each.whole.length for each in self.quotients)

    def __add__(self, other: Any) -> Size:
        terms = dict(self.terms)
        for names, by in Size.of(other).terms:
            terms[names] = terms.get(names, 0) + by
        return Size._sum(terms)

    def __mul__(self, other: Any) -> Size:
        terms: dict[Product, int] = {}
        for names, by in self.terms:
            for more, times in Size.of(other).terms:
                product = tuple(sorted((*names, *more)))
                terms[product] = terms.get(product, 0) + by * times
        return Size._sum(terms)

    def __sub__(self, other: Any) -> Size:
        return self + Size.of(other) * -1

    def __rsub__(self, other: Any) -> Size:
        return Size.of(other) - self

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: Any) -> Size:
        """Exact quotients by one product only. Raises `ValueError` elsewhere."""
        by = Size.of(other)
        if len(by.terms) != 1:
            raise ValueError(f"{self} / {by} is not known to be whole")
        (names, count) = by.terms[0]
        terms: dict[Product, int] = {}
        for own, times in self.terms:
            left = list(own)
            for name in names:
                if name not in left:
                    raise ValueError(f"{self} / {by} is not known to be whole")
                left.remove(name)
            if times % count:
                raise ValueError(f"{self} / {by} is not known to be whole")
            terms[tuple(left)] = times // count
        return Size._sum(terms)

    def floor_div(self, by: int) -> Size:
        """Divided by a positive number, and rounded down.

        Only what ``by`` does not divide stays in a quotient: 4 * T + 3 by 4 is T. No number is
        negative in there, so nor is what is divided, and C++ rounds it as Python does.
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
        for factors, times in rest.terms:  # a quotient of a quotient is one
            if times == len(factors) == 1 and isinstance(inner := factors[0], Quotient):
                more = (rest - Size(((factors, 1),))) * inner.by
                return whole + (inner.whole + more).floor_div(inner.by * by)
        return whole + Size((((Quotient(rest, by),), 1),))

    @property
    def signs(self) -> tuple[int, int] | None:
        """The least and the largest sign that it may have, names and quotients being at
        least 0; None: any."""
        number = dict(self.terms).get((), 0)
        named = [by for names, by in self.terms if names]
        own = (number > 0) - (number < 0)
        if all(by > 0 for by in named) and number >= 0:
            return own, max(own, *(1 for _ in named), 0)
        if all(by < 0 for by in named) and number <= 0:
            return min(own, *(-1 for _ in named), 0), own
        return None

    def put(self, sizes: Mapping[str, Any]) -> Size:
        """With sizes, or numbers, in the place of names."""
        out = Size(())
        for factors, by in self.terms:
            found = (
                Size.of(sizes.get(factor, factor)) if isinstance(factor, str) else factor.put(sizes)
                for factor in factors
            )
            out = out + reduce(mul, found, Size.of(by))
        return out

    def most(self) -> Size:
        """What it does not exceed, growing with every name: without what is subtracted."""
        return Size(tuple((names, by) for names, by in self.terms if by > 0))

    def __str__(self) -> str:
        """C++, and what people write."""
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
        """As a factor of a C++ product."""
        return f"({self})" if len(self.terms) > 1 else str(self)


@dataclass(frozen=True)
class Quotient:
    """A size by a number, rounded down; of neither is any number negative."""

    whole: Size
    by: int

    def __lt__(self, other: Factor) -> bool:
        """In a product quotients stand behind names."""
        if isinstance(other, str):
            return False
        return (self.by, self.whole.terms) < (other.by, other.whole.terms)

    def __gt__(self, other: Factor) -> bool:
        return isinstance(other, str) or other < self

    def put(self, sizes: Mapping[str, Any]) -> Size:
        return self.whole.put(sizes).floor_div(self.by)

    def __str__(self) -> str:
        return f"({self.whole.factor} / {self.by})"


Shape = tuple[Size, ...]


def shape_of(sizes: Any) -> Shape:
    return tuple(map(Size.of, sizes))


def volume(shape: Shape) -> Size:
    """The number of elements."""
    return reduce(mul, shape, Size.of(1))


def listed(shape: Shape) -> str:
    """As comments write it: (T, N, 128)."""
    return f"({', '.join(map(str, shape))})"
