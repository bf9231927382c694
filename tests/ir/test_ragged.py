"""`Ragged` against batches spelled out sentence by sentence, in plain Python."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onernn.ir.errors import ShapeError
from onernn.ir.ragged import Ragged, data_of

GARBAGE = -1  # stands where no word is: must never come out

sides = st.sampled_from(["right", "left"])


class Batch(NamedTuple):
    """The same sentences twice: as one array of words, and as a list of lists."""

    words: np.ndarray
    lengths: list[int]
    sentences: list[list[Any]]

    @property
    def offsets(self) -> list[int]:
        return [0, *itertools.accumulate(self.lengths)]


@st.composite
def batches(draw: st.DrawFn, min_size: int = 0) -> Batch:
    lengths = draw(st.lists(st.integers(0, 5), min_size=min_size, max_size=6))
    channels = draw(st.sampled_from([(), (3,), (2, 2)]))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.int64]))
    shape = (sum(lengths), *channels)
    words = np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape).astype(dtype)
    words.flags.writeable = False  # whoever writes into an argument fails at once
    every, sentences = iter(words.tolist()), []
    for length in lengths:
        sentences.append([next(every) for _ in range(length)])
    return Batch(words, lengths, sentences)


def read(ragged: Ragged) -> list[list[Any]]:
    """The sentences by offsets alone, as the class documents them."""
    return [
        [ragged.data[w].tolist() for w in range(ragged.offsets[n], ragged.offsets[n + 1])]
        for n in range(len(ragged))
    ]


def padded_by_loops(batch: Batch, time: int, side: str, filler: float) -> list[list[Any]]:
    """(N, T, ...) as lists."""
    nothing = np.full(batch.words.shape[1:], filler, batch.words.dtype).tolist()
    rows = []
    for sentence in batch.sentences:
        gap = [nothing] * (time - len(sentence))
        rows.append(sentence + gap if side == "right" else gap + sentence)
    return rows


def as_array(rows: list[list[Any]], batch: Batch, time: int, time_major: bool) -> np.ndarray:
    channels = batch.words.shape[1:]
    array = np.array(rows, batch.words.dtype).reshape(len(rows), time, *channels)
    if time_major:
        array = array.swapaxes(0, 1).copy()
    array.flags.writeable = False
    return array


@given(batches(), st.sampled_from([None, np.int32, np.uint64, np.int64]))
def test_lengths_or_offsets_cut_the_words_into_sentences(batch: Batch, dtype: Any) -> None:
    ragged = Ragged.from_lengths(batch.words, batch.lengths)
    if dtype:
        ragged = Ragged(batch.words, np.array(batch.offsets, dtype))
    assert read(ragged) == batch.sentences
    assert ragged.offsets.tolist() == batch.offsets
    assert ragged.offsets.dtype == np.int64
    assert ragged.lengths.tolist() == batch.lengths
    assert ragged.lod == [batch.offsets]
    assert len(ragged) == len(batch.lengths)


@given(batches())
def test_a_list_of_sentences_comes_out_and_goes_in(batch: Batch) -> None:
    arrays = Ragged.from_lengths(batch.words, batch.lengths).to_list()
    assert [s.tolist() for s in arrays] == batch.sentences
    for array in arrays:
        assert (array.shape[1:], array.dtype) == (batch.words.shape[1:], batch.words.dtype)
    if arrays:
        assert read(Ragged.from_list(arrays)) == batch.sentences


@given(batches(), sides, st.booleans(), st.integers(0, 3))
def test_padding_puts_words_and_zeros_where_loops_do(
    batch: Batch, side: Any, time_major: bool, more: int
) -> None:
    time = max(batch.lengths, default=0) + more
    got = Ragged.from_lengths(batch.words, batch.lengths).to_padded(
        time=time if more else None, side=side, time_major=time_major
    )
    expected = as_array(padded_by_loops(batch, time, side, 0), batch, time, time_major)
    assert got.shape == expected.shape
    assert got.dtype == batch.words.dtype
    assert got.flags.c_contiguous
    assert got.tolist() == expected.tolist()


@given(batches(), sides, st.booleans(), st.integers(0, 3))
def test_from_padded_takes_the_words_and_nothing_else(
    batch: Batch, side: Any, time_major: bool, more: int
) -> None:
    time = max(batch.lengths, default=0) + more
    padded = as_array(padded_by_loops(batch, time, side, GARBAGE), batch, time, time_major)
    ragged = Ragged.from_padded(padded, batch.lengths, side=side, time_major=time_major)
    assert read(ragged) == batch.sentences
    assert ragged.data.shape == batch.words.shape
    assert ragged.data.dtype == batch.words.dtype


@given(batches(min_size=1), st.data(), st.sampled_from([bool, np.int64, np.float32]))
def test_a_mask_may_start_and_end_anywhere(batch: Batch, data: st.DataObject, dtype: Any) -> None:
    time = max(batch.lengths) + data.draw(st.integers(0, 3))
    nothing = np.full(batch.words.shape[1:], GARBAGE, batch.words.dtype).tolist()
    rows, mask = [], []
    for sentence in batch.sentences:
        start = data.draw(st.integers(0, time - len(sentence)))
        after = time - start - len(sentence)
        rows.append([nothing] * start + sentence + [nothing] * after)
        mask.append([0] * start + [1] * len(sentence) + [0] * after)
    padded = as_array(rows, batch, time, time_major=False)
    ragged = Ragged.from_mask(padded, np.array(mask, dtype).reshape(len(rows), time))
    assert read(ragged) == batch.sentences
    assert ragged.data.dtype == batch.words.dtype
    assert ragged.offsets.tolist() == batch.offsets


@given(st.data(), st.integers(0, 3))
def test_a_mask_with_a_hole_is_refused_by_sentence(data: st.DataObject, n: int) -> None:
    few, some = st.integers(0, 2), st.integers(1, 2)
    runs = [(0, few), (1, some), (0, some), (1, some), (0, few)]  # the second zeros are the hole
    row = [bit for bit, count in runs for _ in range(data.draw(count))]
    mask = np.ones((4, len(row)), int)
    mask[n] = row
    with pytest.raises(ShapeError, match=rf"mask: sequence {n} has holes"):
        Ragged.from_mask(np.zeros((4, len(row))), mask)


@st.composite
def lods(draw: st.DrawFn) -> list[list[int]]:
    """One to four levels of offsets, outermost first."""
    counts = draw(st.lists(st.integers(0, 3), max_size=3))
    levels = [[0, *itertools.accumulate(counts)]]
    for _ in range(draw(st.integers(0, 3))):
        below = levels[-1][-1]
        counts = draw(st.lists(st.integers(0, 3), min_size=below, max_size=below))
        levels.append([0, *itertools.accumulate(counts)])
    return levels


@given(lods())
def test_every_level_of_lod_comes_back(lod: list[list[int]]) -> None:
    words = np.arange(lod[-1][-1] * 2.0).reshape(-1, 2)
    ragged = Ragged.from_lod(words, [np.array(level) for level in lod])
    assert ragged.lod == lod
    assert [level.tolist() for level in ragged.outer] == lod[:-1]
    assert ragged.offsets.tolist() == lod[-1]
    others = ragged.with_data(words * 3)
    assert others.lod == lod
    assert others.data.tolist() == (words * 3).tolist()
    assert ragged.data.tolist() == words.tolist()


def test_data_of_is_the_array_inside() -> None:
    words = np.ones((2, 3))
    assert data_of(Ragged(words, [0, 2])) is words
    assert data_of([1, 2]).tolist() == [1, 2]


WORDS = np.zeros((4, 2), np.float32)


LEVELS, PADDED = [0, 1, 4], np.zeros((2, 4, 3))
# What is refused, and the argument and the numbers that the message names.
REFUSED: list[tuple[Any, str, str]] = [
    *(
        (partial(Ragged, WORDS, offsets), "offsets", numbers)
        for offsets, numbers in (
            ([1, 4], "must start at 0, got 1"),
            ([3, 0, 1], "from_lengths"),
            ([0, 3, 1], "from_lengths"),
            ([0, 3, 2, 4], "from 3 to 2"),
            (np.array([0, 3, 2, 4], np.uint64), "from 3 to 2"),
            ([0, 3], "must end at 4, the number of steps, got 3"),
            ([0, 5], "must end at 4, the number of steps, got 5"),
            ([], "float64 (0,)"),
            ([0.0, 4.0], "float64 (2,)"),
            ([False, True], "bool (2,)"),
            ([[0, 4]], "int64 (1, 2)"),
            (4, "int64 ()"),
        )
    ),
    *(
        (lambda outer=outer: Ragged.from_lod(WORDS, [*outer, LEVELS]), f"outer level {at}", numbers)
        for outer, at, numbers in (
            ([[0, 3]], 0, "must end at 2, the number of elements below, got 3"),
            ([[0, 1], [0, 1]], 1, "must end at 2, the number of elements below, got 1"),
            ([[0, 2], [0, 2]], 0, "must end at 1, the number of elements below, got 2"),
            ([[0, 2, 1, 2]], 0, "from 2 to 1"),
            ([[2]], 0, "must start at 0, got 2"),
        )
    ),
    (
        lambda: Ragged.from_lengths(WORDS, [1, 2]),
        "offsets",
        "must end at 4, the number of steps, got 3",
    ),
    *(
        (partial(Ragged.from_lengths, WORDS, lengths), "lengths", numbers)
        for lengths, numbers in (
            ([5, -1], "sequence 0 has 5"),
            ([2.0, 2.0], "float64 (2,)"),
            ([[4]], "int64 (1, 1)"),
        )
    ),
    *(
        (partial(Ragged.from_padded, PADDED, lengths), "lengths", numbers)
        for lengths, numbers in (
            ([1], "2, one per sequence, got 1"),
            ([4, 5], "sequence 1 has 5"),
            ([-1, 4], "sequence 0 has -1"),
        )
    ),
    (
        lambda: Ragged.from_padded(PADDED, [4, 0, 5, 0], time_major=True),
        "lengths",
        "sequence 0 has 4",
    ),
    (lambda: Ragged.from_padded(PADDED[:1, :0], [1]), "lengths", "sequence 0 has 1"),
    (lambda: Ragged.from_padded(np.zeros(4), [4]), "padded", "(4,)"),
    *(
        (lambda shape=shape: Ragged.from_mask(PADDED, np.ones(shape)), "mask", str(shape))
        for shape in ((2, 3), (3, 4), (2,), (2, 4, 1))
    ),
    (lambda: Ragged(np.float32(1), [0, 1]), "data", "scalar"),
    (
        lambda: Ragged(WORDS, [0, 4]).with_data(np.zeros(5)),
        "offsets",
        "must end at 5, the number of steps, got 4",
    ),
    (lambda: Ragged.from_lod(WORDS, []), "lod", "none"),
    (lambda: Ragged.from_list([]), "sequences", "empty"),
    (lambda: Ragged.from_list([WORDS, np.zeros((4, 3))]), "sequence 1", "(4, 3)"),
    (lambda: Ragged.from_list([np.float32(1)]), "sequence 0", "scalar"),
    (lambda: Ragged(WORDS, [0, 3, 4]).to_padded(time=2), "time", "3, got 2"),
]


def test_impossible_batches_are_refused_with_their_numbers() -> None:
    for make, place, numbers in REFUSED:
        with pytest.raises(ShapeError) as error:
            make()
        assert str(error.value).startswith(f"{place}: ") and numbers in str(error.value)
    with pytest.raises(ValueError, match="side: .*'top'"):
        Ragged(WORDS, [0, 4]).to_padded(side="top")  # type: ignore[arg-type]


extremes = st.sampled_from([-(2**63), -(2**62), -1, 0, 1, 2, 4, 2**62, 2**63 - 1])
large = st.sampled_from([0, 1, 2, 4, 2**62, 2**63, 2**64 - 4, 2**64 - 1])
wrapping = st.lists(extremes, max_size=5) | st.lists(large, max_size=5).map(
    lambda numbers: np.array(numbers, np.uint64)
)


@given(wrapping)
def test_offsets_that_wrap_around_are_refused_in_every_level(middle: Any) -> None:
    """What Python's integers, which do not wrap, say of them."""
    numbers = [int(number) for number in middle]
    offsets = np.array([0, *numbers, 4], getattr(middle, "dtype", np.int64))
    is_valid = all(a <= b for a, b in itertools.pairwise([0, *numbers, 4]))
    for make in (
        lambda: Ragged(WORDS, offsets),
        lambda: Ragged.from_lod(WORDS, [[0, len(offsets) - 1], offsets]),
        lambda: Ragged.from_lod(WORDS, [offsets, [0, 1, 2, 3, 4]]),
    ):
        with nullcontext() if is_valid else pytest.raises(ShapeError, match="must not decrease"):
            make()


