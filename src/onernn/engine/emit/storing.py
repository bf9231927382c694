"""The weights file: arrays one behind the other, each where a cache line begins."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np

from onernn.backend.compiled.packing import Numbers
from onernn.ir.records import dataclass

HEADER = 64
MAGIC = b"onernn01"


@dataclass
class Store(Numbers):
    """The arrays of a file, behind its header."""

    size: int = HEADER
    places: dict[Any, Any] = field(default_factory=dict)
    """C++ of what steps have packed, by them."""
    packed_for: object = None
    """The program whose arrays these are."""
    layers: str = ""
    """How matrices of recurrent layers are stored, in C++; "": as all others."""

    @contextmanager
    def storing(self, stored: str) -> Iterator[None]:
        """Matrices that are added meanwhile are stored so."""
        before, self.stored = self.stored, stored
        try:
            yield
        finally:
            self.stored = before

    def whole(self) -> bytes:
        """The file: magic, fingerprint of what follows the first 64 bytes, arrays."""
        data = np.zeros(self.size, np.uint8)
        self.write(data)
        body = data[HEADER:].tobytes()
        return MAGIC + self.fingerprint(body) + bytes(HEADER - 16) + body

    @staticmethod
    def fingerprint(body: bytes) -> bytes:
        """8 bytes that tell one file from another."""
        return hashlib.sha256(body).digest()[:8]
