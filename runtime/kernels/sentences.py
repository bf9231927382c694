"""Kernels of our own domain over whole sentences: pooled, reversed, repeated, joined, padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onernn.core.arrays import Array, Int64
from onernn.core.errors import ShapeError
from onernn.core.graph import Node
from onernn.core.ragged import Ragged, data_of
from onernn.runtime.kernels.registry import kernel


def _sentences(node: Node, value: Any, at: int = 0) -> Ragged:
    if not isinstance(value, Ragged):
        raise ShapeError(f"{node.inputs[at]!r} carries no offsets")
    return value


def _offsets(lengths: Int64) -> Int64:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _reduced(x: Ragged, by: np.ufunc) -> Array:
    """One row for each sentence that has words, in order."""
    starts = x.offsets[:-1][x.lengths > 0]
    return by.reduceat(x.data, starts, axis=0) if len(starts) else x.data[:0]


def _column(lengths: Int64, like: Array) -> Array:
    return lengths.reshape(-1, *[1] * (like.ndim - 1)).astype(like.dtype)


POOLS: dict[str, Callable[[Ragged, Int64], Array]] = {
    "sum": lambda x, _: _reduced(x, np.add),
    "average": lambda x, n: _reduced(x, np.add) / _column(n, x.data),
    "sqrt": lambda x, n: _reduced(x, np.add) / np.sqrt(_column(n, x.data)),
    "max": lambda x, _: _reduced(x, np.maximum),
    "first": lambda x, n: x.data[x.offsets[:-1][x.lengths > 0]],
    "last": lambda x, n: x.data[x.offsets[1:][x.lengths > 0] - 1],
}


@kernel("SequencePool")
def _pool(node: Node, x: Any) -> Ragged | Array:
    """One row a sentence, of ``kind``; a sentence without words gives ``empty``.

    "sqrt" is the sum by the root of the length. Upper levels stay: (N, ...) under them.
    """
    x = _sentences(node, x)
    filled = x.lengths > 0
    out = np.full((len(x), *x.data.shape[1:]), node.attributes["empty"], x.data.dtype)
    out[filled] = POOLS[node.attributes["kind"]](x, x.lengths[filled])
    return Ragged(out, x.outer[-1], x.outer[:-1]) if x.outer else out


@kernel("SequenceSoftmax")
def _softmax(node: Node, x: Any) -> Ragged:
    """Softmax over the words of each sentence, of one number a word: (W, 1) or (W,)."""
    x = _sentences(node, x)
    if x.data.size != len(x.data):
        raise ShapeError(f"expected one number a word, got {x.data.shape}")
    lengths = x.lengths[x.lengths > 0]
    shifted = np.exp(x.data - np.repeat(_reduced(x, np.maximum), lengths, axis=0))
    total = _reduced(x.with_data(shifted), np.add)
    return x.with_data(shifted / np.repeat(total, lengths, axis=0))


@kernel("SequenceReverse")
def _reverse(node: Node, x: Any) -> Ragged:
    """The words of each sentence from its end."""
    x = _sentences(node, x)
    mirrored = np.repeat(x.offsets[:-1] + x.offsets[1:] - 1, x.lengths)
    return x.with_data(x.data[mirrored - np.arange(len(x.data))])


@kernel("SequenceContext")
def _context(node: Node, x: Any) -> Ragged:
    """(W, I) -> (W, length*I): words t+start ... t+start+length-1 side by side.

    Outside of the sentence stand zeros.
    """
    x = _sentences(node, x)
    length, start = node.attributes["length"], node.attributes["start"]
    if x.data.ndim != 2:
        raise ShapeError(f"expected (W, I), got {x.data.shape}")
    first, end = (np.repeat(x.offsets[k : k + len(x)], x.lengths)[:, None] for k in (0, 1))
    at = np.arange(len(x.data))[:, None] + np.arange(start, start + length)
    inside = (at >= first) & (at < end)
    out = np.zeros((*at.shape, x.data.shape[1]), x.data.dtype)
    out[inside] = x.data[at[inside]]
    return x.with_data(out.reshape(len(x.data), length * x.data.shape[1]))


@kernel("SequenceExpand")
def _expand(node: Node, x: Any, like: Any) -> Ragged | Array:
    """Sentence n (row n, where x is dense) as often as element n of a level of ``like`` has parts."""
    like = _sentences(node, like, 1)
    times = np.diff((*like.outer, like.offsets)[node.attributes["level"]])
    count = len(x)
    if count != len(times):
        raise ShapeError(f"{count} elements to be repeated, {len(times)} counts")
    if not isinstance(x, Ragged):
        return np.repeat(x, times, axis=0)
    chosen = np.repeat(np.arange(count), times)
    lengths = x.lengths[chosen]
    offsets = _offsets(lengths)
    rows = np.arange(offsets[-1]) + np.repeat(x.offsets[chosen] - offsets[:-1], lengths)
    return Ragged(x.data[rows], offsets)


@kernel("SequenceConcat")
def _concat(node: Node, *values: Any) -> Ragged:
    """Sentence n of every input, one behind the other, as sentence n."""
    parts = [_sentences(node, value, at) for at, value in enumerate(values)]
    counts = {len(part) for part in parts}
    if len(counts) != 1:
        raise ShapeError(f"batches of {sorted(counts)} sentences")
    lengths = np.stack([part.lengths for part in parts])
    # Where each word goes: the start of its sentence, then the words of the inputs before.
    starts = _offsets(lengths.sum(0))[:-1] + np.cumsum(lengths, 0) - lengths
    words = np.concatenate([part.data for part in parts])
    out = np.empty_like(words)
    at = [
        np.repeat(start - part.offsets[:-1], part.lengths) + np.arange(len(part.data))
        for start, part in zip(starts, parts, strict=True)
    ]
    out[np.concatenate(at)] = words
    return Ragged(out, _offsets(lengths.sum(0)))


@kernel("SequenceLengths")
def _lengths(node: Node, x: Any) -> Array:
    """The number of words of each sentence, (N,), int64."""
    return _sentences(node, x).lengths


@kernel("SequenceFill")
def _fill(node: Node, x: Any, value: Array) -> Array:
    """Ragged -> (N, T, ...) with ``value``, one number or one word, behind each sentence.

    T is ``time``, or the longest sentence.
    """
    x, value = _sentences(node, x), data_of(value)
    time = node.attributes.get("time", int(x.lengths.max(initial=0)))
    out = x.to_padded(time=time)
    word = value if value.shape == x.data.shape[1:] else value.reshape(())
    out[np.arange(time) >= x.lengths[:, None]] = word
    return out
