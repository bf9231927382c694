"""Array aliases, and the one way in which arrays are frozen."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]


def frozen(array: Array) -> Array:
    """A contiguous read-only array with the same values; what anybody can write to is copied."""
    out = np.ascontiguousarray(array)
    if out.shape != np.shape(array):  # ascontiguousarray makes a scalar one-dimensional
        out = out.reshape(np.shape(array))
    if _writable(out) and np.shares_memory(out, array):
        out = out.copy()
    out.flags.writeable = False
    return out


def _writable(array: Any) -> bool:
    """Whether the array, or one that it is a view of, can be written to."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return False
