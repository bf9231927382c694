"""Determines from the operators whether the result of a row depends on other rows of the batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

from onernn.ir.graph import FAILURES, Graph, Node, input_types
from onernn.ir.operator import OPERATORS, Operator
from onernn.ir.records import dataclass
from onernn.ir.types import LodName, Size, Type
from onernn.ops.control import types_inside
from onernn.ops.row_rules import (
    ALIKE,
    SIZED,
    UNIFORM,
    Alike,
    Rows,
    State,
    UnknownRows,
    follow,
    view,
)
from onernn.ops.rules import ONE

_COUNT = "rows of the batch"
"""The name of the size of an axis of rows. It is unique, because all other sizes have names without
spaces.
"""


class Independence(NamedTuple):
    """Facts about the rows of a batch.

    ``axes``: for each output, the axis whose entries are rows; 0 for a ragged output.
    ``same_lengths``: pairs of ragged inputs whose lengths must be equal in each row. ``doubt``: why
    rows may depend on each other, "" if they cannot. ``certain``: whether an operator is known to
    combine different rows.
    """

    axes: Mapping[str, int]
    same_lengths: frozenset[tuple[str, str]]
    doubt: str = ""
    certain: bool = False


def independence(graph: Graph, axes: Mapping[str, int], outputs: Iterable[str]) -> Independence:
    """Returns whether each row of ``outputs`` depends only on the same row of the inputs.

    ``axes``: the axis of the rows of each dense input. In a batch, all rows of a dense input have
    the same shape; ragged rows may differ in length. Constants and sizes are the same for all rows.
    """
    flow, where = _follow(graph, axes), dict[str, int]()
    for name in outputs:
        state = flow.states[name]
        if isinstance(state, UnknownRows):
            return Independence({}, frozenset(), str(state), state.certain)
        if isinstance(state, Alike) or not flow.is_per_row(name, state):
            return Independence({}, frozenset(), f"output {name!r} does not have one entry per row")
        where[name] = state.axis
    return Independence(where, frozenset(flow.same_lengths))


def describe_rows(
    graph: Graph, axes: Mapping[str, int], alike: Collection[str]
) -> dict[str, str | int]:
    """Returns for each output the axis of its rows, or -1 if it is the same for all rows.

    If neither is known, returns the reason as text. The inputs ``alike`` are the same for all rows.
    """
    flow, result = _follow(graph, axes, alike), dict[str, str | int]()
    for value in graph.outputs:
        state = flow.states[value.name]
        if isinstance(state, Rows) and flow.is_per_row(value.name, state):
            result[value.name] = state.axis
        elif state in (ALIKE, UNIFORM):
            result[value.name] = -1
        else:
            result[value.name] = str(state) if isinstance(state, UnknownRows) else "parts of rows"
    return result


def _follow(graph: Graph, axes: Mapping[str, int], alike: Collection[str] = ()) -> RowFlow:
    types, count, own = dict[str, Type](), Size.of(_COUNT), set[str]()
    states: dict[str, State | UnknownRows] = dict.fromkeys(graph.constants, ALIKE)
    lods = dict[tuple[LodName, ...], str]()
    for value in graph.inputs:
        known = value.type
        if value.name in alike:
            states[value.name] = ALIKE
            own.update(*(size.names for size in known.shape or () if size))
        elif known.lod:
            states[value.name] = Rows(0, ONE, known.lod)
            lods[known.lod] = value.name
        elif known.shape is not None:
            axis = axes[value.name]
            if (size := known.shape[axis]) is not None and size.number is not None:
                count = size
            states[value.name] = Rows(axis)
            own.update(*(s.names for k, s in enumerate(known.shape) if s and k != axis))
        else:
            states[value.name] = UnknownRows(f"input {value}", "has an unknown number of axes")
        types[value.name] = known
    for name, known in types.items():
        state = states.get(name)
        if isinstance(state, Rows) and not state.lod and known.shape is not None:
            shape = (*known.shape[: state.axis], count, *known.shape[state.axis + 1 :])
            types[name] = Type(known.dtype, shape, known.lod)
    renamed = {f"{lod[0]}.count": count for lod in lods}
    flow = RowFlow(graph, graph.infer_types(types), states, count, own, renamed, lods)
    flow.follow()
    return flow


@dataclass(eq=False)
class RowFlow:
    """The axis of the rows in each value of a graph, which rules of `onernn.ops.row_rules`
    determine.

    ``states``: the location of the rows of each value. ``own``: the names of sizes that do not
    depend on the number of rows, nor on the other rows of a batch. ``lods``: for the names of
    offsets, the name of the ragged input that has these offsets.
    """

    graph: Graph
    types: Mapping[str, Type]
    states: dict[str, State | UnknownRows]
    count: Size
    own: set[str]
    renamed: Mapping[str, Size]
    lods: Mapping[tuple[LodName, ...], str]
    same_lengths: set[tuple[str, str]] = field(default_factory=set)

    def follow(self) -> None:
        for node in self.graph.nodes:
            try:
                states: list[State | UnknownRows] = [*self._results(node)]
            except UnknownRows as error:
                states = [error] * len(node.outputs)
            except FAILURES as error:
                states = [UnknownRows(node, f"has unknown sizes: {error}")] * len(node.outputs)
            self.states.update(zip(node.outputs, states, strict=True))

    def _results(self, node: Node) -> Iterator[State | UnknownRows]:
        """Yields where each output of a node has its rows, or why that is not known."""
        values = [self._value(name) for name in node.outputs if name]
        given = [self.states[name] for name in node.inputs if name]
        operator = OPERATORS.get(node.op)
        constant = all(self.is_alike(name) for name in node.inputs if name)
        if constant or all(each is not None for each in values):
            uniform = constant and operator is not None and _keeps_uniform(node, given)
            result: Sequence[State] = (UNIFORM if uniform else ALIKE,) * len(node.outputs)
            if not all(self.is_own(size) for value in values for size in value or ()):
                raise UnknownRows(node, "computes with the number of rows")
        elif (rule := _rule_of(operator)) is None:
            raise next(
                (each for each in given if isinstance(each, UnknownRows)),
                UnknownRows(node, f"is a {node.op}, which may combine rows"),
            )
        else:
            made = rule(self, node)
            result = made if isinstance(made, tuple) else (made,) * len(node.outputs)
        for index, name in enumerate(node.outputs):
            if index >= len(result):
                yield UnknownRows(node, "numbers its entries through the whole batch")
            else:
                yield self._check(node, name, result[index]) if name else ALIKE

    def _value(self, name: str) -> tuple[Size, ...] | None:
        """Returns the integers of a value if all of them are computed from sizes, else None."""
        value = self.types[name].value
        values = (value,) if isinstance(value, Size) else value
        return None if value is None else tuple(map(self._name, values or ()))

    def _check(self, node: Node, name: str, state: State) -> State:
        """Returns the state. Raises `UnknownRows` if the number of rows determines the size of an
        axis other than the axis of rows.

        Adds the sizes that the node itself defines to ``own``, because they depend only on a row
        and on constants.
        """
        if state == SIZED:
            return state
        first = next(filter(None, node.outputs))
        for axis, size in enumerate(self.types[name].shape or ()):
            if size is None or isinstance(state, Rows) and axis == state.axis:
                continue
            self.own.update(each for each in size.names if each.startswith(f"{first}."))
            if not self.is_own(self._name(size)):
                raise UnknownRows(node, "has the number of rows in its shape")
        return state

    def inside(self, node: Node, name: str, states: Sequence[State]) -> list[State]:
        """Returns the states of the outputs of a node's body; ``states``: the states of the body's
        inputs.
        """
        body: Graph = node.attributes[name]
        known = types_inside(node, name, input_types(self.types, node))
        types = {value.name: each for value, each in zip(body.inputs, known, strict=True)}
        given: dict[str, State | UnknownRows] = dict.fromkeys(body.constants, ALIKE)
        given |= zip(types, states, strict=True)
        flow = replace(self, graph=body, types=body.infer_types(types), states=given)
        flow.follow()
        return [flow[value.name] for value in body.outputs]

    # The methods that rules call.

    def __getitem__(self, name: str) -> State:
        """Returns the state of a value. Raises `UnknownRows` if the location of its rows is not
        known.
        """
        state = self.states[name]
        if isinstance(state, UnknownRows):
            raise state
        return state

    def shape(self, node: Node, name: str) -> tuple[Size | None, ...]:
        """Returns the sizes of a value. Raises `UnknownRows` if the number of axes is not known."""
        shape = self.types[name].shape
        if shape is None:
            raise UnknownRows(node, f"reads or makes {name!r} of an unknown number of axes")
        return tuple(None if size is None else self._name(size) for size in shape)

    def is_per_row(self, name: str, state: Rows) -> bool:
        """Returns whether a value contains each row exactly once."""
        known = self.types[name]
        if state.lod:
            return len(state.lod) == known.depth
        size = known.shape[state.axis] if known.shape is not None else None
        return size is not None and self._name(size) == self.count

    def is_own(self, size: Size | None) -> bool:
        """Returns whether a size is the same for any number of rows."""
        return size is not None and size.names <= self.own

    def is_alike(self, name: str) -> bool:
        """Returns whether a value is the same for all rows, and for any number of rows."""
        return self.states[name] in (ALIKE, UNIFORM)

    def expect_alike(self, node: Node, names: Iterable[str]) -> None:
        """Raises `UnknownRows` for values that are not the same for all rows."""
        for name in filter(None, names):
            self[name]
            if not self.is_alike(name):
                raise UnknownRows(node, "has parameters that differ from row to row")

    def check_alike(self, node: Node, name: str, axis: int) -> None:
        """Raises `UnknownRows` if the entries of a value without rows may differ along an axis. A
        negative ``axis`` raises no error.
        """
        state = self[name]
        if axis < 0 or isinstance(state, Alike) and state.uniform:
            return
        if self.shape(node, name)[axis] == ONE:
            return
        array = self.graph.constants.get(name)
        if array is None or (array != array.take([0], axis)).any():
            raise UnknownRows(node, f"reads {name!r}, which differs along the axis of the rows")

    def expect_batch(self, node: Node, name: str, axis: int, like: Rows) -> None:
        """Raises `UnknownRows` unless the rows of a value are on ``axis``, or the value has equal
        entries along ``axis``.
        """
        state = self[name]
        if isinstance(state, Alike):
            self.check_alike(node, name, axis)
            return
        lod = like.lod if axis == like.axis else ()
        if (state.axis, state.inner, bool(state.lod)) != (axis, like.inner, bool(lod)):
            raise UnknownRows(node, f"reads {name!r}, whose rows are not on axis {axis}")
        self.meet(node, lod, state.lod)

    def meet(self, node: Node, one: tuple[LodName, ...], other: tuple[LodName, ...]) -> None:
        """Records that two values must have the same number of steps in each row."""
        if one == other:
            return
        if one not in self.lods or other not in self.lods:
            raise UnknownRows(node, "combines steps of different offsets")
        first, second = sorted((self.lods[one], self.lods[other]))
        self.same_lengths.add((first, second))

    def _name(self, size: Size) -> Size:
        return size.substitute(self.renamed)


def _rule_of(operator: Operator | None) -> Callable[[Any, Node], Any] | None:
    if operator is None:
        return None
    if operator.rows:
        return operator.rows
    if operator.kind == "view" and not operator.offsets:
        return view
    return follow if operator.paths else None


def _keeps_uniform(node: Node, given: Sequence[Any]) -> bool:
    kind = OPERATORS[node.op].kind
    read = given[:1] if kind == "view" else given
    return node.op == "ConstantOfShape" or (
        kind in ("view", "elementwise") and all(each.uniform for each in read)
    )
