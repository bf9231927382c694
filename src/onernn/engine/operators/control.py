"""Branches and loops: marks that begin and end them, and copies of their results and states."""

from __future__ import annotations

from typing import NoReturn

from onernn.engine.operators.elementwise import copy, each_element, fill, nest, strides_of, whole
from onernn.engine.operators.operator_code import OperatorCode, rule
from onernn.engine.program import Access, Call, Mark, Nest, RuntimeSize, Step
from onernn.ir.graph import UNSUPPORTED
from onernn.ir.types import Size

_ENDLESS = 2**63 - 1
UNBOUNDED = 2**40
"""The maximum number of iterations of a loop without a known limit: their results would not fit
into memory.
"""


def _check_truth(op: OperatorCode, index: int = 0) -> None:
    op.of("bool", index=index)
    op.holds(index, 1)


def _condition(op: OperatorCode) -> str:
    _check_truth(op)
    return op.read(0)


def _copy(op: OperatorCode, index: int, out: str) -> Nest:
    """Returns the loops that copy an input to the output ``out``, which may have memory for more
    elements.
    """
    return copy(op.read(index), op.shape(index), out)


@rule("Then")
def then(op: OperatorCode) -> list[Step]:
    mark = Mark("if", _condition(op))
    op.view(mark.condition)
    return [mark, Mark("refuse")] if op.attrs.refused else [mark]


@rule("Else")
def otherwise(op: OperatorCode) -> list[Step]:
    """Ends the first branch, and begins the second one."""
    mark = Mark("else", _condition(op))
    op.view(mark.condition)
    copies = [_copy(op, index, op.node.outputs[index]) for index in range(1, len(op.node.inputs))]
    return [*copies, mark, Mark("refuse")] if op.attrs.refused else [*copies, mark]


@rule("EndIf")
def end_if(op: OperatorCode) -> list[Step]:
    """Writes the outputs of both branches into the same memory; if the branches' sizes differ, a
    call computes the sizes.
    """
    program, outputs, values = op.program, op.node.outputs, op.node.inputs[1:]
    condition, copies, result = _condition(op), list[Step](), list[Step]()
    count = len(outputs)
    if op.attrs.gives != "else":
        op.views |= dict(zip(values, outputs, strict=False))
        op.reads += values[:count]
    if op.attrs.gives != "then":
        copies += [
            _copy(op, len(values) - count + 1 + index, out) for index, out in enumerate(outputs)
        ]
    for index, out in enumerate(outputs):
        program.levels(out)  # raises an error if the branches have different LoD levels
        if op.attrs.gives == "both":
            pairs = zip(
                program.shape(values[index]), program.shape(values[count + index]), strict=True
            )
            for axis, (one, other) in enumerate(pairs):
                size = op.size(out, axis)
                if one == other:
                    op.same(size, one)
                    continue
                size = op.finds(size, f"size{index}_{axis}", one.most() + other.most())
                result.append(Call("choose", RuntimeSize(size), condition, one, other))
    return [*copies, Mark("end"), *result]


@rule("Repeat")
def repeat(op: OperatorCode) -> list[Step]:
    """Begins a loop: copies the first states, and sets the index of the iteration to 0."""
    program, node, count = op.program, op.node, op.attrs.states
    turn, going, *states = node.outputs
    limit, most = Size.of(_ENDLESS), ""
    for index, axis in enumerate(op.attrs.scanned, 2 + count):
        size = op.shape(index)[axis]
        limit = op.same(limit, size) if index > 2 + count else size
    if node.input(0):
        most_turns = op.constant(0)
        most_turns = program.numbers(node.input(0)) if most_turns is None else most_turns
        if most_turns is None:
            op.of("int64")
            op.holds(0, 1)
            most = op.read(0)
        else:
            limit = program.size(most_turns.reshape(-1)[0])
    bound = limit.most()
    if any(by >= UNBOUNDED for _, by in bound.terms):
        bound = Size.of(UNBOUNDED)
    number = Size.of(program.types[turn].value or Size(()))
    number = op.finds(program.size(number), "turn", bound)
    begin = [_copy(op, 2 + index, name) for index, name in enumerate(states)]
    if node.input(1):
        _check_truth(op, 1)
        begin.append(_copy(op, 1, going))
    first = [] if node.input(1) else [fill(op, 1, 1)]
    op.reads.append(going)
    has = op.keep("has_turn", "bool", ())
    check = Call("has_turn", has, going, most, number, limit)
    start = Call("tell_size", RuntimeSize(number), Size(()))
    return [*begin, *first, start, Mark("while"), check, Mark("leave", has)]


