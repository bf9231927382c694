"""The graph under construction, and one operator of an exported program as a rule reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.lowering import (
    FoldingBudget,
    GraphBuilder,
    NativeOperator,
    Rules,
)
from onernn.adapters.common.signatures import Signature, Tensor
from onernn.adapters.torch.read import Meta, Node, Open, Ref, Unread
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import NativeOp
from onernn.ir.types import Factor, Size

# The graph under construction, and which sizes of an export are free.
#
# torch.export writes the sizes of its example unless they are declared open, and it
# cannot leave the time of a recurrent layer open at all: it unrolls the layer to see. aten.lstm
# itself holds no size, so a size that no operator holds is free. A number that may have
# come from a size, x.shape[1] or a half of it, ties the size to what it was.

WEIGHTS = "weights"
"""Why a size is tied: weights have it."""
_PRIMES = (100_003, 100_019, 100_043, 100_049, 100_057, 100_069, 100_103, 100_109)


class TorchBuilder(GraphBuilder):
    """``metas``: types of variables. ``free``: sizes of inputs that the program writes as numbers,
    by onernn's names; ``tied``: why some of them are fixed. ``literal``: constants whose shape the
    program writes as numbers, with these numbers: an initial state of zeros ties nothing, as it may
    be left out. ``computed``: by variable, the numbers in Python's arithmetic of open sizes.
    ``axes``: where a run finds a size.
    """

    def __init__(self, name: str, budget: FoldingBudget, metas: Mapping[str, Meta]) -> None:
        super().__init__(name, budget)
        self.metas = metas
        self.free: dict[str, int] = {}
        self.tied: dict[str, str] = {}
        self.hints: dict[str, int] = {}
        self.literal: dict[str, Sequence[float]] = {}
        self.computed: dict[str, Sequence[int]] = {}
        self.axes: dict[Factor, tuple[str, int]] = {}

    def tie(self, sizes: Iterable[str], why: str) -> None:
        for size in sizes:
            if size in self.free:
                self.tied.setdefault(size, why)

    def tie_numbers(self, numbers: Iterable[float], why: str) -> None:
        """Ties the sizes from which numbers in arithmetic, or counts, may be computed."""
        for number in filter(math.isfinite, numbers):
            self.tie([name for name, size in self.free.items() if _came_of(number, size)], why)
            if number != round(number, 4) and not self._came_of_weights(number):
                self.tie(self.free, why)  # 1.4142, or 0.0714, may come from any size

    def _came_of_weights(self, number: float) -> bool:
        """Returns whether it may come from a width of weights: 1 / sqrt(64)."""
        widths = {size for array in self.constants.values() for size in array.shape}
        return any(_came_of(number, width) for width in widths)

    def remember_axes(self, variable: str, shape: Sequence[Size | None]) -> None:
        """Records an axis for each size that others are products of."""
        for axis, size in enumerate(shape):
            if size is not None and len(size.terms) == 1 and size.terms[0][1] == 1:
                factors = size.terms[0][0]
                if len(factors) == 1:
                    self.axes.setdefault(factors[0], (variable, axis))

    def is_zeros(self, value: str) -> bool:
        """Returns whether it is zeros, of a shape that the program states or a run computes."""
        if value in self.constants:
            return value in self.literal and not self.constants[value].any()
        maker = self.maker(value)
        return maker is not None and maker.op == "ConstantOfShape" and not maker.attrs.value.any()

    def exported(self, size: Size | None) -> int | None:
        """Returns a size's number in the program; None if it is open."""
        return None if size is None else size.put(self.free).number

    def standing_for(self, size: Size | None) -> int | None:
        """Returns a number in place of a size: the program's, with a prime for each open size."""
        if size is None:
            return None
        for name in sorted(size.names - self.free.keys()):
            self.hints.setdefault(name, _PRIMES[len(self.hints) % len(_PRIMES)])
        return size.put({**self.hints, **self.free}).number

    def free_in(self, value: str, axis: int) -> frozenset[str]:
        """Returns the free sizes that the size of an axis is made of."""
        shape = self.type_of(value).shape
        size = None if shape is None else shape[axis]
        return frozenset() if size is None else size.names & self.free.keys()


