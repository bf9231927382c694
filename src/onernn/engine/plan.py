"""A plan runs a graph in one call of C, except for the nodes that Python runs.

A plan takes inputs of any sizes: a call first reads the sizes, then assigns memory to all values,
and runs. See design/0038.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from onernn.backend.compiled.library import Kernels
from onernn.backend.process import UsualNeed, take_idle, team_of
from onernn.engine.encoding import CALL, LAYER, NEST, Encoded, encode
from onernn.engine.inferring import infer
from onernn.engine.kernels import KERNELS, PreparedNode, make_own, prepare
from onernn.engine.program import LodLevel, Program, UnknownError
from onernn.fuse_passes.bodies import bodies
from onernn.ir.arrays import Array
from onernn.ir.budget import return_freed_memory, running
from onernn.ir.errors import LibraryError, ShapeError, UnsupportedError, naming
from onernn.ir.feeds import Feed
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import NamedTuple
from onernn.ir.types import Size, as_tuple

_PATIENCE = 1000
"""A workspace that was unused in this many calls is released."""


class Workspace:
    """Memory for runs of a plan, laid out for the sizes of the last run; only one thread at a time
    may use it.

    ``need``: see `UsualNeed`. ``largest``: the largest need so far, to which the memory has grown.
    ``was_used``: whether a call used it since `Workspaces` last released unused workspaces.
    """

    def __init__(self, kernels: Kernels, encoded: Encoded, plan: Any, threads: int) -> None:
        ffi, lib = kernels.ffi, kernels.lib
        self.stacks = [stack.handle() for stack in encoded.stacks]
        self._handles = ffi.new("onernn_stack *[]", self.stacks)
        handle = ffi.new("onernn_workspace **")
        if lib.onernn_workspace_new(plan, team_of(threads), self._handles, handle):
            raise LibraryError(
                "kernels: the system has no memory, or no thread, for a plan; use fewer threads"
            )
        self.handle = ffi.gc(handle[0], lib.onernn_workspace_free)
        self.sizes = lib.onernn_workspace_sizes(self.handle)
        self.places = lib.onernn_workspace_places(self.handle)
        self.dims = ffi.new("int64_t[]", max(len(encoded.dims), 1))
        self.step = ffi.new("int32_t[2]")
        self.costs = ffi.new("int32_t[]", max(len(encoded.steps), 1))
        self.bound: list[int] | None = None
        self.need, self.largest, self.was_used = 0, 0, True
        self._count = len(encoded.names) + len(encoded.polynomials)
        self._unpack = ffi.unpack
        self.shapes: list[Any] = []
        self.stopped = False

    def note_need(self) -> None:
        """Records this run's need for `UsualNeed`: the largest of the plan's sizes, usually a
        value's number of elements.
        """
        self.need = max(self._unpack(self.sizes, self._count), default=0)
        self.largest = max(self.largest, self.need)


class Workspaces:
    """The workspaces of a plan that no thread uses at present; safe to share between threads.

    The number of workspaces is the largest number of threads that have run the plan at the same
    time. A thread takes the workspace that was returned last, so that surplus workspaces stay
    unused. A workspace with much more memory than runs usually need is released after the run
    (`UsualNeed`).
    """

    def __init__(self, new: Callable[[], Workspace]) -> None:
        self._new, self._calls = new, 0
        # raises an error now, before a run, if too little memory is free
        self._idle = deque([new()])
        self._usual, self._largest = UsualNeed(), 0

    def take(self) -> Workspace:
        return take_idle(self._idle, self._new)

    def return_workspace(self, workspace: Workspace) -> bool:
        """Takes a workspace back after a call, even a failed one.

        Returns whether it released memory for more than runs usually need.
        """
        workspace.was_used = True
        self._idle.append(workspace)
        self._usual.note(workspace.need)
        self._largest = max(self._largest, workspace.largest)
        self._calls += 1
        is_spare = not self._usual.keeps(self._largest)
        if is_spare:
            self._release(lambda each: not self._usual.keeps(each.largest))
        elif self._calls % _PATIENCE == 0:
            self._release(lambda each: not each.was_used)
            for each in tuple(self._idle):
                each.was_used = False
        return is_spare

    def _release(self, is_spare: Callable[[Workspace], bool]) -> None:
        self._largest = 0
        for _ in range(len(self._idle)):
            try:
                workspace = self._idle.popleft()
            except IndexError:
                return  # other threads have taken them
            if not is_spare(workspace):
                self._largest = max(self._largest, workspace.largest)
                self._idle.append(workspace)


Around = Callable[[Feed], AbstractContextManager[Any]]
_AT_ONCE = 1000
"""How many operators of loops the library runs before Python may check for signals."""
_FOLLOWS = "a size that it reads is not known before Python has run other operators"
_MOST = 2**56
"""A limit in bytes for each size: sums of such sizes fit in 64 bits."""


class _Shape:
    """A value's dtype, and the indices of its address and its sizes in the plan's tables."""

    def __init__(self, encoded: Encoded, name: str) -> None:
        program = encoded.program
        self.place, self.dtype = encoded.places[encoded.owner(name)], np.dtype(program.dtype(name))
        self.sizes = [encoded.size(size) for size in program.shape(name)]
        self.levels: list[tuple[LodLevel, int, int]] = []
        with suppress(UnknownError):  # the offsets of a value that Python makes are not in the plan
            self.levels = [
                (level, encoded.places.get(level.offsets, -1), encoded.size(level.count))
                for level in program.levels(name)
            ]

    def of(self, sizes: Any) -> tuple[int, ...]:
        return tuple([sizes[at] for at in self.sizes])


class Arguments(NamedTuple):
    """A call's inputs. ``dims``: the sizes of their axes. ``places``: their memory, each with its
    index in the plan's table of addresses.
    """

    feed: Feed
    dims: list[int]
    places: list[tuple[int, Any]]


class Plan:
    """A fused graph made ready for the library; safe to share between threads.

    ``is_partial``: whether Python runs branches, loops or nodes whose result has a shape that only
    a call knows, or whether the call ends if it reaches a branch that cannot run.

    ``inputs``: the inputs, with the dtype and rank of each. ``outputs``: the name of each output,
    and of the value whose memory contains it. ``shapes``: the shapes of values, if they are known.
    ``axes``: the indices of sizes that must not be negative. Raises `UnsupportedError` for a graph
    whose sizes do not follow from the inputs.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: tuple[Value, ...],
        kernels: Kernels,
        layers: Mapping[Node, PreparedNode],
        threads: int,
    ) -> None:
        self.kernels, self._threads = kernels, threads
        program = Program(replace(graph, inputs=inputs))
        infer(program, named=False)
        inner = {
            node: layers[source] for node, source in program.sources.items() if source in layers
        }
        self._layers = layers = {**layers, **inner}
        self.encoded = encoded = encode(program, kernels, layers)
        self._share = sum(each.recurrence.share for each in encoded.layers.values())
        self._address = kernels.ffi.from_buffer
        self._inputs = [
            (
                value.name,
                encoded.places[value.name],
                [encoded.places[level.offsets] for level in program.levels(value.name)],
                np.dtype(value.dtype),
                len(value.shape or ()),
                value.name in program.longest,
            )
            for value in inputs
        ]
        self.shapes: dict[str, _Shape] = {}
        layers_of = (layer.node for layer in encoded.layers.values())
        for node in (*encoded.outside.values(), *layers_of):
            for name in filter(None, (*node.inputs, *node.outputs)):
                self._note_shape(name)
        self.outputs = [(value.name, encoded.root(value.name)) for value in program.graph.outputs]
        for name, _ in self.outputs:
            self._note_shape(name)
        self.shapes |= {root: _Shape(encoded, root) for root in encoded.outputs}
        self._direct = [
            (root, self.shapes[root].place, self.shapes[root].dtype) for root in encoded.outputs
        ]
        self._most = {
            root: encoded.size(program.most(root))
            for root, *_ in self._direct
            if any(size.names & program.inner.keys() for size in program.shape(root))
        }
        self.axes = [encoded.size(size) for size in doubtful_sizes(program)]
        names = [name for name, _ in self.outputs]
        self._plain = encoded.outputs == names and not self._most
        self._plain = self._plain and not any(self.shapes[name].levels for name in names)
        ffi, lib = kernels.ffi, kernels.lib
        words = encoded.words()
        plan = ffi.new("onernn_plan **")
        if lib.onernn_plan_new(ffi.new("int64_t[]", words), len(words), plan):
            raise LibraryError("kernels: the system has no memory for a plan")
        self._plan = ffi.gc(plan[0], lib.onernn_plan_free)
        self._constants = program.graph.constants
        self._workspaces = Workspaces(partial(Workspace, kernels, encoded, self._plan, threads))
        self.outside = tuple(encoded.outside.values())
        self.reasons = [
            (node.op, encoded.reasons[at] or program.reasons.get(node, _FOLLOWS))
            for at, node in encoded.outside.items()
        ]
        self.is_partial = (
            bool(program.refused)
            or not program.undetermined.isdisjoint(self.outside)
            or any(map(bodies, self.outside))
        )

    def _note_shape(self, name: str) -> None:
        encoded = self.encoded
        if encoded.owner(name) not in encoded.places:
            return
        try:
            self.shapes[name] = _Shape(encoded, name)
        except (UnknownError, UnsupportedError):
            return

    @property
    def description(self) -> str:
        """A description of what runs the nodes, for `Session.explain`."""
        return "one call of the library" + f"; in Python: {self.interpreted}" * bool(self.outside)

    @property
    def interpreted(self) -> str:
        """The operators that Python runs, each with the number of nodes and the reason."""
        counts = Counter(self.reasons)
        return ", ".join(
            f"{op}{f' {count} times' * (count > 1)} ({reason})"
            for (op, reason), count in counts.most_common()
        )

    @property
    def is_worth_it(self) -> bool:
        """Whether the plan saves time: the library runs at least one step."""
        return any(kind in (CALL, NEST, LAYER) for kind, _ in self.encoded.steps)

    def fits(self, other: Plan) -> bool:
        """Returns whether this plan can replace ``other``: it takes the same inputs, and leaves
        fewer nodes to Python or is not partial.
        """
        runs_more = len(self.outside) < len(other.outside) or not self.is_partial
        return runs_more and self._inputs == other._inputs

    def run(
        self, call: Arguments, most: int, most_steps: int, around: Around
    ) -> dict[str, Batch] | None:
        """Returns the outputs by name; None if the library refuses sizes or values of inputs.

        The run takes at most ``most`` bytes. ``around(inputs)``: a context manager that limits the
        number of operators. The plan runs inside of it if Python runs nodes, if there are loops, or
        if layers may take more than ``most_steps`` operators.
        """
        workspace = self._workspaces.take()
        try:
            return self._run(workspace, call, most, most_steps, around)
        finally:
            released = self._workspaces.return_workspace(workspace)
            del workspace
            if released:
                return_freed_memory()

    def _run(
        self, workspace: Workspace, call: Arguments, most: int, most_steps: int, around: Around
    ) -> dict[str, Batch] | None:
        feed, dims, pointers = call
        if dims != workspace.bound:
            nbytes = sum(len(at) for _, at in pointers)
            if not self._bind(workspace, dims, min(most, _MOST)):
                return None
            workspace.note_need()
            self._choose(workspace, most_steps + nbytes * self._share)
            workspace.bound = dims
        places, address = workspace.places, self._address
        keep: dict[Any, Any] = {}
        for place, at in pointers:
            places[place] = at
        outputs: dict[str, Batch] = {}
        for (root, place, dtype), shape in zip(self._direct, workspace.shapes, strict=True):
            outputs[root] = array = np.empty(shape, dtype)
            places[place] = keep[place] = address(array)
        values: dict[str, Any] = {}
        if workspace.stopped or self.encoded.loops:
            with around(feed), prepare(self._layers):
                done = self._steps(workspace, feed, values, keep)
        else:
            workspace.step[0] = -1
            status = self.kernels.lib.onernn_workspace_run(
                workspace.handle, workspace.costs, workspace.step
            )
            done = not status or self._report_refusal(status, workspace.step[0])
        if not done:
            return None
        if self._plain:
            return outputs
        return {
            name: self._output(workspace, name, root, feed, values, outputs)
            for name, root in self.outputs
        }

    def arguments(self, feed: Feed) -> Arguments | None:
        """Returns the arguments of a call for these inputs; None if an input does not have the type
        that the plan takes.
        """
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
        return Arguments(feed, dims, places)

    def _bind(self, workspace: Workspace, dims: list[int], most: int) -> bool:
        """Assigns memory to all values for these sizes of inputs; returns False if the sizes are
        invalid or need too much memory.
        """
        workspace.bound = None
        buffer = workspace.dims
        buffer[0 : len(dims)] = dims
        if self.kernels.lib.onernn_workspace_bind(workspace.handle, buffer, most):
            return False
        sizes = workspace.sizes
        if any(sizes[at] < 0 for at in self.axes):
            return False  # the library accepts a product of two negative sizes
        workspace.shapes = [
            sizes[self._most[root]] if root in self._most else self.shapes[root].of(sizes)
            for root, *_ in self._direct
        ]
        return True

    def _steps(
        self, workspace: Workspace, feed: Feed, values: dict[str, Any], keep: dict[Any, Any]
    ) -> bool:
        """Runs all steps; the library stops at steps that Python has to run."""
        step, count, budget = workspace.step, len(self.encoded.steps), running()
        step[0] = -1
        while True:
            step[1] = _AT_ONCE
            if status := self.kernels.lib.onernn_workspace_run(
                workspace.handle, workspace.costs, step
            ):
                return self._report_refusal(status, step[0])
            budget.turn(_AT_ONCE - step[1])
            if step[0] == count:
                return True
            if workspace.costs[step[0]] < 0:
                if not self._outside(workspace, step[0], feed, values, keep):
                    return False
                step[0] += 1

    def _choose(self, workspace: Workspace, most_steps: int) -> None:
        """Sets the cost of each step for these sizes: -1 if Python runs the step.

        In a plan without loops, the cost of a layer is 0, which means uncounted, if all layers
        together cost at most ``most_steps``.
        """
        sizes, costs = workspace.sizes, dict[int, int]()
        for at, layer in self.encoded.layers.items():
            costs[at] = layer.recurrence.cost(sizes[layer.steps], sizes[layer.words])
        counts = bool(self.encoded.loops) or sum(costs.values()) > most_steps
        for at in self.encoded.outside:
            workspace.costs[at] = -1
        for at, cost in costs.items():
            workspace.costs[at] = cost if counts and cost <= _AT_ONCE else -counts
        workspace.stopped = any(workspace.costs)

    def _outside(
        self,
        workspace: Workspace,
        at: int,
        feed: Feed,
        values: dict[str, Any],
        keep: dict[Any, Any],
    ) -> bool:
        """Runs a node in Python. Returns False if the result does not fit the plan."""
        layer = self.encoded.layers.get(at)
        node = layer.node if layer else self.encoded.outside[at]
        arguments = [
            self._value(workspace, name, feed, values) if name else None for name in node.inputs
        ]
        with naming(node, self.encoded.program.graph.name):
            result = KERNELS[node.op](node, *arguments)
        results = as_tuple(result)
        for name, value in zip(node.outputs, results, strict=False):
            if not name:
                continue
            values[name] = value = make_own(value, arguments)
            shape = self.shapes.get(name)
            if shape is None:
                continue
            array = np.ascontiguousarray(data_of(value))
            if array.dtype != shape.dtype or array.shape != shape.of(workspace.sizes):
                return False
            copies = bool(layer) or self.encoded.root(name) != name
            keep[shape.place] = pointer = self.kernels.ffi.from_buffer(array)
            of = workspace.handle, shape.place, pointer, array.nbytes, copies
            if self.kernels.lib.onernn_workspace_put(*of):
                return self._report_refusal(self.kernels.lib.ONERNN_UNSOUND, at)
        return True

    def _report_refusal(self, status: int, step: int) -> bool:
        """Returns False, for which the caller runs the whole graph in Python.

        Raises `LibraryError` if the plan is wrong and ONERNN_RAISE is set.
        """
        if status == self.kernels.lib.ONERNN_UNSOUND and os.environ.get("ONERNN_RAISE"):
            raise LibraryError(
                f"step {step} of the plan: expected memory of its own, got memory of other values"
            )
        return False

    def _value(self, workspace: Workspace, name: str, feed: Feed, values: Mapping[str, Any]) -> Any:
        for source in (values, feed, self._constants):
            if name in source:
                return source[name]
        shape = self.shapes.get(name)
        if shape is None:
            raise ShapeError(f"{name!r}: its shape is not known before a run: fix the sizes")
        ffi, sizes = self.kernels.ffi, shape.of(workspace.sizes)
        count = int(np.prod(sizes, dtype=object))
        bytes_of = ffi.buffer(workspace.places[shape.place], count * shape.dtype.itemsize)
        array = np.frombuffer(bytes_of, shape.dtype).reshape(sizes)
        return self._frame(workspace, shape, array, feed, values)

    def _frame(
        self,
        workspace: Workspace,
        shape: _Shape,
        array: Array,
        feed: Feed,
        values: Mapping[str, Any],
    ) -> Batch:
        levels = []
        for level, place, count in shape.levels:
            owner = feed.get(level.name, values.get(level.name))
            if isinstance(owner, Ragged):
                levels.append((*owner.outer, owner.offsets)[level.level])
            else:
                words = self.kernels.ffi.buffer(
                    workspace.places[place], 8 * (workspace.sizes[count] + 1)
                )
                levels.append(np.frombuffer(words, np.int64).copy())
        return Ragged.from_lod(array, levels) if levels else array

    def _output(
        self,
        workspace: Workspace,
        name: str,
        root: str,
        feed: Feed,
        values: Mapping[str, Any],
        outputs: dict[str, Batch],
    ) -> Batch:
        array: Any = outputs.pop(root, None)
        if array is None:
            value = self._value(workspace, name, feed, values)
            if name in values:
                return value
            return value.with_data(value.data.copy()) if isinstance(value, Ragged) else value.copy()
        shape = self.shapes[name]
        sizes = shape.of(workspace.sizes)
        if array.shape != sizes:
            array = array.reshape(-1)[: int(np.prod(sizes))].reshape(sizes)
        return self._frame(workspace, shape, array, feed, values)


def doubtful_sizes(program: Program) -> dict[Size, None]:
    """Returns the sizes that may be negative because they subtract a term, such as T - 3. Leaves
    out sizes that only a run computes.
    """
    names = (name for code in program.codes for name in code.node.outputs if name)
    sizes = (size for name in names for size in program.shape(name))
    return {
        size: None
        for size in sizes
        if any(by < 0 for _, by in size.terms) and program.inner.keys().isdisjoint(size.names)
    }
