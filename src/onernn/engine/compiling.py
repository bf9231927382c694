"""Writes a model as a compiled file, which the library runs without Python; see design/0073.

kernels/library/files.cpp reads the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from onernn.backend.compiled.library import Kernels
from onernn.engine.chunks import Stateful, expose
from onernn.engine.encoding import CALL, MOST_AXES, NEST
from onernn.engine.inferring import advice, find_sufficient, write_option
from onernn.engine.plan import Plan, doubtful_sizes
from onernn.engine.program import UnknownError
from onernn.engine.session import Session, find_obstacles
from onernn.engine.streams import over_streams
from onernn.fuse_passes.over_time import (
    OpenBranchError,
    bind,
    find_missing,
    find_states,
    over_time,
)
from onernn.ir.arrays import Array
from onernn.ir.errors import MISFITS, OnernnError, Refusal, ShapeError, UnsupportedError
from onernn.ir.files import replacing
from onernn.ir.graph import Graph, Value, graph_of
from onernn.ir.types import write_shape

MAGIC, FORMAT = b"onernn\r\n", 2
_HEADER = 5
"""Number of integers in the header: a magic number, the format, a checksum of the rest, the number
of bytes in the file, and the number of integers before the arrays.
"""
_MOST = 2**63 - 1


def compile_model(
    model: Graph | str | PathLike[str],
    path: str | PathLike[str],
    *,
    dtype: str = "f32",
    states: Mapping[str, str] | None = None,
    expose_states: bool = False,
    given: Mapping[str, Array] | None = None,
    inputs: Mapping[str, Any] | None = None,
    streams: bool = False,
) -> list[str]:
    """Writes a model as a file that `onernn.Session` and libonernn run; returns notes for users of
    the file.

    ``path``: a name that ends with ".onernn". ``dtype``: the same as for `Session`. ``states`` maps
    each input that takes a state to the output that is the next state; a call of the library then
    runs one step. ``expose_states`` turns a model of sequences into a model of chunks, which
    continues after the previous chunk. ``given``: arrays that replace inputs. ``inputs``: an array,
    a dtype or a shape for each input that the model does not fully declare. States are zeros at
    first. With ``streams``, inputs and outputs get a first axis of clients, and the states come
    last, in the order that ``onernn_clients_open`` takes; all other sizes must be known.

    Raises `UnsupportedError` that names the operators without a function in the library, and the
    states whose sizes are open or change. Raises `LibraryError` if the kernels are missing.

    >>> x, s, after = (onernn.Value(name, "float32", (1,)) for name in ("x", "s", "after"))
    >>> add = onernn.Node("Add", ("x", "s"), ("after",))
    >>> model = onernn.Graph("sum", (x, s), (after,), (add,), {})
    >>> notes = onernn.compile_model(model, "sum.onernn", states={"s": "after"})
    >>> onernn.Session("sum.onernn").states
    {'s': 'after'}
    """
    graph = bind(graph_of(model), given or {}, inputs or {})
    if expose_states and states:
        raise UnsupportedError(
            "states and expose_states (--state, --expose-states): expected one, got both"
        )
    if expose_states and streams:
        raise UnsupportedError(
            "streams and expose_states (--streams, --expose-states): expected one, got both; first"
            " onernn convert MODEL STEP.onnx --expose-states, then compile STEP.onnx with --state"
        )
    network = expose(graph) if expose_states else Stateful.of_names(graph, states or {})
    typed = tuple(
        replace(value, dtype="float32")
        if value.name in network.states and not value.dtype
        else value
        for value in network.graph.inputs
    )
    session = Session(replace(network.graph, inputs=typed), dtype, 1, "kernels")
    hidden = network.states.keys() - {value.name for value in graph.inputs}
    plan, kept = _plan(session, network.states, hidden, network.growing), network.states
    if streams:
        program = plan.encoded.program
        shapes = {name: tuple(size.number for size in program.shape(name)) for name in kept}
        sized = {name: Value(name, program.dtype(name), shape) for name, shape in shapes.items()}
        graph = _order_states(over_streams(bind(network.graph, {}, sized)), kept)
        session, kept = Session(graph, dtype, 1, "kernels"), {}
        plan = _plan(session, kept)
    content = _File(plan, session, kept).content
    with replacing(Path(path)) as stream:
        stream.write(content)
    return network.notes if network.states else []


def _order_states(graph: Graph, states: Mapping[str, str]) -> Graph:
    """Returns a graph over streams whose last inputs and outputs are the states.

    Raises `UnsupportedError` for inputs of open sizes.
    """
    if wrong := [Refusal(why, value.name) for value in graph.inputs if (why := _open_axes(value))]:
        raise _refuse(graph, wrong)
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    last = [outputs[after] for after in states.values()]
    return replace(
        graph,
        inputs=(*(v for n, v in inputs.items() if n not in states), *(inputs[n] for n in states)),
        outputs=(*(v for n, v in outputs.items() if n not in states.values()), *last),
    )


def _open_axes(value: Value) -> str:
    frame = replace(value, shape=(value.shape or ())[1:], names=())
    axes = [axis for axis, size in enumerate(frame.shape or ()) if not isinstance(size, int)]
    option = write_option(frame, dict.fromkeys(axes, "1"))
    which = ", ".join(map(str, axes))
    return which and f"open axes {which}: expected numbers, such as {option}"


def content_of(session: Session, data: Sequence[Array]) -> bytes:
    """Returns the content of the file for a session whose inputs have the types of ``data``.

    Raises the same errors as `compile_model`.
    """
    inputs = tuple(v.complete(array) for v, array in zip(session.graph.inputs, data, strict=True))
    opened = session.with_graph(replace(session.graph, inputs=inputs))
    return _File(_plan(opened, {}), opened, {}).content


def _refuse(graph: Graph, refusals: list[Refusal]) -> UnsupportedError:
    return UnsupportedError(f"{graph.name}: no compiled file; onernn.Session may run it:", refusals)


def _plan(
    session: Session,
    states: Mapping[str, str],
    hidden: AbstractSet[str] = frozenset(),
    growing: AbstractSet[str] = frozenset(),
) -> Plan:
    """Returns the plan of a session. ``hidden``: the states that `expose` added, which are not
    inputs of the caller's model. ``growing``: see `Stateful`.

    Raises `UnsupportedError` if Python has to run nodes, or if no run could succeed.
    """
    graph = session.graph
    if refusals := find_obstacles(session):
        raise _refuse(graph, refusals)
    plan, refusals = _attempt(session, states)
    if plan is None or refusals:
        advised = [*_advise(session, states, hidden)]
        if not advised and (grown := hidden & growing):
            why = "sizes change in the first calls, because an operator reads later steps or"
            why += " removes steps: expected fixed sizes; streams of onernn.Session run the model"
            refusals = [Refusal(why, ", ".join(sorted(grown)))]
        raise _refuse(graph, [*dict.fromkeys(refusals), *advised])
    return plan


def _attempt(session: Session, states: Mapping[str, str]) -> tuple[Plan | None, list[Refusal]]:
    try:
        plan = session._plan_of(session.graph.inputs)
    except (ShapeError, UnsupportedError, UnknownError) as error:
        return None, [Refusal(str(error), "model")]
    refusals = [
        Refusal(f"only Python runs it: {why}", node.label)
        for node, (_, why) in zip(plan.outside, plan.reasons, strict=True)
    ]
    missing = [name for name, _ in plan.outputs if name not in plan.shapes]
    why = "its shape is not known before a run: fix the sizes"
    refusals += [Refusal(why, name) for name in missing]
    if plan.is_partial and not refusals:
        refusals.append(Refusal("a branch runs only for some sizes: fix the sizes", "model"))
    return plan, refusals or [*_find_misfits(plan, session.graph, states)]


def _find_misfits(plan: Plan, graph: Graph, states: Mapping[str, str]) -> Iterator[Refusal]:
    """Yields the reasons why the library would refuse every run, or every run after the first
    one.
    """
    program = plan.encoded.program
    for value in (*graph.inputs, *graph.outputs):
        if (count := len(program.shape(value.name))) > MOST_AXES:
            yield Refusal(f"expected at most {MOST_AXES} axes, got {count}", value.name)
    for value in graph.inputs:
        for axis, size in enumerate(program.shape(value.name)):
            least, most = value.ranges.get(axis, (0, _MOST))
            if size.number is not None and not least <= size.number <= most:
                reason = f"axis {axis}: expected {least} to {most}, the model needs {size.number}"
                yield Refusal(reason, value.name)
    if any((size.number or 0) < 0 for size in doubtful_sizes(program)):
        why = "the inputs are too small: expected sizes for which no result has a negative size"
        yield Refusal(why, "model")
    for name, after in states.items():
        sizes, next_sizes = program.shape(name), program.shape(after)
        alike = len(sizes) == len(next_sizes) and program.dtype(name) == program.dtype(after)
        for size, other in zip(sizes, next_sizes, strict=False):
            # each run compares a size that it computes
            is_found = not program.inner.keys().isdisjoint(other.names)
            alike = alike and (is_found or size == other)
        open_axes = [str(axis) for axis, size in enumerate(sizes) if size.number is None]
        if not alike:
            types = [f"{program.dtype(n)} {write_shape(program.shape(n))}" for n in (name, after)]
            yield Refusal(f"expected a next state {after!r} of {types[0]}, got {types[1]}", name)
        elif open_axes:
            which = ", ".join(open_axes)
            yield Refusal(f"open axes {which}: expected fixed sizes for a state", name)


def _advise(
    session: Session, states: Mapping[str, str], hidden: AbstractSet[str]
) -> Iterator[Refusal]:
    graph, inputs = session.graph, session.graph.inputs
    names = {
        (value.name, axis): size.name
        for value in sorted(inputs, key=lambda value: value.name in states)
        for axis, size in enumerate(value.type.shape or ())
        if size and size.name and not value.lod_depth and value.name not in hidden
    }

    def fix(value: Value, numbers: Mapping[str, int]) -> Value:
        sizes = enumerate(value.shape or ())
        shape = (numbers.get(names.get((value.name, axis), ""), size) for axis, size in sizes)
        return replace(value, shape=tuple(shape))

    def attempt(changed: Iterable[Value]) -> Plan | None:
        try:
            tried = session.with_graph(replace(graph, inputs=tuple(changed)))
            plan, refusals = _attempt(tried, states)
        except (OnernnError, *MISFITS):
            return None
        return None if refusals else plan

    for value in inputs:
        opened = replace(value, shape=(None,) * len(value.shape or ()))
        if value.name in hidden or value.lod_depth or value.shape == opened.shape:
            continue
        if plan := attempt(opened if each is value else each for each in inputs):
            needed = plan.encoded.program.shape(value.name)
            for axis, (size, own) in enumerate(zip(needed, value.shape or (), strict=True)):
                if size.number is not None and own not in (None, size.number):
                    reason = f"axis {axis}: expected {size}, which other inputs need, got {own}"
                    yield Refusal(reason, value.name)
    chosen = find_sufficient(
        [*dict.fromkeys(names.values())],
        lambda numbers: attempt(fix(value, numbers) for value in inputs) is not None,
    )
    options = list[str]()
    for value in inputs:
        axes = {
            axis: chosen[name]
            for (of, axis), name in names.items()
            if of == value.name and name in chosen
        }
        options += [write_option(value, axes)] if axes else []
    if options:
        yield advice(" ".join(options))
    elif not hidden:
        try:
            over_time(graph, taken := states or find_states(graph))
        except OpenBranchError as error:
            yield from find_missing(graph, taken, error, "1")[1]
        except (OnernnError, *MISFITS):
            pass


def _text(text: str) -> list[int]:
    if "\0" in text:
        raise UnsupportedError(f"name {text!r}: expected no NUL, with which C ends a text")
    data = text.encode()
    words = np.frombuffer(data.ljust(-(-len(data) // 8) * 8, b"\0"), "<i8")
    return [len(data), *words.tolist()]


class _File:
    """The content of a file: integers, and the arrays after them."""

    def __init__(self, plan: Plan, session: Session, states: Mapping[str, str]) -> None:
        self._plan, self._encoded = plan, plan.encoded
        self._kernels: Kernels = plan.kernels
        self._numbers: list[Array] = []
        self._places: dict[tuple[int, int], int] = {}
        self._functions: list[str] = []
        self._formulas: list[str] = []
        self._graph, self._states = session.graph, states
        stacks = list(self._stacks())
        words = self._plan_words()
        rest = [*self._inputs(), *self._outputs()]
        encoded = plan.encoded
        rest += [len(plan.axes), *plan.axes, len(encoded.layers)]
        for step, layer in sorted(encoded.layers.items()):
            rest += [step, layer.words, layer.steps, layer.recurrence.runs, layer.recurrence.work]
        labels = [node.label if node else "" for node in encoded.makers]
        table = {label: number for number, label in enumerate(dict.fromkeys(labels))}
        rest += [len(table), *(word for label in table for word in _text(label))]
        rest += [table[label] for label in labels]
        tables = [self._functions, self._formulas]
        names = [word for table in tables for word in (len(table), *sum(map(_text, table), []))]
        head = [len(encoded.stacks), *stacks, len(words), *words, *rest]
        self.content = self._bytes([*names, *head])

    def _bytes(self, words: list[int]) -> bytes:
        count = _HEADER + 1 + 2 * len(self._numbers) + len(words)
        at, places = -(-8 * count // 64) * 64, list[int]()
        for array in self._numbers:
            places += [at, array.nbytes]
            at = -(-(at + array.nbytes) // 64) * 64
        magic = int.from_bytes(MAGIC, "little")
        head = [magic, FORMAT, 0, at, count, len(self._numbers), *places, *words]
        content = np.zeros(at, np.uint8)
        content[: 8 * count] = np.array(head, "<i8").view(np.uint8)
        for array, begin in zip(self._numbers, places[::2], strict=True):
            content[begin : begin + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        rest = content[24:]
        checksum = self._kernels.lib.onernn_checksum(self._kernels.ffi.from_buffer(rest), len(rest))
        content[16:24] = np.array([checksum], "<i8").view(np.uint8)
        return content.tobytes()

    def _number(self, array: Array) -> int:
        key = array.ctypes.data, array.nbytes
        if key not in self._places:
            self._places[key] = len(self._numbers)
            self._numbers.append(array)
        return self._places[key]

    def _stacks(self) -> Iterator[int]:
        for stack in self._encoded.stacks:
            spec, numbers = stack.export()
            yield from np.frombuffer(spec, "<i8").tolist()
            yield self._number(numbers)

    def _plan_words(self) -> list[int]:
        encoded = copy(self._encoded)
        encoded.steps = [(kind, self._step(kind, list(words))) for kind, words in encoded.steps]
        encoded.constants = [
            word
            for array, (place, _, size) in zip(
                encoded.keeps, zip(*[iter(encoded.constants)] * 3, strict=True), strict=True
            )
            for word in (place, self._number(array), size)
        ]
        return list(map(int, encoded.words()))

    def _step(self, kind: int, words: list[int]) -> list[int]:
        if kind == CALL:
            words[0] = self._name_index(self._functions, words[0])
        elif kind == NEST:
            rank, reads = words[0], words[1 + words[0]]
            at = 2 + rank + (reads + 1) * (3 + rank)
            if words[at] >= 0:
                at += 1 + 2 * words[at]
                formulas, at = words[at], at + 1
                for _ in range(formulas):
                    words[at] = self._name_index(self._formulas, words[at])
                    at += 2 + words[at + 1]
        return words

    def _name_index(self, names: list[str], address: int) -> int:
        name = self._encoded.functions[address]
        if name not in names:
            names.append(name)
        return names.index(name)

    def _inputs(self) -> Iterator[int]:
        encoded, program = self._encoded, self._encoded.program
        outputs = [value.name for value in self._graph.outputs]
        yield len(self._graph.inputs)
        for value in self._graph.inputs:
            yield from (*_text(value.name), *_text(str(value.dtype)), encoded.places[value.name])
            shape = program.shape(value.name)
            yield len(shape)
            for axis, size in enumerate(shape):
                least, most = value.ranges.get(axis, (0, _MOST))
                yield from (
                    -1 if size.number is None else size.number,
                    least,
                    int(min(most, _MOST)),
                )
            levels = program.levels(value.name)
            yield from (len(levels), *(encoded.places[level.offsets] for level in levels))
            yield value.name in program.longest
            after = self._states.get(value.name)
            yield -1 if after is None else outputs.index(after)
            yield -1  # the initial state is zeros

    def _outputs(self) -> Iterator[int]:
        inputs = {value.name: number for number, value in enumerate(self._graph.inputs)}
        yield len(self._plan.outputs)
        for name, _ in self._plan.outputs:
            shape, sizes = self._plan.shapes[name], self._encoded.program.shape(name)
            yield from (*_text(name), *_text(shape.dtype.name), shape.place)
            yield len(sizes)
            for number, size in zip(shape.sizes, sizes, strict=True):
                yield from (number, -1 if size.number is None else size.number)
            yield len(shape.levels)
            for level, place, count in shape.levels:
                if level.name in inputs:
                    levels = self._encoded.program.levels(level.name)
                    yield from (inputs[level.name], range(len(levels))[level.level])
                else:
                    yield from (-1, place, count)
