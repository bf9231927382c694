"""Reads tensors in PyTorch's files: archives, pickles (without running their code), safetensors."""

from __future__ import annotations

import io
import math
import re
import shlex
import struct
import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, Self
from zipfile import ZipFile, ZipInfo

import numpy as np

from onernn.adapters.common.files import (
    count_of,
    find_stored_dtype,
    numbers_of,
    open_budgeted,
    pairs,
    parse_json,
    read_all,
)
from onernn.ir.arrays import Array
from onernn.ir.budget import loading
from onernn.ir.errors import ModelFormatError, OnernnError, ShapeError, UnsupportedError
from onernn.ir.files import ARRAY, inside, member_bytes, unzip
from onernn.reorders import torch
from onernn.reorders.layers import PivotLayer

# The dtypes in PyTorch's files, and NumPy's names for them.

STORAGES = pairs(
    """
    ByteStorage=uint8 CharStorage=int8 ShortStorage=int16 IntStorage=int32 LongStorage=int64
    HalfStorage=float16 FloatStorage=float32 DoubleStorage=float64 BFloat16Storage=bfloat16
    BoolStorage=bool ComplexFloatStorage=complex64 ComplexDoubleStorage=complex128
    UInt16Storage=uint16 UInt32Storage=uint32 UInt64Storage=uint64
    """
)
"""The storage classes in pickles, and the dtype of each."""

