"""What sequence operators do, as arithmetic on offsets and rows of lookup_table_v2.

Paddle 3 has no sequence_pad, _unpad, _reverse and _concat any more; both versions run this.
Numbers of words and places are int64: (N, 1) for N sentences, (W, 1) for W words, (1,), (1, T).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onernn.adapters.paddle.write.emitting import Writing, ragged
from onernn.core.errors import UnsupportedError


def number(w: Writing, value: int) -> str:
    """A constant (1,)."""
    return w.constant(np.full(1, value), "number")


def size_of(w: Writing, x: str, axis: int) -> str:
    """A size as (1,) int64."""
    sizes = w.emit("shape", {"Input": x})
    return w.cast(w.take(sizes, {0: (axis, axis + 1)}), "int64")


def pooled(w: Writing, x: str, kind: str, empty: float = 0.0) -> str:
    """One row a sentence, under the LoD levels above."""
    return w.emit(
        "sequence_pool",
        {"X": x},
        also=("MaxIndex",),
        pooltype=kind.upper(),
        pad_value=float(empty),
        is_test=True,
    )


def lengths_of(w: Writing, x: str) -> str:
    """(N, 1) of a ragged variable: ones are summed, exact below 2**24."""
    words = w.filled(w.concat([size_of(w, x, 0), number(w, 1)], 0), np.ones((), np.float32))
    return w.cast(pooled(w, w.under(words, ragged(w, x)), "sum"), "int64")


def with_offsets(w: Writing, x: str, offsets: str) -> str:
    slots = {"X": x, "Y": w.cast(w.dense(offsets), "int32")}
    return w.emit("lod_reset", slots, append=False)


def swapped(w: Writing, x: str) -> str:
    """With the first two axes exchanged: batch and time."""
    return w.transpose(x, [1, 0, *range(2, w.rank(x))])


def rows(w: Writing, x: str, index: str) -> str:
    """Rows of (R, ...) in floats, by an index of any shape, which comes in the row's place."""
    held, table = w.dtype(x), w.dense(x)
    dtype = held if held in ("float32", "float64") else "float64"
    inner = [size or 0 for size in w.sizes(x)[1:]]
    if held == "int64" or len(inner) > 1 and 0 in inner:
        raise UnsupportedError(f"words of {held} {w.sizes(x)[1:]} are not moved")
    if len(inner) != 1:
        table = w.reshape(table, [0, -1])
    slots = {"W": w.cast(table, dtype), "Ids": index}
    made = w.emit("lookup_table_v2", slots, padding_idx=-1)
    if len(inner) != 1:
        made = w.reshape(made, [*[0] * w.rank(index), *inner])
    return w.cast(made, held)


def reversed_words(w: Writing, x: str) -> str:
    """The words of each sentence from its end."""
    lengths = lengths_of(w, x)
    sums = w.add(w.times(_before(w, lengths, 0), number(w, 2)), lengths)
    mirrored = _of_words(w, w.add(sums, number(w, -1)), x)
    index = w.reshape(w.minus(mirrored, _places(w, x)), [-1])
    return w.under(rows(w, x, index), x)


def joined(w: Writing, x: str, y: str) -> str:
    """Sentence n of y behind sentence n of x."""
    first, second = (lengths_of(w, each) for each in (x, y))
    words = _words(w, w.add(first, second))
    at = w.minus(_places(w, words), _of_words(w, _before(w, w.add(first, second), 0), words))
    own = _of_words(w, first, words)
    starts = [_of_words(w, _before(w, each, 0), words) for each in (first, second)]
    behind = w.add(w.add(starts[1], w.minus(at, own)), size_of(w, x, 0))
    index = _chosen(w, w.binary("less_than", at, own), w.add(starts[0], at), behind)
    table = w.concat([w.dense(x), w.dense(y)], 0)
    return w.under(rows(w, table, w.reshape(index, [-1])), words)


