"""A layer beyond what somebody can run: the reason names who, the cell and what is too much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onernn import Cell, RnnSpec, RnnWeights
from onernn.ir.rnn import Limits, why_not
from onernn.reorders.layers import SIMPLE

PLAIN = replace(
    SIMPLE,
    who="the box",
    kind="u8",
    cells=(Cell.LSTM, Cell.GRU),
    directions=("left2right", "right2left"),
    dtypes=("float32",),
)


def reason(cell: Cell, limits: Limits = PLAIN, *, projected: bool = False, **options: Any) -> str:
    dtype = options.pop("dtype", np.float32)
    spec = RnnSpec(cell, 2 * len(cell.gates) if projected else 3, 2, **options)
    one = np.zeros((1, spec.directions, 1, spec.gates, 2), dtype)
    return why_not(spec, [RnnWeights(None if projected else one, one)] * spec.layers, limits)


@pytest.mark.parametrize(
    "options, told",
    [
        ({"cell": Cell.AUGRU}, "the box has no u8 GRU with attention (AUGRU)"),
        ({"direction": "bidirectional_sum"}, "the box has no u8 layers that run bidirectional_sum"),
        ({"stacking": "onednn", "layers": 2}, "stacking='onednn'"),
        (
            {"activations": ("relu", "tanh", "tanh")},
            "the box has no u8 LSTM with functions relu, tanh, tanh, only with sigmoid, tanh, tanh",
        ),
        (
            {"cell": Cell.GRU, "activations": ("tanh", "tanh")},
            "GRU with functions tanh, tanh, only with sigmoid",
        ),
        ({"cell": Cell.GRU, "update": "replace"}, "GRU that replaces with its update gate"),
        ({"gate_clip": 3.0}, "LSTM with clipped gates"),
        ({"cell_clip": (-1, 1)}, "LSTM with a clipped cell state"),
        ({"input_forget": True}, "LSTM with coupled input and forget gates"),
        ({"peephole": True}, "LSTM with peepholes"),
        ({"projection_size": 1}, "LSTM with a projection"),
        ({"projected": True}, "LSTM whose input is projected already"),
        ({"dtype": np.float64}, "the box has no u8 LSTM in float64"),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
def test_what_is_beyond_the_limits_is_named_and_without_limits_is_not(
    options: dict[str, Any], told: str
) -> None:
    options = {"cell": Cell.LSTM, **options}
    assert told in reason(**options)
    assert reason(**options, limits=Limits(who="all")) == ""


@pytest.mark.parametrize("cell", [Cell.LSTM, Cell.GRU])
def test_what_is_within_the_limits_has_no_reason(cell: Cell) -> None:
    assert reason(cell) == "" and reason(cell, layers=3, direction="right2left") == ""


def test_stacks_may_be_beyond_the_limits() -> None:
    one = Limits(who="the box", stacks=False)
    assert reason(Cell.GRU, one) == "" and "no stacks" in reason(Cell.GRU, one, layers=2)


def test_functions_are_named_by_list_and_by_parameters() -> None:
    some = Limits(who="the box", functions=("relu", "elu"), parameters=False)
    assert reason(Cell.GRU, some, activations=("relu", "elu")) == ""
    assert "GRU with function softsign, only with relu, elu" in reason(
        Cell.GRU, some, activations=("softsign", "elu")
    )
    wanted = (("elu", 0.5), "relu")
    assert "with function elu(0.5), only with those without" in reason(
        Cell.GRU, some, activations=wanted
    )