def _came_of(number: float, size: int) -> bool:
    """Returns whether a number may have been computed from a size."""
    whole = [size, size - 1, size + 1, 2 * size, size**2]
    if float(number).is_integer():
        return abs(number) in whole and (number != 0 or size == 0)
    numbers = [float(value) for value in whole if value > 0]
    numbers += [math.sqrt(value) for value in numbers] + [math.log(value) for value in numbers]
    numbers += [1 / value for value in numbers if value]
    return any(math.isclose(abs(number), value, rel_tol=1e-6) for value in numbers)


# One operator of an exported program as a rule of the table reads it.

INERT = frozenset("device layout dtype pin_memory non_blocking memory_format generator".split())
"""Arguments that cannot change a result on CPU, or that the types of the results tell."""
LAST, END = 2**63 - 1, 2**31 - 1

DType = np.dtype[Any]


class TorchOperator(NativeOperator):
    """One operator.

    Arguments that are tensors are inputs, all others attributes; sizes may be of either kind.
    """

    builder: TorchBuilder

    def __init__(self, builder: TorchBuilder, node: Node, at: NativeOp) -> None:
        inputs: dict[str, list[str]] = {}
        attributes: dict[str, Any] = {}
        for name, value in node.inputs.items():
            if isinstance(value, Ref):
                inputs[name] = [value.name]
            elif _are_tensors(value):
                inputs[name] = [ref.name if ref else "" for ref in value]
            elif isinstance(value, Unread) and name not in INERT:
                raise UnsupportedError(f"argument {name} is a {value.kind}")
            elif value is not None:
                attributes[name] = value
        results = {str(at): (name,) for at, name in enumerate(node.outputs)}
        label = next(filter(None, node.outputs), "")
        super().__init__(builder, at, inputs, results, attributes, INERT, label)
        self.node = node

    @property
    def why(self) -> str:
        return f"{self.label!r} ({self.at.type}) may hold that number"

    def number(self, name: str, plain: Sequence[float] = ()) -> float:
        """Returns a number in arithmetic; it may come from a size unless ``plain`` has it."""
        result = self.attribute(name, None)
        if not isinstance(result, int | float):
            raise UnsupportedError(f"argument {name} is missing, or not a number")
        if result not in plain:
            self.builder.tie_numbers([float(result)], self.why)
        return result

    @property
    def first(self) -> str:
        """The value of the first input."""
        names = (name for names in self.inputs.values() for name in names if name)
        return self.builder.value(next(names))

    def axis(self, axis: Any, value: str = "") -> int:
        """Returns an axis, counted from the first one, of a value or of the first input."""
        rank = max(self.rank_of(value or self.first), 1)
        if type(axis) is not int or not -rank <= axis < rank:
            raise UnsupportedError(f"argument dim={axis}: expected an axis of a value of {rank}")
        return axis % rank

    def result_dtype(self) -> DType:
        """Returns the dtype that the program gives to the first output."""
        meta = self.builder.metas.get(self.node.outputs[0])
        if meta is None:
            return np.dtype(np.int64)  # a size
        if meta.dtype == "bfloat16" or meta.dtype.startswith("ScalarType"):
            raise UnsupportedError(f"{meta.dtype} numbers are not supported")
        return np.dtype(meta.dtype)

    def opened(self, number: Open) -> TorchTensor:
        """Returns the scalar of a number that only a run knows."""
        self.builder.tie_numbers(self.builder.computed.get(number.name, ()), self.why)
        return TorchTensor(self, self.builder.value(number.name))

    def list_values(self, sizes: Sequence[int | Open | TorchTensor]) -> Any:
        """Returns a list of sizes, some of which may be values of the graph."""
        if all(isinstance(size, int) for size in sizes):
            return sizes
        parts = [self.opened(each).reshape(1) if isinstance(each, Open) else each for each in sizes]
        first, *others = (
            TorchTensor(self, self.ints(each)) if isinstance(each, int) else each for each in parts
        )
        return first.join(*others) if others else first


def _are_tensors(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, Ref | None) for each in value)
    )


