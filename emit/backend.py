"""Generated code as a backend: recurrent nodes compiled for this machine, once."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from onernn.backend import Backend, Gradients, Layout, PreparedLayer, State, Tape, open_backend
from onernn.backend.checks import checked_input, explained, laid_out
from onernn.core.arrays import Array
from onernn.core.errors import LibraryError, OnernnError, Refusal, UnsupportedError
from onernn.core.graph import Graph, Node, Value
from onernn.core.ragged import Ragged, data_of
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights, Weights, layers_of
from onernn.emit.compiling import compiled, compiler
from onernn.emit.generating import generate_layer
from onernn.emit.pipeline import infer_shapes, infer_types, initialize, parse

_DECLARATIONS = """
void* onernn_layer_new(const unsigned char* weights, int threads);
void onernn_layer_free(void* layer);
int onernn_layer_run(void* layer, const void** in, void** out, int64_t W, int64_t N);
"""


def few_enough(spec: RnnSpec, dtype: str, other: PreparedLayer) -> int | None:
    """Up to how many sentences generated code is the faster one; None: however many there are.

    Measured, see design/0020: faster than NumPy always; than oneDNN for large GRUs in f32, where a
    step of few sentences is what memory gives. oneDNN multiplies bf16 as it is.
    """
    if other.kernel.startswith("NumPy"):
        return None
    return 4 if dtype == "f32" and spec.cell.is_gru and spec.hidden_size >= 512 else 0


class GeneratedBackend:
    """Compiles layers; what it does not run goes to oneDNN, or the reference without it."""

    def __init__(self, threads: int | None = None) -> None:
        compiler()  # a missing one is told now
        self.threads = threads or 1
        try:
            self.others: Backend = open_backend("onednn", threads=threads)
        except LibraryError:
            self.others = open_backend("reference")

    def prepare(
        self, spec: RnnSpec, weights: Weights, *, dtype: str = "f32", strict: bool = False
    ) -> PreparedLayer:
        """See `Backend.prepare`. f16 and bf16: matrices are stored so, sums are float32."""
        layers = layers_of(spec, weights)
        other = self.others.prepare(spec, layers, dtype=dtype)
        most = few_enough(spec, dtype, other)
        reason = f"{other.kernel} is faster than generated code here"
        if most != 0:
            try:
                return GeneratedLayer(self, spec, layers, dtype, other, most)
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

    Batches of more than a few sentences, and training, are oneDNN's.
    """

    def __init__(
        self,
        backend: GeneratedBackend,
        spec: RnnSpec,
        layers: tuple[RnnWeights, ...],
        dtype: str,
        other: PreparedLayer,
        most: int | None,
    ) -> None:
        from cffi import FFI

        if dtype not in ("f32", "f16", "bf16"):
            raise UnsupportedError(f"generated code does not compute in {dtype}")
        self.spec, self.dtype, self.why = spec, dtype, ""
        self._other, self._most = other, most
        self._real = layers[0].iter.dtype
        self._threads = min(backend.threads, 2)
        source, self._numbers = _layer_source(spec, layers, dtype, self._threads)
        self._ffi = FFI()
        self._ffi.cdef(_DECLARATIONS)
        self._lib: Any = self._ffi.dlopen(str(compiled(source)))
        self._idle: list[Any] = []
        self._lock = threading.Lock()
        beyond = "" if most is None else f"; {other.kernel} for more sentences than {most}"
        self.kernel = f"generated C++{beyond}"

    def run(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
        layout: Layout = "tnc",
    ) -> tuple[Ragged | Array, State]:
        """See `PreparedLayer.run`."""
        if self._most is not None and _sentences(x, layout) > self._most:
            return self._other.run(x, state, attention, layout)
        x, initial, attention = checked_input(self.spec, x, state, attention, self._real, layout)
        words = np.ascontiguousarray(data_of(x)).reshape(-1, self.spec.input_size)
        count = _sentences(x, "tnc")
        offsets = x.offsets if isinstance(x, Ragged) else None
        given = [words, offsets, *map(np.ascontiguousarray, initial)]
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
        ffi, null = self._ffi, self._ffi.NULL
        sources = ffi.new(
            "const void*[]",
            [null if a is None else ffi.cast("void*", a.ctypes.data) for a in given],
        )
        targets = ffi.new("void*[]", [ffi.cast("void*", a.ctypes.data) for a in made])
        with self._lock:
            handle = self._idle.pop() if self._idle else None
        if handle is None:
            handle = self._lib.onernn_layer_new(ffi.from_buffer(self._numbers), self._threads)
            if handle == null:
                raise LibraryError("generated layer: no memory")
            handle = ffi.gc(handle, self._lib.onernn_layer_free)
        status = self._lib.onernn_layer_run(handle, sources, targets, words, count)
        with self._lock:
            self._idle.append(handle)
        if status:
            raise LibraryError(f"generated layer: status {status}")

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


def _sentences(x: Ragged | Array, layout: Layout) -> int:
    return len(x) if isinstance(x, Ragged) else x.shape[layout.index("n")]


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
