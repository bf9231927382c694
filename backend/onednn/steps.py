"""Small dense batches, a stream's steps above all: bound beforehand, nothing is made in a call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np

from onernn.backend.onednn.chain import BLOCK
from onernn.backend.onednn.families import Family, FloatFamily, U8ChainFamily, U8Family
from onernn.backend.onednn.fixed import FLOAT32, FixedBatch, FloatBatch
from onernn.backend.onednn.fixed_u8 import BOUND, U8ChainBatch, U8PrimitiveBatch
from onernn.backend.onednn.library import Library
from onernn.core.arrays import Array
from onernn.core.ragged import Packing

LARGEST = 1 << 16
"""Most numbers of x and y: copying more would cost what is saved."""

SHAPES = 16
"""Most shapes that a layer keeps batches for."""


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
        if shape in self._expected:
            return
        made = _maker(self._library, shape, [family for (family,) in stack], packing)
        if made is None:
            return
        if len(self._expected) >= min(SHAPES, self._library.cache_capacity):
            self._expected.clear()
        self._expected[shape] = Expected(made, deque())

    def run(self, x: Any, state: Any) -> tuple[Array, tuple[Array, ...]] | None:
        """None for all that is not float32 in an expected shape, and so needs checks."""
        if type(x) is not np.ndarray or x.dtype != FLOAT32:
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


def _maker(
    library: Library, shape: tuple[int, ...], stack: Sequence[Family], packing: Packing
) -> Callable[[], FixedBatch] | None:
    """What makes a batch of this shape; None for a large one, and where none is exact."""
    first = stack[0]
    width = shape[-1] + first.spec.recurrent_size
    if not 0 < prod(shape[:-1]) * width <= LARGEST:
        return None
    if isinstance(first, FloatFamily):
        chosen = [family.primitive(packing) for family in cast(Sequence[FloatFamily], stack)]
        directions = [direction for direction in chosen if direction is not None]
        if len(directions) < len(stack):
            return None
        return partial(FloatBatch, library, directions, shape)
    if isinstance(first, U8Family):
        if first.scale(BOUND).shift % 1:  # a reorder's zero point is an integer
            return None
        return partial(U8PrimitiveBatch, library, cast(Sequence[U8Family], stack), shape)
    chains = cast(Sequence[U8ChainFamily], stack)
    if shape[0] > 1 or shape[1] > BLOCK or any(family.projected for family in chains):
        return None  # each step would have memories of its own
    return partial(U8ChainBatch, library, chains, shape)
