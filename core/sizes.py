"""Sizes that a call may choose: polynomials with integer coefficients over names as T and N."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import mul
from typing import Any

from onernn.core.cached import cached_property
from onernn.core.errors import UnsupportedError
from onernn.core.records import dataclass

Product = tuple[str, ...]
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
        left = sorted((names, by) for names, by in terms.items() if by)
        # A model of thirty operators can square a size thirty times.
        if sum(len(names) + 1 for names, _ in left) > _MOST_FACTORS or any(
            not -(2**63) <= by < 2**63 for _, by in left
        ):
            raise SizeError("a size with too many names, or numbers of 2**63 and more, in it")
        return cls(tuple(left))

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
            return self.terms[0][0][0]
        return None

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(name for names, _ in self.terms for name in names)

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

    def put(self, sizes: Mapping[str, Any]) -> Size:
        """With sizes, or numbers, in the place of names."""
        out = Size(())
        for names, by in self.terms:
            out = out + reduce(mul, (Size.of(sizes.get(name, name)) for name in names), Size.of(by))
        return out

    def most(self) -> Size:
        """What it does not exceed, growing with every name: without what is subtracted."""
        return Size(tuple((names, by) for names, by in self.terms if by > 0))

    def __str__(self) -> str:
        """C++, and what people write."""
        text = ""
        for names, by in reversed(self.terms):
            factors = [*names] if names and abs(by) == 1 else [*names, str(abs(by))]
            sign = "-" if by < 0 else "+"
            text += (
                f" {sign} {' * '.join(factors)}" if text else "-" * (by < 0) + " * ".join(factors)
            )
        return text or "0"

    @property
    def factor(self) -> str:
        """As a factor of a C++ product."""
        return f"({self})" if len(self.terms) > 1 else str(self)


Shape = tuple[Size, ...]


def shape_of(sizes: Any) -> Shape:
    return tuple(map(Size.of, sizes))


def volume(shape: Shape) -> Size:
    """The number of elements."""
    return reduce(mul, shape, Size.of(1))


def listed(shape: Shape) -> str:
    """As comments write it: (T, N, 128)."""
    return f"({', '.join(map(str, shape))})"
