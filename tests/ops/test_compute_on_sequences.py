"""Kernels over whole sentences against loops over Python lists."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checking import assert_same
from support.layers import random_ragged

from onernn import Ragged, ShapeError
from onernn.engine.kernels import KERNELS
from onernn.ir.graph import Node

LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=5)


def run(op: str, *values: Any, **attributes: Any) -> Any:
    names = tuple(f"v{k}" for k in range(len(values)))
    return KERNELS[op](Node(op, names, ("y",), attributes), *values)


def sentences(x: Ragged) -> list[np.ndarray]:
    return [x.data[a:b] for a, b in zip(x.offsets, x.offsets[1:], strict=False)]


POOLS = {
    "sum": lambda s: s.sum(0),
    "average": lambda s: s.sum(0) / len(s),
    "sqrt": lambda s: s.sum(0) / math.sqrt(len(s)),
    "max": lambda s: s.max(0),
    "first": lambda s: s[0],
    "last": lambda s: s[-1],
}


@given(lengths=LENGTHS, seed=st.integers(0, 99))
@pytest.mark.parametrize("kind", POOLS)
def test_pool_gives_a_row_a_sentence(kind: str, lengths: list[int], seed: int) -> None:
    x = random_ragged(lengths, 3, seed)
    got = run("SequencePool", x, kind=kind, empty=-7.0)
    for row, sentence in zip(got, sentences(x), strict=True):
        want = POOLS[kind](sentence.astype(np.float64)) if len(sentence) else np.full(3, -7.0)
        np.testing.assert_allclose(row, want, rtol=0, atol=5e-6)  # five words of at most 2


def test_pool_keeps_the_levels_above() -> None:
    x = Ragged(np.float32([[1], [2], [3]]), [0, 1, 1, 3], ([0, 1, 2], [0, 2, 3]))
    got = run("SequencePool", x, kind="sum", empty=0.0)
    assert got.lod == [[0, 1, 2], [0, 2, 3]] and got.data.tolist() == [[1], [0], [5]]


@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_softmax_sums_to_one_in_each_sentence(lengths: list[int], seed: int) -> None:
    x = random_ragged(lengths, 1, seed)
    x = x.with_data(x.data * 60)  # exp of it alone would overflow
    for got, words in zip(sentences(run("SequenceSoftmax", x)), sentences(x), strict=True):
        if len(words):
            e = np.exp(words.astype(np.float64) - words.max())
            np.testing.assert_allclose(got, e / e.sum(), rtol=0, atol=2e-6)


@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_reverse_is_its_own_inverse(lengths: list[int], seed: int) -> None:
    x = random_ragged(lengths, 2, seed)
    back = run("SequenceReverse", x)
    for got, words in zip(sentences(back), sentences(x), strict=True):
        assert got.tolist() == words.tolist()[::-1]
    assert_same(run("SequenceReverse", back).data, x.data)


@given(lengths=LENGTHS, length=st.integers(1, 4), start=st.integers(-4, 3))
def test_context_stays_inside_of_the_sentence(lengths: list[int], length: int, start: int) -> None:
    x = random_ragged(lengths, 2, 1)
    got = run("SequenceContext", x, length=length, start=start)
    for rows, words in zip(sentences(got), sentences(x), strict=True):
        for t, row in enumerate(rows):
            seen = [
                words[k].tolist() if 0 <= k < len(words) else [0.0, 0.0]
                for k in range(t + start, t + start + length)
            ]
            assert row.reshape(length, 2).tolist() == seen


@given(lengths=LENGTHS, data=st.data())
def test_expand_repeats_sentences_and_rows(lengths: list[int], data: Any) -> None:
    times = [data.draw(st.integers(0, 3)) for _ in lengths]
    x, like = random_ragged(lengths, 2, 0), random_ragged(times, 1, 1)
    got = run("SequenceExpand", x, like, level=0)
    wanted = [s.tolist() for s, n in zip(sentences(x), times, strict=True) for _ in range(n)]
    assert [s.tolist() for s in sentences(got)] == wanted
    rows = np.arange(len(lengths))[:, None]
    assert run("SequenceExpand", rows, like, level=0).tolist() == [
        [k] for k, n in enumerate(times) for _ in range(n)
    ]


@given(first=LENGTHS, data=st.data())
def test_concat_puts_sentences_one_behind_the_other(first: list[int], data: Any) -> None:
    second = [data.draw(st.integers(0, 4)) for _ in first]
    parts = [random_ragged(lengths, 2, k) for k, lengths in enumerate((first, second))]
    got = run("SequenceConcat", *parts)
    wanted = [np.concatenate(pair).tolist() for pair in zip(*map(sentences, parts), strict=True)]
    assert [s.tolist() for s in sentences(got)] == wanted


@pytest.mark.parametrize("value", [np.float32([9]), np.float32([7, 8])], ids=["number", "word"])
def test_fill_writes_the_value_behind_each_sentence(value: np.ndarray) -> None:
    x = random_ragged([2, 0, 3], 2, 0)
    for more, time in (({}, 3), ({"time": 5}, 5)):
        got = run("SequenceFill", x, value, **more)
        assert got.shape == (3, time, 2)
        for rows, words in zip(got, sentences(x), strict=True):
            assert rows[: len(words)].tolist() == words.tolist()
            assert (rows[len(words) :] == value).all()
    assert run("SequenceLengths", x).tolist() == [2, 0, 3]


X = random_ragged([2, 0, 3], 2, 0)
REFUSED = {
    "'v0' has no offsets": ("SequencePool", [X.data], {"kind": "sum", "empty": 0.0}),
    "'v1' has no offsets": ("SequenceExpand", [X.data, X.data], {"level": 0}),
    "expected one value per step, shape (W,), got (5, 2)": ("SequenceSoftmax", [X], {}),
    "expected (W, I)": ("SequenceContext", [X.with_data(X.data[:, 0])], {"length": 1, "start": 0}),
    "expected 3 sequences or rows, as 'like' has, got 5": (
        "SequenceExpand",
        [X.data, X],
        {"level": 0},
    ),
    "expected equal numbers of sequences, got [1, 3]": (
        "SequenceConcat",
        [X, random_ragged([1], 2, 0)],
        {},
    ),
    "longest sequence, 3, got 2": ("SequenceFill", [X, np.float32([0])], {"time": 2}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_does_not_fit_is_refused(reason: str) -> None:
    op, values, attributes = REFUSED[reason]
    with pytest.raises(ShapeError) as error:
        run(op, *values, **attributes)
    assert reason in str(error.value)
