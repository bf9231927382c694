"""A stack in the kernels' library: one call of C for all its layers and directions."""

from __future__ import annotations

import os
from collections import deque
from math import inf
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.buffers import aligned
from onernn.backend.compiled.library import Kernels
from onernn.backend.compiled.packing import BYTES, STORED, CellMatrices, Numbers, kernel_of
from onernn.backend.onednn.precision import UNIT, U8Options
from onernn.backend.run_arguments import State
from onernn.core.arrays import Array
from onernn.core.errors import LibraryError, UnsupportedError
from onernn.core.ragged import Ragged, data_of
from onernn.core.spec import Activation, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.operators.activations import completed


class CompiledStack:
    """A `StackKernel` of kernels; safe to share between threads.

    Each thread that runs it has a stack of C of its own, with memory and a second thread; all of
    them read the same weights. ``holds_finite``: infinity becomes NaN in it, as in bytes, so that
    who finds NaN in the last states h has to look whether that is refused.
    """

    def __init__(
        self,
        kernels: Kernels,
        spec: RnnSpec,
        layers: tuple[RnnWeights, ...],
        dtype: str,
        threads: int,
        options: U8Options | None = None,
    ) -> None:
        self._kernels, self._ffi, self._lib = kernels, kernels.ffi, kernels.lib
        self._spec, self._threads, self._process = spec, threads, os.getpid()
        self._real, self.holds_finite = layers[0].iter.dtype, options is not None
        self._told, self._parts, self._numbers = packed(kernels, spec, layers, dtype, options)
        self._idle: deque[tuple[Any, Any, Any]] = deque()
        # Properties of a spec are computed anew each time, which a short step would notice.
        self._channels, self._tnc = spec.output_size, self._lib.ONERNN_TNC
        self._parts_of_state = (spec.layers, spec.directions)
        self._widths = (spec.recurrent_size, spec.hidden_size)[: len(spec.cell.states)]
        self._is_simple = not spec.cell.has_attention
        self._idle.append(self._new())  # what cannot be made is told now

    def takes(self, x: Ragged | Array, initial: State) -> bool:
        """See `StackKernel.takes`: all numbers come out right."""
        return True

    def run_again(self, x: Any, state: Any) -> tuple[Array, State] | None:
        """See `StackKernel.run_again`: what lies as C reads it is checked here."""
        if not (self._is_simple and self._reads(x, 3) and x.shape[2] == self._spec.input_size):
            return None
        T, N, _ = x.shape
        if state is not None:
            if type(state) is not tuple or len(state) != len(self._widths):
                return None
            for array, width in zip(state, self._widths, strict=True):
                if not self._reads(array, 4) or array.shape != (*self._parts_of_state, N, width):
                    return None
        return self._call(self._tnc, (T, N), None, x, None, state)

    def run(
        self, x: Ragged | Array, initial: State, attention: Ragged | Array | None
    ) -> tuple[Array, State]:
        """See `StackKernel.run`."""
        words, scale = data_of(x), None if attention is None else data_of(attention)
        initial = tuple(map(_laid, initial))
        if isinstance(x, Ragged):
            layout, extent, offsets = self._lib.ONERNN_LOD, (0, len(x)), x.offsets
        else:
            layout, extent, offsets = self._lib.ONERNN_TNC, words.shape[:2], None
            turned = words.swapaxes(0, 1)
            if turned.flags.c_contiguous and not words.flags.c_contiguous:
                layout, words = self._lib.ONERNN_NTC, turned
                scale = None if scale is None else scale.swapaxes(0, 1)
        words, scale = _laid(words), None if scale is None else _laid(scale)
        y, final = self._call(layout, extent, offsets, words, scale, initial)
        return (y.swapaxes(0, 1) if layout == self._lib.ONERNN_NTC else y), final

    def _reads(self, array: Any, axes: int) -> bool:
        """Whether C reads the array where it stands."""
        return (
            type(array) is np.ndarray
            and array.dtype == self._real
            and array.ndim == axes
            and array.flags.c_contiguous
            and array.flags.aligned
        )

    def _call(
        self,
        layout: int,
        extent: tuple[int, int],
        offsets: Array | None,
        x: Array,
        attention: Array | None,
        initial: State | None,
    ) -> tuple[Array, State]:
        """y like x, and the final states; ``extent``: steps and sentences."""
        if self._threads > 1 and os.getpid() != self._process:
            raise LibraryError(
                "this layer was made before this process was forked, and its second thread did not"
                " survive that; use threads=1, prepare the layer after the fork, or start the"
                " process with 'spawn'"
            )
        y = np.empty((*x.shape[:-1], self._channels), self._real)
        states = (*self._parts_of_state, extent[1])
        final = tuple([np.empty((*states, width), self._real) for width in self._widths])
        try:
            idle = self._idle.pop()
        except IndexError:
            idle = self._new()
        handle, batch, arrays = idle
        address, null = self._ffi.from_buffer, self._ffi.NULL
        batch.layout, (batch.steps, batch.sequences) = layout, extent
        batch.offsets = null if offsets is None else address("int64_t[]", offsets)
        arrays.x, arrays.y = address(x), address(y)
        arrays.attention = null if attention is None else address(attention)
        arrays.h_n, arrays.h = address(final[0]), null if initial is None else address(initial[0])
        if len(final) > 1:
            arrays.c_n = address(final[1])
            arrays.c = null if initial is None else address(initial[1])
        status = self._lib.onernn_stack_run(handle, batch, arrays)
        self._idle.append(idle)
        if status:
            check(self._lib, status, f"x of shape {x.shape}")
        if self.holds_finite and np.isnan(final[0]).any():
            self._refuse_infinity({"x": x, "state h": None if initial is None else initial[0]})
        return y, final

    def _refuse_infinity(self, given: dict[str, Array | None]) -> None:
        """Bytes cannot hold it and give NaN; from NaN in x that is right."""
        for name, array in given.items():
            if array is not None and np.isinf(array).any():
                raise UnsupportedError(f"{name}: u8 holds finite numbers, got inf")

    def handle(self) -> Any:
        """A stack of C, for one thread at a time; good as long as this object is there."""
        return self._new()[0]

    def _new(self) -> tuple[Any, Any, Any]:
        """A stack for one thread at a time, and what its runs are described in."""
        ffi = self._ffi
        made = ffi.new("onernn_stack **")
        numbers = ffi.from_buffer(self._numbers)
        status = self._lib.onernn_stack_new(self._told, self._parts, numbers, self._threads, made)
        check(self._lib, status, "a layer")
        handle = self._kernels.own(made[0], self._lib.onernn_stack_free)
        return handle, ffi.new("onernn_batch *"), ffi.new("onernn_arrays *")

    def cache_info(self) -> dict[str, int]:
        """See `StackKernel.cache_info`: it has no primitives."""
        return {"hits": 0, "misses": 0}


