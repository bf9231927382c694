"""The sorted packed layout against its definition, written as loops."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onernn.ir.ragged import Ragged
from onernn.reorders.lod import Packing

batches = st.lists(st.integers(0, 6), max_size=7)


class Definition(NamedTuple):
    """Longest sentence first, equals in the caller's order; all first words, all second, ..."""

    offsets: list[int]
    order: list[int]
    places: list[tuple[int, int]]  # (sentence in the caller's order, time) of each packed row
    batch_sizes: list[int]


def define(lengths: list[int]) -> Definition:
    order: list[int] = []
    for length in range(max(lengths, default=0), -1, -1):
        order += [n for n, own in enumerate(lengths) if own == length]
    places, batch_sizes = [], []
    for t in range(max(lengths, default=0)):
        running = [n for n in order if lengths[n] > t]
        places += [(n, t) for n in running]
        batch_sizes.append(len(running))
    return Definition([0, *itertools.accumulate(lengths)], order, places, batch_sizes)


def packing_of(lengths: list[int]) -> Packing:
    return Packing.of(Ragged.from_lengths(np.zeros(sum(lengths)), lengths).offsets)


@given(batches)
@example([])
@example([0, 0])
@example([3, 3, 3])
def test_each_index_is_what_the_definition_says(lengths: list[int]) -> None:
    packing, wanted = packing_of(lengths), define(lengths)
    row_of = {place: row for row, place in enumerate(wanted.places)}

    assert packing.order.tolist() == wanted.order
    assert packing.lengths.tolist() == [lengths[n] for n in wanted.order]
    assert packing.batch_sizes.tolist() == wanted.batch_sizes
    assert packing.rows.tolist() == [wanted.offsets[n] + t for n, t in wanted.places]
    assert packing.words.tolist() == [
        row_of[n, t] for n, length in enumerate(lengths) for t in range(length)
    ]
    assert packing.unsort.tolist() == [wanted.order.index(n) for n in range(len(lengths))]
    assert packing.last.tolist() == [row_of[n, lengths[n] - 1] for n in wanted.order if lengths[n]]
    starts = [row_of[wanted.order[0], t] for t in range(len(wanted.batch_sizes))]
    assert packing.step_offsets.tolist() == [*starts, len(wanted.places)]


@given(batches, st.sampled_from([(), (2,), (2, 3)]))
def test_pack_moves_every_word_and_unpack_brings_it_back(
    lengths: list[int], channels: tuple[int, ...]
) -> None:
    shape = (sum(lengths), *channels)
    words = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    words.flags.writeable = False
    packing, wanted = packing_of(lengths), define(lengths)
    packed = packing.pack(words)
    assert packed.shape == shape
    assert packed.dtype == words.dtype
    assert packed.tolist() == [words[wanted.offsets[n] + t].tolist() for n, t in wanted.places]
    assert packing.unpack(packed).tolist() == words.tolist()


@given(batches)
def test_steps_of_equal_batch_size_are_one_dense_tensor(lengths: list[int]) -> None:
    offsets = [0, *itertools.accumulate(lengths)]
    packing = packing_of(lengths)
    packed = packing.pack(np.arange(sum(lengths)))
    step = 0
    for size, steps in itertools.groupby(packing.batch_sizes.tolist()):
        count = len(list(steps))
        start = packing.step_offsets[step]
        dense = packed[start : start + count * size].reshape(count, size)
        for t, n in itertools.product(range(count), range(size)):
            assert dense[t, n] == offsets[packing.order[n]] + step + t
        step += count
    assert step == max(lengths, default=0)


def test_packing_is_kept_by_offsets_alone() -> None:
    one = Ragged.from_lengths(np.zeros((5, 2)), [2, 3])
    assert Packing.of(one.offsets) is Packing.of(Ragged(np.ones(5), one.offsets, ([0, 2],)).offsets)
    assert Packing.of(one.offsets) is not Packing.of(np.array([0, 3, 5]))


@pytest.mark.parametrize("lengths", [[2, 0, 3], [4], []])
def test_what_is_kept_cannot_be_written_to(lengths: list[int]) -> None:
    packing = packing_of(lengths)
    names = ("lengths", "order", "batch_sizes", "rows")
    derived = ("step_offsets", "words", "unsort", "last")
    for name in (*names, *derived):
        index = getattr(packing, name)
        assert index.dtype == np.int64, name
        assert not index.flags.writeable, name
        assert index.base is None or not index.base.flags.writeable, name


@pytest.mark.parametrize("lengths", [[4], [1, 1, 1]])  # nothing to move: the tempting case
def test_packed_words_are_a_copy(lengths: list[int]) -> None:
    words = np.ones((sum(lengths), 2))
    packing = packing_of(lengths)
    packed = packing.pack(words)
    packed[:] = 5
    assert (words == 1).all()
    packing.unpack(packed)[:] = 7
    assert (packed == 5).all()
