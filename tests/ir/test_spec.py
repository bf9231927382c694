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


@pytest.mark.parametrize(
    "change",
    [
        {"cell": Cell.LSTM},
        {"input_size": 5},
        {"hidden_size": 5},
        {"layers": 2},
        {"direction": "right2left"},
        {"stacking": "onednn"},
        {"update": "replace"},
        {"gate_clip": 1.0},
        {"activations": ("tanh", "tanh")},
    ],
    ids=str,
)
def test_every_field_of_any_cell_tells_specs_apart(change: dict[str, Any]) -> None:
    spec = RnnSpec(Cell.GRU, 3, 4)
    assert replace(spec, **change) != spec
    assert {spec, replace(spec, **change), replace(spec)} == {spec, replace(spec, **change)}


@pytest.mark.parametrize(
    "change", [{"projection_size": 2}, {"peephole": True}, {"cell_clip": (-1.0, 1.0)}], ids=str
)
def test_every_field_of_lstm_tells_specs_apart(change: dict[str, Any]) -> None:
    spec = RnnSpec(Cell.LSTM, 3, 4)
    assert len({spec, replace(spec, **change), replace(spec)}) == 2


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "3"], ids=repr)
@pytest.mark.parametrize("name", ["input_size", "hidden_size", "layers", "projection_size"])
def test_sizes_below_one_are_refused_by_name(name: str, size: Any) -> None:
    sizes: dict[str, Any] = {"input_size": 3, "hidden_size": 4, name: size}
    with pytest.raises(ShapeError) as error:
        RnnSpec(Cell.LSTM, **sizes)
    assert str(error.value) == f"RnnSpec.{name}: expected an int of at least 1, got {size!r}"


@pytest.mark.parametrize("name", ["input_size", "hidden_size", "layers"])
def test_sizes_that_must_be_there_are(name: str) -> None:
    sizes: dict[str, Any] = {"input_size": 3, "hidden_size": 4, name: None}
    with pytest.raises(ShapeError, match=rf"RnnSpec\.{name}: .*, got None"):
        RnnSpec(Cell.GRU, **sizes)


@pytest.mark.parametrize(
    ("cell", "change", "message"),
    [
        (Cell.GRU, {"direction": "backwards"}, r"direction: expected one of .*, got 'backwards'"),
        (Cell.GRU, {"stacking": "pytorch"}, r"stacking: expected one of .*, got 'pytorch'"),
        (Cell.GRU, {"update": "forget"}, r"update: expected one of .*, got 'forget'"),
        (Cell.GRU, {"projection_size": 2}, r"projection_size belongs to LSTM, not to GRU"),
        (Cell.LBR_GRU, {"peephole": True}, r"peephole belongs to LSTM, not to LBR_GRU"),
        (Cell.RNN_TANH, {"cell_clip": (-1, 1)}, r"cell_clip belongs to LSTM, not to RNN_TANH"),
        (Cell.LSTM, {"update": "replace"}, r"update belongs to GRU cells, not to LSTM"),
        (Cell.RNN_RELU, {"update": "replace"}, r"update belongs to GRU cells, not to RNN_RELU"),
        (Cell.LSTM, {"activations": ["sigmoid", "tanh"]}, r"activations: LSTM has 3, got 2"),
        (Cell.GRU, {"activations": []}, r"activations: GRU has 2, got 0"),
        (Cell.RNN_TANH, {"activations": "ab"}, r"activations: RNN_TANH has 1, got 2"),
    ],
)
def test_fields_that_contradict_are_refused_by_name(
    cell: Cell, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"^RnnSpec\.{message}"):
        RnnSpec(cell, 3, 4, **change)


@each_cell
def test_what_a_cell_does_have_is_accepted(cell: Cell) -> None:
    if cell is Cell.LSTM:
        RnnSpec(cell, 3, 4, projection_size=2, peephole=True, cell_clip=(-1, 1))
    if cell.is_gru:
        RnnSpec(cell, 3, 4, update="replace")


@pytest.mark.parametrize(
    ("direction", "projection", "directions", "recurrent", "output"),
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


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"cell": "lstm"}, "expected a Cell, got 'lstm'"),
        ({"cell": Cell.GRU, "gate_clip": -1.0}, "expected a positive bound"),
        ({"cell": Cell.GRU, "gate_clip": float("nan")}, "expected a positive bound"),
        ({"cell": Cell.LSTM, "cell_clip": (1.0, -1.0)}, r"expected \(min, max\)"),
    ],
)
def test_bounds_and_cells_that_mean_nothing_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RnnSpec(input_size=2, hidden_size=3, **fields)


def test_numpy_integers_are_sizes_and_a_list_is_a_clip() -> None:
    spec = RnnSpec(Cell.LSTM, np.int64(2), np.int32(3), cell_clip=[-1, 1])
    assert spec == RnnSpec(Cell.LSTM, 2, 3, cell_clip=(-1.0, 1.0)) and hash(spec)
