"""One MXNet operator as a rule of the tables reads it, and the graph that it is lowered into."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from onernn.adapters.lowering import GraphBuilder, NativeOperator
from onernn.adapters.mxnet.read import Symbol, SymbolNode
from onernn.adapters.mxnet.read import attributes as parse
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import NativeOp, Value
from onernn.core.records import dataclass

T = TypeVar("T")
DType = np.dtype[Any]
FIRST, LAST = -(2**62), 2**62
"""Beyond every axis: slices are cut there."""
COMPUTED = frozenset("bool uint8 int8 int32 int64 float32 float64".split())
"""What NumPy computes in like MXNet; float16 parameters are read as float32."""


@dataclass
class Context:
    """The graph under construction, and what is known of it beside types.

    ``inferred``: variables made from ``_zeros`` of unknown size, which MXNet infers from what they
    are added to. Here the unknown sizes are 1, and broadcasting gives the same numbers.
    ``unranked``: values whose rank an operator lacked.
    ``notes``: what a user should know, and the nodes it is true of; ``differing`` are those of
    them that tell where the two meanings differ.
    """

    builder: GraphBuilder
    semantics: str
    symbol: Symbol
    inferred: set[str] = field(default_factory=set)
    unranked: set[str] = field(default_factory=set)
    notes: dict[str, list[str]] = field(default_factory=dict)
    differing: set[str] = field(default_factory=set)

    def note(self, text: str, node: str) -> None:
        nodes = self.notes.setdefault(text, [])
        if node not in nodes:
            nodes.append(node)

    def labelled(self, texts: Iterable[str]) -> list[str]:
        """The notes with their nodes in front, each once."""
        return [": ".join(filter(None, [", ".join(self.notes[text]), text])) for text in texts]


class MxnetOperator(NativeOperator):
    """One operator with the graph it is lowered into.

    ``name``: its name in the table. ``numpy``: whether it is one of NumPy mode's. ``inferred``:
    values of its inputs.
    """

    def __init__(
        self,
        context: Context,
        at: NativeOp,
        name: str,
        node: SymbolNode,
        inputs: Mapping[str, Sequence[str]],
        inferred: Collection[str] = (),
    ) -> None:
        read = {k: v for k, v in node.attributes.items() if not parse.TRAINING.fullmatch(k)}
        super().__init__(at, inputs, {}, read, parse.INERT)
        self.context, self.builder, self.node = context, context.builder, node
        self.name, self.numpy = name, at.type.startswith("_np")
        self.inferred, self.gives_inferred = inferred, False

    def values(self, slot: str) -> list[str]:
        found = self.variables(slot)
        for value in found:
            dtype = self.builder.type_of(value).dtype
            if dtype is not None and dtype not in COMPUTED:
                raise UnsupportedError(f"input {slot}: {dtype} numbers are not supported")
        return found

    def optional(self, slot: str) -> str:
        return next(iter(self.values(slot)), "")

    def value(self, slot: str) -> str:
        """The value in a required input slot."""
        found = self.optional(slot)
        if not found:
            raise UnsupportedError(f"input {slot} is missing")
        return found

    def array(self, slot: str) -> Array:
        """The numbers in a slot. Raises `UnsupportedError` where they are computed at run time."""
        return self.builder.array(self.value(slot), slot)

    def _parsed(self, name: str, default: T, parser: Callable[[str], T]) -> T:
        text = self.attribute(name, None)
        if text is None:
            return default
        try:
            return parser(text)
        except UnsupportedError as error:
            raise UnsupportedError(f"attribute {name}: {error}") from None

    def _optional(self, name: str, default: T | None, parser: Callable[[str], T]) -> T | None:
        return None if self.attribute(name, None) == "None" else self._parsed(name, default, parser)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self._optional(name, default, parse.flag))

    def integer(self, name: str, default: int | None = None) -> int:
        found = self.optional_integer(name, default)
        if found is None:
            raise UnsupportedError(f"attribute {name} is missing")
        return found

    def optional_integer(self, name: str, default: int | None = None) -> int | None:
        return self._optional(name, default, parse.integer)

    def number(self, name: str, default: float) -> float:
        return self._parsed(name, default, parse.number)

    def optional_number(self, name: str) -> float | None:
        return self._optional(name, None, parse.number)

    def sizes(self, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        return self._parsed(name, default, parse.sizes)

    def optional_sizes(self, name: str) -> tuple[int, ...] | None:
        return self._optional(name, None, parse.sizes)

    def bounds(self, name: str) -> tuple[int | None, ...]:
        return self._parsed(name, (), parse.numbers)

    def text(self, name: str, default: str) -> str:
        return str(self.attribute(name, default))

    def dtype(self, name: str, default: str = "float32") -> DType:
        """A dtype that is an attribute. Raises `UnsupportedError` for those not computed in."""
        found = self.text(name, default)
        if found not in COMPUTED:
            raise UnsupportedError(f"attribute {name}={found}: only {', '.join(sorted(COMPUTED))}")
        return np.dtype(found)

    def rank(self, value: str) -> int | None:
        """How many axes a value has, None where the symbol does not tell."""
        return self.builder.type_of(value).rank

    def known_rank(self, value: str, why: str) -> int:
        """The same. Raises `UnsupportedError` where the symbol does not tell."""
        found = self.rank(value)
        if found is None:
            self.context.unranked.add(value)
            raise UnsupportedError(
                f"{why}: the symbol does not tell how many axes {value!r} has; it declares no shape"
                f" (__shape__) of {', '.join(self._undeclared())}"
            )
        return found

    def _undeclared(self) -> list[str]:
        return [each.name for each in self.builder.inputs if self.rank(each.name) is None]

    def dtype_of(self, value: str) -> DType:
        """A value's dtype, MXNet's default where the symbol does not tell."""
        return np.dtype(self.builder.type_of(value).dtype or np.float32)

    def share_rank(self, *values: str) -> None:
        """What is known of the rank of one holds for all: they have one shape."""
        ranks = {value: self.rank(value) for value in values}
        known = next((rank for rank in ranks.values() if rank is not None), None)
        for value, rank in ranks.items():
            if rank is None and known is not None:
                self.declare_rank(value, known)

    def declare_rank(self, value: str, rank: int) -> None:
        """What an operator tells of a value of unknown shape; inputs of the graph declare it."""
        declared = Value(value, shape=(None,) * rank)
        known = replace(self.builder.type_of(value), shape=declared.type.shape)
        self.builder.declare(value, known)
        self.builder.inputs = [
            replace(given, shape=declared.shape) if given.name == value else given
            for given in self.builder.inputs
        ]

    def check_floats(self, *values: str) -> None:
        """Refuses whole numbers, which NumPy would promote where MXNet does not."""
        for value in values:
            dtype = self.dtype_of(value)
            if dtype.kind != "f":
                raise UnsupportedError(f"of {dtype} values")

    def is_inferred(self, value: str) -> bool:
        return value in self.inferred

    def note(self, text: str) -> None:
        """What a user should know of this operator."""
        self.context.note(text, f"{self.node.name} ({self.node.op})")

    def as_documented(self, documented: str, on_cpu: str) -> bool:
        """Whether to compute what is documented, or what MXNet's CPU gave; noted either way."""
        chosen = self.context.semantics == "documented"
        if chosen:
            text = f"{documented}, as documented; MXNet 1.9.1 on CPU did otherwise: {on_cpu}"
            text += " (semantics='mxnet-cpu' gives its numbers)"
        else:
            text = f"{on_cpu}, as in MXNet 1.9.1 on CPU; documented is: {documented}"
            text += " (semantics='documented')"
        self.context.differing.add(text)
        self.note(text)
        return chosen

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node's output."""
        (out,) = self.emit_many(op, 1, *inputs, **attributes)
        return out

    def emit_many(self, op: str, count: int, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        """A node's outputs."""
        return self.builder.emit_many(op, inputs, count, attributes)

    def constant(self, array: npt.ArrayLike, label: str = "") -> str:
        """A constant, named after the node."""
        return self.builder.constant(
            array, f"{self.node.name}/{label}" if label else self.node.name
        )

    def ints(self, *values: int) -> str:
        """A constant list of int64: axes or a shape."""
        return self.constant(np.asarray(values, np.int64), "ints")

    def scalar(self, value: float, like: str) -> str:
        """A constant of the dtype of another value."""
        dtype = self.dtype_of(like)
        if dtype.kind in "iub" and not float(value).is_integer():
            raise UnsupportedError(f"the number {value} for {dtype} values")
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        if limits and not limits.min <= value <= limits.max:
            raise UnsupportedError(f"the number {value} for {dtype} values")
        return self.constant(np.asarray(value, dtype), "scalar")

    def sizes_of(self, value: str) -> str:
        """The shape of a value, computed at run time where it is no constant."""
        if value in self.builder.constants:
            return self.ints(*self.builder.constants[value].shape)
        return self.emit("Shape", value)

    def cast(self, value: str, dtype: npt.DTypeLike) -> str:
        wanted = np.dtype(dtype)
        if self.builder.type_of(value).dtype == wanted.name:
            return value
        return self.emit("Cast", value, to=wanted.name)

    def matrix(self, value: str) -> str:
        """The value with all axes but the first as one."""
        return value if self.rank(value) == 2 else self.emit("Flatten", value, axis=1)

    def joined(self, *lists: str) -> str:
        """One list, such as a shape, from several."""
        return self.emit("Concat", *lists, axis=0)

    def part(self, value: str, first: int, end: int, axis: int = 0) -> str:
        """A part of a list, such as a shape, or of a value along an axis."""
        return self.emit("Slice", value, *map(self.ints, (first, end, axis)))

    def resized(self, whole: str, axis: int, size: int) -> str:
        """A shape with another size at an axis."""
        before, after = self.part(whole, 0, axis), self.part(whole, axis + 1 or LAST, LAST)
        return self.joined(before, self.ints(size), after)

    def listed(self, value: str, *gone: int) -> str:
        """The value; a list of one number where it would be a scalar, which only NumPy mode knows.

        ``gone``: the axes that it has lost, where not all of them may be.
        """
        rank = self.rank(value)
        some_left = gone and not (max(gone) < len(gone) and min(gone) >= -len(gone))
        if rank or some_left or self.numpy:
            return value
        if rank == 0:
            return self.emit("Reshape", value, self.ints(1))
        sizes = self.sizes_of(value)
        skipped = self.emit("Min", self.sizes_of(sizes), self.ints(1))  # 0 for a scalar
        whole = self.joined(self.ints(1), sizes)
        kept = self.emit("Slice", whole, skipped, self.ints(LAST), self.ints(0))
        return self.emit("Reshape", value, kept)

    def swapped(self, value: str, one: int, other: int) -> str:
        """The value with two axes exchanged, its rank known or not."""
        rank = self.rank(value)
        if rank is not None:
            perm = list(range(rank))
            if not (-rank <= one < rank and -rank <= other < rank):
                raise UnsupportedError(f"axes {one} and {other} of a value of {rank} axes")
            perm[one], perm[other] = perm[other], perm[one]
            return self.emit("Transpose", value, perm=tuple(perm))
        equation = swap_equation(one, other)
        return self.emit("Einsum", value, equation=equation)


def swap_equation(one: int, other: int) -> str:
    """The einsum that exchanges two axes of an array of any rank: (0, 1) is ``ab...->ba...``."""
    front = max([axis + 1 for axis in (one, other) if axis >= 0], default=0)
    back = max([-axis for axis in (one, other) if axis < 0], default=0)
    if front + back > 26:
        raise UnsupportedError(f"axes {one} and {other}")
    letters = [chr(ord("a") + n) for n in range(front + back)]
    before = [*letters[:front], "...", *letters[front:]]
    after = list(before)
    at = [axis if axis >= 0 else len(before) + axis for axis in (one, other)]
    after[at[0]], after[at[1]] = before[at[1]], before[at[0]]
    return f"{''.join(before)}->{''.join(after)}"
