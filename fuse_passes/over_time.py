"""Turns a model of one frame, with states as inputs and outputs, into a model of whole
sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from os.path import commonprefix
from shlex import quote
from typing import Any

import numpy as np

from onernn.fuse_passes.mapping import Mapper
from onernn.fuse_passes.pipeline import PASSES, fuse
from onernn.fuse_passes.rewriting import fresh, hand_on, order, orders, rewrite
from onernn.fuse_passes.unrolled_cells import fuse_unrolled_cells, unrolled_cells
from onernn.ir.arrays import Array
from onernn.ir.errors import MISFITS, OnernnError, Refusal, UnsupportedError, did_you_mean
from onernn.ir.graph import Graph, Node, Value, declare_inputs
from onernn.ir.operator import OPERATORS
from onernn.ir.records import NOTHING, dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.types import as_tuple
from onernn.ops.control import scan_attributes

_OPEN = 3  # the size to assume for an axis whose size is not declared
_MOST = 1 << 24  # maximum number of elements of all states: float32 holds their indices exactly
_FAR = 2**62
_FEW = 1 << 16  # maximum size of a constant that is computed before a run
_FOLDED = ("elementwise", "moves", "view")
"""Kinds of operators that exporters write between a reset flag and a state."""


def bind(
    model: Graph,
    given: Mapping[str, Array] = NOTHING,
    declared: Mapping[str, Any] = NOTHING,
) -> Graph:
    """Returns the model in which the arrays ``given`` replace inputs, and other inputs have the
    types ``declared``.

    See `onernn.ir.graph.declare_inputs`.
    """
    _check_names(model, "input", [*given, *declared])
    inputs = tuple(declare_inputs(model.inputs, declared, given))
    return replace(model, inputs=inputs, constants={**model.constants, **given})


def find_sizes(fits: Callable[[int], bool]) -> tuple[int, int] | None:
    """Returns the smallest and the largest size of a range of sizes that fit a model.

    Returns None if no size fits. Common sizes of frames are tried first.
    """
    tried = sorted({base << k for base in (1, 3, 5) for k in range(13)} | {129, 257, 513, 161, 201})
    at = next((at for at, size in enumerate(tried) if fits(size)), None)
    if at is None:
        return None
    below, least = tried[at - 1] if at else 0, tried[at]
    most, above = least, next((size for size in tried[at + 1 :] if not fits(size)), 2 * tried[-1])
    while least - below > 1:
        middle = (below + least) // 2
        below, least = (below, middle) if fits(middle) else (middle, least)
    while above - most > 1:
        middle = (most + above) // 2
        most, above = (middle, above) if fits(middle) else (most, middle)
    return least, most


@rewrite("known_choices")
def take_known_choices(graph: Graph, node: Node) -> Graph | None:
    """Turns ``x * (1 - reset)`` and ``Where(reset, 0, x)`` into x if the reset is the constant
    0.
    """
    result = node.outputs[0]
    operator = OPERATORS.get(node.op)
    if operator and operator.kind in _FOLDED and graph.constants.keys() >= {*node.inputs}:
        few = prod(size or 2 * _FEW for size in graph.types[result].counts) <= _FEW
        known = _compute(node, graph.constants) if few and not graph.is_output(result) else {}
        return graph.splice((node,), (), known) if known else None
    condition = graph.constants.get(node.input(0))
    if node.op == "Where" and condition is not None and len(np.unique(condition)) == 1:
        kept = [node.inputs[1 if condition.all() else 2]]
    else:
        unit = {"Add": 0, "Mul": 1}.get(node.op)
        others = ((x, graph.constants.get(other)) for x, other in orders(node) if unit is not None)
        kept = [x for x, array in others if array is not None and (array == unit).all()]
    alike = (x for x in kept if graph.types[x] == graph.types[result])
    kept = [x for x in alike if None not in (graph.types[x].shape or (None,))]
    return hand_on(graph, node, kept[0]) if kept else None


def fuse_step(model: Graph, states: Mapping[str, str]) -> Graph:
    """Returns the fused model of one frame.

    A plain RNN adds projections of x and h, and its formula does not show which one is h. The
    passes know it from ``states``, so this cell also becomes a layer. ``states``: see
    `unrolled_cells`.
    """
    known = {fuse_unrolled_cells: unrolled_cells(states)}
    return fuse(model, (take_known_choices, *(known.get(each, each) for each in PASSES))).model


def over_time(model: Graph, states: Mapping[str, str]) -> Graph:
    """Returns the model of whole sequences (T, ...) for a ``model`` of one frame.

    ``states``: for each input that is a state, the output that is the next frame's state. All other
    inputs and outputs get an axis T, except inputs without axes, which are the same for all frames.
    State inputs are the states before the first frame, state outputs those after the last frame. A
    recurrent layer processes all frames in one call, and other operators process the frames as a
    batch. The results equal the results of single frames in turn, up to rounding. The model may
    have no outputs except states.

    If an operator outside of a recurrent layer reads or makes a state (a reset, for example), a
    Scan runs the operators from each state to the next, frame after frame. Then a note of the
    result says why the scan is necessary.

    Raises `UnsupportedError` that names an operator without a rule, a branch with a condition
    unknown before a run, or a name that is not an input or output.
    """
    check_states(model, states)
    graph = _apart(fuse_step(model, states), states)
    frames = [v for v in graph.inputs if v.name not in states and v.type.rank != 0]
    if not frames or not states:
        raise _refuse(
            graph,
            "expected an input of frames, and a state",
            graph.inputs[0].name if graph.inputs else "",
        )
    reasons: tuple[Refusal, ...] = ()
    try:
        mapper = _by_layers(graph, states, Mapper.of(graph, frames))
    except UnsupportedError as error:
        mapper, reasons = _by_scans(graph, states, frames), error.refusals
    for value in graph.outputs:
        if value.name not in mapper.mapped.union(states.values()):
            raise _refuse(graph, "expected a result that depends on the frame", value.name)
    whole = mapper.model()
    scanned = [name for name, after in states.items() if whole.producer(after, "Scan")]
    notes = [f"a scan runs {', '.join(scanned)} frame after frame: {reasons[0]}"] if scanned else []
    return replace(whole, notes=(*whole.notes, *notes))


def _by_layers(graph: Graph, states: Mapping[str, str], mapper: Mapper) -> Mapper:
    """Adds the nodes for all frames.

    Raises `UnsupportedError` if an operator other than a layer or a buffer reads or makes a state.
    """
    layers, buffers = _going_on(graph, states)
    results = [value.name for value in graph.outputs if value.name not in states.values()]
    # Outputs, and inputs of buffers and layers, are computed for every frame.
    read = [buffer.added for buffer in buffers.values()]
    for rnn in (Recurrent.of(node) for node in graph.nodes if id(node) in layers):
        read += filter(None, (rnn.x, rnn.attention))
    per_frame = _ancestors(graph, [*results, *read])
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
            behind = node.rename(ends)
            if not mapper.mapped.isdisjoint(behind.inputs):
                raise mapper.make_error(node, "a state depends on the input of one frame only")
            outputs = tuple(fresh(graph, f"{name}/last") if name else "" for name in node.outputs)
            mapper.nodes.append(replace(behind, outputs=outputs))
            ends |= zip(node.outputs, outputs, strict=True)
        elif per_frame.isdisjoint(node.outputs) and ends.keys().isdisjoint(node.outputs):
            mapper.nodes.append(node)
    for name in states.values():
        mapper.emit("Identity", ends[name], output=name)
    return mapper


def _by_scans(graph: Graph, states: Mapping[str, str], frames: Sequence[Value]) -> Mapper:
    """Returns the graph of all frames, in which a Scan runs the operators from a state to the next
    one.
    """
    begins = {name: fresh(graph, f"{name}/before") for name in states}
    ends = {name: fresh(graph, f"{after}/after") for name, after in states.items()}
    renamed = begins | {states[name]: end for name, end in ends.items()}
    nodes = [Node("Identity", (name,), (own,)) for name, own in begins.items()]
    nodes += (node.rename(renamed) for node in graph.nodes)
    last = (Node("Identity", (end,), (states[name],)) for name, end in ends.items())
    mapper = Mapper.of(replace(graph, nodes=(*nodes, *last)), frames)
    scans = list[tuple[list[str], list[Node]]]()
    for group in _group(graph, states):
        needed = _ancestors(mapper.graph, [ends[name] for name in group])
        needed.update(begins[name] for name in group)
        reached, inside = set(group), list[Node]()
        for node in nodes:
            if not (needed.isdisjoint(node.outputs) or reached.isdisjoint(node.inputs)):
                if asked := _ask(mapper.graph, node):
                    raise OpenBranchError(graph, group[0], node, asked)
                inside.append(node)
                reached.update(filter(None, node.outputs))
        mapper.mapped |= reached.difference(group)
        scans.append((group, inside))
    scanned = {id(node) for _, inside in scans for node in inside}
    for node in nodes:
        if id(node) not in scanned:
            mapper.add(node)
    for group, inside in scans:
        _add_scan(mapper, {name: states[name] for name in group}, ends, inside)
    mapper.nodes = [*order(mapper.nodes)]
    return mapper


def _group(graph: Graph, states: Mapping[str, str]) -> list[list[str]]:
    needs = {name: {name, *_ancestors(graph, [end])} & {*states} for name, end in states.items()}
    for via in states:
        for name in states:
            if via in needs[name]:
                needs[name] |= needs[via]
    groups: dict[frozenset[str], list[str]] = {}
    for name in states:
        groups.setdefault(frozenset(needs[name]), []).append(name)
    return [*groups.values()]


def _add_scan(
    mapper: Mapper, states: Mapping[str, str], ends: Mapping[str, str], nodes: Sequence[Node]
) -> None:
    """Adds a Scan of ``nodes`` over all frames.

    In each frame, the nodes compute the next states, ``ends``, from ``states``.
    """
    graph, inside = mapper.graph, set(map(id, nodes))
    made = [name for node in nodes for name in node.outputs if name]
    read = [name for node in nodes for name in node.inputs if name]
    read = [name for name in (*read, *(ends[n] for n in states)) if name not in made]
    outer = [name for name in dict.fromkeys(read) if name not in states]
    frames = [value.name for value in graph.inputs if value.name in mapper.mapped]
    # A scan needs at least one input with an axis of frames.
    scanned = [name for name in outer if name in mapper.mapped] or frames[:1]
    rest = [name for name in outer if name not in mapper.mapped and name not in graph.constants]
    wanted = {value.name for value in graph.outputs}
    for node in graph.nodes:
        if id(node) not in inside and node.outputs[0] not in states.values():
            wanted.update(node.inputs)
    seen = [name for name in made if name in wanted]
    results = [(n, f"{n}/{at}") for at, n in enumerate([*(ends[n] for n in states), *seen])]

    def value(name: str) -> Value:
        result = graph.types[name]
        return Value(name, result.dtype, None if result.shape is None else result.counts)

    for name, after in states.items():
        old, new = graph.types[name], graph.types[ends[name]]
        pairs = zip(old.counts, new.counts, strict=False)
        alike = all(None in pair or pair[0] == pair[1] for pair in pairs)
        if not alike or (old.dtype, old.rank) != (new.dtype, new.rank):
            raise _refuse(graph, f"expected the type of {name!r}, {old}, got {new}", after)
    body = Graph(
        f"{graph.name}, one frame",
        tuple(map(value, (*states, *scanned, *rest))),
        tuple(Value(name) for _, name in results),
        (*nodes, *(Node("Identity", (n,), (result,)) for n, result in results)),
        {name: graph.constants[name] for name in outer if name in graph.constants},
    )
    attributes = scan_attributes(body, len(states), len(scanned))
    outputs = (*states.values(), *seen)
    mapper.nodes.append(Node("Scan", (*states, *scanned, *rest), outputs, attributes))


def _apart(graph: Graph, states: Mapping[str, str]) -> Graph:
    """Returns the graph in which no node reads an output that is a next state.

    Nodes read an equal value with a new name instead.
    """
    read = {name for node in graph.nodes for name in node.inputs}
    read -= {value.name for value in graph.inputs}
    own = {n: fresh(graph, f"{n}/frame") for n in states.values() if n in read}
    nodes = [node.rename(own) for node in graph.nodes]
    nodes += [Node("Identity", (name,), (after,)) for after, name in own.items()]
    return replace(graph, nodes=tuple(nodes)) if own else graph


def check_states(graph: Graph, states: Mapping[str, str]) -> None:
    """Raises `UnsupportedError` for a name that is not an input or output, or that is used
    twice.
    """
    _check_names(graph, "input", states)
    _check_names(graph, "output", states.values())


def find_states(graph: Graph) -> dict[str, str]:
    """Returns the inputs that may be states, each with the output that may be its next state.

    The output has the dtype and the known sizes of the input. At least half of the input's name is
    the beginning of the output's name.
    """

    def may_follow(after: Value, value: Value) -> bool:
        known = graph.types[after.name]
        sizes, shape = known.counts or after.shape or (), value.shape or ()
        is_alike = (known.dtype or after.dtype) == value.dtype and len(sizes) == len(shape) > 0
        return is_alike and all(a == b or None in (a, b) for a, b in zip(sizes, shape, strict=True))

    result = dict[str, str]()
    for value in graph.inputs:
        free = (each for each in graph.outputs if each.name not in result.values())
        names = [after.name for after in free if may_follow(after, value)]
        alike = {name: len(commonprefix((name, value.name))) for name in names}
        best = max(alike, key=lambda name: alike[name], default="")
        if best and 2 * alike[best] >= len(value.name):
            result[value.name] = best
    return result


def _refuse(graph: Graph, why: str, where: str) -> UnsupportedError:
    return UnsupportedError(f"{graph.name} over time:", (Refusal(why, where),))


def _check_names(graph: Graph, kind: str, names: Iterable[str]) -> None:
    known = [value.name for value in (graph.inputs if kind == "input" else graph.outputs)]
    for name, count in Counter(iter(names)).items():
        why = "" if count == 1 else f"expected one state per {kind}, got {count}"
        if name not in known:
            why = f"no such {kind}; there are {', '.join(known)}{did_you_mean(name, known)}"
        if why:
            raise UnsupportedError(f"{graph.name}:", (Refusal(why, name),))


def _ancestors(graph: Graph, goals: Iterable[str], *without: str) -> set[str]:
    """Returns all values on which the goals depend, including the goals.

    ``without``: operators whose inputs are not followed.
    """
    result = set(goals)
    for node in reversed(graph.nodes):
        if node.op not in without and not result.isdisjoint(filter(None, node.outputs)):
            result.update(filter(None, node.inputs))
    return result


def _going_on(graph: Graph, states: Mapping[str, str]) -> tuple[set[int], dict[int, Buffer]]:
    """Returns the layers and the buffers whose states continue from frame to frame, by the ids of
    their nodes.

    Assigns an index to each element of the states, and follows the indices through operators that
    only move elements. A layer's final states get the indices of its initial states. A value that a
    buffer passes to the next frame gets the indices of the value that it replaces. If each next
    state has the same indices as its state, each layer reads the elements that it produced in the
    previous frame; otherwise `UnsupportedError` is raised.
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
            why = "expected states of known axes, with at most 2^24 elements"
            raise _refuse(graph, why, value.name)
        values[value.name] = np.arange(begin, begin + count).reshape(sizes)
        begin += count
    before, layers, fixed = set(states), set[int](), set(graph.constants)
    buffers = dict[int, Buffer]()
    for node in graph.nodes:
        reads = sorted(before.intersection(node.inputs))
        if node.op == "Rnn" and reads:
            values |= _number_outputs(graph, node, before, values)
            layers.add(id(node))
            continue
        if node.op == "Concat" and reads == [node.inputs[0]] and node.inputs[-1] not in fixed:
            if buffer := buffer_of(graph, node, values):
                buffers[id(node)] = buffer
                values |= {name: values[part] for name, part in buffer.kept.items()}
                continue
        operator = OPERATORS.get(node.op)
        moves = operator is not None and (operator.keeps or operator.kind == "sizes")
        # Elementwise operators change the elements, except casts.
        if operator is not None and operator.kind == "elementwise":
            moves = node.op in ("Cast", "CastLike")
        constants = [values[name] for name in node.inputs if name in fixed and name in values]
        zeros = any(not np.any(array) for array in constants)
        if node.op == "Add":
            moves = zeros
        elif node.op == "Mul" and not reads:  # Silero's model adds 0 * sampling rate
            moves = zeros and (graph.types[node.outputs[0]].dtype or "").startswith("int")
        if fixed.issuperset(node.inputs) or (node.op == "Mul" and moves):
            fixed.update(node.outputs)
        if reads and not moves:
            why = f"state {reads[0]!r}: expected only recurrent layers and buffers to read it"
            raise _refuse(graph, why, node.label)
        if reads and node.op != "Shape":
            before.update(filter(None, node.outputs))
        if moves:
            values |= _compute(node, values)
    moving = {(buffer.source, buffer.added) for buffer in buffers.values() if buffer.kept}
    for node in graph.nodes:
        if (buffer := buffers.get(id(node))) and (buffer.source, buffer.added) not in moving:
            raise _refuse(
                graph, f"state {buffer.source!r} is read: expected that it is updated", node.label
            )
    for name, after in states.items():
        numbers = values.get(after)
        if after in before or numbers is None or not np.array_equal(numbers, values[name]):
            raise _refuse(graph, f"expected what a layer makes of {name!r}", after)
    return layers, buffers


