"""Array aliases, and functions that freeze and digest arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from mmap import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Int64 = npt.NDArray[np.int64]
else:
    Array = Int64 = np.ndarray

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def frozen(array: Array) -> Array:
    """Returns a contiguous read-only array with the same values; copies the array if it is
    writable.

    The result is ``array`` itself if ``array`` is read-only and owns its memory, or if its memory
    is bytes or a mapped file.
    """
    if type(array) is np.ndarray and array.flags.c_contiguous and not _writable(array):
        return array
    out = np.ascontiguousarray(array)
    if out.shape != np.shape(array):  # ascontiguousarray turns a scalar into a vector
        out = out.reshape(np.shape(array))
    if _writable(out) and np.shares_memory(out, array):
        out = out.copy()
    out.flags.writeable = False
    return out


def seal(fresh: Array) -> Array:
    """Makes an array read-only and returns it. No other array may share its memory. `frozen` does
    not copy the result.
    """
    array: Any = fresh
    while isinstance(array, np.ndarray):
        array.flags.writeable = False
        array = array.base
    return fresh


def _writable(array: Any) -> bool:
    """Returns whether the array's memory may change: by writes to the array, or by writes to the
    object that owns the memory.

    A read-only array may share the memory of a writable tensor, a bytearray or a DLPack object.
    """
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    while isinstance(array, memoryview):
        array = array.obj
    if array is None:
        return False
    return not isinstance(array, bytes | mmap) or not memoryview(array).readonly


def widen_bfloat16(bits: Array) -> Array:
    """Returns the float32 values of bfloat16 numbers.

    Each uint16 in ``bits`` holds one bfloat16, the upper 16 bits of a float32.
    """
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def bfloat16_bits(array: Array) -> Array:
    """Returns the bfloat16 nearest to each float32, ties to even, as uint16; NaN stays NaN."""
    numbers = np.ascontiguousarray(array, np.float32)
    bits = numbers.view(np.uint32)
    even = bits >> np.uint32(16)
    even &= np.uint32(1)
    even += np.uint32(0x7FFF)
    even += bits
    even >>= np.uint32(16)
    out = even.astype(np.uint16)
    if np.isnan(np.vdot(numbers, numbers)):  # rounding up may turn NaN into infinity or zero
        out[np.isnan(numbers)] = 0x7FC0
    return out


def same_array(one: Array, other: Array) -> bool:
    """Returns whether both have the same dtype, shape and values."""
    return one.dtype == other.dtype and np.array_equal(one, other)


def same_bytes(one: Array, other: Array) -> bool:
    """Returns whether two arrays hold the same bytes (by memcmp); False if one is not
    contiguous.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not (one.flags.c_contiguous and other.flags.c_contiguous):
        return False
    return not _memcmp(one.ctypes.data, other.ctypes.data, one.nbytes)


def digest(value: Any) -> str:
    """Returns the SHA-256 of all arrays, texts and numbers in a value, except fields named
    ``origin``.
    """
    from hashlib import sha256  # loads OpenSSL

    result = sha256()
    _add(value, result.update)
    return result.hexdigest()


def _add(value: Any, update: Callable[[Any], None]) -> None:
    """Passes the type, length and content of a value to ``update`` as bytes; different values
    result in different bytes.
    """
    parts: list[Any]
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        update(f"{array.dtype.str}{array.shape}".encode())
        update(array.view(np.uint8).data if array.size else b"")
        return
    if isinstance(value, Mapping):
        parts = [part for item in sorted(value.items(), key=lambda i: str(i[0])) for part in item]
    elif is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value) if field.name != "origin"]
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, set | frozenset):
        parts = sorted(value, key=str)
    else:
        update(f"{type(value).__name__} {value!r};".encode(errors="surrogatepass"))
        return
    update(f"{type(value).__name__} {len(parts)}:".encode())
    for part in parts:
        _add(part, update)
