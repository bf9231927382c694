"""A graph on its way to a plan: what is known of its values, and what every operator becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from onernn.engine.naming import identifier
from onernn.engine.steps import Sentences, WrittenNode
from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass
from onernn.ir.types import Shape, Size, Type, volume

CTYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "onernn::Half",
    "int64": "std::int64_t",
    "int32": "std::int32_t",
    "int8": "std::int8_t",
    "uint8": "std::uint8_t",
    "bool": "std::uint8_t",
}


class UnknownError(Exception):
    """Nothing tells a type or a shape yet."""


@dataclass
class Program:
    """What `onernn.engine.inferring` adds to.

    ``codes``: the operators that are left to be run, in order. ``lods``: by their names in types.
    ``inner``: sizes that only a call finds out, each with what it does not exceed. ``memory``:
    types of what operators keep for themselves; ``held``: what of it only steps need.
    ``bindings``: what names of sizes turned out to be, ``grew``: whether that became more.
    ``longest``: by inputs, how many words the longest sentence has; of those whose is asked for.
    ``no_step``: why sentences cannot come word by word.
    ``left``: by their first outputs, why nodes with graphs inside were not opened; ``refused``: why
    a call ends in a branch; ``sources``: by nodes from such graphs, what they were there.
    """

    graph: Graph
    types: Mapping[str, Type] = field(default_factory=dict)
    codes: list[WrittenNode] = field(default_factory=list)
    lods: dict[str, Sentences] = field(default_factory=dict)
    inner: dict[str, Size] = field(default_factory=dict)
    longest: dict[str, Size] = field(default_factory=dict)
    memory: dict[str, Type] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    bindings: dict[str, Size] = field(default_factory=dict)
    static: Mapping[str, int] = field(default_factory=dict)
    grew: bool = False
    no_step: str = ""
    left: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    sources: Mapping[Node, Node] = field(default_factory=dict)
    idents: dict[str, str] = field(default_factory=dict)
    _taken: dict[str, int] = field(default_factory=dict)  # identifiers, and the last number behind

    def ident(self, name: str) -> str:
        """The value's name in C++, of no other value."""
        if name not in self.idents:
            self.idents[name] = self.new_ident(name)
        return self.idents[name]

    def new_ident(self, text: str) -> str:
        """A name in C++ like this one, which nothing else has."""
        text = chosen = identifier(text)
        while chosen in self._taken:
            self._taken[text] += 1
            chosen = f"{text}_{self._taken[text]}"
        self._taken[chosen] = 1
        return chosen

    def size(self, value: Any) -> Size:
        """A size after all that is known of its names."""
        out = Size.of(value)
        bound = {name: self._settled(name) for name in out.names if name in self.bindings}
        return out.put(bound) if bound else out

    def _settled(self, name: str) -> Size:
        """What a bound name is in the end; the next one has a shorter way."""
        way, found = [name], self.bindings[name]
        while found.name in self.bindings:
            way.append(found.name)
            found = self.bindings[found.name]
        found = self.size(found) if found.name is None else found
        self.bindings |= dict.fromkeys(way, found)
        return found

    def bind(self, name: str, size: Size) -> None:
        """A name turned out to be this size: types are inferred again."""
        self.bindings[name], self.grew = size, True

    def rename(self, size: Size | None, new: Any) -> None:
        """What stands in C++ for a size that inference has named."""
        if size is not None and size.name and size != Size.of(new):
            self.bindings[size.name] = Size.of(new)

    def same(self, a: Size, b: Size, what: str) -> Size:
        """The one size that two are; binds a name where they differ in one.

        Raises `UnsupportedError` where nobody can tell.
        """
        a, b = self.size(a), self.size(b)
        if a == b:
            return a
        for one, other in ((a, b), (b, a)):
            if one.name and one.name not in other.names and one.name not in self.inner:
                self.bind(one.name, other)
                return other
            if len(one.terms) == 1 and len(one.terms[0][0]) == 1 and other.number is not None:
                (((name,), times),) = one.terms  # 20 * T is 80
                if isinstance(name, str) and name not in self.inner and other.number % times == 0:
                    self.bind(name, Size.of(other.number // times))
                    return other
        if a.number is not None and b.number is not None:
            raise ShapeError(f"{what}: sizes {a} and {b} should be one")
        raise UnsupportedError(f"{what}: nobody can tell that {a} and {b} are the same size")

    def type(self, name: str) -> Type:
        """Of a value, or of what an operator keeps."""
        return self.memory.get(name) or self.types[name]

    def dtype(self, name: str) -> str:
        """One that C++ has. Raises `UnknownError`, or `UnsupportedError` for others."""
        dtype = self.type(name).dtype
        if dtype is None:
            raise UnknownError(name)
        if dtype not in CTYPES:
            raise UnsupportedError(f"{name!r} is of {dtype}")
        return dtype

    def ctype(self, name: str) -> str:
        return CTYPES[self.dtype(name)]

    def shape(self, name: str) -> Shape:
        """In names that C++ has. Raises `UnknownError`."""
        sizes = self.type(name).shape
        if sizes is None:
            raise UnknownError(name)
        found = [self.size(size) for size in sizes if size is not None]
        if len(found) < len(sizes) or any("." in name for size in found for name in size.names):
            raise UnknownError(name)
        return tuple(found)

    def add_levels(self, name: str, sizes: Sequence[Size]) -> tuple[Sentences, ...]:
        """The LoD that begins with a value; ``sizes``: sentences of each level, then words."""
        lod = self.types[name].lod or ()
        for at, level in enumerate(lod):
            count, words = map(self.size, sizes[at : at + 2])
            self.lods[level] = Sentences(name, count, words, at - len(lod))
        return self.levels(name)

    def levels(self, name: str) -> tuple[Sentences, ...]:
        """The LoD of a value from the outermost level, () where it is dense.

        Raises `UnknownError`.
        """
        lod = self.type(name).lod
        if lod is None or not self.lods.keys() >= set(lod):  # who makes these offsets is refused
            raise UnknownError(name)
        return tuple(self.lods[level] for level in lod)

    def sentences(self, name: str) -> Sentences | None:
        """The level of a value's words, None where it is dense. Raises `UnknownError`."""
        levels = self.levels(name)
        return levels[-1] if levels else None

    def numbers(self, name: str) -> Array | None:
        """The integers of a value that are known now, sizes among them; None for other values."""
        found = self.types[name]
        if found.value is None:
            return None
        value = found.value
        settled = self.size(value) if isinstance(value, Size) else tuple(map(self.size, value))
        return replace(found, value=settled).sizes

    def most(self, name: str) -> Size:
        """How many numbers a value has at most, whatever a call finds.

        What is subtracted goes first: a size that a call finds may be small.
        """
        return volume(self.shape(name)).most().put(self.inner).most()

    @property
    def views(self) -> dict[str, tuple[str, Size]]:
        """Values that stand inside of others: the outermost of these, and the first element."""
        direct = {name: at for each in self.codes for name, at in each.views.items()}
        found: dict[str, tuple[str, Size]] = {}
        for name in direct:
            way = [name]
            while way[-1] in direct and way[-1] not in found:
                way.append(direct[way[-1]][0])
            for inner in reversed(way[:-1]):
                value, start = direct[inner]
                outer, before = found.get(value, (value, Size(())))
                found[inner] = outer, self.size(before + start)
        return found

    def dims(self, name: str) -> list[Size]:
        """The sizes of an input's axes, how many sentences each level of its LoD has, and how many
        words the longest sentence, if anybody asks.

        Raises `UnknownError`.
        """
        counts = [self.size(level.count) for level in self.levels(name)]
        longest = [self.size(self.longest[name])] if name in self.longest else []
        return [*self.shape(name), *counts, *longest]

    def longest_of(self, level: Sentences) -> Size:
        """The words of the longest sentence, which calls tell of inputs.

        Raises `UnsupportedError` for others.
        """
        if level.level != -1 or level.name not in {value.name for value in self.graph.inputs}:
            raise UnsupportedError("padded to the longest of sentences that a call makes")
        named = Size.of(f"{self.ident(level.name)}_longest")
        return self.size(self.longest.setdefault(level.name, named))

    def is_known(self, name: str) -> bool:
        """Whether nothing is left to be run for a value."""
        return name in self.graph.constants or self.types[name].value is not None


def sizes_in(program: Program, name: str) -> tuple[Size, ...]:
    """The integers of a value that is known, one after the other."""
    found = program.numbers(name)
    return () if found is None else tuple(map(Size.of, found.reshape(-1)))
