"""What a module's parameters are packed into, and its calls that need no gradients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch

from onernn.adapters.torch.live.batches import Batch, is_plain
from onernn.adapters.torch.live.parameters import weights_of
from onernn.backend import Backend, Stack, open_backend
from onernn.core.arrays import Array
from onernn.core.errors import LibraryError, UnsupportedError
from onernn.core.ragged import Packing, Ragged
from onernn.core.spec import RnnSpec

DTYPES = {
    None: "f32",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}
"""What matrices are rounded to, by what `optimize` is told."""


class Packed(NamedTuple):
    """A stack, and the parameters that it was made of.

    ``memory`` keeps their memory from being given to others: an address tells who is there.
    """

    weights: Sequence[torch.Tensor]
    memory: Sequence[torch.Tensor]
    key: list[int]
    stack: Stack

    def holds(self, weights: Sequence[torch.Tensor], threads: int) -> bool:
        """Whether the parameters are those, unchanged as far as PyTorch tells."""
        return all(map(is_, self.weights, weights)) and self.key == _key(weights, threads)


def _key(weights: Sequence[torch.Tensor], threads: int) -> list[int]:
    return [
        threads,
        os.getpid(),  # a second thread does not live on in a fork
        *[weight.data_ptr() for weight in weights],
        *[weight._version for weight in weights],
    ]


class LiveLayer:
    """A module's numbers packed for kernels, and the reasons why calls of it stayed PyTorch's."""

    def __init__(self, spec: RnnSpec, names: Sequence[str], dtype: str) -> None:
        self.spec, self.dtype, self._names = spec, dtype, names
        self._packed: dict[str, Packed] = {}
        self.reasons: dict[str, None] = {}
        self.ran = ""
        """What ran the last call, for `explain`."""

    def forget(self) -> None:
        """The next call packs anew."""
        self._packed = {}

    def _packed_as(self, dtype: str, weights: Sequence[torch.Tensor]) -> Stack:
        """The layer for the parameters as they are. Raises `UnsupportedError`."""
        threads = torch.get_num_threads()
        kept = self._packed.get(dtype)
        if kept is not None and kept.holds(weights, threads):
            return kept.stack
        self.check(weights)
        key, memory = _key(weights, threads), [weight.detach() for weight in weights]
        parts = weights_of(self.spec, memory)
        stack = engine(dtype, threads).prepare(self.spec, parts, dtype=dtype, strict=True)
        self._packed[dtype] = Packed(list(weights), memory, key, stack)
        self.ran = stack.explain()
        return stack

    def check(self, weights: Sequence[torch.Tensor]) -> None:
        """Raises `UnsupportedError` for parameters that cannot be read, or followed."""
        for name, weight in zip(self._names, weights, strict=True):
            if not is_plain(weight) or weight.is_inference():
                raise UnsupportedError(f"{name} is no plain tensor of the CPU that has a version")
            if weight.dtype != torch.float32:
                raise UnsupportedError(f"{name} is {weight.dtype}: only float32 is faster here")

    def run(
        self,
        dtype: str,
        weights: Sequence[torch.Tensor],
        batch: Batch,
        states: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """y and the final states (L*D, N, O); the states are contiguous, and fit."""
        stack = self._packed_as(dtype, weights)
        x, spec, rows = batch.x, stack.spec, batch.sequences
        kernel = stack.compiled
        if kernel is None or not stack.runs_compiled(batch.begin is not None, _words(x), rows):
            return _by_arrays(stack, batch, states)
        y = x.new_empty((*x.shape[:-1], spec.output_size))
        widths = (spec.recurrent_size, spec.hidden_size)[: len(spec.cell.states)]
        ends = [x.new_empty((spec.layers * spec.directions, rows, width)) for width in widths]
        kernel.run_at(
            kernel.layouts[batch.layout],
            (batch.steps, rows),
            kernel.at(0 if batch.begin is None else batch.begin.ctypes.data, "int64_t *"),
            kernel.at(x.data_ptr()),
            kernel.at(y.data_ptr()),
            [kernel.at(state.data_ptr()) for state in states],
            [kernel.at(end.data_ptr()) for end in ends],
        )
        return y, ends


@cache
def engine(dtype: str, threads: int) -> Backend:
    """The kernels, which read PyTorch's memory in place, where they use all threads.

    In bf16 and for more threads whatever was measured as faster.
    """
    if dtype == "f32" and threads <= 2:
        with suppress(LibraryError):
            return open_backend("kernels", threads=threads)
    return open_backend("auto", threads=threads)


def _words(x: torch.Tensor) -> int:
    return x.numel() // x.shape[-1]


def _by_arrays(
    stack: Stack, batch: Batch, states: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The same where something else than the kernels runs it."""
    spec = stack.spec
    initial = tuple(
        state.detach().numpy().reshape(spec.layers, spec.directions, *state.shape[-2:])
        for state in states
    )
    x = batch.x.detach().numpy()
    y, final = stack.run(arrays_of(batch, x), initial or None)
    ends = [torch.from_numpy(end.reshape(-1, *end.shape[2:])) for end in final]
    return torch.from_numpy(np.ascontiguousarray(laid_back(batch, y))).view(
        *x.shape[:-1], spec.output_size
    ), ends


def arrays_of(batch: Batch, x: Array) -> Ragged | Array:
    """Words like those of the batch, as the array level reads them."""
    if batch.layout == "lod":
        return Ragged(x, batch.begin)  # type: ignore[arg-type]
    if batch.layout == "packed":
        packing = packing_of(batch)
        return Ragged.from_lengths(packing.unpack(x), packing.lengths)
    dense = x.reshape(batch.sequences, batch.steps, -1) if batch.layout == "ntc" else x
    return dense.swapaxes(0, 1) if batch.layout == "ntc" else _tnc(batch, x)


def _tnc(batch: Batch, x: Array) -> Array:
    return x.reshape(batch.steps, batch.sequences, x.shape[-1])


def laid_back(batch: Batch, y: Any) -> Array:
    """What `arrays_of` gave, as the words of the batch."""
    if batch.layout == "lod":
        return y.data
    if batch.layout == "packed":
        return packing_of(batch).pack(y.data)
    return y.swapaxes(0, 1) if batch.layout == "ntc" else y


def packing_of(batch: Batch) -> Packing:
    """Where the words of packed sequences stand."""
    assert batch.begin is not None
    sizes = np.diff(batch.begin)
    lengths = np.searchsorted(-sizes, -np.arange(batch.sequences), side="left")
    return Ragged.from_lengths(np.empty((batch.begin[-1], 0)), lengths).packing
