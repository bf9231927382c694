"""Data types of a layer, and the scales of u8: known before any library is."""

from __future__ import annotations

import math
from typing import NamedTuple


class Precision(NamedTuple):
    """Data types by argument, as the guide's table of data types combines them."""

    data: str  # src_layer, src_iter, dst_iter, attention
    weights: str
    bias: str
    cell: str  # src_iter_c, dst_iter_c
    out: str  # dst_layer


PRECISIONS = {
    "f32": Precision("f32", "f32", "f32", "f32", "f32"),
    "bf16": Precision("bf16", "bf16", "f32", "f32", "bf16"),
    "f16": Precision("f16", "f16", "f32", "f32", "f16"),
    # s8 data would clip negative states to 0 in several cells: u8 with a shift serves instead.
    "u8": Precision("u8", "s8", "f32", "f32", "f32"),
}


class Scale(NamedTuple):
    """q = x * factor + shift, for u8 data."""

    factor: float
    shift: float


UNIT = Scale(127.0, 128.0)
"""[-1, 1], where every state of an LSTM or GRU lies."""


class U8Options:
    """How u8 data is scaled: q = x * data_scale + data_shift, for data and states alike.

    Without a scale every batch's own range decides: x / 2**k fits [-1, 1], and 2**k moves into
    the input weights before they are rounded, so that the states keep the whole range.
    """

    def __init__(self, data_scale: float | None, data_shift: float, per_channel: bool) -> None:
        if data_scale is not None and not 0 < data_scale < math.inf:
            raise ValueError(f"data_scale: expected a positive number, got {data_scale}")
        if not 0 <= data_shift <= 255:
            raise ValueError(f"data_shift: expected 0 to 255, got {data_shift}")
        self.per_channel = per_channel
        self.fixed = None if data_scale is None else Scale(data_scale, data_shift)
