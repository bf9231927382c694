"""The graph under construction, and the form in which rules read an operator of an exported
program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.files import pairs
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
from onernn.ir.records import cached_property
from onernn.ir.types import Factor, Size

# The graph under construction, and the free sizes of an export.
#
# torch.export writes the sizes of its example as numbers, unless they are declared dynamic. The
# number of steps of a recurrent layer cannot be dynamic, because torch.export unrolls the layer to
# find it. But aten.lstm itself has no size among its arguments. So a size that is a number in the
# program is free: it may have a different value, as long as no operator depends on it. If an
# argument may have been computed from the size, such as x.shape[1] or half of it, the size is tied:
# it must keep its number.

WEIGHTS = "weights"
"""The reason to keep the exported number of a size that must match the shape of weights."""
_MOST_FACTORS = 4
"""The maximum number of free sizes of an input whose products are compared with numbers."""
_PRIMES = (100_003, 100_019, 100_043, 100_049, 100_057, 100_069, 100_103, 100_109)


class TorchBuilder(GraphBuilder):
    """The graph under construction.

    ``metas``: the declared types of tensors. ``free``: the program's numbers for input sizes, by
    onernn's names of the sizes. ``tied``: why some of these sizes must keep their numbers.
    ``literal``: for each constant that the model's code creates, its sizes and elements that may be
    sizes of inputs. A constant ties sizes only when a node reads the constant, because an initial
    state of zeros may be left out. ``computed``: for each result of Python's arithmetic with sizes,
    its integer operands. ``axes``: for each size, a variable and an axis that have it.
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
        """Fixes input sizes at their exported numbers if one of ``numbers`` may be computed from
        them.
        """
        for number in filter(math.isfinite, numbers):
            self.tie([name for name, size in self.free.items() if _came_of(number, size)], why)
            for product, names in self._products:
                if number % product == 0 and self._is_width(number // product):
                    self.tie(names, why)
            # 1.4142 or 0.07142 may come from any size, 1e-12 has one digit
            plain = number in (round(number, 4), float(f"{number:.0e}"))
            if not plain and not self._came_of_weights(number):
                self.tie(self.free, why)

    @cached_property
    def _products(self) -> list[tuple[int, list[str]]]:
        """The products of two or more sizes of an input, with the names of the sizes."""
        result = []
        for value in self.inputs:
            names = [f"{value.name}.{axis}" for axis in range(value.type.rank or 0)]
            names = [name for name in names if self.free.get(name, 0) > 1][:_MOST_FACTORS]
            for count in range(2, len(names) + 1):
                for some in combinations(names, count):
                    result.append((math.prod(self.free[name] for name in some), [*some]))
        return result

    def _widths(self) -> set[int]:
        """Returns the sizes of weights."""
        return {size for array in self.constants.values() for size in array.shape}

    def _is_width(self, number: float) -> bool:
        return number == 1 or number in self._widths()

    def _came_of_weights(self, number: float) -> bool:
        """Returns whether a number may come from a size of weights, such as 1 / sqrt(64)."""
        return any(_came_of(number, width) for width in self._widths())

    def tie_place(self, value: str, axis: int, place: int, why: str) -> None:
        """Fixes the size of an axis if ``place``, a number of elements along it, may have been
        computed from the size.

        Any number above 1 may have been computed from the size. 0 or 1 may have been computed from
        it only if it equals the size, the size minus 1 or half of the size.
        """
        free = self.free_in(value, axis)
        if free and 0 <= place < END:
            size = self.find_exported_size((self.type_of(value).shape or ())[axis])
            if place > 1 or size is None or place in (size, size - 1, size // 2, -(-size // 2)):
                self.tie(free, why)
        if 1 < place < END:
            self.tie([each for each, size in self.free.items() if size == place], why)

    def remember_axes(self, variable: str, shape: Sequence[Size | None]) -> None:
        """Records in ``axes`` the variable and axis of each size that is not a sum or product."""
        for axis, size in enumerate(shape):
            if size is not None and len(size.terms) == 1 and size.terms[0][1] == 1:
                factors = size.terms[0][0]
                if len(factors) == 1:
                    self.axes.setdefault(factors[0], (variable, axis))

    def is_zeros(self, value: str) -> bool:
        """Returns whether a value is a tensor of zeros that the model's code creates."""
        if value in self.constants:
            return value in self.literal and not self.constants[value].any()
        maker = self.maker(value)
        return maker is not None and maker.op == "ConstantOfShape" and not maker.attrs.value.any()

    def find_exported_size(self, size: Size | None) -> int | None:
        """Returns the number that the program has for a size; None for a dynamic size."""
        return None if size is None else size.substitute(self.free).number

    def standing_for(self, size: Size | None) -> int | None:
        """Returns a size as a number: its number in the program. A prime number stands for each
        dynamic size.
        """
        if size is None:
            return None
        for name in sorted(size.names - self.free.keys()):
            self.hints.setdefault(name, _PRIMES[len(self.hints) % len(_PRIMES)])
        return size.substitute({**self.hints, **self.free}).number

    def free_in(self, value: str, axis: int) -> frozenset[str]:
        """Returns the names in ``free`` from which the size of an axis is computed."""
        shape = self.type_of(value).shape
        size = None if shape is None else shape[axis]
        return frozenset() if size is None else size.names & self.free.keys()


def _came_of(number: float, size: int) -> bool:
    whole = [size, size - 1, size + 1, 2 * size, size**2]
    if float(number).is_integer():
        return abs(number) in whole and (number != 0 or size == 0)
    numbers = [float(value) for value in whole if value > 0]
    numbers += [math.sqrt(value) for value in numbers] + [math.log(value) for value in numbers]
    numbers += [1 / value for value in numbers if value]
    return any(math.isclose(abs(number), value, rel_tol=1e-6) for value in numbers)


# The form in which rules read an operator of an exported program.

INERT = frozenset("device layout dtype pin_memory non_blocking memory_format generator".split())
"""The arguments that do not change results on CPU, or that the results' declared types replace."""
LAST, END = 2**63 - 1, 2**31 - 1

FIX_SIZE = "; export the model with a fixed size, not in dynamic_shapes"
"""Advice that follows an error about a dynamic size."""

DType = np.dtype[Any]


class TorchOperator(NativeOperator):
    """An operator of an exported program.

    Arguments that are tensors are inputs, all others are attributes. Sizes may be either.
    """

    builder: TorchBuilder

    def __init__(self, builder: TorchBuilder, node: Node, at: NativeOp) -> None:
        inputs: dict[str, list[str]] = {}
        attributes: dict[str, Any] = {}
        for name, value in node.inputs.items():
            if isinstance(value, Ref):
                inputs[name] = [value.name]
            elif (
                isinstance(value, list) and value and all(isinstance(e, Ref | None) for e in value)
            ):
                inputs[name] = [ref.name if ref else "" for ref in value]
            elif isinstance(value, Unread) and name not in INERT:
                expected = "expected a tensor, number, text or list"
                raise UnsupportedError(f"argument {name}: {expected}, got {value.kind}")
            elif value is not None:
                attributes[name] = value
        results = {str(at): (name,) for at, name in enumerate(node.outputs)}
        super().__init__(builder, at, inputs, results, attributes, INERT, node.result)
        self.node = node

    @property
    def name(self) -> str:
        """The operator's name in `RULES`, without the overload."""
        return resolve(self.at.type).partition(".")[0]

    @property
    def why(self) -> str:
        return f"{self.label!r} ({self.at.type}) may hold that number"

    def number(self, name: str, plain: Sequence[float] = ()) -> float:
        """Returns the argument ``name``, a number.

        Unless the number is in ``plain``, the input sizes from which it may have been computed keep
        their exported numbers.
        """
        result = self.attribute(name, None)
        if not isinstance(result, int | float):
            raise UnsupportedError(f"argument {name}={result!r:.60}: expected a number")
        if result not in plain:
            self.builder.tie_numbers([float(result)], self.why)
        return result

    def tie_all(self) -> None:
        """Keeps the exported numbers of all input sizes from which an argument may have been
        computed.
        """
        for value in self.attributes.values():
            numbers = value if isinstance(value, list) else [value]
            kinds = (int, float)
            self.builder.tie_numbers([n for n in numbers if type(n) in kinds], self.why)

    @property
    def first(self) -> str:
        """The value of the operator's first input."""
        names = (name for names in self.inputs.values() for name in names if name)
        return self.builder.value(next(names))

    def axis(self, axis: Any, value: str = "") -> int:
        """Returns the nonnegative index of an axis of a value, or of the first input."""
        rank = max(len(self.shape_of(value or self.first)), 1)
        if type(axis) is not int or not -rank <= axis < rank:
            raise UnsupportedError(f"argument dim={axis}: expected -{rank} to {rank - 1}")
        return axis % rank

    def is_complex(self, slot: str) -> bool:
        """Returns whether the program declares an input as complex. onernn stores it as floats
        (..., 2).
        """
        metas = self.builder.metas
        return any(name in metas and metas[name].is_complex for name in self.inputs.get(slot, ()))

    def result_dtype(self) -> DType:
        """Returns the declared dtype of the first output."""
        meta = self.builder.metas.get(self.node.outputs[0])
        if meta is None:
            return np.dtype(np.int64)  # a size
        if meta.dtype == "bfloat16" or meta.dtype.startswith("ScalarType"):
            raise UnsupportedError(
                f"dtype {meta.dtype} is not supported; call model.float() before the export"
            )
        return np.dtype(meta.dtype)

    def open_number(self, number: Open) -> TorchTensor:
        """Returns the tensor of a number that is computed at run time."""
        self.builder.tie_numbers(self.builder.computed.get(number.name, ()), self.why)
        return TorchTensor(self, self.builder.value(number.name))

    def list_values(self, sizes: Sequence[int | Open | TorchTensor]) -> Any:
        """Returns a list of sizes; if some are computed at run time, the list is a tensor."""
        if all(isinstance(size, int) for size in sizes):
            return sizes
        parts = [
            self.open_number(each).reshape(1) if isinstance(each, Open) else each for each in sizes
        ]
        first, *others = (
            TorchTensor(self, self.ints(each)) if isinstance(each, int) else each for each in parts
        )
        return first.join(*others) if others else first


class TorchTensor(Tensor):
    """A value on which PyTorch's rules compute.

    If a node reads a constant in `TorchBuilder.literal`, the input sizes from which the constant's
    numbers may come keep their exported numbers.
    """

    @classmethod
    def of(cls, op: Any, slot: str) -> list[Any]:
        number = op.attribute(slot, None)
        if not isinstance(number, int | float | Open):
            return super().of(op, slot)
        return [op.open_number(number) if isinstance(number, Open) else Number(op, "", slot)]

    def read(self) -> str:
        self.op.builder.tie_numbers(self.op.builder.literal.get(self.name, ()), self.op.why)
        return self.name

    @property
    def dims(self) -> tuple[Size | None, ...]:
        """The sizes, as formulas of the inputs' sizes. Raises `UnsupportedError` if the rank is
        unknown.
        """
        return self.type.shape or () if self.rank else ()

    def tie(self, axis: int, why: str = "") -> None:
        """Fixes the input sizes from which the size of an axis is computed, at their exported
        numbers.
        """
        self.op.builder.tie(self.op.builder.free_in(self.name, axis), why or self.op.why)

    def promote(self, *plain: float) -> Any:
        """Returns the operand in the declared dtype of the result; ``plain``: see
        `TorchOperator.number`.
        """
        return self.cast(self.op.result_dtype())


class Number(TorchTensor):
    """A number as the argument of a slot that also accepts a tensor."""

    @property
    def value(self) -> Any:
        return self.op.attributes[self.slot]

    def cast(self, dtype: Any, *plain: float) -> Any:
        number = self.op.number(self.slot, plain)
        return TorchTensor(self.op, self.op.scalar(number, np.dtype(dtype)))

    def promote(self, *plain: float) -> TorchTensor:
        return self.cast(self.op.result_dtype(), *plain)


# Kinds of arguments. If a rule's keyword has such an object as its default, the object's ``read``
# returns the argument.


class Scalar(NamedTuple):
    """A number as an argument; for ``plain`` see `TorchOperator.number`."""

    default: float | None = None
    plain: tuple[float, ...] = ()

    def read(self, op: TorchOperator, name: str) -> float | None:
        return op.number(name, self.plain) if name in op.attributes else self.default


class AnySize(NamedTuple):
    """A size that the rule ignores, because the inputs also have it."""

    def read(self, op: TorchOperator, name: str) -> None:
        op.ignore(name)


class Axis(NamedTuple):
    """An axis of the first input, counted from 0."""

    default: int | None = None

    def read(self, op: TorchOperator, name: str) -> int:
        return op.axis(op.attribute(name, self.default))


class Axes(NamedTuple):
    """Axes of the first input; all axes if none are given."""

    def read(self, op: TorchOperator, name: str) -> list[int]:
        axes = op.attribute(name, None)
        if axes is None or axes == []:
            return [*range(len(op.shape_of(op.first)))]
        return [op.axis(axis) for axis in (axes if isinstance(axes, list) else [axes])]


class Sizes(NamedTuple):
    """A list of sizes, which are numbers or computed at run time. Input sizes may vary although the
    list contains their exported numbers.
    """

    def read(self, op: TorchOperator, name: str) -> list[int | Open]:
        sizes = op.attribute(name, None) or []
        if not isinstance(sizes, list) or not all(type(n) in (int, Open) for n in sizes):
            raise UnsupportedError(f"argument {name}={sizes!r:.100}: expected a list of sizes")
        return sizes


class Place(NamedTuple):
    """A position along the axis ``dim``; see `TorchBuilder.tie_place`."""

    default: int = 0
    axis: int = 0
    """The default of ``dim``."""

    def read(self, op: TorchOperator, name: str) -> int | Open:
        result = op.attribute(name, None)
        result = self.default if result is None else result
        if isinstance(result, Open):
            return result
        if not isinstance(result, int):
            raise UnsupportedError(f"argument {name}={result!r}: expected an integer")
        op.builder.tie_place(op.first, op.axis(op.attribute("dim", self.axis)), result, op.why)
        return max(-END, min(result, END))


RULES = Rules[Signature]()
"""The rules by operator names: "add.Tensor" for aten, full names such as "_operator.add" for
others.
"""
VIEWS: set[str] = set()
"""Operators whose result may share the memory of an input."""
COMPLEX: set[Signature] = set()
"""Rules that support complex numbers, stored as floats (..., 2) with real and imaginary parts."""

ALIASES = pairs(
    """
    absolute=abs arctan=atan clip=clamp concat=cat concatenate=cat divide=div fix=trunc
    floor_divide.Tensor=floor_divide ger=outer greater=gt greater_equal=ge less=lt less_equal=le
    linalg_matmul=matmul mT.a=mT moveaxis=movedim multiply=mul negative=neg not_equal=ne
    numpy_T.a=numpy_T pow.Tensor=pow.Tensor_Tensor row_stack=vstack special_erf=erf
    special_exp2=exp2 special_expit=sigmoid special_expm1=expm1 special_log1p=log1p
    special_log_softmax=log_softmax.int special_logsumexp=logsumexp special_round=round
    special_softmax=softmax.int subtract=sub swapdims=transpose.int transpose=transpose.int
    true_divide=div
    """
)
"""Other names of operators that take the same arguments, with or without an overload."""


def resolve(name: str) -> str:
    """Returns an operator's name in `RULES`.

    It resolves aliases, in-place names such as "add_.Tensor", and copies of views such as
    "slice_copy.Tensor".
    """
    base, dot, overload = name.partition(".")
    base = base.removesuffix("_copy").removesuffix("_")
    plain = base + dot + overload
    names = (name, plain, ALIASES.get(plain, plain), ALIASES.get(base, base) + dot + overload)
    return next((each for each in names if each in RULES), name)


def is_view(name: str) -> bool:
    """Returns whether an operator's result may share the memory of an input."""
    return resolve(name) in VIEWS and not name.partition(".")[0].endswith("_copy")


def torch(names: str = "", *, views: str = "", complex: bool = False, **only: Any) -> Any:
    """Adds a rule to `RULES`; `Signature` describes its parameters.

    ``views``: operators whose result may share the memory of an input. ``complex``: see `COMPLEX`.
    ``only``: arguments that must have the given value.
    """

    def make(rule: Callable[..., Any]) -> Signature:
        signature = Signature(rule, only, TorchTensor)
        COMPLEX.update([signature] * complex)
        return signature

    VIEWS.update(views.split())
    return RULES(f"{names} {views}", make)
