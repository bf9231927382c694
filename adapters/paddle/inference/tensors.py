"""Tensors of programs: a predictor's handles, LoDTensors, tensors of Paddle 2's dynamic mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onernn.adapters.paddle.inference.data_types import PaddleDType, as_taken, data_type
from onernn.adapters.paddle.inference.errors import PaddleRuntimeError
from onernn.core.arrays import Array
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.graph import Value
from onernn.core.ragged import Batch, Ragged, data_of

Lod = list[list[int]]


def lod_of(given: Sequence[Sequence[int]]) -> Lod:
    """Offsets as Python's integers. Raises `TypeError` where they are not a list of lists."""
    try:
        return [[int(offset) for offset in level] for level in given]
    except TypeError as error:
        raise TypeError(f"lod: expected a list of lists of offsets, got {given!r}") from error


def batch_for(expected: Value, data: Array, lod: Lod) -> Batch:
    """What a session takes for an input. Raises `ShapeError` where offsets do not fit."""
    if lod and any(lod):
        return Ragged.from_lod(data, lod)
    if expected.lod_depth:
        raise ShapeError(
            f"input {expected.name!r} is ragged, its LoD says where sentences begin:"
            f" set_lod([[0, {len(data) if data.ndim else 1}]]) if it is one sentence"
        )
    return data


class PaddleInferTensor:
    """A handle to an input or output of a predictor; it lives as long as the predictor does."""

    __slots__ = ("_data", "_lod", "_name", "_shape")

    def __init__(self, name: str) -> None:
        self._name, self._lod = name, Lod()
        self._data: Array | None = None
        self._shape: list[int] = [0]

    def reshape(self, shape: Sequence[int]) -> None:
        """Announces a shape; `copy_from_cpu` replaces it by the array's own."""
        if isinstance(shape, int):
            raise UnsupportedError(f"tensor {self._name!r}: there are no tensors of strings here")
        self._shape = [int(size) for size in shape]

    def copy_from_cpu(self, data: npt.NDArray[Any]) -> None:
        """Takes the array's numbers, type and shape; the LoD stays."""
        if isinstance(data, list) and data and isinstance(data[0], str):
            raise UnsupportedError(f"tensor {self._name!r}: there are no tensors of strings here")
        if not isinstance(data, np.ndarray):
            raise TypeError(
                f"copy_from_cpu of {self._name!r}: expected a numpy.ndarray, got"
                f" {type(data).__name__}"
            )
        self._hold(np.array(as_taken(data)))

    def share_external_data(self, data: LoDTensor | EagerTensor) -> None:
        """As `copy_from_cpu`, without a copy: later changes of the tensor are seen."""
        if not isinstance(data, LoDTensor | EagerTensor):
            raise TypeError(
                f"share_external_data of {self._name!r}: expected a Tensor or LoDTensor, got"
                f" {type(data).__name__}"
            )
        self._hold(np.asarray(data))

    def copy_to_cpu(self) -> Array:
        """A new array."""
        return self._held().copy()

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Offsets, outermost level first; checked when the predictor runs."""
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

    def _held(self) -> Array:
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
                f"tensor {self._name!r}: reshape({self._shape}) came behind copy_from_cpu(), which"
                f" brought {self._data.shape}"
            )
        return self._data.reshape(-1)[:count].reshape(self._shape)


class LoDTensor:
    """An array and the offsets of its sentences: ``fluid.LoDTensor``."""

    def __init__(self) -> None:
        self._data: Array = np.zeros(0, np.float32)
        self._lod = Lod()

    def set(self, array: npt.ArrayLike, place: object = None) -> None:
        self._data = np.array(as_taken(np.asarray(array)))

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Offsets, outermost level first. Raises `ShapeError` where they do not fit the array."""
        levels = lod_of(lod)
        if levels and self._data.size:
            Ragged.from_lod(self._data, levels)
        self._lod = levels

    def lod(self) -> Lod:
        return [list(level) for level in self._lod]

    def set_recursive_sequence_lengths(self, lengths: Sequence[Sequence[int]]) -> None:
        """As `set_lod`, from the length of each sentence."""
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

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        found = self._data if dtype is None else self._data.astype(dtype, copy=False)
        return found.copy() if copy else found

    def __str__(self) -> str:
        return f"LoDTensor({self._data.dtype} {self._data.shape}, lod={self._lod})\n{self._data}"


def lod_tensor(value: Batch) -> LoDTensor:
    """What a program fetches, as it is."""
    made = LoDTensor()
    made._data = data_of(value)
    made._lod = value.lod if isinstance(value, Ragged) else []
    return made


def create_lod_tensor(
    data: Any, recursive_seq_lens: Sequence[Sequence[int]], place: object = None
) -> LoDTensor:
    """From an array of all words, or a list of a list of numbers a sentence (each an int64 row)."""
    if isinstance(data, list):
        lengths = [len(sentence) for sentence in data]
        if lengths != list(recursive_seq_lens[-1]):
            raise ShapeError(f"sentences of {lengths} words, but lengths {recursive_seq_lens[-1]}")
        data = np.concatenate([np.asarray(each, np.int64) for each in data]).reshape(-1, 1)
    made = LoDTensor()
    made.set(np.asarray(data), place)
    made.set_recursive_sequence_lengths(recursive_seq_lens)
    return made


class EagerTensor:
    """``paddle.Tensor`` as far as `Predictor.run` takes and gives it: an array."""

    def __init__(self, data: npt.ArrayLike) -> None:
        self._data = np.array(as_taken(np.asarray(data)))

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

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        found = self._data if dtype is None else self._data.astype(dtype, copy=False)
        return found.copy() if copy else found

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self._data.dtype})\n{self._data}"


def copy_tensor(to: PaddleInferTensor, source: PaddleInferTensor) -> None:
    """One handle's array and LoD to another: ``paddle.inference.contrib.utils.copy_tensor``."""
    to._hold(source.copy_to_cpu(), source.lod())
