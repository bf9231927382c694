"""ONNX's W, R, B and P <-> the pivot, scalar by scalar."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.arrays import counted

from onernn import Cell, ShapeError
from onernn.reorders import onnx

ORDER = {Cell.LSTM: "iofc", Cell.GRU: "uro", Cell.LBR_GRU: "uro", Cell.RNN_TANH: "h"}


@pytest.mark.parametrize("cell", ORDER)
def test_matrices_place_each_scalar_by_its_address(cell: Cell) -> None:
    gates, d, i, o = len(cell.gates), 2, 3, 5
    w = counted(d, gates * o, i)
    got = onnx.matrix("W", w, cell)
    assert got.shape == (1, d, i, gates, o)
    memory = w.reshape(-1)
    for k, x, (g, name), u in itertools.product(
        range(d), range(i), enumerate(cell.gates), range(o)
    ):
        row = ORDER[cell].index(name) * o + u
        assert got[0, k, x, g, u] == memory[(k * gates * o + row) * i + x]
    assert_array_equal(onnx.matrix_back(got, cell), w)


@pytest.mark.parametrize("cell", ORDER)
def test_biases_are_summed_but_for_what_stands_inside_the_reset(cell: Cell) -> None:
    gates, o = len(cell.gates), 4
    b = counted(1, 2 * gates * o)
    of_w, of_r = b[0].reshape(2, gates, o)
    got = onnx.bias(b, cell)[0, 0]
    for g, name in enumerate(cell.gates):
        at = ORDER[cell].index(name)
        inside = cell is Cell.LBR_GRU and name == "o"
        assert_array_equal(got[g], of_w[at] + (0 if inside else of_r[at]))
    if cell is Cell.LBR_GRU:
        assert_array_equal(got[3], of_r[2])
    again = onnx.bias(onnx.bias_back(got[None, None], cell), cell)
    assert_array_equal(again[0, 0], got)


def test_peepholes_change_their_order() -> None:
    p = np.arange(6, dtype=np.float32)[None]  # i i o o f f
    got = onnx.peephole(p)
    assert got.tolist() == [[[[0, 1], [4, 5], [2, 3]]]]
    assert_array_equal(onnx.peephole_back(got), p)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 7, 2)])
def test_wrong_shapes_are_told(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"W: expected \(D, G\*O, I\)|multiple of 4"):
        onnx.matrix("W", np.zeros(shape, np.float32), Cell.LSTM)
    with pytest.raises(ShapeError, match=r"B: expected \(D, 8\*O\)"):
        onnx.bias(np.zeros((1, 7), np.float32), Cell.LSTM)
    with pytest.raises(ShapeError, match=r"P: expected \(D, 3\*O\)|multiple of 3"):
        onnx.peephole(np.zeros((1, 7), np.float32))
