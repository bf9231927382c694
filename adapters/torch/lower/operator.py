"""One operator of an exported program as a rule of the table reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onernn.adapters.lowering import NativeOperator, Results
from onernn.adapters.torch.lower.builder import TorchBuilder
from onernn.adapters.torch.read.exported import Node, Open, Ref, Unread
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import NativeOp
from onernn.core.sizes import Size

INERT = frozenset("device layout pin_memory non_blocking memory_format generator".split())
"""Arguments that cannot change a result on CPU: `to` a device, or laid out in another way."""
LAST = 2**63 - 1

DType = np.dtype[Any]


class TorchOperator(NativeOperator):
    """One operator with the graph it is lowered into.

    Arguments that are tensors are inputs, all others attributes; sizes may be of either kind.
    """

    def __init__(self, builder: TorchBuilder, node: Node, at: NativeOp) -> None:
        inputs: dict[str, list[str]] = {}
        attributes: dict[str, Any] = {}
        for name, value in node.inputs.items():
            if isinstance(value, Ref):
                inputs[name] = [value.name]
            elif _are_tensors(value):
                inputs[name] = [each.name if each else "" for each in value]
            elif isinstance(value, Unread) and name not in INERT:
                raise UnsupportedError(f"argument {name} is a {value.kind}")
            elif value is not None:
                attributes[name] = value
        results = {str(at): (name,) for at, name in enumerate(node.outputs)}
        super().__init__(at, inputs, results, attributes, INERT)
        self.builder, self.node = builder, node

    def given(self, slot: str) -> bool:
        return slot in self.inputs or slot in self.attributes

    def alias(self, slot: str = "self") -> str:
        """The value of a required input that is only handed on."""
        found = self.variable(slot)
        if not found:
            raise UnsupportedError(f"input {slot} is missing")
        return self.builder.value(found)

    def value(self, slot: str = "self") -> str:
        """The value of a required input."""
        return self.read(self.alias(slot))

    def optional(self, slot: str) -> str:
        """The value of an input, "" where it is absent."""
        return self.value(slot) if self.variables(slot) else ""

    def values(self, slot: str) -> list[str]:
        """Those of a list of tensors."""
        return [self.read(self.builder.value(name)) for name in self.variables(slot)]

    def read(self, value: str) -> str:
        self.builder.tie_numbers(self.builder.literal.get(value, ()), self.why)
        return value

    @property
    def why(self) -> str:
        name = next(filter(None, self.node.outputs), "")
        return f"{name!r} ({self.at.type}) may hold that number"

    def array(self, slot: str) -> Array:
        """The numbers of an input. Raises `UnsupportedError` where a run computes them."""
        return self.builder.array(self.value(slot), slot)

    def number(self, name: str, default: float | None = None, plain: Sequence[float] = ()) -> Any:
        """A number in arithmetic, which may have come from a size, but for ``plain`` ones."""
        found = self.attribute(name, default)
        if found is None or not isinstance(found, int | float):
            raise UnsupportedError(f"argument {name} is missing, or no number")
        if found not in plain:
            self.builder.tie_numbers([float(found)], self.why)
        return found

    def sizes(self, name: str) -> list[int | Open]:
        """Numbers, and such as a run tells; nothing is tied to them."""
        found = self.attribute(name, None) or []
        if not isinstance(found, list) or not all(type(n) in (int, Open) for n in found):
            raise UnsupportedError(f"argument {name}: expected sizes")
        return found

    def counts(self, name: str) -> list[int]:
        """Numbers that tell sizes, and may have come from them."""
        found = [each for each in self.sizes(name) if isinstance(each, int)]
        if len(found) < len(self.sizes(name)):
            raise UnsupportedError(f"argument {name}: sizes that are open")
        self.builder.tie_numbers(found, self.why)
        return list(found)

    def integers(self, name: str, default: Sequence[int] = (), count: int = 0) -> list[int]:
        """Numbers that tell no sizes: axes, a kernel's; one stands for ``count`` of them."""
        found = self.attribute(name, list(default))
        if not all(isinstance(each, int) for each in found):
            raise UnsupportedError(f"argument {name}: numbers that are open")
        return list(found) * count if count and len(found) == 1 else list(found)

    def axis(self, value: str, name: str = "dim", default: int | None = None) -> int:
        """An axis of a value, counted from the first one."""
        return self.checked_axis(value, self.attribute(name, default), name)

    def checked_axis(self, value: str, axis: Any, name: str = "dim") -> int:
        rank = max(self.rank(value), 1)
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise UnsupportedError(f"argument {name}: an axis of a value of {rank} axes")
        return axis % rank

    def axes(self, value: str, name: str = "dim") -> list[int]:
        """Axes of a value, all where none are told."""
        found = self.attribute(name, None)
        if found is None or found == []:
            return [*range(self.rank(value))]
        listed = found if isinstance(found, list) else [found]
        return [self.checked_axis(value, each, name) for each in listed]

    def rank(self, value: str) -> int:
        found = self.builder.type_of(value).rank
        if found is None:
            raise UnsupportedError(f"nobody tells how many axes {value!r} has")
        return found

    def shape(self, value: str) -> tuple[Size | None, ...]:
        self.rank(value)
        return self.builder.type_of(value).shape or ()

    def dtype_of(self, value: str) -> DType:
        found = self.builder.type_of(value).dtype
        if found is None:
            raise UnsupportedError(f"nobody tells the dtype of {value!r}")
        return np.dtype(found)

    def made(self, at: int = 0) -> DType:
        """The dtype that the program gives to an output."""
        meta = self.builder.metas.get(self.node.outputs[at])
        if meta is None:
            return np.dtype(np.int64)  # a size
        if meta.dtype == "bfloat16" or meta.dtype.startswith("ScalarType"):
            raise UnsupportedError(f"{meta.dtype} numbers are not supported")
        return np.dtype(meta.dtype)

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.builder.emit(op, inputs, attributes)

    def emit_many(self, op: str, count: int, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        return self.builder.emit_many(op, inputs, count, attributes)

    def constant(self, array: npt.ArrayLike, label: str = "numbers") -> str:
        name = next(filter(None, self.node.outputs), self.at.type)
        return self.builder.constant(array, f"{name}/{label}")

    def ints(self, *values: int) -> str:
        """A constant list of int64: axes or a shape."""
        return self.constant(np.asarray(values, np.int64), "ints")

    def scalar(self, value: float, dtype: npt.DTypeLike) -> str:
        kind = np.dtype(dtype)
        if kind.kind in "iub" and not float(value).is_integer():
            raise UnsupportedError(f"the number {value} for {kind} values")
        return self.constant(np.asarray(value, kind), "scalar")

    def cast(self, value: str, dtype: npt.DTypeLike) -> str:
        wanted = np.dtype(dtype)
        return value if self.dtype_of(value) == wanted else self.emit("Cast", value, to=wanted.name)

    def sizes_of(self, value: str) -> str:
        return self.emit("Shape", value)

    def size(self, value: str, axis: int) -> str:
        """The size of an axis as a list of one."""
        return self.emit("Gather", self.sizes_of(value), self.ints(axis), axis=0)

    def listed(self, sizes: Sequence[int | Open]) -> str:
        """A list of numbers of which some are values of the graph."""
        whole = [each for each in sizes if isinstance(each, int)]
        if len(whole) == len(sizes):
            return self.ints(*whole)
        parts = [self.ints(each) if isinstance(each, int) else self.as_list(each) for each in sizes]
        return self.emit("Concat", *parts, axis=0)

    def as_list(self, number: Open) -> str:
        """A number that a run tells, a scalar, as a list of one."""
        self.builder.tie_numbers(self.builder.computed.get(number.name, ()), self.why)
        return self.emit("Reshape", self.builder.value(number.name), self.ints(1))

    def operand(self, slot: str, dtype: npt.DTypeLike, plain: Sequence[float] = ()) -> str:
        """A tensor, or a number as one, in a dtype; ``plain`` as `number` takes it."""
        if slot in self.inputs:
            return self.cast(self.value(slot), dtype)
        found = self.attribute(slot, None)
        if isinstance(found, Open):
            self.builder.tie_numbers(self.builder.computed.get(found.name, ()), self.why)
            return self.cast(self.builder.value(found.name), dtype)
        return self.scalar(self.number(slot, plain=plain), dtype)


def _are_tensors(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, Ref | None) for each in value)
    )


Rule = Callable[[TorchOperator], Results]
RULES: dict[str, Rule] = {}
"""By the names of aten's operators, "add.Tensor", and by whole names of others."""


def rule(names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return register
