"""If, Loop, Scan and functions: graphs inside ONNX graphs, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser
from support.onnx_models import check, ours, parameters, parsed, read, small, theirs
from support.onnx_steps import WEIGHTS, X, gru_step, kinds
from support.onnx_written import run, written

from onernn import BudgetError, Session, UnsupportedError


def scan(**attributes: Any) -> onnx.ModelProto:
    proto = parsed(
        f"""(float[6, 3, 4] X) => (last, Y) {{
        last, Y = Scan <num_scan_inputs = 1, body = step (float[] h, float[] x)
            => (float[] after, float[] y) {{
            {gru_step("h", "after")}
            y = Identity (after)
        }}> (h0, X)
        }}""",
        WEIGHTS,
    )
    for name, value in attributes.items():
        proto.graph.node[0].attribute.append(helper.make_attribute(name, value))
    return proto


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scan_input_directions": [1], "scan_output_directions": [1]},
        {"scan_output_axes": [1]},
        {"scan_output_axes": [-1]},
        {"scan_output_axes": [-1], "scan_input_directions": [1]},
    ],
)
def test_a_cell_inside_a_scan_of_one_direction_becomes_a_layer(attributes: dict) -> None:
    check(scan(**attributes), {"X": X})
    ways = [attributes.get(f"scan_{way}_directions", [0]) for way in ("input", "output")]
    found = kinds(scan(**attributes))
    assert ("Rnn" in found, "Scan" in found) == (ways[0] == ways[1], ways[0] != ways[1])


@pytest.mark.parametrize("scanned", [0, 3])
def test_a_scan_of_no_sequence_or_of_more_than_its_inputs_is_refused(scanned: int) -> None:
    proto = scan()
    proto.graph.node[0].attribute[0].i = scanned
    with pytest.raises(UnsupportedError, match=f"num_scan_inputs={scanned}: expected 1 to 2"):
        ours(proto, {"X": X})


def test_a_scan_along_another_axis_goes_through_that() -> None:
    proto = scan(scan_input_axes=[1])
    x = np.ascontiguousarray(X.swapaxes(0, 1))
    for sizes, size in zip(proto.graph.input[0].type.tensor_type.shape.dim, x.shape, strict=True):
        sizes.dim_value = size
    check(proto, {"X": x})


def loop(condition: str = "going", most: str = "turns") -> onnx.ModelProto:
    """Takes step t of X in turn t, as PyTorch's scripted loops do."""
    return parsed(
        f"""(float[6, 3, 4] X, int64 turns, bool going, int64 end) => (last, Y) {{
        last, Y = Loop ({most}, {condition}, h0) <body = turn (int64 t, bool go, float[] h)
            => (bool again, float[] after, float[3, 3] y) {{
            x = Gather <axis = 0> (X, t)
            {gru_step("h", "after")}
            y = Identity (after)
            again = Less (t, end)
        }}>
        }}""",
        WEIGHTS,
    )


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


@pytest.mark.parametrize("turns", [0, 4])
def test_a_written_loop_collects_values_of_the_same_rank_without_a_turn(turns: int) -> None:
    feed = {"X": X, "turns": np.array(turns), "going": np.array(True), "end": np.array(9)}
    for got, want in zip(
        run(written(read(loop())), feed).values(), theirs(loop(), feed), strict=True
    ):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("turns", [0, 3])
def test_a_loop_that_changes_nothing_returns_its_initial_values(turns: int) -> None:
    proto = parsed(
        """(float[6, 3, 4] X) => (y) {
        y = Loop (turns, , X) <body = turn (int64 i, bool on, float[6, 3, 4] v) => (
            bool again, float[6, 3, 4] same) { again = Identity (on) same = Identity (v) }>
        }""",
        {"turns": np.array(turns)},
    )
    check(proto, {"X": X})


def test_a_loop_that_never_ends_is_ended() -> None:
    proto = parsed(
        """(bool going) => (seen) {
        seen = Loop ( , going) <body = turn (int64 t, bool go) => (bool again, int64 t) {
            again = Identity (go)
        }>
        }"""
    )
    with pytest.raises(
        BudgetError, match=r"more than 50 operators; Session\(max_steps=...\), --max-steps,"
    ):
        ours(proto, {"going": np.array(True)}, max_steps=50)


