"""Finds integers that a run computes and that become sizes, such as the number of steps of the
longest sequence.

If such a size has a bound, the plan reserves memory for the bound. The bound follows from the
operators that compute the integer: see `bound_of`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np

from onernn.engine.program import Program, UnknownError, sizes_in
from onernn.ir.errors import MISFITS, OnernnError
from onernn.ir.graph import Node
from onernn.ir.operator import at_axis
from onernn.ir.records import NamedTuple
from onernn.ir.types import Size, volume
from onernn.ops import OPERATORS

_DEEP = 40
"""Limit for the length of a chain of nodes that is examined."""
_MOST = 2**31
_ADDS = ("Pad", "ScatterElements", "ScatterND")
"""Operators that keep elements of the first input and add others."""


class Bound(NamedTuple):
    """The bounds of a value's elements. ``natural``: whether all are known to be at least 0.
    ``most``: a size that no element exceeds, None if none is known.
    """

    natural: bool
    most: Size | None


_ANY = Bound(False, None)


def add_found_sizes(program: Program) -> bool:
    """Adds a FoundSize node after each integer that determines an unknown shape; the node's output
    is a size of the plan.

    Returns whether there was any such integer.
    """
    graph = program.graph
    written = {name for each in program.codes for name in each.node.outputs}
    found: dict[str, None] = {}
    traced: dict[str, list[str] | None] = {}
    for node in graph.nodes:
        unwritten = not written.issuperset(filter(None, node.outputs))
        if unwritten and node.op != "FoundSize" and not program.has_no_step(node):
            for name in filter(None, node.inputs):
                if _describes(program, name):
                    found |= dict.fromkeys(_sources(program, name, traced) or ())
    if not found:
        return False
    names, alike = dict[str, str](), dict[str, str]()
    for name in found:  # equal nodes compute the same size
        maker = graph.producer(name)
        key = repr(maker and (maker.op, maker.inputs, maker.attributes)) if maker else name
        names[name] = alike.setdefault(key, program.new_value(name))
    nodes = list[Node]()
    for node in graph.nodes:
        inputs = tuple(names.get(name, name) for name in node.inputs)
        changed = node if inputs == node.inputs else replace(node, inputs=inputs)
        if changed is not node and node in program.sources:
            program.sources = {**program.sources, changed: program.sources[node]}
        nodes.append(changed)
        made = [name for name in node.outputs if name in names and names[name] not in written]
        nodes += [Node("FoundSize", (name,), (names[name],)) for name in made]
        written.update(names[name] for name in made)
    program.graph = replace(graph, nodes=tuple(nodes))
    return True


def _describes(program: Program, name: str) -> bool:
    known = program.types[name]
    few = known.shape is not None and len(known.shape) < 2 and None not in known.counts
    return few and known.dtype in ("int32", "int64") and not program.is_known(name)


def _sources(
    program: Program, name: str, traced: dict[str, list[str] | None], depth: int = _DEEP
) -> list[str] | None:
    if program.is_known(name):
        return []
    maker = program.graph.producer(name)
    if maker is None or not depth or not _describes(program, name):
        return None
    if name in traced:
        return traced[name]
    traced[name] = None
    parts: list[list[str] | None] = [None]
    if OPERATORS[maker.op].sized:
        parts = [_sources(program, each, traced, depth - 1) for each in filter(None, maker.inputs)]
    if None not in parts:
        traced[name] = [source for part in parts for source in part or ()]
    elif program.types[name].counts in ((), (1,)) and bound_of(program, name).most is not None:
        traced[name] = [name]
    return traced[name]


def bound_of(program: Program, name: str) -> Bound:
    """Returns bounds of all elements of a numeric value, for all inputs that a run may get."""
    return _bound_of_value(program, name, {}, _DEEP)


def _bound_of_value(program: Program, name: str, known: dict[str, Bound], depth: int) -> Bound:
    if name in known:
        return known[name]
    maker, constant = program.graph.producer(name), program.graph.constants.get(name)
    result = _ANY
    if constant is not None:
        result = _bound_of_numbers(constant)
    elif program.is_known(name):
        sizes = sizes_in(program, name)
        natural = all(size.signs is not None and size.signs[0] >= 0 for size in sizes)
        result = Bound(natural, _add_all(size.most() for size in dict.fromkeys(sizes)))
    elif program.types[name].dtype == "bool":
        result = Bound(True, Size.of(1))
    elif maker is None:
        result = Bound(False, _bound_of_input(program, name))
    elif depth:
        with suppress(OnernnError, UnknownError, *MISFITS):
            result = _bound_of_result(program, maker, known, depth - 1)
    known[name] = result
    return result


def _bound_of_result(program: Program, node: Node, known: dict[str, Bound], depth: int) -> Bound:
    record, op = OPERATORS[node.op], node.op

    def bounds(*places: int) -> list[Bound]:
        chosen = places or range(len(node.inputs))
        names = [node.inputs[at] for at in chosen if node.input(at)]
        return [_bound_of_value(program, name, known, depth) for name in names]

    if op == "Min":
        every = bounds()
        first = next((each.most for each in every if each.most is not None), None)
        return Bound(all(each.natural for each in every), first)
    if op in ("Max", "Where", "Concat"):
        every = bounds(1, 2) if op == "Where" else bounds()
        signs = [each.natural for each in every]
        most = _add_all(dict.fromkeys(each.most for each in every))
        return Bound(any(signs) if op == "Max" else all(signs), most)
    if op in ("Add", "Sum"):
        every = bounds()
        return Bound(all(each.natural for each in every), _add_all(each.most for each in every))
    if op == "Sub":
        one, other = bounds()
        return Bound(False, one.most if other.natural else None)
    if op == "Mul":
        one, other = bounds()
        natural = one.natural and other.natural
        if not natural or one.most is None or other.most is None:
            return Bound(natural, None)
        return Bound(natural, one.most * other.most)
    if op in ("ReduceMax", "ReduceMin"):
        return bounds(0)[0]
    if op in ("ReduceSum", "CumSum"):
        (one,) = bounds(0)
        most = None if one.most is None else one.most * _count_summed(program, node)
        return Bound(one.natural, most)
    if op == "SequenceLengths":
        return Bound(True, longest(program, node.inputs[0]))
    return bounds(0)[0] if record.keeps and op not in _ADDS else _ANY


def _bound_of_input(program: Program, name: str) -> Size | None:
    """Returns a size that the integers of an input usually do not exceed. Such integers are usually
    lengths of sequences. So the result is the sum of the open sizes of inputs, without the batch
    size; the sum of the fixed sizes if none is open. Inputs with a different batch size do not
    count, unless no input has this one. If an integer does exceed the size, the call runs in
    Python.
    """
    own = program.settle(name).shape
    # a single integer does not hold the lengths of a batch
    if not own or own[0] is None or own[0].number == 1:
        return None
    shapes = [program.settle(each.name).shape or () for each in program.graph.inputs]
    shapes = [shape for shape in shapes if len(shape) > 1]
    shapes = [shape for shape in shapes if own[0] in shape] or shapes
    axes = dict.fromkeys(size for shape in shapes for size in shape if size != own[0])
    open_ones = [size for size in axes if size is not None and size.number is None]
    return _add_all(open_ones or axes) if axes else None


def _bound_of_numbers(numbers: np.ndarray) -> Bound:
    if numbers.dtype.kind not in "biuf" or not numbers.size:
        return Bound(not numbers.size, Size(()))
    low, high = numbers.min(), numbers.max()
    is_usual = -_MOST < low and high < _MOST  # NaN makes this false
    return Bound(bool(low >= 0), Size.of(int(np.ceil(max(high, 0)))) if is_usual else None)


def _add_all(sizes: Iterable[Size | None]) -> Size | None:
    known = list(sizes)
    return reduce(add, filter(None, known), Size(())) if None not in known else None


def _count_summed(program: Program, node: Node) -> Size:
    shape = program.shape(node.inputs[0])
    axes = program.graph.constants.get(node.input(1))
    if axes is None or not axes.size:
        return volume(shape)
    return volume(tuple(shape[at_axis(int(axis), len(shape))] for axis in axes.reshape(-1)))


def longest(program: Program, name: str) -> Size:
    """Returns a size that is at least the length of each sequence of a ragged value."""
    level = program.levels(name)[-1]
    maker = program.graph.producer(level.name, "SequenceUnpad")
    if maker is None:
        return level.words.most()
    return program.shape(maker.inputs[0])[0 if maker.attrs.time_major else 1].most()
