"""What runs a node: calls of the kernels' functions, loops over an expression, layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.graph import Node
from onernn.ir.records import dataclass
from onernn.ir.spec import RnnSpec
from onernn.ir.types import Size
from onernn.ir.weights import RnnWeights
from onernn.ops.elementwise import Expression


def kept(name: str, what: str) -> str:
    """What an operator keeps beside a value. No value of a program has a NUL in its own name."""
    return f"{name}\0{what}"


@dataclass(frozen=True)
class Sentences:
    """A LoD level of ragged values: how many sentences and words, and whose offsets these are.

    ``words`` of an upper level are the sentences of the next one. ``level``: counted from the
    end, -1 is the level of the words.
    """

    name: str
    count: Size
    words: Size
    level: int = -1

    @property
    def offsets(self) -> str:
        """The name of where they stand."""
        return kept(self.name, "offsets" if self.level == -1 else f"offsets{self.level}")


@dataclass(frozen=True)
class At:
    """Where a value stands; of "" nothing does."""

    name: str


@dataclass(frozen=True, eq=False)
class Packed:
    """Numbers that are stored for the run; ``narrow``: of a matrix, which may be stored in fewer
    bits."""

    numbers: Array
    narrow: bool = False


@dataclass(frozen=True)
class Found:
    """A size that the call tells."""

    size: Size


class Team:
    """The threads of a run."""


def moved(dtype: str) -> str:
    """The type of functions that only move numbers of a dtype."""
    return f"u{np.dtype(dtype).itemsize}"


Argument = At | Packed | Found | Team | Size | tuple[Size, ...] | float


class Call:
    """A call of a function of `kernels/steps`: pointers to values, sizes, numbers.

    A string names a value, `Sentences` stand for their offsets, integers and truths are sizes,
    lists are sizes of axes. The first argument is the value that the call makes. ``types`` tell the
    function's instance for those who do not compile: dtypes, or u1, u4, u8 for elements that are
    only moved. ``checks``: it looks at indices or lengths, and may refuse them.
    """

    def __init__(
        self, function: str, *arguments: Any, types: Sequence[str] = (), checks: bool = False
    ) -> None:
        self.function, self.types, self.checks = function, tuple(types), checks
        self.arguments: tuple[Argument, ...] = tuple(map(_argument, arguments))

    @property
    def makes(self) -> str | None:
        """The value that it fills; nobody may want that, as with some parts of a Split."""
        first = self.arguments[0]
        return first.name if isinstance(first, At) else None


def _argument(given: Any) -> Argument:
    if isinstance(given, str):
        return At(given)
    if isinstance(given, Sentences):
        return At(given.offsets)
    if isinstance(given, int):
        return Size.of(given)
    if isinstance(given, list):
        return tuple(map(Size.of, given))
    return given


@dataclass(frozen=True)
class Access:
    """Elements of a value: the one at i, j, ... is ``start`` + i * strides[0] + j * strides[1]."""

    name: str
    strides: tuple[Size, ...]
    start: Size = Size(())


@dataclass(frozen=True, eq=False)
class Nest:
    """out = expression(reads), element by element, over all loops."""

    loops: tuple[Size, ...]
    out: Access
    reads: tuple[Access, ...]
    expression: Expression

    @property
    def makes(self) -> str:
        return self.out.name

    @property
    def merged(self) -> Nest:
        """The same in fewer loops: neighbouring ones become one where they can."""
        accesses = [self.out, *self.reads]
        found: list[tuple[Size, list[Size]]] = []
        for at, size in enumerate(self.loops):
            if size.number == 1:
                continue
            strides = [access.strides[at] for access in accesses]
            if found and found[-1][1] == [stride * size for stride in strides]:
                found[-1] = found[-1][0] * size, strides
            else:
                found.append((size, strides))
        out, *reads = [
            replace(access, strides=tuple(strides[at] for _, strides in found))
            for at, access in enumerate(accesses)
        ]
        return Nest(tuple(size for size, _ in found), out, tuple(reads), self.expression)


@dataclass(frozen=True, eq=False)
class Run:
    """A cell that runs over a batch: one layer and direction. ``at``: the how-manieth.

    ``offset``: of its first channel in a row of y.
    """

    title: str
    spec: RnnSpec
    weights: RnnWeights
    x: str
    y: str
    width: int
    offset: int
    backwards: bool
    added: bool
    at: int


@dataclass(frozen=True)
class State:
    """h or c of a layer: names of what is given ("" if nothing), of the last one, and of what steps
    hold."""

    name: str
    given: str
    final: str
    held: str
    width: int


@dataclass(frozen=True, eq=False)
class Layer:
    """A recurrent layer; ``time`` is None where the batch is ragged.

    ``cells``: the cell state of every word, "" where nobody reads it.
    """

    node: Node
    runs: tuple[Run, ...]
    states: tuple[State, ...]
    attention: str
    words: Size
    time: Size | None
    count: Size
    lod: Sentences | None
    real: str
    cells: str
    makes = None


@dataclass(frozen=True)
class Mark:
    """Where steps jump over others.

    ``if``: over a branch, unless the condition holds; ``else``: behind the first branch; ``end``:
    behind the last one. ``while``: a loop begins; ``leave``: behind it, unless the condition holds;
    ``again``: back to where it begins. ``refuse``: the call ends here. ``operators``: of a turn.
    """

    kind: str
    condition: str = ""
    operators: int = 0
    makes = None


@dataclass(frozen=True)
class Behind:
    """The words before, in generated code that goes word by word: what is ``held`` goes over the
    first ``width`` numbers of each row of ``out``, and those from ``begin`` on are held.

    There are ``rows`` of ``size`` numbers.
    """

    out: str
    held: str
    rows: Size
    size: Size
    width: Size
    begin: Size
    makes = None


Step = Call | Nest | Layer | Mark | Behind


def finds(steps: Iterable[Step]) -> set[str]:
    """The names of sizes that steps find."""
    calls = [step for step in steps if isinstance(step, Call)]
    found = [one.size for call in calls for one in call.arguments if isinstance(one, Found)]
    return {name for size in found for name in size.names}


@dataclass(frozen=True, eq=False)
class WrittenNode:
    """A node, and what its rule said.

    ``codes``: what runs it. ``reads``: the inputs that stand in memory when it runs. ``views``:
    values that stand inside of others, each with the name of the other one and its first element
    there. ``mixes``: sizes along which one output element depends on several input ones.
    """

    node: Node
    codes: list[Step]
    reads: list[str]
    views: dict[str, tuple[str, Size]]
    mixes: Sequence[Size]

    @property
    def mark(self) -> str:
        """The kind of its mark, "" where it has none."""
        return next((step.kind for step in self.codes if isinstance(step, Mark)), "")
