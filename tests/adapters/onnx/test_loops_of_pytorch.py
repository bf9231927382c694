"""Loops that go through a sequence become layers and scans; others stay loops, or are refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.arrays import uniform
from support.onnx_models import check, parsed, read
from support.onnx_steps import WEIGHTS, X, gru_step, kinds

from onernn import Session, UnsupportedError

SIZED = uniform(1, 12, 7, seed=1, bound=0.5)
CONSTANTS = {
    **WEIGHTS,
    "c0": np.ones((3, 3), np.float32) / 4,
    "s0": np.zeros((3, 4), np.float32),
    "first": np.array(0),
    "true": np.array(True),
    "axis0": np.array([0]),
    "two": np.array(2),
    "W4": SIZED[:, :, :4].copy(),
    "R4": SIZED[:, :, 4:].copy(),
}
GATHER = "x = Gather <axis = 0> (X, t)"


def over_steps(
    steps: str,
    outputs: str,
    carried: str,
    take: str = GATHER,
    *,
    of: str = "X",
    begin: str = "true",
    before: str = "",
    behind: str = "",
    made: str = "",
) -> onnx.ModelProto:
    """A Loop with as many turns as X has steps; ``steps`` read x, which is step t of X.

    ``outputs``: of the body. ``before``, ``behind``: around the loop, which make ``made``, too.
    """
    names, inputs = outputs.split(), carried.split()
    results = [f"r{k}" for k in range(len(names))]

    def typed(name: str) -> str:
        return f"seq(float[]) {name}" if name.startswith("list") else f"float[] {name}"

    return parsed(
        f"""(float[6, 3, 4] X, float[4, 3, 4] Z, bool going) => ({made or ", ".join(results)}) {{
        {before}
        sizes = Shape ({of})
        turns = Gather <axis = 0> (sizes, first)
        {", ".join(results)} = Loop (turns, {begin}, {", ".join(inputs)}) <body = turn
            (int64 t, bool go, {", ".join(typed(f"{name}_in") for name in inputs)})
            => (bool go, {", ".join(map(typed, names))}) {{
            {take}
            {steps}
        }}>
        {behind}
        }}""",
        CONSTANTS,
    )


FEED = {"X": X, "Z": X[:4], "going": np.array(True)}


def lstm_step(x: str = "x", h: str = "Yh") -> str:
    """An LSTM over one step, as PyTorch writes an LSTMCell."""
    return f"""
        x1 = Unsqueeze ({x}, axis0)
        h1 = Unsqueeze (h0_in, axis0)
        c1 = Unsqueeze (c0_in, axis0)
        Y, Yh, Yc = LSTM <hidden_size = 3> (x1, W4, R4, , , h1, c1)
        h = Squeeze ({h}, axis0)
        c = Squeeze (Yc, axis0)
        y = Identity (h)
        """


GRU = gru_step("h0_in", "h") + "y = Identity (h)"


def checked(proto: onnx.ModelProto) -> set[str]:
    """What is left of it; its numbers are ONNX Runtime's."""
    check(proto, FEED)
    return kinds(proto)


@pytest.mark.parametrize(
    "steps, outputs, carried",
    [
        (lstm_step(), "h c y", "h0 c0"),
        (lstm_step(), "c h y", "c0 h0"),
        (GRU, "h y", "h0"),
    ],
    ids=["a layer of one step", "states in another order", "a cell written out"],
)
def test_a_loop_over_a_cell_becomes_a_layer(steps: str, outputs: str, carried: str) -> None:
    found = checked(over_steps(steps, outputs, carried))
    assert "Rnn" in found and not {"Loop", "Scan"} & found


def test_a_loop_over_steps_of_something_else_becomes_a_scan() -> None:
    found = checked(over_steps("s = Add (x, s0_in) y = Neg (s)", "s y", "s0"))
    assert "Scan" in found and "Loop" not in found


