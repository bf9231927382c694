"""Reads a value as a polynomial of earlier values: a sum of products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass

_MOST = 24  # maximum number of nodes, and of products; a cell with attention has ten
_SUMS = {"Add": 1.0, "Sub": -1.0, "Neg": -1.0, "Identity": 1.0}


def is_arithmetic(op: str) -> bool:
    """Returns whether an operator computes a polynomial of its inputs."""
    return op in _SUMS or op in ("Mul", "Div")


@dataclass(frozen=True)
class Polynomial:
    """A sum of products, each of one number and some values; ``nodes`` compute the sum.

    ``terms``: the number of each product, never 0. The key lists the product's values in sorted
    order. ``likes``: the values from which some constants of the sum have their shapes
    (ConstantOfShape).
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
        """Returns the polynomial with its values renamed."""
        terms = self.terms.items()
        return Polynomial({tuple(sorted(map(names.__getitem__, each))): by for each, by in terms})

    def _with(self, other: Polynomial, terms: Mapping[tuple[str, ...], float]) -> Polynomial:
        kept = {names: number for names, number in terms.items() if number}
        nodes = dict.fromkeys((*self.nodes, *other.nodes))
        return Polynomial(kept, tuple(nodes), self.likes | other.likes)


def atom(name: str) -> Polynomial:
    """Returns the polynomial that consists of one value."""
    return Polynomial({(name,): 1.0})


def polynomial(graph: Graph, name: str, is_atom: Callable[[str], bool]) -> Polynomial | None:
    """Returns the value as a polynomial of atoms; None if the polynomial is too long.

    Atoms are the values for which ``is_atom`` returns true, and values that no sum or product
    computes.
    """
    left = [_MOST]

    def of(name: str) -> Polynomial | None:
        node = graph.producer(name)
        if is_atom(name):
            return atom(name)
        if (number := _number(graph, name)) is not None:
            return number
        if node is None or not is_arithmetic(node.op):
            return atom(name)
        left[0] -= 1
        if left[0] < 0:
            return None
        parts = [part for each in node.inputs if (part := of(each))]
        if len(parts) < len(node.inputs):
            return None
        first, last = (Polynomial({}), *parts)[-2:]
        if node.op == "Div":  # division by a number
            if last.terms.keys() != {()} or last.likes:
                return atom(name)
            last = Polynomial({(): 1 / last.terms[()]})
        sign = _SUMS.get(node.op)
        result = first.times(last) if sign is None else first.plus(last, sign)
        if len(result.terms) > _MOST:
            return None
        return replace(result, nodes=(*result.nodes, node))

    return of(name)


def is_number(graph: Graph, name: str) -> bool:
    """Returns whether all elements of a value equal the same known constant."""
    return _number(graph, name) is not None


def is_ones_like(graph: Graph, name: str, like: str) -> bool:
    """Returns whether a value is ones in the shape of another value, or the scalar 1."""
    number, array = _number(graph, name), graph.constants.get(name)
    if number is None or number.terms != {(): 1.0}:
        return False
    return number.likes == {like} or array is not None and array.shape == ()


def _number(graph: Graph, name: str) -> Polynomial | None:
    """Returns the polynomial of a constant, or of an output of ConstantOfShape, if all elements are
    equal.
    """
    array = graph.constants.get(name)
    if array is not None:
        if array.dtype.kind != "f" or not array.size or array.ndim > 2:
            return None
        if array.shape[:-1] not in ((), (1,)) or (array != array.flat[0]).any():
            return None
        number = float(array.flat[0])
        return Polynomial({(): number} if number else {})
    filled = graph.producer(name, "ConstantOfShape")
    shape = filled and graph.producer(filled.inputs[0], "Shape")
    if filled is None or shape is None or shape.attributes:
        return None
    value = filled.attrs.value
    number = 0.0 if value is None else float(value.reshape(-1)[0])
    return Polynomial({(): number} if number else {}, (shape, filled), frozenset(shape.inputs))
