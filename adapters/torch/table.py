"""The graph under construction, and one operator of an exported program as a rule reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onernn.adapters.common.lowering import (
    FoldingBudget,
    GraphBuilder,
    NativeOperator,
    Results,
    Rules,
)
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
        for number in numbers:
            self.tie([name for name, size in self.free.items() if _came_of(number, size)], why)
            if number != round(number, 4) and not self._came_of_weights(number):
                self.tie(self.free, why)  # 1.4142, or 0.0714, may come from any size

    def _came_of_weights(self, number: float) -> bool:
        """Whether it may come from a width of weights: 1 / sqrt(64)."""
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
        """Whether it is zeros, of a shape that the program states or a run computes."""
        if value in self.constants:
            return value in self.literal and not self.constants[value].any()
        maker = next((node for node in self.nodes if value in node.outputs), None)
        return maker is not None and maker.op == "ConstantOfShape" and not maker.attrs.value.any()

    def exported(self, size: Size | None) -> int | None:
        """A size's number in the program; None if it is open."""
        return None if size is None else size.put(self.free).number

    def standing_for(self, size: Size | None) -> int | None:
        """A number in place of a size: the program's, with a prime for each open size."""
        if size is None:
            return None
        for name in sorted(size.names - self.free.keys()):
            self.hints.setdefault(name, _PRIMES[len(self.hints) % len(_PRIMES)])
        return size.put({**self.hints, **self.free}).number

    def free_in(self, value: str, axis: int) -> frozenset[str]:
        """The free sizes that the size of an axis is made of."""
        shape = self.type_of(value).shape
        size = None if shape is None else shape[axis]
        return frozenset() if size is None else size.names & self.free.keys()


def _came_of(number: float, size: int) -> bool:
    """Whether a number may have been computed from a size."""
    whole = [size, size - 1, size + 1, 2 * size, size**2]
    if not math.isfinite(number) or float(number).is_integer():
        return abs(number) in whole and (number != 0 or size == 0)
    numbers = [float(value) for value in whole if value > 0]
    numbers += [math.sqrt(value) for value in numbers] + [math.log(value) for value in numbers]
    numbers += [1 / value for value in numbers if value]
    return any(math.isclose(abs(number), value, rel_tol=1e-6) for value in numbers)


# One operator of an exported program as a rule of the table reads it.

INERT = frozenset("device layout pin_memory non_blocking memory_format generator".split())
"""Arguments that cannot change a result on CPU: devices and memory layouts."""
LAST = 2**63 - 1

DType = np.dtype[Any]


