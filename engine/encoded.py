"""A plan on its way to the library: its numbers, and what Python does around a call."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from onernn.backend.compiled.stack import CompiledStack
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node
from onernn.core.records import dataclass
from onernn.core.sizes import Quotient, Size
from onernn.engine.program import Program
from onernn.engine.steps import Layer, kept


@dataclass
class Encoded:
    """A plan's words, and what Python does around a call.

    ``names``: of the open sizes. ``layers``: each with the numbers of its words and sentences.
    ``dims``: sizes of the inputs' axes, as a call gives them.
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
    layers: dict[int, tuple[Layer, int, int]] = field(default_factory=dict)
    stacks: list[CompiledStack] = field(default_factory=list)
    keeps: list[Any] = field(default_factory=list)
    arena: list[str] = field(default_factory=list)
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
        width = np.dtype(self.program.dtype(root)).itemsize
        return [self.place(name), self.place(root), self.size(start), width]

    def constant(self, array: Array, name: str = "") -> int:
        """The place of numbers that do not change, of a value or only of a step."""
        array = np.require(array, requirements=("C", "A"))
        self.keeps.append(array)
        place = self.place(name or kept(name, str(len(self.keeps))))
        self.constants += [place, array.ctypes.data]
        return place

    def words(self) -> list[int]:
        """What the library reads, when nothing is added any more."""
        at = {name: place for place, name in enumerate(self.dims)}
        made = [len(self.names), *(at.get(Size.of(name), -1) for name in self.names)]
        checks = [self.size(size) for size in self.dims]
        buffers = [self._buffer(name) for name in self.arena]
        outputs = [self._buffer(name)[1:3] for name in self.outputs]
        made += [len(self.polynomials)]
        for size, divisor in self.polynomials:
            made += [divisor, len(size.terms)]
            for factors, by in size.terms:
                made += [by, len(factors)]
                made += [
                    self.names.index(each) if isinstance(each, str) else self.sizes[each]
                    for each in factors
                ]
        made += [len(checks), *checks, len(self.places), len(buffers)]
        made += [word for buffer in buffers for word in buffer]
        made += [2 * len(outputs), *(word for output in outputs for word in output)]
        self.done = True
        made += [len(self.constants), *self.constants, len(self.steps)]
        for kind, words in self.steps:
            made += [kind, len(words), *words]
        return made

    def _buffer(self, name: str) -> tuple[int, ...]:
        """(place, most numbers, bytes of each, first step, last step)"""
        program, (first, last) = self.program, self.spans[name]
        width = np.dtype(program.dtype(name)).itemsize
        return self.places[name], self.size(program.most(name)), width, first, last
