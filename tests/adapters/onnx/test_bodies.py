"""If, Loop, Scan and functions: graphs inside ONNX graphs, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.onnx_models import check, model, ours, read, theirs
from support.onnx_steps import WEIGHTS, X, gru_step, kinds, value

from onernn import BudgetError, Session, UnsupportedError


def scan(**attributes: Any) -> onnx.ModelProto:
    body = helper.make_graph(
        [*gru_step("x", "h", "after"), helper.make_node("Identity", ["after"], ["y"])],
        "step",
        [value("h"), value("x")],
        [value("after"), value("y")],
    )
    node = helper.make_node(
        "Scan", ["h0", "X"], ["last", "Y"], body=body, num_scan_inputs=1, **attributes
    )
    return model([node], {"X": X}, ["last", "Y"], constants=WEIGHTS)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scan_input_directions": [1], "scan_output_directions": [1]},
        {"scan_output_axes": [1]},
        {"scan_output_axes": [-1], "scan_input_directions": [1]},
    ],
)
def test_a_cell_inside_a_scan_runs_as_in_onnx_runtime(attributes: dict) -> None:
    check(scan(**attributes), {"X": X})


@pytest.mark.parametrize("axes", [{}, {"scan_output_axes": [1]}, {"scan_output_axes": [-1]}])
def test_a_cell_inside_a_scan_becomes_a_layer(axes: dict) -> None:
    found = kinds(scan(**axes))
    assert "Rnn" in found and "Scan" not in found


def test_a_scan_in_two_directions_stays_one() -> None:
    assert "Scan" in kinds(scan(scan_input_directions=[1]))


def test_a_scan_along_another_axis_goes_through_that() -> None:
    proto = scan(scan_input_axes=[1])
    x = np.ascontiguousarray(X.swapaxes(0, 1))
    for sizes, size in zip(proto.graph.input[0].type.tensor_type.shape.dim, x.shape, strict=True):
        sizes.dim_value = size
    check(proto, {"X": x})


def loop(condition: str = "going", most: str = "turns") -> onnx.ModelProto:
    """Takes step t of X in turn t, as PyTorch's scripted loops do."""
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["X", "t"], ["x"], axis=0),
            *gru_step("x", "h", "after"),
            helper.make_node("Identity", ["after"], ["y"]),
            helper.make_node("Less", ["t", "end"], ["again"]),
        ],
        "turn",
        [value("t", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("h")],
        [value("again", TensorProto.BOOL, []), value("after"), value("y", shape=[3, 3])],
    )
    node = helper.make_node("Loop", [most, condition, "h0"], ["last", "Y"], body=body)
    inputs = {"X": X, "turns": np.array(6), "going": np.array(True), "end": np.array(9)}
    return model([node], inputs, ["last", "Y"], constants=WEIGHTS)


@pytest.mark.parametrize(
    "turns, going, end, condition, most",
    [
        (6, True, 9, "going", "turns"),
        (4, True, 9, "", "turns"),
        (6, True, 2, "going", ""),
        (6, True, 1, "going", "turns"),
        (0, True, 9, "going", "turns"),
        (6, False, 9, "going", "turns"),
    ],
)
def test_a_cell_inside_a_loop_runs_as_in_onnx_runtime(turns, going, end, condition, most) -> None:
    feed = {"X": X, "turns": np.array(turns), "going": np.array(going), "end": np.array(end)}
    check(loop(condition, most), feed)


def test_a_loop_that_never_ends_is_ended() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"])],
        "turn",
        [value("t", TensorProto.INT64, []), value("go", TensorProto.BOOL, [])],
        [value("again", TensorProto.BOOL, [])],
    )
    body.output.append(value("t", TensorProto.INT64, []))
    node = helper.make_node("Loop", ["", "going"], ["seen"], body=body)
    proto = model([node], {"going": np.array(True)}, ["seen"])
    with pytest.raises(
        BudgetError, match=r"more than 50 operators; Session\(max_steps=...\), --max-steps,"
    ):
        ours(proto, {"going": np.array(True)}, max_steps=50)


