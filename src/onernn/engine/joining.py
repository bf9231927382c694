"""Fewer steps: loops in a row become one, and what would only be copied becomes a view."""

from __future__ import annotations

from collections import Counter
from typing import Any

from onernn.engine.operators.elementwise import COPY
from onernn.engine.program import At, Call, Nest, Program, Step, WrittenNode
from onernn.ir.types import Size, volume
from onernn.ops.elementwise import Expression, put

_MOST_OPERANDS = 20
"""Values, numbers and functions of one loop: the library has room for some more."""


def join(program: Program) -> None:
    """Changes the program's steps; every value that is left has the numbers it had."""
    users = Counter(name for each in program.codes for name in each.reads)
    users.update(value for each in program.codes for value, _ in each.views.values())
    users.update(value.name for value in program.graph.outputs)
    written = {each.node for each in program.codes}
    for node in program.graph.nodes:  # what Python runs reads values, too
        if node not in written:
            users.update(set(filter(None, node.inputs)))
    makers: dict[str, WrittenNode] = {}
    for each in program.codes:
        if each.mark:
            makers.clear()  # what runs before a branch does not run inside of it
        if len(each.codes) == 1:
            for name in list(dict.fromkeys(each.reads)):
                maker = makers.get(name)
                if maker is None or users[name] != 1 or len(maker.codes) != 1:
                    continue
                result = _join(program, maker.codes[0], each.codes[0], name)
                if result is not None:
                    each.codes[:] = [result]
                    each.reads[:] = [*(n for n in each.reads if n != name), *maker.reads]
                    maker.codes.clear()
            makers[each.node.outputs[0]] = each


def _join(program: Program, first: Step, then: Step, name: str) -> Step | None:
    """Returns both steps as one; None where they stay two."""
    if not isinstance(then, Nest):
        return None
    at = [place for place, access in enumerate(then.reads) if access.name == name]
    if len(at) != 1:
        return None
    if isinstance(first, Nest):
        return _one_loop(program, first, then, at[0])
    if isinstance(first, Call) and first.function == "dense":
        return _with_bias(first, then, at[0])
    return None


def _one_loop(program: Program, first: Nest, then: Nest, index: int) -> Nest | None:
    read = then.reads[index]
    same = (first.out.strides, first.out.start, first.loops)
    if same != (read.strides, read.start, then.loops) or _sums(first) or _sums(then):
        return None
    if operands(first) + operands(then) > _MOST_OPERANDS:
        return None
    # Numbers of an expression are of the type of what is read: both have to say the same.
    # Halves are widened before anything is computed of them.
    dtypes = {program.dtype(a.name) for a in (*first.reads, *then.reads, first.out)}
    if len({"float32" if dtype == "float16" else dtype for dtype in dtypes}) > 1:
        return None
    others = [*then.reads[:index], *then.reads[index + 1 :]]
    inner = put(first.expression, {k: len(others) + k for k in range(len(first.reads))})
    places: dict[Any, Any] = {k: k - (k > index) for k in range(len(then.reads))}
    return Nest(
        then.loops,
        then.out,
        (*others, *first.reads),
        put(then.expression, {**places, index: inner}),
    )


def operands(step: Nest) -> int:
    """Returns values, numbers and functions."""

    def within(expression: Expression) -> int:
        if isinstance(expression, tuple):
            return 1 + sum(map(within, expression[1:]))
        return isinstance(expression, float)

    return len(step.reads) + within(step.expression)


def _sums(step: Nest) -> bool:
    """Returns whether loops add to what they made before."""
    return any(access.name == step.out.name for access in step.reads)