@pytest.mark.parametrize(
    "more",
    [
        {"of": "Z"},  # fewer turns than steps
        {"begin": "going"},  # a condition that is fed
        {"take": "x = Gather <axis = 0> (X, first)"},  # reads the same step in every turn
    ],
)
def test_other_loops_stay_loops(more: dict[str, str]) -> None:
    assert "Loop" in checked(over_steps(GRU, "h y", "h0", **more))


@pytest.mark.parametrize("changed", [{"x": "xx"}, {"h": "Yc"}], ids=["input", "states"])
def test_a_layer_of_one_step_among_other_things_runs_step_by_step(changed: dict[str, str]) -> None:
    steps = "xx = Neg (x)" + lstm_step(**changed)
    assert "Scan" in checked(over_steps(steps, "h c y", "h0 c0"))


def with_sequences(
    place: str = "", axis: int = 0, new_axis: int = 1, **more: str
) -> onnx.ModelProto:
    """Every turn appends to a list, which is stacked behind the loop, as PyTorch writes it."""
    join = f"Y = ConcatFromSequence <axis = {axis}, new_axis = {new_axis}> (r2)"
    insert = f"list_out = SequenceInsert (list_in, y{place})"
    empty = f"{more.pop('before', '')} list = SequenceEmpty <dtype = 1> ()"
    return over_steps(
        lstm_step() + insert, "h c list_out", "h0 c0 list", before=empty, behind=join,
        made="r0, r1, Y", **more,
    )  # fmt: skip


PLACES = [(0, 1), (1, 1), (2, 1), (-1, 1), (-2, 1), (0, 0), (1, 0), (-1, 0)]


@pytest.mark.parametrize("axis, new_axis", PLACES)
def test_what_every_turn_appends_is_what_the_loop_collects(axis: int, new_axis: int) -> None:
    found = checked(with_sequences("", axis, new_axis))
    assert "Rnn" in found and "Loop" not in found


def split(axis: int = 0, keepdims: int = 0, more: str = "") -> str:
    """How PyTorch takes a value apart: x.unbind(axis)."""
    return f"parts = SplitToSequence <axis = {axis}, keepdims = {keepdims}> (X{more})"


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("more", ["", ", one"], ids=["", "split"])
def test_elements_of_an_axis_are_found_by_number(axis: int, keepdims: int, more: str) -> None:
    nodes = (
        f"{split(axis, keepdims, more)} y = SequenceAt (parts, place) n = SequenceLength (parts)"
    )
    for place in (1, -1):
        constants = {"one": np.array(1), "place": np.array(place)}
        check(parsed(f"(float[6, 3, 4] X) => (y, n) {{ {nodes} }}", constants), {"X": X})


def test_a_loop_over_elements_of_an_axis_becomes_a_layer() -> None:
    found = checked(with_sequences(before=split(), take="x = SequenceAt (parts, t)"))
    assert "Rnn" in found and not {"Loop", "Scan"} & found


def refused(reason: str, proto: onnx.ModelProto) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        Session(read(proto))


def test_what_inserts_at_the_front_is_refused() -> None:
    refused("type sequence is not supported", with_sequences(", first"))


@pytest.mark.parametrize(
    "nodes, reason",
    [
        (split(0, 0, ", two"), "expected 1, parts of one element"),
        (split(3), "axis=3: expected an axis of x"),
    ],
)
def test_other_parts_are_refused(nodes: str, reason: str) -> None:
    text = f"(float[6, 3, 4] X) => (y) {{ {nodes} y = SequenceAt (parts, two) }}"
    refused(reason, parsed(text, {"two": np.array(2)}))


def test_a_sequence_that_no_loop_fills_is_refused() -> None:
    nodes = "s = SequenceEmpty <dtype = 1> () y = ConcatFromSequence <axis = 0, new_axis = 1> (s)"
    refused("a sequence is supported only if", parsed(f"(float[6, 3, 4] X) => (y) {{ {nodes} }}"))
