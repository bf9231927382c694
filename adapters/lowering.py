"""What every adapter's table of operators is written with, and the loop that runs its rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from onernn.adapters.folding import FoldingBudget, moves
from onernn.core.arrays import Array
from onernn.core.errors import OnernnError, UnsupportedError
from onernn.core.graph import UNSUPPORTED, Graph, NativeOp, Node, Value
from onernn.core.inference import Inference
from onernn.core.operator import is_like
from onernn.core.records import dataclass
from onernn.core.types import Type, type_of

Results = str | tuple[str, ...] | Mapping[str, str]
"""What a rule returns: the value of its output, those of all by position, or by slot.

Absent ones are "". A position is a slot, too: "0", "1", ....
"""

_LARGE = 2**20
"""Bytes from which on a constant is worth letting go of while a model is read."""
_UNSEEN = Type(lod=())
"""The type of what no run will see: it was refused, or nobody makes it."""


class NativeOperator:
    """A framework's operator as a rule reads it: what the rule does not read is an error.

    ``inputs`` and ``outputs`` map slots to variable names; ``inert`` names the attributes that
    cannot change a result on CPU.
    """

    def __init__(
        self,
        at: NativeOp,
        inputs: Mapping[str, Sequence[str]],
        outputs: Mapping[str, Sequence[str]],
        attributes: Mapping[str, Any],
        inert: frozenset[str],
    ) -> None:
        self.at, self.inputs, self.outputs, self.attributes = at, inputs, outputs, attributes
        self._unread = {("attribute", name) for name in attributes if name not in inert}
        self._unread |= {("input", slot) for slot, names in inputs.items() if any(names)}

    def variables(self, slot: str) -> list[str]:
        """The variables of an input slot, none where it is absent."""
        self._unread.discard(("input", slot))
        return [name for name in self.inputs.get(slot, ()) if name]

    def variable(self, slot: str) -> str:
        """The one variable of an input slot, "" where it is absent."""
        names = self.variables(slot)
        if len(names) > 1:
            raise UnsupportedError(f"input {slot}: expected one variable, got {len(names)}")
        return names[0] if names else ""

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute's value, of its default's kind, or the operator's documented default."""
        self._unread.discard(("attribute", name))
        found = self.attributes.get(name, default)
        if not is_like(found, default):
            raise UnsupportedError(f"attribute {name}={found!r}: expected one like {default!r}")
        return found

    def only(self, name: str, value: Any) -> None:
        """Refuses every value of an attribute but one."""
        found = self.attribute(name, value)
        if found != value:
            raise UnsupportedError(f"attribute {name}={found!r}: only {value!r} is supported")

    def lowered(self, rule: Callable[[Self], Results]) -> Results:
        """What a rule returns. Raises `UnsupportedError` for what it did not read."""
        results = rule(self)
        if self._unread:
            listed = ", ".join(f"{kind} {name}" for kind, name in sorted(self._unread))
            raise UnsupportedError(f"not understood: {listed}")
        return results


