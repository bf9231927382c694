"""LoD tensors <-> oneDNN's TNC and NTC, and <-> the sorted packed layout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onernn.ir.arrays import Array
from onernn.ir.ragged import Packing, Ragged, Side

Lod = Sequence[npt.ArrayLike]


def padding_side(right2left: bool) -> Side:
    """Where padding may stand so that a recurrence meets it after the words, never before."""
    return "left" if right2left else "right"


def to_tnc(data: Array, lod: Lod, *, right2left: bool = False) -> Array:
    """Words (W, C) -> (T, N, C), zeros where a recurrence in that direction ends."""
    return Ragged.from_lod(data, lod).to_padded(time_major=True, side=padding_side(right2left))


def from_tnc(tnc: Array, lod: Lod, *, right2left: bool = False) -> Array:
    """(T, N, C) -> words (W, C); the inverse of `to_tnc`."""
    return from_ntc(tnc.swapaxes(0, 1), lod, right2left=right2left)


def to_ntc(data: Array, lod: Lod, *, right2left: bool = False) -> Array:
    """Words (W, C) -> (N, T, C), zeros where a recurrence in that direction ends."""
    return Ragged.from_lod(data, lod).to_padded(side=padding_side(right2left))


def from_ntc(ntc: Array, lod: Lod, *, right2left: bool = False) -> Array:
    """(N, T, C) -> words (W, C); the inverse of `to_ntc`."""
    offsets = np.asarray(lod[-1])
    side = padding_side(right2left)
    return Ragged.from_padded(ntc, np.diff(offsets), side=side).data


def to_packed(data: Array, lod: Lod) -> tuple[Array, Packing]:
    """Words (W, C) -> sorted packed (W, C), and the index that leads back."""
    packing = Ragged.from_lod(data, lod).packing
    return packing.pack(data), packing


def from_packed(packed: Array, lod: Lod) -> Array:
    """Sorted packed (W, C) -> words (W, C); the inverse of `to_packed`."""
    return Ragged.from_lod(packed, lod).packing.unpack(packed)