def _compute(node: Node, values: Mapping[str, Array]) -> dict[str, Array]:
    if not all(name in values for name in node.inputs if name):
        return {}
    try:
        out = OPERATORS[node.op].run(node, *(values[n] if n else None for n in node.inputs))
    except (OnernnError, *MISFITS):
        return {}
    return dict(zip(node.outputs, as_tuple(out), strict=False))


Asked = list[tuple[Value, list[int]]]
"""Inputs on which the condition of a branch depends: see `OpenBranchError`."""


class OpenBranchError(UnsupportedError):
    """Raised for a branch that reads a state, and whose condition is not known before a run.

    ``asked``: the inputs on which the condition depends. Each has a list of the integers with which
    the model compares it; the list is empty for an input with axes.
    """

    def __init__(self, graph: Graph, state: str, node: Node, asked: Asked) -> None:
        names = ", ".join(value.name for value, _ in asked)
        why = f"state {state!r} is read in a branch that stays open; it depends on {names}"
        super().__init__(f"{graph.name} over time:", (Refusal(why, node.label),))
        self.asked = asked


def _ask(graph: Graph, node: Node) -> Asked:
    """Returns ``asked`` of `OpenBranchError`; [] if the node is not a branch, or if the condition
    depends on values of a frame.
    """
    if node.op != "If":
        return []
    elements = _ancestors(graph, node.inputs[:1], "Shape", "Size")
    if any(value.name in elements and value.type.rank for value in graph.inputs):
        return []
    result = _ancestors(graph, node.inputs[:1])
    compared = _list_compared(graph, result)
    asked = (value for value in graph.inputs if value.name in result)
    return [(value, [] if value.type.rank else compared) for value in asked]