class GraphBuilder:
    """Collects nodes; names values after the framework's variables, each value once.

    A variable may be assigned again: `value` tells which value it holds now. ``budget``: what
    constants that are computed here may take; the builder of a body shares it.
    """

    def __init__(self, name: str, budget: FoldingBudget | None = None) -> None:
        self.name = name
        self.budget = FoldingBudget() if budget is None else budget
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.notes: dict[str, None] = {}
        self.origin: tuple[NativeOp, ...] = ()
        self._values: dict[str, str] = {}
        self._names: dict[str, int] = {}  # each name, and how many were made from it
        self._maker: dict[str, int] = {}  # where the node of a provisional name stands
        self._folded: set[str] = set()  # constants of variables that were computed here
        self._types = Inference()
        self._typed = 0  # how many nodes have their types

    def fresh(self, name: str) -> str:
        """The name, or one made from it that no value bears yet."""
        chosen = name
        while chosen in self._names:
            self._names[name] += 1
            chosen = f"{name}#{self._names[name]}"
        self._names[chosen] = 0
        return chosen

    def value(self, variable: str) -> str:
        """The value that a variable holds; its own name where nothing has made it yet."""
        return self._values.get(variable, variable)

    def type_of(self, value: str) -> Type:
        """What is known of a value before anything runs."""
        for node in self.nodes[self._typed :]:
            if node.op == UNSUPPORTED:
                self._types[node.outputs[0]] = _UNSEEN
                continue
            for name in filter(None, node.inputs):
                self._type_given(name)
            self._types.add(node)
        self._typed = len(self.nodes)
        self._type_given(value)
        return self._types[value]

    def declare(self, value: str, known: Type) -> None:
        """Tells the type of a value of which the framework says more than can be inferred."""
        self.type_of(value)
        self._types[value] = known

    def _type_given(self, name: str) -> None:
        """The type of a value that no node makes: a constant, an input, or nothing yet."""
        if name not in self._types:
            array = self.constants.get(name)
            self._types[name] = _UNSEEN if array is None else type_of(array)

    def is_made(self, value: str) -> bool:
        """Whether it is a constant or a node makes it: it is no input."""
        return value in self.constants or any(value in node.outputs for node in self.nodes)

    def maker(self, value: str) -> Node | None:
        """The node that makes a value, None for an input or a constant."""
        return next((node for node in reversed(self.nodes) if value in node.outputs), None)

    def swap(self, one: str, other: str) -> None:
        """Exchanges the names of two values that are no inputs."""
        names = {one: other, other: one}
        self.nodes = [node.renamed(names) for node in self.nodes]
        self.constants = {names.get(k, k): array for k, array in self.constants.items()}
        self._folded = {names.get(k, k) for k in self._folded}
        self._values = {k: names.get(v, v) for k, v in self._values.items()}
        self._types, self._typed = Inference({v.name: v.type for v in self.inputs}), 0

    def input(self, value: Value) -> None:
        self.inputs.append(value)
        self._names.setdefault(value.name, 0)
        self._types[value.name] = value.type

    def constant(self, array: npt.ArrayLike, name: str) -> str:
        """A constant value; the name is made unique."""
        chosen = self.fresh(name)
        self.constants[chosen] = np.asarray(array)
        return chosen

    def array(self, value: str, role: str) -> Array:
        """The array of a constant. Raises `UnsupportedError` where it is computed at run time."""
        found = self.constants.get(value)
        found = self._computed(value) if found is None else found
        if found is None:
            raise UnsupportedError(f"{role} {value!r} is computed at run time")
        return found

    def _computed(self, value: str) -> Array | None:
        """What nodes compute from constants alone, None where it is more than that."""
        wanted, behind = {value}, list[Node]()
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                behind.append(node)
                wanted.update(name for name in node.inputs if name not in self.constants)
        known: dict[str, Array] = {}
        for node in reversed(behind):
            arrays = [known.get(name, self.constants.get(name)) for name in node.inputs]
            if any(name and a is None for name, a in zip(node.inputs, arrays, strict=True)):
                return None
            made = self.budget.fold(node, arrays)
            if made is None:
                return None
            known.update(zip(node.outputs, made, strict=True))
        return known.get(value)

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any] | None = None,
    ) -> str:
        """Adds a node and gives a provisional name for its output; `give` makes it a variable's.

        What only moves elements of constants is done at once, and gives a constant (`folding`).
        """
        (out,) = self.emit_many(op, inputs, 1, attributes)
        return out

    def emit_many(
        self,
        op: str,
        inputs: Sequence[str],
        count: int,
        attributes: Mapping[str, Any] | None = None,
    ) -> tuple[str, ...]:
        """A node of ``count`` outputs; see `emit`."""
        stem = f"{inputs[0] if inputs else ''}/{op}"
        outs = tuple(self.fresh(stem) for _ in range(count))
        self._maker.update(dict.fromkeys(outs, len(self.nodes)))
        node = Node(op, tuple(inputs), outs, attributes or {}, self.origin)
        if node.problem:
            raise UnsupportedError(node.problem)
        arrays = [self.constants.get(name) for name in inputs]
        known = not any(n and a is None for n, a in zip(inputs, arrays, strict=True))
        if made := self.budget.fold(node, arrays) if known and moves(node, arrays) else None:
            self.constants.update(zip(outs, made, strict=True))
        else:
            self.nodes.append(node)
        return outs

    def give(self, variable: str, value: str, name: str = "") -> None:
        """Binds a variable to a value.

        A value with a provisional name is called ``name`` from now on, or as the variable.
        """
        self.give_all([(variable, value, name)])

    def give_all(self, given: Iterable[tuple[str, str, str]]) -> None:
        """Binds variables to values under names, see `give`: all nodes are renamed at once."""
        names: dict[str, str] = {}
        first = len(self.nodes)
        for variable, value, name in given:
            place = self._maker.pop(value, None)
            if place is not None:
                names[value] = new = self.fresh(name or variable)
                first = min(first, place)
                if value in self.constants:
                    self.constants[new] = self.constants.pop(value)
                    self._folded.add(new)
                if value in self._types:
                    self._types.rename(value, new)
            self._values[variable] = names.get(value, value)
        if names:
            self.nodes[first:] = [node.renamed(names) for node in self.nodes[first:]]

    def forget(self, variable: str) -> None:
        """Lets go of a large constant made here, held by a variable that is not read any more."""
        value = self.value(variable)
        if value in self._folded and self.constants[value].nbytes >= _LARGE:
            held = any(v == value for name, v in self._values.items() if name != variable)
            if not held and not any(value in node.inputs for node in self.nodes):
                del self.constants[value]
                self._folded.remove(value)

    def refuse(self, variable: str, reason: str, reads: Iterable[str] = (), name: str = "") -> None:
        """Gives a variable a value that nobody can compute from those that are read, and why."""
        known = [each for each in reads if each in self._names]
        self.give(variable, self.emit(UNSUPPORTED, known, {"reason": reason}), name)

    def graph(self, outputs: Sequence[Value]) -> Graph:
        """What was built, without what no output needs."""
        used = {name for node in self.nodes for name in node.inputs} | {v.name for v in outputs}
        whole = Graph(
            self.name,
            tuple(self.inputs),
            tuple(outputs),
            tuple(self.nodes),
            {name: array for name, array in self.constants.items() if name in used},
            tuple(self.notes),
        )
        return whole.pruned()


