"""Rules whose signature is the schema of a framework's operator, and the values they compute with.

A positional parameter is an input slot, a keyword is an attribute with the framework's own default.
What a signature does not name is refused by name. See design/0077.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from onernn.adapters.common.lowering import DType, NativeOperator, Results
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.types import Type


def refuse(reason: str) -> Any:
    """Raises `UnsupportedError`, also inside an expression."""
    raise UnsupportedError(reason)


class Tensor:
    """A value of the graph under construction; the canonical operators are its methods.

    ``x.Softmax(axis=1)`` adds a node and returns its output, ``outputs=2`` returns two. Among the
    inputs of a method an integer or a list of integers is a constant of int64, a float is a
    constant in the dtype of ``x``. ``slot`` and ``place`` say which input of the operator it is.
    """

    copied = False
    """Whether an output that is an input becomes a value of its own."""

    def __init__(self, op: Any, name: str, slot: str = "", place: int = 0) -> None:
        self.op, self.name, self.slot, self.place = op, name, slot, place

    @classmethod
    def of(cls, op: Any, slot: str) -> list[Self]:
        """Returns the values in a slot, none if it is empty."""
        return [cls(op, name, slot, at) for at, name in enumerate(op.values(slot))]

    def new(self, name: str) -> Self:
        """Returns another value of the same operator."""
        return type(self)(self.op, name)

    def read(self) -> str:
        """Returns the name for a node that computes with this value."""
        return self.name

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        if not kind[:1].isupper():
            raise AttributeError(kind)

        def emit(*others: Any, outputs: int = 0, **attributes: Any) -> Any:
            operands = [self.read(), *map(self._operand, others)]
            if outputs:
                names = self.op.emit_many(kind, outputs, *operands, **attributes)
                return tuple(map(self.new, names))
            return self.new(self.op.emit(kind, *operands, **attributes))

        return emit

    def _operand(self, value: Any) -> Any:
        match value:
            case Tensor():
                return value.read()
            case None:
                return ""
            case float():
                return self.op.scalar(value, self.dtype)
            case np.ndarray():
                return self.op.constant(value)
        return value

    def scalar(self, value: float) -> Self:
        """Returns a constant in the dtype of this value."""
        return self.new(self.op.scalar(value, self.dtype))

    def constant(self, value: Any) -> Self:
        """Returns a constant; an array keeps its dtype, numbers take that of this value."""
        array = value if isinstance(value, np.ndarray) else np.asarray(value, self.dtype)
        return self.new(self.op.constant(array))

    def fill(self, sizes: Sequence[int], value: float) -> Self:
        """Returns a constant in the dtype of this value, within the budget of the load."""
        return self.new(self.op.filled(sizes, value, self.dtype, "filled"))

    def _with(self, kind: str, other: Any) -> Self:
        return getattr(self, kind)(other if isinstance(other, Tensor) else self.scalar(other))

    def __add__(self, other: Any) -> Self:
        return self if _is_number(other, 0) else self._with("Add", other)

    def __mul__(self, other: Any) -> Self:
        return self if _is_number(other, 1) else self._with("Mul", other)

    def __sub__(self, other: Any) -> Self:
        return self._with("Sub", other)

    def __truediv__(self, other: Any) -> Self:
        return self._with("Div", other)

    def __matmul__(self, other: Any) -> Self:
        return self.MatMul(other)

    @property
    def type(self) -> Type:
        return self.op.builder.type_of(self.name)

    @property
    def dtype(self) -> DType:
        """The dtype; raises `UnsupportedError` if it is not known."""
        return self.op.dtype_of(self.name)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The sizes, None if only a run knows one; raises `UnsupportedError` without a rank."""
        return self.op.shape_of(self.name)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def array(self) -> Array:
        """The elements; raises `UnsupportedError` if they are computed at run time."""
        return self.op.builder.array(self.read(), self.slot)

    @property
    def known(self) -> Array | None:
        """The elements of a constant, None for other values."""
        return self.op.builder.constants.get(self.name)

    @property
    def sizes(self) -> Self:
        """The shape as a list of int64."""
        return self.new(self.op.sizes_of(self.read()))

    def size(self, axis: int) -> Self:
        """Returns the size of an axis as a list of one."""
        return self.sizes.Gather([axis], axis=0)

    def join(self, *lists: Any) -> Self:
        """Returns one list, such as a shape, from this one and others."""
        return self.Concat(*lists, axis=0)

    def cast(self, dtype: Any) -> Self:
        name = np.dtype(dtype).name
        return self if self.type.dtype == name else self.Cast(to=name)

    def reshape(self, *sizes: int | None) -> Self:
        return self.Reshape(sizes)

    def squeeze(self, *axes: int) -> Self:
        return self.Squeeze(axes)

    def unsqueeze(self, *axes: int) -> Self:
        return self.Unsqueeze(axes)

    def transpose(self, *perm: int) -> Self:
        return self.Transpose(perm=perm)

    def swap(self, first: int = -1, second: int = -2) -> Self:
        return self.new(self.op.swapped(self.read(), first, second))

    def flip(self, *axes: int) -> Self:
        back = [-1] * len(axes)
        return self.Slice(back, [-(2**62)] * len(axes), axes, back)


