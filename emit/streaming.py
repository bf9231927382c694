"""Whether a model can go word by word."""

from __future__ import annotations

from onernn.core.sizes import Size
from onernn.engine.program import Program
from onernn.engine.steps import Layer


def why_no_step(program: Program) -> str:
    """Why the model cannot go word by word, "" where it can."""
    if not any(each.node.op == "Rnn" for each in program.codes):
        return "the model has no recurrent layer"
    if any(each.mark for each in program.codes):
        return "what is computed depends on a condition, which all words may tell"
    shapes = [found.shape or () for found in program.types.values()]
    if not any(_tells_words(program, size) for shape in shapes for size in shape if size):
        return "the number of words is fixed, or sentences come with offsets"
    codes = {id(each.node): each for each in program.codes}
    read = {name for each in program.codes for name in each.reads}
    read |= {value.name for value in program.graph.outputs}
    ends = set[str]()  # what only all words tell
    for node in program.graph.nodes:
        code = codes.get(id(node))
        layers = [each for each in (code.codes if code else ()) if isinstance(each, Layer)]
        going = [layer for layer in layers if goes_on(program, layer)]
        made = [name for name in node.outputs if name]
        if not ends.isdisjoint(node.inputs):
            sizes = [size for name in made for size in program.shape(name)]
            if going or any(_tells_words(program, each) for each in sizes):
                return f"{node.label} reads a state behind all words"
            ends.update(made)
        ends |= {state.final for layer in going for state in layer.states}
        if code and any(_tells_words(program, size) for size in code.mixes):
            return f"{node.label} looks at all words"
        known = (
            []
            if code
            else [n for name in node.outputs if name in read for n in _known(program, name)]
        )
        if any(_tells_words(program, size) for size in known):
            return f"{node.label} computes with the number of words"
    return ""


def goes_on(program: Program, layer: Layer) -> bool:
    """Whether a layer goes on where the step before ended; others have all words in each step."""
    return not program.no_step and layer.time is not None and _tells_words(program, layer.time)


def _tells_words(program: Program, size: Size) -> bool:
    return "T" in program.size(size).names


def _known(program: Program, name: str) -> list[Size]:
    """The sizes that somebody reads as numbers: not what only tells a shape."""
    found = program.numbers(name)
    return [] if found is None else [Size.of(one) for one in found.reshape(-1)]
