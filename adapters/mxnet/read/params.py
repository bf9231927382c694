"""MXNet's files of arrays: .params of every version, and the npz of MXNet 2."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np

from onernn.core.arrays import Array, widened
from onernn.core.budget import FileBudget, loading
from onernn.core.errors import ModelFormatError, OnernnError
from onernn.core.npz import read_member
from onernn.core.ragged import Ragged

LIST_MAGIC = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
DENSE, ROW_SPARSE, CSR = 0, 1, 2
_AUXILIARIES = {DENSE: (), ROW_SPARSE: ("indices",), CSR: ("indptr", "indices")}
BFLOAT16 = 12
DTYPES = {
    **{0: "<f4", 1: "<f8", 2: "<f2", 3: "u1", 4: "<i4", 5: "i1", 6: "<i8", 7: "?", 8: "<i2"},
    **{9: "<u2", 10: "<u4", 11: "<u8", BFLOAT16: "<u2"},
}
# Bounds that keep a hostile length from costing time or memory before it is found out.
_MOST_AXES = 32
_MOST_NAME = 4096


def read_params(file: str | Path) -> dict[str, Array]:
    """The arrays of a file by their keys, read-only and dense; bfloat16 ones as float32.

    An array that MXNet saved as None is left out; arrays without keys get their positions.
    Raises `ModelFormatError` with the place for a file that is none.
    """
    try:
        with Path(file).open("rb") as raw:
            found, budget = os.fstat(raw.fileno()), loading()
            budget.reads(found)
            if raw.read(4) == b"PK\x03\x04":
                arrays = _read_npz(raw, file, budget)
            else:
                raw.seek(0)
                arrays = _Stream(raw, file, found.st_size, budget).arrays()
    except OSError as error:
        raise ModelFormatError(f"cannot be read: {error.strerror}", file) from error
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


@dataclass
class _Stream:
    """Little-endian. Layout: NDArray::Save, Load and LegacyLoad in src/ndarray/ndarray.cc."""

    raw: BufferedReader
    file: str | Path
    size: int
    budget: FileBudget
    at: int = 0

    def arrays(self) -> dict[str, Array]:
        """u64 magic, u64 0 | u64 n, n arrays | u64 m, m * (u64 length, bytes)."""
        if (magic := self._integer("<Q", "the file")) != LIST_MAGIC:
            raise self._error(f"expected the magic number 0x112, got {magic:#x}", 0)
        self._integer("<Q", "the file")
        # Each takes bytes of the file: a count that is too large runs out of them.
        arrays = [self._array(f"array {n}") for n in range(self._integer("<Q", "the file"))]
        start = self.at
        count = self._integer("<Q", "the keys")
        if count not in (0, len(arrays)):
            raise self._error(f"{count} keys for {len(arrays)} arrays", start)
        keys = [self._key(n) for n in range(count)] or list(map(str, range(len(arrays))))
        if len(set(keys)) != len(keys):
            raise self._error("a key stands there twice", start)
        if self.at != self.size:
            raise self._error(f"{self.size - self.at} bytes are left after the last key")
        return {key: a for key, a in zip(keys, arrays, strict=True) if a is not None}

    def _key(self, n: int) -> str:
        start, what = self.at, f"key {n}"
        if (length := self._integer("<Q", what)) > _MOST_NAME:
            raise self._error(f"{what}: {length} bytes long", start)
        try:
            return self._take(length, what).decode()
        except UnicodeDecodeError as error:
            raise self._error(f"{what}: no UTF-8", start) from error

    def _array(self, what: str) -> Array | None:
        start = self.at
        magic = self._integer("<I", what)
        if magic in (V2, V3):
            return self._typed_array(what, numpy=magic == V3)
        # V1 writes a shape of int64; the oldest form has no magic, it begins with the rank.
        rank = self._integer("<I", what) if magic == V1 else magic
        if rank > _MOST_AXES:
            raise self._error(
                f"{what}: {magic:#x} is neither a known magic number nor a rank", start
            )
        shape = self._sizes(rank, "q" if magic == V1 else "I", what, start)
        if not shape:
            return None
        self._take(8, what)  # the device
        return self._numbers(shape, self._dtype(what), what)

    def _typed_array(self, what: str, *, numpy: bool) -> Array | None:
        start = self.at
        storage = self._integer("<i", what)
        if storage not in _AUXILIARIES:
            raise self._error(f"{what}: unknown storage type {storage}", start)
        if storage != DENSE:
            self._shape(what)  # of the stored numbers: wrong where MXNet saved before it was done
        shape = self._shape(what)
        if shape is None or (not shape and not numpy):
            return None
        self._take(8, what)  # the device
        dtype = self._dtype(what)
        kinds = [(self._dtype(what), self._shape(what)) for _ in _AUXILIARIES[storage]]
        counts = [sizes[0] if sizes and len(sizes) == 1 else -1 for _, sizes in kinds]
        if min(counts, default=0) < 0:
            raise self._error(f"{what}: positions of a sparse array are no list", start)
        stored = {ROW_SPARSE: (*counts[:1], *shape[1:]), CSR: tuple(counts[1:])}
        data = self._numbers(stored.get(storage, shape), dtype, what)
        auxiliaries = [self._numbers(sizes or (), kind, what) for kind, sizes in kinds]
        if storage == DENSE:
            return data
        self.budget.take(math.prod(shape) * data.dtype.itemsize, f"{what}, a dense {shape},")
        try:
            return _dense(storage, shape, data, *auxiliaries)
        except (ValueError, IndexError, TypeError) as error:
            raise self._error(f"{what}: its sparse parts do not fit: {error}", start) from error

    def _shape(self, what: str) -> tuple[int, ...] | None:
        """i32 rank, i64 sizes; a negative rank: None."""
        start = self.at
        rank = self._integer("<i", what)
        return None if rank < 0 else self._sizes(rank, "q", what, start)

    def _sizes(self, rank: int, form: str, what: str, start: int) -> tuple[int, ...]:
        if rank > _MOST_AXES:
            raise self._error(f"{what}: {rank} axes", start)
        form = f"<{rank}{form}"
        sizes: tuple[int, ...] = struct.unpack(form, self._take(struct.calcsize(form), what))
        # Beside a zero, sizes cost no bytes in the file, but NumPy multiplies them all the same.
        if min(sizes, default=0) < 0 or math.prod(size or 1 for size in sizes) > 2**56:
            raise self._error(f"{what}: impossible shape {sizes}", start)
        return sizes

    def _dtype(self, what: str) -> int:
        start = self.at
        code = self._integer("<i", what)
        if code not in DTYPES:
            raise self._error(f"{what}: unknown data type {code}", start)
        return code

    def _numbers(self, shape: tuple[int, ...], code: int, what: str) -> Array:
        dtype = np.dtype(DTYPES[code])
        count = math.prod(shape)
        self._expect(count * dtype.itemsize, what)
        # A byte other than 0 and 1 would be a bool that is neither.
        self.budget.take(count * dtype.itemsize, what)
        flat: Array = np.empty(count, np.uint8 if dtype.kind == "b" else dtype)
        if self.raw.readinto(flat.data) != flat.nbytes:
            raise self._error(f"{what}: the file shrank while it was read")
        self.at += flat.nbytes
        if code == BFLOAT16:
            flat = widened(flat)
        return (flat != 0 if dtype.kind == "b" else flat).reshape(shape)

    def _integer(self, form: str, what: str) -> int:
        value: int = struct.unpack(form, self._take(struct.calcsize(form), what))[0]
        return value

    def _take(self, count: int, what: str) -> bytes:
        self._expect(count, what)
        data = self.raw.read(count)
        if len(data) != count:
            raise self._error(f"{what}: the file shrank while it was read")
        self.at += count
        return data

    def _expect(self, count: int, what: str) -> None:
        left = self.size - self.at
        if count > left:
            raise self._error(f"{what}: expected {count} bytes more, {left} are left")

    def _error(self, reason: str, at: int | None = None) -> ModelFormatError:
        return ModelFormatError(reason, self.file, self.at if at is None else at)


def _dense(storage: int, shape: tuple[int, ...], data: Array, *auxiliaries: Array) -> Array:
    """row_sparse: rows at ``indices``. csr: ``data`` at row by ``indptr``, column ``indices``."""
    out = np.zeros(shape, data.dtype)
    if any(a.ndim != 1 or a.dtype.kind not in "iu" or (a < 0).any() for a in auxiliaries):
        raise ValueError("expected lists of positions")
    if storage == ROW_SPARSE:
        if data.shape != (len(auxiliaries[0]), *shape[1:]):
            raise ValueError(f"rows of {data.shape} at {len(auxiliaries[0])} positions")
        out[auxiliaries[0]] = data
        return out
    indptr, indices = auxiliaries
    if len(indptr) != shape[0] + 1 or data.shape != indices.shape:
        raise ValueError(f"{data.shape} elements, {len(indices)} columns, {len(indptr)} rows")
    Ragged(data, indptr)  # ascending offsets that end with the data
    out[np.repeat(np.arange(shape[0]), np.diff(indptr)), indices] = data
    return out


def _read_npz(raw: BufferedReader, file: str | Path, budget: FileBudget) -> dict[str, Array]:
    """Dense arrays; stored as they are, so that none can be larger than the file."""
    try:
        with zipfile.ZipFile(raw) as archive:
            packed = [info.filename for info in archive.infolist() if info.compress_type]
            if packed:
                raise ModelFormatError(f"{packed[0]} is compressed; MXNet saves npz without", file)
            arrays = {}
            for info in archive.infolist():
                if not info.filename.endswith(".npy") or "/" in info.filename:
                    raise ModelFormatError(f"{info.filename} is no dense array", file)
                array = read_member(archive, info, budget)
                bfloat = array.dtype.names == ("bfloat16",)
                arrays[info.filename[:-4]] = widened(array["bfloat16"]) if bfloat else array
            return arrays
    except (OnernnError, OSError):
        raise
    except Exception as error:  # zipfile and tokenize raise kinds of their own
        raise ModelFormatError(f"cannot be read as an npz: {error}", file) from error
