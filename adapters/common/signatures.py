"""Rules whose signatures list the inputs and attributes of a framework's operators, and the tensors
that such rules use.

A positional parameter names an input. A keyword names an attribute, and has the framework's own
default. An input or attribute that the signature does not name is an error. See design/0077.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from onernn.adapters.common.lowering import DType, NativeOperator, Results, swap_equation
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.records import NamedTuple, cached_property
from onernn.ir.types import Type


def refuse(reason: str) -> Any:
    """Raises `UnsupportedError`; a rule can call this function inside an expression."""
    raise UnsupportedError(reason)


class Tensor:
    """A value of the graph under construction; the canonical operators are its methods.

    ``x.Softmax(axis=1)`` adds a node and returns its output, ``outputs=2`` returns two. If an input
    of a method is an integer or a list of integers, it becomes an int64 constant; a float becomes a
    constant in the dtype of ``x``. ``slot`` and ``place`` state which input of the operator the
    value is.
    """

    __array_ufunc__ = None  # so that array + tensor calls this class
    copied = False
    """Whether a rule's result that is one of the rule's inputs is copied to a new value."""

    def __init__(self, op: Any, name: str, slot: str = "", place: int = 0) -> None:
        self.op, self.name, self.slot, self.place = op, name, slot, place

    @classmethod
    def of(cls, op: Any, slot: str) -> list[Self]:
        """Returns the values in a slot, none if it is empty."""
        return [cls(op, name, slot, at) for at, name in enumerate(op.values(slot))]

    def new(self, name: str) -> Self:
        """Returns a tensor for the value of this name, with the same operator."""
        return type(self)(self.op, name)

    def read(self) -> str:
        """Returns the name by which a node reads this value."""
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
        """Returns a constant; an array keeps its dtype, numbers get the dtype of this value."""
        array = value if isinstance(value, np.ndarray) else np.asarray(value, self.dtype)
        return self.new(self.op.constant(array))

    def fill(self, sizes: Sequence[int], value: float) -> Self:
        """Returns a constant array of these sizes, filled with a number in the dtype of this
        tensor. Raises `BudgetError` if the array is too large.
        """
        return self.new(self.op.fill(sizes, value, self.dtype, "filled"))

    def _like(self, other: Any) -> Any:
        """Returns an operand of Python's arithmetic; numbers get the dtype of this value."""
        if isinstance(other, Tensor):
            return other
        return self.constant(other) if isinstance(other, np.ndarray) else self.scalar(other)

    def _with(self, kind: str, other: Any) -> Self:
        return getattr(self, kind)(self._like(other))

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

    def __pow__(self, other: Any) -> Self:
        return self._with("Pow", other)

    def __neg__(self) -> Self:
        return self.Neg()

    def __radd__(self, other: Any) -> Self:
        return self + other

    def __rmul__(self, other: Any) -> Self:
        return self * other

    def __rsub__(self, other: Any) -> Self:
        return self._like(other) - self

    def __rtruediv__(self, other: Any) -> Self:
        return self._like(other) / self

    @property
    def type(self) -> Type:
        return self.op.builder.type_of(self.name)

    @property
    def dtype(self) -> DType:
        """The dtype; raises `UnsupportedError` if it is not known."""
        return self.op.dtype_of(self.name)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The sizes, None for sizes that only a run knows; raises `UnsupportedError` if the rank is
        unknown.
        """
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
        """The elements of a constant, None if the value is not a constant."""
        return self.op.builder.constants.get(self.name)

    @property
    def sizes(self) -> Self:
        """The shape as a list of int64."""
        return self.new(self.op.sizes_of(self.read()))

    def size(self, axis: int) -> Self:
        """Returns the size of an axis as a list of one."""
        return self.sizes.Gather([axis], axis=0)

    def join(self, *lists: Any) -> Self:
        """Returns one list, such as a shape, that joins this list and ``lists`` in order."""
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
        """Returns the value with two axes exchanged; its rank may be unknown."""
        rank = self.type.rank
        if rank is None:
            return self.Einsum(equation=swap_equation(first, second))
        if not (-rank <= first < rank and -rank <= second < rank):
            expected = f"expected -{rank} to {rank - 1} for a value of {rank} axes"
            refuse(f"axes {first} and {second}: {expected}")
        perm = list(range(rank))
        perm[first], perm[second] = perm[second], perm[first]
        return self.transpose(*perm)

    def flip(self, *axes: int) -> Self:
        back = [-1] * len(axes)
        return self.Slice(back, [-(2**62)] * len(axes), axes, back)


def _is_number(value: Any, number: float) -> bool:
    return isinstance(value, int | float) and value == number


class OneOf(NamedTuple):
    """An attribute whose value is a key of ``meanings``; the rule receives the meaning."""

    default: Any
    meanings: Mapping[Any, Any]

    def read(self, op: NativeOperator, name: str) -> Any:
        return self.meanings[op.one_of(name, self.default, self.meanings)]


class Signature:
    """A rule that is called with the inputs and attributes that its parameters name.

    ``only``: the one supported value of each attribute that is not a parameter. In ``only``, a name
    with a capital letter and the value "" is an input that must be absent. A parameter ``op``
    receives the operator. A default with a method ``read(op, name)``, such as `OneOf`, reads its
    attribute itself. A keyword without a default is a required integer; a positional parameter with
    the default () receives a list of inputs.
    """

    def __init__(
        self, rule: Callable[..., Any], only: Mapping[str, Any], tensor: type[Tensor] = Tensor
    ) -> None:
        self.rule, self.tensor = rule, tensor
        self.absent = tuple(
            name for name, value in only.items() if value == "" and name[0].isupper()
        )
        self.only = {name: value for name, value in only.items() if name not in self.absent}

    @cached_property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """The parameters of the rule. The parameters are read when the rule is first used, because
        a model uses few rules.
        """
        return tuple(inspect.signature(self.rule).parameters.values())

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The parameters that take one input each."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return tuple(p.name for p in self.parameters if p.kind is kind and p.name != "op")

    @cached_property
    def rest(self) -> str:
        """The parameter that takes all other inputs, "" if there is none."""
        kind = inspect.Parameter.VAR_POSITIONAL
        return next((each.name for each in self.parameters if each.kind is kind), "")

    def __call__(self, op: NativeOperator) -> Results:
        return self.name_results(op, *self.call(op))

    def name_results(self, op: NativeOperator, inputs: Sequence[Any], results: Any) -> Results:
        """Returns the names of a rule's results, by slot if the rule named the slots."""
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
        """Returns the inputs of the rule and its result."""
        inputs, attributes = self.bind(op)
        return inputs, self.rule(*inputs, **attributes)

    def bind(self, op: NativeOperator) -> tuple[list[Any], dict[str, Any]]:
        """Returns the inputs and attributes that the rule's parameters name."""
        op.absent(*self.absent)
        op.only(**self.only)
        inputs: list[Any] = []
        attributes: dict[str, Any] = {}
        for each in self.parameters:
            if each.name == "op":
                attributes["op"] = op
            elif each.kind is each.KEYWORD_ONLY:
                default: Any = each.default
                if default is each.empty:
                    if each.name not in op.attributes:
                        refuse(f"attribute {each.name} is missing")
                    attributes[each.name] = op.integer(each.name)
                elif hasattr(default, "read"):
                    attributes[each.name] = default.read(op, each.name)
                else:
                    attributes[each.name] = op.keyword(each.name, default)
            elif each.kind is each.VAR_POSITIONAL:
                inputs += self._values(op, each.name)
            elif each.default == ():
                inputs.append(self._values(op, each.name))
            elif values := self._values(op, each.name):
                inputs.append(values[0])
                op.variable(each.name)  # raises an error for several inputs
            elif each.default is each.empty:
                refuse(f"input {each.name} is missing")
            else:
                inputs.append(each.default)
        return inputs, attributes

    def _values(self, op: NativeOperator, slot: str) -> list[Any]:
        return self.tensor.of(op, slot)
