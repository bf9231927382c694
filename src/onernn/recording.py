"""Recordings of a framework's inputs and outputs, for `onernn.verify` and ``--data``.

>>> onernn.recording.save("io.npz", {"x": np.zeros((1, 2), "f4")}, {"y": np.zeros((1, 3), "f4")})
>>> sorted(np.load("io.npz").files)
['in__x', 'out__y']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.ragged import Batch, Ragged, as_array, offsets_of
from onernn.verification.recording import INPUTS, OUTPUTS, key_arrays, write_arrays


def save(
    file: str | Path, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | Iterable[Any] = ()
) -> None:
    """Writes an ``.npz`` of inputs by name, and of outputs by name or in the model's order.

    A value may be a NumPy array or an `onernn.Ragged`. It may also be a tensor, LoDTensor,
    PaddleTensor or predictor's handle of Paddle, an NDArray of MXNet, or a tensor or PackedSequence
    of PyTorch. Values with a LoD, and packed values, are written with their offsets. Raises
    `UnsupportedError`, which names the value, for all other types.

    >>> x = onernn.Ragged.from_lengths(np.zeros((4, 2), "f4"), [3, 1])
    >>> onernn.recording.save("io.npz", {"x": x})
    >>> sorted(np.load("io.npz").files)
    ['in__x', 'lod__x']
    """
    named = outputs if isinstance(outputs, Mapping) else dict(enumerate(outputs))
    arrays: dict[str, Array] = {}
    for prefixes, values in ((INPUTS, inputs), (OUTPUTS, named)):
        batches = {str(name): _batch(str(name), value) for name, value in values.items()}
        arrays |= key_arrays(prefixes, batches)
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
    """Returns a copy of a tensor as a NumPy array. NumPy lacks bfloat16, which becomes float32."""
    if "bfloat16" in str(getattr(value, "dtype", "")):
        value = value.float() if hasattr(value, "float") else value.astype("float32")
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # a tensor of PyTorch or Paddle
        value = value.detach().cpu()
    for method in ("copy_to_cpu", "as_ndarray", "asnumpy", "numpy"):
        if hasattr(value, method):
            return np.array(getattr(value, method)())
    return np.array(as_array(value, "recording"))


def _unpack(packed: Any) -> Ragged:
    """Returns a PackedSequence of PyTorch as a `Ragged`, with the sequences in the order that they
    had before PyTorch sorted them.
    """
    words, sizes = _array(packed.data), _array(packed.batch_sizes)
    starts = offsets_of(sizes)
    count = int(sizes[0]) if len(sizes) else 0
    order = packed.unsorted_indices
    order = range(count) if order is None else _array(order).tolist()
    return Ragged.from_list([words[starts[:-1][sizes > n] + n] for n in order])
