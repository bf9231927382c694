"""A graph on its way to C++: what is known of its values, and where they will stand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.graph import Graph, Node
from onernn.core.sizes import Shape, Size
from onernn.emit.naming import identifier

CTYPES = {
    "float32": "float",
    "float64": "double",
    "int64": "std::int64_t",
    "int32": "std::int32_t",
    "bool": "std::uint8_t",
}


def kept(name: str, what: str) -> str:
    """What an operator keeps beside a value. No value of a program has a NUL in its own name."""
    return f"{name}\0{what}"


class NewBinding(Exception):
    """A size turned out to be another one: shapes are inferred anew."""


@dataclass(frozen=True)
class Sentences:
    """The LoD of ragged values: their number of sentences and words, and whose offsets these are."""

    name: str
    count: Size
    words: Size


@dataclass
class Program:
    """What the steps of `onernn.emit.pipeline` add to, one after the other.

    ``known``: values known now: constants, and integers made of sizes (arrays of `Size`).
    ``no_step``: why sentences cannot come word by word. ``inner``: sizes that only a call finds out, each with what it does not exceed.
    """

    graph: Graph
    operators: list[Any] = field(default_factory=list)
    dtypes: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    known: dict[str, Array] = field(default_factory=dict)
    lods: dict[str, Sentences] = field(default_factory=dict)
    inner: dict[str, Size] = field(default_factory=dict)
    bindings: dict[str, Size] = field(default_factory=dict)
    static: dict[str, int] = field(default_factory=dict)
    no_step: str = ""
    idents: dict[str, str] = field(default_factory=dict)
    _taken: dict[str, int] = field(default_factory=dict)  # identifiers, and the last number behind

    def ident(self, name: str) -> str:
        """The value's name in C++, of no other value."""
        if name not in self.idents:
            text = chosen = identifier(name)
            while chosen in self._taken:
                self._taken[text] += 1
                chosen = f"{text}_{self._taken[text]}"
            self._taken[chosen] = 1
            self.idents[name] = chosen
        return self.idents[name]

    def size(self, value: Any) -> Size:
        """A size after all that is known of its names."""
        out = Size.of(value)
        return out.put(self.bindings) if self.bindings.keys() & out.names else out

    def bind(self, name: str, size: Size) -> None:
        """A name is this size from now on, in the sizes of other names, too."""
        bound = {name: size}
        self.bindings = {key: one.put(bound) for key, one in self.bindings.items()} | bound

    def same(self, a: Size, b: Size, what: str) -> Size:
        """The one size that two are; binds a name where they differ in one.

        Raises `NewBinding`, or `UnsupportedError` where nobody can tell.
        """
        a, b = self.size(a), self.size(b)
        if a == b:
            return a
        for one, other in ((a, b), (b, a)):
            if one.name and one.name not in other.names and one.name not in self.inner:
                self.bind(one.name, other)
                raise NewBinding
            if len(one.terms) == 1 and len(one.terms[0][0]) == 1 and other.number is not None:
                (((name,), times),) = one.terms  # 20 * T is 80
                if name not in self.inner and other.number % times == 0:
                    self.bind(name, Size.of(other.number // times))
                    raise NewBinding
        if a.number is not None and b.number is not None:
            raise ShapeError(f"{what}: sizes {a} and {b} should be one")
        raise UnsupportedError(f"{what}: nobody can tell that {a} and {b} are the same size")

    def shape(self, name: str) -> Shape:
        return tuple(map(self.size, self.shapes[name]))

    def lod(self, names: Iterable[str]) -> Sentences | None:
        """That of the first ragged value: results of row-wise operators take it over."""
        return next((self.lods[name] for name in names if name in self.lods), None)

    def numbers(self, node: Node, at: int, what: str) -> list[Any] | None:
        """The integers of an input, sizes among them; None where it is absent.

        Raises `UnsupportedError` where only a call would tell.
        """
        name = node.input(at)
        if not name:
            return None
        if name not in self.known:
            raise UnsupportedError(f"{what} {name!r} is computed at run time")
        return [
            self.size(one) if isinstance(one, Size) else int(one)
            for one in np.asarray(self.known[name]).reshape(-1)
        ]

    def integers(self, node: Node, at: int, what: str) -> list[int] | None:
        """Those without a size among them."""
        found = self.numbers(node, at, what)
        if found is None:
            return None
        plain = [one.number if isinstance(one, Size) else one for one in found]
        if None in plain:
            raise UnsupportedError(f"{what} {node.input(at)!r} depends on a size: say --static")
        return [int(one) for one in plain if one is not None]
