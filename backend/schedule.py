"""Cuts a sorted packed batch into dense pieces that primitives run."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from onernn.core.ragged import Packing

LONGEST = 8
"""Most steps of one segment: lengths are powers of two up to it, which bounds the shapes."""


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


def single_steps(pieces: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """The same pieces step by step: one step has no direction."""
    return tuple(
        Segment(row + t * batch, 1, batch) for row, time, batch in pieces for t in range(time)
    )
