"""ONNX's tensors as NumPy arrays, those in files beside the model too."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.onnx.messages import DTYPES, MESSAGES, NUMBER_FIELDS, OTHER_DTYPES
from onernn.core.arrays import Array, widened
from onernn.core.budget import FileBudget
from onernn.core.errors import ModelFormatError, UnsupportedError
from onernn.core.files import inside

_MOST_AXES = 32  # what NumPy 1 can hold


class ExternalData:
    """The files beside a model; each byte is read once, into memory of ours.

    Mapped memory would change, or vanish under a running model, when the file is saved again.
    Paths that leave the model's folder, links included, are refused. Tensors of one region share
    one array; regions that only overlap could make a small file fill the memory.
    """

    def __init__(self, model: Path, budget: FileBudget) -> None:
        self.model, self.budget, self._folder = model, budget, model.parent
        self._regions: dict[tuple[Path, int, int], Array] = {}
        self._arrays: dict[tuple[int, str], Array] = {}
        self._read: dict[Path, int] = {}

    def array(self, what: str, entries: Any, kind: str, stored: np.dtype[Any], count: int) -> Array:
        """The numbers of a tensor whose place the entries tell."""
        data = self._bytes_of(what, entries, count * stored.itemsize)
        key = (id(data), kind)  # the region stays: its address is nobody else's
        if key not in self._arrays:
            self._arrays[key] = _from_bytes(data, kind, stored)
        return self._arrays[key]

    def _bytes_of(self, what: str, entries: Any, expected: int) -> Array:
        found = {entry.key: entry.value for entry in entries}
        file = inside(self._folder, found.get("location", ""), what, self.model)
        if not os.path.isfile(file):
            raise ModelFormatError(f"{what}: no such file beside the model", file)
        numbers = [found.get("offset", "0"), found.get("length", str(expected))]
        if not all(text.isascii() and text.isdigit() and len(text) < 20 for text in numbers):
            raise ModelFormatError(f"{what}: offset and length {numbers} in {file}", self.model)
        offset, length = map(int, numbers)
        if length != expected:
            raise ModelFormatError(
                f"{what}: expected {expected} bytes, {length} are declared", self.model
            )
        key = (file, offset, length)
        if key not in self._regions:
            self._regions[key] = self._region(what, *key)
        return self._regions[key]

    def _region(self, what: str, file: Path, offset: int, length: int) -> Array:
        try:
            with file.open("rb") as stream:
                found = os.fstat(stream.fileno())
                if offset + length > found.st_size:
                    raise ModelFormatError(
                        f"{what}: expected {length} bytes, the file has {found.st_size}",
                        file,
                        offset,
                    )
                self._read[file] = self._read.get(file, 0) + length
                if self._read[file] > found.st_size:
                    raise ModelFormatError(f"{what}: it overlaps with other tensors", file, offset)
                self.budget.reads(found)
                self.budget.take(length, what)
                data = np.empty(length, np.uint8)
                stream.seek(offset)
                if stream.readinto(data.data) != length:
                    raise ModelFormatError(
                        f"{what}: the file shrank while it was read", file, offset
                    )
        except OSError as error:
            raise ModelFormatError(f"cannot be read: {error.strerror}", file) from error
        data.flags.writeable = False
        return data


def dtype_of(number: int) -> str:
    """NumPy's name of a TensorProto.DataType, or "bfloat16"."""
    if number not in DTYPES:
        name = OTHER_DTYPES.get(number, f"of the unknown type {number}")
        raise UnsupportedError(f"{name} numbers are not supported")
    return DTYPES[number]


def array_of(tensor: Any, what: str, external: ExternalData) -> Array:
    """The read-only array of a TensorProto; bfloat16 comes as float32 of the same values.

    Raises `ModelFormatError` where numbers and shape contradict each other, `UnsupportedError`
    for numbers that NumPy does not have.
    """
    kind, dims = dtype_of(tensor.data_type), tuple(tensor.dims)
    # Beside a zero, sizes cost no bytes in the file, but NumPy multiplies them all the same.
    most = math.prod(size or 1 for size in dims)
    if len(dims) > _MOST_AXES or min(dims, default=0) < 0 or most > 2**56:
        raise ModelFormatError(f"{what}: impossible shape {dims}", external.model)
    if tensor.HasField("segment"):
        raise UnsupportedError("a tensor in segments is not read")
    count, stored = math.prod(dims), np.dtype("uint16" if kind == "bfloat16" else kind)
    flat: Array | None = None
    if tensor.data_location == 1:
        flat = external.array(what, tensor.external_data, kind, stored, count)
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data  # a copy
        external.budget.take(len(raw), what)
        if len(raw) == count * stored.itemsize:
            flat = _from_bytes(raw, kind, stored)
    elif (field := NUMBER_FIELDS[tensor.data_type]) in ("float_data", "double_data"):
        flat = _floats(tensor, field, stored, what, external)
    elif len(numbers := getattr(tensor, field)) == count:
        external.budget.take(8 * count, what)
        flat = _from_numbers(numbers, kind, stored)
    if flat is None or flat.size != count:
        raise ModelFormatError(f"{what}: its data do not fill {kind} {dims}", external.model)
    flat.flags.writeable = False
    return flat.reshape(dims)


def _from_bytes(data: bytes | Array, kind: str, stored: np.dtype[Any]) -> Array:
    if stored.kind == "b":  # a byte other than 0 and 1 would be a bool that is neither
        return np.frombuffer(data, np.uint8) != 0
    flat = np.frombuffer(data, stored.newbyteorder("<")).astype(stored, copy=False)
    return widened(flat) if kind == "bfloat16" else flat


def _floats(
    tensor: Any, field: str, stored: np.dtype[Any], what: str, external: ExternalData
) -> Array | None:
    """Packed ones are bytes already. None where these are no whole numbers."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    packed = b"".join(getattr(tensor, field))
    external.budget.take(len(packed), what)
    number = tensor.DESCRIPTOR.fields_by_name[field].number
    others: Any = UnknownFieldSet(tensor)
    if any(each.field_number == number for each in others):
        if packed:  # in which order?
            told = f"{what}: some of its numbers are packed, others are not"
            raise ModelFormatError(told, external.model)
        unpacked = MESSAGES.message("UnpackedTensor").FromString(tensor.SerializeToString())
        numbers = getattr(unpacked, field)
        external.budget.take(8 * len(numbers), what)
        return np.fromiter(numbers, stored, len(numbers))
    return None if len(packed) % stored.itemsize else _from_bytes(packed, str(stored), stored)


def _from_numbers(numbers: Any, kind: str, stored: np.dtype[Any]) -> Array | None:
    """Halves come as the integers of their bits. None where a number does not fit."""
    unsigned = stored.kind == "u" and stored.itemsize >= 4
    wide = np.fromiter(numbers, np.uint64 if unsigned else np.int64, len(numbers))
    if stored.kind == "b":
        return wide != 0
    bits = np.dtype(np.uint16) if kind == "float16" else stored
    narrow = wide.astype(bits)
    if not np.array_equal(narrow, wide):
        return None
    return widened(narrow) if kind == "bfloat16" else narrow.view(stored)
