"""Helpers for all file readers: a memory budget, byte streams, protobuf messages."""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Self

import numpy as np

from onernn.adapters.common.adapter import StrPath
from onernn.ir.arrays import Array, widen_bfloat16
from onernn.ir.budget import (
    FileBudget,
    budget_of_load,
    loading,
    return_freed_memory,
    text_size,
    working,
)
from onernn.ir.errors import BudgetError, ModelFormatError, guard
from onernn.ir.files import ARRAY, COMPILED, check_file
from onernn.ir.records import cached_property, dataclass

ONE_FILE = (".h5", ".hdf5", ".keras", ".onnx", ".pt2", ".xml", COMPILED)
"""The suffixes of models that no adapter finds in a folder: MODEL must name the file."""


def pairs(text: str) -> dict[str, str]:
    """Returns a dict from a text of "name=other" pairs."""
    return dict(pair.split("=") for pair in text.split())


# Every reader of a model's files has a memory budget and raises one kind of error.


@contextmanager
def reading(path: StrPath) -> Iterator[None]:
    """Turns errors that arise inside into `OnernnError`s that name the file."""
    try:
        with guard(lambda: path), budget_of_load(), working():
            yield
            return_freed_memory()  # before weights are packed, which needs memory
    except BudgetError as error:
        if str(error).startswith(f"{path}: "):  # a block inside this one named the file
            raise
        raise BudgetError(f"{path}: {error}") from error
    except OSError as error:
        raise ModelFormatError(f"cannot be read: {error.strerror or error}", path) from error


@contextmanager
def open_budgeted(file: StrPath) -> Iterator[tuple[BufferedReader, FileBudget]]:
    """Opens a file whose size counts towards the memory budget of the load; yields the file and the
    budget.

    Raises `ModelFormatError` if the path is not a regular file, because reading a pipe would block.
    """
    check_file(file)
    try:
        with Path(file).open("rb") as raw:
            budget = loading()
            budget.reads(os.fstat(raw.fileno()))
            yield raw, budget
    except OSError as error:
        raise ModelFormatError(f"cannot be read: {error.strerror}", file) from error


def file_bytes(file: StrPath) -> bytes:
    """Returns all bytes of a file; they count towards the load's budget until the load ends."""
    with open_budgeted(file) as (raw, budget):
        return read_all(raw, budget)


def read_all(raw: BufferedReader, budget: FileBudget) -> bytes:
    """Returns the bytes of an opened file, at most as many as it had when it was opened."""
    size = os.fstat(raw.fileno()).st_size
    budget.take(size, "the file")
    return raw.read(size)


class Malformed(Exception):
    """The error for a file that can be parsed but does not follow its format."""


@contextmanager
def name_malformed(what: str, file: StrPath) -> Iterator[None]:
    """Turns a `Malformed` error into a `ModelFormatError` that names the file and ``what``."""
    try:
        yield
    except Malformed as error:
        raise ModelFormatError(f"{what}: {error}", file) from error


