"""The tensor classes of `paddle.inference`, in its current and in its first version."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError, ShapeError, UnsupportedError
from onernn.ir.graph import Value
from onernn.ir.ragged import Batch, Ragged, as_array, convert, data_of

# The error for calls in which Paddle raises a RuntimeError, and the caller's line for messages.


class PaddleRuntimeError(OnernnError, RuntimeError):
    """Raised for an unknown name, and for a tensor that has no array yet."""


def name_asker() -> str:
    """Returns the file and line of the caller outside this package and the import machinery."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith((__package__, "importlib.")):
            break
        frame = frame.f_back
    return f"asked by {frame.f_code.co_filename}, line {frame.f_lineno}"


# Paddle Inference's names for dtypes, precisions and places.


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
"""The dtypes that Paddle converts when it copies an array, and the dtypes that result."""
_SIZES = {"FLOAT32": 4, "INT64": 8, "INT32": 4, "UINT8": 1}


def data_type(array: Array) -> PaddleDType:
    """Returns Paddle's dtype of an array. Like Paddle, raises `TypeError` for a dtype that it
    lacks.
    """
    if array.dtype not in _BY_DTYPE:
        names = ", ".join(each.name for each in PaddleDType)
        raise TypeError(f"expected a tensor of {names}, got {array.dtype}; use .astype()")
    return _BY_DTYPE[array.dtype]


def numpy_dtype(of: PaddleDType) -> np.dtype[np.generic]:
    return np.dtype(of.name.lower())


def as_taken(data: npt.ArrayLike) -> Array:
    """Returns a contiguous array of a dtype that Paddle has. See `data_type` and `as_array` for
    errors.
    """
    array = as_array(data, "tensor")
    result = np.ascontiguousarray(array).reshape(array.shape)  # removes the axis that a scalar gets
    result = result.astype(_AS_PADDLE_TAKES.get(result.dtype.name, result.dtype), copy=False)
    data_type(result)
    return result


def get_num_bytes_of_data_type(dtype: PaddleDType) -> int:
    """Returns the bytes of one element, -1 for dtypes whose size Paddle 2.6.2 does not know."""
    return _SIZES.get(PaddleDType(dtype).name, -1)


# Tensors of programs: a predictor's handles, LoDTensors, tensors of Paddle 2's dynamic mode.

Lod = list[list[int]]
_NO_STRINGS = "expected a tensor of numbers; onernn has no tensors of strings"


def lod_of(given: Sequence[Sequence[int]]) -> Lod:
    """Returns a LoD in Python integers. Raises `TypeError` if it is not a list of lists of
    offsets.
    """
    try:
        return [[int(offset) for offset in level] for level in given]
    except TypeError as error:
        raise TypeError(f"lod: expected a list of lists of offsets, got {given!r}") from error


def batch_for(expected: Value, data: Array, lod: Lod) -> Batch:
    """Returns a session's input from an array and its LoD. Raises `ShapeError` if they do not
    fit.
    """
    if lod and any(lod):
        return Ragged.from_lod(data, lod)
    if expected.lod_depth:
        raise ShapeError(
            f"input {expected.name!r} is ragged: expected a LoD, the offsets of its sequences; call"
            f" set_lod([[0, {len(data) if data.ndim else 1}]]) for one sequence"
        )
    return data


class _Held:
    """A base class that implements NumPy's protocol ``__array__`` for its array."""

    _data: Array

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        result = self._data if dtype is None else self._data.astype(dtype, copy=False)
        return result.copy() if copy else result