SCALAR_TYPES = {
    **{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32"},
    **{8: "float64", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16"},
    **{28: "uint16", 34: "uint32", 35: "uint64"},
}
"""The dtypes by their numbers in exported programs: ScalarType of torch/_export/serde/schema.py."""

DTYPES = {name: find_stored_dtype(name) for name in SCALAR_TYPES.values()}
"""The NumPy dtype of the stored elements, by the name of PyTorch's dtype."""

SAFETENSORS = pairs(
    """
    F64=float64 F32=float32 F16=float16 BF16=bfloat16 I64=int64 I32=int32 I16=int16 I8=int8 U8=uint8
    U16=uint16 U32=uint32 U64=uint64 BOOL=bool C64=complex64
    """
)


# Reads pickles of PyTorch's tensors without the pickle module, so that no code in them runs.
#
# A pickle is a program for a stack machine. This machine supports numbers, texts, containers, and
# the few names that torch.save uses to write tensors; every other name is refused. The names are
# defined in torch/_utils.py and torch/_weights_only_unpickler.py of PyTorch 2.13.

_OBJECT = 128
"""The bytes of memory that each operation of a pickle may take: an object and its container
entries.
"""


_LARGER = {"EMPTY_SET": 256, "EMPTY_DICT": 256, "ADDITEMS": 256}
_LONG, _WIDE = 4096, 10
"""The minimum size in bytes of a long text, and the memory that each of its bytes may take."""


class Storage(NamedTuple):
    """The stored elements of tensors, identified by their key in the file."""

    key: str
    dtype: str
    numbers: int


class Tensor(NamedTuple):
    """A view of a storage; offset, sizes and strides count elements.

    ``changes``: "conj" if the tensor's elements are the conjugates of the stored ones, "neg" if
    they have the opposite sign.
    """

    storage: Storage
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    changes: frozenset[Any] = frozenset()


class Record:
    """An object of a TorchScript module: its class name and its attributes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Mapping[Any, Any] = {}


class _Dtype(NamedTuple):
    """The dtype of a name in a pickle, such as torch.float32 or torch.FloatStorage.

    It is "" for an UntypedStorage.
    """

    name: str


_MARK = object()
"""The mark on the stack that precedes the items of a container."""

_Function = Callable[..., Any]


def _tensor(
    storage: Any, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...], *rest: Any
) -> Tensor:
    """Returns a tensor. ``rest``: requires_grad, hooks, in version 3 the dtype, and perhaps the
    changes of a view.
    """
    typed = next((each for each in rest if isinstance(each, _Dtype)), None)
    if not isinstance(storage, Storage):
        raise TypeError(f"expected the storage of a tensor, got {type(storage).__name__}")
    if typed is not None and not storage.dtype:  # version 3 counts bytes
        size = DTYPES[typed.name].itemsize
        storage = Storage(storage.key, typed.name, storage.numbers // size)
    numbers = (offset, *sizes, *strides)  # no error shows these: a pickle may hold any type
    if len(sizes) != len(strides) or not all(type(n) is int and 0 <= n < 2**62 for n in numbers):
        raise ValueError("expected sizes, strides and an offset of 0 or more of a tensor")
    views = [each.items() for each in rest if isinstance(each, dict)]
    changes = frozenset(change for view in views for change, holds in view if holds)
    return Tensor(storage, offset, tuple(sizes), tuple(strides), changes)


def _first(value: Any = None, *_: Any) -> Any:
    return value


_FUNCTIONS: dict[str, _Function] = {
    "collections.OrderedDict": lambda pairs=(): {_key(key): value for key, value in pairs},
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor,
    "torch.Size": lambda sizes=(): tuple(sizes),
    "torch.device": lambda *_: "cpu",
    "numpy.dtype": lambda *_: {},
    **dict.fromkeys(
        """
        torch._utils._rebuild_parameter torch._utils._rebuild_parameter_with_state
        torch.jit._pickle.restore_type_tag torch.jit._pickle.build_intlist
        torch.jit._pickle.build_doublelist torch.jit._pickle.build_boollist
        torch.jit._pickle.build_tensorlist collections.Counter _codecs.encode
        numpy.core.multiarray.scalar numpy._core.multiarray.scalar builtins.bytes __builtin__.bytes
        builtins.bytearray __builtin__.bytearray builtins.complex __builtin__.complex
        """.split(),
        _first,
    ),
    **dict.fromkeys(("builtins.set", "__builtin__.set"), lambda items=(): {*map(_key, items)}),
}
_NAMES: dict[str, Any] = {
    **_FUNCTIONS,
    **{f"torch.{name}": _Dtype(name) for name in DTYPES},
    **{f"torch.{name}": _Dtype(dtype) for name, dtype in STORAGES.items()},
    **dict.fromkeys(("torch.storage.UntypedStorage", "torch.UntypedStorage"), _Dtype("")),
}


def _key(key: Any) -> Any:
    """Returns a key of a dict. Raises `TypeError` for nested tuples, which may take forever to
    hash.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(part, str | int | float | bytes | None) for part in parts):
        raise TypeError(f"key: expected a text or a number, got {type(key).__name__}")
    return key


class Unpickled(NamedTuple):
    value: Any
    end: int


def unpickle(
    data: bytes, file: str | Path, what: str, start: int = 0, *, scripted: bool = False
) -> Unpickled:
    """Returns the value of a pickle in ``data``, and the position of its end.

    ``what``: the pickle's name in errors. ``scripted``: allows objects of TorchScript's classes.
    Raises `ModelFormatError` with the position of an error, and `UnsupportedError` for an unknown
    name.
    """
    from pickletools import genops  # only decodes opcodes

    stream, machine, budget = _Texts(data), _Machine(scripted), loading(2 * len(data))
    stream.seek(start)
    try:
        for opcode, argument, _ in genops(stream):
            long = sys.getsizeof(argument) if isinstance(argument, str | bytes) else 0
            budget.take(_LARGER.get(opcode.name, _OBJECT) + long, "the pickle")
            operation = _OPERATIONS.get(opcode.name)
            if operation is None:
                raise ValueError(f"opcode {opcode.name} is not supported")
            operation(machine, argument)
        (value,) = machine.last(1)
        if value is _MARK:
            raise ValueError("expected a value, got a mark")
        return Unpickled(value, stream.tell())
    except _Refused as refused:
        is_part = bool(machine.stack) and isinstance(machine.stack[0], dict)
        advice = _advise(str(refused), str(file), is_part=is_part)
        raise UnsupportedError(
            f"{file}: {what} names {refused}, which is not run: expected only tensors and"
            f" containers; {advice}"
        ) from None
    except (
        struct.error,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        reason = f"{what}: not a valid pickle of tensors: {error}"
        raise ModelFormatError(reason, file, stream.tell()) from error


_QUANTIZED = re.compile(r"torch\.(ScriptObject|q\w+|Q\w+|per_\w+|_utils\._rebuild_qtensor)")
_TENSOR = re.compile(r"torch\.(\w+|(_utils|_tensor|serialization|nn\.parameter)\.\w+)")
"""The names that belong to a tensor, not to a module."""


def _advise(name: str, file: str, *, is_part: bool) -> str:
    if _QUANTIZED.fullmatch(name):
        return (
            "it belongs to quantized layers: run torch.save(model.state_dict(), ...) before the"
            " model is quantized, or see the page PyTorch of the manual, 'Weights of quantized"
            " layers'; onernn quantize makes 8-bit layers of the float model"
        )
    if _TENSOR.fullmatch(name):
        return (
            "it belongs to a tensor that is not read: save a plain one in its place, such as"
            " tensor.detach().to_dense(), or tensor.float() for float8"
        )
    part = "['state_dict']" if is_part else ".state_dict()"
    key = "; use the key in this file, and for a module add .state_dict()" if is_part else ""
    return (
        f"with PyTorch and the classes, torch.save(torch.load({file!r}, weights_only=False)"
        f"{part}, 'state.pt') writes only tensors{key}"
    )


class _Texts(io.BytesIO):
    """The bytes of a pickle; checks the memory budget before it reads a long text."""

    def read(self, size: int | None = -1) -> bytes:
        if size and size > _LONG:
            loading(2 * size).ask(_WIDE * size, "a text of the pickle")
        return super().read(size)


class _Refused(Exception):
    """Raised for a name that is not in `_NAMES`."""


class _Machine:
    def __init__(self, scripted: bool) -> None:
        self.scripted = scripted
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.budget = loading()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def text(self, text: str, encoding: str = "utf-8") -> None:
        """Pushes a text; raises an error for surrogates and invalid bytes, which genops accepts."""
        self.push(text.encode(encoding).decode())

    def remember(self, at: int) -> None:
        self.memo[at] = self.stack[-1]

    def items(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("expected a mark on the stack")
        result = self.stack[at + 1 :]
        del self.stack[at:]
        return result

    def last(self, count: int) -> tuple[Any, ...]:
        if count > len(self.stack):
            raise ValueError(f"expected {count} values on the stack, got {len(self.stack)}")
        result = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return tuple(result)

    def name(self, whole: str) -> None:
        if whole in _NAMES:
            self.push(_NAMES[whole])
        elif self.scripted and whole.startswith("__torch__."):
            self.push(Record(whole))
        else:
            raise _Refused(whole)

    def call(self) -> None:
        function, arguments = self.last(2)
        if isinstance(function, Record):
            self.push(Record(function.name))
            return
        if not callable(function):
            raise TypeError(f"expected a function to call, got {type(function).__name__}")
        for each in arguments:
            if isinstance(each, list | tuple | dict | set):
                self.budget.take(_OBJECT * len(each), "the pickle's containers")
        self.push(function(*arguments))

    def build(self) -> None:
        """Sets the attributes of a `Record`; ignores the attributes of a dict, which are only
        versions of modules.
        """
        (state,) = self.last(1)
        owner = self.stack[-1]
        if isinstance(owner, Record) and isinstance(state, dict):
            owner.state = state
        elif not isinstance(owner, dict | Tensor):
            raise TypeError(f"attributes: expected a dict, got {type(owner).__name__}")

    def extend(self, items: list[Any]) -> None:
        owner = self.stack[-1]
        if isinstance(owner, list):
            owner.extend(items)
        elif isinstance(owner, set):
            owner.update(map(_key, items))
        else:
            raise TypeError(f"items: expected a list or a set, got {type(owner).__name__}")

    def set(self, items: list[Any]) -> None:
        owner = self.stack[-1]
        if not isinstance(owner, dict) or len(items) % 2:
            raise TypeError(f"expected a dict and pairs, got {type(owner).__name__}")
        owner.update((_key(key), value) for key, value in zip(items[::2], items[1::2], strict=True))

    def persistent(self) -> None:
        """Pushes the storage of the tuple ("storage", dtype, key, location, count).

        Old files append a view of the storage.
        """
        (description,) = self.last(1)
        kind, dtype, key, _, count, *view = description
        if kind != "storage" or not isinstance(dtype, _Dtype) or not isinstance(key, str):
            raise TypeError("persistent id: expected a storage")
        if type(count) is not int or count < 0 or (view and view[0] is not None):
            raise UnsupportedError(
                "a view of a storage is not supported; load the file with PyTorch and save it again"
            )
        self.push(Storage(key, dtype.name, count))


def _push_empty(kind: Callable[[], Any], machine: _Machine, _: Any) -> None:
    machine.push(kind())


def _push_tuple(count: int, machine: _Machine, _: Any) -> None:
    machine.push(machine.last(count))


_Operation = Callable[[_Machine, Any], Any]


def _each(names: str, operation: _Operation) -> dict[str, _Operation]:
    return dict.fromkeys(names.split(), operation)


_OPERATIONS: dict[str, _Operation] = {
    **_each("PROTO FRAME STOP", lambda m, _: None),
    **_each("BININT BININT1 BININT2 LONG1 BINFLOAT BINBYTES SHORT_BINBYTES", _Machine.push),
    **_each("BINUNICODE SHORT_BINUNICODE", _Machine.text),
    **_each("BINSTRING SHORT_BINSTRING", lambda m, text: m.text(text, "latin-1")),  # of Python 2
    **_each("BINPUT LONG_BINPUT", _Machine.remember),
    **_each("BINGET LONG_BINGET", lambda m, at: m.push(m.memo[at])),
    **_each("APPENDS ADDITEMS", lambda m, _: m.extend(m.items())),
    **_each("REDUCE NEWOBJ", lambda m, _: m.call()),
    "MARK": lambda m, _: m.push(_MARK),
    "POP": lambda m, _: m.last(1),
    "POP_MARK": lambda m, _: m.items(),
    **{
        f"EMPTY_{kind.__name__.upper()}": partial(_push_empty, kind)
        for kind in (dict, list, set, tuple)
    },
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "TUPLE": lambda m, _: m.push(tuple(m.items())),
    **{f"TUPLE{count}": partial(_push_tuple, count) for count in (1, 2, 3)},
    "APPEND": lambda m, _: m.extend([*m.last(1)]),
    "SETITEM": lambda m, _: m.set([*m.last(2)]),
    "SETITEMS": lambda m, _: m.set(m.items()),
    "MEMOIZE": lambda m, _: m.remember(len(m.memo)),
    "GLOBAL": lambda m, names: m.name(names.replace(" ", ".")),
    "STACK_GLOBAL": lambda m, _: m.name(".".join(m.last(2))),
    "BUILD": lambda m, _: m.build(),
    "BINPERSID": lambda m, _: m.persistent(),
}


# The zip archives of PyTorch: members are not compressed, and all are in one folder.

_MOST_AXES = 32
_CHANGES = {"conj": np.conjugate, "neg": np.negative}


class Archive:
    """The members of an archive, by their paths relative to the archive's top folder."""

    def __init__(self, file: str | Path, zipped: ZipFile) -> None:
        self.file, self._zip = file, zipped
        names = [info.filename for info in zipped.infolist()]
        root = names[0].partition("/")[0] + "/" if names else ""
        if not all(name.startswith(root) for name in names):
            root = ""
        self._members: dict[str, ZipInfo] = {}
        for info in zipped.infolist():
            name = info.filename.removeprefix(root)
            if name in self._members:
                raise ModelFormatError(f"{name!r}: expected one, got two", file)
            self._members[name] = info

    @classmethod
    @contextmanager
    def open(cls, file: str | Path, raw: IO[bytes]) -> Iterator[Self]:
        """Yields the archive in a file. Raises `ModelFormatError` for other files and damaged
        members.
        """
        with unzip(raw, "cannot be read as an archive", file) as zipped:
            yield cls(file, zipped)

    @property
    def names(self) -> list[str]:
        return [*self._members]

    def read(self, name: str) -> bytes:
        """Returns the bytes of a member. Raises `ModelFormatError` if it is missing or
        compressed.
        """
        info = self._members.get(name)
        if info is None:
            raise ModelFormatError(f"{name!r}: expected in the archive, it is missing", self.file)
        if info.compress_type:
            reason = f"{name!r} is compressed: expected it stored; pack the archive with zip -0"
            raise ModelFormatError(reason, self.file)
        return member_bytes(self._zip, info)

    def size(self, name: str) -> int:
        """Returns the number of bytes of a member, or 0 if it is missing."""
        return self._members[name].file_size if name in self._members else 0

    def check_order(self) -> None:
        if "byteorder" in self._members and self.read("byteorder") != b"little":
            raise UnsupportedError(
                f"{self.file}: expected little-endian values, got big-endian ones; save it on a"
                " little-endian machine"
            )


class Storages:
    """Reads storages by key, each only once, and returns tensors in them."""

    def __init__(self, file: str | Path, bytes_of: Callable[[str], bytes]) -> None:
        self.file, self.bytes_of = file, bytes_of
        self._arrays: dict[tuple[str, str], Array] = {}

    @classmethod
    def of(cls, archive: Archive, folder: str = "data/") -> Self:
        """Returns the storages in a folder of an archive."""
        return cls(archive.file, lambda key: archive.read(f"{folder}{key}"))

    def array(self, tensor: Tensor, what: str) -> Array:
        """Returns a tensor as a read-only array: a view if it is contiguous. bfloat16 becomes
        float32.
        """
        storage, offset, sizes, strides, changes = tensor
        loading().take(ARRAY, what)
        flat = self._flat(storage, what)
        if count_of(sizes, _MOST_AXES) is None:
            expected = f"expected at most {_MOST_AXES} sizes of 0 or more"
            raise self._error(what, f"{expected}, got shape {sizes}")
        if 0 in sizes:
            return np.empty(sizes, flat.dtype)
        reach = offset + sum((s - 1) * by for s, by in zip(sizes, strides, strict=True))
        if reach >= len(flat):
            expected = f"expected {reach + 1} elements for shape {sizes}"
            raise self._error(what, f"{expected}, got {len(flat)}")
        steps = [by * flat.itemsize for by in strides]
        view = np.lib.stride_tricks.as_strided(flat[offset:], sizes, steps, writeable=False)
        if not view.flags.c_contiguous:
            loading().take(math.prod(sizes) * flat.itemsize, what)  # strides may be 0
            view = np.ascontiguousarray(view)
        for change in changes:
            if change not in _CHANGES or view.dtype.kind not in "fc":
                raise self._error(what, f"{str(change)[:20]!r} of {view.dtype} is not supported")
            loading().take(view.nbytes, what)
            view = np.asarray(_CHANGES[change](view))
        return view

    def _flat(self, storage: Storage, what: str) -> Array:
        key = (storage.key, storage.dtype)
        if key not in self._arrays:
            kind = DTYPES.get(storage.dtype)
            if kind is None:
                reason = f"expected one of {', '.join(DTYPES)}, got {storage.dtype or 'no type'}"
                raise UnsupportedError(f"{self.file}: {what}: {reason}")
            data = self.bytes_of(storage.key)
            if len(data) < storage.numbers * kind.itemsize:
                got = f"got {len(data)} bytes"
                raise self._error(what, f"expected {storage.numbers} elements, {got}")
            flat = np.frombuffer(data, kind, len(data) // kind.itemsize)
            flat = numbers_of(flat, storage.dtype, loading(), what)
            flat.flags.writeable = False
            self._arrays[key] = flat
        return self._arrays[key]

    def _error(self, what: str, reason: str) -> ModelFormatError:
        return ModelFormatError(f"{what}: {reason}", self.file)


# Reads arrays by name from files of torch.save and torch.jit.save and from safetensors.

ZIP = b"PK\x03\x04"
_OLD = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""The first bytes of files of torch.save before 1.6: a pickle of its magic number."""
_HEAD = 4096
_PROTOCOL = 1001
_MOST = 10**6
"""The maximum number of a pickle's values that wait to be searched for tensors."""
_STATES = ("state_dict", "model_state_dict", "model")
"""The keys under which checkpoints store a model's state dict."""
_ADVICE = (
    "weights, not a model: onernn weights writes the recurrent layers for other programs, and"
    " onernn.read_weights returns the arrays for a graph of your own; to run the model, write it"
    " with PyTorch: torch.export.save(torch.export.export(model.eval(), inputs), 'model.pt2')"
)


def find_suffix(path: str | Path, head: bytes) -> str:
    """Returns the usual suffix of files with this content, or "" if it is not PyTorch's.

    ``head``: the first bytes of the file.
    """
    file = Path(path)
    if head.startswith(_OLD):
        return ".pt"
    if head.startswith(ZIP):
        try:
            with open_budgeted(file) as (raw, _), Archive.open(file, raw) as archive:
                return _suffix_of_members(archive.names)
        except OnernnError:  # the later read of the file raises the same error
            return ""
    if b'"weight_map"' in head and head.lstrip().startswith(b"{"):
        return ".index.json"
    length = int.from_bytes(head[:8], "little")
    fits = 2 <= length <= file.stat().st_size - 8
    return ".safetensors" if fits and head[8:9] == b"{" else ""


def _suffix_of_members(names: Collection[str]) -> str:
    if "data.pkl" in names:
        return ".torchscript" if "constants.pkl" in names else ".pt"
    models = [name for name in names if name.startswith("models/") and name.endswith(".json")]
    return ".pt2" if models or "serialized_exported_program.json" in names else ""


def explain(path: str | Path) -> str:
    """Returns advice for a file that onernn cannot read as a model.

    Raises the errors of `read_arrays` for a file that is not of weights, and for a pickle that
    contains more than tensors.
    """
    file = Path(path)
    with open_budgeted(file) as (raw, budget):
        head = raw.peek(_HEAD)[:_HEAD]
        if head.startswith(_OLD):
            _read_old(read_all(raw, budget), file)
        elif head.startswith(ZIP):
            with Archive.open(file, raw) as archive:
                if "constants.pkl" in archive.names:
                    return _advise_script(file)
                unpickle(archive.read("data.pkl"), file, "data.pkl")
        elif not find_suffix(file, head):
            read_arrays(file)
    return _ADVICE


def _advise_script(file: Path) -> str:
    program = (
        f"import torch; torch.onnx.export(torch.jit.load({str(file)!r}).eval(),"
        " (torch.zeros(2, 5, 8),), 'model.onnx', dynamo=False, input_names=['x'],"
        " dynamic_axes={'x': [0, 1]})"
    )
    return (
        "a TorchScript archive, whose code onernn never runs; write the model as ONNX with PyTorch"
        f" and onnx: python -c {shlex.quote(program)}, with your inputs in place of"
        " torch.zeros(2, 5, 8), and their open axes; onernn.read_weights returns the arrays"
    )


def read_arrays(path: str | Path, *, alone: bool = False) -> dict[str, Array]:
    """Returns the tensors of a file by their names; bfloat16 becomes float32 with the same values.

    ``path``: a file of torch.save with a state dict or a checkpoint; a TorchScript archive, whose
    code is not run; a .safetensors; or, unless ``alone``, the .index.json of several files with
    parts of one state dict. Raises `ModelFormatError` for any other file, and `UnsupportedError`
    for a pickle that contains more than tensors and containers.
    """
    file = Path(path)
    with open_budgeted(file) as (raw, budget):
        head = raw.peek(_HEAD)[:_HEAD]
        if head.startswith(ZIP):
            with Archive.open(file, raw) as archive:
                return read_archive(archive)
        data = read_all(raw, budget)
    if head.startswith(_OLD):
        return _old(data, file)
    if b'"weight_map"' in head and head.lstrip().startswith(b"{") and not alone:
        return _read_parts(data, file)
    if file.suffix == ".safetensors" or head[8:9] == b"{":
        return _safetensors(data, file)
    raise ModelFormatError(
        "expected an archive or a pickle that torch.save wrote, or a .safetensors", file, 0
    )


def _read_parts(data: bytes, file: Path) -> dict[str, Array]:
    index = _dict(parse_json(data, file, "the index"), "the index", file)
    places = _dict(index.get("weight_map"), "weight_map", file)
    if not all(isinstance(place, str) for place in places.values()):
        raise ModelFormatError("weight_map: expected the name of a file for each tensor", file)
    arrays: dict[str, Array] = {}
    for part in dict.fromkeys(places.values()):
        held = read_arrays(inside(file.parent, part, "the index", file), alone=True)
        wanted = {name for name, place in places.items() if place == part}
        if apart := sorted(wanted ^ held.keys()):
            reason = "lacks it" if apart[0] in wanted else "has it, expected only listed tensors"
            raise ModelFormatError(f"weight_map: {apart[0]!r}: {part!r} {reason}", file)
        arrays |= held
    return {name: arrays[name] for name in places}


def read_archive(archive: Archive) -> dict[str, Array]:
    """Returns the tensors of an archive that torch.save or torch.jit.save wrote."""
    archive.check_order()
    scripted = "constants.pkl" in archive.names
    if "data.pkl" not in archive.names:
        reason = "expected data.pkl in the archive, which PyTorch writes, it is missing"
        raise ModelFormatError(reason, archive.file)
    tree = unpickle(archive.read("data.pkl"), archive.file, "data.pkl", scripted=scripted).value
    arrays = _arrays(tree, Storages.of(archive))
    if not arrays and "constants/0" in archive.names:
        raise UnsupportedError(
            f"{archive.file}: its tensors are constants of its code and have no names: save the"
            " module before torch.jit.freeze"
        )
    return arrays


def _arrays(tree: Any, storages: Storages) -> dict[str, Array]:
    if isinstance(tree, Mapping):
        inner = (tree[name] for name in _STATES if isinstance(tree.get(name), Mapping))
        tree = next((each for each in inner if any(_tensors(each))), tree)
    arrays: dict[str, Array] = {}
    for name, tensor in _tensors(tree):
        if name in arrays:
            raise ModelFormatError(f"{name!r}: expected one, got two", storages.file)
        arrays[name] = storages.array(tensor, name)
    return arrays


_END = object()
"""Waits below the items of a container until all of them are searched."""


def _tensors(tree: Any) -> list[tuple[str, Tensor]]:
    """Returns the tensors in a value and their paths, such as "layer.weight".

    A container that occurs twice is searched once; its tensors get both paths.
    """
    found: list[tuple[str, Tensor]] = []
    waiting: list[tuple[str, Any]] = [("", tree)]
    spans: dict[int, tuple[int, slice]] = {}  # the path's length, and its tensors
    opened: list[int] = []
    while waiting:
        name, value = waiting.pop()
        if value is _END:
            length, span = spans[opened[-1]]
            spans[opened.pop()] = length, slice(span.start, len(found))
        if isinstance(value, Tensor):
            found.append((name, value))
        inside: Any = value.state if isinstance(value, Record) else value
        if isinstance(value, Tensor) or not isinstance(inside, dict | list | tuple):
            continue
        if id(inside) in spans:  # the span is empty if the container holds itself
            length, span = spans[id(inside)]
            again = found[span]
            loading().take((_OBJECT + sys.getsizeof(name)) * len(again), "the names of tensors")
            found += [(name + path[length:], tensor) for path, tensor in again]
            continue
        spans[id(inside)] = len(name), slice(len(found), len(found))
        opened.append(id(inside))
        waiting.append((name, _END))
        items = [*inside.items()] if isinstance(inside, dict) else [*enumerate(inside)]
        if isinstance(value, Record):
            items = [(key, each) for key, each in items if key != "_flat_weights"]  # copies
        if len(waiting) + len(items) > _MOST:
            raise UnsupportedError(f"pickle: expected at most {_MOST} values, got more")
        size = (_OBJECT + sys.getsizeof(name)) * len(items)
        loading().take(size, "the names of tensors")
        waiting += [(f"{name}.{key}" if name else f"{key}", each) for key, each in reversed(items)]
    return found


def _read_old(data: bytes, file: Path) -> tuple[list[Any], int]:
    """Returns the pickles after the magic number, and the position of their end.

    The pickles are the protocol, the machine, the value, and the keys of the value's storages.
    """
    at, result = len(_OLD), []
    for what in ("the protocol", "the machine", "the value", "the keys of storages"):
        value, at = unpickle(data, file, what, at)
        result.append(value)
    return result, at


def _old(data: bytes, file: Path) -> dict[str, Array]:
    """Returns the tensors of a file of torch.save before 1.6."""
    (protocol, machine, tree, keys), at = _read_old(data, file)
    if protocol != _PROTOCOL or not (isinstance(machine, dict) and machine.get("little_endian")):
        raise UnsupportedError(
            f"{file}: expected torch.save's protocol {_PROTOCOL} of a little-endian machine"
        )
    storages = {each.storage.key: each.storage for _, each in _tensors(tree)}
    held: dict[str, bytes] = {}
    for key in keys if isinstance(keys, list) else ():
        storage = storages.get(key) if isinstance(key, str) and key not in held else None
        if storage is None or storage.dtype not in DTYPES:
            raise ModelFormatError("expected the storage of a tensor, each once", file, at)
        if len(data) - at < 8:
            raise ModelFormatError("expected the size of a storage, the file ends", file, at)
        count, at = struct.unpack_from("<q", data, at)[0], at + 8
        size = storage.numbers * DTYPES[storage.dtype].itemsize
        if count not in (storage.numbers, size) or size > len(data) - at:  # untyped: bytes
            expected = f"expected {storage.numbers}, and {size} bytes of {len(data) - at}"
            raise ModelFormatError(f"a storage of {count} elements: {expected}", file, at)
        loading().take(size, "a storage")
        held[key], at = data[at : at + size], at + size
    if missing := storages.keys() - held.keys():
        reason = f"expected {len(storages)} storages, {len(missing)} are missing"
        raise ModelFormatError(reason, file, at)
    return _arrays(tree, Storages(file, held.__getitem__))


def _safetensors(data: bytes, file: Path) -> dict[str, Array]:
    """Returns the tensors of a safetensors file: 8 bytes with the header's length, a JSON header,
    and the elements.
    """
    if len(data) < 8:
        raise ModelFormatError(
            f"a .safetensors: expected a length of 8 bytes first, got {len(data)} bytes", file, 0
        )
    (length,) = struct.unpack_from("<Q", data)
    if length > len(data) - 8:
        reason = f"a header of {length} bytes: expected at most {len(data) - 8}, which are left"
        raise ModelFormatError(reason, file, 0)
    header = parse_json(data[8 : 8 + length], file, "the header")
    body = memoryview(data)[8 + length :]
    entries = {**_dict(header, "the header", file)}
    entries.pop("__metadata__", None)
    arrays = {name: _read_entry(entry, body, name, file) for name, entry in entries.items()}
    at = 0  # JSON may have a name twice: then the bytes of one tensor are in none
    for first, end in [*sorted(e["data_offsets"] for e in entries.values()), (len(body),) * 2]:
        if first != at:
            reason = "expected each byte of the elements in exactly one tensor"
            raise ModelFormatError(f"data_offsets: {reason}", file, 8 + length + min(first, at))
        at = end
    return arrays


def _read_entry(entry: Any, body: memoryview, name: str, file: Path) -> Array:
    entry = _dict(entry, name, file)
    dtype, shape, places = map(entry.get, ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in SAFETENSORS:
        expected = f"expected one of {', '.join(SAFETENSORS)}"
        raise UnsupportedError(f"{file}: {name}: {expected}, got {str(dtype)[:20]!r}")
    whole = [shape, places]
    if not all(isinstance(w, list) and all(type(n) is int and n >= 0 for n in w) for w in whole):
        raise ModelFormatError(f"{name}: expected lists of sizes and of two offsets", file)
    stored = SAFETENSORS[dtype]
    if len(places) != 2 or not places[0] <= places[1] <= len(body):
        reason = f"expected two offsets from 0 to {len(body)}, got {places!s:.60}"
        raise ModelFormatError(f"{name}: {reason}", file)
    first, end = places
    elements = count_of(shape, _MOST_AXES)
    if elements is None or elements * DTYPES[stored].itemsize != end - first:
        reason = f"expected the bytes of {dtype} {tuple(shape)}, got {end - first}"
        raise ModelFormatError(f"{name}: {reason}", file)
    # A copy, because tensors in the file are not aligned.
    loading().take(ARRAY + end - first, name)
    flat = np.frombuffer(bytes(body[first:end]), DTYPES[stored])
    return numbers_of(flat, stored, loading(), name).reshape(shape)


def _dict(value: Any, what: str, file: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ModelFormatError(f"{what}: expected an object, got {type(value).__name__}", file)
    return value


def read_nested(data: bytes, file: str, what: str) -> dict[str, Array]:
    """Returns the tensors of an archive inside another archive; {} if it is empty."""
    if not data:
        return {}
    with Archive.open(f"{file}, {what}", io.BytesIO(data)) as archive:
        return read_archive(archive)


# Finds the recurrent layers of a file by the names of its tensors.

_OWN = re.compile(r"(?:weight|bias)_(?:ih|hh|hr)(?:_l\d+(?:_reverse)?)?")
_LIKE = re.compile(r"(?:^|\.)(?:parametrizations\.)?weight_(?:ih|hh)(?:[_.]|$)")
"""Follows the name of a module that PyTorch's functions or a user's class may have changed."""


def layers_among(arrays: Mapping[str, Array]) -> dict[str, Callable[..., PivotLayer]]:
    """Returns functions that read the recurrent stacks, by the names of their modules, such as
    "encoder.lstm" or "".

    `reorders.torch.read` lists their options: without options, a plain RNN is assumed to use
    tanh, because weights do not show the activation.
    """
    found = {name[: match.start()] for name in arrays if (match := _LIKE.search(name))}
    modules: list[str] = []  # sorted, and no module is inside of another one
    for module in sorted(found, key=_key_of):
        if not modules or not _is_inside(module, modules[-1]):
            modules.append(module)
    keys, members = [*map(_key_of, modules)], dict[str, dict[str, Array]]()
    for name, array in arrays.items() if modules else ():
        module = modules[max(bisect_right(keys, _key_of(name)) - 1, 0)]
        if _is_inside(name, module):
            wide = array.astype(np.float32) if array.dtype == np.float16 else array
            members.setdefault(module, {})[name[len(module) + 1 :] if module else name] = wide
    return {module: partial(_read_layer, named) for module, named in members.items()}


def _key_of(name: str) -> str:
    """Returns a key that sorts the names inside of a module directly after the module."""
    return name.replace(".", "\0")


def _is_inside(name: str, module: str) -> bool:
    end = len(module)
    return not module or name.startswith(module) and name[end : end + 1] == "."


def _read_layer(named: Mapping[str, Array], **options: Any) -> PivotLayer:
    """Returns a layer, which must have no more parameters than PyTorch's layers have."""
    if others := sorted(name for name in named if not _OWN.fullmatch(name)):
        raise ShapeError(
            f"expected only the parameters of PyTorch's layers, got {', '.join(others)[:200]}; if"
            " the weights are normalized, pruned or parametrized, save the values that the layer"
            " computes, such as state['weight_hh_l0'] = layer.weight_hh_l0, in their place"
        )
    return torch.read(named, **options)