@pytest.mark.parametrize("deep", [1, 3])
def test_loops_in_loops_end_with_the_budget(deep: int) -> None:
    """Each of 10,000 turns; three of them in each other would take days."""
    inner = "out0 = Neg (c0)"
    for k in range(deep):
        begin = f"c{k + 1}" if k + 1 < deep else "x"
        inner = f"""out{k + 1} = Loop (most, , {begin}) <body = turn
            (int64 t{k}, bool go{k}, float c{k}) => (bool again{k}, float out{k}) {{
            again{k} = Identity (go{k})
            {inner}
            }}>"""
    most, feed = {"most": np.array(10_000)}, {"x": np.zeros((), np.float32)}
    proto = parsed(f"(float x) => (out{deep}) {{ {inner} }}", most)
    if deep == 1:
        assert ours(proto, feed) == [0]
        return
    with pytest.raises(BudgetError, match="more than 20,000 operators"):
        ours(proto, feed, max_steps=20_000)


def fork(then: str, other: str, result: str = "y") -> str:
    """An If on c, whose branches make ``result``."""
    return f"""{result} = If (c) <then_branch = then () => (float[] {result}) {{ {then} }},
        else_branch = other () => (float[] {result}) {{ {other} }}>"""


FORKING = "(float[6, 3, 4] X, bool c, bool d) => (%s) { %s }"


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_takes_what_is_outside_or_holds_a_branch(taken: bool) -> None:
    nested = fork("w = Neg (X)", "w = Abs (X)", "w").replace("If (c)", "If (d)")
    inner = f"{nested} y = Identity (w)"
    for d in (True, False):
        feed = {"X": X, "c": np.array(taken), "d": np.array(d)}
        for then in ("y = Add (X, X)", inner):
            check(parsed(FORKING % ("y", fork(then, "y = Sub (X, one)")), WEIGHTS), feed)


def test_an_outer_name_that_one_branch_gives_to_another_value_is_refused() -> None:
    """ONNX Runtime takes the outer value in both branches."""
    proto = parsed(
        """(float[3] x, bool c) => (y) {
        w = Neg (x)
        y = If (c) <
            then_branch = t () => (float[3] a) <float[3] w = {7, 2, 3}> { a = Mul (w, x) },
            else_branch = e () => (float[3] b) { b = Add (w, x) }>
        }"""
    )
    with pytest.raises(UnsupportedError, match=r"\['w'\] are values of one branch"):
        Session(read(proto))


def test_a_branch_may_be_a_constant() -> None:
    proto = parsed(FORKING % ("y", fork("y = Neg (X)", "y = Abs (X)")))
    fixed = proto.graph.node[0].attribute[1].g
    del fixed.node[:]
    fixed.initializer.append(numpy_helper.from_array(X + 1, "y"))
    for c in (True, False):
        check(proto, {"X": X, "c": np.array(c), "d": np.array(True)})


def test_a_body_with_an_unknown_operator_is_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedError, match="its body: .*Det.*not known"):
        Session(read(parsed(FORKING % ("y", fork("y = Det (X)", "y = Det (X)")))))


def lstm_branches() -> onnx.ModelProto:
    """An LSTM in either branch, the same numbers in other orders; the states are the branch's."""
    constants, branches = {"axis": np.array([1])}, []
    for seed, name in enumerate(("forward", "reverse")):
        arrays = parameters("LSTM", 4, 3, seed=seed)
        constants |= {f"w_{name}": arrays["W"], f"r_{name}": arrays["R"]}
        branches.append(f"""() => (float[] y_{name}, float[] h_{name}) {{
            Y, h_{name} = LSTM <hidden_size = 3, direction = "{name}"> (X, w_{name}, r_{name})
            y_{name} = Squeeze (Y, axis)
            }}""")
    text = f"y, h = If (c) <then_branch = then {branches[0]}, else_branch = other {branches[1]}>"
    return parsed(FORKING % ("y, h", text), constants)


@pytest.mark.parametrize("taken", [True, False])
def test_a_recurrent_operator_inside_a_branch_runs_as_in_onnx_runtime(taken: bool) -> None:
    check(lstm_branches(), {"X": X, "c": np.array(taken), "d": np.array(True)})


def test_layers_inside_branches_are_told_too() -> None:
    lines = Session(read(lstm_branches())).explained
    assert [f"{each.cell} {each.direction}" for each in lines] == [
        "LSTM left2right",
        "LSTM right2left",
    ]