def check_kind(value: Any, kind: Any, what: str) -> Any:
    """Returns a JSON value after checking its kind; a bool does not count as an integer."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        name = getattr(kind, "__name__", str(kind))
        raise Malformed(f"{what}: expected {name}, got {str(value)[:40]}")
    return value


_HALVES = rb"\\u[dD][89a-fA-F]"
"""Escapes of surrogates in JSON; two of them stand for one character."""


def parse_json(data: bytes | str, file: StrPath, what: str) -> Any:
    """Returns the value of a JSON text. Raises `ModelFormatError` with the offset of an error."""
    import json  # slow, and most formats do not need it

    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    budget = loading(2 * len(data))
    budget.parses_json(data)
    offset = None
    try:
        text = data.decode()
        result = json.loads(text)
        if re.search(_HALVES, data):  # "\\ud800" is JSON, but no text
            with budget.lent(16 * len(data), "the text, written again"):
                json.dumps(result, ensure_ascii=False).encode()
        return result
    except json.JSONDecodeError as error:
        reason, offset = f"not valid JSON: {error.msg}", len(text[: error.pos].encode())
    except UnicodeDecodeError as error:
        reason, offset = "not valid UTF-8", error.start
    except UnicodeEncodeError:
        reason = "half of a surrogate pair in a name"
    except RecursionError:
        reason = "JSON that is nested too deep"
    except ValueError as error:  # integers with thousands of digits
        reason = f"not valid JSON: {error}"
    raise ModelFormatError(f"{what}: {reason}", file, offset)


# How values are stored in files: little-endian, bfloat16 as the upper half of a float32, one byte
# per bool.


def find_stored_dtype(dtype: str) -> np.dtype[Any]:
    """Returns the NumPy dtype with which the stored bytes of a dtype are read."""
    return np.dtype({"bfloat16": "uint16", "bool": "uint8"}.get(dtype, dtype)).newbyteorder("<")


def count_of(sizes: Sequence[int], most_axes: int) -> int | None:
    """Returns the number of elements of a shape, None for an impossible shape.

    NumPy limits the product of all sizes except zeros, even if the array has no elements.
    """
    most = math.prod(size or 1 for size in sizes)
    possible = len(sizes) <= most_axes and min(sizes, default=0) >= 0 and most <= 2**56
    return math.prod(sizes) if possible else None


def numbers_of(flat: Array, dtype: str, budget: FileBudget, what: str) -> Array:
    """Returns the stored values; bfloat16 becomes float32 with the same values."""
    if dtype in ("bfloat16", "float16"):  # the same budget as for a float32 file
        budget.widen(flat.nbytes)
    if dtype == "bfloat16":
        budget.take(2 * flat.nbytes, what)
        return widen_bfloat16(flat)
    if dtype == "bool":
        budget.take(flat.nbytes, what)
        return flat != 0  # a byte other than 0 and 1 would be neither True nor False
    return flat


# A binary file of arrays is read from front to back; lengths are checked before memory is
# allocated.


@dataclass
class ByteStream:
    """A little-endian stream. Methods raise `ModelFormatError` with the offset of the error."""

    raw: BufferedReader
    file: str | Path
    size: int
    budget: FileBudget
    at: int = 0

    @classmethod
    @contextmanager
    def open(cls, file: str | Path) -> Iterator[Self]:
        with open_budgeted(file) as (raw, budget):
            yield cls(raw, file, os.fstat(raw.fileno()).st_size, budget)

    @property
    def left(self) -> int:
        return self.size - self.at

    def integer(self, form: str, what: str) -> int:
        return int(self.integers(form, what)[0])

    def integers(self, form: str, what: str) -> tuple[int, ...]:
        return struct.unpack(form, self.take(struct.calcsize(form), what))

    def take(self, count: int, what: str) -> bytes:
        self._expect(count, what)
        self.budget.ask(count, what)
        data = self.raw.read(count)
        self._advance(len(data), count, what)
        return data

    def skip(self, count: int, what: str) -> None:
        """Skips bytes that are not needed."""
        self._expect(count, what)
        self.raw.seek(count, os.SEEK_CUR)
        self.at += count

    def check_shape(
        self, sizes: Sequence[int], most: int, what: str, start: int
    ) -> tuple[int, ...]:
        if count_of(sizes, most) is None:
            raise self.error(f"{what}: impossible shape {tuple(sizes)}", start)
        return tuple(sizes)

    def numbers(self, shape: tuple[int, ...], dtype: str, what: str) -> Array:
        """Returns a new aligned array; bfloat16 becomes float32 with the same values."""
        kind, count = find_stored_dtype(dtype), math.prod(shape)
        self._expect(count * kind.itemsize, what)
        self.budget.take(count * kind.itemsize + ARRAY, what)
        flat: Array = np.empty(count, kind)
        self._advance(self.raw.readinto(flat.data), flat.nbytes, what)
        return numbers_of(flat, dtype, self.budget, what).reshape(shape)

    def error(self, reason: str, at: int | None = None) -> ModelFormatError:
        return ModelFormatError(reason, self.file, self.at if at is None else at)

    def _expect(self, count: int, what: str) -> None:
        if count > self.left:
            raise self.error(f"{what}: expected {count} bytes more, {self.left} are left")

    def _advance(self, got: int, expected: int, what: str) -> None:
        if got != expected:  # the size was correct when the file was opened
            raise self.error(f"{what}: the file shrank while it was read")
        self.at += expected


# A framework's protobuf messages, defined by a text, in a separate descriptor pool.
#
# Generated modules are not used: they would use the default pool, which rejects a second file of
# the same name if the framework is also imported ("duplicate symbol"). protobuf is imported inside
# the functions, so that `import onernn` stays fast.

# Numbers of FieldDescriptorProto's Label and Type in google/protobuf/descriptor.proto.
_LABELS = {"optional": 1, "required": 2, "repeated": 3}
_TYPES = {
    **{"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9},
    "bytes": 12,
}
_MESSAGE = 11
_DEEPEST = 100  # the deepest nesting of messages that protobuf reads
_PIECE = 4096  # bytes that are taken from the budget at once


class Schema:
    """Protobuf messages, defined by a text of entries ``Name: label type field = number; ...``.

    The wire format does not contain names of messages and enums. So the text lists nested messages
    like all others, and declares enums as int32. An enum value of a later version is then read as a
    number and not as a missing field.
    """

    def __init__(self, framework: str, text: str) -> None:
        self._framework, self._text = framework, text

    @cached_property
    def _bodies(self) -> dict[str, str]:
        return dict(re.findall(r"(\w+):([^:]+)(?:\n|$)", self._text))

    @cached_property
    def _messages(self) -> dict[str, Any]:
        package, (pool, class_of) = f"onernn.{self._framework.lower()}", _new_pool()
        pool.AddSerializedFile(_file(package, self._bodies))
        find = pool.FindMessageTypeByName
        return {name: class_of(find(f"{package}.{name}")) for name in self._bodies}

    def message(self, name: str) -> Any:
        """Returns the protobuf class of a message."""
        return self._messages[name]

    @cached_property
    def _fields(self) -> dict[str, dict[int, str]]:
        """The kinds of the fields of each message, by the field's number."""
        return {
            name: {int(at): kind for kind, at in re.findall(r"\w+ (\w+) \w+ = (\d+)", body)}
            for name, body in self._bodies.items()
        }

    def takes(self, name: str, data: bytes) -> Iterator[int]:
        """Yields the bytes of memory that protobuf and Python's strings need for ``data``, in
        several parts.

        A message of two bytes may need hundreds. The results are upper bounds for upb, protobuf's
        implementation in C. In damaged data only the part before the damage counts, because
        protobuf stops there.
        """
        view, outer = memoryview(data), list[tuple[int, dict[int, str]]]()
        fields, at, end = self._fields[name], 0, len(data)
        taken = 64 + 16 * len(fields)
        while True:
            if taken > _PIECE:
                yield taken
                taken = 0
            if at >= end:
                if not outer:
                    break
                at, (end, fields) = end, outer.pop()
                continue
            tag, at = (view[at], at + 1) if view[at] < 128 else read_varint(view, at, end)
            wire, field = tag & 7, fields.get(tag >> 3, "")
            if wire != 2:
                taken += 16 if wire == 0 else 64  # the schema lacks unpacked floats
                if wire == 0:
                    _, at = read_varint(view, at, end)
                else:
                    at += {1: 8, 5: 4}.get(wire, 0)  # fields of a group count for its message
                continue
            size, at = read_varint(view, at, end)
            if size > end - at or len(outer) > _DEEPEST:
                break
            if field in self._fields:
                outer.append((end, fields))
                fields, end = self._fields[field], at + size
                taken += 64 + 16 * len(fields)
                continue
            if field == "string":
                taken += 128 + size + text_size(view[at : at + size])
            elif field not in ("bytes", "float", "double", ""):
                last = np.frombuffer(view[at : at + size], np.uint8) < 128  # a number's last byte
                taken += 64 + 24 * int(np.count_nonzero(last))  # a growing array takes more
            else:
                taken += 64 + size
            at += size
        yield taken

    def parse(
        self,
        name: str,
        data: bytes,
        file: Path,
        offset: int | None = None,
        budget: FileBudget | None = None,
    ) -> Any:
        """Returns the complete message in ``data``. Raises `ModelFormatError` with the offset of an
        error. The memory of the message counts towards ``budget``; the default is the load's
        budget.
        """
        from google.protobuf.message import DecodeError

        budget = budget or loading(2 * len(data))
        for size in self.takes(name, data):
            budget.take(size, f"the {name}")
        out = self.message(name)()
        what = f"not {'an' if self._framework[0] in 'AEIO' else 'a'} {self._framework} {name}"
        try:
            out.ParseFromString(data)
        except (DecodeError, UnicodeDecodeError) as error:
            reason = f"{what}: the bytes are not a valid protobuf; check that the file is complete"
            raise ModelFormatError(reason, file, offset) from error
        missing = "required" in self._text and out.FindInitializationErrors()
        if missing:
            raise ModelFormatError(f"{what}: {missing[0]} is missing", file, offset)
        return out


