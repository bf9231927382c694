"""Decides which layers libdnnl runs, and with how many threads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from onernn.backend.layer_walk import LayerWalk
from onernn.backend.onednn.kernels import new_kernel
from onernn.backend.onednn.library import Library, load_library
from onernn.backend.onednn.precision import (
    FLOAT,
    OURS,
    PRECISIONS,
    U8,
    U8Options,
    has_one_scale,
)
from onernn.backend.onednn.training import onednn_trainer
from onernn.backend.process import DNNL_LIBRARY, usable_cpus
from onernn.backend.reference import reference_stack
from onernn.backend.stack import LayerBackend, Stack
from onernn.ir.errors import LibraryError, UnsupportedError
from onernn.ir.rnn import why_not
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import Layers, RnnWeights


def refusal(library: Library, spec: RnnSpec, layers: Sequence[RnnWeights], dtype: str) -> str:
    """Returns why oneDNN cannot run this layer, or "" if it can."""
    row = OURS[dtype]
    if not row.is_in(library.version):
        return (
            f"{dtype} needs libdnnl {row.since} or newer, this is {library.version};"
            f" set {DNNL_LIBRARY} to one"
        )
    if dtype == "f16" and spec.projection_size:
        return "oneDNN 3.6.2 makes primitives in f16 with a projection, but does not run them"
    if dtype == "f16" and spec.cell in (Cell.GRU, Cell.AUGRU):
        return "oneDNN 3.6.2's GRU in f16 is wrong from 32 units on, by up to 0.1"
    if dtype != "u8":
        return why_not(spec, layers, FLOAT)
    reason = why_not(spec, layers, U8)
    if not reason and not library.sums_u8_exactly:
        reason = (
            f"u8 needs AVX-512 VNNI, this is {library.effective_isa}: without it sums of two"
            " products saturate at 16 bits"
        )
    return reason


class OneDnnBackend(LayerBackend):
    """A backend that runs layers on libdnnl, which the first instance loads."""

    dtypes = tuple(PRECISIONS)

    def __init__(self, threads: int | None = None, cache_capacity: int | None = None) -> None:
        self.library = load_library()
        if cache_capacity:
            self.library = replace(self.library, cache_capacity=cache_capacity)
        self.threads = threads or min(self.library.max_threads, usable_cpus()) or 1
        self._given = threads, cache_capacity

    def __reduce__(self) -> Any:
        return OneDnnBackend, self._given

    def stack(
        self, spec: RnnSpec, layers: Layers, dtype: str, options: U8Options | None, strict: bool
    ) -> Stack:
        """Implements `LayerBackend.stack`.

        oneDNN has no LBR_GRU in u8. Unless ``strict``, the kernels run such a layer, and ``why``
        says so.
        """
        why = refusal(self.library, spec, layers, dtype)
        if not why and options is not None and not all(map(has_one_scale, options.scales)):
            why = "oneDNN has one scale for x and h; kernels have scales of each"
        try:
            if not why:
                return self._stack(spec, layers, dtype, options, strict)
        except UnsupportedError as error:
            why = str(error)
        if options is not None and spec.cell is Cell.LBR_GRU and not strict:
            with suppress(LibraryError, UnsupportedError):
                from onernn.backend.compiled.backend import KernelsBackend

                stack = KernelsBackend(self.threads).stack(spec, layers, "u8", options, False)
                stack.why = f"{why}, the kernels run it"
                return stack
        raise UnsupportedError(why)

    def _stack(
        self,
        spec: RnnSpec,
        layers: Layers,
        dtype: str,
        options: U8Options | None,
        strict: bool,
    ) -> Stack:
        library, threads = self.library, self.threads
        direct = "read in place" if dtype == "f32" else f"converted to {dtype}"
        reads = (
            f"contiguous float32 (T, N, I) is {direct}; (N, T, I), strided and padded views,"
            " float64 and shares of a batch are copied first; ragged batches are gathered"
        )
        count = spec.layers * spec.directions
        each = [options and options.with_one_scale(index) for index in range(count)]
        walk = LayerWalk(
            spec,
            layers,
            partial(new_kernel, library=library, dtype=dtype),
            options=each,
            threads=threads,
            whole=False,
            within=library.threads,
        )
        return Stack(
            spec,
            dtype,
            walk,
            partial(onednn_trainer, library, spec, layers, dtype, threads, strict),
            backend="onednn",
            name=f"oneDNN {library.version} {walk.name}",
            reads=reads,
            other=None if walk.is_exact else reference_stack(spec, layers),
        )
