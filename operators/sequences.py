"""Operators of our own domain over whole sequences: pooled, reversed, repeated, joined, decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from onernn.core.arrays import Array, Int64
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import REQUIRED, define
from onernn.core.ragged import Ragged
from onernn.core.sizes import Size
from onernn.core.types import Type, sequences_of, words_of
from onernn.operators import growth
from onernn.operators.rules import ONE, common, word_behind


def _offsets(lengths: Int64) -> Int64:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _reduced(x: Ragged, by: np.ufunc) -> Array:
    """One row for each sequence that has words, in order."""
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


def _pool(at: Any, x: Ragged) -> Ragged | Array:
    """One row a sequence, of ``kind``; a sequence without words gives ``empty``.

    "sqrt" is the sum by the root of the length. Upper levels stay: (N, ...) under them.
    """
    filled = x.lengths > 0
    out = np.full((len(x), *x.data.shape[1:]), at.empty, x.data.dtype)
    out[filled] = POOLS[at.kind](x, x.lengths[filled])
    return Ragged(out, x.outer[-1], x.outer[:-1]) if x.outer else out


def _pooled(_: Context, x: Type) -> Type:
    lod = None if x.lod is None else x.lod[:-1]
    return Type(x.dtype, word_behind(x, (sequences_of(x),)), lod)


define(
    "SequencePool",
    kind="sequences",
    inputs="~x",
    attributes={"kind": REQUIRED, "empty": 0.0},
    type=_pooled,
    compute=_pool,
    growth=growth.sequence_pool,
)


def _like(_: Context, x: Type) -> Type:
    return replace(x, value=None)


def _softmax(_: Any, x: Ragged) -> Ragged:
    """Softmax over the words of each sequence, of one number a step: (W, 1) or (W,)."""
    if x.data.size != len(x.data):
        raise ShapeError(f"expected one number a step, got {x.data.shape}")
    lengths = x.lengths[x.lengths > 0]
    shifted = np.exp(x.data - np.repeat(_reduced(x, np.maximum), lengths, axis=0))
    total = _reduced(x.with_data(shifted), np.add)
    return x.with_data(shifted / np.repeat(total, lengths, axis=0))


def _reverse(_: Any, x: Ragged) -> Ragged:
    """The words of each sequence from its end."""
    mirrored = np.repeat(x.offsets[:-1] + x.offsets[1:] - 1, x.lengths)
    return x.with_data(x.data[mirrored - np.arange(len(x.data))])


for _name, _compute in {"SequenceSoftmax": _softmax, "SequenceReverse": _reverse}.items():
    define(_name, kind="sequences", inputs="~x", type=_like, compute=_compute)


def _context(at: Any, x: Ragged) -> Ragged:
    """(W, I) -> (W, length*I): words t+start ... t+start+length-1 side by side.

    Outside of the sequence stand zeros.
    """
    length, start = at.length, at.start
    if x.data.ndim != 2:
        raise ShapeError(f"expected (W, I), got {x.data.shape}")
    first, end = (np.repeat(x.offsets[k : k + len(x)], x.lengths)[:, None] for k in (0, 1))
    places = np.arange(len(x.data))[:, None] + np.arange(start, start + length)
    inside = (places >= first) & (places < end)
    out = np.zeros((*places.shape, x.data.shape[1]), x.data.dtype)
    out[inside] = x.data[places[inside]]
    return x.with_data(out.reshape(len(x.data), length * x.data.shape[1]))


def _widened(context: Context, x: Type) -> Type:
    if x.shape is None:
        return Type(x.dtype, None, x.lod)
    words, channels = x.shape
    wide = None if channels is None else channels * context.at.length
    return Type(x.dtype, (words, wide), x.lod)


define(
    "SequenceContext",
    kind="sequences",
    inputs="~x",
    attributes={"length": REQUIRED, "start": REQUIRED},
    type=_widened,
    compute=_context,
    growth=growth.sequence_context,
)


def _expand(at: Any, x: Any, like: Ragged) -> Ragged | Array:
    """Sequence n (row n of a dense x) as often as element n of a level of ``like`` has parts."""
    times = np.diff((*like.outer, like.offsets)[at.level])
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


def _expanded(context: Context, x: Type, like: Type) -> Type:
    if x.lod is None or x.shape is None:
        return Type(x.dtype)
    if not x.lod:
        return Type(x.dtype, (context.fresh("rows"), *x.shape[1:]), ())
    lod = (context.lod(),)
    return Type(x.dtype, (words_of(lod), *x.shape[1:]), lod)


define(
    "SequenceExpand",
    kind="sequences",
    inputs="x ~like",
    attributes={"level": -1},
    type=_expanded,
    compute=_expand,
    growth=growth.sequence_expand,
)


def _concat(_: Any, *parts: Ragged) -> Ragged:
    """Sequence n of every input, one behind the other, as sequence n."""
    counts = {len(part) for part in parts}
    if len(counts) != 1:
        raise ShapeError(f"batches of {sorted(counts)} sequences")
    lengths = np.stack([part.lengths for part in parts])
    # Where each word goes: the start of its sequence, then the words of the inputs before.
    starts = _offsets(lengths.sum(0))[:-1] + np.cumsum(lengths, 0) - lengths
    words = np.concatenate([part.data for part in parts])
    out = np.empty_like(words)
    at = [
        np.repeat(start - part.offsets[:-1], part.lengths) + np.arange(len(part.data))
        for start, part in zip(starts, parts, strict=True)
    ]
    out[np.concatenate(at)] = words
    return Ragged(out, _offsets(lengths.sum(0)))


def _joined(context: Context, *parts: Type) -> Type:
    lod = (context.lod(),)
    return Type(common(*parts), word_behind(parts[0], (words_of(lod),)), lod)


define(
    "SequenceConcat",
    kind="sequences",
    inputs="~first ~rest*",
    type=_joined,
    compute=_concat,
    growth=growth.joined,
)


def _crf_decode(_: Any, emission: Ragged, transition: Array) -> Ragged:
    """Viterbi decoding: emission ragged (W, K), transition (K+2, K) -> tags (W, 1), int64.

    Rows of transition: score of starting with a tag, of ending with it, then from tag i to tag j.
    Ties go to the lower tag. Formula: documentation of Paddle's operator ``crf_decoding``.
    """
    scores, packing = emission.data, emission.packing
    tags = scores.shape[-1]
    if scores.ndim != 2 or transition.shape != (tags + 2, tags):
        raise ShapeError(
            f"expected emission (W, K) and transition (K+2, K),"
            f" got {scores.shape} and {transition.shape}"
        )
    start, stop, between = transition[0], transition[1], transition[2:]
    into = between.T.copy()
    steps = [
        slice(row, row + running)
        for row, running in zip(packing.step_offsets, packing.batch_sizes, strict=False)
    ]
    best = packing.pack(scores)  # of all paths to each word's each tag, from step to step
    best[: len(packing.last)] += start
    for before, here in pairwise(steps):
        going_on = best[before][: here.stop - here.start]
        best[here] += (going_on.T[:, :, None] + between[:, None]).max(0)
    path = np.empty(len(best), np.int64)
    tag = (best[packing.last] + stop).argmax(1)
    for before, here in [*pairwise(steps)][::-1]:
        running = here.stop - here.start
        path[here] = tag[:running]
        # Where the best path came from is computed again, for one tag of the K there are.
        tag[:running] = (best[before][:running] + into[path[here]]).argmax(1)
    path[: len(tag)] = tag
    return emission.with_data(packing.unpack(path)[:, None])


def _tags(_: Context, emission: Type, transition: Type) -> Type:
    words: Size | None = emission.shape[0] if emission.shape else None
    return Type("int64", (words, ONE), emission.lod)


define(
    "CrfDecode",
    kind="sequences",
    inputs="~emission transition",
    type=_tags,
    compute=_crf_decode,
    growth=growth.crf_decode,
)
