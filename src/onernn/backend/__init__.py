"""Runs recurrent layers: on onernn's kernels, on oneDNN, or as the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from onernn.backend.arguments import Gradients, Layout, State, Tape, TapeError
from onernn.backend.process import check_count
from onernn.backend.stack import Backend, Stack, picklable
from onernn.ir.errors import UnsupportedError, did_you_mean
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import Weights, layers_of

if TYPE_CHECKING:
    from onernn.backend.reference import reference_stack

__all__ = [
    "Backend",
    "Gradients",
    "Layout",
    "Stack",
    "State",
    "Tape",
    "TapeError",
    "open_backend",
    "reference_stack",
    "register_backend",
]


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name):
        """Imports `reference_stack` at its first use, because few models need it."""
        if name == "reference_stack":
            from onernn.backend.reference import reference_stack

            return reference_stack
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _ReferenceBackend:
    @picklable
    def prepare(
        self, spec: RnnSpec, weights: Weights, *, dtype: str = "f32", strict: bool = False
    ) -> Stack:
        layers = layers_of(spec, weights)
        if dtype == "f32" and layers[0].iter.dtype == np.float64:  # keep float64 weights
            dtype = "f64"
        from onernn.backend.reference import reference_stack

        return reference_stack(spec, layers, dtype, why="asked for by name")


BACKENDS = ("auto", "kernels", "onednn", "reference")
_REGISTERED: dict[str, Callable[[int | None], Backend]] = {}


def register_backend(name: str, opener: Callable[[int | None], Backend]) -> None:
    """Registers another package's backend; ``opener`` takes ``threads`` and returns the backend.

    >>> from onernn.backend import open_backend, register_backend
    >>> register_backend("mine", lambda threads: open_backend("reference"))
    >>> type(open_backend("mine")) is type(open_backend("reference"))
    True
    """
    _REGISTERED[name] = opener


def open_backend(
    name: str = "auto",
    *,
    threads: int | None = None,
    cache_capacity: int | None = None,
    device: str = "cpu",
) -> Backend:
    """Returns the backend "auto", "kernels", "onednn", "reference", or a registered one.

    "auto" runs a layer on the kernels, or on oneDNN if the kernels do not support it. It also runs
    bf16 and u8 on oneDNN if the CPU has AMX and the kernels were built without it. Without the
    kernels, oneDNN runs every layer, and the ``why`` of the layers says so. If "kernels" or
    "onednn" cannot run a layer, the reference runs it. If "onednn" is asked for a u8 LBR_GRU, which
    oneDNN lacks, the kernels run it.

    ``threads``: None means OMP_NUM_THREADS, or every CPU that the process may use.
    ``cache_capacity``: the maximum number of oneDNN primitives that each direction of a layer
    keeps, 512 by default. Raises `LibraryError` if the requested library is missing: no other
    backend replaces it silently. Raises `UnsupportedError` for a ``device`` other than the CPU.

    >>> layer, iter = np.ones((1, 1, 2, 3, 3), "f4"), np.ones((1, 1, 3, 3, 3), "f4")
    >>> spec, weights = onernn.RnnSpec(onernn.Cell.GRU, 2, 3), onernn.RnnWeights(layer, iter)
    >>> from onernn.backend import open_backend
    >>> y, state = open_backend().prepare(spec, weights).run(np.ones((4, 1, 2), "f4"))
    >>> y.shape
    (4, 1, 3)
    """
    if device != "cpu":
        raise UnsupportedError(
            f"device {device!r}: onernn runs on 'cpu' only; on GPUs oneDNN's RNN primitive has no"
            " GRU, no peephole and no projection (RNN developer guide, limitations)"
        )
    check_count("threads", threads)
    check_count("cache_capacity", cache_capacity)
    if name == "auto":
        from onernn.backend.auto import AutoBackend

        return AutoBackend(threads, cache_capacity)
    if name == "reference":
        return _ReferenceBackend()
    if name == "onednn":
        from onernn.backend.onednn.backend import OneDnnBackend  # loads libdnnl at first use

        return OneDnnBackend(threads, cache_capacity)
    if name == "kernels":
        from onernn.backend.compiled.backend import KernelsBackend  # loads the library at first use

        return KernelsBackend(threads)
    if name in _REGISTERED:
        return _REGISTERED[name](threads)
    known = (*BACKENDS, *_REGISTERED)
    expected = " or ".join(map(repr, known))
    raise UnsupportedError(f"backend {name!r}: expected {expected}{did_you_mean(name, known)}")
