"""Generated code as a backend: recurrent nodes compiled for this machine, once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from onernn.backend import Backend, Stack, State, open_backend
from onernn.backend.onednn.library import WISHES, load_library
from onernn.core.arrays import Array
from onernn.core.errors import LibraryError, OnernnError, Refusal, UnsupportedError
from onernn.core.graph import Graph, Node, Value
from onernn.core.ragged import Ragged, data_of
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights, Weights, layers_of
from onernn.emit.compiling import compiler, opened
from onernn.emit.generating import generate_layer
from onernn.emit.pipeline import infer, initialize, parse

_DECLARATIONS = """
void* onernn_layer_new(const unsigned char* weights, int threads);
void onernn_layer_free(void* layer);
int onernn_layer_run(void* layer, const void** in, void** out, int64_t W, int64_t N);
"""


MANY = (1024, 64)
"""Words and sentences of a batch that is not small."""


def faster(spec: RnnSpec, dtype: str, isa: str, words: int, sentences: int) -> bool:
    """Whether generated code is faster than oneDNN under ``isa`` for a batch of so many words.

    Measured, see design/0020. Not for one sentence where the weights come from memory. bf16: where
    pairs are multiplied, but by AVX-512 and not by AMX. f32: not where Python costs more than the
    step of a small layer, nor where four sentences, or three, are too few to use a weight again
    and too many for a product with a vector.
    """
    if spec.cell.has_attention or dtype not in ("f32", "bf16"):
        return False  # not measured
    if sentences == 1 and spec.hidden_size > 1024:
        return False
    if dtype == "bf16":
        return isa == "avx512_core_bf16"
    return spec.hidden_size >= 512 or not (words == sentences or sentences in (3, 4))


class GeneratedBackend:
    """Compiles layers; what it does not run goes to oneDNN, or the reference without it."""

    def __init__(self, threads: int | None = None) -> None:
        compiler()  # a missing one is told now
        self.threads = threads or 1
        try:
            self.others: Backend = open_backend("onednn", threads=threads)
        except LibraryError:
            if any(map(os.environ.get, WISHES)):
                raise  # somebody wants a library, or a way in which it runs
            self.others = open_backend("reference")

    def prepare(
        self, spec: RnnSpec, weights: Weights, *, dtype: str = "f32", strict: bool = False
    ) -> Stack:
        """See `Backend.prepare`. f16: matrices are stored so. bf16: see design/0020."""
        layers = layers_of(spec, weights)
        other = self.others.prepare(spec, layers, dtype=dtype)
        is_last = other.backend == "reference"
        by_shape = None if is_last else partial(faster, spec, dtype, load_library().effective_isa)
        reason = f"generated code is not known to be faster than {other.kernel}"
        if by_shape is None or by_shape(*MANY):
            try:
                return self._stack(spec, layers, dtype, other, by_shape)
            except UnsupportedError as error:
                reason = str(error)
        if strict and is_last:
            raise UnsupportedError(
                f"{reason}; drop strict=True to run it on the reference", (Refusal(reason),)
            )
        other.why = "; ".join(filter(None, (reason, other.why)))
        return other

    def _stack(
        self,
        spec: RnnSpec,
        layers: tuple[RnnWeights, ...],
        dtype: str,
        other: Stack,
        by_shape: Callable[[int, int], bool] | None,
    ) -> Stack:
        always = by_shape is None or by_shape(1, 1)
        few = "" if always else f"; {other.kernel} for some small batches"
        made = Stack(
            spec,
            dtype,
            CompiledStack(spec, layers, dtype, min(self.threads, 2)),
            other.trainer,
            backend="generated",
            name=f"generated C++{few}",
            reads="read in place",
            real=layers[0].iter.dtype,
            other=other,
        )
        if by_shape is None:
            return made
        faster = by_shape
        return made.beside(
            other,
            lambda kind, sentences: faster(sentences * (1 + (kind != "step")), sentences),
            "generated",
            made.kernel,
        )


class CompiledStack:
    """A `StackKernel` in generated code; safe to share between threads."""

    def __init__(
        self, spec: RnnSpec, layers: tuple[RnnWeights, ...], dtype: str, threads: int
    ) -> None:
        from cffi import FFI

        if dtype not in ("f32", "f16", "bf16"):
            raise UnsupportedError(f"generated code does not compute in {dtype}")
        self._spec, self._threads = spec, threads
        source, self._numbers = _layer_source(spec, layers, dtype, threads)
        self._ffi = FFI()
        self._ffi.cdef(_DECLARATIONS)
        self._lib: Any = opened(self._ffi, source)
        self._process = os.getpid()
        self._idle: deque[tuple[Any, Any, Any]] = deque()

    def takes(self, x: Ragged | Array, initial: State) -> bool:
        """See `StackKernel.takes`: all numbers come out right."""
        return True

    def run_again(self, x: Any, state: Any) -> None:
        """See `StackKernel.run_again`: every batch is checked."""

    def run(
        self, x: Ragged | Array, initial: State, attention: Ragged | Array | None
    ) -> tuple[Array, State]:
        """See `StackKernel.run`."""
        if self._threads > 1 and os.getpid() != self._process:
            raise LibraryError(
                "this layer was made before this process was forked, and its second thread did not"
                " survive that; use threads=1, prepare the layer after the fork, or start the"
                " process with 'spawn'"
            )
        words = np.ascontiguousarray(data_of(x)).reshape(-1, self._spec.input_size)
        initial = tuple(map(np.ascontiguousarray, initial))  # as the final ones will lie, too
        given = [words, x.offsets if isinstance(x, Ragged) else None, *initial]
        if attention is not None:
            given.append(np.ascontiguousarray(data_of(attention)))
        y = np.empty((len(words), self._spec.output_size), words.dtype)
        final = tuple(np.empty_like(s) for s in initial)
        self._call(given, [y, *final], len(words), len(initial[0][0, 0]))
        return y, final

    def _call(self, given: list[Array | None], made: list[Array], words: int, count: int) -> None:
        try:
            handle, sources, targets = idle = self._idle.pop()
        except IndexError:
            handle, sources, targets = idle = self._new(len(given), len(made))
        address: Any = self._ffi.from_buffer
        null = self._ffi.NULL
        for at, array in enumerate(given):
            sources[at] = null if array is None else address(array)
        for at, array in enumerate(made):
            targets[at] = address(array)
        status = self._lib.onernn_layer_run(handle, sources, targets, words, count)
        self._idle.append(idle)
        if status:
            raise LibraryError(f"generated layer: status {status}")

    def _new(self, given: int, made: int) -> tuple[Any, Any, Any]:
        """A model for one thread at a time, and room for the addresses of its arrays."""
        ffi = self._ffi
        handle = self._lib.onernn_layer_new(ffi.from_buffer(self._numbers), self._threads)
        if handle == ffi.NULL:
            raise LibraryError("generated layer: no memory")
        handle = ffi.gc(handle, partial(_freed, self._lib, os.getpid()))
        return handle, ffi.new("const void*[]", given), ffi.new("void*[]", made)

    def cache_info(self) -> dict[str, int]:
        """See `StackKernel.cache_info`: it has no primitives."""
        return {"hits": 0, "misses": 0}


def _freed(lib: Any, process: int, handle: Any) -> None:
    """Not by a forked child, which would wait for the end of a thread that it does not have."""
    if os.getpid() == process:
        lib.onernn_layer_free(handle)


def _layer_source(
    spec: RnnSpec, layers: tuple[RnnWeights, ...], dtype: str, threads: int
) -> tuple[str, bytes]:
    """A model of one node: ragged x, both states, attention -> y and the final states."""
    real = layers[0].iter.dtype.name
    stack: tuple[int | None, ...] = (spec.layers, spec.directions, None)
    inputs = [Value("x", real, (None, spec.input_size), 1)]
    widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
    inputs += [Value(s, real, (*stack, widths[s])) for s in spec.cell.states]
    names = ["x", *spec.cell.states]
    if spec.cell.has_attention:
        names += [""] * (3 - len(names)) + ["attention"]
        inputs.append(Value("attention", real, (None, 1)))
    outputs = ("y", *(f"{state}_n" for state in spec.cell.states))
    node = Node("Rnn", tuple(names), outputs, {"spec": spec, "weights": layers})
    graph = Graph("a recurrent layer", tuple(inputs), tuple(map(Value, outputs)), (node,), {})
    try:
        program = parse(graph)
        infer(program)
        store = initialize(program, dtype)
        return generate_layer(program, store, threads)
    except UnsupportedError:
        raise
    except OnernnError as error:
        raise UnsupportedError(str(error)) from error
