"""A graph that runs in one call of C, but for the nodes that Python runs.

A plan is good for inputs of any sizes: these are told to it first, then it places all values in
memory, and runs. See design/0038.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.compiled.library import Kernels
from onernn.core.arrays import Array
from onernn.core.budget import running
from onernn.core.errors import LibraryError, ShapeError, UnsupportedError
from onernn.core.graph import Graph, Node, Value
from onernn.core.guard import naming
from onernn.core.ragged import Ragged, data_of
from onernn.core.sizes import Size
from onernn.engine.encoded import Encoded
from onernn.engine.encoding import CALL, LAYER, NEST, encode
from onernn.engine.inferring import infer
from onernn.engine.kernels import KERNELS
from onernn.engine.program import Program, UnknownError
from onernn.engine.recurrent import PreparedNode, prepared
from onernn.engine.rooms import Room, Rooms

Feed = Mapping[str, Ragged | Array]
_AT_ONCE = 1000
"""Operators of loops that the library runs before Python may look for signals."""
_MOST = 2**56
"""Bytes: sums of sizes up to here are within 64 bits."""


class _Shape:
    """A value's dtype, and where its sizes stand among the plan's."""

    def __init__(self, made: Encoded, name: str) -> None:
        program = made.program
        self.place, self.dtype = made.places[made.owner(name)], np.dtype(program.dtype(name))
        self.sizes = [made.size(size) for size in program.shape(name)]
        self.levels = [
            (level, made.places.get(level.offsets, -1), made.size(level.count))
            for level in program.levels(name)
        ]

    def of(self, sizes: Any) -> tuple[int, ...]:
        return tuple([sizes[at] for at in self.sizes])


class Given(NamedTuple):
    """A call's inputs: the sizes of their axes, and what is to stand at which place."""

    feed: Feed
    dims: list[int]
    places: list[tuple[int, Any]]