def padded(w: Writing, x: str, value: str = "", time: str = "") -> tuple[str, str]:
    """(N, T, ...) and the lengths (N,) of a ragged variable.

    T is the longest, or at least ``time``, (1,). ``value``: one number, or one word, for what
    stands behind; zero unless told.
    """
    lengths = lengths_of(w, x)
    longest = w.emit("reduce_max", {"X": lengths}, dim=[0], keep_dim=False)
    longest = w.binary("elementwise_max", longest, time) if time else longest
    at = _before(w, _ones(w, [number(w, 1), longest]), 1)
    index = _chosen(
        w,
        w.binary("less_than", at, lengths),
        w.add(at, _before(w, lengths, 0)),
        size_of(w, x, 0),  # the row behind all words
    )
    sizes = [number(w, 1), *(size_of(w, x, axis) for axis in range(1, w.rank(x)))]
    behind = w.cast(w.minus(_ones(w, sizes), number(w, 1)), w.dtype(x))
    table = w.concat([w.dense(x), w.add(behind, value) if value else behind], 0)
    return rows(w, table, index), w.reshape(lengths, [-1])


def unpadded(w: Writing, x: str, lengths: str) -> str:
    """The words of (N, T, ...) and lengths (N,) int64."""
    lengths = w.reshape(lengths, [-1, 1])
    words = _words(w, lengths)
    sentences = _before(w, _ones(w, [size_of(w, lengths, 0), number(w, 1)]), 0)
    starts = w.minus(w.times(sentences, size_of(w, x, 1)), _before(w, lengths, 0))
    index = w.add(_of_words(w, starts, words), _places(w, words))
    sizes = [number(w, -1), *(size_of(w, x, axis) for axis in range(2, w.rank(x)))]
    return w.under(rows(w, _shaped(w, x, sizes), w.reshape(index, [-1])), words)


def words_of_steps(w: Writing, x: str) -> str:
    """The words of (T, N, I): sentences of one length."""
    steps, sentences, width = (size_of(w, x, axis) for axis in range(3))
    table = _shaped(w, swapped(w, x), [number(w, -1), width])
    places = _before(w, _ones(w, [w.add(sentences, number(w, 1))]), 0)
    return with_offsets(w, table, w.times(places, steps))


def steps_of_words(w: Writing, words: str, x: str) -> str:
    """(T, N, ...) of words as `words_of_steps` made them of ``x``."""
    sizes = [size_of(w, x, 1), size_of(w, x, 0), size_of(w, words, 1)]
    return swapped(w, _shaped(w, w.dense(words), sizes))


def _before(w: Writing, x: str, axis: int) -> str:
    """The sum of what stands before each element along an axis.

    Not an exclusive cumsum: of a single element Paddle gives the element itself.
    """
    x = w.dense(x)
    sums = w.emit("cumsum", {"X": x}, axis=axis, flatten=False, exclusive=False, reverse=False)
    return w.minus(sums, x)


def _ones(w: Writing, sizes: Sequence[str]) -> str:
    """Of a shape given by (1,) int64 each."""
    return w.filled(w.concat(sizes, 0), np.ones((), np.int64))


def _shaped(w: Writing, x: str, sizes: Sequence[str]) -> str:
    """Reshaped to sizes that are (1,) int64 each."""
    return w.reshape(x, [-1] * len(sizes), computed=w.concat(sizes, 0))


def _chosen(w: Writing, truth: str, x: str, y: str) -> str:
    """x where truth holds, else y."""
    chosen = w.cast(truth, "int64")
    return w.add(w.times(chosen, x), w.times(w.minus(number(w, 1), chosen), y))


def _words(w: Writing, lengths: str) -> str:
    """(W, 1) ones under the LoD of these lengths (N, 1)."""
    ends = w.reshape(w.add(_before(w, lengths, 0), lengths), [-1])
    count = w.emit("reduce_sum", {"X": lengths}, dim=[0], keep_dim=False)
    words = _ones(w, [count, number(w, 1)])
    return with_offsets(w, words, w.concat([number(w, 0), ends], 0))


def _of_words(w: Writing, x: str, words: str) -> str:
    """(N, 1) as (W, 1): for each word what its sentence has."""
    return w.emit("sequence_expand", {"X": x, "Y": words}, ref_level=0)


def _places(w: Writing, words: str) -> str:
    """(W, 1): 0, 1, 2, ...."""
    return _before(w, _ones(w, [size_of(w, words, 0), number(w, 1)]), 0)
