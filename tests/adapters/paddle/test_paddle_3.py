"""What Paddle 3 means otherwise than 2.6, and operators that hand on a LoD whatever they do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.graphs import reference
from support.paddle_operators import op, program

from onernn import Graph, Ragged
from onernn.adapters.paddle.lower import lower
from onernn.adapters.paddle.read import Operator, Variable
from onernn.engine.session import find_unsupported
from onernn.ir.ragged import data_of

X = Ragged(np.arange(12, dtype=np.float32).reshape(3, 4), np.array([0, 1, 3]))
W = np.ones((4, 3), np.float32)
OF_2, OF_3 = 2006002, 3003001


def model(version: int, operator: Operator) -> Graph:
    """One operator over ragged x (3, 4), a weight w (4, 3) and indices i (3,)."""
    sizes = {"y": (None, None), "w": (4, 3), "i": (3,)}
    declared = {
        name: Variable(name, 7, "int64" if name == "i" else "float32", size, 0, False)
        for name, size in sizes.items()
    }
    parameters = {"w": W, "i": np.array([2, 0, 2])}
    return lower(replace(program(operator, parameters=parameters, **declared), version=version))


@pytest.mark.parametrize("version, is_ragged", [(OF_2, False), (OF_3, True)])
def test_matmul_keeps_the_lod_in_programs_of_paddle_3_only(version: int, is_ragged: bool) -> None:
    graph = model(version, op("matmul_v2 X=x Y=w -> Out=y"))
    (y,) = reference(graph, {"x": X}).values()
    assert isinstance(y, Ragged) == is_ragged
    np.testing.assert_array_equal(data_of(y), X.data @ W)


FUSED = {"fuse_activation": "", "fuse_alpha": 0.0, "fused_output_scale": 1.0}
REFUSED = {
    "input X: Paddle keeps a LoD": op("matmul_v2 X=x Y=w -> Out=y", trans_x=True, trans_y=True),
    "attribute fuse_activation='relu'": op(
        "fc Input=x W=w -> Out=y", **FUSED | {"fuse_activation": "relu"}
    ),
    "attribute exclusive=True: ": op("cumsum X=x -> Out=y", exclusive=True),
    "attribute flatten=True: ": op("cumsum X=x -> Out=y", flatten=True),
    "input Axis: ": op("cumsum X=x Axis=i -> Out=y"),
    "attribute axis=0: ": op("gather X=x Index=i -> Out=y"),
    "attribute axes=(0,): ": op(
        "strided_slice Input=x -> Out=y", axes=(0,), starts=(0,), ends=(3,), strides=(2,)
    ),
    "attribute strides=(-1,): ": op(
        "strided_slice Input=x -> Out=y", axes=(1,), starts=(3,), ends=(0,), strides=(-1,)
    ),
    "input StartsTensor: ": op("strided_slice Input=x StartsTensor=i -> Out=y"),
    "input Shape: ": op("reshape2 X=x Shape=i -> Out=y"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_exact_is_refused(reason: str) -> None:
    (refusal,) = find_unsupported(model(OF_3, REFUSED[reason]))
    assert reason in refusal.reason


@pytest.mark.parametrize("version, end", [(OF_2, -1), (OF_3, -(2**31))])
def test_a_slice_from_the_last_element_to_the_first_is_read(version: int, end: int) -> None:
    places = {"axes": (1,), "starts": (2**31 - 1,), "ends": (end,), "strides": (-1,)}
    graph = model(version, op("strided_slice Input=x -> Out=y", **places))
    np.testing.assert_array_equal(data_of(reference(graph, {"x": X})["y"]), X.data[:, ::-1])
    other = OF_2 + OF_3 - version
    assert find_unsupported(model(other, op("strided_slice Input=x -> Out=y", **places)))


@pytest.mark.parametrize("version", [OF_3, 4], ids=["pdmodel", "pir"])
def test_negative_indices_count_from_the_end_in_programs_of_paddle_3(version: int) -> None:
    rows = {name: Variable(name, 7, "float32", (None, 4), 0, False) for name in "xy"}
    select = op("index_select X=x Index=i -> Out=y", dim=0)
    graph = program(select, parameters={"i": np.array([-1, 0])}, **rows)
    (y,) = reference(lower(replace(graph, version=version)), {"x": X.data}).values()
    np.testing.assert_array_equal(y, X.data[[-1, 0]])


def test_an_fc_as_paddle_3_saves_it_is_a_product() -> None:
    graph = model(OF_3, op("fc Input=x W=w -> Out=y", in_num_col_dims=1, **FUSED))
    (y,) = reference(graph, {"x": X}).values()
    np.testing.assert_array_equal(data_of(y), X.data @ W)
