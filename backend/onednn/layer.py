"""Layers and stacks on oneDNN: packed once, then run direction by direction."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.checks import State, checked_input
from onernn.backend.onednn.library import Library, load_library
from onernn.backend.onednn.memory import Memory, aligned, bind, new_stream
from onernn.backend.onednn.primitives import (
    CAPACITY,
    WEIGHTS,
    DirectionPrimitives,
    Primitive,
    Shape,
    argument,
)
from onernn.backend.reference import ReferenceLayer
from onernn.backend.schedule import Segment, segments, single_steps
from onernn.core.arrays import Array
from onernn.core.errors import Refusal, UnsupportedError
from onernn.core.ragged import Ragged, data_of
from onernn.core.spec import Direction, RnnSpec
from onernn.core.weights import RnnWeights, Weights, layers_of


def refusal(spec: RnnSpec, weights: Weights, dtype: str) -> str:
    """Why oneDNN cannot run this, "" where it can."""
    first = weights if isinstance(weights, RnnWeights) else weights[0]
    if spec.activations is not None:
        named = ", ".join(map(str, spec.activations))
        usual = ", ".join(map(str, spec.cell.activations))
        return f"oneDNN's {spec.cell.name} has {usual}, not {named}"
    if spec.update == "replace":
        return "oneDNN's GRU keeps with its update gate, this one replaces"
    if spec.gate_clip is not None or spec.cell_clip is not None:
        return "oneDNN does not clip"
    if first.iter.dtype != np.float32:
        return f"oneDNN does not compute in {first.iter.dtype}"
    if dtype != "f32":
        return f"dtype {dtype} is not implemented yet"
    if spec.stacking == "onednn" and spec.layers > 1:
        return "stacking='onednn' is not implemented yet"
    return ""


class OneDnnBackend:
    """Prepares layers on libdnnl, which is loaded with the first backend."""

    def __init__(self, threads: int | None = None) -> None:
        self.library = load_library()
        self.threads = self.library.max_threads if threads is None else threads

    def prepare(
        self, spec: RnnSpec, weights: Weights, *, dtype: str = "f32", strict: bool = False
    ) -> OneDnnLayer | ReferenceLayer:
        layers = layers_of(spec, weights)
        why = refusal(spec, weights, dtype)
        try:
            if not why:
                return OneDnnLayer(self.library, spec, layers, dtype, self.threads)
        except UnsupportedError as error:
            why = str(error)
        if strict:
            raise UnsupportedError(
                f"{why}; drop strict=True to run it on the reference", (Refusal(why),)
            )
        precise = "f64" if layers[0].iter.dtype == np.float64 else "f32"
        return ReferenceLayer(spec, layers, precise, why)


class OneDnnLayer:
    """A layer or stack; every layer and direction is a primitive of its own.

    Ragged batches run in the sorted packed layout from the first layer to the last, without
    padding (design/0004). Safe to share between threads.
    """

    why = ""

    def __init__(
        self,
        library: Library,
        spec: RnnSpec,
        layers: Iterable[RnnWeights],
        dtype: str,
        threads: int,
    ) -> None:
        self.spec, self.dtype = spec, dtype
        self._library, self._threads = library, threads
        both: tuple[Direction, ...] = ("left2right", "right2left")
        directions = both if spec.directions == 2 else (spec.direction,)
        width = spec.input_size
        self._stack: list[list[_Direction]] = []
        with library.threads(threads):
            for weights in layers:
                row = [
                    _Direction(library, spec.one_layer(width, side), weights.part(0, d))
                    for d, side in enumerate(directions)
                ]
                self._stack.append(row)
                width = spec.output_size
        self.kernel = f"oneDNN {library.version} {self._stack[0][0].kernel}"

    def run(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
    ) -> tuple[Ragged | Array, State]:
        """See `PreparedLayer.run`."""
        x, initial, attention = checked_input(self.spec, x, state, attention, np.dtype(np.float32))
        scale = None if attention is None else data_of(attention)
        if isinstance(x, Ragged):
            packing = x.packing
            words = packing.pack(x.data)
            scale = None if scale is None else packing.pack(scale)
            sorted_states = [np.ascontiguousarray(s[:, :, packing.order]) for s in initial]
            packed, final = self._run_stack(words, segments(packing), sorted_states, scale)
            back = tuple(s[:, :, packing.unsort] for s in final)
            return x.with_data(packing.unpack(packed)), back
        t, n, channels = x.shape
        words = np.ascontiguousarray(x).reshape(t * n, channels)
        pieces = (Segment(0, t, n),) if t * n else ()
        scale = None if scale is None else np.ascontiguousarray(scale).reshape(t * n, 1)
        out, final = self._run_stack(
            words, pieces, [np.ascontiguousarray(s) for s in initial], scale
        )
        return out.reshape(t, n, out.shape[-1]), tuple(final)

    def _run_stack(
        self, words: Array, pieces: tuple[Segment, ...], initial: list[Array], scale: Array | None
    ) -> tuple[Array, list[Array]]:
        final = [s.copy() for s in initial]
        width = self.spec.recurrent_size
        summed = self.spec.direction == "bidirectional_sum"
        with self._library.threads(self._threads):
            for layer, row in enumerate(self._stack):
                out = np.empty((len(words), width * len(row)), np.float32)
                for d, direction in enumerate(row):
                    y = out[:, d * width : (d + 1) * width]
                    ends = [s[layer, d] for s in final]
                    direction.run(words, y, pieces, [s[layer, d] for s in initial], ends, scale)
                words = out[:, :width] + out[:, width:] if summed else out
        return words, final


class _Bound(NamedTuple):
    """A primitive with the memories and the argument array of one thread's executions."""

    primitive: Primitive
    memories: dict[str, Memory]
    handles: tuple[Any, ...]  # of x, y, states in, states out, attention, scratchpad
    arguments: Any