def find_missing(
    step: Graph, states: Mapping[str, str], error: OpenBranchError, size: str = "N"
) -> tuple[list[tuple[str, str]], list[Refusal]]:
    """Returns command-line options that decide all branches of a model of one frame, and lines of
    an error that list the options.

    ``error``: the error that `over_time` raised for the model. ``size``: the text in the options
    for a size that may stay dynamic. Both lists are empty if no such options are found.
    """
    given, shapes = dict[str, Array](), dict[str, list[int | None]]()
    options, notes = list[tuple[str, str]](), list[str]()

    def ask(**more: list[int | None]) -> Asked:
        try:
            over_time(bind(step, given, {**shapes, **more}), states)
        except OpenBranchError as error:
            return error.asked
        except (OnernnError, *MISFITS):
            pass
        return []

    def find_shape(value: Value) -> None:
        shape = [size if isinstance(size, int) else None for size in value.shape or ()]
        for axis in reversed([axis for axis, size in enumerate(shape) if size is None]):

            def fits(size: int, axis: int = axis) -> bool:
                sizes = [*shape[:axis], size, *shape[axis + 1 :]]
                return all(each.name != value.name for each, _ in ask(**{value.name: sizes}))

            if sizes := find_sizes(fits):
                least, most = sizes
                shape[axis] = max(range(least, most + 1), key=lambda size: (size & -size, -size))
                shapes[value.name] = shape
                runs = f"{least} to {most} elements on axis {axis}, {shape[axis]} is an example"
                notes.append(f"input {value.name!r}: a frame may have {runs}")
                return

    left, known = error.asked, -1
    while left and known < len(given) + len(shapes):
        known = len(given) + len(shapes)
        for value, compared in left:
            if value.type.rank:
                if value.name not in states:
                    find_shape(value)
            elif value.name not in given:
                number = compared[0] if compared else 0
                given[value.name] = np.array(number, value.dtype)
                options.append(("--given", f"{value.name}={number}"))
                numbers = ", ".join(map(str, compared)) or "no number"
                notes.append(f"input {value.name!r}: the model compares it with {numbers}")
        left = ask()
    if left:
        return [], []
    for value in step.inputs:
        sizes = shapes.get(value.name, value.shape or ())
        if not all(isinstance(size, int) for size in value.shape or ()):
            shown = ", ".join(size if each is None else str(each) for each in sizes)
            options.append(("--input", f"{value.name}={value.dtype}({shown})"))
    whole = " ".join(f"{option} {quote(text)}" for option, text in options)
    return options, [*map(Refusal, (*notes, f"pass {whole}"))] if options else []


