"""The base classes with which adapters lower operators, and the loop that runs their rules.

Lowering turns a framework's operators into onernn's canonical operators. A rule lowers one
operator.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from onernn.engine.kernels import KERNELS
from onernn.ir.arrays import Array, seal
from onernn.ir.budget import budget_of_run, loading, spend
from onernn.ir.errors import BudgetError, OnernnError, UnsupportedError, did_you_mean
from onernn.ir.graph import UNSUPPORTED, Graph, Inference, NativeOp, Node, Value
from onernn.ir.operator import is_like
from onernn.ir.records import NamedTuple, dataclass
from onernn.ir.types import Type, type_of
from onernn.ops import OPERATORS

if TYPE_CHECKING:
    import numpy.typing as npt

# Operators on constants, above all on weights, are computed while a model is read.
#
# Exporters cast, transpose and join weights before a layer, and adapters need the resulting arrays.
# Otherwise each run would compute the same arrays again with the same kernels.

_SMALL = 2**16
"""The maximum number of elements of a constant that is computed while a model is read. If the
inputs of the computation together have more elements, their number is the maximum.
"""

FOLDED = frozenset(
    name
    for name, operator in OPERATORS.items()
    if operator.kind in ("elementwise", "view", "moves", "mixes", "sizes")
    and not name.startswith("Sequence")
)
"""The operators that can be computed while a model is read."""

_MOVING = {name for name in FOLDED if OPERATORS[name].kind in ("view", "moves", "sizes")}
_MOVING |= {"Cast", "CastLike"}


def moves(node: Node, arrays: Iterable[Array | None]) -> bool:
    """Returns whether a node only moves or casts elements, multiplies by zeros, or computes with
    integers and booleans.

    Arithmetic on floats stays in the graph, so that the first step of an unrolled cell, which
    starts from zeros, looks like the other steps.
    """
    present = [array for array in arrays if array is not None]
    masked = node.op == "Mul" and not all(array.any() for array in present)  # a state of zeros
    return node.op in _MOVING or masked or all(array.dtype.kind in "biu" for array in present)


class FoldingBudget:
    """The memory for computed constants: 16 MB plus 16 times the bytes of the model's constants.

    The memory never exceeds what remains of the load's budget.
    """

    def __init__(self, constants: Iterable[Array] = ()) -> None:
        self._left = 2**24 + 16 * sum(array.nbytes for array in constants)

    def fold(self, node: Node, arrays: Sequence[Array | None]) -> tuple[Array, ...] | None:
        """Returns a node's results for these inputs; None if the run must compute them."""
        if node.op not in FOLDED:
            return None
        most, load = max(_SMALL, sum(each.size for each in arrays if each is not None)), loading()
        try:
            with budget_of_run(min(16 * most, self._left, load.most - load.used), 0) as budget:
                result: Any = KERNELS[node.op](node, *arrays)
        except BudgetError:
            return None
        self._left -= budget.used
        results = tuple(map(np.asarray, result if isinstance(result, tuple) else (result,)))
        if len(results) != len(node.outputs) or sum(array.size for array in results) > most:
            return None
        for array in results:
            if not any(each is not None and np.may_share_memory(array, each) for each in arrays):
                load.take(seal(array).nbytes, "a constant")
        return results


# The form in which rules read operators, and the graph to which they add nodes.

Results = str | tuple[str, ...] | Mapping[str, str]
"""The results of a rule: the value of its only output, or the values of all outputs, by position or
by slot. A slot is the framework's name of an output, or its position: "0", "1", .... Absent outputs
are "".
"""

DType = np.dtype[Any]
R = TypeVar("R")


def by_slot(results: Results) -> Mapping[str, str]:
    """Returns the values that a rule returned, by the slots of the outputs."""
    if isinstance(results, str):
        results = (results,)
    if isinstance(results, tuple):
        return {str(at): value for at, value in enumerate(results)}
    return results


