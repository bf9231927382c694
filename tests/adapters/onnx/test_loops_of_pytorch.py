"""Loops that go through a sequence become layers and scans; others stay loops, or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.onnx_models import check, model, read
from support.onnx_steps import WEIGHTS, X, gru_step, kinds, value

from onernn import Session, UnsupportedError


def over_steps(nodes: list, outputs: list[str], carried: list[str], **more: Any) -> onnx.ModelProto:
    """A Loop with as many turns as X has steps; ``nodes`` read x, which is step t of X."""
    body = helper.make_graph(
        [
            helper.make_node(
                "Gather", ["X", more.get("index", "t")], ["x"], axis=more.get("axis", 0)
            ),
            *nodes,
        ],
        "turn",
        [value("t", TensorProto.INT64, []), value("go", TensorProto.BOOL, [])]
        + [value(f"{name}_in") for name in carried],
        [value(more.get("again", "go"), TensorProto.BOOL, []), *map(value, outputs)],
    )
    results = [f"r{k}" for k in range(len(outputs))]
    around = [
        helper.make_node("Shape", [more.get("of", "X")], ["sizes"]),
        helper.make_node("Gather", ["sizes", "first"], ["turns"], axis=0),
        helper.make_node(
            "Loop", ["turns", more.get("begin", "true"), *carried], results, body=body
        ),
    ]
    constants = {**WEIGHTS, "c0": np.ones((3, 3), np.float32) / 4, "first": np.array(0)}
    constants |= {"true": np.array(True), "axis0": np.array([0]), "two": np.array(2)}
    weights = np.random.default_rng(1).uniform(-0.5, 0.5, (1, 12, 7)).astype(np.float32)
    constants |= {"W4": weights[:, :, :4].copy(), "R4": weights[:, :, 4:].copy()}
    other = {"Z": X[:4]} if more.get("of") == "Z" else {}
    kept = {"going": np.array(True)} if more.get("begin") == "going" else {}
    return model(around, {"X": X, **other, **kept}, results, constants=constants)


def lstm_step(x: str = "x", direction: str = "forward") -> list[onnx.NodeProto]:
    """An LSTM over one step, as PyTorch writes an LSTMCell."""
    return [
        helper.make_node("Unsqueeze", [x, "axis0"], ["x1"]),
        helper.make_node("Unsqueeze", ["h0_in", "axis0"], ["h1"]),
        helper.make_node("Unsqueeze", ["c0_in", "axis0"], ["c1"]),
        helper.make_node("LSTM", ["x1", "W4", "R4", "", "", "h1", "c1"], ["Y", "Yh", "Yc"],
                         hidden_size=3, direction=direction),
        helper.make_node("Squeeze", ["Yh", "axis0"], ["h"]),
        helper.make_node("Squeeze", ["Yc", "axis0"], ["c"]),
        helper.make_node("Identity", ["h"], ["y"]),
    ]  # fmt: skip


def test_a_loop_over_a_layer_of_one_step_becomes_that_layer() -> None:
    proto = over_steps(lstm_step(), ["h", "c", "y"], ["h0", "c0"])
    assert "Rnn" in kinds(proto) and not {"Loop", "Scan"} & kinds(proto)
    check(proto, {"X": X})


def test_states_may_be_carried_in_any_order() -> None:
    proto = over_steps(lstm_step(), ["c", "h", "y"], ["c0", "h0"])
    assert "Rnn" in kinds(proto)
    check(proto, {"X": X})


def test_a_loop_over_a_cell_written_out_becomes_one_layer() -> None:
    steps = [*gru_step("x", "h0_in", "h"), helper.make_node("Identity", ["h"], ["y"])]
    proto = over_steps(steps, ["h", "y"], ["h0"])
    assert "Rnn" in kinds(proto) and not {"Loop", "Scan"} & kinds(proto)
    check(proto, {"X": X})


def test_a_loop_over_steps_of_something_else_becomes_a_scan() -> None:
    add = helper.make_node("Add", ["x", "s0_in"], ["s"])
    proto = over_steps([add, helper.make_node("Neg", ["s"], ["y"])], ["s", "y"], ["s0"])
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros((3, 4), np.float32), "s0"))
    assert "Scan" in kinds(proto) and "Loop" not in kinds(proto)
    check(proto, {"X": X})


OTHER_LOOPS = [
    {"of": "Z"},  # fewer turns than steps
    {"begin": "going"},  # a condition that is fed
    {"axis": 1, "index": "first_"},  # reads the same step in every turn
]


@pytest.mark.parametrize("more", OTHER_LOOPS)
def test_other_loops_stay_loops(more: dict) -> None:
    first = [helper.make_node("Identity", ["first"], ["first_"])]
    nodes = [*first, *gru_step("x", "h0_in", "h"), helper.make_node("Identity", ["h"], ["y"])]
    if "axis" in more:
        more = {"index": "first"}
    proto = over_steps(nodes, ["h", "y"], ["h0"], **more)
    assert "Loop" in kinds(proto)
    feed = {"X": X}
    feed |= {"Z": X[:4]} if more.get("of") == "Z" else {}
    feed |= {"going": np.array(True)} if more.get("begin") == "going" else {}
    check(proto, feed)


@pytest.mark.parametrize(
    "nodes",
    [
        lstm_step(x="xx") + [],
        lstm_step()[:4] + [helper.make_node("Squeeze", ["Yc", "axis0"], ["h"])] + lstm_step()[5:],
    ],
    ids=["another input", "states exchanged"],
)
def test_a_layer_of_one_step_among_other_things_runs_step_by_step(nodes: list) -> None:
    before = [helper.make_node("Neg", ["x"], ["xx"])]
    proto = over_steps(before + nodes, ["h", "c", "y"], ["h0", "c0"])
    assert "Scan" in kinds(proto)
    check(proto, {"X": X})


def with_sequences(steps: list, more: list, axis: int = 0, new_axis: int = 1) -> onnx.ModelProto:
    """Every turn appends to a list, which is stacked behind the loop, as PyTorch writes it."""
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    proto = over_steps(steps, ["h", "c"], ["h0", "c0"])
    node = proto.graph.node[-1]
    node.input.append("list")
    node.output.append("filled")
    (body,) = (each.g for each in node.attribute if each.name == "body")
    body.input.append(helper.make_value_info("list_in", kind))
    body.node.append(helper.make_node("SequenceInsert", ["list_in", "y", *more], ["list_out"]))
    body.output.append(helper.make_value_info("list_out", kind))
    proto.graph.node.insert(0, helper.make_node("SequenceEmpty", [], ["list"], dtype=1))
    last = helper.make_node("ConcatFromSequence", ["filled"], ["Y"], axis=axis, new_axis=new_axis)
    proto.graph.node.append(last)
    proto.graph.output.append(helper.make_value_info("Y", onnx.TypeProto()))
    return proto


PLACES = [(0, 1), (1, 1), (2, 1), (-1, 1), (-2, 1), (0, 0), (1, 0), (-1, 0)]


@pytest.mark.parametrize(("axis", "new_axis"), PLACES)
def test_what_every_turn_appends_is_what_the_loop_collects(axis: int, new_axis: int) -> None:
    proto = with_sequences(lstm_step(), [], axis, new_axis)
    assert "Rnn" in kinds(proto) and "Loop" not in kinds(proto)
    check(proto, {"X": X})


def split(axis: int = 0, keepdims: int = 0, *more: str) -> list[onnx.NodeProto]:
    """How PyTorch takes a value apart: x.unbind(axis)."""
    make = helper.make_node
    return [make("SplitToSequence", ["X", *more], ["parts"], axis=axis, keepdims=keepdims)]


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("more", [[], ["one"]], ids=["", "split"])
def test_elements_of_an_axis_are_found_by_number(axis: int, keepdims: int, more: list) -> None:
    nodes = split(axis, keepdims, *more)
    nodes.append(helper.make_node("SequenceAt", ["parts", "place"], ["y"]))
    nodes.append(helper.make_node("SequenceLength", ["parts"], ["n"]))
    for place in (1, -1):
        constants = {"one": np.array(1), "place": np.array(place)}
        check(model(nodes, {"X": X}, ["y", "n"], constants=constants), {"X": X})


def test_a_loop_over_elements_of_an_axis_becomes_a_layer() -> None:
    proto = with_sequences(lstm_step(), [])
    loop = next(node for node in proto.graph.node if node.op_type == "Loop")
    (body,) = (each.g for each in loop.attribute if each.name == "body")
    body.node[0].CopyFrom(helper.make_node("SequenceAt", ["parts", "t"], ["x"]))
    for node in reversed(split()):
        proto.graph.node.insert(0, node)
    assert "Rnn" in kinds(proto) and not {"Loop", "Scan"} & kinds(proto)
    check(proto, {"X": X})


def test_what_inserts_at_the_front_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="values of type sequence are not supported"):
        Session(read(with_sequences(lstm_step(), ["first"])))


@pytest.mark.parametrize(
    "nodes, reason",
    [
        (split(0, 0, "two"), "only parts of one element"),
        (split(3), "axis=3 of a value whose axes nobody tells"),
    ],
)
def test_other_parts_are_refused(nodes: list, reason: str) -> None:
    nodes = [*nodes, helper.make_node("SequenceAt", ["parts", "two"], ["y"])]
    with pytest.raises(UnsupportedError, match=reason):
        Session(read(model(nodes, {"X": X}, ["y"], constants={"two": np.array(2)})))


def test_a_sequence_that_no_loop_fills_is_refused() -> None:
    nodes = [
        helper.make_node("SequenceEmpty", [], ["s"], dtype=1),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0, new_axis=1),
    ]
    with pytest.raises(UnsupportedError, match="a sequence that no loop fills"):
        Session(read(model(nodes, {"X": X}, ["y"])))
