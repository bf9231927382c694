"""ONNX's tensors as NumPy arrays, those in files beside the model too."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.onnx.messages import BFLOAT16, DTYPES, NUMBER_FIELDS, OTHER_DTYPES
from onernn.core.arrays import Array
from onernn.core.errors import ModelFormatError, UnsupportedError

_MOST_AXES = 32  # what NumPy 1 can hold


class ExternalData:
    """The files beside a model; each byte is read once.

    Paths that leave the model's folder, links included, are refused. Tensors of one region share
    one array; regions that only overlap could make a small file fill the memory.
    """

    def __init__(self, model: Path) -> None:
        self._model, self._folder = model, model.parent.resolve()
        self._regions: dict[tuple[Path, int, int], bytes] = {}
        self._read: dict[Path, int] = {}

    def bytes_of(self, what: str, entries: Any, expected: int) -> bytes:
        """The ``expected`` bytes of a tensor whose place the entries tell."""
        found = {entry.key: entry.value for entry in entries}
        file = self._file(what, found.get("location", ""))
        numbers = [found.get("offset", "0"), found.get("length", str(expected))]
        if not all(text.isascii() and text.isdigit() and len(text) < 20 for text in numbers):
            raise ModelFormatError(f"{what}: offset and length {numbers} in {file}", self._model)
        offset, length = map(int, numbers)
        if length != expected:
            raise ModelFormatError(
                f"{what}: expected {expected} bytes, {length} are declared", self._model
            )
        key = (file, offset, length)
        if key not in self._regions:
            self._regions[key] = self._region(what, *key)
        return self._regions[key]

    def _file(self, what: str, location: Any) -> Path:
        outside = f"{what}: its file {location!r} would lie outside of the model's folder"
        if not isinstance(location, str) or "\0" in location or not location:
            raise ModelFormatError(outside, self._model)
        file = (self._folder / location).resolve()
        if not file.is_relative_to(self._folder):
            raise ModelFormatError(outside, self._model)
        if not os.path.isfile(file):
            raise ModelFormatError(f"{what}: no such file beside the model", file)
        return file

    def _region(self, what: str, file: Path, offset: int, length: int) -> bytes:
        try:
            size = file.stat().st_size
            if offset + length > size:
                raise ModelFormatError(
                    f"{what}: expected {length} bytes, the file has {size}", file, offset
                )
            self._read[file] = self._read.get(file, 0) + length
            if self._read[file] > size:
                raise ModelFormatError(f"{what}: it overlaps with other tensors", file, offset)
            with file.open("rb") as stream:
                stream.seek(offset)
                data = stream.read(length)
        except OSError as error:
            raise ModelFormatError(f"cannot be read: {error.strerror}", file) from error
        if len(data) != length:
            raise ModelFormatError(f"{what}: the file shrank while it was read", file, offset)
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
        raise ModelFormatError(f"{what}: impossible shape {dims}", external._model)
    if tensor.HasField("segment"):
        raise UnsupportedError("a tensor in segments is not read")
    count, stored = math.prod(dims), np.dtype("uint16" if kind == "bfloat16" else kind)
    if tensor.data_location == 1:
        flat = _from_bytes(
            external.bytes_of(what, tensor.external_data, count * stored.itemsize), stored
        )
    elif tensor.HasField("raw_data"):
        whole = len(tensor.raw_data) == count * stored.itemsize
        flat = _from_bytes(tensor.raw_data, stored) if whole else None
    else:
        flat = _from_numbers(getattr(tensor, NUMBER_FIELDS[tensor.data_type]), kind, stored)
    if flat is None or flat.size != count:
        raise ModelFormatError(f"{what}: its data do not fill {kind} {dims}", external._model)
    if tensor.data_type == BFLOAT16:  # the upper half of a float32
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    flat.flags.writeable = False
    return flat.reshape(dims)


def _from_bytes(data: bytes, stored: np.dtype[Any]) -> Array | None:
    if stored.kind == "b":  # a byte other than 0 and 1 would be a bool that is neither
        return np.frombuffer(data, np.uint8) != 0
    return np.frombuffer(data, stored.newbyteorder("<")).astype(stored)


def _from_numbers(numbers: Any, kind: str, stored: np.dtype[Any]) -> Array | None:
    """Halves come as the integers of their bits. None where a number does not fit."""
    if stored.kind == "f" and kind != "float16":
        return np.array(numbers, stored)
    wide = np.array(numbers, np.uint64 if stored.kind == "u" and stored.itemsize >= 4 else np.int64)
    if stored.kind == "b":
        return wide != 0
    bits = np.dtype(np.uint16) if kind == "float16" else stored
    narrow = wide.astype(bits)
    return narrow.view(stored) if np.array_equal(narrow, wide) else None
