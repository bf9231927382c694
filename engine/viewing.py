"""What would only be copied stands inside of another value: parts of it, and what is joined."""

from __future__ import annotations

from onernn.core.sizes import Size, volume
from onernn.engine.operators.nests import COPY
from onernn.engine.program import Program
from onernn.engine.steps import Call, Nest, Step, WrittenNode

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
    made = {name for each in program.codes if each.codes for name in each.node.outputs}
    for each in program.codes:
        for copy in _copies(each) if each.node.op == "Concat" else ():
            part = copy.reads[0].name
            while part in views and _is_all(program, part, *views[part]):
                part, _ = views[part]
            if (
                part in made
                and part not in told
                and part not in views
                and program.inner.keys().isdisjoint(copy.out.start.names)
            ):
                each.views[part] = views[part] = copy.makes, copy.out.start
                each.codes.remove(copy)


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
