"""One layer in one direction, running sorted packed batches piece by piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.batch_cutting import in_odd_pieces, segments, single_steps
from onernn.backend.buffers import aligned, borrowed
from onernn.backend.kernels import PackedBatch
from onernn.backend.onednn.creation import Primitive, argument
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.memory import Memory, bind, new_stream
from onernn.backend.onednn.precision import Precision
from onernn.backend.onednn.primitives import WEIGHTS, PrimitiveCache, Shape
from onernn.ir.arrays import Array
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import NO_SCALES, PartScales, RnnWeights, Scale


class Bound(NamedTuple):
    """A primitive with memories and the argument array of one execution at a time."""

    primitive: Primitive
    memories: Mapping[str, Memory]
    moving: tuple[Any, ...]  # handles whose addresses every execution sets
    arguments: Any


class Workspace:
    """What one execution at a time needs: a stream, a scratchpad, states, bound arguments."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.stream = new_stream(library)
        self.scratchpad = aligned(0)
        self.bound: dict[tuple[int, ...], Bound] = {}
        self.states: list[list[Array]] = [[], []]
        self.hits = 0

    def reserve(self, primitive: Primitive) -> None:
        """Makes the scratchpad large enough; whatever is bound to a smaller one is forgotten."""
        needed = primitive.layouts["scratchpad"].nbytes
        if needed > len(self.scratchpad):
            self.scratchpad = aligned(needed)
            self.bound.clear()

    def sides(self, initial: Sequence[Array]) -> list[list[Array]]:
        """Two buffers (N, O) for each state, as oneDNN may not write what it reads; both filled."""
        batch = len(initial[0])
        if not self.states[0] or len(self.states[0][0]) < batch:
            self.states = [
                [aligned(s.nbytes).view(s.dtype).reshape(s.shape) for s in initial] for _ in "01"
            ]
            self.bound.clear()
        sides = [[buffer[:batch] for buffer in side] for side in self.states]
        for side in sides:
            for buffer, s in zip(side, initial, strict=True):
                buffer[...] = s
        return sides

    def bind(self, primitive: Primitive, fixed: Mapping[str, Memory], moving: list[str]) -> Bound:
        """Arguments over ``fixed`` memories, and over nothing yet for those that move."""
        memories = {
            name: fixed[name] if name in fixed else Memory(layout)
            for name, layout in primitive.layouts.items()
        }
        numbered = {argument(self.library, name): memory for name, memory in memories.items()}
        handles = tuple(memories[name].handle for name in moving)
        return Bound(primitive, memories, handles, bind(self.library, numbered))

    def execute(self, bound: Bound, addresses: list[int]) -> None:
        """Runs a primitive with its moving arguments at ``addresses``."""
        lib, cast = self.library.lib, self.library.ffi.cast
        for handle, where in zip(bound.moving, addresses, strict=True):
            lib.dnnl_memory_set_data_handle(handle, cast("void *", where))
        status = lib.dnnl_primitive_execute(
            bound.primitive.handle, self.stream, len(bound.memories), bound.arguments
        )
        if status:
            self.library.check(status, "execution of an RNN primitive")


class PrimitiveDirection:
    """Ready to run; shared between threads, each with a workspace of its own."""

    def __init__(
        self,
        library: Library,
        spec: RnnSpec,
        weights: RnnWeights,
        precision: Precision,
        scale: Scale | None = None,
        per_channel: bool = True,
        columns: PartScales = NO_SCALES,
    ) -> None:
        self._library, self._backwards = library, spec.direction == "right2left"
        # oneDNN's AUGRU cells run left to right only; one step at a time they run either way.
        self._stepwise = self._backwards and spec.cell.has_attention
        if self._stepwise:
            spec = replace(spec, direction="left2right")
        self.primitives = PrimitiveCache(
            library,
            spec,
            weights,
            precision,
            scale=scale,
            per_channel=per_channel,
            columns=columns,
        )
        self._idle: deque[Workspace] = deque()
        suffixes = ["" if state == "h" else "_c" for state in spec.cell.states]
        self._states = [[f"{end}_iter{s}" for s in suffixes] for end in ("src", "dst")]
        self._moving = ["src_layer", "dst_layer"] + ["augru_attention"] * spec.cell.has_attention
        probe = self.primitives.get(Shape.packed(1, 1, spec.input_size, spec.recurrent_size))
        self.kernel = probe.kernel

    def run(self, batch: PackedBatch) -> list[Array]:
        """The final states (n, O) of the sentences that have words.

        All in the data types of the precision.
        """
        x, y, packing, initial, attention = batch
        with borrowed(self._idle, lambda: Workspace(self._library)) as workspace:
            pieces = segments(packing)
            if self._stepwise:
                pieces = single_steps(pieces)
            order = pieces[::-1] if self._backwards else pieces
            sides = workspace.sides(initial)
            x_row, y_row = x.strides[0], y.strides[0]
            x_at, y_at = x.ctypes.data, y.ctypes.data
            a_at, a_row = 0, 0
            if attention is not None:
                a_at, a_row = attention.ctypes.data, attention.itemsize
            strides = (x_row // x.itemsize, y_row // y.itemsize)
            side = 0  # the one that is read
            for row, time, count in order:
                known = (side, time, count, *strides)
                bound = workspace.bound.get(known)
                if bound is None:
                    bound = self._bind(workspace, known)
                else:
                    workspace.hits += 1
                addresses = [x_at + row * x_row, y_at + row * y_row]
                if attention is not None:
                    addresses.append(a_at + row * a_row)
                workspace.execute(bound, addresses)
                side = 1 - side
            # Each state stays where its sentence's last piece wrote it. Backwards all end with the
            # last one, and those that begin later find their initial states on either side.
            odd = np.bool_(side) if self._backwards else in_odd_pieces(packing)
            running = len(packing.last)
            return [np.where(odd, b[:running], a[:running]) for a, b in zip(*sides, strict=True)]

    def _bind(self, workspace: Workspace, known: tuple[int, int, int, int, int]) -> Bound:
        side, *shape = known
        primitive = self.primitives.get(Shape.packed(*shape))
        fixed = {
            name: self.primitives.weights(name, layout)
            for name, layout in primitive.layouts.items()
            if name in WEIGHTS
        }
        for names, buffers in zip(self._states, workspace.states[:: 1 - 2 * side], strict=True):
            for name, buffer in zip(names, buffers, strict=True):
                fixed[name] = Memory(primitive.layouts[name], buffer)
        workspace.reserve(primitive)
        fixed["scratchpad"] = Memory(primitive.layouts["scratchpad"], workspace.scratchpad)
        if len(workspace.bound) >= self._library.cache_capacity:
            workspace.bound.clear()
        bound = workspace.bind(primitive, fixed, self._moving)
        workspace.bound[known] = bound
        return bound

    def cache_info(self) -> tuple[int, int]:
        """Primitives found, and made; what runs at this moment is not counted yet."""
        bound = sum(workspace.hits for workspace in self._idle.copy())
        return self.primitives.hits + bound, self.primitives.misses
