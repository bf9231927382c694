"""Layers and stacks on onernn's kernels: one C call runs all layers and directions."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from copy import copy
from functools import lru_cache, partial
from math import inf
from operator import attrgetter
from typing import Any

import numpy as np

from onernn.backend.arguments import State
from onernn.backend.compiled.library import Kernels, load_kernels
from onernn.backend.compiled.packing import (
    BYTES,
    CODES,
    FUNCTIONS,
    STORED,
    CellMatrices,
    Numbers,
    check_bytes,
    kernel_of,
)
from onernn.backend.onednn.precision import U8Options
from onernn.backend.process import (
    ALIGNMENT,
    MOST_THREADS,
    UsualNeed,
    align,
    allocate_aligned,
    take_idle,
    team_of,
    usable_threads,
)
from onernn.backend.stack import LayerBackend, Stack, Trainer
from onernn.ir.activations import complete
from onernn.ir.arrays import Array, seal
from onernn.ir.errors import LibraryError, ShapeError, UnsupportedError
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import NamedTuple
from onernn.ir.spec import Activation, RnnSpec
from onernn.ir.weights import NO_SCALES, UNIT, Layers, PartViews, Weights, layers_of

READ_IN_PLACE = ("f32", "bf16")
"""Dtypes in which kernels can read a framework's weights without a copy: see
kernels/unpacked.hpp.
"""


class Share(NamedTuple):
    """The share of the work that one thread does. ``products``: the number of its multiplications.
    ``read``: the bytes of matrices that it reads. ``held``: the number of distinct bytes among
    them.
    """

    products: int
    read: int
    held: int


class Account(NamedTuple):
    """How threads share the work of one layer for a batch: the result of `onernn_account`, without
    threads that do nothing.
    """

    groups: int
    threads: int
    turns: int
    cache: int
    seconds: float
    shares: list[Share]

    def __str__(self) -> str:
        if self.threads == 1:
            return "uses 1 (its steps are too small to divide)"
        how = "runs its own sequences or direction" if self.groups else "computes part of each step"
        return f"uses {self.threads} (each thread {how})"


class CompiledStack:
    """A `StackKernel` that calls the kernels; threads may share it.

    Each thread that runs it uses its own C stack and memory, and all read the same weights. The
    process's worker threads help only one of these threads at a time. ``holds_finite``: whether
    infinity becomes NaN in results, because weights are int8. `run_at` does not report this. A
    caller of `run_at` that finds NaN in the final h must check x for infinity.
    """

    def __init__(
        self,
        kernels: Kernels,
        spec: RnnSpec,
        real: np.dtype[Any],
        dtype: str,
        threads: int,
        packed: Packed | None = None,
        holds_finite: bool = False,
    ) -> None:
        """Stores ``packed`` weights. Without packed weights, this object cannot run; the result of
        `reading` can.
        """
        self._kernels, self._ffi, self._lib = kernels, kernels.ffi, kernels.lib
        self._spec, self._team = spec, team_of(threads)
        self._real, self._dtype, self.holds_finite = real, dtype, holds_finite
        self._packed = packed or Packed(
            describe(kernels, spec, "f64" if real == np.float64 else dtype)
        )
        self._unpacked: Any = None
        self._idle: deque[tuple[Any, Any, Any]] = deque()
        self._usual, self._largest = UsualNeed(), 0
        # Properties of the spec are computed once: computing them in each call would slow down
        # short steps.
        self._channels = spec.output_size
        names = ("lod", "tnc", "ntc", "packed")
        self.layouts = {name: getattr(self._lib, f"ONERNN_{name.upper()}") for name in names}
        self._parts_of_state = (spec.layers, spec.directions)
        self._widths = (spec.recurrent_size, spec.hidden_size)[: len(spec.cell.states)]
        self._is_simple = not spec.cell.has_attention
        self._idle.append(self._new())  # if C cannot make the layer, this raises the error now

    def reading(self, parts: Sequence[PartViews]) -> CompiledStack:
        """Returns the same layer with the weights ``parts``, one for each direction of each layer,
        in order.

        The layer keeps only addresses: the caller must keep the arrays alive. Raises `ShapeError`,
        and `UnsupportedError` for arrays that C cannot read.
        """
        spec, units = self._spec, self._spec.hidden_size
        if len(parts) != spec.layers * spec.directions:
            wanted = spec.layers * spec.directions
            raise ShapeError(f"weights: expected {wanted} parts, got {len(parts)}")
        for index, part in enumerate(parts):
            inputs = spec.reads(index // spec.directions)
            groups = (
                ("input", part.input, (inputs, units)),
                ("recurrent", part.recurrent, (spec.recurrent_size, units)),
                ("bias", [bias for row in part.bias for bias in row], (units,)),
                ("projection", _projection(part), (units, spec.recurrent_size)),
            )
            for name, arrays, shape in groups:
                for array in arrays:
                    if array.shape != shape:
                        raise ShapeError(f"{name}: expected a weight {shape}, got {array.shape}")
                    steps = [stride % array.itemsize for stride in array.strides]
                    if array.dtype != self._real or any(steps) or not array.flags.aligned:
                        expected = f"expected an aligned array of {self._real}"
                        raise UnsupportedError(f"weights {name}: {expected}, got {array.dtype}")
                    if name == "bias" and not array.flags.c_contiguous:
                        raise UnsupportedError("weights bias: expected no gaps between its values")
        result = copy(self)
        result._unpacked = self._ffi.new("onernn_unpacked[]", [*map(_unpack, parts)])
        return result

    def takes(self, x: Batch, initial: State) -> bool:
        """Returns True, because the results are right for all inputs."""
        return True

    def run_again(self, x: Any, state: Any) -> tuple[Array, State] | None:
        """Implements `StackKernel.run_again`, for arrays that C reads in place."""
        if not (self._is_simple and self._reads(x, 3) and x.shape[2] == self._spec.input_size):
            return None
        T, N, _ = x.shape
        if state is not None:
            if type(state) is not tuple or len(state) != len(self._widths):
                return None
            for array, width in zip(state, self._widths, strict=True):
                if not self._reads(array, 4) or array.shape != (*self._parts_of_state, N, width):
                    return None
        return self._call(self.layouts["tnc"], (T, N), None, x, None, state)

    def run(self, x: Batch, initial: State, attention: Batch | None) -> tuple[Array, State]:
        """Implements `StackKernel.run`."""
        given = [data_of(x)] if attention is None else [data_of(x), data_of(attention)]
        layout, extent, offsets = "tnc", given[0].shape[:2], None
        if isinstance(x, Ragged):
            layout, extent, offsets = "lod", (0, len(x)), x.offsets
        elif given[0].swapaxes(0, 1).flags.c_contiguous and not given[0].flags.c_contiguous:
            layout, given = "ntc", [array.swapaxes(0, 1) for array in given]
        words, *more = map(_lay_out, given)
        scale, states = (more[0] if more else None), tuple(map(_lay_out, initial))
        y, final = self._call(self.layouts[layout], extent, offsets, words, scale, states)
        return (y.swapaxes(0, 1) if layout == "ntc" else y), final

    def _reads(self, array: Any, axes: int) -> bool:
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
        y = np.empty((*x.shape[:-1], self._channels), self._real)
        states = (*self._parts_of_state, extent[1])
        final = tuple([np.empty((*states, width), self._real) for width in self._widths])
        at = self._ffi.from_buffer
        begins = () if initial is None else tuple(map(at, initial))
        scale = self._ffi.NULL if attention is None else at(attention)
        rows = self._ffi.NULL if offsets is None else at("int64_t[]", offsets)
        self.run_at(layout, extent, rows, at(x), at(y), begins, tuple(map(at, final)), scale)
        self._usual.note(y.size)
        self._largest = max(self._largest, y.size)
        if not self._usual.keeps(self._largest):
            self._idle.clear()
            self._largest = 0
        if self.holds_finite and np.isnan(final[0]).any():
            self._refuse_infinity({"x": x, "state h": None if initial is None else initial[0]})
        return y, final

    def run_at(
        self,
        layout: int,
        extent: tuple[int, int],
        offsets: Any,
        x: Any,
        y: Any,
        state: Sequence[Any],
        final: Sequence[Any],
        attention: Any = None,
    ) -> None:
        """Runs a batch of steps and sequences on C pointers, without any checks.

        ``state``: the addresses of the initial states, empty for zeros. Does not report infinity in
        u8 layers.
        """
        handle, batch, arrays = idle = take_idle(self._idle, self._new)
        null = self._ffi.NULL
        batch.layout, (batch.steps, batch.sequences), batch.offsets = layout, extent, offsets
        arrays.x, arrays.y, arrays.attention = x, y, attention or null
        arrays.h_n, arrays.h = final[0], state[0] if state else null
        if len(final) > 1:
            arrays.c_n, arrays.c = final[1], state[1] if state else null
        if self._unpacked is None:
            status = self._lib.onernn_stack_run(handle, batch, arrays)
        else:
            status = self._lib.onernn_stack_run_unpacked(handle, batch, arrays, self._unpacked)
        self._idle.append(idle)
        if status:
            check(self._lib, status, f"a batch of {extent} steps and sequences")

    def at(self, address: int, to: str = "void *") -> Any:
        """Returns an address as a C pointer."""
        return self._ffi.cast(to, address)

    def _refuse_infinity(self, arrays: dict[str, Array | None]) -> None:
        """Raises `UnsupportedError` for infinity, which u8 turns into NaN; NaN in x is allowed."""
        for name, array in arrays.items():
            if array is not None and np.isinf(array).any():
                raise UnsupportedError(
                    f"{name}: expected finite values for {self._dtype}, got inf; use dtype='f32'"
                )

    @property
    def threads(self) -> str:
        """A text that says how many threads may run the layer, and how they share the work of two
        typical batches.
        """
        if abs(self._team) == 1:
            return "1"
        single, many = (max(self.account([20] * n), key=attrgetter("threads")) for n in (1, 64))
        return f"up to {abs(self._team)}; a sequence of 20 steps {single}, a batch of 64 {many}"

    def with_threads(self, threads: int) -> CompiledStack:
        """Returns the same layer for ``threads`` threads, even if this machine has fewer CPUs."""
        result = copy(self)
        result._team, result._idle = threads, deque()
        return result

    def account(self, lengths: Sequence[int]) -> list[Account]:
        """Returns how the threads would share each layer of a batch of sequences of these lengths.

        The result depends only on sizes; nothing is computed, and no thread is started.
        """
        ffi, words = self._ffi, sum(lengths)
        handle, batch, arrays = self._new()
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        batch.layout, batch.sequences = self.layouts["lod"], len(lengths)
        batch.offsets = ffi.from_buffer("int64_t[]", offsets)
        sizes = self._spec.input_size, self._channels, 1
        memory = [np.zeros(words * size, self._real) for size in sizes]
        arrays.x, arrays.y, arrays.attention = map(ffi.from_buffer, memory)
        accounts = ffi.new("onernn_account[]", self._spec.layers)
        status = self._lib.onernn_stack_account(handle, batch, arrays, accounts)
        check(self._lib, status, "an account")
        return [
            Account(
                layer.groups,
                layer.threads,
                layer.turns,
                layer.cache,
                layer.seconds,
                [Share(s.products, s.read, s.held) for s in layer.shares if s.products],
            )
            for layer in accounts
        ]

    def handle(self) -> Any:
        """Returns a new C stack, which only one thread at a time may use. It is valid as long as
        this object exists.
        """
        return self._new()[0]

    def export(self) -> tuple[bytes, Array]:
        """Returns the bytes of the layer's `onernn_spec` and `onernn_part`s, and its weights."""
        spec, parts, numbers = self._packed
        return b"".join(bytes(self._ffi.buffer(each)) for each in (spec, parts)), numbers

    def _new(self) -> tuple[Any, Any, Any]:
        ffi = self._ffi
        pointer, (spec, parts, numbers) = ffi.new("onernn_stack **"), self._packed
        memory = ffi.NULL if numbers is None else ffi.from_buffer(numbers)
        parts = parts or ffi.NULL
        status = self._lib.onernn_stack_new(spec, parts, memory, self._team, pointer)
        check(self._lib, status, "a layer")
        handle = ffi.gc(pointer[0], self._lib.onernn_stack_free)
        return handle, ffi.new("onernn_batch *"), ffi.new("onernn_arrays *")

    def cache_info(self) -> dict[str, int]:
        """Returns 0 for both counts: the kernels have no primitives."""
        return {"hits": 0, "misses": 0}


