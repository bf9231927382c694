"""The memory of Paddle's tensors as arrays, without a copy: Paddle's own way makes one."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onernn.adapters.requirements import require
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.ragged import Ragged, data_of

_OLD_NAMES = {
    **{"BOOL": "bool", "UINT8": "uint8", "INT8": "int8", "INT16": "int16", "INT32": "int32"},
    **{"INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64"},
    **{"BF16": "bfloat16", "COMPLEX64": "complex64", "COMPLEX128": "complex128"},
}


def view(tensor: Any, name: str) -> Array:
    """The numbers of a tensor in a scope; valid while it keeps its memory. bfloat16 is copied.

    Raises `UnsupportedError` naming what has none, is on another device, or of another type.
    """
    if tensor is None:  # what Paddle hands to Python for a variable without memory
        raise UnsupportedError(f"{name}: it holds no numbers")
    return _view(tensor, name, tensor._place(), tensor._dtype(), tensor.shape(), tensor._ptr)


def view_eager(tensor: Any, name: str) -> Array:
    """The numbers of a tensor of dygraph, of a copy where it is not contiguous; else as `view`."""
    whole = tensor if tensor.is_contiguous() else tensor.contiguous()
    return _view(whole, name, whole.place, whole.dtype, whole.shape, whole.data_ptr)


def _view(
    owner: Any, name: str, place: Any, kind: Any, shape: Sequence[int], pointer: Callable[[], int]
) -> Array:
    if not place.is_cpu_place():
        raise UnsupportedError(f"{name}: it is on {place}, only CPU memory is read")
    named = str(kind).rpartition(".")[2]
    found = _OLD_NAMES.get(named, named)
    if found not in _OLD_NAMES.values():
        raise UnsupportedError(f"{name}: {named} numbers are not supported")
    dtype = np.dtype("uint16" if found == "bfloat16" else found)
    if not (count := math.prod(shape)):
        return np.empty(shape, np.float32 if found == "bfloat16" else dtype)
    memory: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer())
    memory.owner = owner  # which lives as long as the array does
    array = np.frombuffer(memory, dtype).reshape(shape)
    # NumPy has no bfloat16, the upper half of a float32.
    return (array.astype(np.uint32) << 16).view(np.float32) if found == "bfloat16" else array


def batch(tensor: Any, name: str) -> Ragged | Array:
    """A tensor as an array, or as `Ragged` where it carries a LoD; as `view`."""
    data = view(tensor, name)
    lod = tensor.lod()
    return Ragged.from_lod(data, lod) if lod else data


def tensor_of(value: Ragged | Array) -> Any:
    """A tensor of Paddle with the same numbers and LoD."""
    paddle = require("paddle", "paddle")
    core = paddle.base.core
    made = (getattr(core, "LoDTensor", None) or core.DenseTensor)()
    made.set(np.ascontiguousarray(data_of(value)), paddle.CPUPlace())
    if isinstance(value, Ragged):
        made.set_lod(value.lod)
    return made