class PaddleInferTensor:
    """A handle to an input or output of a predictor, valid for all of its runs."""

    __slots__ = ("_data", "_lod", "_name", "_shape")

    def __init__(self, name: str) -> None:
        self._name, self._lod = name, Lod()
        self._data: Array | None = None
        self._shape: list[int] = [0]

    def reshape(self, shape: Sequence[int]) -> None:
        """Sets the shape. A later `copy_from_cpu` replaces it by the shape of the array."""
        if isinstance(shape, int):
            raise UnsupportedError(f"tensor {self._name!r}: {_NO_STRINGS}")
        self._shape = [int(size) for size in shape]

    def copy_from_cpu(self, data: npt.NDArray[Any]) -> None:
        """Copies an array with its dtype and shape. The LoD is unchanged."""
        if isinstance(data, list) and data and isinstance(data[0], str):
            raise UnsupportedError(f"tensor {self._name!r}: {_NO_STRINGS}")
        if not isinstance(data, np.ndarray):
            raise TypeError(
                f"copy_from_cpu of {self._name!r}: expected a numpy.ndarray, got"
                f" {type(data).__name__}"
            )
        self._hold(np.array(as_taken(data)))

    def share_external_data(self, data: LoDTensor | EagerTensor) -> None:
        """Uses a tensor's array without a copy, so that later changes of the tensor take effect."""
        if not isinstance(data, LoDTensor | EagerTensor):
            raise TypeError(
                f"share_external_data of {self._name!r}: expected a Tensor or LoDTensor, got"
                f" {type(data).__name__}"
            )
        self._hold(np.asarray(data))

    def copy_to_cpu(self) -> Array:
        """Returns a copy of the array."""
        return self._get_array().copy()

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Sets the offsets, outermost level first. The predictor checks them when it runs."""
        self._lod = lod_of(lod)

    def lod(self) -> Lod:
        return [list(level) for level in self._lod]

    def shape(self) -> list[int]:
        return list(self._shape)

    def type(self) -> PaddleDType:
        return PaddleDType.FLOAT32 if self._data is None else data_type(self._data)

    def _hold(self, data: Array, lod: Lod | None = None) -> None:
        self._data, self._shape = data, list(data.shape)
        if lod is not None:
            self._lod = lod

    def _get_array(self) -> Array:
        if self._data is None:
            raise PaddleRuntimeError(
                f"tensor {self._name!r} holds nothing yet: an input needs copy_from_cpu(), an"
                " output a run() of its predictor"
            )
        if self._shape == list(self._data.shape):
            return self._data
        count = math.prod(self._shape)
        if min(self._shape, default=0) < 0 or count > self._data.size:
            raise PaddleRuntimeError(
                f"tensor {self._name!r}: reshape({self._shape}) came after copy_from_cpu(), which"
                f" set {self._data.shape}"
            )
        return self._data.reshape(-1)[:count].reshape(self._shape)


class LoDTensor(_Held):
    """``fluid.LoDTensor``: an array and its LoD, the offsets of its sequences."""

    def __init__(self) -> None:
        self._data: Array = np.zeros(0, np.float32)
        self._lod = Lod()

    def set(self, array: npt.ArrayLike, place: object = None) -> None:
        self._data = np.array(as_taken(array))

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Sets the offsets, outermost level first. Raises `ShapeError` if they do not fit the
        array.
        """
        levels = lod_of(lod)
        if levels and self._data.size:
            Ragged.from_lod(self._data, levels)
        self._lod = levels

    def lod(self) -> Lod:
        return [list(level) for level in self._lod]

    def set_recursive_sequence_lengths(self, lengths: Sequence[Sequence[int]]) -> None:
        """Sets the LoD from the length of each sequence."""
        self.set_lod([[0, *np.cumsum(level).tolist()] for level in lod_of(lengths)])

    def recursive_sequence_lengths(self) -> Lod:
        return [np.diff(level).tolist() for level in self._lod]

    def has_valid_recursive_sequence_lengths(self) -> bool:
        try:
            self.set_lod(self._lod)
        except ShapeError:
            return False
        return True

    def shape(self) -> list[int]:
        return list(self._data.shape)

    def __str__(self) -> str:
        return f"LoDTensor({self._data.dtype} {self._data.shape}, lod={self._lod})\n{self._data}"


def lod_tensor(value: Batch) -> LoDTensor:
    """Returns a fetched value as a `LoDTensor`, without a copy."""
    made = LoDTensor()
    made._data = data_of(value)
    made._lod = value.lod if isinstance(value, Ragged) else []
    return made


