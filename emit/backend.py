"""Generated code as a backend: recurrent nodes compiled for this machine, once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from onernn.backend import Backend, Gradients, Layout, PreparedLayer, State, Tape, open_backend
from onernn.backend.checks import checked_input, explained, laid_out
from onernn.backend.onednn.library import WISHES, load_library
from onernn.core.arrays import Array
from onernn.core.errors import LibraryError, OnernnError, Refusal, UnsupportedError
from onernn.core.graph import Graph, Node, Value
from onernn.core.ragged import Ragged, data_of
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights, Weights, layers_of
from onernn.emit.compiling import compiler, opened
from onernn.emit.generating import generate_layer
from onernn.emit.pipeline import infer_shapes, infer_types, initialize, parse

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
    ) -> PreparedLayer:
        """See `Backend.prepare`. f16: matrices are stored so. bf16: see design/0020."""
        layers = layers_of(spec, weights)
        other = self.others.prepare(spec, layers, dtype=dtype)
        chosen = None
        if not other.kernel.startswith("NumPy"):
            chosen = partial(faster, spec, dtype, load_library().effective_isa)
        reason = f"generated code is not known to be faster than {other.kernel}"
        if chosen is None or chosen(*MANY):
            try:
                return GeneratedLayer(self, spec, layers, dtype, other, chosen)
            except UnsupportedError as error:
                reason = str(error)
        if strict and other.kernel.startswith("NumPy"):
            raise UnsupportedError(
                f"{reason}; drop strict=True to run it on the reference", (Refusal(reason),)
            )
        other.why = "; ".join(filter(None, (reason, other.why)))
        return other


class GeneratedLayer:
    """A layer or stack in generated code; safe to share between threads.

    Batches that oneDNN is faster for, and training, are oneDNN's.
    """

    def __init__(
        self,
        backend: GeneratedBackend,
        spec: RnnSpec,
        layers: tuple[RnnWeights, ...],
        dtype: str,
        other: PreparedLayer,
        chosen: Callable[[int, int], bool] | None,
    ) -> None:
        from cffi import FFI

        if dtype not in ("f32", "f16", "bf16"):
            raise UnsupportedError(f"generated code does not compute in {dtype}")
        self.spec, self.dtype, self.why = spec, dtype, ""
        self._other, self._chosen = other, chosen
        self._real = layers[0].iter.dtype
        self._threads = min(backend.threads, 2)
        source, self._numbers = _layer_source(spec, layers, dtype, self._threads)
        self._ffi = FFI()
        self._ffi.cdef(_DECLARATIONS)
        self._lib: Any = opened(self._ffi, source)
        self._process = os.getpid()
        self._idle: deque[tuple[Any, Any, Any]] = deque()
        always = chosen is None or chosen(1, 1)
        few = "" if always else f"; {other.kernel} for some small batches"
        self.kernel = f"generated C++{few}"

    def generates(self, x: Ragged | Array, layout: Layout = "tnc") -> bool:
        """Whether generated code is what runs a batch; else the layer beside it does."""
        shape = np.shape(data_of(x))
        if self._chosen is None or len(shape) != (2 if isinstance(x, Ragged) else 3):
            return True  # whose checks name what is wrong
        words = shape[0] if isinstance(x, Ragged) else shape[0] * shape[1]
        sentences = len(x) if isinstance(x, Ragged) else shape[layout.find("n")]
        return self._chosen(words, sentences)

    def run(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
        layout: Layout = "tnc",
    ) -> tuple[Ragged | Array, State]:
        """See `PreparedLayer.run`."""
        if not self.generates(x, layout):
            return self._other.run(x, state, attention, layout)
        if self._threads > 1 and os.getpid() != self._process:
            raise LibraryError(
                "this layer was made before this process was forked, and its second thread did not"
                " survive that; use threads=1, prepare the layer after the fork, or start the"
                " process with 'spawn'"
            )
        x, initial, attention = checked_input(self.spec, x, state, attention, self._real, layout)
        words = np.ascontiguousarray(data_of(x)).reshape(-1, self.spec.input_size)
        count = len(x) if isinstance(x, Ragged) else x.shape[1]
        offsets = x.offsets if isinstance(x, Ragged) else None
        initial = tuple(map(np.ascontiguousarray, initial))  # as the final ones will lie, too
        given = [words, offsets, *initial]
        if attention is not None:
            given.append(np.ascontiguousarray(data_of(attention)))
        y = np.empty((len(words), self.spec.output_size), self._real)
        final = tuple(np.empty_like(s) for s in initial)
        self._call(given, [y, *final], len(words), count)
        if isinstance(x, Ragged):
            return x.with_data(y), final
        dense = y.reshape(*x.shape[:2], self.spec.output_size)
        return np.ascontiguousarray(laid_out(dense, layout)), final

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

    def explain(self) -> str:
        """See `PreparedLayer.explain`."""
        return explained(self.spec, self.dtype, self.kernel, self.why, "read in place")

    def run_training(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
    ) -> tuple[Ragged | Array, State, Tape]:
        """See `PreparedLayer.run_training`."""
        return self._other.run_training(x, state, attention)

    def backward(
        self, tape: Tape, dy: Ragged | Array | None, dstate: State | None = None
    ) -> Gradients:
        """See `PreparedLayer.backward`."""
        return self._other.backward(tape, dy, dstate)


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
        infer_types(program)
        infer_shapes(program)
        store = initialize(program, dtype)
        return generate_layer(program, store, threads)
    except UnsupportedError:
        raise
    except OnernnError as error:
        raise UnsupportedError(str(error)) from error
