"""Where recurrent layers run: oneDNN's primitives, or the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from onernn.backend.checks import Layout, State
from onernn.backend.gradients import Gradients, Tape, TapeError
from onernn.backend.reference import ReferenceLayer
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.ragged import Ragged
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights, Weights

__all__ = [
    "Backend",
    "Gradients",
    "Layout",
    "PreparedLayer",
    "ReferenceLayer",
    "State",
    "Tape",
    "TapeError",
    "open_backend",
    "register_backend",
]


class PreparedLayer(Protocol):
    """A layer or stack made ready to run; may be shared between threads.

    ``kernel`` names what runs it, ``why`` says why not something faster ("" where it is).
    """

    spec: RnnSpec
    dtype: str
    kernel: str
    why: str

    def run(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
        layout: Layout = "tnc",
    ) -> tuple[Ragged | Array, State]:
        """(y, state). x: `Ragged` (W, I) or (T, N, I) float32; state (h,) or (h, c), each ldnc.

        y is like x with O (or D*O) channels. ``layout``: of dense x, attention and y, "tnc" or
        "ntc". x may have any strides: `explain` tells what is read in place and what copied. The final state is that of each sentence's own end,
        in the caller's order; a sentence of length zero keeps its initial state. Raises
        `ShapeError` naming the argument; writes nothing into the caller's arrays.
        """

    def explain(self) -> str:
        """One line: cell, direction, dtype, kernel, why no faster one, which inputs are copied."""

    def run_training(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
    ) -> tuple[Ragged | Array, State, Tape]:
        """`run`, and a tape for one `backward`; the arguments may be changed afterwards.

        oneDNN trains in f32 and bf16; AUGRU cells (wrong gradients there) and bf16 LSTM with
        projection (no backward) train on the NumPy reference in float32, which ``tape.why`` tells,
        or raise `UnsupportedError` where the layer is strict. So do u8 and f16, activations other
        than sigmoid, tanh, relu and identity, and clips, always.
        """

    def backward(
        self, tape: Tape, dy: Ragged | Array | None, dstate: State | None = None
    ) -> Gradients:
        """The gradients of a loss from those by what `run_training` returned.

        dy: like y; dstate: like the state; None: zeros. float32 in and out, in bf16 too. Every
        call gives fresh gradients: for several batches add them up. Raises `ShapeError` naming the
        argument, `TapeError` for a tape that was used already or that another layer recorded.
        """


class Backend(Protocol):
    """Makes layers ready to run."""

    def prepare(
        self, spec: RnnSpec, weights: Weights, *, dtype: str = "f32", strict: bool = False
    ) -> PreparedLayer:
        """A layer from its weights: one `RnnWeights`, or a list of one-layer ones.

        What the backend cannot run goes to the NumPy reference, which the layer's ``why`` tells;
        ``strict`` raises `UnsupportedError` instead. Raises `ShapeError` for weights that do not
        fit the spec.
        """


class _ReferenceBackend:
    def prepare(
        self, spec: RnnSpec, weights: Weights, *, dtype: str = "f32", strict: bool = False
    ) -> PreparedLayer:
        first = weights if isinstance(weights, RnnWeights) else weights[0]
        if dtype == "f32" and first.iter.dtype == np.float64:  # a float64 model stays one
            dtype = "f64"
        return ReferenceLayer(spec, weights, dtype, why="asked for by name")


_REGISTERED: dict[str, Callable[[int | None], Backend]] = {}


def register_backend(name: str, opener: Callable[[int | None], Backend]) -> None:
    """Makes `open_backend` know one of a room above this one; ``opener`` takes ``threads``."""
    _REGISTERED[name] = opener


def open_backend(
    name: str = "onednn",
    *,
    threads: int | None = None,
    cache_capacity: int | None = None,
    device: str = "cpu",
) -> Backend:
    """The backend "onednn", "reference", or one that is registered.

    ``threads``: None leaves the choice to the backend.
    ``cache_capacity``: most primitives that each direction of a layer keeps, 512 by default; the
    reference has none. Raises `LibraryError` where oneDNN's library is missing: nothing falls back
    silently. Raises `UnsupportedError` for another ``device`` than the CPU.
    """
    if device != "cpu":
        raise UnsupportedError(
            f"device {device!r}: onernn runs on 'cpu' only; on GPUs oneDNN's RNN primitive has no"
            " GRU, no peephole and no projection (RNN developer guide, limitations)"
        )
    for what, number in (("threads", threads), ("cache_capacity", cache_capacity)):
        if number is not None and number < 1:
            raise ValueError(f"{what}: expected at least 1, got {number}")
    if name == "reference":
        return _ReferenceBackend()
    if name == "onednn":
        from onernn.backend.onednn.layer import OneDnnBackend  # loads libdnnl at first use only

        return OneDnnBackend(threads, cache_capacity)
    if name in _REGISTERED:
        return _REGISTERED[name](threads)
    known = " or ".join(map(repr, ("onednn", "reference", *_REGISTERED)))
    raise UnsupportedError(f"backend {name!r}: expected {known}")