def _list_compared(graph: Graph, deps: set[str]) -> list[int]:
    nodes = [
        n for n in graph.nodes if n.outputs[0] in deps and graph.types[n.outputs[0]].dtype == "bool"
    ]
    result = [
        graph.constants[name] for node in nodes for name in node.inputs if name in graph.constants
    ]
    return sorted({int(n.reshape(())) for n in result if n.size == 1 and n.dtype.kind in "iu"})


def _number_outputs(
    graph: Graph, node: Node, before: set[str], values: dict[str, Array]
) -> dict[str, Array]:
    """Returns the indices of a layer's outputs, which are the indices of its initial states; see
    `_going_on`.
    """
    rnn = Recurrent.of(node)
    if {rnn.x, rnn.attention} & before:
        raise _refuse(graph, "its input is a state: expected values of the frame", node.label)
    if rnn.spec.direction != "left2right" or graph.types[rnn.x].lod != ():
        raise _refuse(graph, "expected a layer from left to right, over dense steps", node.label)
    for name in rnn.states:
        if name not in values or not values[name].all():
            raise _refuse(graph, f"{name!r}: expected a state of the previous frame", node.label)
    result = {after: values[name] for name, after in zip(rnn.states, rnn.finals, strict=True)}
    steps = graph.types[rnn.x].counts[:1]
    if steps == (1,) and rnn.spec.layers == 1:
        result |= {rnn.y: values[rnn.h][0]}
        if rnn.cells:
            result |= {rnn.cells: values[rnn.c][0]}
    result.pop("", None)
    return result