class _Workspace:
    """What one execution at a time needs: a stream, a scratchpad, bound arguments."""

    def __init__(self, library: Library) -> None:
        self.stream = new_stream(library)
        self.scratchpad = aligned(0)
        self.bound: dict[Shape, _Bound] = {}


class _Direction:
    """One layer and direction, ready to run packed batches."""

    def __init__(self, library: Library, spec: RnnSpec, weights: RnnWeights) -> None:
        self._library, self._backwards = library, spec.direction == "right2left"
        # oneDNN's AUGRU cells run left to right only; one step at a time they run either way.
        self._stepwise = self._backwards and spec.cell.has_attention
        if self._stepwise:
            spec = replace(spec, direction="left2right")
        self._primitives = DirectionPrimitives(library, spec, weights)
        self._idle: deque[_Workspace] = deque()
        suffixes = ["" if name == "h" else "_c" for name in spec.cell.states]
        self._moving = (
            "src_layer",
            "dst_layer",
            *(f"src_iter{s}" for s in suffixes),
            *(f"dst_iter{s}" for s in suffixes),
            *(("augru_attention",) if spec.cell.has_attention else ()),
            "scratchpad",
        )
        shape = Shape(1, 1, (spec.input_size,) * 2, (spec.recurrent_size,) * 2)
        self.kernel = self._primitives.get(shape).kernel

    def run(
        self,
        x: Array,
        y: Array,
        pieces: tuple[Segment, ...],
        initial: list[Array],
        final: list[Array],
        scale: Array | None,
    ) -> None:
        """Runs sorted packed words x (W, I) into y (W, O), rows of any stride.

        ``initial`` and ``final``: (N, O) each, sorted; ``final`` holds the initial states, and
        gets those of the sentences that have words.
        """
        try:
            workspace = self._idle.pop()
        except IndexError:
            workspace = _Workspace(self._library)
        try:
            self._run(workspace, x, y, pieces, initial, final, scale)
        finally:
            self._idle.append(workspace)

    def _run(
        self,
        workspace: _Workspace,
        x: Array,
        y: Array,
        pieces: tuple[Segment, ...],
        initial: list[Array],
        final: list[Array],
        scale: Array | None,
    ) -> None:
        if self._stepwise:
            pieces = single_steps(pieces)
        order = pieces[::-1] if self._backwards else pieces
        # The state goes back and forth between two buffers: oneDNN may not write what it reads.
        here = [s.copy() for s in initial]
        there = [np.empty_like(s) for s in initial]
        x_row, y_row = x.strides[0], y.strides[0]
        x_at, y_at = x.ctypes.data, y.ctypes.data
        scale_at = 0 if scale is None else scale.ctypes.data
        for k, (row, time, batch) in enumerate(order):
            shape = Shape(
                time, batch, (batch * x_row // 4, x_row // 4), (batch * y_row // 4, y_row // 4)
            )
            bound = workspace.bound.get(shape) or self._bind(workspace, shape)
            addresses = [x_at + row * x_row, y_at + row * y_row]
            addresses += [s.ctypes.data for s in (*here, *there)]
            if scale is not None:
                addresses.append(scale_at + row * 4)
            addresses.append(workspace.scratchpad.ctypes.data)
            self._execute(workspace, bound, addresses)
            here, there = there, here
            # Forwards the shortest sentences end here; backwards their initial states are still
            # in place for the longer rest, and all end with the last piece.
            left = order[k + 1].batch if k + 1 < len(order) else 0
            for state, end, begin in zip(here, final, initial, strict=True):
                if left < batch:
                    end[left:batch] = state[left:batch]
                elif left > batch:
                    state[batch:left] = begin[batch:left]

    def _execute(self, workspace: _Workspace, bound: _Bound, addresses: list[int]) -> None:
        lib, cast = self._library.lib, self._library.ffi.cast
        for handle, where in zip(bound.handles, addresses, strict=True):
            lib.dnnl_memory_set_data_handle(handle, cast("void *", where))
        status = lib.dnnl_primitive_execute(
            bound.primitive.handle, workspace.stream, len(bound.memories), bound.arguments
        )
        if status:
            self._library.check(status, "execution of an RNN primitive")

    def _bind(self, workspace: _Workspace, shape: Shape) -> _Bound:
        primitive = self._primitives.get(shape)
        memories = {}
        for name, descriptor in primitive.descriptors.items():
            fixed = name in WEIGHTS
            memories[name] = (
                self._primitives.weights(name, descriptor) if fixed else Memory(descriptor)
            )
        needed = primitive.descriptors["scratchpad"].nbytes
        if needed > len(workspace.scratchpad):
            workspace.scratchpad = aligned(needed)
        lib = self._library.lib
        numbered = {getattr(lib, argument(name)): memory for name, memory in memories.items()}
        handles = tuple(memories[name].handle for name in self._moving)
        if len(workspace.bound) == CAPACITY:
            workspace.bound.clear()
        bound = _Bound(primitive, memories, handles, bind(self._library, numbered))
        workspace.bound[shape] = bound
        return bound
