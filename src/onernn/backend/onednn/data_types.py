"""What the arguments of a primitive are made of, and float32 to and from that."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Any

import numpy as np

from onernn.backend.onednn.creation import new_attributes
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.memory import (
    Descriptor,
    Memory,
    bind,
    new_stream,
    reorder_primitive,
)
from onernn.ir.arrays import Array
from onernn.ir.weights import UNIT, Scale

_STORED = {
    "f32": np.float32,
    "bf16": np.uint16,
    "f16": np.float16,
    "u8": np.uint8,
    "s8": np.int8,
    "s32": np.int32,
}

_SMALL = 1 << 12
"""Numbers that NumPy's passes over them, or converting them twice, cost less than a call."""


def stored(dtype: str) -> np.dtype[Any]:
    """NumPy's type for buffers of a oneDNN data type: the bits of a bfloat16 are an uint16."""
    return np.dtype(_STORED[dtype])


LARGEST = {"f32": 2.0**128, "bf16": 2.0**128 - 2.0**119, "f16": 65520.0, "u8": 2.0**128}
"""Magnitudes below these are finite numbers of the types that data are computed in."""


def narrowed(library: Library, array: Array, dtype: str, scale: Scale = UNIT) -> Array:
    """float32 -> a buffer of ``dtype``, a contiguous copy unless it is contiguous float32.

    u8 is rounded to the nearest, halves to even, and saturates. It has no NaN: the
    caller has looked for those.
    """
    array = np.ascontiguousarray(array, np.float32)
    if dtype == "u8" and (array.size < _SMALL or scale.shift % 1):
        # The same bits: sooner done for few numbers, and a reorder's zero point is an integer.
        out = array * np.float32(scale.factor)
        out += np.float32(scale.shift)
        return np.clip(np.rint(out, out=out), 0, 255, out=out).astype(np.uint8)
    return _converted(library, array, "f32", dtype, scale)


def widened(library: Library, array: Array, dtype: str, scale: Scale = UNIT) -> Array:
    """A buffer of ``dtype`` -> float32; of u8 times the rounded 1/factor, as products read it."""
    factor = 1 / scale.factor
    if dtype == "u8" and (array.size < 4 * _SMALL or scale.shift % 1):
        return (array.astype(np.float32) - np.float32(scale.shift)) * np.float32(factor)
    return _converted(library, array, dtype, "f32", Scale(factor, scale.shift))


def _converted(library: Library, array: Array, source: str, target: str, scale: Scale) -> Array:
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
        left = flat.size - at
        count = min(1 << (left.bit_length() - 1), 1 << 20)
        if at and count < _SMALL:  # a call costs more than converting some numbers twice
            count = 1 << (left - 1).bit_length()
            at = flat.size - count
        # A reorder starts the threads that it was made for, whatever the caller has set: made for
        # two it would wait forever for the second one after a fork.
        idle = _idle(library, count, source, target, threads)
        try:
            copy = idle.pop()
        except IndexError:
            begin, end = (Descriptor.tagged(library, (count,), k, "a") for k in (source, target))
            copy = Copy(Memory(begin), Memory(end))
        try:
            copy.run(flat[at:], out[at:], scale)
        finally:
            idle.append(copy)
        at += count
    return out.reshape(array.shape)


@lru_cache(maxsize=256)
def _idle(library: Library, count: int, source: str, target: str, threads: int) -> deque[Copy]:
    """Reorders of ``count`` numbers that no thread uses now."""
    return deque()


def flat_memory(library: Library, data: Array) -> Memory:
    """A memory over a contiguous array, its numbers in a row."""
    kinds = {np.dtype(kind): name for name, kind in _STORED.items()}
    return Memory(Descriptor.tagged(library, (data.size,), kinds[data.dtype], "a"), data)


class Copy:
    """A reorder from one memory to another, one of float32; for one execution at a time.

    To u8 q = x * factor + shift, from u8 x = (q - shift) * factor, the shift an integer; other
    types have no scale.
    """

    def __init__(self, source: Memory, target: Memory, scale: Scale = UNIT) -> None:
        library = self._library = target.descriptor.library
        lib, attributes = library.lib, None
        self._source, self._target, self._stream = source.handle, target.handle, new_stream(library)
        self.factor = np.array([scale.factor], np.float32)
        self._shift = np.array([scale.shift], np.int32)
        arguments = {lib.DNNL_ARG_SRC: source, lib.DNNL_ARG_DST: target}
        for side, memory in tuple(arguments.items()):
            if memory.descriptor.dtype == "u8":
                attributes = new_attributes(library, own_scratchpad=False)
                status = lib.dnnl_primitive_attr_set_scales_mask(attributes, lib.DNNL_ARG_SRC, 0)
                library.check(status, "scale")
                status = lib.dnnl_primitive_attr_set_zero_points_mask(attributes, side, 0)
                library.check(status, "shift")
                factor = flat_memory(library, self.factor)
                shift = flat_memory(library, self._shift)
                arguments[lib.DNNL_ARG_ATTR_SCALES | lib.DNNL_ARG_SRC] = factor
                arguments[lib.DNNL_ARG_ATTR_ZERO_POINTS | side] = shift
        primitive = reorder_primitive(source.descriptor, target.descriptor, attributes)
        self.call = primitive, len(arguments), bind(library, arguments)
        self._arguments = arguments  # the array does not keep them alive

    def run(self, source: Array, target: Array, scale: Scale) -> None:
        """Over contiguous arrays; what is beyond the memories' size is left alone."""
        lib, address = self._library.lib, self._library.ffi.from_buffer
        self.factor[0], self._shift[0] = scale
        lib.dnnl_memory_set_data_handle(self._source, address(source))
        lib.dnnl_memory_set_data_handle(self._target, address(target))
        primitive, count, arguments = self.call
        status = lib.dnnl_primitive_execute(primitive, self._stream, count, arguments)
        self._library.check(status, "conversion")
