"""Kernels of our own domain: gates, offsets, tag sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.graph import Node
from onernn.core.ragged import Ragged, data_of
from onernn.runtime.kernels.registry import kernel, row_wise

row_wise("GateLayout")(lambda attributes, a: attributes["layout"](a))


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


@kernel("SequenceReset")
def _sequence_reset(_: Node, x: Any, offsets: Array) -> Ragged:
    """The words of x under offsets given as numbers, (N+1,)."""
    return Ragged(data_of(x), data_of(offsets))


@kernel("SequenceAppend")
def _sequence_append(_: Node, *values: Any) -> Ragged:
    """The sentences of all values in one batch, the first value's first; upper levels likewise."""
    if not all(isinstance(value, Ragged) for value in values):
        raise ShapeError("expected ragged inputs only, got a plain array")
    levels = zip(*((*value.outer, value.offsets) for value in values), strict=True)
    lengths = [np.concatenate([np.diff(part) for part in level]) for level in levels]
    *outer, last = (np.concatenate([[0], np.cumsum(each)]) for each in lengths)
    return Ragged(np.concatenate([value.data for value in values]), last, tuple(outer))


@kernel("SequenceUnpad")
def _sequence_unpad(node: Node, padded: Array, lengths: Array) -> Ragged:
    """Padded (N, T, ...), or (T, N, ...) where ``time_major``, and lengths (N,) -> ragged."""
    time_major = bool(node.attributes.get("time_major"))
    return Ragged.from_padded(padded, np.asarray(lengths).reshape(-1), time_major=time_major)


@kernel("SequencePad")
def _sequence_pad(node: Node, x: Any, like: Array | None = None) -> Array:
    """Ragged -> (N, T, ...), or (T, N, ...) where ``time_major``, zeros behind each sentence.

    T is that of ``like``, a padded array of the same layout, or the longest sentence.
    """
    if not isinstance(x, Ragged):
        raise ShapeError(f"{node.inputs[0]!r} carries no offsets to pad by")
    time_major = bool(node.attributes.get("time_major"))
    time = None if like is None else data_of(like).shape[0 if time_major else 1]
    return x.to_padded(time=time, time_major=time_major)


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
