"""What the arguments of a primitive are made of, and float32 to and from that."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.onednn.library import Library
from onernn.backend.onednn.memory import (
    Descriptor,
    Memory,
    bind,
    new_stream,
    reorder_primitive,
)
from onernn.core.arrays import Array


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
_STORED = {"f32": np.float32, "bf16": np.uint16, "f16": np.float16, "u8": np.uint8, "s8": np.int8}


class Scale(NamedTuple):
    """q = x * factor + shift, for u8 data."""

    factor: float
    shift: float


UNIT = Scale(127.0, 128.0)
"""[-1, 1], where every state of an LSTM or GRU lies."""


def stored(dtype: str) -> np.dtype[Any]:
    """NumPy's type for buffers of a oneDNN data type: the bits of a bfloat16 are an uint16."""
    return np.dtype(_STORED[dtype])


def narrowed(library: Library, array: Array, dtype: str, scale: Scale = UNIT) -> Array:
    """float32 -> a buffer of ``dtype``, a contiguous copy unless it is contiguous float32."""
    array = np.ascontiguousarray(array, np.float32)
    if dtype == "u8":
        out = array * np.float32(scale.factor)
        out += np.float32(scale.shift)
        np.rint(out, out=out)
        return np.clip(out, 0, 255, out=out).astype(np.uint8)
    return _converted(library, array, "f32", dtype)


def widened(library: Library, array: Array, dtype: str, scale: Scale = UNIT) -> Array:
    """A buffer of ``dtype`` -> float32."""
    if dtype == "u8":
        return (array.astype(np.float32) - np.float32(scale.shift)) / np.float32(scale.factor)
    return _converted(library, array, dtype, "f32")


def _converted(library: Library, array: Array, source: str, target: str) -> Array:
    if source == target:
        return array
    if "f16" in (source, target):
        with np.errstate(over="ignore"):  # beyond 65504 lies infinity, as in every f16 unit
            return array.astype(stored(target))
    flat = np.ascontiguousarray(array).reshape(-1)
    out = np.empty(flat.size, stored(target))
    at, threads = 0, library.current_threads
    while at < flat.size:
        # Powers of two: a handful of primitives serves every size.
        count = min(1 << ((flat.size - at).bit_length() - 1), 1 << 20)
        conversion = _Conversion.get(library, count, source, target, threads)
        conversion.run(flat[at:], out[at:])
        at += count
    return out.reshape(array.shape)


class _Conversion:
    """A reorder of a fixed count of numbers from one data type to another.

    Like every kernel it starts the threads that it was made for, whatever the caller has set:
    made for two it would wait forever for the second one after a fork.
    """

    def __init__(self, library: Library, count: int, source: str, target: str) -> None:
        self._library = library
        self._descriptors = [Descriptor.tagged(library, (count,), d, "a") for d in (source, target)]
        self._primitive = reorder_primitive(*self._descriptors)

    @staticmethod
    @lru_cache(maxsize=128)
    def get(library: Library, count: int, source: str, target: str, threads: int) -> _Conversion:
        return _Conversion(library, count, source, target)

    def run(self, source: Array, target: Array) -> None:
        lib = self._library.lib
        memories = {
            lib.DNNL_ARG_SRC: Memory(self._descriptors[0], source),
            lib.DNNL_ARG_DST: Memory(self._descriptors[1], target),
        }
        stream = new_stream(self._library)
        status = lib.dnnl_primitive_execute(
            self._primitive, stream, 2, bind(self._library, memories)
        )
        self._library.check(status, "conversion")
