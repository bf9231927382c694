"""LoD tensors <-> TNC, NTC and the sorted packed layout."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onernn.reorders import lod

LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def batch(lengths: list[int]) -> tuple[np.ndarray, list[list[int]]]:
    offsets = np.cumsum([0, *lengths])
    words = np.arange(1, 2 * offsets[-1] + 1, dtype=np.float32).reshape(-1, 2)
    return words, [offsets.tolist()]


@given(LENGTHS, st.booleans())
def test_padding_stands_behind_the_words_in_the_direction_of_the_run(
    lengths: list[int], right2left: bool
) -> None:
    words, levels = batch(lengths)
    tnc = lod.to_tnc(words, levels, right2left=right2left)
    ntc = lod.to_ntc(words, levels, right2left=right2left)
    longest = max(lengths)
    assert tnc.shape == (longest, len(lengths), 2) and ntc.shape == (len(lengths), longest, 2)
    for n, length in enumerate(lengths):
        start = levels[0][n]
        shift = longest - length if right2left else 0
        for t in range(longest):
            inside = shift <= t < shift + length
            expected = words[start + t - shift] if inside else [0, 0]
            assert tnc[t, n].tolist() == ntc[n, t].tolist() == list(expected)


@given(LENGTHS, st.booleans())
def test_every_way_back_is_exact(lengths: list[int], right2left: bool) -> None:
    words, levels = batch(lengths)
    tnc = lod.to_tnc(words, levels, right2left=right2left)
    ntc = lod.to_ntc(words, levels, right2left=right2left)
    packed, _ = lod.to_packed(words, levels)
    np.testing.assert_array_equal(lod.from_tnc(tnc, levels, right2left=right2left), words)
    np.testing.assert_array_equal(lod.from_ntc(ntc, levels, right2left=right2left), words)
    np.testing.assert_array_equal(lod.from_packed(packed, levels), words)


def test_packed_words_come_step_by_step_longest_sentence_first() -> None:
    words, levels = batch([1, 3, 0, 2])
    packed, packing = lod.to_packed(words, levels)
    order = [1, 4, 0, 2, 5, 3]  # first words of the sentences of 3, 2, 1 words; second; third
    np.testing.assert_array_equal(packed, words[order])
    assert packing.batch_sizes.tolist() == [3, 2, 1]
