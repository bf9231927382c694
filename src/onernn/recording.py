"""Recordings of what a framework was given and gave, for `onernn.verify` and ``--data``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.ragged import Batch, Ragged, as_array
from onernn.verification.recording import keyed_inputs, keyed_outputs, write_arrays


def save(
    file: str | Path, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | Iterable[Any] = ()
) -> None:
    """Writes an ``.npz`` of inputs by name, and of outputs by name or in the model's order.

    Values: NumPy arrays, `onernn.Ragged`; Paddle's tensors, LoDTensors, PaddleTensors and handles
    of predictors; MXNet's NDArrays; PyTorch's tensors and PackedSequences. What has a LoD, or is
    packed, is written with its offsets. Raises `UnsupportedError` naming what is none of these.
    """
    named = outputs if isinstance(outputs, Mapping) else dict(enumerate(outputs))
    arrays = keyed_inputs({name: _batch(name, value) for name, value in inputs.items()})
    arrays |= keyed_outputs({str(name): _batch(str(name), value) for name, value in named.items()})
    write_arrays(file, arrays)


def _batch(name: str, value: Any) -> Batch:
    if isinstance(value, Ragged):
        return value
    if type(value).__name__ == "PackedSequence":
        return _unpack(value)
    array = _array(value)
    if array.dtype.kind not in "biuf":
        raise UnsupportedError(
            f"recording: {name!r}: expected numbers in an array or a framework's tensor, got"
            f" {type(value).__module__}.{type(value).__qualname__}"
        )
    lod = getattr(value, "lod", ())
    lod = lod() if callable(lod) else lod
    return Ragged.from_lod(array, lod) if lod and any(lod) else array


def _array(value: Any) -> Array:
    """Returns a copy of a tensor's numbers; bfloat16, which NumPy lacks, as float32."""
    if "bfloat16" in str(getattr(value, "dtype", "")):
        value = value.float() if hasattr(value, "float") else value.astype("float32")
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # of PyTorch, and of Paddle
        value = value.detach().cpu()
    for method in ("copy_to_cpu", "as_ndarray", "asnumpy", "numpy"):
        if hasattr(value, method):
            return np.array(getattr(value, method)())
    return np.array(as_array(value, "recording"))


def _unpack(packed: Any) -> Ragged:
    """PyTorch's packed words in the caller's order of sentences."""
    words, sizes = _array(packed.data), _array(packed.batch_sizes)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    count = int(sizes[0]) if len(sizes) else 0
    order = packed.unsorted_indices
    order = range(count) if order is None else _array(order).tolist()
    return Ragged.from_list([words[starts[:-1][sizes > n] + n] for n in order])
