"""Branches and loops: marks among their operators, and what these hand on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from onernn.engine.operators.elementwise import each_element, fill, nest, strides_of, whole
from onernn.engine.operators.operator_code import OperatorCode, rule
from onernn.engine.program import Access, Call, Mark, Nest, RuntimeSize, Step
from onernn.ir.graph import UNSUPPORTED, Value
from onernn.ir.types import Size, volume

_ENDLESS = 2**63 - 1
UNBOUNDED = 2**40
"""Turns where no limit is known: more than memory could hold."""


def _condition(op: OperatorCode) -> str:
    """Reads it: one truth."""
    op.of("bool")
    op.same(volume(op.shape()), 1)
    op.source = op.read(0)
    return op.source


def _copy(op: OperatorCode, index: int, out: str) -> Nest:
    """Returns an input as it stands, in an output that may have room for more."""
    shape = op.shape(index)
    return nest(shape, whole(out, shape), [whole(op.read(index), shape)])


@rule("Then")
def then(op: OperatorCode) -> list[Step]:
    mark = Mark("if", _condition(op))
    return [mark, Mark("refuse")] if op.attrs.refused else [mark]


@rule("Else")
def otherwise(op: OperatorCode) -> list[Step]:
    """The end of the first branch, too."""
    mark = Mark("else", _condition(op))
    copies = [_copy(op, index, op.node.outputs[index]) for index in range(1, len(op.node.inputs))]
    return [*copies, mark, Mark("refuse")] if op.attrs.refused else [*copies, mark]


@rule("EndIf")
def end_if(op: OperatorCode) -> list[Step]:
    """Branches write into the results' memory; sizes that differ are known during a call only."""
    program, outputs, values = op.program, op.node.outputs, op.node.inputs[1:]
    condition, copies, result = _condition(op), list[Step](), list[Step]()
    op.source = ""
    count = len(outputs)
    if op.attrs.gives != "else":
        op.views |= dict(zip(values, outputs, strict=False))
        op.reads += values[:count]
    if op.attrs.gives != "then":
        copies += [
            _copy(op, len(values) - count + 1 + index, out) for index, out in enumerate(outputs)
        ]
    for index, out in enumerate(outputs):
        program.levels(out)  # whether both are under the same
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
    """Every turn has its number, a size of the call, and the states of the turn before."""
    program, node, count = op.program, op.node, op.attrs.states
    turn, going, *states = node.outputs
    limit, most = Size.of(_ENDLESS), ""
    for index, axis in enumerate(op.attrs.scanned, 2 + count):
        size = op.shape(index)[axis]
        limit = op.same(limit, size) if index > 2 + count else size
    if node.input(0):
        most_turns = program.graph.constants.get(node.input(0), program.numbers(node.input(0)))
        if most_turns is None:
            op.of("int64")
            op.same(volume(op.shape()), 1)
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
        op.of("bool", index=1)
        op.same(volume(op.shape(1)), 1)
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
        op.refuse("goes through the words of sentences")
    axis, strides = op.attrs.axis % len(shape), list(strides_of(shape))
    place = shape[axis] - 1 - turn if op.attrs.backwards else turn
    start = place * strides.pop(axis)
    return each_element(op, [Access(op.read(0), tuple(strides), start)], ("same", 0))


@rule("Again")
def again(op: OperatorCode) -> list[Step]:
    """Double-buffer the states: copy new values in after all readers of the old ones."""
    program, node, count = op.program, op.node, op.attrs.states
    turn, steps = _turn(op, 0), list[Step]()
    ends = list[Step]()
    if op.attrs.along is None and op.attrs.axes:
        bound = program.inner[turn.name or ""]
        if bound.number == UNBOUNDED:
            op.refuse("the number of turns has no known bound")
        turns = op.finds(op.size(node.outputs[count], 0), "turns", bound)
        ends = [Call("tell_size", RuntimeSize(turns), turn)]
    inside = list(program.inner)[list(program.inner).index(turn.name or "") :]
    for index, (axis, back) in enumerate(zip(op.attrs.axes, op.attrs.backwards, strict=True)):
        name, out = 3 + 2 * count + index, node.outputs[count + index]
        turn_shape = op.shape(name)
        if not frozenset(inside).isdisjoint(n for size in turn_shape for n in size.names):
            op.refuse("turns give values of several sizes")
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
            op.refuse("what a turn hands on is of another size, or type, in the next one")
        op.views[op.read(own)] = last
        beside = op.keep(f"next{index}", dtype, shape)
        copies.append(nest(shape, whole(beside, shape), [whole(op.read(new), shape)]))
        updates.append(nest(shape, whole(node.inputs[own], shape), [whole(beside, shape)]))
    if node.input(2):
        op.of("bool", index=2)
        op.same(volume(op.shape(2)), 1)
        updates.append(_copy(op, 2, node.inputs[1]))
    steps += [*copies, *updates, Call("tell_size", RuntimeSize(turn), turn + 1)]
    steps.append(Mark("again", operators=op.attrs.operators))
    return [*steps, *ends]


@rule("If", "Loop", "Scan")
def body(op: OperatorCode) -> NoReturn:
    reason = op.program.left.get(op.node.outputs[0], "what its graphs make is not known")
    already = "runs graphs of its own: "  # said by one inside
    hint = "" if "--" in reason else sizes_to_say(op.program.graph.inputs)
    op.refuse(already + reason.removeprefix(already) + hint)


def sizes_to_say(inputs: Iterable[Value]) -> str:
    """The end of a refusal: which options fix the sizes that inputs leave open, if any does."""
    is_open = [value for value in inputs if value.shape is None or None in value.shape]
    options = " ".join(f"--input '{_option(value)}'" for value in is_open)
    return f"; sizes may decide it: say {options}, with numbers for ?" if options else ""


def _option(value: Value) -> str:
    """Returns a value as ``--input`` takes it, with ? for what the model leaves open."""
    sizes = ("?",) if value.shape is None else value.shape
    shown = ", ".join("?" if size is None else str(size) for size in sizes)
    return f"{value.name}={value.dtype or 'float32'}({shown})"


@rule(UNSUPPORTED)
def raise_unsupported(op: OperatorCode) -> NoReturn:
    op.refuse(op.node.attributes.get("reason", "it is not understood"))


def unknown(op: OperatorCode) -> NoReturn:
    op.refuse(f"operator {op.node.op} is not generated")
