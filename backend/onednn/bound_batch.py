"""A dense batch of one shape over buffers of its own, bound once: nothing is made in a call."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from onernn.backend.buffers import aligned
from onernn.backend.onednn.creation import argument
from onernn.backend.onednn.data_types import Copy, flat_memory, stored
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.memory import Memory, bind, new_stream
from onernn.backend.onednn.primitive_direction import PrimitiveDirection
from onernn.backend.onednn.primitives import WEIGHTS, Shape
from onernn.backend.repeated_batches import FLOAT32
from onernn.core.arrays import Array
from onernn.core.precision import UNIT, Scale
from onernn.core.spec import RnnSpec

Call = tuple[Any, int, Any]
"""A primitive, and the count and array of its arguments."""


class FixedBatch:
    """Buffers and calls; one execution at a time. Subclasses bind their layers, in `_computed`."""

    _y: Array  # float32 (T, N, O)
    _end: Sequence[Array]  # float32, ldnc each

    def __init__(self, library: Library, spec: RnnSpec, depth: int, shape: Any) -> None:
        self._library, self._stream = library, new_stream(library)
        self.hits, self._found = 0, depth  # primitives that calls found, and that each finds
        self._kept: list[Any] = []  # what C points to
        widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
        dims = [shape, *((depth, 1, shape[1], widths[state]) for state in spec.cell.states)]
        # One behind the other, from a cache line each, zeros between them: one pass reads several.
        ends = np.cumsum([-(-prod(each) // 16) * 16 for each in dims]).tolist()
        self._starts = [0, *ends[:-1]]
        self._given = self.buffer((ends[-1],), "f32")
        self._given.fill(0)
        self._x, *self._begin = [
            self._given[at : at + prod(each)].reshape(each)
            for at, each in zip(self._starts, dims, strict=True)
        ]

    def buffer(self, dims: Sequence[int], dtype: str) -> Array:
        kind = stored(dtype)
        return aligned(prod(dims) * kind.itemsize).view(kind).reshape(dims)

    def copy(self, source: Array, target: Array, scale: Scale = UNIT) -> Copy:
        """What fills a buffer with the numbers of another one, in its own data type."""
        made = Copy(flat_memory(self._library, source), flat_memory(self._library, target), scale)
        self._kept.append(made)
        return made

    def bound(self, direction: PrimitiveDirection, over: dict[str, Array]) -> Call:
        """The call of a primitive over the arrays of its data arguments."""
        time, batch, width = over["src_layer"].shape
        shape = Shape.packed(time, batch, width, over["dst_layer"].shape[-1])
        primitive = direction.primitives.get(shape)
        arguments = {}
        for name, layout in primitive.layouts.items():
            if name in WEIGHTS:
                memory = direction.primitives.weights(name, layout)
            else:
                memory = Memory(layout, over.get(name, aligned(layout.nbytes)))
            arguments[argument(self._library, name)] = memory
        self.hits -= 1  # finding it was none of a call
        self._kept.append((primitive, arguments))
        return primitive.handle, len(arguments), bind(self._library, arguments)

    def execute(self, calls: Sequence[Call]) -> None:
        execute, stream = self._library.lib.dnnl_primitive_execute, self._stream
        for primitive, count, arguments in calls:
            status = execute(primitive, stream, count, arguments)
            if status:
                self._library.check(status, "execution of a small batch")

    def run(
        self, x: Array, state: Sequence[Array] | None
    ) -> tuple[Array, tuple[Array, ...]] | None:
        """x (T, N, I) of this batch's shape, state (h,) or (h, c), each ldnc; all float32.

        None for a state that is anything else, and for numbers that need the ordinary way.
        """
        self._x[...] = x
        if state is None:
            for own in self._begin:
                own.fill(0)
        elif len(state) != len(self._begin):
            return None
        else:
            for own, s in zip(self._begin, state, strict=True):
                if type(s) is not np.ndarray or s.shape != own.shape or s.dtype != FLOAT32:
                    return None
                own[...] = s
        if not self._computed():
            return None
        self.hits += self._found
        return self._y.copy(), tuple([end.copy() for end in self._end])

    def _computed(self) -> bool:
        """Fills y and the final states, unless the numbers need the ordinary way."""
        raise NotImplementedError


class BoundFloatBatch(FixedBatch):
    """f32 and bf16 through RNN primitives, one a layer."""

    def __init__(self, library: Library, stack: Sequence[PrimitiveDirection], shape: Any) -> None:
        primitives = stack[0].primitives
        super().__init__(library, primitives.spec, len(stack), shape)
        precision = primitives.precision
        self._calls: list[Call] = []
        kinds = (precision.data, precision.cell)
        words = self._to(precision.data, self._x)
        begin = [self._to(kind, s) for s, kind in zip(self._begin, kinds, strict=False)]
        end = [np.zeros_like(s) for s in begin]
        for layer, direction in enumerate(stack):
            y = self.buffer((*shape[:2], primitives.spec.recurrent_size), precision.out)
            over = {"src_layer": words, "dst_layer": y}
            for name, source, target in zip(("iter", "iter_c"), begin, end, strict=False):
                over[f"src_{name}"], over[f"dst_{name}"] = source[layer], target[layer]
            self._calls.append(self.bound(direction, over))
            words = y
        self._y, *self._end = [self._to("f32", each) for each in (words, *end)]

    def _to(self, dtype: str, source: Array) -> Array:
        """A buffer that a call fills with the source's numbers, itself where they are that."""
        if source.dtype == stored(dtype):
            return source
        out = self.buffer(source.shape, dtype)
        self._calls.append(self.copy(source, out).call)
        return out

    def _computed(self) -> bool:
        self.execute(self._calls)
        return True