def _with_bias(first: Call, then: Nest, index: int) -> Call | None:
    """Returns a product that begins with one number a column instead of adding it."""
    _, x, rows, inner, panels, bias, columns, team = first.arguments
    if bias != At("") or then.expression != ("plus", 0, 1) or not isinstance(columns, Size):
        return None
    product, other = then.reads[index], then.reads[1 - index]
    plain = [*(Size(()) for _ in then.loops[1:]), Size.of(1)]
    if other.start != Size(()) or list(other.strides) != plain or then.loops[-1] != columns:
        return None
    if product.strides != then.out.strides or product.start != then.out.start:
        return None
    given = (x, rows, inner, panels, other.name, columns, team)
    return Call("dense", then.out.name, *given, types=first.types)


# What would only be copied stands inside of another value: parts of it, and what is joined.

_BEGIN = Size(())


def view(program: Program) -> None:
    """Changes the program's steps: elements that would be copied side by side become views.

    A part of a value is a view of it. What is joined is a view of the result: whoever makes it
    writes there. Callers get arrays of their own.
    """
    views = {name: at for each in program.codes for name, at in each.views.items()}
    wanted = set()
    for name in (value.name for value in program.graph.outputs):
        while name not in wanted:
            wanted.add(name)
            name = views[name][0] if name in views else name
    for each in program.codes:
        if all(map(_only_moves, each.codes)):
            for copy in _copies(each):
                if copy.makes not in wanted and _is_whole(program, copy):
                    read = copy.reads[0]
                    each.views[copy.makes] = views[copy.makes] = read.name, read.start
                    # Of what else would be put there nothing is left: it has no elements.
                    each.codes[:] = [step for step in each.codes if step.makes != copy.makes]
    result, regions = _regions(program)
    for each, region in zip(program.codes, regions, strict=True):
        for copy in _written_in_place(program, each):
            part = copy.reads[0].name
            while part in views and _is_all(program, part, *views[part]):
                part, _ = views[part]
            if (
                result.get(part) == region
                and part not in wanted
                and part not in views
                and program.inner.keys().isdisjoint(copy.out.start.names)
            ):
                each.views[part] = views[part] = copy.makes, copy.out.start
                each.codes.remove(copy)


def _written_in_place(program: Program, each: WrittenNode) -> list[Nest]:
    """Copies of what may be written where the copy is to stand.

    At the end of a turn that is what the next one begins with, in memory of its own: this one may
    still read what it began with.
    """
    if each.mark == "again":
        return [copy for copy in _copies(each) if copy.makes in program.memory]
    return _copies(each) if each.node.op == "Concat" or each.mark in ("else", "end") else []


def _regions(program: Program) -> tuple[dict[str, int], list[int]]:
    """In which branch or loop values are made, and where nodes stand: a mark in the one it ends.

    Memory that is written there may not hold what is read elsewhere.
    """
    result, regions, within, count = dict[str, int](), list[int](), [0], 0
    for each in program.codes:
        regions.append(within[-1])
        if each.mark in ("else", "end", "again"):
            within.pop()
        if each.mark in ("if", "else", "while"):
            count += 1
            within.append(count)
        if each.codes:
            result |= dict.fromkeys(each.node.outputs, within[-1])
    return result, regions


def _only_moves(step: Step) -> bool:
    if isinstance(step, Call):
        return step.function == "natural"
    return isinstance(step, Nest) and step.expression == COPY


def _copies(each: WrittenNode) -> list[Nest]:
    """Copies of elements that are side by side before and after."""
    nests = [step for step in each.codes if isinstance(step, Nest) and step.expression == COPY]
    side_by_side = ((), (Size.of(1),))
    return [
        step
        for step in nests
        if (one := step.merged).out.strides in side_by_side
        and one.reads[0].strides == one.out.strides
    ]


def _is_whole(program: Program, step: Nest) -> bool:
    """Returns whether loops make a whole value."""
    count = volume(program.shape(step.makes))
    return step.out.start == _BEGIN and program.size(volume(step.loops)) == count


def _is_all(program: Program, name: str, other: str, start: Size) -> bool:
    """Returns whether a view is another shape of a whole value."""
    return start == _BEGIN and volume(program.shape(name)) == volume(program.shape(other))