class Packed(NamedTuple):
    """What makes a stack of C: its `onernn_spec`, its `onernn_part`s, and the numbers."""

    told: Any
    parts: Any
    numbers: Array


def packed(
    kernels: Kernels,
    spec: RnnSpec,
    layers: tuple[RnnWeights, ...],
    dtype: str,
    options: U8Options | None = None,
) -> Packed:
    """A layer as the library reads it; ``options``: of u8. Raises `UnsupportedError`."""
    real = layers[0].iter.dtype
    if options:
        _check_u8(spec, real, options)
    numbers = Numbers(BYTES, options.per_channel) if options else Numbers(STORED[dtype])
    places = []
    for weights in layers:
        for direction in range(spec.directions):
            part = CellMatrices.of(spec.cell, weights.part(0, direction)).pack(numbers)
            places.append({name: -1 if at is None else at for name, at in part.items()})
    memory = aligned(numbers.size)
    numbers.write(memory)
    told = described(kernels, spec, "f64" if real == np.float64 else "s8" if options else dtype)
    if options and options.fixed:
        told.input_step = 1 / options.fixed.factor
    return Packed(told, kernels.ffi.new("onernn_part[]", places), memory)


def _check_u8(spec: RnnSpec, real: np.dtype[Any], options: U8Options) -> None:
    """Raises `UnsupportedError` for what u8 would get wrong."""
    if real == np.float64:
        raise UnsupportedError("u8 computes from float32 weights, these are float64")
    if options.fixed and options.fixed.shift != UNIT.shift:
        raise UnsupportedError(f"kernels run u8 with data_shift {UNIT.shift:g}")
    if any(completed(function)[0] == "thresholdedrelu" for function in spec.functions):
        raise UnsupportedError("u8: thresholdedrelu hides what was not finite")


def names_of(kernels: Kernels, dtype: str, real: np.dtype[Any]) -> tuple[str, str]:
    """What is told of a layer with such weights: its dtype, and its kernel."""
    if real == np.float64:
        return "f64", f"kernels {kernels.isa}"
    widens = dtype == "bf16" and kernels.isa != "avx512_bf16"
    return dtype, f"kernels {kernels.isa}{', matrices widened to f32' * widens}"


def described(kernels: Kernels, spec: RnnSpec, stored: str) -> Any:
    """The spec as onernn.h has it."""
    lib = kernels.lib
    low, high = spec.cell_clip or (-inf, inf)

    def function(activation: Activation) -> dict[str, Any]:
        name, alpha, beta = completed(activation)
        kind = getattr(lib, f"ONERNN_{name.upper()}")
        return {"kind": kind, "alpha": alpha or 0, "beta": beta or 0}

    functions = ("gate", "candidate", "output")
    told = {
        "cell": getattr(lib, f"ONERNN_{kernel_of(spec.cell).upper()}"),
        "stored": getattr(lib, f"ONERNN_{stored.upper()}"),
        "layers": spec.layers,
        "directions": spec.directions,
        "backwards": spec.direction == "right2left",
        "added": spec.direction == "bidirectional_sum",
        "joined": spec.stacking == "framework",
        "inputs": spec.input_size,
        "units": spec.hidden_size,
        "width": spec.recurrent_size,
        **dict(zip(functions, map(function, spec.functions), strict=False)),
        "gate_clip": inf if spec.gate_clip is None else spec.gate_clip,
        "cell_low": low,
        "cell_high": high,
        "cell_nan_is_low": spec.cell_clip_nan,
        "attention": spec.cell.has_attention,
        "replaces": spec.update == "replace",
        "peephole": spec.peephole,
        "input_forget": spec.input_forget,
        "projection": spec.projection_size is not None,
    }
    return kernels.ffi.new("onernn_spec *", told)


def check(lib: Any, status: int, of: str) -> None:
    """Raises `LibraryError` where a call of the library did not succeed."""
    if status == lib.ONERNN_NO_MEMORY:
        raise LibraryError(f"kernels: the system has no memory, or no thread, for {of}")
    if status:
        raise LibraryError(f"kernels: status {status} of {of}")


def _laid(array: Array) -> Array:
    """As C reads it."""
    return np.require(array, requirements=("C", "A"))
