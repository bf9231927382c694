"""Runs recurrent layers: on onernn's kernels, on oneDNN, or as the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from onernn.backend.arguments import Gradients, Layout, State, Tape, TapeError
from onernn.backend.stack import Backend, Stack, picklable
from onernn.ir.errors import UnsupportedError, did_you_mean
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import RnnWeights, Weights

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


def __getattr__(name: str) -> Any:
    """`reference_stack`, imported when it is asked for: few models run on it."""
    if name == "reference_stack":
        from onernn.backend.reference import reference_stack

        return reference_stack
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _ReferenceBackend:
    @picklable
    def prepare(
        self, spec: RnnSpec, weights: Weights, *, dtype: str = "f32", strict: bool = False
    ) -> Stack:
        first = weights if isinstance(weights, RnnWeights) else weights[0]
        if dtype == "f32" and first.iter.dtype == np.float64:  # a float64 model stays one
            dtype = "f64"
        from onernn.backend.reference import reference_stack

        return reference_stack(spec, weights, dtype, why="asked for by name")


BACKENDS = ("auto", "kernels", "onednn", "reference")
_REGISTERED: dict[str, Callable[[int | None], Backend]] = {}


def register_backend(name: str, opener: Callable[[int | None], Backend]) -> None:
    """Makes `open_backend` know one of a room above this one; ``opener`` takes ``threads``."""
    _REGISTERED[name] = opener


def open_backend(
    name: str = "auto",
    *,
    threads: int | None = None,
    cache_capacity: int | None = None,
    device: str = "cpu",
) -> Backend:
    """Returns the backend "auto", "kernels", "onednn", "reference", or one that is registered.

    "auto" runs a layer on the kernels, or on oneDNN what these lack, and bf16 and u8 on a CPU with
    AMX; without the kernels oneDNN runs every layer, and the ``why`` of the layers says so. The
    others run by themselves.

    ``threads``: None is OMP_NUM_THREADS, or every CPU that the process may use.
    ``cache_capacity``: most primitives that each direction of a layer keeps, 512 by default; the
    reference has none. Raises `LibraryError` where what is asked for is missing: nothing falls back
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