@given(wrapping)
def test_lengths_whose_sum_wraps_around_are_refused(lengths: Any) -> None:
    numbers = [int(number) for number in lengths]
    if sum(numbers) != 4 or min(numbers) < 0:
        with pytest.raises(ShapeError, match="lengths|offsets"):
            Ragged.from_lengths(WORDS, lengths)
    else:
        assert Ragged.from_lengths(WORDS, lengths).lengths.tolist() == numbers
    padded = np.zeros((len(numbers), 4))
    if all(0 <= number <= 4 for number in numbers):
        assert Ragged.from_padded(padded, lengths).lengths.tolist() == numbers
    else:
        with pytest.raises(ShapeError, match="lengths: sequence . has .*, expected 0 to 4"):
            Ragged.from_padded(padded, lengths)


HIDDEN = np.ma.masked_equal([0, 1, 4], 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Ragged(np.ma.masked_equal(WORDS, 0), [0, 4]),
        lambda: Ragged(WORDS, HIDDEN),
        lambda: Ragged(WORDS, [0, 4], (HIDDEN,)),
        lambda: Ragged.from_lod(WORDS, [HIDDEN]),
        lambda: Ragged.from_lengths(WORDS, HIDDEN),
        lambda: Ragged.from_list([HIDDEN]),
        lambda: Ragged.from_padded(np.ma.masked_equal(WORDS, 0), [1, 1, 1, 1]),
        lambda: Ragged.from_padded(np.zeros((3, 4)), HIDDEN),
        lambda: Ragged.from_mask(np.zeros((1, 3)), HIDDEN[None]),
        lambda: Ragged.from_mask(HIDDEN[None], [[1, 1, 1]]),
        lambda: Ragged(WORDS, [0, 4]).with_data(np.ma.masked_equal(WORDS, 0)),
        lambda: data_of([HIDDEN, HIDDEN]),
        lambda: data_of(np.ma.masked),
    ],
)
def test_masked_elements_are_refused(make: Any) -> None:
    """NumPy would show the numbers under the mask."""
    with pytest.raises(ShapeError, match="masked elements"):
        make()


