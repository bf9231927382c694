"""What Paddle 3 means otherwise than 2.6, and operators that hand on a LoD whatever they do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.graphs import reference
from support.paddle_operators import op, program

from onernn import Graph, Ragged
from onernn.adapters.paddle.lower import lower
from onernn.adapters.paddle.read import Variable
from onernn.engine.session import unsupported
from onernn.ir.ragged import data_of

X = Ragged(np.arange(12, dtype=np.float32).reshape(3, 4), np.array([0, 1, 3]))
W = np.ones((4, 3), np.float32)
OF_2, OF_3 = 2006002, 3003001


def model(version: int, type_: str, slots: dict[str, str], **attributes: Any) -> Graph:
    """One operator over ragged x (3, 4), a weight w (4, 3) and indices i (3,)."""
    sizes = {"y": (None, None), "w": (4, 3), "i": (3,)}
    declared = {
        name: Variable(name, 7, "int64" if name == "i" else "float32", size, 0, False)
        for name, size in sizes.items()
    }
    parameters = {"w": W, "i": np.array([2, 0, 2])}
    operator = op(type_, slots, {"Out": "y"}, **attributes)
    return lower(replace(program(operator, parameters=parameters, **declared), version=version))


@pytest.mark.parametrize("version, is_ragged", [(OF_2, False), (OF_3, True)])
def test_matmul_keeps_the_lod_in_programs_of_paddle_3_only(version: int, is_ragged: bool) -> None:
    graph = model(version, "matmul_v2", {"X": "x", "Y": "w"})
    (y,) = reference(graph, {"x": X}).values()
    assert isinstance(y, Ragged) == is_ragged
    np.testing.assert_array_equal(data_of(y), X.data @ W)


FUSED = {"fuse_activation": "", "fuse_alpha": 0.0, "fused_output_scale": 1.0}
REFUSED: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "Paddle 3 keeps a LoD that does not fit": (
        "matmul_v2",
        {"X": "x", "Y": "w"},
        {"trans_x": True, "trans_y": True},
    ),
    "attribute fuse_activation='relu'": (
        "fc",
        {"Input": "x", "W": "w"},
        {**FUSED, "fuse_activation": "relu"},
    ),
    "attribute exclusive: Paddle gives a single element itself": (
        "cumsum",
        {"X": "x"},
        {"exclusive": True},
    ),
    "attribute flatten: Paddle keeps": ("cumsum", {"X": "x"}, {"flatten": True}),
    "input Axis: computed at run time": ("cumsum", {"X": "x", "Axis": "i"}, {}),
    "attribute axis=0: Paddle keeps": ("gather", {"X": "x", "Index": "i"}, {}),
    "attribute axes=(0,): Paddle keeps": (
        "strided_slice",
        {"Input": "x"},
        {"axes": (0,), "starts": (0,), "ends": (3,), "strides": (2,)},
    ),
    "attribute strides=(-1,): backwards": (
        "strided_slice",
        {"Input": "x"},
        {"axes": (1,), "starts": (3,), "ends": (0,), "strides": (-1,)},
    ),
    "input StartsTensor: computed": ("strided_slice", {"Input": "x", "StartsTensor": "i"}, {}),
    "input Shape: a LoD under a shape": ("reshape2", {"X": "x", "Shape": "i"}, {}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_exact_is_refused(reason: str) -> None:
    type_, slots, attributes = REFUSED[reason]
    (refusal,) = unsupported(model(OF_3, type_, slots, **attributes))
    assert reason in refusal.reason


@pytest.mark.parametrize("axes, expected", [((0,), X.data[::-1]), ((1,), X.data[:, ::-1])])
def test_flip_turns_rows_under_the_lod_they_had(axes: tuple[int], expected: np.ndarray) -> None:
    graph = model(OF_2, "flip", {"X": "x"}, axis=axes)
    (y,) = reference(graph, {"x": X}).values()
    assert isinstance(y, Ragged) and y.lod == X.lod
    np.testing.assert_array_equal(y.data, expected)


def test_an_fc_as_paddle_3_saves_it_is_a_product() -> None:
    graph = model(OF_3, "fc", {"Input": "x", "W": "w"}, in_num_col_dims=1, **FUSED)
    (y,) = reference(graph, {"x": X}).values()
    np.testing.assert_array_equal(data_of(y), X.data @ W)
