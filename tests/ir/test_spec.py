"""What `Cell` and `RnnSpec` promise: oneDNN's tables, hashing, and refusals that name the field."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from onernn.ir.errors import ShapeError
from onernn.ir.spec import Activation, Cell, RnnSpec

# gates, rows of bias, states, activations: from the RNN developer guide of oneDNN.
TABLE = {
    Cell.RNN_TANH: ("h", 1, "h", ["tanh"]),
    Cell.RNN_RELU: ("h", 1, "h", ["relu"]),
    Cell.RNN_SIGMOID: ("h", 1, "h", ["sigmoid"]),
    Cell.LSTM: ("ifco", 4, "hc", ["sigmoid", "tanh", "tanh"]),
    Cell.GRU: ("uro", 3, "h", ["sigmoid", "tanh"]),
    Cell.LBR_GRU: ("uro", 4, "h", ["sigmoid", "tanh"]),
    Cell.AUGRU: ("uro", 3, "h", ["sigmoid", "tanh"]),
    Cell.LBR_AUGRU: ("uro", 4, "h", ["sigmoid", "tanh"]),
}
each_cell = pytest.mark.parametrize("cell", Cell, ids=lambda cell: cell.name)


@each_cell
def test_a_cell_is_what_onednn_says(cell: Cell) -> None:
    gates, bias_rows, states, activations = TABLE[cell]
    assert cell.gates == tuple(gates)
    assert cell.bias_rows == bias_rows
    assert cell.states == tuple(states)
    assert [a.name for a in cell.activations] == activations
    assert cell.is_gru == (gates == "uro")
    assert cell.linear_before_reset == (bias_rows > len(gates))
    assert cell.has_attention == (cell in (Cell.AUGRU, Cell.LBR_AUGRU))


@each_cell
@pytest.mark.parametrize(
    "write",
    [list, tuple, lambda names: [Activation(n) for n in names], lambda ns: [(n,) for n in ns]],
    ids=["strings", "tuple", "activations", "tuples"],
)
def test_default_activations_spelled_out_are_the_same_spec(cell: Cell, write: Any) -> None:
    silent = RnnSpec(cell, 3, 4)
    spelled = RnnSpec(cell, 3, 4, activations=write(TABLE[cell][3]))
    assert spelled == silent
    assert hash(spelled) == hash(silent)
    assert {silent: "found"}[spelled] == "found"
    assert [a.name for a in spelled.functions] == TABLE[cell][3]


def test_other_activations_are_another_spec() -> None:
    silent = RnnSpec(Cell.GRU, 3, 4)
    hard = RnnSpec(Cell.GRU, 3, 4, activations=["hardsigmoid", "tanh"])
    slope = RnnSpec(Cell.GRU, 3, 4, activations=[("hardsigmoid", 0.2, 0.5), "tanh"])
    assert len({silent, hard, slope}) == 3
    assert slope.functions == (Activation("hardsigmoid", 0.2, 0.5), Activation("tanh"))
    assert [str(a) for a in slope.functions] == ["hardsigmoid(0.2, 0.5)", "tanh"]


def test_every_field_tells_specs_apart() -> None:
    for cell, changes in (
        (
            Cell.GRU,
            {
                "cell": Cell.LBR_GRU,
                "input_size": 5,
                "hidden_size": 5,
                "layers": 2,
                "direction": "right2left",
                "stacking": "onednn",
                "update": "replace",
                "gate_clip": 1.0,
                "activations": ("tanh", "tanh"),
            },
        ),
        (Cell.LSTM, {"projection_size": 2, "peephole": True, "cell_clip": (-1.0, 1.0)}),
    ):
        spec = RnnSpec(cell, 3, 4)
        for name, value in changes.items():
            assert len({spec, replace(spec, **{name: value}), replace(spec)}) == 2
    numpys = RnnSpec(Cell.LSTM, np.int64(2), np.int32(3), cell_clip=[-1, 1])
    same = RnnSpec(Cell.LSTM, 2, 3, cell_clip=(-1.0, 1.0))
    assert numpys == same and hash(numpys) == hash(same)


# Fields that mean nothing or contradict the cell; the message names the first one.
REFUSED: list[tuple[Any, dict[str, Any]]] = [
    *(
        (Cell.LSTM, {name: size})
        for name in ("input_size", "hidden_size", "layers", "projection_size")
        for size in (0, -1, True, 2.0, "3", None)
        if size is not None or name != "projection_size"
    ),
    (Cell.GRU, {"direction": "backwards"}),
    (Cell.GRU, {"stacking": "pytorch"}),
    (Cell.GRU, {"update": "forget"}),
    (Cell.GRU, {"projection_size": 2}),
    (Cell.LBR_GRU, {"peephole": True}),
    (Cell.RNN_TANH, {"cell_clip": (-1, 1)}),
    (Cell.LSTM, {"update": "replace"}),
    (Cell.RNN_RELU, {"update": "replace"}),
    (Cell.LSTM, {"activations": ["sigmoid", "tanh"]}),
    (Cell.GRU, {"activations": []}),
    (Cell.RNN_TANH, {"activations": "ab"}),
    (Cell.GRU, {"gate_clip": -1.0}),
    (Cell.GRU, {"gate_clip": float("nan")}),
    (Cell.LSTM, {"cell_clip": (1.0, -1.0)}),
    (Cell.LSTM, {"cell": "lstm"}),
]


@pytest.mark.parametrize("cell, change", REFUSED, ids=str)
def test_fields_that_contradict_are_refused_by_name(cell: Cell, change: dict[str, Any]) -> None:
    ((name, value),) = change.items()
    error = ShapeError if name.endswith("size") and value != 2 or name == "layers" else ValueError
    with pytest.raises(error, match=rf"^RnnSpec\.{name}\b"):
        RnnSpec(**{"cell": cell, "input_size": 3, "hidden_size": 4, **change})


@pytest.mark.parametrize(
    "direction, projection, directions, recurrent, output",
    [
        ("left2right", None, 1, 4, 4),
        ("right2left", 2, 1, 2, 2),
        ("bidirectional_concat", None, 2, 4, 8),
        ("bidirectional_concat", 2, 2, 2, 4),
        ("bidirectional_sum", 2, 2, 2, 2),
    ],
)
def test_sizes_that_follow(
    direction: Any, projection: int | None, directions: int, recurrent: int, output: int
) -> None:
    spec = RnnSpec(Cell.LSTM, 3, 4, direction=direction, projection_size=projection)
    assert (spec.directions, spec.recurrent_size, spec.output_size, spec.gates) == (
        directions,
        recurrent,
        output,
        4,
    )


def test_one_layer_keeps_all_but_size_and_direction() -> None:
    stack = RnnSpec(
        Cell.LSTM,
        3,
        4,
        layers=2,
        direction="bidirectional_concat",
        stacking="onednn",
        projection_size=2,
        peephole=True,
        activations=("relu", "relu", "relu"),
        gate_clip=3.0,
        cell_clip=(-1.0, 2.0),
    )
    one = stack.one_layer(7, "right2left")
    assert (one.layers, one.input_size, one.direction) == (1, 7, "right2left")
    assert replace(one, layers=2, input_size=3, direction="bidirectional_concat") == stack


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        RnnSpec(Cell.GRU, 3, 4).layers = 2  # type: ignore[misc]
