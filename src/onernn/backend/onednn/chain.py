"""Batches as chains of matrix products whose post-ops are the gates (`chain_program`).

The input's shares of all gates are computed in blocks of words, without padding, just before the
steps that read them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.buffers import Buffers, aligned, borrowed
from onernn.backend.creation_lock import CREATION
from onernn.backend.kernels import PackedBatch
from onernn.backend.onednn.chain_program import Stage, program
from onernn.backend.onednn.chain_weights import ChainWeights
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.matmul import (
    MatmulPrimitive,
    bound_arguments,
    create_matmul,
    create_tanh,
)
from onernn.backend.onednn.memory import Descriptor, Memory, new_stream
from onernn.backend.onednn.precision import Precision
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.precision import NO_SCALES, PartScales
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import RnnWeights

BLOCK = 256
"""Rows of one input product: its gates are still in L2 when the steps read them."""


class _Step(NamedTuple):
    """One step for a number of rows: executions, and the memories whose addresses move."""

    executions: tuple[tuple[Any, int, Any], ...]
    moving: tuple[Any, ...]  # h, h_next, g0, g1, ...
    memories: dict[str, Memory]


class _Workspace:
    """Buffers of one execution at a time, grown on demand, and what is bound to them."""

    def __init__(self, library: Library) -> None:
        self.stream = new_stream(library)
        self.scratch = Buffers()
        self.buffers: dict[str, Array] = {}
        self.steps: dict[int, _Step] = {}
        self.blocks: dict[int, Any] = {}
        self.hits = 0

    def buffer(self, name: str, nbytes: int) -> Array:
        """At least ``nbytes``; whatever was bound to a smaller one is forgotten."""
        held = self.buffers.get(name)
        if held is None or len(held) < nbytes:
            held = self.buffers[name] = aligned(nbytes)
            self.steps.clear()
            self.blocks.clear()
        return held


class ChainDirection:
    """One layer in one direction, as products with post-ops; shared between threads."""

    def __init__(
        self,
        library: Library,
        spec: RnnSpec,
        weights: RnnWeights,
        precision: Precision,
        scales: PartScales = NO_SCALES,
    ) -> None:
        self._library, self._spec, self._precision = library, spec, precision
        self._u8 = precision.data == "u8"
        self._program = program(spec.cell, "u8" if self._u8 else "float")
        if not self._program:
            raise UnsupportedError(f"{spec.cell.name} has no chain in {precision.data}")
        self._backwards = spec.direction == "right2left"
        self._weights = ChainWeights(library, weights, precision, scales)
        self._idle: deque[_Workspace] = deque()
        self._products: dict[tuple[Any, ...], MatmulPrimitive] = {}
        self._hits = self._misses = 0
        self.kernel = f"{self._product(self._program[0], 1).kernel} chain"

    def run(self, batch: PackedBatch, x_factor: float = 1.0) -> list[Array]:
        """See `PrimitiveDirection.run`; u8: x holds round(x / x_factor) + 128."""
        with borrowed(self._idle, lambda: _Workspace(self._library)) as workspace:
            return self._run(workspace, batch, x_factor)

    def _run(self, workspace: _Workspace, batch: PackedBatch, x_factor: float) -> list[Array]:
        x, y, packing, initial, _ = batch
        words, (h0, *c0) = len(x), initial
        width, units = self._spec.recurrent_size, self._spec.hidden_size
        sentences = int(packing.batch_sizes[0]) if words else 0
        slack = rounded(sentences)
        row_bytes = width * h0.itemsize
        # Row 0 is the state before the first step; surplus rows of a step are overwritten later.
        h = workspace.buffer("h", (sentences + words + slack) * row_bytes)
        gates = [
            workspace.buffer(f"g{k}", (words + slack) * units * 4) for k in range(self._spec.gates)
        ]
        for stage in self._program:
            if stage.out != "h_next":
                workspace.buffer(stage.out, slack * units * 4)
        rows = h.view(h0.dtype)[: (sentences + words + slack) * width].reshape(-1, width)
        rows[:sentences] = h0[:sentences]
        ended = []  # the final cell states
        if c0:
            c = workspace.buffers["c"].view(np.float32)[: slack * units].reshape(-1, units)
            c[:sentences] = c0[0][:sentences]
            ended.append(np.empty((len(packing.last), units), np.float32))
        if self._backwards:
            x = workspace.scratch.gathered("x", x, packing.flip)
        projected = self._projected(workspace, x, gates, x_factor)
        before, h_at = h.ctypes.data, h.ctypes.data + sentences * row_bytes
        at = [g.ctypes.data for g in gates]
        sizes, ready = packing.batch_sizes.tolist(), 0
        for start, running, left in zip(
            packing.step_offsets.tolist(), sizes, [*sizes[1:], 0], strict=False
        ):
            while ready < start + running:
                ready = next(projected)
            here = h_at + start * row_bytes
            step = self._step(workspace, rounded(running))
            self._execute(workspace, step, (before, here, *(a + start * units * 4 for a in at)))
            before = here
            if ended and left < running:  # surplus rows of the next step would overwrite them
                ended[0][left:running] = c[left:running]
        outputs = rows[sentences : sentences + words]
        if self._backwards:
            y[:] = workspace.scratch.gathered("y", outputs, packing.flip)
        else:
            y[:] = outputs
        return [outputs[packing.last], *ended]

    def _execute(self, workspace: _Workspace, step: _Step, addresses: tuple[int, ...]) -> None:
        lib, cast = self._library.lib, self._library.ffi.cast
        for handle, where in zip(step.moving, addresses, strict=True):
            lib.dnnl_memory_set_data_handle(handle, cast("void *", where))
        for primitive, count, arguments in step.executions:
            status = lib.dnnl_primitive_execute(primitive, workspace.stream, count, arguments)
            if status:
                self._library.check(status, "execution of a gate")

    def _projected(
        self, workspace: _Workspace, x: Array, gates: list[Array], x_factor: float
    ) -> Iterator[int]:
        """g_k = x @ W_k + b_k, a block of words at a time; gives how many words are ready."""
        library, units = self._library, self._spec.hidden_size
        if self._weights.layer is None:
            for k, g in enumerate(gates):
                self._weights.add_bias(
                    x, k, g.view(np.float32)[: len(x) * units].reshape(-1, units)
                )
            yield len(x)
            return
        row = 0
        lib, cast = library.lib, library.ffi.cast
        for size in blocks(len(x)):
            bound = workspace.blocks.get(size) or self._bind_block(workspace, size)
            x_at = x.ctypes.data + row * x.strides[0]
            lib.dnnl_memory_set_data_handle(bound["src"].handle, cast("void *", x_at))
            if self._u8:
                bound["src_scale"].data[:] = x_factor
            for k, g in enumerate(gates):
                place = g.ctypes.data + row * units * 4
                lib.dnnl_memory_set_data_handle(bound[f"g{k}"].handle, cast("void *", place))
                primitive, count, arguments = bound[k]
                status = lib.dnnl_primitive_execute(primitive, workspace.stream, count, arguments)
                library.check(status, "input product")
            row += size
            yield row

    def _bind_block(self, workspace: _Workspace, size: int) -> dict[Any, Any]:
        bound: dict[Any, Any] = {}
        for k in range(self._spec.gates):
            key = ("x", size, k)
            primitive = self._cached(key, lambda: self._input_product(size))
            names = {
                name: self._weights.memory(name, "layer", k, primitive)
                for name in primitive.numbers
            }
            for name in ("src", "src_scale"):
                if name in names:
                    names[name] = bound.setdefault(name, _moving(primitive.layouts[name], name))
            names["dst"] = bound[f"g{k}"] = Memory(primitive.layouts["dst"])
            names["scratchpad"] = Memory.empty(primitive.layouts["scratchpad"])
            arguments = bound_arguments(self._library, primitive, names)
            bound[k] = (primitive.handle, len(arguments), arguments)
            bound["keep", k] = names
        workspace.blocks[size] = bound
        return bound

    def _input_product(self, size: int) -> MatmulPrimitive:
        p, spec = self._precision, self._spec
        dims = (size, spec.input_size, spec.hidden_size)
        return create_matmul(
            self._library, dims, (p.data, p.weights, "f32"), bias=True, scaled=self._u8
        )

    def _step(self, workspace: _Workspace, rows: int) -> _Step:
        step = workspace.steps.get(rows)
        if step is not None:
            workspace.hits += len(step.executions)
            return step
        if len(workspace.steps) >= self._library.cache_capacity:
            workspace.steps.clear()
        step = workspace.steps[rows] = self._bind_step(workspace, rows)
        return step

    def _bind_step(self, workspace: _Workspace, rows: int) -> _Step:
        memories = {
            name: Memory(layout, workspace.buffers[name] if name in workspace.buffers else None)
            for name, layout in self._layouts(rows).items()
        }
        executions = []
        for stage in self._program:
            primitive = self._product(stage, rows)
            names = {}
            for name in primitive.numbers:
                if name == "src":
                    names[name] = memories[stage.source]
                elif name == "dst":
                    names[name] = memories[stage.out]
                elif name == "scratchpad":
                    names[name] = Memory.empty(primitive.layouts[name])
                elif name in memories:
                    names[name] = memories[name]
                elif stage.gate is not None:
                    names[name] = self._weights.memory(name, "iter", stage.gate, primitive)
            arguments = bound_arguments(self._library, primitive, names)
            executions.append((primitive.handle, len(arguments), arguments))
            memories.update({f"{stage.out}/{name}": memory for name, memory in names.items()})
        moving = ["h", "h_next", *(f"g{k}" for k in range(self._spec.gates))]
        return _Step(tuple(executions), tuple(memories[n].handle for n in moving), memories)

    def _layouts(self, rows: int) -> dict[str, Descriptor]:
        """The step's buffers, (rows, O) each."""
        units = self._spec.hidden_size

        def plain(dtype: str) -> Descriptor:
            return Descriptor.tagged(self._library, (rows, units), dtype, "ab")

        out = {"h": plain(self._precision.data), "h_next": plain(self._precision.data)}
        for k in range(self._spec.gates):
            out[f"g{k}"] = plain("f32")
        for stage in self._program:
            if stage.out != "h_next":
                out[stage.out] = plain(self._precision.data if stage.out == "rh" else "f32")
        return out

    def _product(self, stage: Stage, rows: int) -> MatmulPrimitive:
        def make() -> MatmulPrimitive:
            layouts, p = self._layouts(rows), self._precision
            if stage.gate is None:
                return create_tanh(self._library, (rows, self._spec.hidden_size), "f32")
            operands = {op.operand: layouts[op.operand] for op in stage.chain if op.operand}
            return create_matmul(
                self._library,
                (rows, self._spec.recurrent_size, self._spec.hidden_size),
                (p.data, p.weights, layouts[stage.out].dtype),
                bias=stage.bias,
                chain=stage.chain,
                operands=operands,
                scaled=self._u8,
            )

        return self._cached((stage.out, rows), make)

    def _cached(self, key: tuple[Any, ...], make: Any) -> MatmulPrimitive:
        with CREATION:
            found = self._products.get(key)
            if found is not None:
                self._hits += 1
                return found
            self._misses += 1
            if len(self._products) >= self._library.cache_capacity:
                self._products.clear()
            found = self._products[key] = make()
            return found

    def cache_info(self) -> tuple[int, int]:
        """Products found, and made; what runs at this moment is not counted yet."""
        return self._hits + sum(w.hits for w in self._idle.copy()), self._misses


def _moving(layout: Descriptor, name: str) -> Memory:
    return Memory(layout, np.empty(1, np.float32) if name == "src_scale" else None)


def rounded(rows: int) -> int:
    """Rows that a product is made for: few distinct numbers, little surplus."""
    if rows <= 4:
        return rows
    grain = 4 if rows <= 64 else 16 if rows <= 256 else 64
    return -(-rows // grain) * grain


def blocks(rows: int) -> Iterator[int]:
    """Cuts rows into whole blocks and powers of two."""
    while rows:
        size = min(BLOCK, 1 << (rows.bit_length() - 1))
        yield size
        rows -= size
