"""The weights file: arrays one behind the other, each where a cache line begins."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError

STORED = {"f32": "float", "f16": "Half", "bf16": "BrainPair"}
"""C++ types by the command line's names."""
HEADER = 64
MAGIC = b"onernn01"


def narrowed(array: Array, stored: str) -> Array:
    """float32 -> the bits of ``stored``, rounded to nearest even.

    Raises `UnsupportedError` for a number that is too large for a half.
    """
    if stored == "float" or array.dtype != np.float32:
        return array
    if stored == "Half":
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        if not np.isfinite(half).all():
            raise UnsupportedError(
                f"--weights f16: a weight of {np.abs(array).max():.3g} is beyond 65504; use bf16"
            )
        return half
    bits = array.view(np.uint32)
    even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (even >> np.uint32(16)).astype(np.uint16)


def paired(panels: Array) -> Array:
    """(panels, K, ...) -> (panels, (K + 1) // 2, ..., 2): two rows side by side, a zero below."""
    count, k = panels.shape[:2]
    even = np.zeros((count, k + k % 2, *panels.shape[2:]), panels.dtype)
    even[:, :k] = panels
    return np.stack((even[:, ::2], even[:, 1::2]), axis=-1)


@dataclass
class Store:
    """Collects arrays; equal ones stand there once. ``stored``: what matrices become."""

    stored: str
    arrays: list[tuple[int, bytes]] = field(default_factory=list)
    size: int = HEADER
    _places: dict[bytes, int] = field(default_factory=dict)

    def add(self, array: Array, *, narrow: bool = False) -> int:
        """Where it begins in the file."""
        if narrow:
            array = narrowed(array, self.stored)
            array = paired(array) if array.dtype == np.uint16 else array
        data = np.ascontiguousarray(array).tobytes()
        key = hashlib.sha256(data).digest()
        if key not in self._places:
            self._places[key] = self.size
            self.arrays.append((self.size, data))
            self.size += -(-len(data) // 64) * 64
        return self._places[key]

    def whole(self) -> bytes:
        """The file: magic, fingerprint of what follows the first 64 bytes, arrays."""
        body = bytearray(self.size - HEADER)
        for at, data in self.arrays:
            body[at - HEADER : at - HEADER + len(data)] = data
        return MAGIC + self.fingerprint(body) + bytes(HEADER - 16) + bytes(body)

    @staticmethod
    def fingerprint(body: bytes | bytearray) -> bytes:
        """8 bytes that tell one file from another."""
        return hashlib.sha256(body).digest()[:8]