def _is_number(value: Any, number: float) -> bool:
    return not isinstance(value, Tensor) and bool(value == number)


class OneOf(NamedTuple):
    """An attribute whose value has one of the known meanings, which the rule receives."""

    default: Any
    meanings: Mapping[Any, Any]

    def read(self, op: NativeOperator, name: str) -> Any:
        return self.meanings[op.one_of(name, self.default, self.meanings)]


class Signature:
    """A rule that is called with the inputs and attributes that its parameters name.

    ``only``: the one supported value of each further attribute; "" for a slot, whose name begins
    with a capital letter, says that it must be empty. A parameter ``op`` receives the operator. A
    default with a method ``read(op, name)``, such as `OneOf`, reads its attribute by itself. A
    keyword without a default is a required integer, a slot with the default () holds a list.
    """

    def __init__(
        self, rule: Callable[..., Any], only: Mapping[str, Any], tensor: type[Tensor] = Tensor
    ) -> None:
        self.rule, self.tensor = rule, tensor
        self.absent = tuple(
            name for name, value in only.items() if value == "" and name[0].isupper()
        )
        self.only = {name: value for name, value in only.items() if name not in self.absent}
        self.parameters = tuple(inspect.signature(rule).parameters.values())
        kinds = {each.name: each.kind for each in self.parameters}
        slots = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.slots = tuple(name for name, kind in kinds.items() if kind is slots)
        rest = [n for n, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL]
        self.rest = rest[0] if rest else ""

    def __call__(self, op: NativeOperator) -> Results:
        inputs, results = self.call(op)
        taken = {each.name for each in inputs if isinstance(each, Tensor)}

        def name(result: Any) -> str:
            if not isinstance(result, Tensor):
                return result or ""
            copies = self.tensor.copied and result.name in taken
            return op.emit("Identity", result.name) if copies else result.name

        if isinstance(results, Mapping):
            return {slot: name(each) for slot, each in results.items()}
        return tuple(map(name, results)) if isinstance(results, tuple) else name(results)

    def call(self, op: NativeOperator) -> tuple[list[Any], Any]:
        """Returns the inputs of the rule, and what it returns."""
        op.absent(*self.absent)
        op.only(**self.only)
        inputs: list[Any] = []
        attributes: dict[str, Any] = {}
        for each in self.parameters:
            if each.name == "op":
                attributes["op"] = op
            elif each.kind is each.KEYWORD_ONLY:
                attributes[each.name] = self._attribute(op, each.name, each.default)
            elif each.kind is each.VAR_POSITIONAL:
                inputs += self._values(op, each.name)
            elif each.default == ():
                inputs.append(self._values(op, each.name))
            elif values := self._values(op, each.name):
                inputs.append(values[0])
                op.variable(each.name)  # refuses several
            elif each.default is each.empty:
                refuse(f"input {each.name} is missing")
            else:
                inputs.append(each.default)
        return inputs, self.rule(*inputs, **attributes)

    def _values(self, op: NativeOperator, slot: str) -> list[Any]:
        """Returns the tensors in a slot."""
        return self.tensor.of(op, slot)

    @staticmethod
    def _attribute(op: NativeOperator, name: str, default: Any) -> Any:
        if default is inspect.Parameter.empty:
            return op.integer(name)
        return default.read(op, name) if hasattr(default, "read") else op.keyword(name, default)