class Output(NamedTuple):
    """An output of a native operator: its slot, its variable, and what the value is called.

    A value without a name is called as the variable.
    """

    slot: str
    variable: str
    name: str = ""


@dataclass(frozen=True, eq=False)
class LoweringStep:
    """One native operator that is to be lowered.

    ``reads``: the variables that it takes. ``lower`` runs its rule. ``outputs(count)``: those that
    somebody wants, where the rule gave ``count`` values; none where it was refused.
    """

    at: NativeOp
    reads: tuple[str, ...]
    lower: Callable[[], Results]
    outputs: Callable[[int], Iterable[Output]]


def lower_steps(
    builder: GraphBuilder, steps: Sequence[LoweringStep], kept: Iterable[str] = ()
) -> None:
    """Lowers operators one after the other, and binds their outputs.

    An operator that its rule refuses becomes nodes that tell the reason. Large constants are let go
    of behind their last reader; ``kept`` are variables that somebody reads later.
    """
    left = Counter(chain(kept, *(step.reads for step in steps)))
    for step in steps:
        builder.origin = (step.at,)
        values, refusal = _lowered(step)
        wanted = list(step.outputs(len(values)))
        builder.give_all((v, values[slot], name) for slot, v, name in wanted if values.get(slot))
        for slot, variable, name in wanted:
            if not values.get(slot):
                reason = refusal or f"output {slot} is not computed"
                builder.refuse(variable, reason, map(builder.value, step.reads), name)
        for variable in step.reads:
            left[variable] -= 1
            if not left[variable]:
                builder.forget(variable)


def _lowered(step: LoweringStep) -> tuple[Mapping[str, str], str]:
    """The values of an operator's outputs by slot, and why there are none."""
    try:
        results = step.lower()
    except OnernnError as error:
        return {}, str(error)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Slots, attributes or inputs of no known form.
        return {}, f"malformed: {type(error).__name__} {error}"
    if isinstance(results, str):
        results = (results,)
    if isinstance(results, tuple):
        results = {str(at): value for at, value in enumerate(results)}
    return results, ""