def _unpack(part: PartViews) -> dict[str, Any]:
    return {
        "input": _matrix(part.input),
        "recurrent": _matrix(part.recurrent),
        "projection": _matrix(_projection(part)),
        "bias": [[_address(bias) for bias in row] for row in part.bias],
    }


def _projection(part: PartViews) -> list[Array]:
    return [] if part.projection is None else [part.projection]


def _matrix(gates: Sequence[Array]) -> dict[str, Any]:
    if not gates:
        return {}
    row, column = (stride // gates[0].itemsize for stride in gates[0].strides)
    return {"gates": [*map(_address, gates)], "row": row, "column": column}


def _address(array: Array) -> Any:
    return load_kernels().ffi.cast("void *", array.__array_interface__["data"][0])


def _no_trainer() -> Trainer:
    raise UnsupportedError(
        "a layer that reads its weights in place does not train: call prepare(spec, weights)"
    )


class Packed(NamedTuple):
    """The arguments for a C stack: its `onernn_spec`, its `onernn_part`s, and the packed weights.

    For a layer that reads a framework's weights in place, there is only the spec.
    """

    spec: Any
    parts: Any = None
    numbers: Any = None


def pack(
    kernels: Kernels,
    spec: RnnSpec,
    layers: Layers,
    dtype: str,
    options: U8Options | None = None,
) -> Packed:
    """Returns a layer in the form that the library reads; ``options``: for u8 and int8-dynamic.

    Raises `UnsupportedError`.
    """
    real = layers[0].iter.dtype
    if options or dtype == CODES:
        check_bytes(spec, real, dtype)
    if options and options.fixed and options.fixed.shift % 1:
        shift = options.fixed.shift
        raise UnsupportedError(f"data_shift: expected an integer on the kernels, got {shift}")
    key = kernels.sources, dtype, options and options.packs
    if key not in layers.packed:
        layers.packed[key] = _pack(spec, layers, dtype, options)
    places, packed = layers.packed[key]
    memory = align(packed)
    if memory is not packed:  # an unpickled array may not start on a cache line
        layers.packed[key] = places, seal(memory)
    stored = "w8" if dtype == CODES else "s8" if options else dtype
    c_spec = describe(kernels, spec, "f64" if real == np.float64 else stored)
    parts = kernels.ffi.new("onernn_part[]", places)
    for at, part in enumerate(parts):
        scales = options.part(at, spec.directions) if options else NO_SCALES
        of_x, of_h = scales.data, scales.state
        part.x_step, part.x_shift = (1 / of_x.factor, int(of_x.shift)) if of_x else (0, 0)
        part.h_step, part.h_shift = (1 / of_h.factor, int(of_h.shift)) if of_h else (0, 0)
    return Packed(c_spec, parts, memory)


def _pack(
    spec: RnnSpec, layers: Layers, dtype: str, options: U8Options | None
) -> tuple[list[dict[str, int]], Array]:
    if options:
        numbers = Numbers(BYTES, options.per_channel)
    else:
        numbers = Numbers(dtype if dtype == CODES else STORED[dtype])
    places = list[dict[str, int]]()
    for weights in layers:
        for direction in range(spec.directions):
            matrices = CellMatrices.of(spec.cell, weights.part(0, direction))
            scales = options.part(len(places), spec.directions) if options else NO_SCALES
            part = matrices.pack(numbers, scales)
            places.append({name: -1 if at is None else at for name, at in part.items()})
    memory = allocate_aligned(numbers.size)
    numbers.write(memory)
    return places, seal(memory)


def describe_layer(kernels: Kernels, dtype: str, real: np.dtype[Any]) -> tuple[str, str]:
    """Returns the dtype that a layer uses, and its kernel's name; ``real``: the dtype of its
    weights.
    """
    if real == np.float64:
        return "f64", f"kernels {kernels.isa}"
    widens = dtype == "bf16" and not kernels.multiplies_bf16
    return dtype, f"kernels {kernels.isa}{', matrices widened to f32' * widens}"


@lru_cache(256)  # training calls this in every step
def describe(kernels: Kernels, spec: RnnSpec, stored: str) -> Any:
    """Returns the spec as the struct `onernn_spec`, which callers may share: C only reads it."""
    lib = kernels.lib
    low, high = spec.cell_clip or (-inf, inf)

    def function(activation: Activation) -> dict[str, Any]:
        name, alpha, beta = complete(activation)
        kind = getattr(lib, f"ONERNN_{name.upper()}")
        return {"kind": kind, "alpha": alpha or 0, "beta": beta or 0}

    fields = {
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
        **dict(zip(FUNCTIONS, map(function, spec.functions), strict=False)),
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
    return kernels.ffi.new("onernn_spec *", fields)


def check(lib: Any, status: int, of: str) -> None:
    """Raises `LibraryError` if the status of a C call is a failure."""
    if status == lib.ONERNN_NO_MEMORY:
        raise LibraryError(
            f"kernels: the system has no memory, or no thread, for {of}; use fewer threads"
        )
    if status:
        raise LibraryError(f"kernels: {of} returned status {status}; please report it")


def _lay_out(array: Array) -> Array:
    return np.require(array, requirements=("C", "A"))


class KernelsBackend(LayerBackend):
    """A backend that runs layers on the kernels, with 1 to 64 threads."""

    def __init__(self, threads: int | None = None) -> None:
        self.kernels = load_kernels()
        self.threads = min(threads or usable_threads(), MOST_THREADS)
        self._given = threads

    def __reduce__(self) -> Any:
        return KernelsBackend, (self._given,)

    def stack(
        self, spec: RnnSpec, layers: Layers, dtype: str, options: U8Options | None, strict: bool
    ) -> Stack:
        """Implements `LayerBackend.stack`."""
        real, packed = layers[0].iter.dtype, pack(self.kernels, spec, layers, dtype, options)
        finite = options is not None or dtype == CODES
        kernel = CompiledStack(self.kernels, spec, real, dtype, self.threads, packed, finite)
        return self._stack(spec, dtype, real, kernel, partial(self.trainer, spec, layers, dtype))

    def live_stack(
        self, spec: RnnSpec, parts: Sequence[PartViews], dtype: str, like: Stack | None = None
    ) -> Stack:
        """Returns a layer that reads these weights in a framework's memory; it cannot be trained.

        ``dtype``: one of `READ_IN_PLACE`. ``like``: another such layer of the same spec, with which
        it shares memory for runs. The results have the same bits as the results of a layer that
        `prepare` packs. `CompiledStack.reading` says what the caller must keep alive, and which
        errors it raises.
        """
        real = parts[0].recurrent[0].dtype
        kernel: Any = like.compiled if like else None
        kernel = kernel or CompiledStack(self.kernels, spec, real, dtype, self.threads)
        return self._stack(spec, dtype, real, kernel.reading(parts), _no_trainer)

    def training_stack(self, spec: RnnSpec, weights: Weights, dtype: str) -> Stack:
        """Returns a layer that can only be trained: its weights are not packed for other runs."""
        layers = layers_of(spec, weights)
        trainer = partial(self.trainer, spec, layers, dtype)
        return self._stack(spec, dtype, layers[0].iter.dtype, None, trainer)

    def _stack(
        self, spec: RnnSpec, dtype: str, real: np.dtype[Any], kernel: Any, trainer: Any
    ) -> Stack:
        stored, name = describe_layer(self.kernels, dtype, real)
        return Stack(
            spec,
            stored,
            kernel,
            trainer,
            backend="kernels",
            name=name,
            reads="read in place if contiguous ragged, (T, N, I) or (N, T, I), otherwise copied",
            real=real,
            compiled=kernel,
        )

    def trainer(self, spec: RnnSpec, weights: Weights, dtype: str) -> Trainer:
        """Returns a trainer, without packing the weights for other runs.

        Kernels train float32 weights; the reference trains float64 weights.
        """
        layers = layers_of(spec, weights)
        if layers[0].iter.dtype == np.float64:
            from onernn.backend.reference import reference_trainer

            why = "kernels train in float32, these weights are in float64"
            return reference_trainer(spec, layers, np.dtype(np.float64), why)
        from onernn.backend.compiled.training import kernels_trainer  # most models are not trained

        return kernels_trainer(self.kernels, spec, layers, dtype, self.threads)


# Layers in ONNX Runtime: the kernels' library is also a library of custom operators.

DOMAIN = "onernn"
"""The domain of the custom operators; kernels.h describes their inputs and outputs."""


_FORMAT = 1
"""The version of `store_layer`'s format, which depends on `onernn_spec`, `onernn_part` and
packing.
"""


def store_layer(
    kernels: Kernels, spec: RnnSpec, weights: Weights, *, dtype: str, batch_major: bool
) -> tuple[Array, str, str]:
    """Returns a layer as bytes that ort_layer.hpp reads, a line of text about it, and its kernel's
    name.

    The bytes are valid on every machine; the kernel's name is the name on this machine. Raises
    `UnsupportedError` for layers that the kernels cannot run.
    """
    layers, buffer = layers_of(spec, weights), kernels.ffi.buffer
    options = U8Options(None, UNIT.shift, True) if dtype in ("u8", "int8-dynamic") else None
    layer = pack(kernels, spec, layers, dtype, options)
    parts = bytes(buffer(layer.parts)).ljust(2 * kernels.ffi.sizeof("onernn_part"), b"\0")
    first = np.array([_FORMAT, 0, batch_major], np.int64).tobytes()
    head = first + bytes(buffer(layer.spec)) + parts
    begin = -(-len(head) // ALIGNMENT) * ALIGNMENT
    content = np.zeros(begin + len(layer.numbers), np.uint8)
    content[: len(head)], content[begin:] = np.frombuffer(head, np.uint8), layer.numbers
    payload = kernels.ffi.from_buffer(content[16:])
    content[8:16].view(np.int64)[0] = kernels.lib.onernn_checksum(payload, len(payload))
    stored, kernel = describe_layer(kernels, dtype, layers[0].iter.dtype)
    return content, f"{spec.cell.name} {spec.direction}, {stored}", kernel


class OperatorLayers:
    """The layers that custom operators of ONNX Runtime find by number. A session keeps each layer
    that it found.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._open = ExitStack()

    def close(self) -> None:
        """Removes all layers. Sessions that are made later cannot find them."""
        self._open.close()

    def add(
        self, spec: RnnSpec, weights: Weights, *, dtype: str, batch_major: bool
    ) -> tuple[int, str]:
        """Adds a layer. Returns its number, and one line of text about it.

        Raises `UnsupportedError` for layers that the kernels cannot run.
        """
        kernels = self._kernels
        layer = store_layer(kernels, spec, weights, dtype=dtype, batch_major=batch_major)
        content, line, kernel = layer
        pointer = kernels.ffi.new("int64_t *")
        at = kernels.ffi.from_buffer(content)
        check(kernels.lib, kernels.lib.onernn_ort_layer_new(at, len(content), pointer), "a layer")
        number = int(pointer[0])
        self._open.callback(kernels.lib.onernn_ort_layer_free, number)
        return number, f"{line}, {kernel}"
