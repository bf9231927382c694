"""Small dense batches, a stream's steps above all: bound beforehand, nothing is made in a call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.onednn.creation import argument
from onernn.backend.onednn.direction import Direction
from onernn.backend.onednn.families import Family, FloatFamily
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.memory import (
    Descriptor,
    Memory,
    aligned,
    bind,
    new_stream,
    reorder_primitive,
)
from onernn.backend.onednn.numbers import Precision, stored
from onernn.backend.onednn.primitives import WEIGHTS, Shape
from onernn.core.arrays import Array
from onernn.core.ragged import Packing

LARGEST = 1 << 16
"""Most numbers of x and y: copying more would cost what is saved."""

_FLOAT = np.dtype(np.float32)

SHAPES = 16
"""Most shapes that a layer keeps batches for."""


class FixedBatch:
    """A dense batch of one shape, bound to buffers of its own; one execution at a time."""

    def __init__(
        self, library: Library, stack: Sequence[Direction], precision: Precision, shape: Any
    ) -> None:
        time, batch, _ = shape
        self._library, self._stream = library, new_stream(library)
        self._depth, self.hits = len(stack), -len(stack)  # making it finds the primitives first
        self._calls: list[tuple[Any, int, Any]] = []
        self._memories: list[Memory] = []
        spec = stack[0].primitives.spec
        depth = (len(stack), 1, batch)
        widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
        kinds = {"h": precision.data, "c": precision.cell}
        states = spec.cell.states
        self._x = self._buffer(shape, "f32")
        self._begin = [self._buffer((*depth, widths[s]), "f32") for s in states]
        words = self._converted(self._x, "f32", precision.data)
        begin = [
            self._converted(wide, "f32", kinds[s])
            for s, wide in zip(states, self._begin, strict=True)
        ]
        end = [np.zeros_like(s) for s in begin]
        for layer, direction in enumerate(stack):
            y = self._buffer((time, batch, spec.recurrent_size), precision.out)
            over = {"src_layer": words, "dst_layer": y}
            for name, source, target in zip(("iter", "iter_c"), begin, end, strict=False):
                over[f"src_{name}"], over[f"dst_{name}"] = source[layer], target[layer]
            self._bind(direction, over)
            words = y
        self._y = self._converted(words, precision.out, "f32")
        self._end = [
            self._converted(narrow, kinds[s], "f32") for s, narrow in zip(states, end, strict=True)
        ]

    def _buffer(self, dims: Sequence[int], dtype: str) -> Array:
        kind = stored(dtype)
        return aligned(prod(dims) * kind.itemsize).view(kind).reshape(dims)

    def _converted(self, source: Array, kind: str, target: str) -> Array:
        """A buffer that a call fills with the source's numbers, itself where they are that."""
        if kind == target:
            return source
        out = self._buffer(source.shape, target)
        sides = [
            Memory(Descriptor.tagged(self._library, (a.size,), k, "a"), a)
            for a, k in ((source, kind), (out, target))
        ]
        primitive = reorder_primitive(*(side.descriptor for side in sides))
        self._call(primitive, {"src": sides[0], "dst": sides[1]})
        return out

    def _bind(self, direction: Direction, over: dict[str, Array]) -> None:
        time, batch, width = over["src_layer"].shape
        shape = Shape.packed(time, batch, width, over["dst_layer"].shape[-1])
        primitive = direction.primitives.get(shape)
        memories = {}
        for name, layout in primitive.layouts.items():
            if name in WEIGHTS:
                memories[name] = direction.primitives.weights(name, layout)
            else:
                memories[name] = Memory(layout, over.get(name, aligned(layout.nbytes)))
        self._call(primitive.handle, memories)

    def _call(self, primitive: Any, memories: dict[str, Memory]) -> None:
        numbered = {argument(self._library, name): each for name, each in memories.items()}
        self._calls.append((primitive, len(numbered), bind(self._library, numbered)))
        self._memories += memories.values()

    def run(
        self, x: Array, state: Sequence[Array] | None
    ) -> tuple[Array, tuple[Array, ...]] | None:
        """x (T, N, I) of this batch's shape, state (h,) or (h, c), each ldnc; all float32.

        None for a state that is anything else.
        """
        self.hits += self._depth
        self._x[...] = x
        if state is None:
            for own in self._begin:
                own.fill(0)
        elif len(state) != len(self._begin):
            return None
        else:
            for own, s in zip(self._begin, state, strict=True):
                if type(s) is not np.ndarray or s.shape != own.shape or s.dtype != _FLOAT:
                    return None
                own[...] = s
        execute, stream = self._library.lib.dnnl_primitive_execute, self._stream
        for primitive, count, arguments in self._calls:
            status = execute(primitive, stream, count, arguments)
            if status:
                self._library.check(status, "execution of a small batch")
        return self._y.copy(), tuple([end.copy() for end in self._end])


class Expected(NamedTuple):
    """A shape: how a batch of it is made, and those that no thread uses now."""

    made: Callable[[], FixedBatch]
    idle: deque[FixedBatch]


class FixedBatches:
    """Fixed batches of a layer for each shape that came before, one for each thread at a time."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._expected: dict[tuple[int, ...], Expected] = {}

    def expect(
        self, shape: tuple[int, ...], stack: Sequence[Sequence[Family]], packing: Packing
    ) -> None:
        """A batch (T, N, I) came: more are likely. None are kept if large, or not on primitives."""
        chosen = [
            family.primitive(packing) for (family,) in stack if isinstance(family, FloatFamily)
        ]
        directions = [direction for direction in chosen if direction is not None]
        if len(directions) < len(stack):
            return
        width = shape[-1] + directions[0].primitives.spec.recurrent_size
        if 0 < prod(shape[:-1]) * width <= LARGEST:
            if len(self._expected) >= min(SHAPES, self._library.cache_capacity):
                self._expected.clear()
            made = partial(FixedBatch, self._library, directions, stack[0][0].precision, shape)
            self._expected.setdefault(shape, Expected(made, deque()))

    def run(self, x: Any, state: Any) -> tuple[Array, tuple[Array, ...]] | None:
        """None for all that is not float32 in an expected shape, and so needs checks."""
        if type(x) is not np.ndarray or x.dtype != _FLOAT:
            return None
        expected = self._expected.get(x.shape)
        if expected is None:
            return None
        try:
            batch = expected.idle.pop()
        except IndexError:
            batch = expected.made()
        try:
            return batch.run(x, state)
        finally:
            expected.idle.append(batch)

    def hits(self) -> int:
        """Primitives found by calls, without those of shapes that were forgotten since."""
        kept = list(self._expected.values())
        return sum(batch.hits for each in kept for batch in each.idle.copy())
