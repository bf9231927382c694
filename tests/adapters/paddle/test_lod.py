"""What an operator of Paddle hands on: shapes and LoD, as measured beside Paddle 2.6.2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.graphs import reference
from support.paddle_operators import op, program

from onernn import Ragged, ShapeError, UnsupportedError
from onernn.adapters.paddle.lower import lower
from onernn.adapters.paddle.read import Variable
from onernn.ir.arrays import Array
from onernn.ir.ragged import data_of

ONE, TWO, OTHER = [[0, 2, 2, 5]], [[0, 1, 3], [0, 2, 2, 5]], [[0, 1, 5]]
Batch = Ragged | Array


def numbers(*shape: int) -> Array:
    return uniform(*shape, seed=[5, *shape], bound=2)


def ragged(lod: list[list[int]], *sizes: int) -> Ragged:
    return Ragged.from_lod(numbers(lod[-1][-1], *sizes), lod)


def run(
    kind: str, inputs: dict[str, Batch | list[Batch]], slot: str = "Out", **attributes: Any
) -> Any:
    """One operator over fed inputs by slot; its output."""
    feeds: dict[str, Batch] = {}
    slots: dict[str, tuple[str, ...]] = {}
    for name, given in inputs.items():
        values = given if isinstance(given, list) else [given]
        slots[name] = tuple(f"{name}{k}" for k in range(len(values)))
        feeds.update(zip(slots[name], values, strict=True))
    declared = {"y": Variable("y", 7, None, None, 0, False)}
    for name, value in feeds.items():
        data, depth = data_of(value), len(lod(value) or ())
        shape = (None, *data.shape[1:])
        declared[name] = Variable(name, 7, data.dtype.name, shape, depth, False)
    made = program(op(kind, slots, {slot: "y"}, **attributes), feeds=tuple(feeds), **declared)
    return reference(lower(made), feeds)["y"]


def lod(value: Batch) -> list[list[int]] | None:
    return value.lod if isinstance(value, Ragged) else None


X = ragged(TWO, 2, 3)

KEPT = {
    "tanh": {},
    "scale": {"scale": 2.0},
    "softmax": {"axis": 0},  # over the words of all sentences
    "log_softmax": {"axis": 0},
    "reshape2": {"shape": (0, 3, -1)},
    "unsqueeze2": {"axes": (1, 2)},
    "squeeze2": {"axes": (1,)},  # an axis of two: nothing to do
}
LOST = {
    "transpose2": {"axis": (0, 2, 1)},
    "arg_max": {"axis": 1},
    "unsqueeze2": {"axes": (0,)},
}


@pytest.mark.parametrize("kind", KEPT)
def test_the_lod_goes_through(kind: str) -> None:
    assert lod(run(kind, {"X": X}, **KEPT[kind])) == TWO


@pytest.mark.parametrize("kind", LOST)
def test_the_lod_is_lost(kind: str) -> None:
    assert lod(run(kind, {"X": X}, **LOST[kind])) is None


@pytest.mark.parametrize("kind", ["elementwise_add", "matmul_v2", "concat"])
@pytest.mark.parametrize("first", [ONE, TWO, None], ids=str)
def test_of_two_inputs_the_first_gives_the_lod(kind: str, first: Any) -> None:
    a = ragged(first, 3, 3) if first else numbers(5, 3, 3)
    b = ragged(ONE, 3, 3)
    slots: dict[str, Any] = {"X": [a, b]} if kind == "concat" else {"X": a, "Y": b}
    expected = None if kind == "matmul_v2" else first
    assert lod(run(kind, slots, **({"axis": -1} if kind == "concat" else {}))) == expected


def test_along_the_words_sentences_are_appended_on_every_level() -> None:
    got = run("concat", {"X": [ragged(ONE, 3), ragged(OTHER, 3)]}, axis=0)
    assert got.lod == [[0, 2, 2, 5, 6, 10]]
    np.testing.assert_array_equal(got.data[:5], got.data[5:])
    assert run("concat", {"X": [X, X]}, axis=-3).lod == [[0, 1, 3, 4, 6], [0, 2, 2, 5, 7, 7, 10]]
    with pytest.raises(UnsupportedError, match=r"axis=0: inputs X have \[1, 2\] LoD levels"):
        run("concat", {"X": [ragged(ONE, 3), ragged(TWO, 3)]}, axis=0)


def test_lod_reset_prefers_the_lod_of_y_then_its_numbers_then_target_lod() -> None:
    x, target = ragged(ONE, 3), {"target_lod": (0, 4, 5)}
    assert run("lod_reset", {"X": x, "Y": ragged(TWO, 1)}, **target).lod == TWO
    offsets = np.array([0, 1, 1, 5], np.int32)
    assert run("lod_reset", {"X": x, "Y": offsets}, **target).lod == [[0, 1, 1, 5]]
    assert run("lod_reset", {"X": x}, **target).lod == [[0, 4, 5]]
    with pytest.raises(UnsupportedError, match="input Y carries no LoD"):
        run("lod_reset", {"X": x, "Y": numbers(4)})
    with pytest.raises(UnsupportedError, match="neither input Y nor attribute target_lod"):
        run("lod_reset", {"X": x})
    with pytest.raises(ShapeError, match="ends at 4, but there are 5 steps"):
        run("lod_reset", {"X": x}, target_lod=(0, 4))


def test_with_labels_crf_decoding_tells_where_the_path_agrees() -> None:
    given = {"Emission": ragged(ONE, 3), "Transition": numbers(5, 3)}
    path = run("crf_decoding", given, "ViterbiPath")
    labels = path.data.copy()
    labels[[0, 3]] = (labels[[0, 3]] + 1) % 3
    for shaped in (labels, labels[:, 0]):
        agreed = run("crf_decoding", {**given, "Label": path.with_data(shaped)}, "ViterbiPath")
        assert agreed.data.dtype == np.int64 and agreed.lod == ONE
        assert agreed.data.tolist() == [[0], [1], [1], [0], [1]]


def test_axes_are_put_in_one_after_the_other() -> None:
    x = numbers(5, 3)
    shapes = {(2, 1): (5, 1, 3, 1), (1, 1): (5, 1, 1, 3), (-1, 1): (5, 1, 3, 1), (-3,): (1, 5, 3)}
    for axes, shape in shapes.items():
        assert run("unsqueeze2", {"X": x}, axes=axes).shape == shape
    with pytest.raises(UnsupportedError, match="attribute axes: 4 for 2 axes"):
        run("unsqueeze2", {"X": x}, axes=(4,))


def test_arg_max_over_everything_keeps_one_axis_for_each() -> None:
    x = numbers(5, 3)
    assert run("arg_max", {"X": x}, flatten=True, axis=0) == x.argmax()
    kept = run("arg_max", {"X": x}, flatten=True, keepdims=True, axis=0, dtype=2)
    assert kept.shape == (1, 1) and kept.dtype == np.int32 and kept[0, 0] == x.argmax()


def test_rows_that_do_not_fit_a_lod_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"attribute shape=\(-1, 3\) splits or joins"):
        run("reshape2", {"X": X}, shape=(-1, 3))
    with pytest.raises(ShapeError, match=r"gives \(4, 3\) under offsets of 1 steps"):
        run("elementwise_add", {"X": ragged([[0, 1]], 3), "Y": numbers(4, 3)})