class Rules(dict[str, R]):
    """The rules of a framework, by the names of operators. A call with names returns a decorator
    that adds a rule for them. A second rule for a name is an error, because the order of imports
    would decide which one applies.

    ``make``: returns the entry of the table for a decorated function; the default is the function.
    """

    def __init__(self, make: Callable[[Any], Any] = lambda rule: rule) -> None:
        self.make = make

    def __call__(self, names: str, make: Callable[[Any], Any] | None = None) -> Any:
        def enter(rule: Any) -> Any:
            if twice := self.keys() & set(names.split()):
                raise ValueError(f"expected one rule per operator, got two for {sorted(twice)}")
            self.update(dict.fromkeys(names.split(), (make or self.make)(rule)))
            return rule

        return enter


class Names(dict[str, int]):
    """The names in use, each with the number of names derived from it. A derived name is the name,
    ``mark`` and a number.
    """

    mark = "#"

    def fresh(self, name: str) -> str:
        """Returns the name, or a new name made from it if a value already has the name."""
        chosen = name
        while chosen in self:
            self[name] += 1
            chosen = f"{name}{self.mark}{self[name]}"
        self[chosen] = 0
        return chosen


_NODE, _RESULT = 1_500, 500
"""The bytes that a node takes in memory, and the bytes that each of its output values takes with
its names and its type.
"""
_LARGE = 2**20
"""Computed constants of this many bytes or more are dropped after their last reader, while a model
is still being read.
"""
_UNSEEN = Type(lod=())
"""The type of a value that no run computes: its operator was refused, or no node makes it."""


PASS_RULE = "; pass a rule for it (rules=, or --rules FILE.py), or open an issue with the model"
"""The advice at the end of messages about an operator without a rule."""


class UnknownTypeError(UnsupportedError):
    """Raised if a rule needs the dtype or the axes of a value, and only a run knows them."""


Slot = str | int
"""The name or the position of an input or output of a framework's operator."""


Operand = str | int | Sequence[int | None]
"""An input of a node: a value, or an integer or list of integers, which becomes an int64
constant.
"""


class Tape(ABC):
    """The interface that adds nodes of ONNX's operators to a graph; a subclass stores the nodes and
    names their values.
    """

    @abstractmethod
    def emit(self, op: str, *inputs: Operand, **attributes: Any) -> str:
        """Adds a node with one output and returns the name of the output."""

    @abstractmethod
    def constant(self, array: Any) -> str:
        """Adds a constant and returns its name."""

    @abstractmethod
    def ints(self, *values: int | None) -> str:
        """Adds a constant list of int64, such as axes or a shape, and returns its name."""

    def name_operands(self, operands: Iterable[Operand]) -> list[str]:
        """Returns the names of a node's operands; integers and lists of integers become
        constants.
        """
        return [each if isinstance(each, str) else self._number(each) for each in operands]

    def _number(self, sizes: int | Sequence[int | None]) -> str:
        return self.constant(np.int64(sizes)) if isinstance(sizes, int) else self.ints(*sizes)

    def sizes_of(self, value: str) -> str:
        """Returns the shape of a value as a list of int64."""
        return self.emit("Shape", value)

    def join(self, *lists: Operand) -> str:
        """Returns one list, such as a shape, from several; the lists are joined in order."""
        return self.emit("Concat", *lists, axis=0)


def _describe(name: str, value: Any) -> str:
    return f"attribute {name.rstrip('=')}={value!r}"  # "x=": an argument of a Keras call


