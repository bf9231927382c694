"""NumPy kernels of operators that ONNX has not, against brute force."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checking import assert_same
from support.graphs import new_node

from onernn import Ragged, ShapeError
from onernn.engine.kernels import KERNELS

RNG = np.random.default_rng(3)
MATRIX = RNG.uniform(-2, 2, (4, 3)).astype(np.float32)


def test_indices_outside_the_table_are_refused_with_the_index() -> None:
    gather = KERNELS["Gather"]
    node = new_node("Gather", "a b", "c", non_negative=True)
    for index in (-1, 4):
        with pytest.raises(ShapeError, match=f"index {index}: expected an index in"):
            gather(node, MATRIX, np.array([0, index]))


def best_path(emission: np.ndarray, transition: np.ndarray) -> tuple[list[int], float]:
    """All paths tried, in float64."""
    tags = emission.shape[1]
    start, stop, between = transition[0], transition[1], transition[2:]
    scored = []
    for path in itertools.product(range(tags), repeat=len(emission)):
        score = start[path[0]] + stop[path[-1]] + sum(emission[t, k] for t, k in enumerate(path))
        score += sum(between[i, j] for i, j in itertools.pairwise(path))
        scored.append((score, list(path)))
    score, path = max(scored, key=lambda each: each[0])
    return path, score


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 3), st.integers(0, 99))
def test_crf_decoding_finds_the_best_path_of_every_sentence(lengths, tags, seed) -> None:
    rng = np.random.default_rng(seed)
    emission = rng.standard_normal((sum(lengths), tags))
    transition = rng.standard_normal((tags + 2, tags))
    batch = Ragged.from_lengths(emission, lengths)
    got = KERNELS["CrfDecode"](new_node("CrfDecode", "a b", "c"), batch, transition)
    assert got.lod == batch.lod and got.data.shape == (sum(lengths), 1)
    for scores, path in zip(batch.to_list(), got.to_list(), strict=True):
        if len(scores):
            assert path[:, 0].tolist() == best_path(scores, transition)[0]


MOMENTS = {  # mean and variance
    "uniform": lambda low, high: ((low + high) / 2, (high - low) ** 2 / 12),
    "normal": lambda mean, deviation: (mean, deviation**2),
    "gamma": lambda shape, scale: (shape * scale, shape * scale**2),
    "exponential": lambda rate: (1 / rate, 1 / rate**2),
    "poisson": lambda rate: (rate, rate),
}


@pytest.mark.parametrize("distribution", MOMENTS)
def test_samples_have_the_moments_of_their_distribution(distribution) -> None:
    count, moments = 20_000, MOMENTS[distribution]
    given = np.array([[0.5, 3.0], [1.5, 4.0]], np.float32)[: moments.__code__.co_argcount]
    names = " ".join("ab"[: len(given)])
    draw = partial(
        KERNELS["Sample"],
        new_node("Sample", f"seed {names}", "y", distribution=distribution, shape=(count,)),
    )
    y = draw(np.array(3), *given)
    assert y.shape == (2, count) and y.dtype == np.float32
    for row, mean, variance in zip(y, *moments(*given.astype(float)), strict=True):
        assert abs(row.mean() - mean) < 5 * np.sqrt(variance / count)
        assert abs(row.var() / variance - 1) < 0.2
    assert np.array_equal(draw(np.array(3), *given), y)
    assert not np.array_equal(draw(np.array(4), *given), y)
    with pytest.raises(ShapeError, match="seed: .*-1"):
        draw(np.array(-1), *given)


def test_samples_of_no_distribution_are_refused() -> None:
    node = new_node("Sample", "seed a b", "y", distribution="gamma")
    with pytest.raises(ShapeError, match="gamma: .* < 0"):
        KERNELS["Sample"](node, np.array(0), np.array([-1.0]), np.array([1.0]))


def test_crf_decoding_refuses_transitions_of_another_size() -> None:
    node = new_node("CrfDecode", "a b", "c")
    with pytest.raises(ShapeError, match=r"transition \(K\+2, K\)"):
        KERNELS["CrfDecode"](node, Ragged(MATRIX, [0, 4]), np.zeros((3, 3), np.float32))
    with pytest.raises(ShapeError, match="'a' has no offsets"):
        KERNELS["CrfDecode"](node, MATRIX, np.zeros((5, 3), np.float32))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.booleans())
def test_padding_and_lengths_lead_to_ragged_and_back(lengths: list[int], time_major: bool) -> None:
    attributes = {"time_major": int(time_major)}
    padded = np.zeros((len(lengths), 5, 2), np.float32)
    for n, length in enumerate(lengths):
        padded[n, :length] = n + 1
    given_array = padded.swapaxes(0, 1) if time_major else padded
    unpad = new_node("SequenceUnpad", "a b", "c", **attributes)
    ragged = KERNELS["SequenceUnpad"](unpad, given_array, np.array(lengths))
    assert ragged.lengths.tolist() == lengths
    assert ragged.data[:, 0].tolist() == [n + 1 for n, k in enumerate(lengths) for _ in range(k)]
    pad = KERNELS["SequencePad"]
    back = pad(new_node("SequencePad", "a b", "c", **attributes), ragged, given_array)
    assert_same(back, given_array)
    shortest = pad(new_node("SequencePad", "a", "c", **attributes), ragged)
    assert shortest.shape[0 if time_major else 1] == max(lengths)
