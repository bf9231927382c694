"""Reduces the number of steps: consecutive loops become one loop, and contiguous copies become
views.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from onernn.engine.operators.elementwise import COPY
from onernn.engine.program import At, Call, Nest, Program, Step, WrittenNode
from onernn.ir.types import Size, volume
from onernn.ops.elementwise import Expression, substitute

_PREPARING = ("natural", "pack")
_MOST_OPERANDS = 20
"""Limit for the number of values, literals and functions of one loop: the library allows some
more.
"""


def join(program: Program) -> None:
    """Joins consecutive steps of the program, so that values between them need no memory."""
    users = Counter(name for each in program.codes for name in each.reads)
    users.update(value for each in program.codes for value, _ in each.views.values())
    users.update(value.name for value in program.graph.outputs)
    written = {each.node for each in program.codes}
    for node in program.graph.nodes:  # nodes that Python runs read values as well
        if node not in written:
            users.update(set(filter(None, node.inputs)))
    makers: dict[str, WrittenNode] = {}
    for each in program.codes:
        if each.mark:
            makers.clear()  # a step before a branch or loop must not move into it
        if len(each.codes) == 1:
            for name in list(dict.fromkeys(each.reads)):
                maker = makers.get(name)
                if maker is None or users[name] != 1:
                    continue
                *before, last = maker.codes
                if not all(isinstance(s, Call) and s.function in _PREPARING for s in before):
                    continue
                result = _join(program, last, each.codes[-1], name)
                if result is not None:
                    each.codes[:] = [*before, *each.codes[:-1], result]
                    each.reads[:] = [*(n for n in each.reads if n != name), *maker.reads]
                    maker.codes.clear()
        if each.codes:
            makers[each.node.outputs[0]] = each


def _join(program: Program, first: Step, then: Step, name: str) -> Step | None:
    """Returns both steps as one; None if they cannot be joined."""
    if not isinstance(then, Nest):
        return None
    at = [place for place, access in enumerate(then.reads) if access.name == name]
    if len(at) != 1:
        return None
    if isinstance(first, Nest):
        return _one_loop(program, first, then, at[0])
    if isinstance(first, Call) and first.function == "dense":
        return _with_bias(first, then, at[0])
    if isinstance(first, Call) and first.function == "convolve":
        return _rectified(program, first, then)
    return None


def _one_loop(program: Program, first: Nest, then: Nest, index: int) -> Nest | None:
    read = then.reads[index]
    same = (first.out.strides, first.out.start, first.loops)
    if same != (read.strides, read.start, then.loops) or _sums(first) or _sums(then):
        return None
    if operands(first) + operands(then) > _MOST_OPERANDS:
        return None
    # A literal has the type of the inputs of its loops, so all inputs must have one type.
    # float16 is widened before anything is computed from it.
    dtypes = {program.dtype(a.name) for a in (*first.reads, *then.reads, first.out)}
    if len({"float32" if dtype == "float16" else dtype for dtype in dtypes}) > 1:
        return None
    others = [*then.reads[:index], *then.reads[index + 1 :]]
    inner = substitute(first.expression, {k: len(others) + k for k in range(len(first.reads))})
    places: dict[Any, Any] = {k: k - (k > index) for k in range(len(then.reads))}
    return Nest(
        then.loops,
        then.out,
        (*others, *first.reads),
        substitute(then.expression, {**places, index: inner}),
    )


def operands(step: Nest) -> int:
    """Returns the number of values, literals and functions in a loop's expression."""

    def within(expression: Expression) -> int:
        if isinstance(expression, tuple):
            return 1 + sum(map(within, expression[1:]))
        return isinstance(expression, float)

    return len(step.reads) + within(step.expression)


def _sums(step: Nest) -> bool:
    return any(access.name == step.out.name for access in step.reads)


def _with_bias(first: Call, then: Nest, index: int) -> Call | None:
    """Returns a matrix product that adds a bias itself; None if ``then`` adds no bias."""
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


def _rectified(program: Program, first: Call, then: Nest) -> Call | None:
    """Returns a convolution that also computes the ReLU; None if ``then`` is not a ReLU."""
    if then.expression != ("relu", 0):
        return None
    read, out = then.reads[0], then.out
    if (read.strides, read.start) != (out.strides, out.start):
        return None
    if program.dtype(read.name) != program.dtype(out.name):
        return None
    *others, _, team = first.arguments[1:]
    return Call("convolve", out.name, *others, 1, team, types=first.types)


_BEGIN = Size(())


def view(program: Program) -> None:
    """Changes the program's steps: contiguous copies become views.

    The copy of a part of a value becomes a view of the value. Values that are copied into one
    result, such as a Concat's, become views of the result, so that steps write directly into it.
    The graph's outputs remain separate arrays.
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
                    # The other inputs of this copy have no elements, so their copies are removed.
                    each.codes[:] = [step for step in each.codes if step.makes != copy.makes]
    result, regions = _regions(program)
    for each, region in zip(program.codes, regions, strict=True):
        for copy in _list_copies_in_place(program, each):
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


def _list_copies_in_place(program: Program, each: WrittenNode) -> list[Nest]:
    """Returns the copies whose source may become a view of the copy.

    At the end of a loop's iteration, leaves out copies that overwrite old states, which the
    iteration may still read.
    """
    if each.mark == "again":
        return [copy for copy in _copies(each) if copy.makes in program.memory]
    return _copies(each) if each.node.op == "Concat" or each.mark in ("else", "end") else []


def _regions(program: Program) -> tuple[dict[str, int], list[int]]:
    """Returns the branch or loop that contains each value and each node; a mark that ends a branch
    or loop belongs to it.

    Memory that is written in a branch must not hold a value that is read outside of it.
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
    nests = [step for step in each.codes if isinstance(step, Nest) and step.expression == COPY]
    side_by_side = ((), (Size.of(1),))
    return [
        step
        for step in nests
        if (one := step.merged).out.strides in side_by_side
        and one.reads[0].strides == one.out.strides
    ]


def _is_whole(program: Program, step: Nest) -> bool:
    count = volume(program.shape(step.makes))
    return step.out.start == _BEGIN and program.size(volume(step.loops)) == count


def _is_all(program: Program, name: str, other: str, start: Size) -> bool:
    return start == _BEGIN and volume(program.shape(name)) == volume(program.shape(other))
