"""Where recurrent layers run: oneDNN's primitives, or the NumPy reference."""

from __future__ import annotations

from typing import Protocol

from onernn.backend.checks import State
from onernn.backend.reference import ReferenceLayer
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.ragged import Ragged
from onernn.core.spec import RnnSpec
from onernn.core.weights import Weights

__all__ = ["Backend", "PreparedLayer", "ReferenceLayer", "State", "open_backend"]


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
    ) -> tuple[Ragged | Array, State]:
        """(y, state). x: `Ragged` (W, I) or (T, N, I) float32; state (h,) or (h, c), each ldnc.

        y is like x with O (or D*O) channels. The final state is that of each sentence's own end,
        in the caller's order; a sentence of length zero keeps its initial state. Raises
        `ShapeError` naming the argument; writes nothing into the caller's arrays.
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
        return ReferenceLayer(spec, weights, dtype, why="asked for by name")


def open_backend(name: str = "onednn", *, threads: int | None = None) -> Backend:
    """The backend "onednn" or "reference". ``threads``: None leaves the choice to the backend.

    Raises `LibraryError` where oneDNN's library is missing: nothing falls back silently.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads: expected at least 1, got {threads}")
    if name == "reference":
        return _ReferenceBackend()
    if name == "onednn":
        from onernn.backend.onednn.layer import OneDnnBackend  # loads libdnnl at first use only

        return OneDnnBackend(threads)
    raise UnsupportedError(f"backend {name!r}: expected 'onednn' or 'reference'")
