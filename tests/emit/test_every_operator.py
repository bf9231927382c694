"""Every canonical operator is generated, or refused with a reason; runs of the same graph tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compiling import CHECKED, PLAIN
from support.emitting import Emitted, build
from support.graphs import new_node, rnn_node, unfused
from support.operator_cases import (
    FEED,
    SPEC,
    WALKED,
    WIDTH,
    T,
    cases,
    differs,
    half_apart,
    in_halves,
    model,
    whole,
)

from onernn import Graph, Ragged, Session, UnsupportedError
from onernn.engine.emit import write_cpp
from onernn.engine.emit.pipeline import infer_shapes, initialize, parse
from onernn.ir.graph import Node, Value
from onernn.ir.operator import OPERATORS
from onernn.ir.ragged import data_of
from onernn.ops.control import scan_attributes

BODY = Graph("body", (Value("v"),), (Value("w"),), (new_node("w = Neg v"),), {})
TURN = (Value("turn", "int64", ()), Value("going", "bool", ()))
LOOP = {"body": replace(BODY, inputs=(*TURN, *BODY.inputs), outputs=(*TURN[1:], *BODY.outputs))}
LOOP["carried"] = 0
SCAN = scan_attributes(BODY, 0)
OF_TWO_RANKS = {
    "then_branch": replace(BODY, nodes=(new_node("w = Flatten v"),)),
    "else_branch": BODY,
    "then_taken": 1,
}
MARKS = {"Then", "Else", "EndIf", "Repeat", "Element", "Again", "FoundSize"}
"""What control flow becomes in a plan; no graph has them."""
BEYOND: list[tuple[str, str, dict[str, Any], str]] = [
    *((*each, "is not generated" if each[0] == "Sample" else "fix the size") for each in WALKED),
    ("If", "going x x", OF_TWO_RANKS, "graphs of its own: the shape of its result"),
    ("Loop", "far  x", LOOP, "the number of iterations has no known bound"),
    ("Scan", "r", SCAN, "graphs of its own: iterates over the steps"),
    ("SequenceExpand", "r r", {}, "repeated sequences has no known bound"),
    ("SequencePool", "x", {"kind": "max"}, "'x' has no offsets"),
    ("Softmax", "r", {"axis": 0}, "axis 0 would mix the steps of ragged sequences"),
    *(
        ("Div", f"i {by}", {}, "other values than 0 and -1")
        for by in "lengths_like axis0 minus".split()
    ),
    ("Add", "b b", {}, "expected float or int, got bool"),
    ("Exp", "i", {}, "expected float, got int64"),
    ("Add", "x i", {}, r"expected one dtype, got \['float32', 'int64'\]"),
    ("Concat", "x i", {"axis": 0}, r"expected one dtype, got \['float32', 'int64'\]"),
    ("TopK", "x far", {"axis": 2}, "at least 0"),
    ("Gather", "x x", {}, "integer, got float32"),
    ("Pad", "x around", {"mode": "symmetric"}, "mode='symmetric'"),
    ("SequencePool", "r", {"kind": "median"}, "kind='median'"),
    ("Gelu", "x", {"approximate": "some"}, "approximate=some"),
    ("Mod", "i divisor", {"fmod": 2}, "fmod=2"),
    ("MatMul", "x matrix", {}, "expected equal sizes, got 6 and 5"),
    ("BatchNormalization", "x scale middle middle scale", {"training_mode": 1}, "for inference"),
    ("Dropout", "x low true", {}, "for inference"),
]


@pytest.mark.parametrize("op, inputs, attributes, reason", BEYOND)
def test_what_is_refused_has_a_reason(
    op: str, inputs: str, attributes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    node = Node(op, tuple(inputs.split(" ")), ("y",), attributes)
    with pytest.raises(UnsupportedError, match=reason):
        write_cpp(model([node], ["y"]), tmp_path)


def test_what_reads_a_refused_value_is_not_named(tmp_path: Path) -> None:
    nodes = [
        new_node("more = SequenceExpand r r"),
        new_node("y = SequencePool more", kind="sum"),
    ]
    with pytest.raises(UnsupportedError, match="node 'more'") as error:
        write_cpp(model(nodes, ["y"]), tmp_path)
    assert "'y'" not in str(error.value)


def test_no_operator_is_left_out() -> None:
    nodes, _ = cases()
    refused = {op for op, *_ in BEYOND}
    assert {node.op for node in nodes} | refused | MARKS == set(OPERATORS)
    walked = {op for op, *_ in WALKED}
    assert refused - {node.op for node in nodes} - walked == {"If", "Loop", "Scan"}


def apart(
    emitted: Emitted, feed: Any, want: Any, mode: str = "infer", differ: Any = differs
) -> list[str]:
    """The outputs that generated code gives otherwise."""
    status, got = emitted.run(feed, want, mode)
    assert status == 0, got
    return [name for name in want if differ(got[name], data_of(want[name]).reshape(-1))]


@pytest.mark.parametrize("flags", [PLAIN, pytest.param(CHECKED, marks=pytest.mark.long)])
def test_every_operator_gives_what_a_run_of_the_graph_gives(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    nodes, names = cases()
    graph = model(nodes, names)
    emitted = build({"every": graph}, tmp_path, flags)["every"]
    ops = {name: node.op for node in nodes for name in node.outputs}
    assert not [(name, ops[name]) for name in apart(emitted, FEED, unfused(graph, FEED))]


def test_every_operator_of_halves_gives_what_a_run_of_the_graph_gives(tmp_path: Path) -> None:
    graph, feed = in_halves()
    emitted = build({"halves": graph}, tmp_path)["halves"]
    ops = {name: node.op for node in graph.nodes for name in node.outputs}
    wrong = apart(emitted, feed, unfused(graph, feed), differ=half_apart)
    assert not [(name, ops[name]) for name in wrong]


RNN = rnn_node("y = Rnn p", SPEC)


TIMED = {
    name: Value(name, FEED[name].dtype.name, ("T", "N", WIDTH))  # type: ignore[arg-type]
    for name in ("x", "p", "i", "b")
}


def streaming(node: Node) -> str:
    """Why a layer with an operator beside it has no step, "" where it has one."""
    program = parse(model([RNN, node], ["y", node.outputs[0]]), TIMED)
    infer_shapes(program)
    initialize(program)
    return program.no_step


def test_operators_that_go_word_by_word_give_what_they_give_of_all_words(tmp_path: Path) -> None:
    nodes, _ = cases()
    timed = [node for node in nodes if TIMED.keys() & node.inputs]
    counted = ("Rnn", "Compress", "NonZero")  # the others' sizes are no outputs
    flows = [node for node in timed if node.op not in counted and not streaming(node)]
    made = {node.outputs[0]: node.op for node in flows}
    graph = model([RNN, *flows], ["y", *made])
    want = unfused(graph, FEED)
    # The driver puts pieces side by side: what has words has them on its first axis here.
    first = [name for name in want if np.shape(want[name])[:1] == (T,)]
    flowing = {"flows": model([RNN, *flows], first, TIMED)}
    emitted = build(flowing, tmp_path, declared=TIMED)["flows"]
    assert len(first) > 60 and "Status step(" in (tmp_path / "flows.hpp").read_text()
    wrong = apart(emitted, FEED, {name: want[name] for name in first}, "step")
    assert not [(name, made.get(name)) for name in wrong]


def test_layers_that_have_all_their_words_in_each_step_start_anew(tmp_path: Path) -> None:
    """Of a ragged input, and of one with a fixed number of words."""
    nodes = [RNN, *(rnn_node(f"of_{name} = Rnn {name}", SPEC, 1) for name in ("fixed", "ragged"))]
    inputs = (
        TIMED["p"],
        Value("fixed", "float32", (3, 2, WIDTH)),
        Value("ragged", "float32", (None, WIDTH), 1),
    )
    outputs = tuple(map(Value, ("y", "of_fixed", "of_ragged")))
    graph = Graph("words", inputs, outputs, tuple(nodes), {})
    rng = np.random.default_rng(0)
    fixed, words = (rng.normal(size=s).astype(np.float32) for s in ((3, 2, WIDTH), (5, WIDTH)))
    feed = {"p": FEED["p"], "fixed": fixed, "ragged": Ragged(words, [0, 2, 5])}
    emitted = build({"words": graph}, tmp_path)["words"]
    want = Session(replace(graph, inputs=tuple(map(untold, inputs))), backend="reference").run(feed)
    for mode in ("infer", "step"):
        assert not apart(emitted, feed, want, mode)


@pytest.mark.parametrize("op", ["Rnn", "Add"])
def test_a_state_behind_all_words_is_read_by_no_word(op: str) -> None:
    """It may be an output, and others may be made of it."""
    first = rnn_node("y h = Rnn p", SPEC)
    reader = rnn_node("z = Rnn p h", SPEC) if op == "Rnn" else new_node("z = Add y h0")
    nodes = [first, new_node("h0 = Squeeze h front"), reader]
    constants = {"front": np.array([0, 1])}
    for used, reason in (
        (nodes, f"{reader.label} reads a state after all steps"),
        (nodes[:2], ""),
    ):
        last = used[-1].outputs[0]
        outputs = tuple(map(Value, ("y", last)))
        program = parse(Graph("g", (TIMED["p"],), outputs, tuple(used), constants).prune())
        infer_shapes(program)
        initialize(program)
        assert program.no_step == reason


def untold(value: Value) -> Value:
    """Without names of sizes, which sessions do not know."""
    told = tuple(size if isinstance(size, int) else None for size in value.shape or ())
    return replace(value, shape=told)


@pytest.mark.parametrize(
    "op, inputs, attributes",
    [
        ("Softmax", "p", {"axis": 0}),
        ("CumSum", "p axis0", {}),
        ("ReduceMean", "p axis0", {}),
        ("ArgMax", "p", {"axis": 0}),
        ("TopK", "p one_best", {"axis": 0}),
        ("Tile", "p everywhere", {}),
        ("Gather", "p axis0", {}),
        ("GatherND", "p picks", {}),
        ("GatherElements", "p within0", {}),
        ("Concat", "p p", {"axis": 0}),
        ("Einsum", "p p", {"equation": "tnw,snw->tns"}),
        ("Einsum", "p", {"equation": "tnw->nw"}),
        ("ReverseSequence", "p lengths", {}),
        ("NonZero", "p", {}),
        ("Compress", "p choice", {}),
        ("SequenceUnpad", "p lengths", {"time_major": 1}),
    ],
)
def test_what_looks_at_all_words_has_no_step(
    op: str, inputs: str, attributes: dict[str, Any]
) -> None:
    node = Node(op, tuple(inputs.split(" ")), ("z",), attributes)
    assert streaming(node) == f"{node.label} reads all steps"


def test_the_comparison_sees_another_number() -> None:
    numbers = np.array([1, np.nan, np.inf], np.float32)
    assert not differs(numbers, numbers) and differs(numbers[[0, 2, 2]], numbers)
    assert differs(numbers + np.float32(1e-3), numbers) and differs(-numbers, numbers)
    assert differs(whole(1, 2), whole(1, 3))