def test_a_masked_array_that_hides_nothing_is_taken() -> None:
    assert type(Ragged(np.ma.array(WORDS), [0, 4]).data) is np.ndarray


def test_data_is_taken_without_a_copy() -> None:
    words = np.ones((4, 2))
    assert Ragged(words, [0, 4]).data is words
    assert np.shares_memory(Ragged(words, [0, 1, 4]).to_list()[1], words)


def test_offsets_do_not_follow_the_caller_nor_let_him_in() -> None:
    offsets, outer = np.array([0, 1, 4]), np.array([0, 2])
    ragged = Ragged.from_lod(WORDS, [outer, offsets])
    offsets[1] = outer[1] = 3
    assert ragged.lod == [[0, 2], [0, 1, 4]]
    for level in (ragged.offsets, *ragged.outer):
        with pytest.raises(ValueError, match="read-only"):
            level[1] = 3
    ragged.lengths[:] = 7
    ragged.lod[0][1] = 7
    assert ragged.lod == [[0, 2], [0, 1, 4]]
    assert ragged.lengths.tolist() == [1, 3]
    with pytest.raises(FrozenInstanceError):
        ragged.offsets = offsets  # type: ignore[misc]


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("lengths", [[2, 2], [2]])  # no padding at all: the tempting case
def test_conversions_never_alias_their_argument(lengths: list[int], time_major: bool) -> None:
    n = len(lengths)
    padded = np.ones((2, n, 3) if time_major else (n, 2, 3))
    mask = np.ones((n, 2), bool)
    from_padded = Ragged.from_padded(padded, lengths, time_major=time_major)
    from_mask = Ragged.from_mask(np.ones((n, 2, 3)), mask)
    assert not np.shares_memory(from_padded.data, padded)
    out = from_padded.to_padded(time_major=time_major)
    out[:] = 5
    mask[:] = False
    assert (from_padded.data == 1).all()
    assert from_mask.lengths.tolist() == lengths
    single = np.ones((2, 3))
    assert not np.shares_memory(Ragged.from_list([single]).data, single)


def test_repr_says_what_it_is() -> None:
    assert repr(Ragged(WORDS, [0, 1, 4])) == "Ragged(float32 (4, 2), 2 sequences)"
