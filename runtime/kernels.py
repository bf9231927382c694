"""NumPy kernels of the canonical operators: ONNX's by name and meaning, and our few sequence ones.

A kernel takes a node and its input values (None where absent) and gives the output values. Values
are arrays or `Ragged`; operators that work row by row run over a ragged value's words and keep its
offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onernn.backend.activations import sigmoid
from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.graph import Node
from onernn.core.ragged import Ragged, data_of

Kernel = Callable[..., Any]
KERNELS: dict[str, Kernel] = {}


def kernel(name: str) -> Callable[[Kernel], Kernel]:
    def register(function: Kernel) -> Kernel:
        KERNELS[name] = function
        return function

    return register


def row_wise(name: str) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Registers a function of arrays; the result is ragged like the first ragged input."""

    def register(function: Callable[..., Array]) -> Callable[..., Array]:
        def run(node: Node, *values: Any) -> Any:
            arrays = [None if v is None else data_of(v) for v in values]
            out = function(node.attributes, *arrays)
            for value in values:
                if isinstance(value, Ragged) and out.ndim and len(out) == len(value.data):
                    return value.with_data(out)
            return out

        KERNELS[name] = run
        return function

    return register


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
row_wise("GateLayout")(lambda attributes, a: attributes["layout"](a))


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


@kernel("SequenceData")
def _sequence_data(_: Node, x: Any) -> Array:
    """The words of a ragged value, without its offsets."""
    return data_of(x)


@kernel("SequenceLike")
def _sequence_like(node: Node, x: Any, like: Any) -> Ragged:
    """The words of x under the offsets of another value."""
    if not isinstance(like, Ragged):
        raise ShapeError(f"{node.inputs[1]!r} carries no offsets to take over")
    return like.with_data(data_of(x))


@kernel("CrfDecode")
def _crf_decode(_: Node, emission: Any, transition: Array) -> Ragged:
    """Viterbi decoding: emission ragged (W, K), transition (K+2, K) -> tags (W, 1), int64.

    Rows of transition: score of starting with a tag, of ending with it, then from tag i to tag j.
    Ties go to the lower tag. Formula: documentation of Paddle's operator ``crf_decoding``.
    """
    if not isinstance(emission, Ragged):
        raise ShapeError("the emission must be ragged, got a plain array")
    scores, packing = emission.data, emission.packing
    tags = scores.shape[-1]
    if scores.ndim != 2 or transition.shape != (tags + 2, tags):
        raise ShapeError(
            f"expected emission (W, K) and transition (K+2, K),"
            f" got {scores.shape} and {transition.shape}"
        )
    start, stop, between = transition[0], transition[1], transition[2:]
    packed = packing.pack(scores)
    came_from = np.zeros(packed.shape, np.int64)
    path = np.empty(len(packed), np.int64)
    steps = list(zip(packing.step_offsets, packing.batch_sizes, strict=False))
    best = np.empty((0, tags), packed.dtype)
    finals = np.empty((len(packing.lengths), tags), packed.dtype)
    for t, (row, running) in enumerate(steps):
        here = slice(row, row + running)
        if t == 0:
            best = start + packed[here]
        else:
            reach = best[:running, :, None] + between
            came_from[here] = reach.argmax(1)
            best = reach.max(1) + packed[here]
        finals[:running] = best
    tag = (finals + stop).argmax(1)
    for t, (row, running) in reversed(list(enumerate(steps))):
        path[row : row + running] = tag[:running]
        if t:
            tag[:running] = came_from[row + np.arange(running), tag[:running]]
    return emission.with_data(packing.unpack(path)[:, None])
