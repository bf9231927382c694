"""Operators of onernn's domain over whole sequences: offsets, padding, pools, decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from onernn.ir.arrays import Array, Int64
from onernn.ir.budget import bytes_of, running
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context, Node
from onernn.ir.operator import op, stretch
from onernn.ir.ragged import Ragged, data_of, offsets_of
from onernn.ir.types import Size, Type, sequences_of, words_of
from onernn.ops import row_rules
from onernn.ops.growth import largest_input, no_new_bytes, word_bytes
from onernn.ops.reducing import as_column
from onernn.ops.rules import ONE, common, same, word_behind


@op(
    "SequenceData",
    kind="view",
    drops=True,
    since=0,
    type=same,
    growth=no_new_bytes,
    paths=stretch,
    rows=row_rules.follow,
)
def sequence_data(x: Array) -> Array:
    return x


def _with_words(x: Type, words: Size | None) -> tuple[Size | None, ...] | None:
    """Returns the shape of x as ragged data, whose axis 0 has all steps. If the size of axis 0 is
    unknown, it is ``words``.
    """
    known = x.shape[0] if x.shape else None
    return x.shape and (words if known is None else known, *x.shape[1:])


def _like_words(_: Context, x: Type, like: Type) -> Type:
    return Type(x.dtype, _with_words(x, like.shape[0] if like.shape else None), like.lod)


def _reset(context: Context, x: Type, _: Type) -> Type:
    lod = (context.lod(),)
    return Type(x.dtype, _with_words(x, words_of(lod)), lod)


@op(
    "SequenceLike",
    kind="view",
    offsets=True,
    since=0,
    type=_like_words,
    growth=no_new_bytes,
    rows=row_rules.like_words,
)
def sequence_like(x: Any, like: Ragged) -> Ragged:
    return like.with_data(data_of(x))


@op("SequenceReset", kind="view", offsets=True, since=0, type=_reset, growth=no_new_bytes)
def sequence_reset(x: Any, offsets: Any) -> Ragged:
    return Ragged(data_of(x), data_of(offsets))


def _append(context: Context, *values: Type) -> Type:
    depths = {None if each.lod is None else len(each.lod) for each in values}
    if len(depths) > 1 or None in depths:
        return Type(common(*values))
    lod = tuple(context.lod(f"lod{level}") for level in range(len(values[0].lod or ())))
    return Type(common(*values), word_behind(values[0], (words_of(lod),)), lod)


@op("SequenceAppend", kind="sequences", type=_append)
def sequence_append(first: Ragged, *rest: Ragged) -> Ragged:
    """Returns the sequences of all values in one batch, in the order of the values; concatenates
    the upper LoD levels as well.
    """
    values = (first, *rest)
    running().ask(sum(bytes_of(value.data) for value in values))
    levels = zip(*((*value.outer, value.offsets) for value in values), strict=True)
    lengths = [np.concatenate([np.diff(part) for part in level]) for level in levels]
    *outer, last = (np.concatenate([[0], np.cumsum(each)]) for each in lengths)
    return Ragged(np.concatenate([value.data for value in values]), last, tuple(outer))


def _unpad(context: Context, padded: Type, lengths: Type) -> Type:
    lod = (context.lod(),)
    if padded.shape is None:
        return Type(padded.dtype, None, lod)
    out = Type(padded.dtype, (words_of(lod), *padded.shape[2:]), lod)
    batch = padded.shape[1 if context.attrs.time_major else 0]
    given = lengths.shape if lengths.shape and lengths.rank == 1 else ()
    context.same(batch, *given, sequences_of(out))
    return out


def _batch_unpad(m: Any, node: Node) -> None:
    x, lengths = node.inputs
    padded = m.merge_batch(node, x, node.attrs.time_major)
    m.add_mapped(node, (padded, m.reshape(m.rows(node, lengths), [-1])))


@op(
    "SequenceUnpad",
    kind="sequences",
    keeps=True,
    batched=_batch_unpad,
    type=_unpad,
    growth=largest_input,
    rows=row_rules.unpad,
)
def sequence_unpad(padded: Any, lengths: Any, *, time_major: int = 0) -> Ragged:
    """Returns a ragged value from (N, T, ...), or (T, N, ...) if ``time_major``, and lengths."""
    flat = np.asarray(data_of(lengths)).reshape(-1)
    return Ragged.from_padded(data_of(padded), flat, time_major=bool(time_major))


def _pad(context: Context, x: Type, like: Type | None = None) -> Type:
    major = 0 if context.attrs.time_major else 1
    time: Size | None = context.fresh("longest")
    if like is not None:
        time = like.shape[major] if like.shape else None
    front = (sequences_of(x), time)
    return Type(x.dtype, word_behind(x, front if major else front[::-1]), ())


def _to_padded(x: Ragged, time: int | None, time_major: bool = False) -> Array:
    """Returns the padded array. First checks that the array, plus two bytes per step, fits into the
    run's budget.
    """
    longest = max(time or 0, int(x.lengths.max(initial=0)), 1)
    running().ask(len(x) * longest * (word_bytes(x) + 2))
    return x.to_padded(time=time, time_major=time_major)


def _batch_pad(m: Any, node: Node) -> None:
    x, like = node.inputs[0], node.input(1)
    if not like:
        why = "it pads to the longest sequence of all rows: expected an input that sets the length"
        raise m.make_error(node, why)
    all_rows, time_major = m.rows(node, like), node.attrs.time_major
    longest = m.emit("Gather", all_rows, m.constant(0), axis=0)
    padded = m.emit("SequencePad", x, longest, time_major=time_major)
    batch = m.sizes(all_rows, 1 + time_major, 2 + time_major)
    before = [m.sizes(padded, 0, 1)] if time_major else []
    sizes = [*before, m.count, batch, m.sizes(padded, 1 + time_major, None)]
    apart = m.reshape(padded, sizes)
    rank = m.rank(node, node.outputs[0]) + 1
    perm = (1, 0, *range(2, rank)) if time_major else range(rank)
    m.end(node, "Transpose", (apart,), perm=tuple(perm))


@op(
    "SequencePad",
    kind="sequences",
    keeps=True,
    batched=_batch_pad,
    type=_pad,
    rows=row_rules.pad,
)
def sequence_pad(x: Ragged, like: Any | None = None, *, time_major: int = 0) -> Array:
    """Returns (N, T, ...), or (T, N, ...) if ``time_major``, with zeros after each sequence.

    T is the number of steps of ``like``, a padded array of the same layout, or the length of the
    longest sequence.
    """
    time = None if like is None else data_of(like).shape[0 if time_major else 1]
    return _to_padded(x, time, bool(time_major))


def _fill(context: Context, x: Type, value: Type) -> Type:
    time = context.fresh("longest") if context.attrs.time is None else Size.of(context.attrs.time)
    return Type(x.dtype, word_behind(x, (sequences_of(x), time)), ())


@op("SequenceFill", kind="sequences", type=_fill, rows=row_rules.pad)
def sequence_fill(x: Ragged, value: Any, *, time: int | None = None) -> Array:
    """Returns (N, T, ...) with ``value``, one number or one step, after each sequence.

    T is ``time``, or the length of the longest sequence.
    """
    value = data_of(value)
    time = int(x.lengths.max(initial=0)) if time is None else time
    out = _to_padded(x, time)
    word = value if value.shape == x.data.shape[1:] else value.reshape(())
    out[np.arange(time) >= x.lengths[:, None]] = word
    return out


@op(
    "SequenceLengths",
    kind="sequences",
    type=lambda _, x: Type("int64", (sequences_of(x),), ()),
    growth=no_new_bytes,
    rows=row_rules.pool,
)
def sequence_lengths(x: Ragged) -> Array:
    return x.lengths


def _reduce(x: Ragged, by: np.ufunc) -> Array:
    starts = x.offsets[:-1][x.lengths > 0]
    return by.reduceat(x.data, starts, axis=0) if len(starts) else x.data[:0]


def _column(lengths: Int64, like: Array) -> Array:
    return as_column(lengths, like.ndim).astype(like.dtype)


POOLS: dict[str, Callable[[Ragged, Int64], Array]] = {
    "first": lambda x, n: x.data[x.offsets[:-1][x.lengths > 0]],
    "last": lambda x, n: x.data[x.offsets[1:][x.lengths > 0] - 1],
    "max": lambda x, _: _reduce(x, np.maximum),
    "sum": lambda x, _: _reduce(x, np.add),
    "average": lambda x, n: _reduce(x, np.add) / _column(n, x.data),
    "sqrt": lambda x, n: _reduce(x, np.add) / np.sqrt(_column(n, x.data)),
}
"""The kinds of pooling, in the order of `pool` in `kernels/sequences.hpp`."""


def _pool(_: Context, x: Type) -> Type:
    lod = None if x.lod is None else x.lod[:-1]
    return Type(x.dtype, word_behind(x, (sequences_of(x),)), lod)


@op("SequencePool", kind="sequences", type=_pool, rows=row_rules.pool)
def sequence_pool(x: Ragged, *, kind: str, empty: float = 0.0) -> Ragged | Array:
    """Returns one row per sequence, reduced by ``kind``; ``empty`` is the row of a sequence of
    length zero.

    "sqrt" is the sum divided by the square root of the length. Upper LoD levels remain: they divide
    the N rows of the result.
    """
    filled = x.lengths > 0
    running().ask(len(x) * word_bytes(x))
    out = np.full((len(x), *x.data.shape[1:]), empty, x.data.dtype)
    out[filled] = POOLS[kind](x, x.lengths[filled])
    return Ragged(out, x.outer[-1], x.outer[:-1]) if x.outer else out


def _like(_: Context, x: Type) -> Type:
    return replace(x, value=None)


@op("SequenceSoftmax", kind="sequences", type=_like, rows=row_rules.each_sequence)
def sequence_softmax(x: Ragged) -> Ragged:
    """Returns the softmax over the steps of each sequence of (W, 1) or (W,)."""
    if x.data.size != len(x.data):
        raise ShapeError(f"x: expected one value per step, shape (W,), got {x.data.shape}")
    lengths = x.lengths[x.lengths > 0]
    shifted = np.exp(x.data - np.repeat(_reduce(x, np.maximum), lengths, axis=0))
    total = _reduce(x.with_data(shifted), np.add)
    return x.with_data(shifted / np.repeat(total, lengths, axis=0))


@op("SequenceReverse", kind="sequences", type=_like, rows=row_rules.each_sequence)
def sequence_reverse(x: Ragged) -> Ragged:
    """Reverses the steps of each sequence."""
    mirrored = np.repeat(x.offsets[:-1] + x.offsets[1:] - 1, x.lengths)
    return x.with_data(x.data[mirrored - np.arange(len(x.data))])


def _widen(context: Context, x: Type) -> Type:
    if x.shape is None:
        return Type(x.dtype, None, x.lod)
    words, channels = x.shape
    wide = None if channels is None else channels * context.attrs.length
    return Type(x.dtype, (words, wide), x.lod)


@op(
    "SequenceContext",
    kind="sequences",
    type=_widen,
    rows=row_rules.each_sequence,
)
def sequence_context(x: Ragged, *, length: int, start: int) -> Ragged:
    """Converts (W, I) to (W, length*I): concatenates steps t+start ... t+start+length-1 for each
    step t.

    Steps outside of the sequence are zeros.
    """
    if x.data.ndim != 2:
        raise ShapeError(f"x: expected (W, I), got {x.data.shape}")
    running().ask(max(length, 0) * (bytes_of(x.data) + 16 * len(x.data)))
    first, end = (np.repeat(x.offsets[k : k + len(x)], x.lengths)[:, None] for k in (0, 1))
    places = np.arange(len(x.data))[:, None] + np.arange(start, start + length)
    inside = (places >= first) & (places < end)
    out = np.zeros((*places.shape, x.data.shape[1]), x.data.dtype)
    out[inside] = x.data[places[inside]]
    return x.with_data(out.reshape(len(x.data), length * x.data.shape[1]))


def _expand(context: Context, x: Type, like: Type) -> Type:
    if x.lod is None or x.shape is None:
        return Type(x.dtype)
    if not x.lod:
        return Type(x.dtype, (context.fresh("rows"), *x.shape[1:]), ())
    lod = (context.lod(),)
    return Type(x.dtype, (words_of(lod), *x.shape[1:]), lod)


@op(
    "SequenceExpand",
    kind="sequences",
    type=_expand,
    rows=row_rules.expand,
)
def sequence_expand(x: Any, like: Ragged, *, level: int = -1) -> Ragged | Array:
    """Repeats sequence n of x, or row n of an array. The number of copies is the length of element
    n in the LoD level ``level`` of ``like``.
    """
    times = np.diff((*like.outer, like.offsets)[level])
    count = len(x)
    if count != len(times):
        raise ShapeError(f"x: expected {len(times)} sequences or rows, as 'like' has, got {count}")
    rows: Any = x.lengths if isinstance(x, Ragged) else np.ones(count)
    words = int(times.astype(float) @ rows.astype(float))
    running().ask(words * (word_bytes(x) + 24) + 24 * int(times.sum()))
    if not isinstance(x, Ragged):
        return np.repeat(x, times, axis=0)
    chosen = np.repeat(np.arange(count), times)
    lengths = x.lengths[chosen]
    offsets = offsets_of(lengths)
    rows = np.arange(offsets[-1]) + np.repeat(x.offsets[chosen] - offsets[:-1], lengths)
    return Ragged(x.data[rows], offsets)


def _join(context: Context, *parts: Type) -> Type:
    lod = (context.lod(),)
    return Type(common(*parts), word_behind(parts[0], (words_of(lod),)), lod)


@op(
    "SequenceConcat",
    kind="sequences",
    type=_join,
    rows=row_rules.join,
)
def sequence_concat(first: Ragged, *rest: Ragged) -> Ragged:
    """Returns a batch whose sequence n concatenates the sequences n of all inputs."""
    parts = (first, *rest)
    running().ask(sum(bytes_of(part.data) for part in parts))
    counts = {len(part) for part in parts}
    if len(counts) != 1:
        raise ShapeError(f"inputs: expected equal numbers of sequences, got {sorted(counts)}")
    lengths = np.stack([part.lengths for part in parts])
    # In each sequence of the result, the inputs' steps follow in the order of the inputs.
    starts = offsets_of(lengths.sum(0))[:-1] + np.cumsum(lengths, 0) - lengths
    words = np.concatenate([part.data for part in parts])
    out = np.empty_like(words)
    at = [
        np.repeat(start - part.offsets[:-1], part.lengths) + np.arange(len(part.data))
        for start, part in zip(starts, parts, strict=True)
    ]
    out[np.concatenate(at)] = words
    return Ragged(out, offsets_of(lengths.sum(0)))


@op(
    "CrfDecode",
    kind="sequences",
    type=lambda _, x, __: Type("int64", (x.shape[0] if x.shape else None, ONE), x.lod),
    rows=row_rules.each_sequence,
)
def crf_decode(emission: Ragged, transition: Array) -> Ragged:
    """Decodes by Viterbi: emission ragged (W, K), transition (K+2, K) -> tags (W, 1), int64.

    transition[0] holds the score of starting with each tag, transition[1] of ending with it, and
    transition[2 + i] of going from tag i to each tag. Of equal scores, the lower tag wins. The
    formula is from the documentation of Paddle's ``crf_decoding``.
    """
    scores = emission.data
    tags = scores.shape[-1]
    if scores.ndim != 2 or transition.shape != (tags + 2, tags):
        raise ShapeError(
            f"expected emission (W, K) and transition (K+2, K),"
            f" got {scores.shape} and {transition.shape}"
        )
    # Memory for the scores of all pairs of tags in one step of all sequences, and for `best` and
    # `path`.
    running().ask((len(emission) * transition.size + 2 * scores.size) * 8)
    start, stop, between = transition[0], transition[1], transition[2:]
    into = between.T.copy()
    order = np.argsort(-emission.lengths, kind="stable")  # the longest sequence first
    starts, lengths = emission.offsets[order], emission.lengths[order]
    steps = [starts[lengths > step] + step for step in range(lengths.max(initial=0))]
    best = scores.copy()  # the highest score of a path to each tag, step by step
    best[starts[lengths > 0]] += start
    for before, here in pairwise(steps):
        best[here] += (best[before[: len(here)]].T[:, :, None] + between[:, None]).max(0)
    path = np.empty(len(best), np.int64)
    tag = (best[(starts + lengths - 1)[lengths > 0]] + stop).argmax(1)
    for before, here in [*pairwise(steps)][::-1]:
        path[here] = going_on = tag[: len(here)].copy()
        # Computes the previous tag again, here only for the tag on the best path instead of all K
        # tags.
        tag[: len(here)] = (best[before[: len(here)]] + into[going_on]).argmax(1)
    path[starts[lengths > 0]] = tag
    return emission.with_data(path[:, None])
