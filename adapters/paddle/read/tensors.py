"""Paddle's tensor stream: what a .pdiparams file, or one file a parameter, holds."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np

from onernn.adapters.paddle import messages
from onernn.core.arrays import Array, widened
from onernn.core.budget import FileBudget, loading
from onernn.core.errors import ModelFormatError

# Bounds that keep a hostile length field from costing time or memory before it is found out.
_MOST_AXES = 9  # DDim::kMaxRank of Paddle
_MOST_LEVELS = 16  # of LoD; nobody nests as deep
_MOST_DESCRIPTION = 4096  # bytes of a TensorDesc; 9 axes make 101


def read_tensors(file: Path, elements: Mapping[str, int | None]) -> dict[str, Array]:
    """The tensors by name, read-only, of a file that holds these in this order and nothing else.

    ``elements``: how many each must have, None where the program does not tell. Each tensor is
    read straight into an aligned array of its own: mapped memory would be at odd addresses, and
    would change or vanish under a running model when the file is saved again.
    """
    try:
        with file.open("rb") as raw:
            found, budget = os.fstat(raw.fileno()), loading()
            budget.reads(found)
            stream = _Stream(raw, file, found.st_size, budget)
            tensors = {name: stream.tensor(name, count) for name, count in elements.items()}
    except OSError as error:
        raise ModelFormatError(f"cannot be read: {error.strerror}", file) from error
    if stream.left:
        raise ModelFormatError(
            f"{stream.left} bytes are left after the last of {len(elements)} parameters;"
            " it belongs to another program",
            file,
            stream.at,
        )
    return tensors


@dataclass
class _Stream:
    raw: BufferedReader
    file: Path
    size: int
    budget: FileBudget
    at: int = 0

    @property
    def left(self) -> int:
        return self.size - self.at

    def tensor(self, name: str, elements: int | None) -> Array:
        """u32 0 | LoD, ignored | u32 0 | i32 length, TensorDesc | data, all little-endian."""
        what = f"parameter {name!r}"
        self._version(what)
        start = self.at
        if (levels := self._integer("<Q", what)) > _MOST_LEVELS:
            raise self._error(f"{what}: {levels} LoD levels", start)
        for level in range(levels):
            start = self.at
            if (length := self._integer("<Q", what)) % 8:
                raise self._error(f"{what}: LoD level {level} of {length} bytes", start)
            self._take(length, what)
        self._version(what)
        start = self.at
        dims, kind = self._description(what)
        count = math.prod(dims)
        if elements not in (None, count):
            raise self._error(f"{what}: the program wants {elements} elements, got {dims}", start)
        dtype = np.dtype("uint16" if kind == "bfloat16" else kind).newbyteorder("<")
        self._expect(count * dtype.itemsize, f"{what}, {kind} {dims}")
        self.budget.take(count * dtype.itemsize, what)
        flat: Array = np.empty(count, dtype)
        self._advance(self.raw.readinto(flat.data), flat.nbytes, what)
        if kind == "bfloat16":
            flat = widened(flat)
        elif kind == "bool":  # a byte other than 0 and 1 would be a bool that is neither
            flat = flat.view(np.uint8) != 0
        flat.flags.writeable = False
        return flat.reshape(dims)

    def _description(self, what: str) -> tuple[tuple[int, ...], str]:
        start = self.at
        length = self._integer("<i", what)
        if not 0 < length <= _MOST_DESCRIPTION:
            raise self._error(f"{what}: a description of {length} bytes", start)
        start = self.at
        desc = messages.parse("TensorDesc", self._take(length, what), self.file, start)
        if desc.data_type not in messages.DTYPES:
            raise self._error(f"{what}: unknown data type {desc.data_type}", start)
        dims = tuple(desc.dims)
        # Beside a zero, sizes cost no bytes in the file, but NumPy multiplies them all the same.
        most = math.prod(size or 1 for size in dims)
        if len(dims) > _MOST_AXES or min(dims, default=0) < 0 or most > 2**56:
            raise self._error(f"{what}: impossible shape {dims}", start)
        return dims, messages.DTYPES[desc.data_type]

    def _version(self, what: str) -> None:
        start = self.at
        if version := self._integer("<I", what):
            raise self._error(f"{what}: expected tensor version 0, got {version}", start)

    def _integer(self, form: str, what: str) -> int:
        value: int = struct.unpack(form, self._take(struct.calcsize(form), what))[0]
        return value

    def _take(self, count: int, what: str) -> bytes:
        self._expect(count, what)
        data = self.raw.read(count)
        self._advance(len(data), count, what)
        return data

    def _expect(self, count: int, what: str) -> None:
        if count > self.left:
            raise self._error(f"{what}: expected {count} bytes more, {self.left} are left")

    def _advance(self, got: int, expected: int, what: str) -> None:
        if got != expected:  # the size was right when the file was opened
            raise self._error(f"{what}: the file shrank while it was read")
        self.at += expected

    def _error(self, reason: str, at: int | None = None) -> ModelFormatError:
        return ModelFormatError(reason, self.file, self.at if at is None else at)
