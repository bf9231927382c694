"""Cuts batches: into shares, a thread each, and a share's steps into dense pieces."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.ragged import Ragged
from onernn.reorders.lod import Packing

LONGEST = 8
"""Most steps of one segment: lengths are powers of two up to it, which bounds the shapes."""


LARGE = 512
"""Use OpenMP inside kernels from this H on: each core keeps its part of the weights in cache."""

LEAST_SHARE = 8
"""Fewest sentences of a share: with fewer, products cost as much for half of them."""


class Share(NamedTuple):
    """Some of a batch's sentences: where their words and they stand, and their packing."""

    rows: Array | slice
    sentences: Array | slice
    packing: Packing


def shares(x: Ragged | Array, count: int) -> list[Share]:
    """The batch, dealt out sentence by sentence to ``count`` threads; whole where it is small.

    Words of a dense batch (T, N, I) are counted row by row, as they lie in memory.
    """
    if isinstance(x, Ragged):
        packing = Packing.of(x.offsets)
        few = len(packing.last) < LEAST_SHARE * count
        parts = (packing,) if few or count == 1 else packing.parts(count)
        return [Share(part.rows, part.order, part) for part in parts]
    time, batch = x.shape[:2]
    if count == 1 or batch < LEAST_SHARE * count:
        return [Share(slice(None), slice(None), Packing.rectangle(time, batch))]
    steps = np.arange(time)[:, None] * batch
    dealt = [np.arange(first, batch, count) for first in range(count)]
    return [
        Share((steps + some).reshape(-1), some, Packing.rectangle(time, len(some)))
        for some in dealt
    ]


class Segment(NamedTuple):
    """``time`` steps of the first ``batch`` sentences: packed rows row ... row + time * batch."""

    row: int
    time: int
    batch: int


def segments(packing: Packing) -> tuple[Segment, ...]:
    """The pieces of a packed batch in the order of time; a rectangle stays in one piece."""
    return _segments(packing.batch_sizes.tobytes())


@lru_cache(maxsize=64)
def _segments(batch_sizes: bytes) -> tuple[Segment, ...]:
    sizes = np.frombuffer(batch_sizes, np.int64)
    starts = np.flatnonzero(np.diff(sizes, prepend=-1))
    lengths = np.diff(starts, append=len(sizes))
    if len(starts) == 1:
        return (Segment(0, len(sizes), int(sizes[0])),)
    pieces, row = [], 0
    for batch, left in zip(sizes[starts].tolist(), lengths.tolist(), strict=True):
        while left:
            time = min(LONGEST, 1 << (left.bit_length() - 1))
            pieces.append(Segment(row, time, batch))
            row += time * batch
            left -= time
    return tuple(pieces)


def in_odd_pieces(packing: Packing) -> Array:
    """(n, 1), whether an odd number of pieces holds each sorted sentence that has words."""
    return _in_odd_pieces(packing.batch_sizes.tobytes())


@lru_cache(maxsize=64)
def _in_odd_pieces(batch_sizes: bytes) -> Array:
    batches = np.array([piece.batch for piece in _segments(batch_sizes)], np.int64)
    running = np.arange(batches.max(initial=0))
    return np.searchsorted(-batches, -running)[:, None] % 2 == 1


def single_steps(pieces: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """The same pieces step by step: one step has no direction."""
    return tuple(
        Segment(row + t * batch, 1, batch) for row, time, batch in pieces for t in range(time)
    )