class NativeOperator(Tape):
    """A framework's operator in the form that a rule reads, with the graph that gets the rule's
    nodes.

    An input or attribute that the rule does not read is an error. ``inputs``, ``outputs``: the
    names of the framework's variables by slot. ``inert``: the attributes that cannot change a
    result on CPU. ``label``: the start of the names of constants.
    """

    main: Slot = ""
    """The slot that `value` reads if the caller gives no slot."""

    def __init__(
        self,
        builder: GraphBuilder,
        at: NativeOp,
        inputs: Mapping[Any, Sequence[str]],
        outputs: Mapping[Any, Sequence[str]],
        attributes: Mapping[str, Any],
        inert: frozenset[str] = frozenset(),
        label: str = "",
    ) -> None:
        self.builder, self.at, self.label = builder, at, label or at.type
        self.inputs, self.outputs, self.attributes = inputs, outputs, attributes
        self._unread = {("attribute", name) for name in attributes if name not in inert}
        self._unread |= {("input", slot) for slot, names in inputs.items() if any(names)}

    def run_rule(self, rule: Callable[[Self], Results]) -> Results:
        """Returns the results of a rule. Raises `UnsupportedError` for inputs and attributes that
        the rule did not read.
        """
        results = rule(self)
        self.check_read()
        return results

    def check_read(self) -> None:
        """Raises `UnsupportedError` for inputs and attributes that no rule read."""
        if self._unread:
            unread = ", ".join(f"{kind} {name}" for kind, name in sorted(self._unread))
            raise UnsupportedError(f"not understood: {unread}; pass a rule that reads it (rules=)")

    def miscounted(self, count: int) -> str:
        """Returns the reason why the operator cannot have ``count`` results, "" if it can."""
        own = len(self.outputs)
        return "" if count == own else f"the operator has {own}"

    # Inputs.

    def variables(self, slot: Slot) -> list[str]:
        """Returns the variables of an input slot, none if it is absent."""
        self._unread.discard(("input", slot))
        return [name for name in self.inputs.get(slot, ()) if name]

    def variable(self, slot: Slot) -> str:
        """Returns the one variable of an input slot, "" if it is absent."""
        return _one(slot, self.variables(slot))

    def resolve(self, variable: str) -> str:
        """Returns the value in the graph that a variable of the framework has now."""
        return self.builder.value(variable)

    def values(self, slot: Slot) -> list[str]:
        """Returns the values in an input slot that takes a list of variables."""
        return [self.resolve(name) for name in self.variables(slot)]

    def optional(self, slot: Slot) -> str:
        """Returns the value in an input slot, "" if it is absent."""
        return _one(slot, self.values(slot))

    def value(self, slot: Slot | None = None) -> str:
        """Returns the value in a required input slot."""
        slot = self.main if slot is None else slot
        result = self.optional(slot)
        if not result:
            raise UnsupportedError(f"input {slot} is missing")
        return result

    def array(self, slot: Slot) -> Array:
        """Returns the array in a slot. Raises `UnsupportedError` if it is computed at run time."""
        return self.builder.array(self.value(slot), str(slot))

    def absent(self, *slots: str) -> None:
        """Raises `UnsupportedError` if one of these inputs is present. Such an input replaces an
        attribute, and its value is known only at run time.
        """
        for slot in slots:
            if self.variables(slot):
                raise UnsupportedError(
                    f"input {slot}: computed at run time, expected a fixed value in an attribute"
                )

    # Attributes.

    def attribute(self, name: str, default: Any) -> Any:
        """Returns an attribute's value, or ``default`` if it is absent. Raises `UnsupportedError`
        for a value of a different kind than the default.
        """
        self._unread.discard(("attribute", name))
        result = self.attributes.get(name, default)
        if not is_like(result, default):
            expected = f"expected a value like {default!r}"
            raise UnsupportedError(f"{_describe(name, result)}: {expected}")
        return result

    def keyword(self, name: str, default: Any) -> Any:
        """Returns the attribute that a rule's keyword names."""
        return self.attribute(name, default)

    def ignore(self, *names: str) -> None:
        """Marks attributes as read, because they cannot change what this operator computes."""
        self._unread -= {("attribute", name) for name in names}

    def only(self, **values: Any) -> None:
        """Raises `UnsupportedError` if an attribute has a value other than the given one."""
        for name, value in values.items():
            result = self.attribute(name, value)
            if result != value:
                described = _describe(name, result)
                raise UnsupportedError(f"{described}: only {value!r} is supported")

    def one_of(self, name: str, default: Any, known: Collection[Any]) -> Any:
        """Returns an attribute's value. Raises `UnsupportedError` if it is not in ``known``."""
        result = self.attribute(name, default)
        if result not in known:
            names = ", ".join(map(str, known))
            raise UnsupportedError(f"{_describe(name, result)}: expected one of {names}")
        return result

    def integer(self, name: str, default: int | None = None) -> int:
        result = self.attribute(name, default)
        if not isinstance(result, int) or isinstance(result, bool):
            raise UnsupportedError(f"{_describe(name, result)}: expected an integer")
        return result

    # Values of the graph.

    def dtype_of(self, value: str) -> DType:
        result = self.builder.type_of(value).dtype
        if result is None:
            raise UnknownTypeError(f"the dtype of {value!r} is not known{self.builder.advice}")
        return np.dtype(result)

    def shape_of(self, value: str) -> tuple[int | None, ...]:
        """Returns the sizes of a value, None for a size that only a run knows."""
        result = self.builder.type_of(value)
        if result.shape is None:
            reason = f"the number of axes of {value!r} is not known"
            raise UnknownTypeError(f"{reason}{self.builder.advice}")
        return tuple(result.counts)

    # Methods that add nodes and constants.

    def emit(self, op: str, *inputs: Operand, **attributes: Any) -> str:
        values = self.name_operands(inputs)
        while values and not values[-1]:  # absent inputs at the end are left out
            values.pop()
        return self.builder.emit(op, values, attributes)

    def emit_many(
        self, op: str, count: int, *inputs: Operand, **attributes: Any
    ) -> tuple[str, ...]:
        return self.builder.emit_many(op, self.name_operands(inputs), count, attributes)

    def constant(self, array: npt.ArrayLike, label: str = "constant") -> str:
        return self.builder.constant(array, f"{self.label}/{label}" if label else self.label)

    def fill(self, sizes: Sequence[int], number: float, dtype: npt.DTypeLike, label: str) -> str:
        """Returns a constant of one number. Raises `BudgetError` if the constant is too large,
        because its sizes may come from a file.
        """
        size = math.prod(max(size, 1) for size in sizes) * np.dtype(dtype).itemsize
        loading().take(size, label)
        return self.constant(np.full(sizes, number, dtype), label)

    def ints(self, *values: int | None) -> str:
        return self.constant(np.asarray(values, np.int64), "ints")

    def scalar(self, value: float, dtype: DType) -> str:
        """Adds a constant number and returns its name."""
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        if (
            dtype.kind in "iub"
            and not float(value).is_integer()
            or (limits and not limits.min <= value <= limits.max)
        ):
            raise UnsupportedError(f"number {value}: expected one that {dtype} can hold")
        return self.constant(np.asarray(value, dtype), "scalar")

    def sizes_of(self, value: str) -> str:
        """Returns the shape of a value as a list of int64; a constant if the value is a
        constant.
        """
        if value in self.builder.constants:
            return self.ints(*self.builder.constants[value].shape)
        return self.emit("Shape", value)


