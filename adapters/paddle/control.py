"""The rules of Paddle's loops and branches, and of the tensor arrays that they fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np

from onernn.adapters.common.signatures import refuse
from onernn.adapters.paddle.table import (
    TURN,
    PaddleBuilder,
    PaddleOperator,
    Part,
    TensorArray,
    list_places,
    lower_operators,
    paddle,
)
from onernn.fuse_passes.row_independence import describe_rows
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Value
from onernn.ir.records import dataclass
from onernn.ir.types import Size, Type
from onernn.ops.control import join_types, scan_attributes

# The rules of operators on tensor arrays, which are lists of tensors.


def _array(X: Any, ranked: bool = False) -> TensorArray:
    """Returns an input's tensor array. Unless ``ranked``, raises `UnsupportedError` if Paddle sorts
    the rows of its elements by sequence length.
    """
    array: TensorArray = X.op.builder.array_of(X.op.variable(X.slot))
    if not ranked and any(part.ranked for part in array.parts):
        raise UnsupportedError(
            "input X: expected steps in the order of the sequences, got steps that Paddle sorts by"
            " length; join them with array_to_lod_tensor first"
        )
    return array


def _index(tensor: Any) -> Size | None:
    """Returns the number in an index of shape () or (1,), None if it is unknown."""
    value = tensor.type.value
    if isinstance(value, tuple):
        return value[0] if len(value) == 1 else None
    return value


@paddle("create_array")
def create_array(*, dtype=-1, op):
    op.builder.arrays[op.outputs["Out"][0]] = TensorArray()
    return ""


@paddle("write_to_array")
def write_to_array(X, I, *, op):  # noqa: E741
    (variable,) = op.outputs["Out"]
    array = op.builder.array_of(variable)
    op.builder.arrays[variable] = array.write(_index(I), X.dense.name)
    return ""


@paddle("read_from_array")
def read_from_array(X, I, X_W=None, *, op):  # noqa: E741
    (result,), blocks = op.outputs["Out"], op.builder.blocks
    readers = {each.type for each in blocks.operators(0) if result in each.reads}
    sizes_only = op.builder.outer is None and readers == {"fill_constant_batch_size_like"}
    array = _array(X, ranked=sizes_only)
    if value := array.element(_index(I)):
        return op.emit("Identity", value)
    stack = X.new(op.builder.stack(array))
    return stack.Gather(I.reshape(), axis=0, non_negative=True)


@paddle("slice_array_dense")
def slice_array(X, *, starts=(0,), op):
    """Returns the element at an index. A negative index counts from the end."""
    array, place = _array(X), starts[0]
    at: Size | None = Size.of(place)
    if place < 0:
        at = None if array.length is None else array.length + place
    if len(starts) == 1 and (value := array.element(at)):
        return op.emit("Identity", value)
    return X.new(op.builder.stack(array)).Gather(place, axis=0)


@paddle("lod_array_length")
def array_length(X, *, op):
    """Returns the number of elements with the shape (1,), like Paddle."""
    array, builder = _array(X), op.builder
    result = array.length
    if result is not None and result.number is not None:
        return op.ints(result.number)
    if all(part.value for part in array.parts):
        return op.emit("Shape", builder.stack(array), start=0, end=1)
    before = result - builder.turn if result is not None and builder.turn is not None else None
    number = None if before is None else before.number
    if number is None:
        refuse("input X: expected an array whose number of elements is known")
    return X.new(TURN).reshape(1).Add([number])


@paddle("tensor_array_to_tensor")
def join_array(X, *, axis=0, use_stack=False, op):
    """Stacks the elements along a new axis, or concatenates them along an existing axis."""
    array = _array(X)
    value = X.new(op.builder.stack(array))
    rank = value.rank
    axis += rank - (not use_stack) if axis < 0 else 0
    if not 0 <= axis < rank - (not use_stack):
        most = rank - 1 - (not use_stack)
        refuse(f"attribute {axis=}: expected 0 to {most} for elements of {rank - 1} axes")
    out = value.transpose(*range(1, axis + 1), 0, *range(axis + 1, rank)) if axis else value
    if use_stack:
        if axis == 0:
            op.builder.stacked[op.outputs["Out"][0]] = array
        return {"Out": out.Identity()}
    sizes = op.join([0] * axis + [-1], out.Shape(start=axis + 2).name)
    each, count = value.Shape(start=axis + 1, end=axis + 2), value.Shape(start=0, end=1)
    return {"Out": out.Reshape(X.new(sizes)), "OutIndex": each.Expand(count).cast("int32")}


# The rules of DynamicRNN, which converts sequences to a tensor array of steps (N, ...).
#
# Paddle sorts the sequences by length, and each step drops the sequences that have ended. onernn
# keeps the order of the sequences, and runs all for as many steps as the longest. A loop is refused
# if one of its operators combines sequences. Sources: lod_rank_table.cc and others of 2.6.

_TO_STEPS, _SHRINK = "lod_tensor_to_array", "shrink_rnn_memory"
_BY_RANK = "reorder_lod_tensor_by_rank"


@paddle("lod_rank_table", level=0)
def rank_table(X):
    """Returns X, whose lengths serve as the rank table."""
    return X.with_lod(1)


@paddle("max_sequence_len")
def longest_sequence(RankTable):
    return RankTable.SequenceLengths().ReduceMax([0], keepdims=1)


@paddle(_TO_STEPS)
def split_into_steps(X, RankTable, *, op):
    if X.with_lod(1).type.lod != RankTable.type.lod:
        refuse("inputs X, RankTable: expected the same LoD")
    steps = X.SequencePad(time_major=1).name
    part = Part(steps, op.builder.type_of(steps).shape[0], stacked=True, ranked=True)
    op.builder.arrays[op.outputs["Out"][0]] = TensorArray((part,))
    return ""


@paddle("array_to_lod_tensor")
def join_steps(X, RankTable):
    steps = X.new(X.op.builder.stack(_array(X, ranked=True)))
    return steps.SequenceUnpad(RankTable.SequenceLengths(), time_major=1).dense.under(RankTable)


@paddle(_BY_RANK)
def reorder_by_rank(X, RankTable):
    """Returns X, because onernn does not sort sequences."""
    return X.dense if not X.ragged else refuse("input X: expected no LoD")


@paddle(_SHRINK)
def shrink_memory(X, RankTable, I, *, op):  # noqa: E741
    """Returns X. Paddle drops the rows of ended sequences. onernn keeps them, and no result
    contains them.
    """
    return X if op.builder.outer else refuse("expected this operator in the block of a loop")


# The rules of loops and branches. Their blocks become graphs. Tensor arrays become stacked outputs
# of a loop.

_ROUNDS = 8  # until the types of carried values no longer change
_SETTLED = "expected one dtype and number of axes; cast or reshape the new values"


@paddle("if")
def if_(Cond, *, true_block, false_block, then=("",), otherwise=("",)):
    return _branches(Cond, [true_block, false_block], [list(then), list(otherwise)])


@paddle("conditional_block", is_scalar_condition=True)
def conditional_block(Cond, Input=(), *, sub_block):
    """Runs the block if ``Cond`` is true. Otherwise the variables that the block assigns keep their
    values.
    """
    return _branches(Cond, [sub_block, -1], [[], []])


def _branches(Cond: Any, numbers: list[int], named: list[list[str]]) -> dict[str, str]:
    """Returns the results by slot, including the outer variables that the blocks assign.

    ``numbers``: the blocks, -1 for none. ``named``: the names of the results in each block.
    """
    builder: PaddleBuilder = Cond.op.builder
    results = dict(builder.blocks.results(Cond.op))
    written = [builder.blocks.graph(n).outer_writes if n >= 0 else set[str]() for n in numbers]
    others = sorted(name for slot, name in results.items() if slot.startswith("="))
    if arrays := [name for name in others if builder.is_array(name)]:
        raise UnsupportedError(
            f"array {arrays[0]!r} is written in a branch: expected writes outside; append after it"
        )
    others = [n for n in others if builder.holds(n) or n in written[0] & written[1]]
    bodies = [
        _branch(builder, number, [*names, *others])
        for number, names in zip(numbers, named, strict=True)
    ]
    then, other = (graph for graph, _ in bodies)
    slots = [slot for slot in results if slot[0] != "="] if named[0] else []
    if len(then.outputs) != len(slots) + len(others) or len(then.outputs) != len(other.outputs):
        raise UnsupportedError(
            f"its blocks: expected {len(slots) + len(others)} results of each, got"
            f" {len(then.outputs)} and {len(other.outputs)}"
        )
    made = builder.branches(_truth(builder, Cond.name), *bodies)
    return dict(zip([*slots, *(f"={name}" for name in others)], made, strict=True))


def _branch(outer: PaddleBuilder, number: int, names: Sequence[str]) -> tuple[Graph, list[str]]:
    """Returns the graph of a block, and the outer values that it reads. The graph of a negative
    ``number`` has no operators.
    """
    builder, blocks = outer.inner("branch"), outer.blocks
    used = set(names)
    if number >= 0:
        used |= blocks.graph(number).outer_reads | blocks.graph(number).outer_writes
    for name in sorted(used):
        builder.take_variable(name)
    if number >= 0:
        lower_operators(builder, blocks.operators(number), names)
    for name in names:
        if not builder.holds(name):
            raise UnsupportedError(f"result {name!r}: expected an operator that computes it")
    graph = _graph(builder, [builder.value(name) for name in names])
    return graph, [builder.taken[value.name] for value in graph.inputs]


def _truth(builder: PaddleBuilder, value: str) -> str:
    if builder.type_of(value).rank == 0:
        return value
    return builder.emit("Reshape", (value, builder.constant(np.zeros(0, np.int64), "scalar")))


def _graph(builder: PaddleBuilder, values: Sequence[str]) -> Graph:
    assert builder.outer is not None
    builder.outer.notes.update(builder.notes)
    ends = [builder.emit("Identity", (value,)) for value in values]
    return builder.body([*map(builder.output, ends)], "its block:")


@dataclass(frozen=True)
class _Carried:
    """A variable that a loop carries from iteration to iteration. ``inside``: its name in the
    block.

    ``begin``: the value before the loop. ``after``: the block's name for the next value. ``slot``,
    ``result``: the output slot and the variable that get the last value.
    """

    inside: str
    begin: str
    after: str
    slot: str
    result: str


@paddle("while")
def while_(Condition, X=(), Initial=(), *, sub_block, arguments=("",), given=("",), op):
    return _While(op, sub_block, Condition.name, arguments, given).results()


@paddle("rnn_memory_helper")
def copy_memory(X):
    return X


@paddle("recurrent", is_train=False)
def recurrent(
    inputs=(),
    initial_states=(),
    parameters=(),
    *,
    sub_block,
    ex_states=("",),
    states=("",),
    has_states=True,
    reverse=False,
    op,
):
    """Runs the block of a StaticRNN for each step of the inputs (T, ...). Inputs and outputs have
    the same names in the block. It reads ``ex_states`` and computes ``states``, the ``ex_states``
    of the next step.
    """
    outer, blocks = op.builder, op.builder.blocks
    outputs = list(op.outputs.get("outputs", ()))
    if not inputs or len(initial_states) != len(states) or len(states) != len(ex_states):
        refuse(
            "expected inputs, and as many initial_states as ex_states and states, got"
            f" {len(inputs)} inputs, and {len(initial_states)}, {len(ex_states)} and {len(states)}"
        )
    known = [replace(each.type, value=None) for each in initial_states]
    steps = dict(zip(op.inputs["inputs"], inputs, strict=True))
    for _ in range(_ROUNDS):
        builder = outer.inner("step")
        for name, result in zip(ex_states, known, strict=True):
            builder.enter(name, result)
        for name, value in steps.items():
            builder.enter(name, Type(value.dtype.name, value.type.shape[1:], ()))
        free = blocks.graph(sub_block).outer_reads - steps.keys() - {*ex_states}
        for name in sorted(free):
            builder.take_variable(name)
        ends = [*states, *outputs]
        lower_operators(builder, blocks.operators(sub_block), ends)
        values = [builder.value(name) for name in ends]
        made = [replace(builder.type_of(value), value=None) for value in values[: len(states)]]
        settled = list(map(join_types, known, made))
        if settled == known:
            break
        known = settled
    else:
        refuse(f"its states change from step to step: {_SETTLED}")
    body = _graph(builder, values)
    attributes = scan_attributes(body, len(states), len(steps), backwards=int(reverse))
    operands = [*initial_states, *inputs, *map(inputs[0].new, builder.taken.values())]
    made = op.emit_many("Scan", len(ends), *(each.name for each in operands), **attributes)
    return dict(list_places("outputs", made[len(states) :]))


class _While:
    """A loop. It carries the variables that its block assigns, and stacks the elements that its
    block appends to tensor arrays.
    """

    def __init__(
        self,
        op: PaddleOperator,
        number: int,
        begin: str,
        arguments: Sequence[str],
        given: Sequence[str],
    ) -> None:
        self.outer, self.number, self.begin = op.builder, number, begin
        self.again = self.condition = op.variable("Condition")
        named: list[tuple[str, str, str, str, str]] = []
        if "given" in op.attributes:
            self.again, *given = given
            slots = [slot for slot, _ in self.outer.blocks.results(op) if slot[0] != "="]
            initial, results = op.variables("Initial"), op.outputs.get("Out", ())
            named = [*zip(arguments, initial, given, slots, results, strict=True)]
        written = sorted(self.outer.blocks.graph(self.number).outer_writes - {self.condition})
        own = [(name, name, name, f"={name}", name) for name in written]
        self.carried: list[_Carried] = []
        self.arrays: list[_Carried] = []
        for inside, variable, after, slot, result in [*named, *own]:
            if self.outer.is_array(variable):
                self.arrays.append(_Carried(inside, variable, after, slot, result))
            elif self.outer.holds(variable):
                begin = self.outer.value(variable)
                self.carried.append(_Carried(inside, begin, after, slot, result))
            elif self.outer.blocks.read_outside(variable, self.number):
                raise UnsupportedError(
                    f"{variable!r}: expected a value before the loop; assign one"
                )
        self.turn = Size.of(f"turn {self.outer.depth}")

    def results(self) -> dict[str, str]:
        for array in self.arrays:
            if last := self._last(array.begin):
                name = f"last of {array.inside}"
                self.carried.append(_Carried(name, last, f"next {name}", name, name))
        builder = self._settle()
        ends = [builder.value(name) for name in (self.again, *(c.after for c in self.carried))]
        collected = [_append(builder, each) for each in self.arrays]
        body = _graph(builder, [_truth(builder, ends[0]), *ends[1:], *collected])
        kept = self._list_kept(body)
        first, behind = len(self.carried), 2 + len(self.carried)
        results = (body.outputs[0], *(body.outputs[1 + at] for at in kept))
        body = replace(body, outputs=(*results, *body.outputs[1 + first :])).prune()
        used = {name for node in body.nodes for name in node.inputs}
        taken = [value for value in body.inputs[behind:] if value.name in used]
        own = (*body.inputs[:2], *(body.inputs[2 + at] for at in kept))
        body = replace(body, inputs=(*own, *taken))
        begin = [self.carried[at].begin for at in kept]
        inputs = ("", _truth(self.outer, self.begin), *begin)
        inputs += tuple(builder.taken[value.name] for value in taken)
        attributes = {"body": body, "carried": len(kept)}
        count = len(kept) + len(collected)
        made = self.outer.emit_many("Loop", inputs, count, attributes)
        if rows := self._find_rows(builder):
            pairs = zip(made, (self.carried[at] for at in kept), strict=False)
            alike = [name for name, each in pairs if each.slot != each.inside]
            _check_rows(self.outer, rows, made[len(kept) :], alike)
        values = {self.carried[at].slot: value for at, value in zip(kept, made, strict=False)}
        values[f"={self.condition}"] = self.outer.constant(False, "ended")
        for array, value in zip(self.arrays, made[len(kept) :], strict=True):
            turns = next(iter(self.outer.type_of(value).shape or ()), None)
            last = values.pop(f"last of {array.inside}", "")
            part = Part(value, turns, last, stacked=True, ranked=bool(rows))
            before = self.outer.array_of(array.begin).parts
            self.outer.arrays[array.result] = TensorArray((*before, part))
            values[array.slot] = ""
        return values

    def _find_rows(self, builder: PaddleBuilder) -> dict[str, int]:
        """Returns the outer values that the block reads and that have one row per sequence, each
        with the axis of these rows.

        Raises `UnsupportedError` for an initial state that is neither constant nor reordered by
        rank. Paddle would assign its rows to the longest sequence, the second longest, ...
        """
        taken = {each.inside: each.begin for each in self.carried} | builder.taken
        rows = dict[str, int]()
        for node in builder.nodes:
            if any(each.type == _SHRINK for each in node.origin):
                name = node.inputs[0]
                while name not in taken and (maker := builder.maker(name)):
                    name = maker.inputs[0] if maker.op == "Identity" else ""
                if name in taken:
                    rows[taken[name]] = 0
        for value in rows:
            made = self.outer.maker(value)
            ranked = made and {each.type for each in made.origin} & {_BY_RANK}
            if not ranked and (made is None or made.op != "ConstantOfShape"):
                raise UnsupportedError(
                    f"{value!r}: expected rows in the order of the sequences' lengths; set"
                    " need_reorder=True (reorder_lod_tensor_by_rank)"
                )
        for value in builder.taken.values():
            made = self.outer.maker(value)
            if made and any(each.type == _TO_STEPS for each in made.origin):
                rows[value] = 1
        return rows

    def _last(self, array: str) -> str:
        """Returns the last element of a tensor array before the loop, "" if there is none."""
        result = self.outer.array_of(array)
        return result.element(result.length - 1) if result.parts and result.length else ""

    def _settle(self) -> PaddleBuilder:
        """Returns the lowered block. The types of its carried values are valid in every iteration.

        The first attempt assumes that each carried integer grows by 1 in every iteration.
        """
        known = [self._begin(self.outer.type_of(each.begin)) for each in self.carried]
        for _ in range(_ROUNDS):
            builder = self._lower(known)
            made = [builder.type_of(builder.value(each.after)) for each in self.carried]
            settled = list(map(_in_any_turn, known, made))
            if settled == known:
                return builder
            known = settled
        raise UnsupportedError(f"its variables change from iteration to iteration: {_SETTLED}")

    def _begin(self, first: Type) -> Type:
        value = first.value
        if value is None or first.dtype not in ("int32", "int64"):
            return replace(first, value=None)
        if isinstance(value, Size):
            return replace(first, value=value + self.turn)
        return replace(first, value=tuple(each + self.turn for each in value))

    def _lower(self, known: Sequence[Type]) -> PaddleBuilder:
        builder, blocks = self.outer.inner("body"), self.outer.blocks
        builder.turn = self.turn
        builder.enter(TURN, Type("int64", (), (), self.turn))
        builder.enter(self.condition, Type("bool", (), ()))
        for each, result in zip(self.carried, known, strict=True):
            builder.enter(each.inside, result)
        for array in self.arrays:
            length, last = self.outer.array_of(array.begin).length, f"last of {array.inside}"
            count = None if length is None else length + self.turn
            last = last if builder.holds(last) else ""
            builder.arrays[array.inside] = TensorArray((Part("", count, last),))
        free = blocks.graph(self.number).outer_reads - {self.condition}
        for name in sorted(free - {each.inside for each in (*self.carried, *self.arrays)}):
            builder.take_variable(name)
        kept = [self.again, *(each.after for each in self.carried)]
        lower_operators(builder, blocks.operators(self.number), kept)
        for array in self.arrays:
            builder.give(f"next last of {array.inside}", _append(builder, array))
        return builder

    def _list_kept(self, body: Graph) -> list[int]:
        """Returns the indices of the carried values that a result of the loop depends on."""
        blocks, count = self.outer.blocks, len(self.carried)
        kept = {
            at
            for at, each in enumerate(self.carried)
            if each.slot == each.inside or blocks.read_outside(each.result, self.number)
        }
        others = (body.outputs[0], *body.outputs[1 + count :])
        while True:
            wanted = replace(body, outputs=(*others, *(body.outputs[1 + at] for at in kept)))
            used = {name for node in wanted.prune().nodes for name in node.inputs}
            more = {at for at in range(count) if body.inputs[2 + at].name in used}
            if more <= kept:
                return sorted(kept)
            kept |= more


def _check_rows(
    builder: PaddleBuilder, rows: Mapping[str, int], steps: Sequence[str], alike: Sequence[str]
) -> None:
    """Raises `UnsupportedError` if the loop combines sequences. Each row of ``steps`` must depend
    on one sequence, and ``alike`` must depend on none.
    """
    results = [*steps, *alike]
    node = builder.maker(results[0])
    assert node is not None
    names = dict.fromkeys(filter(None, node.inputs))
    constants = {name: builder.constants[name] for name in names if name in builder.constants}
    inputs = tuple(builder.output(name) for name in names if name not in constants)
    graph = Graph("steps", inputs, tuple(map(Value, results)), (node,), constants)
    found = describe_rows(graph, rows, names.keys() - rows.keys())
    for name, wanted in [*zip(steps, repeat(1)), *zip(alike, repeat(-1))]:
        if found[name] != wanted:
            why = (
                found[name] if isinstance(found[name], str) else f"{name!r} is read after the loop"
            )
            raise UnsupportedError(
                f"its steps: expected that none combines sequences, which Paddle sorts: {why}"
            )


def _in_any_turn(before: Type, after: Type) -> Type:
    """Returns a type of a carried value that is valid both before and after an iteration."""
    value = before.value
    if isinstance(value, tuple):
        again = after.value == tuple(each + 1 for each in value)
    else:
        again = value is not None and after.value == value + 1
    return replace(join_types(before, after), value=value if again else None)


def _append(builder: PaddleBuilder, array: _Carried) -> str:
    """Returns the one element that a block has appended to a tensor array."""
    _, *parts = builder.array_of(array.after).parts
    if len(parts) != 1 or parts[0].stacked:
        raise UnsupportedError(
            f"array {array.inside!r}: expected one appended element per iteration, got {len(parts)}"
        )
    return parts[0].value
