"""States that are the last steps of the frames before: windows of one long value, over time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onernn.fuse_passes.mapping import Mapper
from onernn.ir.arrays import Array
from onernn.ir.errors import MISFITS, OnernnError
from onernn.ir.graph import Graph, Node
from onernn.ir.operator import OPERATORS
from onernn.ir.records import dataclass

_FAR = 2**62


@dataclass(frozen=True)
class Buffer:
    """A Concat of steps of the frames before, from step ``begin`` of ``source`` on, and ``added``,
    ``new`` steps of this frame: ``size`` of them.

    ``kept``: values that the next frame takes in the place of others, by their names: these others.
    """

    axis: int
    source: str
    added: str
    begin: int
    size: int
    new: int
    kept: Mapping[str, str]


def buffer_of(graph: Graph, node: Node, values: Mapping[str, Array]) -> Buffer | None:
    """What a Concat of a state and something else is, where that is steps behind others.

    ``values``: numbers of the elements of states, zeros for what is none.
    """
    before, new, *others = node.inputs
    steps, rank = values.get(before), graph.types[new].rank
    if others or steps is None or rank != steps.ndim or np.any(values.get(new, 0)):
        return None
    axis = node.attrs.axis % rank
    count, old = graph.types[new].counts[axis], steps.shape[axis]
    if not count:
        return None
    source, begin, kept = before, 0, dict[str, str]()
    maker = graph.producer(before, "Slice")
    if maker and maker.inputs[0] in values:
        whole = values[maker.inputs[0]]  # without its first steps: the Concat is the next state
        if whole.ndim == rank and whole.shape[axis] == old + count:
            if np.array_equal(whole.take(range(count, old + count), axis), steps):
                source, begin = maker.inputs[0], count
                kept[node.outputs[0]] = source
    shape = [*steps.shape[:axis], old + count, *steps.shape[axis + 1 :]]
    places = np.arange(int(np.prod(shape))).reshape(shape)
    for user in graph.users(node.outputs[0]):
        if user.op == "Slice" and all(name in values for name in user.inputs[1:] if name):
            try:
                given = (values[name] if name else None for name in user.inputs[1:])
                left = OPERATORS["Slice"].run(user, places, *given)
            except (OnernnError, *MISFITS):
                continue
            if np.array_equal(left, places.take(range(count, old + count), axis)):
                kept[user.outputs[0]] = before
    return Buffer(axis, source, new, begin, old + count, count, kept)


def windows(mapper: Mapper, node: Node, buffer: Buffer, *, wanted: bool) -> dict[str, str]:
    """Adds the windows of all frames, if ``wanted``; what is kept behind the last one, by a frame's
    names."""
    axis, rank = buffer.axis, mapper.rank(node, buffer.added)
    mapper.stem = stem = node.outputs[0]
    perm = (*range(1, 1 + axis), 0, *range(1 + axis, 1 + rank))
    rows = mapper.emit("Transpose", (mapper.rows(node, buffer.added),), perm=perm)
    whole = mapper.emit("Concat", (buffer.source, mapper.merged(rows, axis)), axis=axis)
    if wanted:
        count = mapper.emit("Squeeze", (mapper.count,))
        frames = mapper.emit("Range", (mapper.constant(0), count, mapper.constant(1)))
        first = mapper.emit("Mul", (frames, mapper.constant(buffer.new)))
        column = mapper.emit("Unsqueeze", (first, mapper.constant([1])))
        row = mapper.constant(range(buffer.begin, buffer.begin + buffer.size))
        places = mapper.emit("Add", (column, row))
        result = mapper.emit("Gather", (whole, places), axis=axis)
        back = (axis, *range(axis), *range(1 + axis, 1 + rank))
        mapper.end(node, "Transpose", (result,), perm=back)
    ends = {}
    for name in buffer.kept:
        steps = buffer.size if name == stem else buffer.size - buffer.new
        cut = map(mapper.constant, ([-steps], [_FAR], [axis]))
        ends[name] = mapper.emit("Slice", (whole, *cut))
    return ends
