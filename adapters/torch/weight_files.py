"""Arrays in PyTorch's files: archives, pickles that are read without running them, safetensors."""

from __future__ import annotations

import io
import math
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    parsed_json,
    read_all,
)
from onernn.ir.arrays import Array
from onernn.ir.budget import loading
from onernn.ir.errors import ModelFormatError, OnernnError, UnsupportedError
from onernn.ir.files import ARRAY, member_bytes, unzip
from onernn.reorders import torch
from onernn.reorders.layers import PivotLayer

# What PyTorch's files call the data types of tensors, by NumPy's names.

DTYPES = {
    name: find_stored_dtype(name)
    for name in (
        *("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "bfloat16", "bool"),
    )
}
"""torch.NAME, and how its numbers lie in a file; bfloat16 becomes float32 of the same values."""

STORAGES = pairs(
    """
    ByteStorage=uint8 CharStorage=int8 ShortStorage=int16 IntStorage=int32 LongStorage=int64
    HalfStorage=float16 FloatStorage=float32 DoubleStorage=float64 BFloat16Storage=bfloat16
    BoolStorage=bool
    """
)
"""The classes of storages that pickles name."""

SCALAR_TYPES = {
    **{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32"},
    **{8: "float64", 12: "bool", 13: "bfloat16", 28: "uint16", 34: "uint32", 35: "uint64"},
}
"""The numbers of an exported program: ScalarType of torch/_export/serde/schema.py."""

SAFETENSORS = pairs(
    """
    F64=float64 F32=float32 F16=float16 BF16=bfloat16 I64=int64 I32=int32 I16=int16 I8=int8 U8=uint8
    U16=uint16 U32=uint32 U64=uint64 BOOL=bool
    """
)


# Pickles of PyTorch's tensors, read without pickle: nothing that stands in them is run.
#
# A pickle is a program for a stack machine. This one knows numbers, texts, containers, and the few
# names with which torch.save writes tensors; every other name is refused. These names stand in
# torch/_utils.py and torch/_weights_only_unpickler.py of PyTorch 2.13.

_OBJECT = 128
"""Bytes that each operation of a pickle takes: an object, and its places in containers."""


_LARGER = {"EMPTY_SET": 256, "EMPTY_DICT": 256, "ADDITEMS": 256}
_LONG, _WIDE = 4096, 10
"""Bytes of a text, and how many times as many it may take: decoded, encoded and decoded."""


class Storage(NamedTuple):
    """The numbers behind tensors, by the key under which the file has them."""

    key: str
    dtype: str
    numbers: int


class Tensor(NamedTuple):
    """A view of a storage, in elements."""

    storage: Storage
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class Record:
    """An object of a TorchScript module: the name of its class, and its attributes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Mapping[Any, Any] = {}


class _Dtype(NamedTuple):
    """What a pickle calls torch.float32, or torch.FloatStorage; "" is an UntypedStorage's."""

    name: str


class _Mark:
    """What stands on the stack where a container's items begin."""


_MARK = _Mark()


_Function = Callable[..., Any]


def _tensor(
    storage: Any, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...], *rest: Any
) -> Tensor:
    """``rest``: requires_grad, hooks and, of version 3, the dtype, and metadata."""
    typed = next((each for each in rest if isinstance(each, _Dtype)), None)
    if not isinstance(storage, Storage):
        raise TypeError("a tensor without storage")
    if typed is not None and not storage.dtype:  # version 3: counts are bytes
        size = DTYPES[typed.name].itemsize
        storage = Storage(storage.key, typed.name, storage.numbers // size)
    numbers = (offset, *sizes, *strides)  # not for messages: the pickle chose what these are
    if len(sizes) != len(strides) or not all(type(n) is int and 0 <= n < 2**62 for n in numbers):
        raise ValueError("a tensor of impossible shape, strides or offset")
    return Tensor(storage, offset, tuple(sizes), tuple(strides))


def _first(value: Any, *_: Any) -> Any:
    """Of a parameter, or of a value with its type: the value."""
    return value


_FUNCTIONS: dict[str, _Function] = {
    "collections.OrderedDict": lambda pairs=(): {_key(key): value for key, value in pairs},
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch.Size": lambda sizes=(): tuple(sizes),
    "torch.device": lambda *_: "cpu",
    "torch.jit._pickle.restore_type_tag": _first,
    **{
        f"torch.jit._pickle.build_{kind}list": _first
        for kind in ("int", "double", "bool", "tensor")
    },
    **dict.fromkeys(("builtins.set", "__builtin__.set"), lambda items=(): {*map(_key, items)}),
}
_NAMES: dict[str, Any] = {
    **_FUNCTIONS,
    **{f"torch.{name}": _Dtype(name) for name in DTYPES},
    **{f"torch.{name}": _Dtype(dtype) for name, dtype in STORAGES.items()},
    **dict.fromkeys(("torch.storage.UntypedStorage", "torch.UntypedStorage"), _Dtype("")),
}


def _key(key: Any) -> Any:
    """Returns a key of a dict. Not a tuple: Python hashes what is nested in one without end."""
    if not isinstance(key, str | int | float | bytes | None):
        raise TypeError(f"a key that is {type(key).__name__}")
    return key


class Unpickled(NamedTuple):
    value: Any
    end: int


def unpickle(
    data: bytes, file: str | Path, what: str, start: int = 0, *, scripted: bool = False
) -> Unpickled:
    """Returns the value of a pickle in ``data``, and where it ends. ``what``: how errors call it.

    ``scripted``: objects of TorchScript's classes are there, too. Raises `ModelFormatError` with
    the place, `UnsupportedError` for a name that is not known.
    """
    from pickletools import genops  # decodes opcodes, and runs none

    stream, machine, budget = _Texts(data), _Machine(scripted), loading(2 * len(data))
    stream.seek(start)
    try:
        for opcode, argument, _ in genops(stream):
            long = sys.getsizeof(argument) if isinstance(argument, str | bytes) else 0
            budget.take(_LARGER.get(opcode.name, _OBJECT) + long, "the pickle")
            operation = _OPERATIONS.get(opcode.name)
            if operation is None:
                raise ValueError(f"opcode {opcode.name}")
            operation(machine, argument)
        (value,) = machine.last(1)
        if isinstance(value, _Mark):
            raise ValueError("no value")
        return Unpickled(value, stream.tell())
    except _Refused as refused:
        raise UnsupportedError(
            f"{file}: {what} names {refused}, which is not run here: only tensors and containers"
            " are read; where PyTorch is, torch.save(model.state_dict(), ...) writes only these"
        ) from None
    except (
        *(struct.error, IndexError, KeyError, TypeError, ValueError),
        *(ArithmeticError, AttributeError),
    ) as error:
        raise ModelFormatError(f"{what}: no such pickle: {error}", file, stream.tell()) from error


class _Texts(io.BytesIO):
    """The bytes of a pickle; long texts, which may be wide, are asked for before they are read."""

    def read(self, size: int | None = -1) -> bytes:
        if size and size > _LONG:
            loading(2 * size).ask(_WIDE * size, "a text of the pickle")
        return super().read(size)


class _Refused(Exception):
    """A name that is not known."""


class _Machine:
    def __init__(self, scripted: bool) -> None:
        self.scripted = scripted
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.budget = loading()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def text(self, text: str, encoding: str = "utf-8") -> None:
        """What bytes say in UTF-8, where genops takes half characters, or other bytes, too."""
        self.push(text.encode(encoding).decode())

    def put(self, at: int) -> None:
        self.memo[at] = self.stack[-1]

    def items(self) -> list[Any]:
        """Returns what stands behind the last mark, which goes, too."""
        at = len(self.stack) - 1
        while not isinstance(self.stack[at], _Mark):
            at -= 1
            if at < 0:
                raise ValueError("no mark")
        result = self.stack[at + 1 :]
        del self.stack[at:]
        return result

    def last(self, count: int) -> tuple[Any, ...]:
        if count > len(self.stack):
            raise ValueError("the stack is empty")
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
            raise TypeError("it calls what is no function")
        for each in arguments:
            if isinstance(each, list | tuple | dict | set):
                self.budget.take(_OBJECT * len(each), "the pickle's containers")
        self.push(function(*arguments))

    def build(self) -> None:
        """Attributes of an OrderedDict are versions of modules: they are not read."""
        (state,) = self.last(1)
        owner = self.stack[-1]
        if isinstance(owner, Record) and isinstance(state, dict):
            owner.state = state
        elif not isinstance(owner, dict | Tensor):
            raise TypeError(f"attributes of {type(owner).__name__}")

    def extend(self, items: list[Any]) -> None:
        owner = self.stack[-1]
        if isinstance(owner, list):
            owner.extend(items)
        elif isinstance(owner, set):
            owner.update(map(_key, items))
        else:
            raise TypeError(f"items of {type(owner).__name__}")

    def set(self, items: list[Any]) -> None:
        owner = self.stack[-1]
        if not isinstance(owner, dict) or len(items) % 2:
            raise TypeError(f"keys of {type(owner).__name__}")
        owner.update((_key(key), value) for key, value in zip(items[::2], items[1::2], strict=True))

    def persistent(self) -> None:
        """("storage", its type, key, location, count), and, of old files, a view of it."""
        (description,) = self.last(1)
        kind, dtype, key, _, count, *view = description
        if kind != "storage" or not isinstance(dtype, _Dtype) or not isinstance(key, str):
            raise TypeError("a persistent id that is no storage")
        if type(count) is not int or count < 0 or (view and view[0] is not None):
            raise UnsupportedError("a view of a storage, as PyTorch wrote it before 0.4")
        self.push(Storage(key, dtype.name, count))


_Operation = Callable[[_Machine, Any], Any]


def _each(names: str, operation: _Operation) -> dict[str, _Operation]:
    return dict.fromkeys(names.split(), operation)


_OPERATIONS: dict[str, _Operation] = {
    **_each("PROTO FRAME STOP", lambda m, _: None),
    **_each("BININT BININT1 BININT2 LONG1 BINFLOAT BINBYTES SHORT_BINBYTES", _Machine.push),
    **_each("BINUNICODE SHORT_BINUNICODE", _Machine.text),
    **_each("BINSTRING SHORT_BINSTRING", lambda m, text: m.text(text, "latin-1")),  # of Python 2
    **_each("BINPUT LONG_BINPUT", _Machine.put),
    **_each("BINGET LONG_BINGET", lambda m, at: m.push(m.memo[at])),
    **_each("APPENDS ADDITEMS", lambda m, _: m.extend(m.items())),
    **_each("REDUCE NEWOBJ", lambda m, _: m.call()),
    "MARK": lambda m, _: m.push(_MARK),
    "POP": lambda m, _: m.last(1),
    "POP_MARK": lambda m, _: m.items(),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "EMPTY_SET": lambda m, _: m.push(set()),
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "TUPLE": lambda m, _: m.push(tuple(m.items())),
    "TUPLE1": lambda m, _: m.push(m.last(1)),
    "TUPLE2": lambda m, _: m.push(m.last(2)),
    "TUPLE3": lambda m, _: m.push(m.last(3)),
    "APPEND": lambda m, _: m.extend([*m.last(1)]),
    "SETITEM": lambda m, _: m.set([*m.last(2)]),
    "SETITEMS": lambda m, _: m.set(m.items()),
    "MEMOIZE": lambda m, _: m.put(len(m.memo)),
    "GLOBAL": lambda m, names: m.name(names.replace(" ", ".")),
    "STACK_GLOBAL": lambda m, _: m.name(".".join(m.last(2))),
    "BUILD": lambda m, _: m.build(),
    "BINPERSID": lambda m, _: m.persistent(),
}


# The zip archives that PyTorch writes: members stored as they are, below one folder.

_MOST_AXES = 32


class Archive:
    """The members by their names below the archive's folder."""

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
                raise ModelFormatError(f"{name!r} stands there twice", file)
            self._members[name] = info

    @classmethod
    @contextmanager
    def opened(cls, file: str | Path, raw: IO[bytes]) -> Iterator[Self]:
        """Raises `ModelFormatError` for what is no archive, or has damaged members."""
        with unzip(raw, "cannot be read as an archive", file) as zipped:
            yield cls(file, zipped)

    @property
    def names(self) -> list[str]:
        return [*self._members]

    def read(self, name: str) -> bytes:
        """Returns a member's bytes. Raises `ModelFormatError` where there is none."""
        info = self._members.get(name)
        if info is None:
            raise ModelFormatError(f"{name!r} is not in the archive", self.file)
        if info.compress_type:
            raise ModelFormatError(f"{name!r} is compressed; PyTorch stores as it is", self.file)
        return member_bytes(self._zip, info)

    def size(self, name: str) -> int:
        """Returns how many bytes a member has, 0 where there is none: reading it will fail."""
        return self._members[name].file_size if name in self._members else 0

    def check_order(self) -> None:
        if "byteorder" in self._members and self.read("byteorder") != b"little":
            raise UnsupportedError(f"{self.file}: its numbers are big-endian; save it elsewhere")


class Storages:
    """Tensors from the bytes of their storages, by key; each storage becomes an array once."""

    def __init__(self, file: str | Path, bytes_of: Callable[[str], bytes]) -> None:
        self.file, self.bytes_of = file, bytes_of
        self._arrays: dict[tuple[str, str], Array] = {}

    @classmethod
    def of(cls, archive: Archive, folder: str = "data/") -> Self:
        """Returns those of an archive: ``data/KEY``, or below another folder."""
        return cls(archive.file, lambda key: archive.read(f"{folder}{key}"))

    def array(self, tensor: Tensor, what: str) -> Array:
        """Returns a read-only array, a view where that is dense. bfloat16 comes as float32."""
        storage, offset, sizes, strides = tensor
        loading().take(ARRAY, what)
        flat = self._flat(storage, what)
        if count_of(sizes, _MOST_AXES) is None:
            raise self._error(what, f"impossible shape {sizes}")
        if 0 in sizes:
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
            flat = numbers_of(flat, storage.dtype, loading(), what)
            flat.flags.writeable = False
            self._arrays[key] = flat
        return self._arrays[key]

    def _error(self, what: str, reason: str) -> ModelFormatError:
        return ModelFormatError(f"{what}: {reason}", self.file)


# What torch.save and torch.jit.save wrote, safetensors too: arrays by name.

ZIP = b"PK\x03\x04"
_OLD = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""How files begin that torch.save wrote before 1.6: a pickle of its magic number."""
_PROTOCOL = 1001
_MOST = 10**6
"""Values of a pickle that are looked through for tensors."""
_STATES = ("state_dict", "model_state_dict", "model")
"""Under which names checkpoints hold a model's tensors among other things."""


def read_arrays(path: str | Path) -> dict[str, Array]:
    """Returns the tensors of a file by their names; bfloat16 as float32 of the same values.

    ``path``: what torch.save wrote, a state dict or a checkpoint that holds one; a TorchScript
    archive, whose code is not run; or a .safetensors. Raises `ModelFormatError` for a file that is
    none, `UnsupportedError` for a pickle that names more than tensors and containers.
    """
    file = Path(path)
    with open_budgeted(file) as (raw, budget):
        head = raw.read(len(_OLD))
        raw.seek(0)
        if head.startswith(ZIP):
            with Archive.opened(file, raw) as archive:
                return saved_arrays(archive)
        data = read_all(raw, budget)
    if head == _OLD:
        return _old(data, file)
    if file.suffix == ".safetensors":
        return _safetensors(data, file)
    raise ModelFormatError(
        "expected an archive or a pickle that torch.save wrote, or a .safetensors", file, 0
    )


def saved_arrays(archive: Archive) -> dict[str, Array]:
    """Returns the tensors of an archive that torch.save or torch.jit.save wrote."""
    archive.check_order()
    scripted = "constants.pkl" in archive.names
    if "data.pkl" not in archive.names:
        raise ModelFormatError("an archive without data.pkl; PyTorch writes one", archive.file)
    tree = unpickle(archive.read("data.pkl"), archive.file, "data.pkl", scripted=scripted).value
    return _arrays(tree, Storages.of(archive))


def _arrays(tree: Any, storages: Storages) -> dict[str, Array]:
    if isinstance(tree, Mapping):
        inner = [tree[name] for name in _STATES if isinstance(tree.get(name), Mapping)]
        tree = inner[0] if inner else tree
    arrays: dict[str, Array] = {}
    for name, tensor in _tensors(tree):
        if name in arrays:
            raise ModelFormatError(f"{name!r} stands there twice", storages.file)
        arrays[name] = storages.array(tensor, name)
    return arrays


def _tensors(tree: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields those of a value by the way to them, "layer.weight"; a container met again is passed
    over.
    """
    waiting: list[tuple[str, Any]] = [("", tree)]
    seen: set[int] = set()
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Tensor):
            yield name, value
            continue
        inside: Any = value.state if isinstance(value, Record) else value
        if not isinstance(inside, dict | list | tuple) or id(inside) in seen:
            continue
        seen.add(id(inside))
        items = [*inside.items()] if isinstance(inside, dict) else [*enumerate(inside)]
        if isinstance(value, Record):  # _flat_weights are the weights once more
            items = [(key, each) for key, each in items if not f"{key}".startswith("_")]
        if len(waiting) + len(items) > _MOST:
            raise UnsupportedError("a pickle of more values than a model has")
        size = (_OBJECT + sys.getsizeof(name)) * len(items)
        loading().take(size, "the names of tensors")
        waiting += [(f"{name}.{key}" if name else f"{key}", each) for key, each in reversed(items)]


def _old(data: bytes, file: Path) -> dict[str, Array]:
    """Pickles one behind the other: a magic number, the protocol, the machine, the value and the
    keys of its storages; then each storage, behind the count of its numbers.
    """
    at, result = len(_OLD), []
    for what in ("the protocol", "the machine", "the value", "the keys of storages"):
        value, at = unpickle(data, file, what, at)
        result.append(value)
    protocol, machine, tree, keys = result
    if protocol != _PROTOCOL or not (isinstance(machine, dict) and machine.get("little_endian")):
        raise UnsupportedError(f"{file}: torch.save's protocol {_PROTOCOL} of a little-endian one")
    types = {each.storage.key: each.storage.dtype for _, each in _tensors(tree)}
    held: dict[str, bytes] = {}
    for key in keys if isinstance(keys, list) else ():
        if not isinstance(key, str) or types.get(key) not in DTYPES or key in held:
            raise ModelFormatError("a storage that no tensor has", file, at)
        if len(data) - at < 8:
            raise ModelFormatError("the file ends before its storages", file, at)
        count, at = struct.unpack_from("<q", data, at)[0], at + 8
        size = count * DTYPES[types[key]].itemsize
        if not 0 <= size <= len(data) - at:
            raise ModelFormatError(f"a storage of {count} numbers beyond the file", file, at)
        loading().take(size, "a storage")
        held[key], at = data[at : at + size], at + size
    if missing := types.keys() - held.keys():
        raise ModelFormatError(f"{len(missing)} storages are missing", file, at)
    return _arrays(tree, Storages(file, held.__getitem__))


class _Entry(NamedTuple):
    """A tensor of a .safetensors: its numbers lie between two places behind the header."""

    dtype: str
    shape: tuple[int, ...]
    first: int
    end: int


def _safetensors(data: bytes, file: Path) -> dict[str, Array]:
    """Returns a length of 8 bytes, a header in JSON, and the numbers of each tensor."""
    if len(data) < 8:
        raise ModelFormatError("a .safetensors begins with a length of 8 bytes", file, 0)
    (length,) = struct.unpack_from("<Q", data)
    if length > len(data) - 8:
        raise ModelFormatError(f"a header of {length} bytes, {len(data) - 8} are left", file, 0)
    header = parsed_json(data[8 : 8 + length], file, "the header")
    body = memoryview(data)[8 + length :]
    return {
        name: _safe_array(_entry(entry, name, len(body), file), body, name, file)
        for name, entry in _dict(header, "the header", file).items()
        if name != "__metadata__"
    }


def _entry(entry: Any, name: str, size: int, file: Path) -> _Entry:
    entry = _dict(entry, name, file)
    dtype, shape, places = map(entry.get, ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in SAFETENSORS:
        raise UnsupportedError(f"{file}: {name}: numbers of type {str(dtype)[:20]!r}")
    whole = [shape, places]
    if not all(isinstance(w, list) and all(type(n) is int and n >= 0 for n in w) for w in whole):
        raise ModelFormatError(f"{name}: expected lists of sizes and places", file)
    kind = DTYPES[SAFETENSORS[dtype]]
    if len(places) != 2 or not places[0] <= places[1] <= size:
        raise ModelFormatError(f"{name}: its numbers lie outside of the file", file)
    elements = count_of(shape, _MOST_AXES)
    if elements is None or elements * kind.itemsize != places[1] - places[0]:
        raise ModelFormatError(
            f"{name}: {tuple(shape)} of {dtype} in {places[1] - places[0]} bytes", file
        )
    return _Entry(SAFETENSORS[dtype], tuple(shape), *places)


def _safe_array(entry: _Entry, body: memoryview, name: str, file: Path) -> Array:
    # A copy: places in the file are aligned to nothing.
    loading().take(ARRAY + entry.end - entry.first, name)
    flat = np.frombuffer(bytes(body[entry.first : entry.end]), DTYPES[entry.dtype])
    return numbers_of(flat, entry.dtype, loading(), name).reshape(entry.shape)


def _dict(value: Any, what: str, file: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ModelFormatError(f"{what}: expected an object", file)
    return value


def nested_arrays(data: bytes, file: str, what: str) -> dict[str, Array]:
    """Returns the tensors of an archive inside of another one; none where it is empty."""
    if not data:
        return {}
    with Archive.opened(f"{file}, {what}", io.BytesIO(data)) as archive:
        return saved_arrays(archive)


# The recurrent layers among the tensors of a file, by their names.

_NAME = re.compile(r"(?:(.*)\.)?((?:weight|bias)_(?:ih|hh|hr)(?:_l\d+(?:_reverse)?)?)")


def layers_among(arrays: Mapping[str, Array]) -> dict[str, PivotLayer]:
    """Returns the stacks by the names of their modules, "encoder.lstm"; "" is the file's own. A
    plain RNN counts as one with tanh: weights do not say.

    Raises `ShapeError` naming a module whose arrays do not fit.
    """
    modules: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        if match := _NAME.fullmatch(name):
            wide = array.astype(np.float32) if array.dtype == np.float16 else array
            modules.setdefault(match[1] or "", {})[match[2]] = wide
    layers = {}
    for module, named in modules.items():
        try:
            layers[module] = torch.read(named)
        except OnernnError as error:
            error.args = (f"{module or 'the file'}: {error}", *error.args[1:])
            raise
    return layers