def _over_frames(mapper: Mapper, node: Node, names: set[str]) -> dict[str, str]:
    """Adds a layer over the steps of all frames.

    Returns the names of the layer's values after the last frame, by their names in a frame.
    ``names``: the values that are needed for every frame, not only for the last one.
    """
    rnn = Recurrent.of(node)
    count = len(rnn.finals)
    x = mapper.rows(node, rnn.x)
    steps = mapper.sizes(x, 1, 2)
    mapper.stem = rnn.y or rnn.h
    y, *ends, cells = map(mapper.name, ("y", *"hc"[:count], "cells"))
    asks = [name in names for name in rnn.finals]
    if rnn.spec.layers > 1 and any(asks):
        why = "a frame reads the states of a stack of layers: expected single layers"
        raise mapper.make_error(node, why)
    attention = mapper.merge(mapper.rows(node, rnn.attention)) if rnn.attention else ""
    keeps_cells = rnn.cells in names or asks[1:] == [True]
    layer = replace(rnn, x=mapper.merge(x), y=y, attention=attention, cells=cells * keeps_cells)
    mapper.nodes.append(layer.with_states(rnn.states, tuple(ends)).node())

    def by_frame(source: str) -> str:
        return mapper.reshape(source, [mapper.count, steps, mapper.sizes(source, 1, None)])

    for name, source in ((rnn.y, y), (rnn.cells, cells)):
        if name in names:
            mapper.emit("Identity", by_frame(source), output=name)
            mapper.mapped.add(name)
    for name, source in zip(rnn.finals, (y, cells)[:count], strict=True):
        if name in names:
            step = mapper.emit("Gather", by_frame(source), -1, axis=1)
            mapper.emit("Unsqueeze", step, [1, 2], output=name)
            mapper.mapped.add(name)
    result = {name: end for name, end in zip(rnn.finals, ends, strict=True) if name}
    for name, end in zip((rnn.y, rnn.cells), ends, strict=False):
        if name:
            result[name] = mapper.emit("Squeeze", end, [0])
    return result


