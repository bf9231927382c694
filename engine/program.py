"""A graph on its way to a plan: what is known of its values, and what every operator becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.graph import Graph, Node
from onernn.core.sizes import Shape, Size
from onernn.core.spec import RnnSpec
from onernn.core.types import Type
from onernn.core.weights import RnnWeights
from onernn.engine.naming import identifier

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


class UnknownError(Exception):
    """Nothing tells a type or a shape yet."""


@dataclass(frozen=True)
class Sentences:
    """The LoD of ragged values: how many sentences and words, and whose offsets these are."""

    name: str
    count: Size
    words: Size


@dataclass(frozen=True)
class At:
    """Where a value stands; of "" nothing does."""

    name: str


@dataclass(frozen=True)
class OffsetsOf:
    """Where the sentences of a value begin."""

    name: str


@dataclass(frozen=True, eq=False)
class Packed:
    """Numbers that are stored for the run; ``narrow``: of a matrix, which may be stored in fewer
    bits."""

    numbers: Array
    narrow: bool = False


@dataclass(frozen=True)
class Found:
    """A size that the call tells."""

    size: Size


class Team:
    """The threads of a run."""


def moved(dtype: str) -> str:
    """The type of functions that only move numbers of a dtype."""
    return f"u{np.dtype(dtype).itemsize}"


Argument = At | OffsetsOf | Packed | Found | Team | Size | tuple[Size, ...] | float


class Call:
    """A call of a function of `kernels/steps`: pointers to values, sizes, numbers.

    A string names a value, `Sentences` stand for their offsets, integers and truths are sizes,
    lists are sizes of axes. The first argument is the value that the call makes. ``types`` tell the
    function's instance for those who do not compile: dtypes, or u1, u4, u8 for elements that are
    only moved. ``checks``: it looks at indices or lengths, and may refuse them.
    """

    def __init__(
        self, function: str, *arguments: Any, types: Sequence[str] = (), checks: bool = False
    ) -> None:
        self.function, self.types, self.checks = function, tuple(types), checks
        self.arguments: tuple[Argument, ...] = tuple(map(_argument, arguments))

    @property
    def makes(self) -> str | None:
        """The value that it fills; nobody may want that, as with some parts of a Split."""
        first = self.arguments[0]
        return first.name if isinstance(first, At) else None


def _argument(given: Any) -> Argument:
    if isinstance(given, str):
        return At(given)
    if isinstance(given, Sentences):
        return OffsetsOf(given.name)
    if isinstance(given, int):
        return Size.of(given)
    if isinstance(given, list):
        return tuple(map(Size.of, given))
    return given


Expression = int | float | tuple[Any, ...]
"""The number of what is read, a number, or a function of `kernels/formulas.hpp` and expressions."""


@dataclass(frozen=True)
class Access:
    """Elements of a value: the one at i, j, ... is ``start`` + i * strides[0] + j * strides[1]."""

    name: str
    strides: tuple[Size, ...]
    start: Size = Size(())


@dataclass(frozen=True, eq=False)
class Nest:
    """out = expression(reads), element by element, over all loops."""

    loops: tuple[Size, ...]
    out: Access
    reads: tuple[Access, ...]
    expression: Expression

    @property
    def makes(self) -> str:
        return self.out.name

    @property
    def merged(self) -> Nest:
        """The same in fewer loops: neighbouring ones become one where they can."""
        accesses = [self.out, *self.reads]
        found: list[tuple[Size, list[Size]]] = []
        for at, size in enumerate(self.loops):
            if size.number == 1:
                continue
            strides = [access.strides[at] for access in accesses]
            if found and found[-1][1] == [stride * size for stride in strides]:
                found[-1] = found[-1][0] * size, strides
            else:
                found.append((size, strides))
        out, *reads = [
            replace(access, strides=tuple(strides[at] for _, strides in found))
            for at, access in enumerate(accesses)
        ]
        return Nest(tuple(size for size, _ in found), out, tuple(reads), self.expression)


@dataclass(frozen=True, eq=False)
class Run:
    """A cell that runs over a batch: one layer and direction. ``at``: the how-manieth.

    ``offset``: of its first channel in a row of y.
    """

    title: str
    spec: RnnSpec
    weights: RnnWeights
    x: str
    y: str
    width: int
    offset: int
    backwards: bool
    added: bool
    at: int


@dataclass(frozen=True)
class State:
    """h or c of a layer: names of what is given ("" if nothing), of the last one, and of what steps
    hold."""

    name: str
    given: str
    final: str
    held: str
    width: int


@dataclass(frozen=True, eq=False)
class Layer:
    """A recurrent layer; ``time`` is None where the batch is ragged.

    ``cells``: the cell state of every word, "" where nobody reads it.
    """

    node: Node
    runs: tuple[Run, ...]
    states: tuple[State, ...]
    attention: str
    words: Size
    time: Size | None
    count: Size
    lod: Sentences | None
    real: str
    cells: str
    makes = None


Step = Call | Nest | Layer


def finds(steps: Iterable[Step]) -> set[str]:
    """The names of sizes that steps find."""
    calls = [step for step in steps if isinstance(step, Call)]
    found = [one.size for call in calls for one in call.arguments if isinstance(one, Found)]
    return {name for size in found for name in size.names}


@dataclass(frozen=True, eq=False)
class WrittenNode:
    """A node, and what its rule said.

    ``codes``: what runs it; none where its output is ``source`` under another shape. ``reads``:
    the inputs that stand in memory when it runs. ``mixes``: sizes along which one output element
    depends on several input ones.
    """

    node: Node
    codes: list[Step]
    reads: list[str]
    source: str
    mixes: Sequence[Size]


@dataclass
class Program:
    """What `onernn.engine.inferring` adds to.

    ``codes``: the operators that are left to be run, in order. ``lods``: by their names in types.
    ``inner``: sizes that only a call finds out, each with what it does not exceed. ``memory``:
    types of what operators keep for themselves; ``held``: what of it only steps need.
    ``bindings``: what names of sizes turned out to be, ``grew``: whether that became more.
    ``no_step``: why sentences cannot come word by word.
    """

    graph: Graph
    types: Mapping[str, Type] = field(default_factory=dict)
    codes: list[WrittenNode] = field(default_factory=list)
    lods: dict[str, Sentences] = field(default_factory=dict)
    inner: dict[str, Size] = field(default_factory=dict)
    memory: dict[str, Type] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    bindings: dict[str, Size] = field(default_factory=dict)
    static: Mapping[str, int] = field(default_factory=dict)
    grew: bool = False
    no_step: str = ""
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
                if name not in self.inner and other.number % times == 0:
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

    def sentences(self, name: str) -> Sentences | None:
        """The offsets of a value, None where it is dense. Raises `UnknownError`."""
        lod = self.type(name).lod
        if lod is None:
            raise UnknownError(name)
        if len(lod) > 1:
            raise UnsupportedError(f"{name!r} has {len(lod)} LoD levels")
        if lod and lod[0] not in self.lods:  # who makes these offsets is refused
            raise UnknownError(name)
        return self.lods[lod[0]] if lod else None

    def numbers(self, name: str) -> Array | None:
        """The integers of a value that are known now, sizes among them; None for other values."""
        found = self.types[name]
        if found.value is None:
            return None
        value = found.value
        settled = self.size(value) if isinstance(value, Size) else tuple(map(self.size, value))
        return replace(found, value=settled).sizes

    def is_known(self, name: str) -> bool:
        """Whether nothing is left to be run for a value."""
        return name in self.graph.constants or self.types[name].value is not None


def sizes_in(program: Program, name: str) -> tuple[Size, ...]:
    """The integers of a value that is known, one after the other."""
    found = program.numbers(name)
    return () if found is None else tuple(map(Size.of, found.reshape(-1)))
