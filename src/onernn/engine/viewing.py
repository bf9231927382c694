"""What would only be copied stands inside of another value: parts of it, and what is joined."""

from __future__ import annotations

from onernn.engine.operators.elementwise import COPY
from onernn.engine.program import Program
from onernn.engine.steps import Call, Nest, Step, WrittenNode
from onernn.ir.types import Size, volume

_BEGIN = Size(())


def view(program: Program) -> None:
    """Changes the program's steps: elements that would be copied side by side become views.

    A part of a value is a view of it. What is joined is a view of the result: whoever makes it
    writes there. Callers get arrays of their own.
    """
    views = {name: at for each in program.codes for name, at in each.views.items()}
    told = set()
    for name in (value.name for value in program.graph.outputs):
        while name not in told:
            told.add(name)
            name = views[name][0] if name in views else name
    for each in program.codes:
        if all(map(_only_moves, each.codes)):
            for copy in _copies(each):
                if copy.makes not in told and _is_whole(program, copy):
                    read = copy.reads[0]
                    each.views[copy.makes] = views[copy.makes] = read.name, read.start
                    each.codes.remove(copy)
    made, regions = _regions(program)
    for each, region in zip(program.codes, regions, strict=True):
        for copy in _written_in_place(program, each):
            part = copy.reads[0].name
            while part in views and _is_all(program, part, *views[part]):
                part, _ = views[part]
            if (
                made.get(part) == region
                and part not in told
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
    made, regions, within, count = dict[str, int](), list[int](), [0], 0
    for each in program.codes:
        regions.append(within[-1])
        if each.mark in ("else", "end", "again"):
            within.pop()
        if each.mark in ("if", "else", "while"):
            count += 1
            within.append(count)
        if each.codes:
            made |= dict.fromkeys(each.node.outputs, within[-1])
    return made, regions


def _only_moves(step: Step) -> bool:
    if isinstance(step, Call):
        return step.function == "natural"
    return isinstance(step, Nest) and step.expression == COPY


def _copies(each: WrittenNode) -> list[Nest]:
    """Those of elements that are side by side before and after."""
    nests = [step for step in each.codes if isinstance(step, Nest) and step.expression == COPY]
    side_by_side = ((), (Size.of(1),))
    return [
        step
        for step in nests
        if (one := step.merged).out.strides in side_by_side
        and one.reads[0].strides == one.out.strides
    ]


def _is_whole(program: Program, step: Nest) -> bool:
    """Whether loops make a whole value."""
    count = volume(program.shape(step.makes))
    return step.out.start == _BEGIN and program.size(volume(step.loops)) == count


def _is_all(program: Program, name: str, other: str, start: Size) -> bool:
    """Whether a view is another shape of a whole value."""
    return start == _BEGIN and volume(program.shape(name)) == volume(program.shape(other))
