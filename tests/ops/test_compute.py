"""NumPy kernels of the canonical operators, against onnx's own evaluator and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from onernn import Ragged, ShapeError
from onernn.engine.kernels import KERNELS
from onernn.ir.graph import Node

RNG = np.random.default_rng(3)
MATRIX = RNG.uniform(-2, 2, (4, 3)).astype(np.float32)
OTHER = RNG.uniform(-2, 2, (3, 5)).astype(np.float32)
CUBE = RNG.uniform(-2, 2, (2, 1, 3)).astype(np.float32)
INTS = np.array([[2, 0], [3, 1]], np.int64)

CASES = [
    ("MatMul", [MATRIX, OTHER], {}),
    ("MatMul", [CUBE, OTHER], {}),
    ("Gemm", [MATRIX, OTHER], {}),
    ("Gemm", [MATRIX, OTHER.T.copy(), OTHER[0]], {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Gemm", [MATRIX.T.copy(), OTHER, OTHER[0]], {"transA": 1}),
    ("Add", [MATRIX, MATRIX[0]], {}),
    ("Mul", [MATRIX, np.float32(2.5)], {}),
    ("Identity", [INTS], {}),
    ("Relu", [MATRIX], {}),
    ("Tanh", [MATRIX], {}),
    ("Sigmoid", [MATRIX * 50], {}),
    ("Softmax", [MATRIX * 50], {"axis": -1}),
    ("Softmax", [CUBE], {"axis": 0}),
    ("Transpose", [CUBE], {"perm": (2, 0, 1)}),
    ("Squeeze", [CUBE, np.array([1])], {}),
    ("Squeeze", [CUBE, np.array([-2])], {}),
    ("Unsqueeze", [MATRIX, np.array([0, 3])], {}),
    ("Concat", [MATRIX, MATRIX + 1], {"axis": -1}),
    ("Flatten", [CUBE], {"axis": 2}),
    ("Flatten", [CUBE], {"axis": 0}),
    ("Reshape", [CUBE, np.array([0, -1])], {}),
    ("Gather", [MATRIX, INTS], {"axis": 0}),
    ("Gather", [MATRIX, np.array(-1)], {"axis": 1}),
    ("ArgMax", [MATRIX], {"axis": 1, "keepdims": 0}),
    ("ArgMax", [np.zeros((2, 3), np.float32)], {"axis": 1, "keepdims": 1}),
]


def by_onnx(op: str, arrays: list, attributes: dict) -> np.ndarray:
    names = [f"i{k}" for k in range(len(arrays))]
    node = helper.make_node(op, names, ["out"], **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.asarray(a).dtype), None)
        for n, a in zip(names, arrays, strict=True)
    ]
    out = helper.make_tensor_value_info("out", onnx.TensorProto.UNDEFINED, None)
    model = helper.make_model(helper.make_graph([node], "g", infos, [out]))
    return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))[0]


@pytest.mark.parametrize("op, arrays, attributes", CASES)
def test_kernels_compute_what_onnx_says(op: str, arrays: list, attributes: dict) -> None:
    got = KERNELS[op](Node(op, ("a",), ("b",), attributes), *arrays)
    want = by_onnx(op, arrays, attributes)
    assert got.shape == want.shape and got.dtype == want.dtype
    # One rounding a term, sums of at most 4 terms of size 4.
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("op", ["Add", "Relu", "Softmax", "Concat", "Identity"])
def test_row_wise_operators_keep_the_offsets(op: str) -> None:
    ragged = Ragged(MATRIX, [0, 1, 1, 4], ([0, 3],))
    more = [ragged] if op in ("Add", "Concat") else []
    got = KERNELS[op](Node(op, ("a",), ("b",), {"axis": 1}), ragged, *more)
    assert got.lod == ragged.lod
    np.testing.assert_array_equal(
        got.data, KERNELS[op](Node(op, ("a",), ("b",), {"axis": 1}), MATRIX, *[MATRIX] * len(more))
    )


def test_indices_outside_the_table_are_refused_with_the_index() -> None:
    gather = KERNELS["Gather"]
    node = Node("Gather", ("a", "b"), ("c",), {"non_negative": True})
    for index in (-1, 4):
        with pytest.raises(ShapeError, match=f"index {index} is outside"):
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
    got = KERNELS["CrfDecode"](Node("CrfDecode", ("a", "b"), ("c",)), batch, transition)
    assert got.lod == batch.lod and got.data.shape == (sum(lengths), 1)
    for scores, path in zip(batch.to_list(), got.to_list(), strict=True):
        if len(scores):
            assert path[:, 0].tolist() == best_path(scores, transition)[0]


def test_crf_decoding_refuses_transitions_of_another_size() -> None:
    node = Node("CrfDecode", ("a", "b"), ("c",))
    with pytest.raises(ShapeError, match=r"transition \(K\+2, K\)"):
        KERNELS["CrfDecode"](node, Ragged(MATRIX, [0, 4]), np.zeros((3, 3), np.float32))
    with pytest.raises(ShapeError, match="'a' carries no offsets"):
        KERNELS["CrfDecode"](node, MATRIX, np.zeros((5, 3), np.float32))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.booleans())
def test_padding_and_lengths_lead_to_ragged_and_back(lengths: list[int], time_major: bool) -> None:
    attributes = {"time_major": int(time_major)}
    padded = np.zeros((len(lengths), 5, 2), np.float32)
    for n, length in enumerate(lengths):
        padded[n, :length] = n + 1
    given_array = padded.swapaxes(0, 1) if time_major else padded
    unpad = Node("SequenceUnpad", ("a", "b"), ("c",), attributes)
    ragged = KERNELS["SequenceUnpad"](unpad, given_array, np.array(lengths))
    assert ragged.lengths.tolist() == lengths
    assert ragged.data[:, 0].tolist() == [n + 1 for n, k in enumerate(lengths) for _ in range(k)]
    pad = KERNELS["SequencePad"]
    back = pad(Node("SequencePad", ("a", "b"), ("c",), attributes), ragged, given_array)
    np.testing.assert_array_equal(back, given_array)
    shortest = pad(Node("SequencePad", ("a",), ("c",), attributes), ragged)
    assert shortest.shape[0 if time_major else 1] == max(lengths)
