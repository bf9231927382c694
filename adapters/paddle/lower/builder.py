"""The graph of a program, or of a block inside of another one, under construction."""

from __future__ import annotations

from onernn.adapters.folding import FoldingBudget
from onernn.adapters.lowering import GraphBuilder
from onernn.adapters.paddle import messages
from onernn.adapters.paddle.lower.blocks import Blocks
from onernn.adapters.paddle.lower.tensor_arrays import Part, TensorArray
from onernn.core.errors import UnsupportedError
from onernn.core.graph import UNSUPPORTED, Value
from onernn.core.sizes import Size
from onernn.core.types import Type

TURN = "this turn"
"""The input of a loop's block that counts the turns."""
_MOST = 10**5
"""Operators that are lowered in all: a block is lowered anew until its types settle."""


class PaddleBuilder(GraphBuilder):
    """Collects nodes; variables may be arrays of tensors, too.

    ``version``: of the Paddle that saved the program. ``arrays``: by variable; ``stacked``: those
    that a variable holds along its first axis. ``narrow``: variables that hold bytes for floats,
    or bf16 numbers. Of a block: ``outer`` is the graph around it,
    ``taken`` are values of that by the names of its inputs, ``indices`` those whose element i is i,
    and ``turn`` is what a loop counts.
    """

    def __init__(
        self,
        name: str,
        budget: FoldingBudget | None = None,
        blocks: Blocks | None = None,
        version: int = 0,
        outer: PaddleBuilder | None = None,
    ) -> None:
        super().__init__(name, budget)
        self.blocks, self.version, self.outer = blocks or Blocks({}), version, outer
        self.arrays: dict[str, TensorArray] = {}
        self.stacked: dict[str, TensorArray] = {}
        self.narrow: set[str] = outer.narrow if outer else set()
        self.indices: set[str] = set()
        self.taken: dict[str, str] = {}
        self.turn: Size | None = None
        self.depth: int = outer.depth + 1 if outer else 0
        self._lowered: list[int] = outer._lowered if outer else [0]

    def inner(self, name: str) -> PaddleBuilder:
        """The builder of a block inside of this one."""
        return PaddleBuilder(name, self.budget, self.blocks, self.version, self)

    def count(self, operators: int) -> None:
        """Raises `UnsupportedError` where blocks multiply."""
        self._lowered[0] += operators
        if self._lowered[0] > _MOST and self.outer:
            raise UnsupportedError(f"its blocks have more than {_MOST:,} operators in all")

    def holds(self, variable: str) -> bool:
        """Whether a variable has a value."""
        value = self.value(variable)
        return value != variable or value in self._names

    def is_array(self, variable: str) -> bool:
        return variable in self.arrays or self.blocks.kinds.get(variable) == messages.ARRAY

    def array_of(self, variable: str) -> TensorArray:
        """The array that a variable is; without elements where nothing was written yet."""
        found = self.arrays.get(variable)
        if found is None and (self.holds(variable) or not self.is_array(variable)):
            value = self.value(variable)
            refused = (n for n in self.nodes if n.op == UNSUPPORTED and value in n.outputs)
            reason = next((node.attributes["reason"] for node in refused), "it is no array")
            raise UnsupportedError(f"{variable!r}: {reason}")
        return found or TensorArray()

    def stack(self, array: TensorArray) -> str:
        """The elements of an array along a new first axis."""
        zero = self.constant([0], "axes")
        return array.all(lambda op, *values, **at: self.emit(op, values, at), zero)

    def take(self, variable: str) -> None:
        """Makes a variable of outside known in a block; it may be without a value."""
        assert self.outer is not None
        if self.outer.is_array(variable):
            array = self.outer.array_of(variable)
            if not array.parts:
                self.arrays[variable] = array
                return
            value = self.outer.stack(array)
            self.arrays[variable] = TensorArray((Part(variable, array.length, stacked=True),))
        elif self.outer.holds(variable):
            value = self.outer.value(variable)
        else:
            return
        if value in self.outer.constants:
            self.constant(self.outer.constants[value], variable)
        else:
            self.enter(variable, self.outer.type_of(value))
            self.taken[variable] = value
            if self.outer.counts_up(value):
                self.indices.add(variable)

    def enter(self, name: str, known: Type) -> None:
        """An input of a block."""
        if known.lod != ():
            raise UnsupportedError(f"{name!r}: a LoD inside of a loop or a branch")
        shape = None if known.shape is None else known.counts
        self.input(Value(name, known.dtype, shape))
        self.declare(name, known)

    def counts_up(self, value: str) -> bool:
        """Whether element i of a value is the number i."""
        if value in self.indices:
            return True
        made = self.maker(value)
        if made is None or made.op != "Range":
            return False
        first, _, step = (self.type_of(name).numbers for name in made.inputs)
        return first is not None and step is not None and (int(first), int(step)) == (0, 1)

    def turned(self, value: str, axis: int, rank: int) -> str:
        """A value of outside with one of its axes first, turned outside of the block: once."""
        if axis == 0 or value not in self.taken or self.outer is None:
            return ""
        perm = [axis, *(at for at in range(rank) if at != axis)]
        made = self.outer.emit("Transpose", (self.taken[value],), {"perm": perm})
        name = self.fresh(f"{value}/turned")
        del self._names[name]  # `input` names it
        self.enter(name, self.outer.type_of(made))
        self.taken[name] = made
        return name
