"""Operators of our own domain that put offsets on values, take them off, and pad."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.inference import Context
from onernn.core.operator import define
from onernn.core.ragged import Ragged, data_of
from onernn.core.sizes import Size
from onernn.core.types import Type, sequences_of, words_of
from onernn.operators import growth
from onernn.operators.rules import common, same, word_behind

define(
    "SequenceData",
    kind="view",
    inputs="x",
    drops=True,
    since=0,
    type=same,
    compute=lambda _, x: x,
    growth=growth.no_new_bytes,
)


def _with_words(x: Type, words: Size | None) -> tuple[Size | None, ...] | None:
    """The shape of rows that become words: so many, where nobody knows how many rows there are."""
    known = x.shape[0] if x.shape else None
    return x.shape and (words if known is None else known, *x.shape[1:])


def _like(_: Context, x: Type, like: Type) -> Type:
    return Type(x.dtype, _with_words(x, like.shape[0] if like.shape else None), like.lod)


def _reset(context: Context, x: Type, _: Type) -> Type:
    lod = (context.lod(),)
    return Type(x.dtype, _with_words(x, words_of(lod)), lod)


define(
    "SequenceLike",
    kind="view",
    inputs="x ~like",
    offsets=True,
    since=0,
    type=_like,
    compute=lambda _, x, like: like.with_data(data_of(x)),
    growth=growth.no_new_bytes,
)

define(
    "SequenceReset",
    kind="view",
    inputs="x offsets",
    offsets=True,
    since=0,
    type=_reset,
    compute=lambda _, x, offsets: Ragged(data_of(x), data_of(offsets)),
    growth=growth.no_new_bytes,
)


def _append(_: Any, *values: Ragged) -> Ragged:
    """The sequences of all values in one batch, the first value's first; upper levels likewise."""
    levels = zip(*((*value.outer, value.offsets) for value in values), strict=True)
    lengths = [np.concatenate([np.diff(part) for part in level]) for level in levels]
    *outer, last = (np.concatenate([[0], np.cumsum(each)]) for each in lengths)
    return Ragged(np.concatenate([value.data for value in values]), last, tuple(outer))


def _appended(context: Context, *values: Type) -> Type:
    depths = {None if each.lod is None else len(each.lod) for each in values}
    if len(depths) > 1 or None in depths:
        return Type(common(*values))
    lod = tuple(context.lod(f"lod{level}") for level in range(len(values[0].lod or ())))
    return Type(common(*values), word_behind(values[0], (words_of(lod),)), lod)


define(
    "SequenceAppend",
    kind="sequences",
    inputs="~first ~rest*",
    type=_appended,
    compute=_append,
    growth=growth.joined,
)


def _unpad(at: Any, padded: Any, lengths: Any) -> Ragged:
    """Padded (N, T, ...), or (T, N, ...) where ``time_major``, and lengths (N,) -> ragged."""
    flat = np.asarray(data_of(lengths)).reshape(-1)
    return Ragged.from_padded(data_of(padded), flat, time_major=bool(at.time_major))


def _unpadded(context: Context, padded: Type, lengths: Type) -> Type:
    lod = (context.lod(),)
    if padded.shape is None:
        return Type(padded.dtype, None, lod)
    out = Type(padded.dtype, (words_of(lod), *padded.shape[2:]), lod)
    batch = padded.shape[1 if context.at.time_major else 0]
    given = lengths.shape if lengths.shape and lengths.rank == 1 else ()
    context.same(batch, *given, sequences_of(out))
    return out


define(
    "SequenceUnpad",
    kind="sequences",
    keeps=True,
    inputs="padded lengths",
    attributes={"time_major": 0},
    type=_unpadded,
    compute=_unpad,
)


def _pad(at: Any, x: Ragged, like: Any = None) -> Array:
    """Ragged -> (N, T, ...), or (T, N, ...) where ``time_major``, zeros behind each sequence.

    T is that of ``like``, a padded array of the same layout, or the longest sequence.
    """
    time_major = bool(at.time_major)
    time = None if like is None else data_of(like).shape[0 if time_major else 1]
    return x.to_padded(time=time, time_major=time_major)


def _padded(context: Context, x: Type, like: Type | None = None) -> Type:
    major = 0 if context.at.time_major else 1
    time: Size | None = context.fresh("longest")
    if like is not None:
        time = like.shape[major] if like.shape else None
    front = (sequences_of(x), time)
    return Type(x.dtype, word_behind(x, front if major else front[::-1]), ())


define(
    "SequencePad",
    kind="sequences",
    keeps=True,
    inputs="~x like?",
    attributes={"time_major": 0},
    type=_padded,
    compute=_pad,
    growth=growth.sequence_pad,
)


def _fill(at: Any, x: Ragged, value: Any) -> Array:
    """Ragged -> (N, T, ...) with ``value``, one number or one word, behind each sequence.

    T is ``time``, or the longest sequence.
    """
    value = data_of(value)
    time = int(x.lengths.max(initial=0)) if at.time is None else at.time
    out = x.to_padded(time=time)
    word = value if value.shape == x.data.shape[1:] else value.reshape(())
    out[np.arange(time) >= x.lengths[:, None]] = word
    return out


def _filled(context: Context, x: Type, value: Type) -> Type:
    time = context.fresh("longest") if context.at.time is None else Size.of(context.at.time)
    return Type(x.dtype, word_behind(x, (sequences_of(x), time)), ())


define(
    "SequenceFill",
    kind="sequences",
    inputs="~x value",
    attributes={"time": None},
    type=_filled,
    compute=_fill,
    growth=growth.sequence_fill,
)

define(
    "SequenceLengths",
    kind="sequences",
    inputs="~x",
    type=lambda _, x: Type("int64", (sequences_of(x),), ()),
    compute=lambda _, x: x.lengths,
    growth=growth.no_new_bytes,
)