@pytest.mark.parametrize("deep", [1, 3])
def test_loops_in_loops_end_with_the_budget(deep: int) -> None:
    """Each of 10,000 turns; three of them in each other would take days."""
    most = numpy_helper.from_array(np.array(10_000), "most")
    feed = {"x": np.zeros((), np.float32)}
    inner = [helper.make_node("Neg", ["c0"], ["out0"])]
    for level in range(deep):
        body = helper.make_graph(
            [helper.make_node("Identity", [f"go{level}"], [f"again{level}"]), *inner],
            "turn",
            [
                value(f"t{level}", TensorProto.INT64, []),
                value(f"go{level}", TensorProto.BOOL, []),
                value(f"c{level}", TensorProto.FLOAT, []),
            ],
            [
                value(f"again{level}", TensorProto.BOOL, []),
                value(f"out{level}", TensorProto.FLOAT, []),
            ],
        )
        names = ["most", "", f"c{level + 1}" if level + 1 < deep else "x"]
        inner = [helper.make_node("Loop", names, [f"out{level + 1}"], body=body)]
    proto = model(inner, feed, [f"out{deep}"])
    proto.graph.initializer.append(most)
    if deep == 1:
        assert ours(proto, feed) == [0]
        return
    with pytest.raises(BudgetError, match="more than 20,000 operators"):
        ours(proto, feed, max_steps=20_000)


@pytest.mark.parametrize("positive", [True, False])
def test_a_branch_takes_what_is_outside(positive: bool) -> None:
    def branch(op: str, other: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["X", other], ["y"])], op, [], [value("y")])

    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("Add", "X"), else_branch=branch("Sub", "one")
    )
    feed = {"X": X, "c": np.array(positive)}
    check(model([node], feed, ["y"], constants=WEIGHTS), feed)