# Buffers: states that contain the last steps of the previous frames.


@dataclass(frozen=True)
class Buffer:
    """A Concat of steps from earlier frames and the steps of this frame, ``added``, on ``axis``.

    It has ``size`` steps, of which ``new`` are from this frame. The old steps are the steps of
    ``source`` from step ``begin`` on. ``kept``: the values that this frame passes to the next
    frame, each with the name of the value that it replaces there.
    """

    axis: int
    source: str
    added: str
    begin: int
    size: int
    new: int
    kept: Mapping[str, str]


def buffer_of(graph: Graph, node: Node, values: Mapping[str, Array]) -> Buffer | None:
    """Returns the buffer of a Concat of a state and new steps; None if the Concat is not a buffer.

    ``values``: the indices of the elements of the states, see `_going_on`; 0 for other elements.
    """
    before, new, *others = node.inputs
    steps, rank = values.get(before), graph.types[new].rank
    if others or steps is None or rank != steps.ndim or np.any(values.get(new, 0)):
        return None
    axis = node.attrs.axis % rank
    count, old = graph.types[new].counts[axis], steps.shape[axis]
    if not count:
        return None
    source, begin, kept, moved = before, 0, dict[str, str](), range(count, old + count)
    maker = graph.producer(before, "Slice")
    if maker and maker.inputs[0] in values:
        whole = values[maker.inputs[0]]  # the Concat itself is the next state
        if whole.ndim == rank and whole.shape[axis] == old + count:
            if np.array_equal(whole.take(moved, axis), steps):
                source, begin = maker.inputs[0], count
                kept[node.outputs[0]] = source
    shape = [*steps.shape[:axis], old + count, *steps.shape[axis + 1 :]]
    places = np.arange(int(np.prod(shape))).reshape(shape)
    for user in graph.users(node.outputs[0]):
        made = _compute(user, {**values, user.inputs[0]: places}) if user.op == "Slice" else {}
        result = made.get(user.outputs[0])
        if result is not None and np.array_equal(result, places.take(moved, axis)):
            kept[user.outputs[0]] = before
    return Buffer(axis, source, new, begin, old + count, count, kept)


