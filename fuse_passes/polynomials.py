"""Reads a value as a polynomial: a sum of products of other values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass

_MOST = 24  # nodes, and products of the sum; a cell with attention has ten
_SUMS = {"Add": 1.0, "Sub": -1.0}


def is_arithmetic(op: str) -> bool:
    """Returns whether polynomials are read through an operator."""
    return op in _SUMS or op in ("Mul", "Neg") or op == "Identity"


@dataclass(frozen=True)
class Polynomial:
    """``terms``: the factor before each product, whose values stand sorted; none is 0.

    ``nodes`` compute it. ``likes``: values whose shapes constants were filled to.
    """

    terms: Mapping[tuple[str, ...], float]
    nodes: tuple[Node, ...] = ()
    likes: frozenset[str] = frozenset()

    @property
    def atoms(self) -> set[str]:
        return {name for names in self.terms for name in names}

    def plus(self, other: Polynomial, factor: float = 1.0) -> Polynomial:
        terms = dict(self.terms)
        for names, number in other.terms.items():
            terms[names] = terms.get(names, 0.0) + factor * number
        return self._with(other, terms)

    def times(self, other: Polynomial) -> Polynomial:
        terms: dict[tuple[str, ...], float] = {}
        for (one, a), (two, b) in product(self.terms.items(), other.terms.items()):
            names = tuple(sorted(one + two))
            terms[names] = terms.get(names, 0.0) + a * b
        return self._with(other, terms)

    def __rsub__(self, number: float) -> Polynomial:
        return Polynomial({(): number}).plus(self, -1.0)

    __add__, __mul__ = plus, times

    def rename(self, names: Mapping[str, str]) -> Polynomial:
        """Returns the polynomial over other values."""
        return Polynomial(
            {
                tuple(sorted(names[each] for each in product)): number
                for product, number in self.terms.items()
            }
        )

    def _with(self, other: Polynomial, terms: Mapping[tuple[str, ...], float]) -> Polynomial:
        kept = {names: number for names, number in terms.items() if number}
        nodes = dict.fromkeys((*self.nodes, *other.nodes))
        return Polynomial(kept, tuple(nodes), self.likes | other.likes)


def polynomial(graph: Graph, name: str, is_atom: Callable[[str], bool]) -> Polynomial | None:
    """Returns the value over atoms, which are also what no sum or product makes; None where it is
    long.
    """
    left = [_MOST]

    def of(name: str) -> Polynomial | None:
        node, atom = graph.producer(name), Polynomial({(name,): 1.0})
        if is_atom(name):
            return atom
        if (number := _number(graph, name)) is not None:
            return number
        if node is None or not is_arithmetic(node.op):
            return atom
        left[0] -= 1
        if left[0] < 0:
            return None
        parts = [of(each) for each in node.inputs]
        if None in parts:
            return None
        first, *second = [part for part in parts if part]
        if node.op == "Neg":
            result = Polynomial({}).plus(first, -1.0)
        elif second:
            (other,) = second
            sign = _SUMS.get(node.op)
            result = first.times(other) if sign is None else first.plus(other, sign)
        else:
            result = first
        if len(result.terms) > _MOST:
            return None
        nodes = dict.fromkeys((*first.nodes, *(n for p in second for n in p.nodes), node))
        return Polynomial(result.terms, tuple(nodes), result.likes)

    return of(name)


def is_number(graph: Graph, name: str) -> bool:
    """Returns whether a value is one number everywhere."""
    return _number(graph, name) is not None


def _number(graph: Graph, name: str) -> Polynomial | None:
    """Returns a constant that is one number everywhere, in as many rows as what it meets."""
    array = graph.constants.get(name)
    if array is not None:
        if array.dtype.kind != "f" or not array.size or array.ndim > 2:
            return None
        if array.shape[:-1] not in ((), (1,)) or (array != array.flat[0]).any():
            return None
        return _make_constant(float(array.flat[0]))
    filled = graph.producer(name, "ConstantOfShape")
    shape = filled and graph.producer(filled.inputs[0], "Shape")
    if filled is None or shape is None or shape.attributes:
        return None
    result = filled.attrs.value
    value = 0.0 if result is None else float(result.reshape(-1)[0])
    made = _make_constant(value)
    return Polynomial(made.terms, (shape, filled), frozenset(shape.inputs))


def _make_constant(number: float) -> Polynomial:
    return Polynomial({(): number} if number else {})