def _new_pool() -> tuple[Any, Callable[[Any], Any]]:
    """Returns an empty descriptor pool, and the function that makes a class from a descriptor.

    Both come from protobuf's extension. protobuf's public modules import its whole pure Python
    implementation, which takes 10 ms, as long as a small model takes to load.
    """
    from google.protobuf.internal import api_implementation

    if api_implementation.Type() != "upb":  # the environment may select a different one
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message_factory import GetMessageClass

        return DescriptorPool(), GetMessageClass

    from google._upb import _message
    from google.protobuf.message import Message

    def class_of(descriptor: Any) -> Any:  # the same as GetMessageClass returns
        inside = {"DESCRIPTOR": descriptor, "__module__": None}
        return _message.MessageMeta(descriptor.name, (Message,), inside)

    return _message.DescriptorPool(), class_of


def _file(package: str, messages: dict[str, str]) -> bytes:
    """Returns the bytes of a FileDescriptorProto, which are built without importing
    descriptor_pb2.
    """
    out = _field(1, f"{package}.proto") + _field(2, package) + _field(12, "proto2")
    for name, body in messages.items():
        message = _field(1, name)
        for label, kind, field, number in re.findall(r"(\w+) (\w+) (\w+) = (\d+)", body):
            descriptor = _field(1, field) + _field(3, int(number)) + _field(4, _LABELS[label])
            if kind in _TYPES:
                descriptor += _field(5, _TYPES[kind])
            else:
                descriptor += _field(5, _MESSAGE) + _field(6, f".{package}.{kind}")
            message += _field(2, descriptor)
        out += _field(4, message)
    return out


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Returns a number in the wire format and the offset after it. If the number is cut off, the
    offset is the end of the message.
    """
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
    return 0, end


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
