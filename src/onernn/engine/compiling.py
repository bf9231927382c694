"""A model as a compiled file, which the library runs without Python; see design/0073.

The library reads it in kernels/library/files.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from onernn.backend.compiled.library import Kernels
from onernn.engine.chunks import Stateful, expose
from onernn.engine.encoding import CALL, NEST
from onernn.engine.operators.control import sizes_to_say
from onernn.engine.plan import Plan
from onernn.engine.program import UnknownError
from onernn.engine.session import Session
from onernn.fuse_passes.over_time import bind
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, UnsupportedError
from onernn.ir.files import replacing
from onernn.ir.graph import Graph, Value, graph_of

MAGIC, FORMAT = b"onernn\r\n", 1
_HEADER = 5
"""Words: magic, format, checksum of what follows it, bytes of the file, words before numbers."""
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
) -> list[str]:
    """Writes a model as a file that `onernn.Session` and libonernn run; notes for its callers.

    ``states``: the output that is the next state, by the input that takes it: a run of the library
    is one step then. ``expose_states``: a model of sequences becomes one of steps. ``given``:
    arrays in the place of inputs; ``inputs``: an array, a dtype or a shape for inputs that the
    model leaves open.

    Raises `UnsupportedError` that names the operators which only Python runs.
    """
    graph = bind(graph_of(model), given or {}, inputs or {})
    network = expose(graph) if expose_states else Stateful.named(graph, states or {})
    if network.growing:
        raise _refuse(graph, [Refusal("its size changes", min(network.growing))])
    first = {name: network.initial(name) for name in network.states}
    graph = bind(network.graph, {}, {n: Value(n, a.dtype.name, a.shape) for n, a in first.items()})
    session = Session(graph, dtype, 1, "kernels")
    content = _File(_plan(session), session, network.states, first).content
    with replacing(Path(path)) as stream:
        stream.write(content)
    return network.notes if network.states else []


def content_of(session: Session, data: Sequence[Array]) -> bytes:
    """Returns the file of a session, for inputs of these arrays' types. Raises as
    `compile_model`.
    """
    inputs = tuple(v.opened(array) for v, array in zip(session.graph.inputs, data, strict=True))
    opened = session.with_graph(replace(session.graph, inputs=inputs))
    return _File(_plan(opened), opened, {}, {}).content


def _refuse(graph: Graph, refusals: list[Refusal]) -> UnsupportedError:
    return UnsupportedError(f"{graph.name}: no compiled file:", refusals)


def _plan(session: Session) -> Plan:
    """Returns the plan of a whole session. Raises `UnsupportedError` where Python has to run
    nodes.
    """
    graph = session.graph
    refusals = [
        Refusal(f"the model does not declare its type: say --input '{value.name}=float32(...)'", "")
        for value in graph.inputs
        if value.dtype is None or value.shape is None
    ]
    refusals += [
        Refusal(each.layer.why or "another library runs it", node.label)
        for node, each in session.layers.items()
        if each.layer.compiled is None
    ]
    if refusals:
        raise _refuse(graph, refusals)
    try:
        plan = session._plan_of(graph.inputs)
    except (UnsupportedError, UnknownError) as error:
        raise _refuse(graph, [Refusal(str(error), "model")]) from None
    refusals = [
        Refusal(f"only Python runs it{'' if index else sizes_to_say(graph.inputs)}", node.label)
        for index, node in enumerate(plan.outside)
    ]
    missing = [name for name, _ in plan.outputs if name not in plan.shapes]
    refusals += [Refusal("its shape is not known before a run", name) for name in missing]
    if plan.is_partial and not refusals:
        refusals.append(Refusal("a branch that fits only some sizes: say --input", "model"))
    if refusals:
        raise _refuse(graph, refusals)
    return plan


def _text(text: str) -> list[int]:
    data = text.encode()
    words = np.frombuffer(data.ljust(-(-len(data) // 8) * 8, b"\0"), "<i8")
    return [len(data), *words.tolist()]


class _File:
    """The words of a file, and the numbers behind them."""

    def __init__(
        self, plan: Plan, session: Session, states: Mapping[str, str], first: Mapping[str, Array]
    ) -> None:
        self._plan, self._encoded = plan, plan.encoded
        self._kernels: Kernels = plan.kernels
        self._numbers: list[Array] = []
        self._places: dict[tuple[int, int], int] = {}
        self._functions: list[str] = []
        self._formulas: list[str] = []
        self._graph, self._states, self._first = session.graph, states, first
        stacks = list(self._stacks())
        words = self._plan_words()
        rest = [*self._inputs(), *self._outputs()]
        encoded = plan.encoded
        rest += [len(plan.axes), *plan.axes, len(encoded.layers)]
        for step, layer in sorted(encoded.layers.items()):
            rest += [step, layer.words, layer.steps, layer.recurrence.runs, layer.recurrence.work]
        tables = [self._functions, self._formulas]
        names = [word for table in tables for word in (len(table), *sum(map(_text, table), []))]
        head = [len(encoded.stacks), *stacks, len(words), *words, *rest]
        self.content = self._bytes([*names, *head])

    def _bytes(self, words: list[int]) -> bytes:
        """Returns the file: header, where numbers stand, words, numbers."""
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
        """Returns the index of an array, which the file stores once."""
        key = array.ctypes.data, array.nbytes
        if key not in self._places:
            self._places[key] = len(self._numbers)
            self._numbers.append(array)
        return self._places[key]

    def _stacks(self) -> Iterator[int]:
        """Yields the spec and parts of each layer as C has them, and its weights."""
        for stack in self._encoded.stacks:
            spec, numbers = stack.stored()
            yield from np.frombuffer(spec, "<i8").tolist()
            yield self._number(numbers)

    def _plan_words(self) -> list[int]:
        """Returns the plan's words, with numbers in place of addresses."""
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
            yield from self._value_words(value.name, str(value.dtype), encoded.places[value.name])
            shape = value.shape or ()
            yield len(shape)
            for axis, size in enumerate(shape):
                least, most = value.ranges.get(axis, (0, _MOST))
                yield from (size if isinstance(size, int) else -1, least, int(min(most, _MOST)))
            levels = program.levels(value.name)
            yield from (len(levels), *(encoded.places[level.offsets] for level in levels))
            yield value.name in program.longest
            after = self._states.get(value.name)
            yield -1 if after is None else outputs.index(after)
            first = self._first.get(value.name)
            yield -1 if first is None or not first.any() else self._number(first)

    def _value_words(self, name: str, dtype: str, place: int) -> list[int]:
        return [*_text(name), *_text(dtype), place]

    def _outputs(self) -> Iterator[int]:
        inputs = {value.name: number for number, value in enumerate(self._graph.inputs)}
        yield len(self._plan.outputs)
        for name, _ in self._plan.outputs:
            shape, sizes = self._plan.shapes[name], self._encoded.program.shape(name)
            yield from self._value_words(name, shape.dtype.name, shape.place)
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
