"""What the rules of layers and dense operators refuse, by reason, without Paddle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.graphs import reference
from support.paddle_operators import op, program

from onernn import BudgetError, Cell, Ragged, RnnSpec, Session, UnsupportedError, load, verify
from onernn.adapters.paddle.lower import lower
from onernn.adapters.paddle.read import Program, Variable
from onernn.ir.rnn import check_cells
from onernn.verification.recording import read_arrays

F32 = np.float32


def variable(name: str, dtype: str, *shape: int | None, lod: int = 0) -> Variable:
    return Variable(name, 7, dtype, shape, lod, False)


def one(operator: Any, parameters: dict[str, Any] | None = None, **declared: Variable) -> Program:
    return program(operator, parameters=parameters, **declared)


LSTM = {"w": np.zeros((1, 4), F32), "b": np.zeros((1, 7), F32)}
LSTM_SLOTS = {"Input": "x", "Weight": "w", "Bias": "b"}
RNN = {"w_ih": np.zeros((3, 4), F32), "w_hh": np.zeros((3, 1), F32)}
RNN |= {"b_ih": np.zeros(3, F32), "b_hh": np.zeros(3, F32), "h": np.zeros((1, 2, 1), F32)}
RNN_SLOTS = {"Input": "x", "PreState": "h", "WeightList": ("w_ih", "w_hh", "b_ih", "b_hh")}
SIZES = {"input_size": 4, "hidden_size": 1}
STATISTICS = {k: np.ones(4, F32) for k in "sbmv"}
NORM = {"X": "x", "Scale": "s", "Bias": "b", "Mean": "m", "Variance": "v"}


def lstm(slots: dict[str, Any] = LSTM_SLOTS, arrays: dict[str, Any] = LSTM, **more: Any) -> Program:
    return one(op("lstm", slots, {"Hidden": "y"}, **more), arrays)


def rnn(slots: dict[str, Any] = RNN_SLOTS, arrays: dict[str, Any] = RNN, **more: Any) -> Program:
    attributes = {"mode": "GRU", "is_test": True, **SIZES, **more}
    return one(op("rnn", slots, {"Out": "y"}, **attributes), arrays)


REFUSED = {
    "inputs H0, C0: expected both or none": lstm({**LSTM_SLOTS, "H0": "w"}),
    "Bias: expected (1, 4*O), got (1, 7)": lstm(use_peepholes=False),
    "attribute is_backwards": lstm(is_backwards=True),
    "input Weight is missing": lstm({"Input": "x", "Bias": "b"}),
    "weights: expected float32, got float64": lstm(arrays={**LSTM, "w": np.zeros((1, 4))}),
    "gate_activation='softmax': expected one of": lstm(gate_activation="softmax"),
    "cell_activation='softsign': expected one of": lstm(cell_activation="softsign"),
    "mode='PEEPHOLE': expected one of": rnn(mode="PEEPHOLE"),
    "WeightList: expected 4000000000 arrays, got 4": rnn(num_layers=10**9),
    "WeightList: expected 0 arrays": rnn(num_layers=0),
    "weights layer: expected": rnn(input_size=5),
    "its weights: expected one dtype, got float32 and float64": rnn(
        arrays={**RNN, "w_hh": np.zeros((3, 1))}
    ),
    "attribute paddings=[1, 0, 0, 0]: expected none on axis 0": one(
        op("pad X=x -> Out=y", paddings=[1, 0, 0, 0]), x=variable("x", "float32", None, 4, lod=1)
    ),
    "input PreState: expected 1 states for LBR_GRU, got 0": rnn(
        {k: v for k, v in RNN_SLOTS.items() if k != "PreState"}
    ),
    "attribute layers=2: expected 1 or more, and 4 arrays": one(
        op("multi_gru X=x WeightX=w WeightH=w -> Hidden=y", layers=2),
        {"w": np.zeros((1, 3), F32)},
    ),
    "attention over the whole sequence in each step": one(op("attention_lstm X=x -> Hidden=y")),
    "is_test=False, use_global_stats=False: expected": one(
        op("batch_norm", NORM, {"Y": "y"}), STATISTICS
    ),
    "input Y: expected one of bool, float32": one(
        op("mul X=x Y=w -> Out=y"),
        {"w": np.zeros((4, 4), np.float16)},
        w=variable("w", "float16", 4, 4),
    ),
    "attribute out_dtype=4: expected one of bool": one(
        op("cast X=x -> Out=y", in_dtype=5, out_dtype=4)
    ),
    "got no dtype": one(op("cast X=x -> Out=y", out_dtype=99)),
    "contextLength=1000000": one(
        op("sequence_conv X=x Filter=w -> Out=y", contextLength=10**6),
        {"w": np.zeros((4, 4), F32)},
    ),
    "pooltype='MEDIAN'": one(op("sequence_pool X=x -> Out=y", pooltype="MEDIAN")),
    "ref_level=3": one(op("sequence_expand X=x Y=x -> Out=y", ref_level=3)),
    "attributes sections, num: expected 1 parts": one(op("split X=x -> Out=y", num=3, axis=1)),
    "input Y: expected a LoD, or offsets as integers, got float32": one(
        op("lod_reset X=x Y=w -> Out=y"), {"w": np.zeros(4, F32)}
    ),
    "input Y, attribute target_lod: expected one": one(op("lod_reset X=x -> Out=y")),
    "attribute axes=(4,): expected axes of up to 2, got 4": one(
        op("unsqueeze2 X=x -> Out=y", axes=(4,))
    ),
    "attributes kernels=(2,), strides=(1, 1), paddings=(0, 0, 0, 0)": one(
        op("im2sequence X=x -> Out=y", kernels=(2,)), x=variable("x", "float32", None, 1, 4, 4)
    ),
    "attribute win_size=1048577": one(op("sequence_enumerate X=x -> Out=y", win_size=2**20 + 1)),
    "attribute new_dim=0": one(op("sequence_reshape X=x -> Out=y", new_dim=0)),
    "attribute axis=0: expected 1 or more": one(op("flatten2 X=x -> Out=y", axis=0)),
    "transpose_X=True, transpose_Y=False: expected False": one(
        op("matmul X=x Y=w -> Out=y", transpose_X=True), {"w": np.zeros(4, F32)}
    ),
    "input ValueTensor: expected at most 2 axes, got 3": one(
        op("set_value Input=x ValueTensor=w -> Out=y"), {"w": np.zeros((1, 1, 4), F32)}
    ),
    "attributes values, bool_values, fp32_values": one(
        op("set_value Input=x -> Out=y", values=(1.0,), fp32_values=(1.0,), shape=(1,))
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_exact_is_refused_with_its_reason(reason: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(reason)):
        Session(lower(REFUSED[reason]), backend="reference")


def test_operators_that_no_paddle_here_runs_compute_their_formulas() -> None:
    """masked_fill came with Paddle 3, of pad2d 2.6.2 has no kernel."""
    x = np.arange(24, dtype=F32).reshape(1, 2, 3, 4)
    pad = op("pad2d X=x -> Out=y", paddings=(1, 0, 2, 1), mode="reflect")
    image = variable("x", "float32", None, 2, 3, 4)
    (y,) = reference(lower(one(pad, x=image)), {"x": x}).values()
    assert_array_equal(y, np.pad(x, [(0, 0), (0, 0), (1, 0), (2, 1)], "reflect"))
    fill = op("masked_fill X=x Mask=m Value=v -> Out=y")
    arrays = {"m": np.array([True, False, True, False]), "v": np.array(2.5, F32)}
    declared = {"x": variable("x", "float32", None, 4), "m": variable("m", "bool", 4)}
    (y,) = reference(lower(one(fill, arrays, **declared)), {"x": x[0, 0]}).values()
    assert_array_equal(y, np.where(arrays["m"], F32(2.5), x[0, 0]))


def test_a_norm_that_is_called_twice_reads_the_statistics_of_training_twice() -> None:
    """The operator also names them as outputs, which only training changes."""
    outputs = {"MeanOut": "m", "VarianceOut": "v"}
    norms = [
        op("batch_norm", {**NORM, "X": x}, {"Y": y, **outputs}, is_test=True, epsilon=0.0)
        for x, y in (("x", "z"), ("z", "y"))
    ]
    statistics = {**STATISTICS, "m": np.full(4, 3, F32), "v": np.full(4, 4, F32)}
    x = np.arange(8, dtype=F32).reshape(2, 4)
    model = lower(program(*norms, parameters=statistics, x=variable("x", "float32", None, 4)))
    (y,) = reference(model, {"x": x}).values()
    once = (x - 3) / 2 + 1
    assert_array_equal(y, (once - 3) / 2 + 1)


def test_sequences_are_cut_thinned_and_listed_by_their_own_steps() -> None:
    words = Ragged(np.array([[5], [1], [5], [2], [9]]), [0, 2, 2, 5])
    declared = {"x": variable("x", "int64", None, 1, lod=1)}

    def run(operator: Any, **parameters: Any) -> tuple[Any, Any]:
        model = lower(one(operator, parameters, **declared))
        (y,) = reference(model, {"x": words}).values()
        return y.data.tolist(), y.offsets.tolist()

    erased = run(op("sequence_erase X=x -> Out=y", tokens=(5,)))
    assert erased == ([[1], [2], [9]], [0, 1, 1, 3])
    listed = run(op("sequence_enumerate X=x -> Out=y", win_size=2, pad_value=7))
    assert listed == ([[5, 1], [1, 7], [5, 2], [2, 9], [9, 7]], [0, 2, 2, 5])
    places = {"first": np.array([[1], [0], [1]]), "count": np.array([[1], [0], [2]])}
    cut = run(op("sequence_slice X=x Offset=first Length=count -> Out=y"), **places)
    assert cut == ([[1], [2], [9]], [0, 1, 1, 3])


def test_a_constant_that_would_fill_memory_is_an_error_of_the_run() -> None:
    fill = op("fill_constant -> Out=y", shape=(2**31, 2**31), dtype=5, value=1.0)
    session = Session(lower(program(fill)), backend="reference")
    with pytest.raises(BudgetError, match="at most"):
        session.run({"x": Ragged(np.zeros((1, 4), F32), [0, 1])})


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_narrow_parameters_are_widened_exactly_by_a_cast(kind: str) -> None:
    """As read, a bfloat16 is a float32 of the same value already."""
    values = np.array([[1.5, -0.0, 65504, 2**-14]], np.float16)
    stored = values if kind == "float16" else values.astype(F32)
    cast = op("cast X=w -> Out=wide", in_dtype=4, out_dtype=5)
    add = op("elementwise_add X=x Y=wide -> Out=y")
    declared = {"w": variable("w", kind, 1, 4), "wide": variable("wide", "float32", 1, 4)}
    model = lower(program(cast, add, parameters={"w": stored}, **declared))
    x = Ragged(np.zeros((2, 4), F32), [0, 2])
    got = reference(model, {"x": x})["y"]
    assert_array_equal(got.data, np.repeat(values.astype(F32), 2, axis=0))
    assert got.data.dtype == F32


def test_a_value_in_float16_that_is_computed_is_not_cast() -> None:
    cast = op("cast X=x -> Out=y", in_dtype=4, out_dtype=5)
    with pytest.raises(UnsupportedError, match="input X: .*, got float16"):
        Session(lower(program(cast, x=variable("x", "float16", None, 4))), backend="reference")


def test_cells_of_every_word_are_computed_only_where_somebody_looks(data: Path) -> None:
    model = load(data / "paddle" / "lstm_cell_used")
    arrays = read_arrays(data / "paddle" / "lstm_cell_used" / "io.npz")
    hidden = model.outputs[0]
    alone = type(model)(model.name, model.inputs, (hidden,), model.nodes, model.constants).prune()
    assert "the cell of every word" in Session(model, backend="reference").explain()
    assert "the cell of every word" not in Session(alone, backend="reference").explain()
    given = {key for key in arrays if "in__" in key or "lod__" in key and "out" not in key}
    kept = {key: arrays[key] for key in arrays if key in given or hidden.name in key}
    assert verify(alone, kept, backend="reference").passed


def test_cells_of_a_stack_are_refused() -> None:
    check_cells(RnnSpec(Cell.LSTM, 4, 3, peephole=True, direction="right2left"))
    for more in (
        {"layers": 2},
        {"direction": "bidirectional_concat"},
        {"projection_size": 2},
        {"cell_clip": (-1.0, 1.0)},
        {"gate_clip": 1.0},
        {"input_forget": True},
    ):
        with pytest.raises(UnsupportedError, match="one LSTM"):
            check_cells(RnnSpec(Cell.LSTM, 4, 3, **more))
    with pytest.raises(UnsupportedError, match="one LSTM"):
        check_cells(RnnSpec(Cell.GRU, 4, 3))