def create_lod_tensor(
    data: Any, recursive_seq_lens: Sequence[Sequence[int]], place: object = None
) -> LoDTensor:
    """Returns a tensor for an array of all steps, or for a list with one list of numbers per
    sequence. Each of these numbers becomes an int64 row.
    """
    if isinstance(data, list):
        lengths = [len(sentence) for sentence in data]
        if lengths != list(recursive_seq_lens[-1]):
            raise ShapeError(
                f"recursive_seq_lens: expected {lengths}, the lengths of the lists in data, got"
                f" {recursive_seq_lens[-1]}"
            )
        data = np.concatenate([np.asarray(each, np.int64) for each in data]).reshape(-1, 1)
    made = LoDTensor()
    made.set(data, place)
    made.set_recursive_sequence_lengths(recursive_seq_lens)
    return made


class EagerTensor(_Held):
    """An array that replaces ``paddle.Tensor`` in the inputs and outputs of `Predictor.run`."""

    def __init__(self, data: npt.ArrayLike) -> None:
        self._data = np.array(as_taken(data))

    @property
    def shape(self) -> list[int]:
        return list(self._data.shape)

    @property
    def ndim(self) -> int:
        return self._data.ndim

    def numpy(self) -> Array:
        return self._data.copy()

    def tolist(self) -> Any:
        return self._data.tolist()

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self._data.dtype})\n{self._data}"


def copy_tensor(to: PaddleInferTensor, source: PaddleInferTensor) -> None:
    """Copies one handle's array and LoD to another:
    ``paddle.inference.contrib.utils.copy_tensor``.
    """
    to._hold(source.copy_to_cpu(), source.lod())


# The inputs and outputs of Paddle 1's `create_paddle_predictor`: arrays with a name and a LoD.

_TAKEN = (np.float32, np.int32, np.int64)


def _as_taken(data: npt.ArrayLike) -> Array:
    """Returns the data as an array in the first dtype of `PaddleTensor` that holds them exactly."""
    array = as_array(data, "PaddleTensor")
    if isinstance(data, list) and array.dtype == np.int64:
        array = convert(array, np.int32, "PaddleTensor")
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
    """A buffer of bytes that are read as numbers of any dtype."""

    def __init__(self, data: npt.ArrayLike = 0) -> None:
        self._bytes: Array = np.zeros(data if isinstance(data, int) else 0, np.uint8)
        if not isinstance(data, int):  # like Paddle, take a list as floats
            array = as_array(data, "PaddleBuf")
            is_list = isinstance(data, list)
            self.reset(convert(array, np.float32, "PaddleBuf") if is_list else array)

    def reset(self, data: npt.ArrayLike) -> None:
        self._bytes = np.array(_as_taken(data)).reshape(-1).view(np.uint8)

    def resize(self, length: int) -> None:
        """Allocates at least ``length`` bytes."""
        if length > len(self._bytes):
            self._bytes = np.zeros(length, np.uint8)

    def empty(self) -> bool:
        return not len(self._bytes)

    def length(self) -> int:
        """Returns the number of bytes."""
        return len(self._bytes)

    def float_data(self) -> list[float]:
        return self.tolist("float32")

    def int32_data(self) -> list[int]:
        return self.tolist("int32")

    def int64_data(self) -> list[int]:
        return self.tolist("int64")

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
        """Returns a copy of the tensor's array."""
        return self.view_array().copy()

    def view_array(self) -> Array:
        """Returns the tensor's array without a copy. Raises `PaddleRuntimeError` if the buffer is
        too small for the shape.
        """
        flat = self.data._bytes
        dtype, count = numpy_dtype(self.dtype), int(np.prod(self.shape))
        if not 0 <= count * dtype.itemsize <= len(flat):
            raise PaddleRuntimeError(
                f"PaddleTensor {self.name!r}: shape {self.shape} of {dtype} needs"
                f" {count * dtype.itemsize} bytes, its data has {len(flat)}"
            )
        return flat[: count * dtype.itemsize].view(dtype).reshape(self.shape)


def paddle_tensor(name: str, array: Array, lod: Lod) -> PaddleTensor:
    """Returns an output tensor with this array."""
    made = PaddleTensor(name=name)
    made._hold(array)
    made.shape, made.lod = list(array.shape), lod
    return made
