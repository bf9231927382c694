"""Whether a model can go word by word."""

from __future__ import annotations

from collections.abc import Iterable

from onernn.core.sizes import Size
from onernn.emit.operators import Operator
from onernn.emit.operators.recurrent import Recurrent
from onernn.emit.program import Program


def why_no_step(program: Program) -> str:
    """Why the model cannot go word by word, "" where it can."""
    if not any(isinstance(each, Recurrent) for each in program.operators):
        return "the model has no recurrent layer"
    if "T" not in {name for size in program.shapes.values() for s in size for name in s.names}:
        return "the number of words is fixed, or sentences come with offsets"
    for each in program.operators:
        if is_known(program, each):
            if any("T" in Size.of(n).names for n in _numbers(program, each)):
                return f"{each.node.label} computes with the number of words"
            continue
        if any("T" in program.size(size).names for size in each.mixes(program)):
            return f"{each.node.label} looks at all words"
    return ""


def _numbers(program: Program, each: Operator) -> Iterable[Size]:
    """Sizes that somebody reads as numbers: not what only tells a shape."""
    for name in filter(None, each.node.outputs):
        array = program.known[name]
        if array.dtype == object and _read_as_data(program, name):
            yield from map(Size.of, array.reshape(-1))


def _read_as_data(program: Program, name: str) -> bool:
    return program.graph.is_output(name) or any(
        name in each.reads(program) for each in program.operators if not is_known(program, each)
    )


def is_known(program: Program, each: Operator) -> bool:
    """Whether nothing is left to be run."""
    return all(name in program.known for name in filter(None, each.node.outputs))
