"""Paddle Inference's names for types of data, precisions and places."""

from __future__ import annotations

from enum import Enum, IntEnum

import numpy as np
import numpy.typing as npt

from onernn.core.arrays import Array


class PaddleDType(IntEnum):
    """`paddle.inference.DataType`."""

    FLOAT32 = 0
    INT64 = 1
    INT32 = 2
    UINT8 = 3
    INT8 = 4
    FLOAT16 = 5
    BOOL = 6
    FLOAT64 = 7

    __str__ = Enum.__str__


class Precision(IntEnum):
    """`paddle.inference.PrecisionType`."""

    Float32 = 0
    Int8 = 1
    Half = 2
    Bfloat16 = 3

    __str__ = Enum.__str__


class PaddlePlace(IntEnum):
    """`paddle.inference.PlaceType`."""

    UNK = -1
    CPU = 0
    GPU = 1
    XPU = 2
    CUSTOM = 4

    __str__ = Enum.__str__


_BY_DTYPE = {np.dtype(each.name.lower()): each for each in PaddleDType}
_AS_PADDLE_TAKES = {"int16": np.int32, "uint16": np.int32, "uint64": np.float64}
"""Paddle converts these where it copies an array."""
_SIZES = {"FLOAT32": 4, "INT64": 8, "INT32": 4, "UINT8": 1}


def data_type(array: Array) -> PaddleDType:
    """Raises `TypeError` where Paddle has no such tensors, as Paddle does."""
    if array.dtype not in _BY_DTYPE:
        names = ", ".join(each.name for each in PaddleDType)
        raise TypeError(f"Paddle has no tensors of {array.dtype}; it has {names}")
    return _BY_DTYPE[array.dtype]


def numpy_dtype(of: PaddleDType) -> np.dtype[np.generic]:
    return np.dtype(of.name.lower())


def as_taken(data: npt.NDArray[np.generic]) -> Array:
    """The array in a type that Paddle has, in one piece; see `data_type`."""
    found = np.ascontiguousarray(data).reshape(data.shape)  # an array of no axes gets one
    found = found.astype(_AS_PADDLE_TAKES.get(found.dtype.name, found.dtype), copy=False)
    data_type(found)
    return found


def get_num_bytes_of_data_type(dtype: PaddleDType) -> int:
    """Of one element; -1 for those of which Paddle 2.6.2 does not tell."""
    return _SIZES.get(PaddleDType(dtype).name, -1)
