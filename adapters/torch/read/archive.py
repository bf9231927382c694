"""The zip archives that PyTorch writes: members stored as they are, below one folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self
from zipfile import ZipFile, ZipInfo

import numpy as np

from onernn.adapters.torch.read.dtypes import DTYPES
from onernn.adapters.torch.read.pickles import Storage, Tensor
from onernn.core.arrays import Array, widened
from onernn.core.budget import FileBudget, loading
from onernn.core.errors import ModelFormatError, OnernnError, UnsupportedError

_MOST_AXES = 32


class Archive:
    """The members by their names below the archive's folder."""

    def __init__(self, file: str | Path, zipped: ZipFile, budget: FileBudget) -> None:
        self.file, self._zip, self._budget = file, zipped, budget
        names = [info.filename for info in zipped.infolist()]
        root = names[0].partition("/")[0] + "/" if names else ""
        if not all(name.startswith(root) for name in names):
            root = ""
        self._members: dict[str, ZipInfo] = {}
        for info in zipped.infolist():
            name = info.filename.removeprefix(root)
            if name in self._members:
                raise ModelFormatError(f"{name!r} stands there twice", file)
            self._members[name] = info

    @classmethod
    @contextmanager
    def opened(cls, file: str | Path, raw: IO[bytes]) -> Iterator[Self]:
        """Raises `ModelFormatError` for what is no archive, or has damaged members."""
        try:
            with ZipFile(raw) as zipped:
                yield cls(file, zipped, loading())
        except (OnernnError, OSError):
            raise
        except Exception as error:  # zipfile raises kinds of its own
            raise ModelFormatError(f"cannot be read as an archive: {error}", file) from error

    @property
    def names(self) -> list[str]:
        return [*self._members]

    def read(self, name: str) -> bytes:
        """A member's bytes. Raises `ModelFormatError` where there is none."""
        info = self._members.get(name)
        if info is None:
            raise ModelFormatError(f"{name!r} is not in the archive", self.file)
        if info.compress_type:
            raise ModelFormatError(f"{name!r} is compressed; PyTorch stores as it is", self.file)
        self._budget.take(info.file_size, name)
        return self._zip.read(info)

    def size(self, name: str) -> int:
        """How many bytes a member has, 0 where there is none: reading it tells."""
        return self._members[name].file_size if name in self._members else 0

    def check_order(self) -> None:
        if "byteorder" in self._members and self.read("byteorder") != b"little":
            raise UnsupportedError(f"{self.file}: its numbers are big-endian; save it elsewhere")


class Storages:
    """Tensors from the bytes of their storages; each storage becomes an array once."""

    def __init__(self, file: str | Path) -> None:
        self.file = file
        self._arrays: dict[tuple[str, str], Array] = {}

    def bytes_of(self, key: str) -> bytes:
        raise NotImplementedError

    def array(self, tensor: Tensor, what: str) -> Array:
        """A read-only array, a view where that is dense. bfloat16 comes as float32."""
        storage, offset, sizes, strides = tensor
        flat = self._flat(storage, what)
        if len(sizes) > _MOST_AXES:
            raise self._error(what, f"{len(sizes)} axes")
        if 0 in sizes:
            if math.prod(max(size, 1) for size in sizes) > 2**56:
                raise self._error(what, f"impossible shape {sizes}")
            return np.empty(sizes, flat.dtype)
        reach = offset + sum((s - 1) * by for s, by in zip(sizes, strides, strict=True))
        if reach >= len(flat):
            raise self._error(what, f"{len(flat)} numbers, its shape {sizes} needs {reach + 1}")
        steps = [by * flat.itemsize for by in strides]
        view = np.lib.stride_tricks.as_strided(flat[offset:], sizes, steps, writeable=False)
        if not view.flags.c_contiguous:
            loading().take(math.prod(sizes) * flat.itemsize, what)  # a stride of 0 costs no bytes
            view = np.ascontiguousarray(view)
        return view

    def _flat(self, storage: Storage, what: str) -> Array:
        key = (storage.key, storage.dtype)
        if key not in self._arrays:
            kind = DTYPES.get(storage.dtype)
            if kind is None:
                raise UnsupportedError(f"{self.file}: {what}: numbers of no known type")
            data = self.bytes_of(storage.key)
            if len(data) < storage.numbers * kind.itemsize:
                raise self._error(what, f"{storage.numbers} numbers in {len(data)} bytes")
            flat = np.frombuffer(data, kind, len(data) // kind.itemsize)
            if storage.dtype == "bfloat16":
                loading().take(2 * flat.nbytes, what)
                flat = widened(flat)
            elif storage.dtype == "bool":  # a byte other than 0 and 1 would be neither
                flat = flat != 0
            flat.flags.writeable = False
            self._arrays[key] = flat
        return self._arrays[key]

    def _error(self, what: str, reason: str) -> ModelFormatError:
        return ModelFormatError(f"{what}: {reason}", self.file)


class ArchiveStorages(Storages):
    """Those of an archive: ``data/KEY``, or below another folder."""

    def __init__(self, archive: Archive, folder: str = "data/") -> None:
        super().__init__(archive.file)
        self._archive, self._folder = archive, folder

    def bytes_of(self, key: str) -> bytes:
        return self._archive.read(f"{self._folder}{key}")


class HeldStorages(Storages):
    """Those whose bytes were read already."""

    def __init__(self, file: str | Path, held: Mapping[str, bytes]) -> None:
        super().__init__(file)
        self._held = held

    def bytes_of(self, key: str) -> bytes:
        return self._held[key]