def test_a_branch_may_be_a_constant_or_hold_a_branch() -> None:
    inner = helper.make_graph([helper.make_node("Neg", ["X"], ["y"])], "n", [], [value("y")])
    whole = helper.make_graph([helper.make_node("Abs", ["X"], ["y"])], "a", [], [value("y")])
    nested = helper.make_graph(
        [helper.make_node("If", ["d"], ["y2"], then_branch=inner, else_branch=whole)],
        "outer",
        [],
        [value("y2")],
    )
    fixed = helper.make_graph([], "fixed", [], [value("k")], [numpy_helper.from_array(X, "k")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=nested, else_branch=fixed)
    for c in (True, False):
        for d in (True, False):
            feed = {"X": X, "c": np.array(c), "d": np.array(d)}
            check(model([node], feed, ["y"]), feed)


def test_a_body_with_an_unknown_operator_is_refused_with_the_reason() -> None:
    broken = helper.make_graph([helper.make_node("Det", ["X"], ["y"])], "b", [], [value("y")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=broken, else_branch=broken)
    proto = model([node], {"X": X, "c": np.array(True)}, ["y"])
    with pytest.raises(UnsupportedError, match="its body: .*Det.*not known"):
        Session(read(proto))


def lstm_branches() -> onnx.ModelProto:
    """An LSTM in either branch, the same numbers in other orders; the states are the branch's."""
    rng = np.random.default_rng(4)

    def branch(name: str) -> onnx.GraphProto:
        w, r = (rng.uniform(-0.5, 0.5, (1, 12, k)).astype(np.float32) for k in (4, 3))
        nodes = [
            helper.make_node("LSTM", ["X", f"w{name}", f"r{name}"], [f"Y{name}", f"h{name}"],
                             hidden_size=3, name=name, direction=name),
            helper.make_node("Squeeze", [f"Y{name}", f"one{name}"], [f"y{name}"]),
        ]  # fmt: skip
        arrays = {f"w{name}": w, f"r{name}": r, f"one{name}": np.array([1])}
        constants = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
        outputs = [value(f"y{name}"), value(f"h{name}")]
        return helper.make_graph(nodes, name, [], outputs, constants)

    node = helper.make_node(
        "If", ["c"], ["y", "h"], then_branch=branch("forward"), else_branch=branch("reverse")
    )
    return model([node], {"X": X, "c": np.array(True)}, ["y", "h"])


@pytest.mark.parametrize("taken", [True, False])
def test_a_recurrent_operator_inside_a_branch_runs_as_in_onnx_runtime(taken: bool) -> None:
    check(lstm_branches(), {"X": X, "c": np.array(taken)})


def test_layers_inside_branches_are_told_too() -> None:
    lines = Session(read(lstm_branches())).explained
    assert [f"{each.cell} {each.direction}" for each in lines] == [
        "LSTM left2right",
        "LSTM right2left",
    ]


def test_a_recurrent_operator_inside_a_loop_packs_its_weights_once() -> None:
    """A layer over all of X in each turn, which no pass can move out of the loop."""
    weights = np.random.default_rng(1).uniform(-0.5, 0.5, (1, 4, 8)).astype(np.float32)
    nodes = [
        helper.make_node("RNN", ["x_in", "w", "r"], ["Y", "h"], hidden_size=4),
        helper.make_node("Squeeze", ["Y", "one"], ["x"]),
        helper.make_node("Identity", ["go"], ["again"]),
    ]
    body = helper.make_graph(
        nodes,
        "turn",
        [value("t", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("x_in")],
        [value("again", TensorProto.BOOL, []), value("x"), value("h")],
    )
    node = helper.make_node("Loop", ["turns", "", "X"], ["last", "H"], body=body)
    constants = {"w": weights[:, :, :4].copy(), "r": weights[:, :, 4:].copy()}
    constants |= {"one": np.array([1]), "turns": np.array(3)}
    proto = model([node], {"X": X}, ["last", "H"], constants=constants)
    check(proto, {"X": X})
    assert len(Session(read(proto)).explained) == 1


def function(name: str, nodes: list, inputs: list, outputs: list, attributes: list) -> Any:
    version = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, inputs, outputs, nodes, version, attributes)


def leaky(reference: str) -> onnx.NodeProto:
    node = helper.make_node("LeakyRelu", ["a"], ["b"])
    node.attribute.add(name="alpha", ref_attr_name=reference, type=onnx.AttributeProto.FLOAT)
    return node


def with_functions(nodes: list, functions: list) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("own", 1)]
    return model(nodes, {"X": X}, ["y", "z"], opsets=opsets, functions=functions)


def test_functions_of_the_model_are_what_their_bodies_compute() -> None:
    slope = function("Slope", [leaky("alpha")], ["a"], ["b"], ["alpha"])
    call = helper.make_node("Slope", ["in"], ["mid"], domain="own", alpha=0.5)
    twice = [call, helper.make_node("Add", ["mid", "in"], ["out"])]
    outer = function("Outer", twice, ["in"], ["out"], [])
    nodes = [
        helper.make_node("Outer", ["X"], ["y"], domain="own"),
        helper.make_node("Slope", ["y"], ["z"], domain="own", alpha=0.25),
    ]
    check(with_functions(nodes, [slope, outer]), {"X": X})


def test_functions_that_call_each_other_without_an_end_are_refused() -> None:
    call = helper.make_node("Ring", ["a"], ["b"], domain="own")
    ring = function("Ring", [call], ["a"], ["b"], [])
    nodes = [helper.make_node("Ring", ["X"], [name], domain="own") for name in ("y", "z")]
    with pytest.raises(UnsupportedError, match="too deep or too often"):
        Session(read(with_functions(nodes, [ring])))


def test_functions_that_multiply_are_refused_before_they_fill_the_memory() -> None:
    functions = [function("F0", [helper.make_node("Neg", ["a"], ["b"])], ["a"], ["b"], [])]
    for level in range(1, 12):
        calls = [
            helper.make_node(f"F{level - 1}", ["a"], [f"t{k}"], domain="own") for k in range(9)
        ]
        calls.append(helper.make_node("Sum", [f"t{k}" for k in range(9)], ["b"]))
        functions.append(function(f"F{level}", calls, ["a"], ["b"], []))
    nodes = [helper.make_node("F11", ["X"], [name], domain="own") for name in ("y", "z")]
    with pytest.raises(UnsupportedError, match="too deep or too often"):
        Session(read(with_functions(nodes, functions)))


def test_an_attribute_that_a_function_does_not_know_is_refused() -> None:
    slope = function("Slope", [leaky("alpha")], ["a"], ["b"], ["alpha"])
    nodes = [helper.make_node("Slope", ["X"], [n], domain="own", beta=1.0) for n in ("y", "z")]
    with pytest.raises(UnsupportedError, match=r"not understood: attributes \['beta'\]"):
        Session(read(with_functions(nodes, [slope])))


def test_what_onnx_runtime_computes_is_no_constant_of_this_file() -> None:
    """The oracle moves with its input: a check that compares nothing would not notice."""
    (first, _), (second, _) = theirs(scan(), {"X": X}), theirs(scan(), {"X": X * 2})
    assert np.abs(first - second).max() > 0.01


def test_attributes_of_a_call_reach_bodies_inside_the_function() -> None:
    branch = helper.make_graph([leaky("alpha")], "b", [], [value("b")])
    fork = helper.make_node("If", ["c"], ["out"], then_branch=branch, else_branch=branch)
    slope = function("Slope", [fork], ["a", "c"], ["out"], ["alpha"])
    call = helper.make_node("Slope", ["X", "c"], ["y"], domain="own", alpha=0.5)
    feed = {"X": X, "c": np.array(True)}
    opsets = [helper.make_opsetid("own", 1)]
    proto = model([call], feed, ["y"], opsets=opsets, functions=[slope])
    (got,) = ours(proto, feed)
    np.testing.assert_array_equal(got, np.where(X < 0, np.float32(0.5) * X, X))