def _turn(op: OperatorCode, index: int) -> Size:
    return op.program.size((op.numbers(index, "turn") or [0])[0])


@rule("Element")
def element(op: OperatorCode) -> Nest:
    shape, turn = op.shape(), _turn(op, 1)
    if op.program.levels(op.node.inputs[0]):
        op.refuse("iterates over the steps of sequences: expected a dense value")
    axis, strides = op.attrs.axis % len(shape), list(strides_of(shape))
    place = shape[axis] - 1 - turn if op.attrs.backwards else turn
    start = place * strides.pop(axis)
    return each_element(op, [Access(op.read(0), tuple(strides), start)])


@rule("Again")
def again(op: OperatorCode) -> list[Step]:
    """Ends an iteration: replaces the old states by the new ones after all steps have read them."""
    program, node, count = op.program, op.node, op.attrs.states
    turn, steps = _turn(op, 0), list[Step]()
    ends = list[Step]()
    if op.attrs.along is None and op.attrs.axes:
        bound = program.inner[turn.name or ""]
        if bound.number == UNBOUNDED:
            op.refuse("the number of iterations has no known bound: expected a constant maximum")
        turns = op.finds(op.size(node.outputs[count], 0), "turns", bound)
        ends = [Call("tell_size", RuntimeSize(turns), turn)]
    inside = list(program.inner)[list(program.inner).index(turn.name or "") :]
    for index, (axis, back) in enumerate(zip(op.attrs.axes, op.attrs.backwards, strict=True)):
        name, out = 3 + 2 * count + index, node.outputs[count + index]
        turn_shape = op.shape(name)
        if not frozenset(inside).isdisjoint(n for size in turn_shape for n in size.names):
            op.refuse("iterations produce values of several sizes: expected one size")
        shape = program.shape(out)
        strides = list(strides_of(shape))
        axis %= len(shape)
        start = (shape[axis] - 1 - turn if back else turn) * strides.pop(axis)
        to, read = Access(out, tuple(strides), start), whole(op.read(name), turn_shape)
        steps.append(nest(turn_shape, to, [read]))
    copies, updates = list[Step](), list[Step]()
    for index, last in enumerate(node.outputs[:count]):
        own, new = 3 + index, 3 + count + index
        shape, dtype = op.shape(own), op.dtype(own)
        levels = [program.levels(node.inputs[each]) for each in (own, new)]
        if op.shape(new) != shape or op.dtype(new) != dtype or levels[0] != levels[1]:
            op.refuse("a state changes its size or type: expected the same in each iteration")
        op.views[op.read(own)] = last
        beside = op.keep(f"next{index}", dtype, shape)
        copies.append(copy(op.read(new), shape, beside))
        updates.append(copy(beside, shape, node.inputs[own]))
    if node.input(2):
        _check_truth(op, 2)
        updates.append(_copy(op, 2, node.inputs[1]))
    steps += [*copies, *updates, Call("tell_size", RuntimeSize(turn), turn + 1)]
    steps.append(Mark("again", operators=op.attrs.operators))
    return [*steps, *ends]


@rule("If", "Loop", "Scan")
def body(op: OperatorCode) -> NoReturn:
    reason = op.program.left.get(
        op.node.outputs[0], "the types of its graphs' results are not known"
    )
    # begins the reason of an inner node
    already = "runs graphs of its own: "
    op.refuse(already + reason.removeprefix(already))


@rule(UNSUPPORTED)
def raise_unsupported(op: OperatorCode) -> NoReturn:
    op.refuse(op.node.attributes.get("reason", "onernn does not support it"))


def unknown(op: OperatorCode) -> NoReturn:
    op.refuse(f"operator {op.node.op} is not generated")
