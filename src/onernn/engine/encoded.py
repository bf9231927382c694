"""A plan on its way to the library: its numbers, and what Python does around a call."""

from __future__ import annotations

from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.compiled.backend import CompiledStack
from onernn.engine.program import Program
from onernn.engine.steps import kept
from onernn.ir.arrays import Array
from onernn.ir.budget import Recurrence
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Node
from onernn.ir.records import dataclass
from onernn.ir.types import Quotient, Size, volume


class EncodedLayer(NamedTuple):
    """A recurrent layer that the library runs, or Python where it takes long.

    ``words``, ``steps``: the numbers of the sizes that say how many rows it has, and how many steps
    the longest sequence has at most.
    """

    node: Node
    recurrence: Recurrence
    words: int
    steps: int


@dataclass
class Encoded:
    """A plan's words, and what Python does around a call.

    ``names``: of the open sizes. ``dims``: sizes of the inputs' axes, as a call gives them.
    ``inputs``: values and offsets that a call brings.
    ``outside``: the nodes that Python runs, by the number of their step; ``layers``: those that
    Python may run. ``places``: of values; ``keeps``: arrays that the words point to. ``open``: the
    jumps that do not know yet where to, and where loops begin; ``loops``: their first and last
    steps, inner ones first.
    """

    program: Program
    names: list[str]
    dims: list[Size]
    sizes: dict[Size | Quotient, int] = field(default_factory=dict)
    polynomials: list[tuple[Size, int]] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    constants: list[int] = field(default_factory=list)
    steps: list[tuple[int, list[int]]] = field(default_factory=list)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    outside: dict[int, Node] = field(default_factory=dict)
    layers: dict[int, EncodedLayer] = field(default_factory=dict)
    stacks: list[CompiledStack] = field(default_factory=list)
    keeps: list[Any] = field(default_factory=list)
    arena: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    loops: list[tuple[int, int]] = field(default_factory=list)
    done: bool = False

    def __post_init__(self) -> None:
        self._views = self.program.views

    def size(self, size: Any) -> int:
        """The number of a size."""
        size = self.program.size(size)
        if size.name in self.names:
            return self.names.index(size.name)
        if size.names - set(self.names):
            raise UnsupportedError(f"nobody tells the size {size}")
        return self._computed(size, size, 1)

    def _computed(self, key: Size | Quotient, whole: Size, by: int) -> int:
        """The number of a size, behind those of the quotients in it."""
        if key not in self.sizes:
            assert not self.done, f"{key}: the plan is made already"
            for inner in whole.quotients:
                self._computed(inner, inner.whole, inner.by)
            self.sizes[key] = len(self.names) + len(self.polynomials)
            self.polynomials.append((whole, by))
        return self.sizes[key]

    def root(self, name: str) -> str:
        """The value that another one stands inside of."""
        return self._views[name][0] if name in self._views else name

    def owner(self, name: str) -> str:
        """The value that is at the same place."""
        return name if name in self._views and self._views[name][1].terms else self.root(name)

    def place(self, name: str) -> int:
        """The number of where a value stands, for the next step."""
        root, now = self.root(name), len(self.steps)
        self.spans[root] = self.spans.get(root, (now,))[0], now
        return self.places.setdefault(self.owner(name), len(self.places))

    def view(self, name: str) -> list[int]:
        """(place, place of the value around it, first element, bytes of each)"""
        root, start = self._views[name]
        return [self.place(name), self.place(root), self.size(start), self.width(root)]

    def constant(self, array: Array, name: str = "") -> int:
        """The place of numbers that do not change, of a value or only of a step."""
        array = np.require(array, requirements=("C", "A"))
        self.keeps.append(array)
        place = self.place(name or kept(name, str(len(self.keeps))))
        self.constants += [place, array.ctypes.data, array.nbytes]
        return place

    def count(self, name: str, *, most: bool = False) -> int:
        """The number of the size that is how many numbers a value has, or may have at most."""
        if name in self.offsets:
            return self.size(self.offsets[name] + 1)
        program = self.program
        whole = program.size(volume(program.shape(name)))
        is_open = most and not program.inner.keys().isdisjoint(whole.names)
        return self.size(program.most(name) if is_open else whole)

    @property
    def offsets(self) -> dict[str, Size]:
        """How many sentences the offsets of each level are of."""
        return {level.offsets: level.count for level in self.program.lods.values()}

    def words(self) -> list[int]:
        """What the library reads, when nothing is added any more."""
        at = {name: place for place, name in enumerate(self.dims)}
        made = [len(self.names), *(at.get(Size.of(name), -1) for name in self.names)]
        checks = [self.size(size) for size in self.dims]
        buffers = [self._buffer(name) for name in self.arena]
        inputs, outputs = (list(map(self._given, names)) for names in (self.inputs, self.outputs))
        made += [len(self.polynomials)]
        for size, divisor in self.polynomials:
            made += [divisor, len(size.terms)]
            for factors, by in size.terms:
                made += [by, len(factors)]
                made += [
                    self.names.index(each) if isinstance(each, str) else self.sizes[each]
                    for each in factors
                ]
        roots = [self.places[self.root(name)] for name in self.places]
        made += [len(checks), *checks, len(roots), *roots]
        for each in (inputs, outputs, buffers):
            made += [len(each), *(word for buffer in each for word in buffer)]
        self.done = True
        made += [len(self.constants), *self.constants, len(self.steps)]
        for kind, words in self.steps:
            made += [kind, len(words), *words]
        return made

    def _given(self, name: str) -> tuple[int, ...]:
        """(place, numbers, most numbers, bytes of each) of a caller's memory"""
        counts = self.count(name), self.count(name, most=True)
        return self.places[name], *counts, self.width(name)

    def width(self, name: str) -> int:
        """The bytes of each of a value's numbers."""
        is_lod = name in self.offsets
        return np.dtype("int64" if is_lod else self.program.dtype(name)).itemsize

    def _buffer(self, name: str) -> tuple[int, ...]:
        """(place, most numbers, bytes of each, first step, last step)"""
        program, (first, last) = self.program, self.spans[name]
        return self.places[name], self.size(program.most(name)), self.width(name), first, last
