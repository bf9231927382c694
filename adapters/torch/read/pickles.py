"""Pickles of PyTorch's tensors, read without pickle: nothing that stands in them is run.

A pickle is a program for a stack machine. This one knows numbers, texts, containers, and the few
names with which torch.save writes tensors; every other name is refused. Opcodes: pickletools of
Python; names: torch/_utils.py and torch/_weights_only_unpickler.py of PyTorch 2.13.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from onernn.adapters.torch.read.dtypes import DTYPES, STORAGES
from onernn.core.budget import loading
from onernn.core.errors import ModelFormatError, UnsupportedError

_OBJECT = 128
"""Bytes that we ask for before a container is made."""


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


def _key(found: Any) -> Any:
    """A key of a dict. Not a tuple: Python hashes what is nested in one without end."""
    if not isinstance(found, str | int | float | bytes | None):
        raise TypeError(f"a key that is {type(found).__name__}")
    return found


class Unpickled(NamedTuple):
    value: Any
    end: int


def unpickle(
    data: bytes, file: str | Path, what: str, start: int = 0, *, scripted: bool = False
) -> Unpickled:
    """The value of a pickle in ``data``, and where it ends. ``what``: how errors call it.

    ``scripted``: objects of TorchScript's classes are there, too. Raises `ModelFormatError` with
    the place, `UnsupportedError` for a name that is not known.
    """
    machine = _Machine(data, start, scripted)
    try:
        return Unpickled(machine.run(), machine.at)
    except _Refused as refused:
        raise UnsupportedError(
            f"{file}: {what} names {refused}, which is not run here: only tensors and containers"
            " are read; where PyTorch is, torch.save(model.state_dict(), ...) writes these alone"
        ) from None
    except (
        *(struct.error, IndexError, KeyError, TypeError, ValueError),
        *(ArithmeticError, AttributeError),
    ) as error:
        raise ModelFormatError(f"{what}: no such pickle: {error}", file, machine.at) from error


class _Refused(Exception):
    """A name that is not known."""


class _Machine:
    def __init__(self, data: bytes, at: int, scripted: bool) -> None:
        self.data, self.at, self.scripted = data, at, scripted
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.budget = loading()

    def run(self) -> Any:
        while True:
            code = self.take(1)[0]
            if code == 0x2E:  # STOP
                (value,) = self.last(1)
                if isinstance(value, _Mark):
                    raise ValueError("no value")
                return value
            operation = _OPERATIONS.get(code)
            if operation is None:
                raise ValueError(f"opcode {code:#x}")
            operation(self)

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise ValueError(f"{count} bytes expected, {len(self.data) - self.at} are left")
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        text = self.take(end - self.at).decode()
        self.at += 1
        return text

    def text(self, form: str) -> str:
        return self.take(self.number(form)).decode()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def made(self, container: Any) -> None:
        self.budget.take(_OBJECT, "the pickle's containers")
        self.stack.append(container)

    def items(self) -> list[Any]:
        """What stands behind the last mark, which goes, too."""
        at = len(self.stack) - 1
        while not isinstance(self.stack[at], _Mark):
            at -= 1
            if at < 0:
                raise ValueError("no mark")
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def last(self, count: int) -> tuple[Any, ...]:
        if count > len(self.stack):
            raise ValueError("the stack is empty")
        found = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return tuple(found)

    def name(self, *parts: Any) -> None:
        whole = ".".join(parts)
        if whole in _NAMES:
            self.push(_NAMES[whole])
        elif self.scripted and whole.startswith("__torch__."):
            self.push(Record(whole))
        else:
            raise _Refused(whole)

    def call(self) -> None:
        function, arguments = self.last(2)
        if isinstance(function, Record):
            self.made(Record(function.name))
            return
        if not callable(function):
            raise TypeError("it calls what is no function")
        for each in arguments:
            if isinstance(each, list | tuple | dict | set):
                self.budget.take(_OBJECT * len(each), "the pickle's containers")
        self.made(function(*arguments))

    def build(self) -> None:
        """Attributes of an OrderedDict tell versions of modules: nobody reads them."""
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
        self.budget.take(_OBJECT * len(items), "the pickle's containers")
        owner.update((_key(key), value) for key, value in zip(items[::2], items[1::2], strict=True))

    def persistent(self) -> None:
        """("storage", its type, key, location, count), and, of old files, a view of it."""
        (told,) = self.last(1)
        kind, dtype, key, _, count, *view = told
        if kind != "storage" or not isinstance(dtype, _Dtype) or not isinstance(key, str):
            raise TypeError("a persistent id that is no storage")
        if type(count) is not int or count < 0 or (view and view[0] is not None):
            raise UnsupportedError("a view of a storage, as PyTorch wrote it before 0.4")
        self.push(Storage(key, dtype.name, count))


def _put(form: str) -> Callable[[_Machine], None]:
    def put(machine: _Machine) -> None:
        machine.memo[machine.number(form)] = machine.stack[-1]

    return put


def _long(machine: _Machine) -> None:
    machine.push(int.from_bytes(machine.take(machine.number("B")), "little", signed=True))


_OPERATIONS: dict[int, Callable[[_Machine], Any]] = {
    ord(code): operation
    for code, operation in {
        "\x80": lambda m: m.take(1),  # PROTO
        "\x95": lambda m: m.take(8),  # FRAME
        "(": lambda m: m.push(_Mark()),
        "0": lambda m: m.last(1),
        "1": lambda m: m.items(),
        "}": lambda m: m.made({}),
        "]": lambda m: m.made([]),
        ")": lambda m: m.push(()),
        "\x8f": lambda m: m.made(set()),
        "N": lambda m: m.push(None),
        "\x88": lambda m: m.push(True),
        "\x89": lambda m: m.push(False),
        "J": lambda m: m.push(m.number("<i")),
        "K": lambda m: m.push(m.number("B")),
        "M": lambda m: m.push(m.number("<H")),
        "\x8a": _long,
        "G": lambda m: m.push(m.number(">d")),
        "X": lambda m: m.push(m.text("<I")),
        "\x8c": lambda m: m.push(m.text("B")),
        "T": lambda m: m.push(m.text("<I")),  # texts of Python 2
        "U": lambda m: m.push(m.text("B")),
        "B": lambda m: m.push(m.take(m.number("<I"))),
        "C": lambda m: m.push(m.take(m.number("B"))),
        "t": lambda m: m.made(tuple(m.items())),
        "\x85": lambda m: m.made(m.last(1)),
        "\x86": lambda m: m.made(m.last(2)),
        "\x87": lambda m: m.made(m.last(3)),
        "a": lambda m: m.extend([*m.last(1)]),
        "e": lambda m: m.extend(m.items()),
        "\x90": lambda m: m.extend(m.items()),
        "s": lambda m: m.set([*m.last(2)]),
        "u": lambda m: m.set(m.items()),
        "q": _put("B"),
        "r": _put("<I"),
        "\x94": lambda m: m.memo.update({len(m.memo): m.stack[-1]}),
        "h": lambda m: m.push(m.memo[m.number("B")]),
        "j": lambda m: m.push(m.memo[m.number("<I")]),
        "c": lambda m: m.name(m.line(), m.line()),
        "\x93": lambda m: m.name(*m.last(2)),
        "R": lambda m: m.call(),
        "\x81": lambda m: m.call(),  # NEWOBJ
        "b": lambda m: m.build(),
        "Q": lambda m: m.persistent(),
    }.items()
}
