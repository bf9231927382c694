"""A binary file of arrays, read front to back: a hostile length is found out before it costs."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Self

import numpy as np

from onernn.core.arrays import Array, widened
from onernn.core.budget import FileBudget, loading
from onernn.core.errors import ModelFormatError
from onernn.core.records import dataclass


@dataclass
class ByteStream:
    """Little-endian. Every method raises `ModelFormatError` with the place where it stops."""

    raw: BufferedReader
    file: str | Path
    size: int
    budget: FileBudget
    at: int = 0

    @classmethod
    @contextmanager
    def opened(cls, file: str | Path) -> Iterator[Self]:
        try:
            with Path(file).open("rb") as raw:
                found, budget = os.fstat(raw.fileno()), loading()
                budget.reads(found)
                yield cls(raw, file, found.st_size, budget)
        except OSError as error:
            raise ModelFormatError(f"cannot be read: {error.strerror}", file) from error

    @property
    def left(self) -> int:
        return self.size - self.at

    def integer(self, form: str, what: str) -> int:
        return int(self.integers(form, what)[0])

    def integers(self, form: str, what: str) -> tuple[int, ...]:
        return struct.unpack(form, self.take(struct.calcsize(form), what))

    def take(self, count: int, what: str) -> bytes:
        self._expect(count, what)
        data = self.raw.read(count)
        self._advance(len(data), count, what)
        return data

    def checked_shape(
        self, sizes: Sequence[int], most: int, what: str, start: int
    ) -> tuple[int, ...]:
        """Beside a zero, sizes cost no bytes in the file, but NumPy multiplies them all."""
        elements = math.prod(size or 1 for size in sizes)
        if len(sizes) > most or min(sizes, default=0) < 0 or elements > 2**56:
            raise self.error(f"{what}: impossible shape {tuple(sizes)}", start)
        return tuple(sizes)

    def numbers(self, shape: tuple[int, ...], dtype: str, what: str) -> Array:
        """An aligned array of its own; bfloat16 as float32 of the same values."""
        kind = np.dtype({"bfloat16": "uint16", "bool": "uint8"}.get(dtype, dtype)).newbyteorder("<")
        count = math.prod(shape)
        self._expect(count * kind.itemsize, what)
        self.budget.take(count * kind.itemsize, what)
        flat: Array = np.empty(count, kind)
        self._advance(self.raw.readinto(flat.data), flat.nbytes, what)
        if dtype == "bfloat16":
            flat = widened(flat)
        elif dtype == "bool":  # a byte other than 0 and 1 would be a bool that is neither
            flat = flat != 0
        return flat.reshape(shape)

    def error(self, reason: str, at: int | None = None) -> ModelFormatError:
        return ModelFormatError(reason, self.file, self.at if at is None else at)

    def _expect(self, count: int, what: str) -> None:
        if count > self.left:
            raise self.error(f"{what}: expected {count} bytes more, {self.left} are left")

    def _advance(self, got: int, expected: int, what: str) -> None:
        if got != expected:  # the size was right when the file was opened
            raise self.error(f"{what}: the file shrank while it was read")
        self.at += expected