class TorchOperator(NativeOperator):
    """One operator.

    Arguments that are tensors are inputs, all others attributes; sizes may be of either kind.
    """

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

    main = "self"
    builder: TorchBuilder

    def given(self, slot: str) -> bool:
        return slot in self.inputs or slot in self.attributes

    def alias(self, slot: str = "self") -> str:
        """The value of a required input that is only handed on."""
        result = self.variable(slot)
        if not result:
            raise UnsupportedError(f"input {slot} is missing")
        return self.builder.value(result)

    def resolve(self, variable: str) -> str:
        return self.read(self.builder.value(variable))

    def read(self, value: str) -> str:
        self.builder.tie_numbers(self.builder.literal.get(value, ()), self.why)
        return value

    @property
    def why(self) -> str:
        name = next(filter(None, self.node.outputs), "")
        return f"{name!r} ({self.at.type}) may hold that number"

    def tie(self, value: str, axis: int, why: str = "") -> None:
        """Ties the free sizes that the size of an axis is made of."""
        self.builder.tie(self.builder.free_in(value, axis), why or self.why)

    def number(self, name: str, default: float | None = None, plain: Sequence[float] = ()) -> Any:
        """A number in arithmetic; it may come from a size unless ``plain`` has it."""
        result = self.attribute(name, default)
        if result is None or not isinstance(result, int | float):
            raise UnsupportedError(f"argument {name} is missing, or no number")
        if result not in plain:
            self.builder.tie_numbers([float(result)], self.why)
        return result

    def sizes(self, name: str) -> list[int | Open]:
        """Sizes: numbers, or open until a run. Ties nothing."""
        result = self.attribute(name, None) or []
        if not isinstance(result, list) or not all(type(n) in (int, Open) for n in result):
            raise UnsupportedError(f"argument {name}: expected sizes")
        return result

    def integers(self, name: str, default: Sequence[int] = (), count: int = 0) -> tuple[int, ...]:
        """Numbers that are no sizes: axes, a kernel's; one stands for ``count`` of them."""
        result = self.attribute(name, list(default))
        if not all(isinstance(number, int) for number in result):
            raise UnsupportedError(f"argument {name}: numbers that are open")
        return tuple(result) * count if count and len(result) == 1 else tuple(result)

    def axis(self, value: str, name: str = "dim", default: int | None = None) -> int:
        """An axis of a value, counted from the first one."""
        return self.checked_axis(value, self.attribute(name, default), name)

    def checked_axis(self, value: str, axis: Any, name: str = "dim") -> int:
        rank = max(self.rank_of(value), 1)
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise UnsupportedError(f"argument {name}: an axis of a value of {rank} axes")
        return axis % rank

    def axes(self, value: str, name: str = "dim") -> list[int]:
        """Axes of a value, all where none are given."""
        result = self.attribute(name, None)
        if result is None or result == []:
            return [*range(self.rank_of(value))]
        axes = result if isinstance(result, list) else [result]
        return [self.checked_axis(value, axis, name) for axis in axes]

    def shape(self, value: str) -> tuple[Size | None, ...]:
        self.rank_of(value)
        return self.builder.type_of(value).shape or ()

    def result_dtype(self, at: int = 0) -> DType:
        """The dtype that the program gives to an output."""
        meta = self.builder.metas.get(self.node.outputs[at])
        if meta is None:
            return np.dtype(np.int64)  # a size
        if meta.dtype == "bfloat16" or meta.dtype.startswith("ScalarType"):
            raise UnsupportedError(f"{meta.dtype} numbers are not supported")
        return np.dtype(meta.dtype)

    def promoted(self) -> str:
        """The input in the dtype of the result."""
        return self.cast(self.value(), self.result_dtype())

    @property
    def epsilon(self) -> float:
        return float(self.attribute("eps", 1e-5))

    @property
    def keeps(self) -> int:
        """ONNX's keepdims."""
        return int(self.attribute("keepdim", False))

    def listed(self, sizes: Sequence[int | Open]) -> str:
        """A list of sizes, some of which may be values of the graph."""
        whole = [size for size in sizes if isinstance(size, int)]
        if len(whole) == len(sizes):
            return self.ints(*whole)
        parts = [self.ints(size) if isinstance(size, int) else self.as_list(size) for size in sizes]
        return self.joined(*parts)

    def as_list(self, number: Open) -> str:
        """A number that only a run knows, a scalar, as a list of one."""
        self.builder.tie_numbers(self.builder.computed.get(number.name, ()), self.why)
        return self.reshaped(self.builder.value(number.name), 1)

    def operand(self, slot: str, dtype: npt.DTypeLike, plain: Sequence[float] = ()) -> str:
        """A tensor, or a number as one, in a dtype; ``plain`` as `number` takes it."""
        if slot in self.inputs:
            return self.cast(self.value(slot), dtype)
        result = self.attribute(slot, None)
        if isinstance(result, Open):
            self.builder.tie_numbers(self.builder.computed.get(result.name, ()), self.why)
            return self.cast(self.builder.value(result.name), dtype)
        return self.scalar(self.number(slot, plain=plain), np.dtype(dtype))


def _are_tensors(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, Ref | None) for each in value)
    )


Rule = Callable[[TorchOperator], Results]
rule = RULES = Rules[Rule]()
"""By the names of aten's operators, "add.Tensor", and by whole names of others."""