def windows(mapper: Mapper, node: Node, buffer: Buffer, *, wanted: bool) -> dict[str, str]:
    """Adds nodes for the ``kept`` steps of a buffer after the last frame, and if ``wanted``, for
    the steps that the buffer contains in each frame.

    Returns the names of the steps after the last frame, by their names in a frame.
    """
    axis, rank = buffer.axis, mapper.rank(node, buffer.added)
    mapper.stem = stem = node.outputs[0]
    perm = (*range(1, 1 + axis), 0, *range(1 + axis, 1 + rank))
    rows = mapper.emit("Transpose", mapper.rows(node, buffer.added), perm=perm)
    whole = mapper.emit("Concat", buffer.source, mapper.merge(rows, axis), axis=axis)
    if wanted:
        count = mapper.emit("Squeeze", mapper.count)
        frames = mapper.emit("Range", 0, count, 1)
        first = mapper.emit("Mul", frames, buffer.new)
        column = mapper.emit("Unsqueeze", first, [1])
        places = mapper.emit("Add", column, range(buffer.begin, buffer.begin + buffer.size))
        result = mapper.emit("Gather", whole, places, axis=axis)
        back = (axis, *range(axis), *range(1 + axis, 1 + rank))
        mapper.end(node, "Transpose", (result,), perm=back)
    ends = {}
    for name in buffer.kept:
        steps = buffer.size if name == stem else buffer.size - buffer.new
        ends[name] = mapper.emit("Slice", whole, [-steps], [_FAR], [axis])
    return ends