class Plan:
    """A fused graph made ready for the library; safe to share between threads.

    ``is_partial``: Python runs graphs inside of nodes, or calls end in some branches.

    ``inputs``: with the dtype and rank of each. Raises `UnsupportedError` for a graph whose sizes
    nobody can follow.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: tuple[Value, ...],
        kernels: Kernels,
        layers: Mapping[Node, PreparedNode],
        threads: int,
    ) -> None:
        self._kernels, self._threads = kernels, threads
        program = Program(replace(graph, inputs=inputs))
        infer(program, named=False)
        inner = {
            node: layers[source] for node, source in program.sources.items() if source in layers
        }
        self._layers = layers = {**layers, **inner}
        self._encoded = made = encode(program, kernels, layers)
        self._address = kernels.ffi.from_buffer
        self._inputs = [
            (
                value.name,
                made.places[value.name],
                [made.places[level.offsets] for level in program.levels(value.name)],
                np.dtype(value.dtype),
                len(value.shape or ()),
                value.name in program.longest,
            )
            for value in inputs
        ]
        self._types: dict[str, _Shape] = {}
        for node in made.outside.values():
            for name in filter(None, (*node.inputs, *node.outputs)):
                self._known(name)
        for step, *_ in made.layers.values():
            for name in filter(None, (*step.node.inputs, *step.node.outputs)):
                self._known(name)
        self._outputs = [(value.name, made.root(value.name)) for value in program.graph.outputs]
        for name, _ in self._outputs:
            self._known(name)
        self._types |= {root: _Shape(made, root) for root in made.outputs}
        self._direct = [
            (root, self._types[root].place, self._types[root].dtype) for root in made.outputs
        ]
        self._most = {
            root: made.size(program.most(root))
            for root, *_ in self._direct
            if any(size.names & program.inner.keys() for size in program.shape(root))
        }
        self._axes = [made.size(size) for size in _doubtful(program)]
        self._plain = [root for root, *_ in self._direct] == [name for name, _ in self._outputs]
        self._plain = self._plain and not self._most
        self._plain = self._plain and not any(self._types[n].levels for n, _ in self._outputs)
        ffi, lib = kernels.ffi, kernels.lib
        words = made.words()
        plan = ffi.new("onernn_plan **")
        if lib.onernn_plan_new(ffi.new("int64_t[]", words), len(words), plan):
            raise LibraryError("kernels: the system has no memory for a plan")
        self._plan = kernels.own(plan[0], lib.onernn_plan_free)
        self._constants = program.graph.constants
        self._rooms = Rooms(partial(Room, kernels, made, self._plan, threads))
        self._process = os.getpid()
        self.outside = tuple(made.outside.values())
        bodies = (v for node in self.outside for v in node.attributes.values())
        self.is_partial = bool(program.refused) or any(isinstance(v, Graph) for v in bodies)

    def _known(self, name: str) -> None:
        """Notes a value's shape, if anybody can tell it."""
        made = self._encoded
        if name in made.program.graph.constants or made.owner(name) not in made.places:
            return
        try:
            self._types[name] = _Shape(made, name)
        except (UnknownError, UnsupportedError):
            return

    @property
    def told(self) -> str:
        """What a user is told of it."""
        nodes = ", ".join(node.label for node in self.outside)
        return "one call of the library" + f"; in Python: {nodes}" * bool(nodes)

    @property
    def is_worth_it(self) -> bool:
        """Whether the library runs any step."""
        return any(kind in (CALL, NEST, LAYER) for kind, _ in self._encoded.steps)

    def fits(self, other: Plan) -> bool:
        """Whether it runs what another plan was given, with less left to Python."""
        left = len(self.outside) < len(other.outside) or not self.is_partial
        return left and self._inputs == other._inputs

    def run(
        self, given: Given, most: int, around: Callable[[], AbstractContextManager[Any]]
    ) -> dict[str, Ragged | Array] | None:
        """The outputs by name; None where the library refuses sizes or numbers of inputs.

        It takes at most ``most`` bytes. What Python runs runs inside of ``around()``.
        """
        if self._threads > 1 and os.getpid() != self._process:
            return None  # the second thread did not survive the fork
        room = self._rooms.take()
        try:
            return self._run(room, given, most, around)
        finally:
            self._rooms.put_back(room)

    def _run(
        self,
        room: Room,
        given: Given,
        most: int,
        around: Callable[[], AbstractContextManager[Any]],
    ) -> dict[str, Ragged | Array] | None:
        feed, dims, pointers = given
        if dims != room.bound:
            room.note(sum(len(at) for _, at in pointers))
            if not self._bind(room, dims, min(most, _MOST)):
                return None
        places, address = room.places, self._address
        keep: dict[Any, Any] = {}
        for place, at in pointers:
            places[place] = at
        made: dict[str, Ragged | Array] = {}
        for (root, place, dtype), shape in zip(self._direct, room.shapes, strict=True):
            made[root] = array = np.empty(shape, dtype)
            places[place] = keep[place] = address(array)
        values: dict[str, Any] = {}
        if room.stopped or self._encoded.loops:
            with around(), prepared(self._layers):
                done = self._steps(room, feed, values, keep)
        else:
            room.step[0] = 0
            done = not self._kernels.lib.onernn_room_run(room.handle, room.stops, room.step)
        if not done:
            return None
        if self._plain:
            return made
        return {
            name: self._output(room, name, root, feed, values, made) for name, root in self._outputs
        }

    def given(self, feed: Feed) -> Given | None:
        """The inputs as the library reads them, of any sizes; None where they are not of the types
        that the plan is made for."""
        if type(feed) is not dict or len(feed) != len(self._inputs):
            return None
        address = self._address
        dims: list[int] = []
        places: list[tuple[int, Any]] = []
        for name, place, offsets, dtype, rank, tells_longest in self._inputs:
            value = feed.get(name)
            array: Any = value
            levels: tuple[Array, ...] = ()
            if type(value) is Ragged:
                array, levels = value.data, (*value.outer, value.offsets)
            if len(levels) != len(offsets):
                return None
            if type(array) is not np.ndarray or array.dtype != dtype or array.ndim != rank:
                return None
            if not (array.flags.c_contiguous and array.flags.aligned):
                array = np.require(array, requirements=("C", "A"))
            places.append((place, address(array)))
            dims += array.shape
            if levels:
                dims += [len(level) - 1 for level in levels]
                places += zip(offsets, map(address, levels), strict=True)
            if tells_longest:
                dims.append(int(np.diff(levels[-1]).max(initial=0)))
        return Given(feed, dims, places)

    def _bind(self, room: Room, dims: list[int], most: int) -> bool:
        """Places all values for these inputs' sizes."""
        room.bound = None
        told = room.told
        told[0 : len(dims)] = dims
        if self._kernels.lib.onernn_room_bind(room.handle, told, most):
            return False
        sizes = room.sizes
        if any(sizes[at] < 0 for at in self._axes):
            return False  # two of them may make memory that is not
        self._choose(room)
        room.shapes = [
            sizes[self._most[root]] if root in self._most else self._types[root].of(sizes)
            for root, *_ in self._direct
        ]
        room.bound = dims
        return True

    def _steps(self, room: Room, feed: Feed, values: dict[str, Any], keep: dict[Any, Any]) -> bool:
        """Runs all steps, those at which the library stops in Python."""
        step, count, budget = room.step, len(self._encoded.steps), running()
        step[0] = 0
        while True:
            step[1] = _AT_ONCE
            if self._kernels.lib.onernn_room_run(room.handle, room.stops, step):
                return False
            if self._encoded.loops:
                budget.turn(_AT_ONCE - step[1])
            if step[0] == count:
                return True
            if room.stops[step[0]]:
                if not self._outside(room, step[0], feed, values, keep):
                    return False
                step[0] += 1

    def _choose(self, room: Room) -> None:
        """Which steps Python runs, for these sizes."""
        for at in self._encoded.outside:
            room.stops[at] = 1
        for at, (layer, words, count) in self._encoded.layers.items():
            runs = self._layers[layer.node].layer.runs_compiled
            of = room.sizes[words], room.sizes[count]
            room.stops[at] = not runs(layer.lod is not None, *of)
        room.stopped = any(room.stops)

    def _outside(
        self, room: Room, at: int, feed: Feed, values: dict[str, Any], keep: dict[Any, Any]
    ) -> bool:
        """Runs a node in Python. False where it gives what the plan did not expect."""
        layer = self._encoded.layers.get(at)
        node = layer[0].node if layer else self._encoded.outside[at]
        arguments = [
            self._value(room, name, feed, values) if name else None for name in node.inputs
        ]
        with naming(node, self._encoded.program.graph.name):
            found = KERNELS[node.op](node, *arguments)
        results = found if isinstance(found, tuple) else (found,)
        for name, value in zip(node.outputs, results, strict=False):
            if not name:
                continue
            values[name] = value = _own(value, arguments)
            shape = self._types.get(name)
            if shape is None:
                continue
            array = np.ascontiguousarray(data_of(value))
            if array.dtype != shape.dtype or array.shape != shape.of(room.sizes):
                return False
            if layer or self._encoded.root(name) != name:
                target = room.places[shape.place]
                if target:
                    self._kernels.ffi.memmove(target, array, array.nbytes)
            else:
                keep[shape.place] = pointer = self._kernels.ffi.from_buffer(array)
                room.places[shape.place] = pointer
        return True

    def _value(self, room: Room, name: str, feed: Feed, values: Mapping[str, Any]) -> Any:
        """A value as Python has it."""
        for known in (values, feed, self._constants):
            if name in known:
                return known[name]
        shape = self._types.get(name)
        if shape is None:
            raise ShapeError(f"nobody follows the shape of {name!r}")
        ffi, sizes = self._kernels.ffi, shape.of(room.sizes)
        count = int(np.prod(sizes, dtype=object))
        bytes_of = ffi.buffer(room.places[shape.place], count * shape.dtype.itemsize)
        array = np.frombuffer(bytes_of, shape.dtype).reshape(sizes)
        return self._framed(room, shape, array, feed, values)

    def _framed(
        self, room: Room, shape: _Shape, array: Array, feed: Feed, values: Mapping[str, Any]
    ) -> Ragged | Array:
        """The array, under its offsets if it has any."""
        levels = []
        for level, place, count in shape.levels:
            owner = feed.get(level.name, values.get(level.name))
            if isinstance(owner, Ragged):
                levels.append((*owner.outer, owner.offsets)[level.level])
            else:
                words = self._kernels.ffi.buffer(room.places[place], 8 * (room.sizes[count] + 1))
                levels.append(np.frombuffer(words, np.int64).copy())
        return Ragged.from_lod(array, levels) if levels else array

    def _output(
        self,
        room: Room,
        name: str,
        root: str,
        feed: Feed,
        values: Mapping[str, Any],
        made: dict[str, Ragged | Array],
    ) -> Ragged | Array:
        array: Any = made.pop(root, None)
        if array is None:
            given = self._value(room, name, feed, values)
            if name in values:
                return given
            return given.with_data(given.data.copy()) if isinstance(given, Ragged) else given.copy()
        shape = self._types[name]
        sizes = shape.of(room.sizes)
        if array.shape != sizes:
            array = array.reshape(-1)[: int(np.prod(sizes))].reshape(sizes)
        return self._framed(room, shape, array, feed, values)


def _doubtful(program: Program) -> dict[Size, None]:
    """The sizes of axes that may be negative, as far as they are known before a run."""
    named = (name for each in program.codes for name in each.node.outputs if name)
    sizes = (size for name in named for size in program.shape(name))
    return {
        size: None
        for size in sizes
        if any(by < 0 for _, by in size.terms) and program.inner.keys().isdisjoint(size.names)
    }


def _own(value: Any, arguments: list[Any]) -> Any:
    """A value that does not end with the memory of the run: nodes may give what they were given."""
    array = data_of(value)
    if not any(np.may_share_memory(array, data_of(one)) for one in arguments if one is not None):
        return value
    return value.with_data(array.copy()) if isinstance(value, Ragged) else array.copy()