class TorchTensor(Tensor):
    """A value as PyTorch's rules compute with it.

    A constant whose shape the program writes as numbers ties sizes as soon as a node reads it.
    """

    @classmethod
    def of(cls, op: Any, slot: str) -> list[Any]:
        number = op.attribute(slot, None)
        if not isinstance(number, int | float | Open):
            return super().of(op, slot)
        return [op.opened(number) if isinstance(number, Open) else Number(op, "", slot)]

    def read(self) -> str:
        self.op.builder.tie_numbers(self.op.builder.literal.get(self.name, ()), self.op.why)
        return self.name

    @property
    def dims(self) -> tuple[Size | None, ...]:
        """The sizes as formulas of the inputs' sizes; raises `UnsupportedError` without a rank."""
        return self.type.shape or () if self.rank else ()

    def tie(self, axis: int, why: str = "") -> None:
        """Ties the free sizes that the size of an axis is made of."""
        self.op.builder.tie(self.op.builder.free_in(self.name, axis), why or self.op.why)

    def promote(self, *plain: float) -> Any:
        """Returns the operand in the dtype of the result; ``plain``: see `TorchOperator.number`."""
        return self.cast(self.op.result_dtype())


class Number(TorchTensor):
    """A number in a slot that also takes a tensor."""

    @property
    def value(self) -> Any:
        return self.op.attributes[self.slot]

    def cast(self, dtype: Any, *plain: float) -> Any:
        number = self.op.number(self.slot, plain)
        return TorchTensor(self.op, self.op.scalar(number, np.dtype(dtype)))

    def promote(self, *plain: float) -> TorchTensor:
        return self.cast(self.op.result_dtype(), *plain)


# Kinds of arguments: as the default of a keyword, they read it by themselves.


class Scalar(NamedTuple):
    """A number in arithmetic, which ties sizes unless it is in ``plain``; see `number`."""

    default: float | None = None
    plain: tuple[float, ...] = ()

    def read(self, op: TorchOperator, name: str) -> float | None:
        return op.number(name, self.plain) if name in op.attributes else self.default


class Axis(NamedTuple):
    """An axis of the first input, counted from its first one."""

    default: int | None = None

    def read(self, op: TorchOperator, name: str) -> int:
        return op.axis(op.attribute(name, self.default))


class Axes(NamedTuple):
    """Axes of the first input, all if none are given."""

    def read(self, op: TorchOperator, name: str) -> list[int]:
        axes = op.attribute(name, None)
        if axes is None or axes == []:
            return [*range(op.rank_of(op.first))]
        return [op.axis(axis) for axis in (axes if isinstance(axes, list) else [axes])]


class Sizes(NamedTuple):
    """Sizes: numbers, or open until a run. They tie nothing."""

    def read(self, op: TorchOperator, name: str) -> list[int | Open]:
        sizes = op.attribute(name, None) or []
        if not isinstance(sizes, list) or not all(type(n) in (int, Open) for n in sizes):
            raise UnsupportedError(f"argument {name}: expected sizes")
        return sizes


class Place(NamedTuple):
    """A number along the axis ``dim``. Numbers such as 0, 1 and those that count from the end do
    not depend on its size unless that is small; all others may.
    """

    default: int = 0

    def read(self, op: TorchOperator, name: str) -> int | Open:
        result = op.attribute(name, self.default)
        if isinstance(result, Open):
            return result
        if not isinstance(result, int):
            raise UnsupportedError(f"argument {name}={result!r}: expected an integer")
        axis, builder = op.axis(op.attribute("dim", 0)), op.builder
        free = builder.free_in(op.first, axis)
        if free and 0 <= result < END:
            size = builder.exported((builder.type_of(op.first).shape or ())[axis])
            if result > 1 or size is None or result in (size, size - 1, size // 2, -(-size // 2)):
                builder.tie(free, op.why)
        if 1 < result < END:
            builder.tie([each for each, size in builder.free.items() if size == result], op.why)
        return max(-END, min(result, END))


RULES = Rules[Signature]()
"""By the names of aten's operators, "add.Tensor", and by whole names of others."""
VIEWS: set[str] = set()
"""Operators whose result may be another name of the same memory."""


def torch(names: str = "", *, views: str = "", **only: Any) -> Any:
    """Enters a rule whose signature is the schema of operators; see `Signature`.

    ``views``: operators whose result may be another name of the same memory.
    """

    def enter(rule: Callable[..., Any]) -> Callable[..., Any]:
        VIEWS.update(views.split())
        RULES(f"{names} {views}")(Signature(rule, only, TorchTensor))
        return rule

    return enter
