"""A model of one frame, with its states as inputs and outputs, becomes one of whole sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from onernn.fuse_passes.mapping import Mapper
from onernn.fuse_passes.pipeline import fuse
from onernn.fuse_passes.rewriting import fresh
from onernn.ir.arrays import Array
from onernn.ir.errors import MISFITS, OnernnError, Refusal, UnsupportedError, did_you_mean
from onernn.ir.graph import Graph, Node
from onernn.ir.operator import OPERATORS
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent

_OPEN = 3  # stands for a size that is not declared
_MOST = 1 << 24  # numbers of a state that float32 keeps apart
_FAR = 2**62


def bind(
    model: Graph,
    given: Mapping[str, Array] = MappingProxyType({}),
    declared: Mapping[str, Any] = MappingProxyType({}),
) -> Graph:
    """Returns the model with arrays in the place of inputs, and others as they are ``declared``.

    See `Value.declared`.
    """
    _check_names(model, "input", [*given, *declared])
    inputs = tuple(v.declared(declared.get(v.name, v)) for v in model.inputs if v.name not in given)
    return replace(model, inputs=inputs, constants={**model.constants, **given})


def over_time(model: Graph, states: Mapping[str, str]) -> Graph:
    """Returns the model of (T, ...) for every input and output of ``model`` but its states.

    ``states``: the state of the next frame, an output, by the input that takes it. Inputs without
    axes belong to all frames. The states go in before the first frame and come out behind the last
    one. Recurrent layers see all frames at once, and the other operators see frames as a batch: the
    numbers are those of frame after frame, up to rounding.

    Raises `UnsupportedError` naming the operator that reads or makes a state outside of a recurrent
    layer, or that no rule maps, or a name that is no input or output.
    """
    check_states(model, states)
    graph = _apart(fuse(model).model, states)
    layers, buffers = _going_on(graph, states)
    frames = [v for v in graph.inputs if v.name not in states and v.type.rank != 0]
    if not frames or not states:
        raise _refuse(
            graph,
            "expected an input of frames, and a state",
            graph.inputs[0].name if graph.inputs else "",
        )
    mapper = Mapper.of(graph, frames)
    results = [value.name for value in graph.outputs if value.name not in states.values()]
    per_frame = _ancestors(graph, [*results, *(buffer.added for buffer in buffers.values())])
    last = _ancestors(graph, states.values())
    ends = dict[str, str]()
    for node in graph.nodes:
        if id(node) in layers:
            ends |= _over_frames(mapper, node, per_frame)
            continue
        if id(node) in buffers:
            ends |= windows(
                mapper, node, buffers[id(node)], wanted=not per_frame.isdisjoint(node.outputs)
            )
            continue
        if not per_frame.isdisjoint(node.outputs):
            mapper.add(node)
        if not last.isdisjoint(node.outputs) and not ends.keys().isdisjoint(node.inputs):
            behind = node.renamed(ends)
            if not mapper.mapped.isdisjoint(behind.inputs):
                raise mapper.refused(node, "a state is made of what only one frame saw")
            outputs = tuple(fresh(graph, f"{name}/last") if name else "" for name in node.outputs)
            mapper.nodes.append(replace(behind, outputs=outputs))
            ends |= zip(node.outputs, outputs, strict=True)
        elif per_frame.isdisjoint(node.outputs) and ends.keys().isdisjoint(node.outputs):
            mapper.nodes.append(node)
    for name in results:
        if name not in mapper.mapped:
            raise _refuse(graph, "it is no result of a frame", name)
    for name in states.values():
        mapper.nodes.append(Node("Identity", (ends[name],), (name,)))
    return mapper.model()


def _apart(graph: Graph, states: Mapping[str, str]) -> Graph:
    """Returns the graph where no node reads a next state: a frame's own value has a name of its
    own.
    """
    read = {name for node in graph.nodes for name in node.inputs}
    read -= {value.name for value in graph.inputs}
    own = {n: fresh(graph, f"{n}/frame") for n in states.values() if n in read}
    nodes = [node.renamed(own) for node in graph.nodes]
    nodes += [Node("Identity", (name,), (after,)) for after, name in own.items()]
    return replace(graph, nodes=tuple(nodes)) if own else graph


def check_states(graph: Graph, states: Mapping[str, str]) -> None:
    """Raises `UnsupportedError` for a name that is no input or output, or of two states."""
    _check_names(graph, "input", states)
    _check_names(graph, "output", states.values())


def _refuse(graph: Graph, why: str, where: str) -> UnsupportedError:
    return UnsupportedError(f"{graph.name} over time:", (Refusal(why, where),))


def _check_names(graph: Graph, kind: str, names: Iterable[str]) -> None:
    known = [value.name for value in (graph.inputs if kind == "input" else graph.outputs)]
    for name, count in Counter(iter(names)).items():
        why = "" if count == 1 else f"one {kind} of two states"
        if name not in known:
            why = f"no such {kind}; there are {', '.join(known)}{did_you_mean(name, known)}"
        if why:
            raise UnsupportedError(f"{graph.name}:", (Refusal(why, name),))


def _ancestors(graph: Graph, goals: Iterable[str]) -> set[str]:
    """Returns the values that any of the goals is made of, these included."""
    result = set(goals)
    for node in reversed(graph.nodes):
        if not result.isdisjoint(filter(None, node.outputs)):
            result.update(filter(None, node.inputs))
    return result


def _going_on(graph: Graph, states: Mapping[str, str]) -> tuple[set[int], dict[int, Buffer]]:
    """Returns the layers and the buffers of steps that go on from frame to frame, by identity.

    Follows the numbers of the states' elements through operators that only move elements. A layer
    is taken to hand on its initial states as they are, a buffer the steps that it had. Then each
    next state has to be the state itself, element by element: so the layer reads what it has made
    of that element.
    """
    values: dict[str, Array] = dict(graph.constants)
    begin = 1
    for value in graph.inputs:
        sizes = [size if isinstance(size, int) else _OPEN for size in value.shape or ()]
        count = int(np.prod(sizes, dtype=object))
        if value.name not in states:
            if count < _MOST:
                values[value.name] = np.zeros(sizes, np.int64)
            continue
        if value.shape is None or begin + count > _MOST:
            raise _refuse(graph, "expected a state of known axes, of 2^24 numbers", value.name)
        values[value.name] = np.arange(begin, begin + count).reshape(sizes)
        begin += count
    before, layers, fixed = set(states), set[int](), set(graph.constants)
    buffers = dict[int, Buffer]()
    for node in graph.nodes:
        reads = sorted(before.intersection(node.inputs))
        if node.op == "Rnn" and reads:
            values |= _handed_on(graph, node, before, values)
            layers.add(id(node))
            continue
        if node.op == "Concat" and reads == [node.inputs[0]] and node.inputs[-1] not in fixed:
            if buffer := buffer_of(graph, node, values):
                buffers[id(node)] = buffer
                values |= {name: values[part] for name, part in buffer.kept.items()}
                continue
        operator = OPERATORS.get(node.op)
        moves = operator is not None and (operator.keeps or operator.kind == "sizes")
        if operator is not None and operator.kind == "elementwise":  # others choose: not all pass
            moves = node.op in ("Cast", "CastLike")
        constants = [values[name] for name in node.inputs if name in fixed and name in values]
        zeros = any(not np.any(array) for array in constants)
        if node.op == "Add":
            moves = zeros
        elif node.op == "Mul" and not reads:  # a file of silero's adds 0 times the rate
            moves = zeros and (graph.types[node.outputs[0]].dtype or "").startswith("int")
        if fixed.issuperset(node.inputs) or (node.op == "Mul" and moves):
            fixed.update(node.outputs)
        if reads and not moves:
            raise _refuse(graph, f"state {reads[0]!r} is read{_open(graph, node)}", node.label)
        if reads and node.op != "Shape":
            before.update(filter(None, node.outputs))
        if operator and moves and all(name in values for name in node.inputs if name):
            try:
                out = operator.run(node, *(values[n] if n else None for n in node.inputs))
            except (OnernnError, *MISFITS):
                continue
            values |= zip(node.outputs, out if isinstance(out, tuple) else (out,), strict=False)
    moving = {(buffer.source, buffer.added) for buffer in buffers.values() if buffer.kept}
    for node in graph.nodes:
        if (buffer := buffers.get(id(node))) and (buffer.source, buffer.added) not in moving:
            raise _refuse(
                graph, f"state {buffer.source!r} is read, and does not move on", node.label
            )
    for name, after in states.items():
        numbers = values.get(after)
        if after in before or numbers is None or not np.array_equal(numbers, values[name]):
            raise _refuse(graph, f"it is not what a layer makes of {name!r}", after)
    return layers, buffers


def _open(graph: Graph, node: Node) -> str:
    """Returns why a branch stays open, and the options that decide it."""
    if node.op != "If":
        return ""
    result, says = _ancestors(graph, node.inputs[:1]), list[str]()
    for value in graph.inputs:
        if value.name in result and value.type.rank == 0:
            numbers = " or ".join(map(str, _list_compared(graph, result)))
            says.append(f"--given {value.name}=NUMBER" + f", such as {numbers}" * bool(numbers))
        elif value.name in result:
            sizes = [size if isinstance(size, int) else "NUMBER" for size in value.shape or ()]
            shape = ", ".join(map(str, ["N", *sizes[1:]] if sizes[:1] == ["NUMBER"] else sizes))
            says.append(f"--input '{value.name}={value.dtype}({shape or '...'})', of one frame")
    return f" in a branch that stays open; say {'; and '.join(says)}" if says else ""


def _list_compared(graph: Graph, deps: set[str]) -> list[int]:
    """Returns the integers that values among these are compared with."""
    nodes = [
        n for n in graph.nodes if n.outputs[0] in deps and graph.types[n.outputs[0]].dtype == "bool"
    ]
    result = [
        graph.constants[name] for node in nodes for name in node.inputs if name in graph.constants
    ]
    return sorted({int(n.reshape(())) for n in result if n.size == 1 and n.dtype.kind in "iu"})


def _handed_on(
    graph: Graph, node: Node, before: set[str], values: dict[str, Array]
) -> dict[str, Array]:
    """Returns the outputs of a layer, numbered as its initial states."""
    rnn = Recurrent.of(node)
    if {rnn.x, rnn.attention} & before:
        raise _refuse(graph, "a state is read", node.label)
    if rnn.spec.direction != "left2right" or graph.types[rnn.x].lod != ():
        raise _refuse(graph, "a layer that goes on is not left to right, over steps", node.label)
    for name in rnn.states:
        if name not in values or not values[name].all():
            raise _refuse(graph, f"{name!r} is no state of the frame before", node.label)
    result = {after: values[name] for name, after in zip(rnn.states, rnn.finals, strict=True)}
    steps = graph.types[rnn.x].counts[:1]
    if steps == (1,) and rnn.spec.layers == 1:
        result |= {rnn.y: values[rnn.h][0]}
        if rnn.cells:
            result |= {rnn.cells: values[rnn.c][0]}
    result.pop("", None)
    return result


def _over_frames(mapper: Mapper, node: Node, names: set[str]) -> dict[str, str]:
    """Adds the layer over the steps of all frames; returns its last values by a frame's names.

    ``names``: the values that each frame needs.
    """
    rnn = Recurrent.of(node)
    count = len(rnn.finals)
    x = mapper.rows(node, rnn.x)
    steps = mapper.sizes(x, 1, 2)
    mapper.stem = rnn.y or rnn.h
    y, *ends, cells = map(mapper.name, ("y", *"hc"[:count], "cells"))
    asks = [name in names for name in rnn.finals]
    if rnn.spec.layers > 1 and any(asks):
        raise mapper.refused(node, "a frame reads the states of a stack of layers")
    attention = mapper.merged(mapper.rows(node, rnn.attention)) if rnn.attention else ""
    keeps_cells = rnn.cells in names or asks[1:] == [True]
    layer = replace(rnn, x=mapper.merged(x), y=y, attention=attention, cells=cells * keeps_cells)
    mapper.nodes.append(layer.with_states(rnn.states, tuple(ends)).node())

    def by_frame(source: str) -> str:
        """Returns (F * T, N, O) as (F, T, N, O)."""
        return mapper.reshaped(source, [mapper.count, steps, mapper.sizes(source, 1, None)])

    for name, source in ((rnn.y, y), (rnn.cells, cells)):
        if name in names:
            mapper.nodes.append(Node("Identity", (by_frame(source),), (name,)))
            mapper.mapped.add(name)
    for name, source in zip(rnn.finals, (y, cells)[:count], strict=True):
        if name in names:
            step = mapper.emit("Gather", (by_frame(source), mapper.constant(-1)), axis=1)
            mapper.nodes.append(Node("Unsqueeze", (step, mapper.constant([1, 2])), (name,)))
            mapper.mapped.add(name)
    result = {name: end for name, end in zip(rnn.finals, ends, strict=True) if name}
    for name, end in zip((rnn.y, rnn.cells), ends, strict=False):
        if name:
            result[name] = mapper.emit("Squeeze", (end, mapper.constant([0])))
    return result


# States that are the last steps of the frames before: windows of one long value, over time.


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
    """Returns the buffer of a Concat of a state and new steps, if it is one.

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
                arguments = (values[name] if name else None for name in user.inputs[1:])
                result = OPERATORS["Slice"].run(user, places, *arguments)
            except (OnernnError, *MISFITS):
                continue
            if np.array_equal(result, places.take(range(count, old + count), axis)):
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
