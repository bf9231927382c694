"""Kernels of ONNX operators, by name and meaning."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.backend.activations import sigmoid
from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.graph import Node
from onernn.core.ragged import Ragged, data_of
from onernn.runtime.kernels.registry import kernel, row_wise


@row_wise("MatMul")
def _matmul(_: Any, a: Array, b: Array) -> Array:
    return a @ b


@row_wise("Gemm")
def _gemm(attributes: Any, a: Array, b: Array, c: Array | None = None) -> Array:
    a = a.T if attributes.get("transA") else a
    b = b.T if attributes.get("transB") else b
    out = (a @ b) * np.asarray(attributes.get("alpha", 1.0), a.dtype)
    return out if c is None else out + c * np.asarray(attributes.get("beta", 1.0), a.dtype)


row_wise("Add")(lambda _, a, b: a + b)
row_wise("Mul")(lambda _, a, b: a * b)
row_wise("Identity")(lambda _, a: a)
row_wise("Relu")(lambda _, a: np.maximum(a, 0))
row_wise("Tanh")(lambda _, a: np.tanh(a))
row_wise("Sigmoid")(lambda _, a: sigmoid(a))
row_wise("Transpose")(lambda attributes, a: a.transpose(attributes["perm"]))
row_wise("Squeeze")(lambda _, a, axes: a.squeeze(tuple(axes.tolist())))


@row_wise("Unsqueeze")
def _unsqueeze(_: Any, a: Array, axes: Array) -> Array:
    return np.expand_dims(a, tuple(axes.tolist()))


@row_wise("Concat")
def _concat(attributes: Any, *arrays: Array) -> Array:
    return np.concatenate(arrays, axis=attributes["axis"])


@row_wise("Softmax")
def _softmax(attributes: Any, a: Array) -> Array:
    axis = attributes.get("axis", -1)
    e = np.exp(a - a.max(axis=axis, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=axis, keepdims=True)


@row_wise("ArgMax")
def _argmax(attributes: Any, a: Array) -> Array:
    return a.argmax(attributes.get("axis", 0), keepdims=bool(attributes.get("keepdims", 1)))


@row_wise("Cast")
def _cast(attributes: Any, a: Array) -> Array:
    return a.astype(attributes["to"])


@row_wise("Flatten")
def _flatten(attributes: Any, a: Array) -> Array:
    axis = attributes.get("axis", 1)
    rows = int(np.prod(a.shape[:axis], dtype=np.int64))
    return a.reshape(rows, int(np.prod(a.shape[axis:], dtype=np.int64)))


@row_wise("Reshape")
def _reshape(_: Any, a: Array, shape: Array) -> Array:
    sizes = [a.shape[axis] if size == 0 else int(size) for axis, size in enumerate(shape)]
    return a.reshape(sizes)


@kernel("Gather")
def _gather(node: Node, data: Array, indices: Any) -> Any:
    axis = node.attributes.get("axis", 0)
    at = data_of(indices)
    size = data.shape[axis]
    lowest = 0 if node.attributes.get("non_negative") else -size
    if at.size and (at.min() < lowest or at.max() >= size):
        bad = at[(at < lowest) | (at >= size)].flat[0]
        raise ShapeError(f"index {bad} is outside [{lowest}, {size})")
    out = np.take(data, at, axis=axis)
    return indices.with_data(out) if isinstance(indices, Ragged) and axis == 0 else out