def swap_equation(first: int, second: int) -> str:
    """Returns the einsum equation that exchanges two axes of an array of any rank: (0, 1) is
    ``ab...->ba...``.
    """
    front = max([axis + 1 for axis in (first, second) if axis >= 0], default=0)
    back = max([-axis for axis in (first, second) if axis < 0], default=0)
    if front + back > 26:
        raise UnsupportedError(f"axes {first} and {second}: expected a value of at most 26 axes")
    letters = [chr(ord("a") + n) for n in range(front + back)]
    before = [*letters[:front], "...", *letters[front:]]
    after = list(before)
    at = [axis if axis >= 0 else len(before) + axis for axis in (first, second)]
    after[at[0]], after[at[1]] = before[at[1]], before[at[0]]
    return f"{''.join(before)}->{''.join(after)}"


def _one(slot: Slot, names: list[str]) -> str:
    if len(names) > 1:
        raise UnsupportedError(f"input {slot}: expected one variable, got {len(names)}")
    return names[0] if names else ""


Body = tuple[Graph, Sequence[str]]
"""The graph of a loop or branch, and the values of the outer graph that it takes after its own
inputs.
"""


class GraphBuilder:
    """A graph under construction, in which each value has its own name, made from the framework's
    variable.

    A variable may be assigned again: `value` returns the variable's current value. ``budget``: the
    memory for constants that the builder computes; the builder of a body shares it. ``taken``: in a
    body, the outer values that the body reads, by the names of its inputs. ``rules``: the caller's
    rules, see `caller_rules`.
    """

    advice = ""
    """The advice at the end of messages about an unknown type."""

    def __init__(self, name: str, budget: FoldingBudget | None = None) -> None:
        self.name = name
        self.budget = FoldingBudget() if budget is None else budget
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.notes: dict[str, None] = {}
        self.rules: Mapping[str, Any] = {}
        self.taken: dict[str, str] = {}
        self.origin: tuple[NativeOp, ...] = ()
        self._values: dict[str, str] = {}
        self._names = Names()
        self._maker: dict[str, int] = {}  # the node's index, by its provisional name
        self._folded: set[str] = set()  # constants that the builder computed
        self._types = Inference()
        self._typed = 0  # the number of nodes with known types

    def fresh(self, name: str) -> str:
        """Returns the name, or a new name made from it if a value already has the name."""
        return self._names.fresh(name)

    def value(self, variable: str) -> str:
        """Returns the value that a variable holds; the variable's own name if no node has made it
        yet.
        """
        return self._values.get(variable, variable)

    def type_of(self, value: str) -> Type:
        """Returns the type of a value as far as it is known before a run."""
        for node in self.nodes[self._typed :]:
            if node.op == UNSUPPORTED:
                self._types[node.outputs[0]] = _UNSEEN
                continue
            for name in filter(None, node.inputs):
                self._ensure_type(name)
            self._types.add(node)
        self._typed = len(self.nodes)
        self._ensure_type(value)
        return self._types[value]

    def declare(self, value: str, known: Type) -> None:
        """Sets a value's type to the type that the framework declares, which may be more complete
        than the inferred type.
        """
        self.type_of(value)
        self._types[value] = known

    def _ensure_type(self, name: str) -> None:
        """Sets the type of a value that no node makes: a constant, or a value that is not known
        yet.
        """
        if name not in self._types:
            array = self.constants.get(name)
            self._types[name] = _UNSEEN if array is None else type_of(array)

    def is_made(self, value: str) -> bool:
        """Returns whether a value is a constant or the output of a node, and not an input."""
        spend(len(self.nodes))
        return value in self.constants or any(value in node.outputs for node in self.nodes)

    def maker(self, value: str) -> Node | None:
        """Returns the node that makes a value, None for an input or a constant."""
        spend(len(self.nodes))
        return next((node for node in reversed(self.nodes) if value in node.outputs), None)

    def swap(self, first: str, second: str) -> None:
        """Exchanges the names of two values that are not inputs."""
        spend(len(self.nodes) + len(self.constants))
        names = {first: second, second: first}
        self.nodes = [node.rename(names) for node in self.nodes]
        self.constants = {names.get(k, k): array for k, array in self.constants.items()}
        self._folded = {names.get(k, k) for k in self._folded}
        self._values = {k: names.get(v, v) for k, v in self._values.items()}
        self._types, self._typed = Inference({v.name: v.type for v in self.inputs}), 0

    def input(self, value: Value) -> None:
        self.inputs.append(value)
        self._names.setdefault(value.name, 0)
        self._types[value.name] = value.type

    def enter(self, name: str, known: Type) -> None:
        """Adds an input to a body, with the type that the value has in the outer graph."""
        self.input(Value(name, known.dtype, None if known.shape is None else known.counts))
        self.declare(name, known)

    def take(self, outer: GraphBuilder, value: str, name: str) -> None:
        """Adds a value of the outer graph to a body under this name."""
        if value in outer.constants:
            self.constant(outer.constants[value], name)
        else:
            self.enter(name, outer.type_of(value))
            self.taken[name] = value

    def output(self, value: str) -> Value:
        """Returns the declaration of an output, with its known type."""
        type_ = self.type_of(value)
        return Value(value, type_.dtype, None if type_.shape is None else type_.counts)

    def constant(self, array: npt.ArrayLike, name: str) -> str:
        """Adds a constant and returns its name, which is made unique."""
        chosen = self.fresh(name)
        self.constants[chosen] = np.asarray(array)
        return chosen

    def array(self, value: str, role: str) -> Array:
        """Returns the array of a constant. Raises `UnsupportedError` if it is computed at
        run time.
        """
        result = self.constants.get(value)
        result = self._compute(value) if result is None else result
        if result is None:
            raise UnsupportedError(f"{role} {value!r} is computed at run time, expected a constant")
        return result

    def _compute(self, value: str) -> Array | None:
        """Returns the array that nodes compute from constants only, None if they also read values
        that are not constant.
        """
        spend(len(self.nodes))
        values, nodes = {value}, list[Node]()
        for node in reversed(self.nodes):
            if values.intersection(node.outputs):
                nodes.append(node)
                values.update(name for name in node.inputs if name not in self.constants)
        numbers: dict[str, Array] = {}
        for node in reversed(nodes):
            arrays = [numbers.get(name, self.constants.get(name)) for name in node.inputs]
            if any(name and a is None for name, a in zip(node.inputs, arrays, strict=True)):
                return None
            results = self.budget.fold(node, arrays)
            if results is None:
                return None
            numbers.update(zip(node.outputs, results, strict=True))
        return numbers.get(value)

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any] | None = None,
    ) -> str:
        """Adds a node and returns a provisional name of its output, until `give` binds it to a
        variable.

        A node that only moves elements of constants is computed immediately, and becomes a
        constant.
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
        """Adds a node with ``count`` outputs and returns their names; see `emit`."""
        stem = f"{inputs[0] if inputs else ''}/{op}"
        outs = tuple(self.fresh(stem) for _ in range(count))
        spend(1)
        loading().take(_NODE + _RESULT * count, "an operator")
        self._maker.update(dict.fromkeys(outs, len(self.nodes)))
        node = Node(op, tuple(inputs), outs, attributes or {}, self.origin)
        if op not in OPERATORS and op != UNSUPPORTED:
            hint = did_you_mean(op, OPERATORS) or "; see the manual's list of operators"
            raise UnsupportedError(f"{op} is not a canonical operator{hint}")
        if node.problem:
            raise UnsupportedError(node.problem)
        arrays = [self.constants.get(name) for name in inputs]
        all_known = not any(n and a is None for n, a in zip(inputs, arrays, strict=True))
        if results := self.budget.fold(node, arrays) if all_known and moves(node, arrays) else None:
            self.constants.update(zip(outs, results, strict=True))
        else:
            self.nodes.append(node)
        return outs

    def branches(self, condition: str, then: Body, other: Body) -> tuple[str, ...]:
        """Adds an If and returns its outputs; ``condition`` is a scalar."""
        (graph, captures), (other_graph, other_captures) = then, other
        attributes = {"then_branch": graph, "else_branch": other_graph, "then_taken": len(captures)}
        inputs = (condition, *captures, *other_captures)
        return self.emit_many("If", inputs, len(graph.outputs), attributes)

    def give(self, variable: str, value: str, name: str = "") -> None:
        """Binds a variable to a value.

        A value with a provisional name gets the name ``name``, or the variable's name.
        """
        self.give_all([(variable, value, name)])

    def give_all(self, triples: Iterable[tuple[str, str, str]]) -> None:
        """Calls `give` for each (variable, value, name). All nodes are renamed in one pass."""
        names: dict[str, str] = {}
        first = len(self.nodes)
        for variable, value, name in triples:
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
            spend(len(self.nodes) - first)
            self.nodes[first:] = [node.rename(names) for node in self.nodes[first:]]

    def copy(self, value: str, name: str) -> str:
        """Returns a copy of a value under this name, for an output."""
        variable = f"={name}"
        self.give(variable, self.emit("Identity", (value,)), name)
        return self.value(variable)

    def forget(self, variable: str) -> None:
        """Drops a large constant that the builder computed, after the last read of its variable."""
        value = self.value(variable)
        if value in self._folded and self.constants[value].nbytes >= _LARGE:
            is_shared = any(v == value for name, v in self._values.items() if name != variable)
            if not is_shared and not any(value in node.inputs for node in self.nodes):
                array = self.constants.pop(value)
                self._folded.remove(value)
                if array.base is None:
                    loading().release(array.nbytes)

    def refuse(self, variable: str, reason: str, reads: Iterable[str] = (), name: str = "") -> None:
        """Binds a variable to a value that cannot be computed, with the reason."""
        inputs = [value for value in reads if value in self._names]
        self.give(variable, self.emit(UNSUPPORTED, inputs, {"reason": reason}), name)

    def graph(self, outputs: Sequence[Value]) -> Graph:
        """Returns the finished graph, without the nodes that no output needs."""
        used = {name for node in self.nodes for name in node.inputs} | {v.name for v in outputs}
        whole = Graph(
            self.name,
            tuple(self.inputs),
            tuple(outputs),
            tuple(self.nodes),
            {name: array for name, array in self.constants.items() if name in used},
            tuple(self.notes),
        )
        return whole.prune()

    def body(self, outputs: Sequence[Value], where: str) -> Graph:
        """Returns the graph for the body of an operator. Raises `UnsupportedError` if one of its
        nodes cannot run.
        """
        body = self.graph(outputs)
        for node in body.nodes:
            if node.op == UNSUPPORTED:
                raise UnsupportedError(f"{where} {node.label}: {node.attributes['reason']}")
        return body


class Output(NamedTuple):
    """An output of a framework's operator: its slot, its variable, and the name of its value.

    A value without a name gets the variable's name.
    """

    slot: str
    variable: str
    name: str = ""


@dataclass(frozen=True, eq=False)
class LoweringStep:
    """An operator of a framework that is to be lowered.

    ``reads``: the variables that it takes. ``lower`` runs its rule. ``outputs(count)``: the outputs
    to bind if the rule returned ``count`` values; ``count`` is 0 if the rule refused the operator.
    """

    at: NativeOp
    reads: tuple[str, ...]
    lower: Callable[[], Results]
    outputs: Callable[[int], Iterable[Output]]


def lower_steps(
    builder: GraphBuilder, steps: Sequence[LoweringStep], kept: Iterable[str] = ()
) -> None:
    """Lowers operators one after the other, and binds their outputs.

    An operator that its rule refuses becomes nodes that contain the reason. Large constants are
    dropped after their last reader; ``kept`` names variables that other code reads later.
    """
    left = Counter(chain(kept, *(step.reads for step in steps)))
    for step in steps:
        builder.origin = (step.at,)
        values, refusal = _lower(step)
        outputs = list(step.outputs(len(values)))
        builder.give_all((v, values[slot], name) for slot, v, name in outputs if values.get(slot))
        for slot, variable, name in outputs:
            if not values.get(slot):
                reason = refusal or f"output {slot} is not computed"
                builder.refuse(variable, reason, map(builder.value, step.reads), name)
        for variable in step.reads:
            left[variable] -= 1
            if not left[variable]:
                builder.forget(variable)


def _lower(step: LoweringStep) -> tuple[Mapping[str, str], str]:
    try:
        results = step.lower()
    except OnernnError as error:
        return {}, str(error)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # The rule met slots, attributes or inputs of an unknown form.
        return {}, f"malformed: {type(error).__name__} {error}"
    return by_slot(results), ""
