"""Kernels of ONNX operators that multiply matrices, by name and meaning."""

from __future__ import annotations

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.graph import Node
from onernn.core.ragged import Ragged, data_of
from onernn.runtime.kernels.registry import Attributes, kernel, row_wise


@row_wise("MatMul")
def _matmul(_: Attributes, a: Array, b: Array) -> Array:
    """Halves are multiplied in float32, as everybody's libraries do."""
    if a.dtype == np.float16:
        return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    if a.ndim > 2 and b.ndim == 2 and a.size:  # one product, where NumPy makes one a matrix
        return (a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[-1])
    return a @ b


@row_wise("Gemm")
def _gemm(attributes: Attributes, a: Array, b: Array, c: Array | None = None) -> Array:
    a = a.T if attributes.get("transA") else a
    b = b.T if attributes.get("transB") else b
    out = _matmul(attributes, a, b) * np.asarray(attributes.get("alpha", 1.0), a.dtype)
    return out if c is None else out + c * np.asarray(attributes.get("beta", 1.0), a.dtype)


@kernel("Einsum")
def _einsum(node: Node, *values: object) -> Array:
    if any(isinstance(value, Ragged) for value in values):
        raise ShapeError("an einsum has no words; drop the LoD before")
    return np.einsum(node.attributes["equation"], *map(data_of, values))
