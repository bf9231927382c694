"""What `create_paddle_predictor` of Paddle 1 takes and gives: arrays with a name and a LoD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onernn.adapters.paddle.inference.data_types import data_type, numpy_dtype
from onernn.adapters.paddle.inference.errors import PaddleRuntimeError
from onernn.adapters.paddle.inference.tensors import Lod, lod_of
from onernn.core.arrays import Array

_TAKEN = (np.float32, np.int32, np.int64)


def _as_taken(data: npt.ArrayLike) -> Array:
    """In one of the three types of a `PaddleTensor`, the first that holds it exactly."""
    array = np.asarray(data)
    if isinstance(data, list) and array.dtype == np.int64:
        array = array.astype(np.int32)
    if array.dtype not in _TAKEN:
        wider = (np.float32,) if array.dtype.kind == "f" else (np.int32, np.int64)
        fits = [each for each in wider if np.can_cast(array.dtype, each)]
        if not fits:
            raise TypeError(
                f"PaddleTensor: expected float32, int32 or int64, got {array.dtype}; use"
                " .astype('float32')"
            )
        array = array.astype(fits[0])
    return np.ascontiguousarray(array).reshape(array.shape)


class PaddleBuf:
    """Bytes, read as numbers of the type that is asked for."""

    def __init__(self, data: npt.ArrayLike = 0) -> None:
        self._bytes: Array = np.zeros(data if isinstance(data, int) else 0, np.uint8)
        if not isinstance(data, int):  # a list is one of floats, as Paddle reads it
            self.reset(np.asarray(data, np.float32) if isinstance(data, list) else data)

    def reset(self, data: npt.ArrayLike) -> None:
        self._bytes = np.array(_as_taken(data)).reshape(-1).view(np.uint8)

    def resize(self, length: int) -> None:
        """At least so many bytes."""
        if length > len(self._bytes):
            self._bytes = np.zeros(length, np.uint8)

    def empty(self) -> bool:
        return not len(self._bytes)

    def length(self) -> int:
        """In bytes."""
        return len(self._bytes)

    def float_data(self) -> list[float]:
        return self._bytes.view(np.float32).tolist()

    def int32_data(self) -> list[int]:
        return self._bytes.view(np.int32).tolist()

    def int64_data(self) -> list[int]:
        return self._bytes.view(np.int64).tolist()

    def tolist(self, dtype: str = "float32") -> list[Any]:
        return self._bytes.view(np.dtype(dtype)).tolist()

    def _hold(self, array: Array) -> None:
        self._bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class PaddleTensor:
    """An input or output of a predictor's ``run``: data, dtype, shape, lod, name."""

    def __init__(
        self,
        data: npt.ArrayLike | None = None,
        name: str = "",
        lod: Sequence[Sequence[int]] = (),
        copy: bool = True,
    ) -> None:
        array = np.zeros(0, np.float32) if data is None else _as_taken(data)
        self.name, self.lod = name, lod_of(lod)
        self._hold(array.copy() if copy else array)
        self.shape: list[int] = [] if data is None else list(array.shape)

    def _hold(self, array: Array) -> None:
        self.data, self.dtype = PaddleBuf(), data_type(array)
        self.data._hold(array)

    def as_ndarray(self) -> Array:
        """A new array of the tensor's type and shape."""
        return self.held().copy()

    def held(self) -> Array:
        """Its numbers where they are. Raises where there are fewer than the shape says."""
        flat = self.data._bytes
        dtype, count = numpy_dtype(self.dtype), int(np.prod(self.shape))
        if not 0 <= count * dtype.itemsize <= len(flat):
            raise PaddleRuntimeError(
                f"PaddleTensor {self.name!r}: shape {self.shape} of {dtype} needs"
                f" {count * dtype.itemsize} bytes, its data has {len(flat)}"
            )
        return flat[: count * dtype.itemsize].view(dtype).reshape(self.shape)


def paddle_tensor(name: str, array: Array, lod: Lod) -> PaddleTensor:
    """An output: the array as it is."""
    made = PaddleTensor(name=name)
    made._hold(array)
    made.shape, made.lod = list(array.shape), lod
    return made