def test_a_recurrent_operator_inside_a_loop_packs_its_weights_once() -> None:
    """A layer over all of X in each turn, which no pass can move out of the loop."""
    constants = small(parameters("RNN", 4, 4), "W", "R")
    constants |= {"one": np.array([1]), "turns": np.array(3)}
    proto = parsed(
        """(float[6, 3, 4] X) => (last, H) {
        last, H = Loop (turns, , X) <body = turn (int64 t, bool go, float[] x_in)
            => (bool again, float[] x, float[] h) {
            Y, h = RNN <hidden_size = 4> (x_in, W, R)
            x = Squeeze (Y, one)
            again = Identity (go)
        }>
        }""",
        constants,
    )
    check(proto, {"X": X})
    assert len(Session(read(proto)).explained) == 1


OWN = [helper.make_opsetid("own", 1)]
SLOPE = "Slope <alpha> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }"


def with_functions(text: str, *functions: str) -> onnx.ModelProto:
    """X, and c, to y and z; ``functions``: as ONNX writes them."""
    opsets = '<domain: "own", opset_import: ["" : 17, "own" : 1]>'
    made = [parser.parse_function(f"{opsets} {each}") for each in functions]
    head = "(float[6, 3, 4] X, bool c) => (y, z)"
    return parsed(f"{head} {{ {text} }}", opsets=OWN, functions=made)


def test_functions_of_the_model_are_what_their_bodies_compute() -> None:
    outer = "Outer (in) => (out) { mid = own.Slope <alpha = 0.5> (in) out = Add (mid, in) }"
    text = "y = own.Outer (X) z = own.Slope <alpha = 0.25> (y)"
    check(with_functions(text, SLOPE, outer), {"X": X, "c": np.array(True)})


def test_an_operator_of_onnx_runtime_is_no_function_of_the_model() -> None:
    text = '<domain: "com.microsoft", opset_import: ["" : 17]> Gelu (a) => (b) { b = Neg (a) }'
    opsets = [helper.make_opsetid("com.microsoft", 1)]
    nodes = "(float[6, 3, 4] X) => (y) { y = com.microsoft.Gelu (X) }"
    check(parsed(nodes, opsets=opsets, functions=[parser.parse_function(text)]), {"X": X})


def refused(reason: str, text: str, *functions: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        Session(read(with_functions(text, *functions)))


def test_functions_that_call_each_other_without_an_end_are_refused() -> None:
    ring = "Ring (a) => (b) { b = own.Ring (a) }"
    refused("too deep or too often", "y = own.Ring (X) z = own.Ring (X)", ring)


def test_functions_that_multiply_are_refused_before_they_fill_the_memory() -> None:
    functions, parts = ["F0 (a) => (b) { b = Neg (a) }"], [f"t{k}" for k in range(9)]
    for level in range(1, 12):
        calls = " ".join(f"{part} = own.F{level - 1} (a)" for part in parts)
        functions.append(f"F{level} (a) => (b) {{ {calls} b = Sum ({', '.join(parts)}) }}")
    refused("too deep or too often", "y = own.F11 (X) z = own.F11 (X)", *functions)


def test_an_attribute_that_a_function_does_not_know_is_refused() -> None:
    text = "y = own.Slope <beta = 1.0> (X) z = own.Slope <beta = 1.0> (X)"
    refused(r"not understood: attributes \['beta'\]", text, SLOPE)


def test_what_onnx_runtime_computes_is_no_constant_of_this_file() -> None:
    """The oracle moves with its input: a check that compares nothing would not notice."""
    (first, _), (second, _) = theirs(scan(), {"X": X}), theirs(scan(), {"X": X * 2})
    assert np.abs(first - second).max() > 0.01


def test_attributes_of_a_call_reach_bodies_inside_the_function() -> None:
    inner = "() => (float[] b) { b = LeakyRelu <alpha: float = @alpha> (a) }"
    slope = f"""Slope <alpha> (a, c) => (out) {{
        out = If (c) <then_branch = then {inner}, else_branch = other {inner}>
        }}"""
    proto = with_functions("y = own.Slope <alpha = 0.5> (X, c) z = Neg (y)", slope)
    got, _ = ours(proto, {"X": X, "c": np.array(True)})
    np.testing.assert_array_equal(got, np.where(X < 0, np.float32(0.5) * X, X))
