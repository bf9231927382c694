"""What a graph is made of: values at its border, and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from onernn.ir.cached import cached_property
from onernn.ir.errors import printable
from onernn.ir.operator import OPERATORS
from onernn.ir.pickling import Immutable
from onernn.ir.records import dataclass
from onernn.ir.types import Type, dense, lod_names, words_of

UNSUPPORTED = "Unsupported"
"""The op of a node that was read but cannot be lowered; its attribute ``reason`` says why."""


class NativeOp(NamedTuple):
    """One operator of the framework's own graph: its position there, and its type.

    ``name``: its own, by which viewers of the file, such as Netron, find it, "" where it has none.
    ``value``: the main one that it makes, by which those without a name are found, as Paddle's.
    """

    position: int
    type: str
    name: str = ""
    value: str = ""


_RECURRENT = ("rnn", "lstm", "gru")
_NAMED = 3


def layer_operators(origin: Iterable[NativeOp]) -> tuple[NativeOp, ...]:
    """Those that are recurrent layers by their types, all where none is; each once."""
    every = tuple(dict.fromkeys(origin))
    found = (op for op in every if any(kind in op.type.lower() for kind in _RECURRENT))
    return tuple(found) or every


def native_names(origin: Iterable[NativeOp]) -> str:
    """Their names, as ``'/r/LSTM'``, of many the first ones; "" where one has none."""
    names = [*dict.fromkeys(op.name for op in origin)]
    more = ["..."] if len(names) > _NAMED else []
    return "" if "" in names else ", ".join([*map(repr, names[:_NAMED]), *more])


def native_types(origin: Iterable[NativeOp]) -> str:
    """The types of native operators, each once: unrolled cells stand for hundreds."""
    return "+".join(dict.fromkeys(op.type for op in origin))


def called(origin: tuple[NativeOp, ...]) -> str:
    """Some operators as a reader finds them: "LSTM '/r/LSTM'", "gru that makes 'y'", or "file"."""
    types, value = native_types(origin), origin[-1].value
    if names := native_names(origin):
        return printable(f"{types} {names}")
    return printable(f"{types} that makes {value!r}" if value else types)


def is_named_here(value: str) -> bool:
    """Whether a value is named after an operator of ours, "x/Rnn#2": its file has no such one."""
    _, slash, last = value.rpartition("/")
    return bool(slash) and last.partition("#")[0] in OPERATORS


@dataclass(frozen=True)
class Value:
    """A graph's input or output: dtype by NumPy's name, sizes (None: dynamic), LoD depth.

    ``ranges``: by axis, the least and the most that a dynamic size may be, where a model tells.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    lod_depth: int = 0
    ranges: Mapping[int, tuple[int, float]] = field(default_factory=dict, hash=False)

    @property
    def type(self) -> Type:
        """Sizes that are left open are named after the value and the axis."""
        shape: list[Any] | None = None
        lod = lod_names(self.name, self.lod_depth)
        if self.shape is not None:
            shape = [f"{self.name}.{at}" if s is None else s for at, s in enumerate(self.shape)]
            if lod:
                shape[:1] = [words_of(lod)]
        return replace(dense(self.dtype, shape), lod=lod)

    def __str__(self) -> str:
        shape = ("...",) if self.shape is None else self.shape
        sizes = ["?" if size is None else str(size) for size in shape]
        ragged = f", LoD depth {self.lod_depth}" if self.lod_depth else ""
        return f"{printable(self.name)}: {self.dtype or 'any'}({', '.join(sizes)}){ragged}"


@dataclass(frozen=True, eq=False)
class Node(Immutable):
    """One operator: an ONNX operator by name and meaning, or one of our own few.

    Absent optional inputs and outputs are "". ``origin``: the native operators it stands for.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    origin: tuple[NativeOp, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    @property
    def label(self) -> str:
        """How messages call it: by the name of what it stands for in the file, or by its value."""
        shown = layer_operators(self.origin)
        if names := native_names(shown):
            return printable(f"node {names} ({native_types(shown)})")
        value = next(filter(None, self.outputs), "")
        if is_named_here(value) and shown and shown[-1].value:
            value = shown[-1].value
        return printable(f"node {value!r} ({native_types(self.origin) or self.op})")

    @property
    def native(self) -> str:
        """What it stands for in the file: "LSTM '/r/LSTM'", or "gru that makes 'y'"."""
        shown = layer_operators(self.origin)
        if not shown:
            return self.label
        return called(shown)

    @cached_property
    def at(self) -> SimpleNamespace:
        """The attributes, with the operator's defaults where they are absent."""
        operator = OPERATORS.get(self.op)
        if operator is None:  # one that is not supported: its attributes are all there is
            return SimpleNamespace(**self.attributes)
        return operator.at(self.attributes, len(self.outputs))

    @cached_property
    def problem(self) -> str:
        """What is wrong with the number of inputs and outputs, or the attributes; "" if nothing."""
        operator = OPERATORS.get(self.op)
        return operator.problem(self.inputs, self.outputs, self.attributes) if operator else ""

    @property
    def typed(self) -> tuple[Any, Any, Any, bool]:
        """The inputs' types that were met last, what followed for the outputs, and equal sizes.

        Also, whether sizes or offsets of the outputs are named after the node.
        """
        return self.__dict__.get("_typed", (None, (), (), False))

    def remember_types(self, *known: Any) -> None:
        self.__dict__["_typed"] = known

    def renamed(self, names: Mapping[str, str]) -> Node:
        """With other names of values; what is known of the node and of their types stays."""
        if names.keys().isdisjoint((*self.inputs, *self.outputs)):
            return self
        inputs, outputs = (
            tuple(names.get(value, value) for value in values)
            for values in (self.inputs, self.outputs)
        )
        out = replace(self, inputs=inputs, outputs=outputs)
        for known in {"at", "problem"} & self.__dict__.keys():
            out.__dict__[known] = self.__dict__[known]
        if outputs == self.outputs or not self.typed[-1]:
            out.remember_types(*self.typed)
        return out

    def input(self, position: int) -> str:
        """The name of an input, "" where it is absent."""
        return self.inputs[position] if position < len(self.inputs) else ""
