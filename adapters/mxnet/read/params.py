"""MXNet's files of arrays: .params of every version, and the npz of MXNet 2."""

from __future__ import annotations

import math
import zipfile
from io import BufferedReader
from pathlib import Path

import numpy as np

from onernn.adapters.byte_stream import ByteStream
from onernn.core.arrays import Array, widened
from onernn.core.budget import FileBudget
from onernn.core.errors import ModelFormatError, OnernnError
from onernn.core.npz import read_member
from onernn.core.ragged import Ragged

LIST_MAGIC = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
DENSE, ROW_SPARSE, CSR = 0, 1, 2
_AUXILIARIES = {DENSE: (), ROW_SPARSE: ("indices",), CSR: ("indptr", "indices")}
BFLOAT16 = 12
DTYPES = {
    **{0: "float32", 1: "float64", 2: "float16", 3: "uint8", 4: "int32", 5: "int8", 6: "int64"},
    **{7: "bool", 8: "int16", 9: "uint16", 10: "uint32", 11: "uint64", BFLOAT16: "bfloat16"},
}
# Bounds that keep a hostile length from costing time or memory before it is found out.
_MOST_AXES = 32
_MOST_NAME = 4096


def read_params(file: str | Path) -> dict[str, Array]:
    """The arrays of a file by their keys, read-only and dense; bfloat16 ones as float32.

    An array that MXNet saved as None is left out; arrays without keys get their positions.
    Raises `ModelFormatError` with the place for a file that is none.
    """
    with _Stream.opened(file) as stream:
        if stream.raw.read(4) == b"PK\x03\x04":
            arrays = _read_npz(stream.raw, file, stream.budget)
        else:
            stream.raw.seek(0)
            arrays = stream.arrays()
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


class _Stream(ByteStream):
    """Layout: NDArray::Save, Load and LegacyLoad in src/ndarray/ndarray.cc."""

    def arrays(self) -> dict[str, Array]:
        """u64 magic, u64 0 | u64 n, n arrays | u64 m, m * (u64 length, bytes)."""
        if (magic := self.integer("<Q", "the file")) != LIST_MAGIC:
            raise self.error(f"expected the magic number 0x112, got {magic:#x}", 0)
        self.integer("<Q", "the file")
        # Each takes bytes of the file: a count that is too large runs out of them.
        arrays = [self._array(f"array {n}") for n in range(self.integer("<Q", "the file"))]
        start = self.at
        count = self.integer("<Q", "the keys")
        if count not in (0, len(arrays)):
            raise self.error(f"{count} keys for {len(arrays)} arrays", start)
        keys = [self._key(n) for n in range(count)] or list(map(str, range(len(arrays))))
        if len(set(keys)) != len(keys):
            raise self.error("a key stands there twice", start)
        if self.at != self.size:
            raise self.error(f"{self.size - self.at} bytes are left after the last key")
        return {key: a for key, a in zip(keys, arrays, strict=True) if a is not None}

    def _key(self, n: int) -> str:
        start, what = self.at, f"key {n}"
        if (length := self.integer("<Q", what)) > _MOST_NAME:
            raise self.error(f"{what}: {length} bytes long", start)
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what}: no UTF-8", start) from error

    def _array(self, what: str) -> Array | None:
        start = self.at
        magic = self.integer("<I", what)
        if magic in (V2, V3):
            return self._typed_array(what, numpy=magic == V3)
        # V1 writes a shape of int64; the oldest form has no magic, it begins with the rank.
        rank = self.integer("<I", what) if magic == V1 else magic
        if rank > _MOST_AXES:
            raise self.error(
                f"{what}: {magic:#x} is neither a known magic number nor a rank", start
            )
        shape = self._sizes(rank, "q" if magic == V1 else "I", what, start)
        if not shape:
            return None
        self.take(8, what)  # the device
        return self.numbers(shape, self._dtype(what), what)

    def _typed_array(self, what: str, *, numpy: bool) -> Array | None:
        start = self.at
        storage = self.integer("<i", what)
        if storage not in _AUXILIARIES:
            raise self.error(f"{what}: unknown storage type {storage}", start)
        if storage != DENSE:
            self._shape(what)  # of the stored numbers: wrong where MXNet saved before it was done
        shape = self._shape(what)
        if shape is None or (not shape and not numpy):
            return None
        self.take(8, what)  # the device
        dtype = self._dtype(what)
        kinds = [(self._dtype(what), self._shape(what)) for _ in _AUXILIARIES[storage]]
        counts = [sizes[0] if sizes and len(sizes) == 1 else -1 for _, sizes in kinds]
        if min(counts, default=0) < 0:
            raise self.error(f"{what}: positions of a sparse array are no list", start)
        stored = {ROW_SPARSE: (*counts[:1], *shape[1:]), CSR: tuple(counts[1:])}
        data = self.numbers(stored.get(storage, shape), dtype, what)
        auxiliaries = [self.numbers(sizes or (), kind, what) for kind, sizes in kinds]
        if storage == DENSE:
            return data
        self.budget.take(math.prod(shape) * data.dtype.itemsize, f"{what}, a dense {shape},")
        try:
            return _dense(storage, shape, data, *auxiliaries)
        except (ValueError, IndexError, TypeError) as error:
            raise self.error(f"{what}: its sparse parts do not fit: {error}", start) from error

    def _shape(self, what: str) -> tuple[int, ...] | None:
        """i32 rank, i64 sizes; a negative rank: None."""
        start = self.at
        rank = self.integer("<i", what)
        return None if rank < 0 else self._sizes(rank, "q", what, start)

    def _sizes(self, rank: int, form: str, what: str, start: int) -> tuple[int, ...]:
        if rank > _MOST_AXES:
            raise self.error(f"{what}: {rank} axes", start)
        return self.checked_shape(self.integers(f"<{rank}{form}", what), rank, what, start)

    def _dtype(self, what: str) -> str:
        start = self.at
        code = self.integer("<i", what)
        if code not in DTYPES:
            raise self.error(f"{what}: unknown data type {code}", start)
        return DTYPES[code]


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
