"""Every canonical operator is generated, or refused with a reason; runs of the same graph tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.emitting import build
from support.layers import random_weights

from onernn import Cell, Graph, Ragged, RnnSpec, Session, UnsupportedError
from onernn.core.graph import Node, Value
from onernn.core.operator import OPERATORS
from onernn.core.ragged import data_of
from onernn.emit import write_cpp
from onernn.emit.pipeline import infer, initialize, parse
from onernn.reorders.gates import GateLayout

QUICK = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
RNG = np.random.default_rng(0)
T, N, WIDTH = 4, 3, 6
SPEC = RnnSpec(Cell.GRU, WIDTH, 4)


def floats(*shape: int) -> np.ndarray:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


X = floats(T, N, WIDTH)
X[0, 0] = [0, -0.0, 1, 1, -1, np.nan]  # equal ones, and what is no number
FEED: dict[str, Any] = {
    "x": X,
    "p": np.abs(floats(T, N, WIDTH)) + np.float32(0.1),
    "i": RNG.integers(-2, 3, (T, N, WIDTH)),
    "b": RNG.integers(0, 2, (T, N, WIDTH)).astype(bool),
    "r": Ragged(floats(11, WIDTH), np.array([0, 4, 4, 5, 11])),
    "q": Ragged(floats(6, WIDTH), np.array([0, 1, 3, 3, 6])),
    "tags": Ragged(floats(11, 5), np.array([0, 4, 4, 5, 11])),
    "lengths": whole(0, 4, 2),
    "n_rows": floats(4, WIDTH),
    "small": floats(5, 2, WIDTH),
    "moved": whole(0, 2, 11),
    "going": np.array(True),
}
CONSTANTS: dict[str, np.ndarray] = {
    "row": floats(WIDTH),
    "w": floats(WIDTH, 5),
    "one_word": floats(1, WIDTH),
    "matrix": floats(5, 5),
    "axis0": whole(0),
    "axis1": whole(1),
    "axis2": whole(2),
    "axes12": whole(1, 2),
    "two": whole(2),
    "three": whole(3),
    "minus": whole(-1),
    "some": whole(2, 0, -1, 5),
    "low": np.array(-0.5, np.float32),
    "high": np.array(0.75, np.float32),
    "divisor": whole(3, -2, 5, 7, -4, 2),
    "to_rows": whole(-1, WIDTH),
    "one_best": whole(1),
    "everywhere": whole(2, 1, 1),
    "within0": RNG.integers(0, T, (2, N, WIDTH)),
    "stretched": whole(1, 1, 1, WIDTH),
    "repeats": whole(1, 2, 3),
    "around": whole(2, 0, 3, 1, 0, 4),
    "cut": whole(0, 0, -2, 0, 0, 3),
    "last_axes": whole(7, 9),
    "off_on": np.array([-1, 3], np.float32),
    "choice": np.array([True, False, True, True, False, False]),
    "scale": np.abs(floats(N)) + np.float32(0.5),
    "middle": floats(N),
    "picks": RNG.integers(-3, 3, (4, 2, 1)),
    "within": RNG.integers(-WIDTH, WIDTH, (T, N, 2)),
    "crf": floats(7, 5),
    "true": np.array(True),
    "long": np.zeros((1, 9, WIDTH), np.float32),
    "far": np.array([2**63 - 1]),
    "outside": whole(0, 2),
    "lengths_like": whole(1, 2, 0, 3, 1, 1),
}
UNARY = (
    "Abs Neg Sign Floor Ceil Round Sin Cos Erf Exp Tanh Sigmoid Relu Softplus Softsign LeakyRelu"
    " ThresholdedRelu HardSigmoid HardSwish Elu Selu Celu Gelu IsNaN Identity"
).split()
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *((op, "x", {}) for op in UNARY),
    *((op, "p", {}) for op in ("Log", "Sqrt", "Reciprocal")),
    *((op, "i", {}) for op in ("Abs", "Neg", "Sign", "Relu")),
    *((op, "x row", {}) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean")),
    *((op, "x row p", {}) for op in ("Min", "Max", "Sum", "Mean")),
    *((op, "i i", {}) for op in ("Add", "Mul", "Min", "Max", "Sum")),
    *((op, "x row", {}) for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")),
    *((op, "b choice", {}) for op in ("And", "Or", "Xor")),
    ("Not", "b", {}),
    ("Pow", "p row", {}),
    ("Mod", "i divisor", {}),
    ("Mod", "i divisor", {"fmod": 1}),
    ("Mod", "i divisor", {"fmod": True}),
    ("Mod", "x row", {"fmod": 1}),
    ("Div", "i divisor", {}),
    ("Gelu", "x", {"approximate": "tanh"}),
    ("LeakyRelu", "x", {"alpha": 0.3}),
    ("Selu", "x", {"alpha": 1.5, "gamma": 1.25}),
    ("Celu", "x", {"alpha": 0.5}),
    ("PRelu", "x row", {}),
    ("Clip", "x low high", {}),
    ("Clip", "x  high", {}),
    ("Clip", "x", {}),
    ("Where", "b x row", {}),
    ("Cast", "x", {"to": "bool"}),
    ("Cast", "i", {"to": "float32"}),
    ("CastLike", "i x", {}),
    ("Dropout", "x", {}),
    ("MatMul", "x w", {}),
    ("MatMul", "x row", {}),
    ("MatMul", "row w", {}),
    ("Gemm", "one_word w", {"alpha": 0.5}),
    ("Einsum", "x", {"equation": "tnw->wtn"}),
    ("Einsum", "x", {"equation": "...w->..."}),
    ("Einsum", "p p", {"equation": "tnw,tnw->tn"}),
    ("Einsum", "x w", {"equation": "...w,wk->...k"}),
    ("Einsum", "p p", {"equation": "tnw,snw->nts"}),
    ("Einsum", "matrix", {"equation": "ii->i"}),
    ("Transpose", "x", {"perm": (2, 0, 1)}),
    ("Softmax", "x", {"axis": 1}),
    ("LogSoftmax", "x", {}),
    *(
        (op, "x", {"axis": 2, "select_last_index": k})
        for op in ("ArgMax", "ArgMin")
        for k in (0, 1)
    ),
    ("ArgMax", "i", {"axis": 1, "select_last_index": 1, "keepdims": 0}),
    *((f"Reduce{op}", "p axis1", {}) for op in "L1 L2 LogSum LogSumExp Max Mean Min Prod".split()),
    *((f"Reduce{op}", "p axes12", {"keepdims": 0}) for op in ("Sum", "SumSquare", "LogSumExp")),
    *((f"Reduce{op}", "i axis2", {}) for op in ("Sum", "Max", "Min", "Prod")),
    ("ReduceSum", "x", {"noop_with_empty_axes": 1}),
    ("CumSum", "p axis1", {}),
    ("CumSum", "i axis2", {"exclusive": 1, "reverse": 1}),
    ("TopK", "x three", {"axis": 2}),
    ("TopK", "x two", {"axis": 1, "largest": 0}),
    ("TopK", "i three", {"axis": 2}),
    ("Trilu", "x", {}),
    ("Trilu", "x minus", {"upper": 0}),
    ("LayerNormalization", "p row row", {}),
    ("BatchNormalization", "x scale middle middle scale", {}),
    ("Reshape", "x to_rows", {}),
    ("Squeeze", "one_word axis0", {}),
    ("Unsqueeze", "x axis1", {}),
    ("Flatten", "x", {"axis": 2}),
    ("Concat", "x p x", {"axis": 1}),
    ("Slice", "x axis1 three axis2", {}),
    ("Slice", "x axis1 far axis0", {}),
    ("Slice", "x minus far axis1", {}),
    ("Split", "x", {"axis": 2}),
    ("Expand", "x stretched", {}),
    ("Tile", "x repeats", {}),
    ("Pad", "x around", {}),
    ("Pad", "x around high", {}),
    *(("Pad", "x around", {"mode": mode}) for mode in ("edge", "reflect", "wrap")),
    *(("Pad", "x cut", {"mode": mode}) for mode in ("constant", "edge", "reflect", "wrap")),
    ("Pad", "x last_axes  minus", {"mode": "reflect"}),
    ("Gather", "x some", {"axis": 2}),
    ("GatherElements", "x within", {"axis": 2}),
    ("GatherND", "x picks", {"batch_dims": 1}),
    ("GatherND", "x picks", {}),
    ("ReverseSequence", "x lengths", {}),
    ("OneHot", "i three off_on", {}),
    ("OneHot", "i three off_on", {"axis": 1}),
    ("GateLayout", "x", {"layout": GateLayout((2, 0, 1), (1, -1, 1))}),
    ("Rnn", "p", {"spec": SPEC, "weights": random_weights(SPEC, 0)}),
    ("Rnn", "small", {"spec": SPEC, "weights": random_weights(SPEC, 0)}),
    ("SequencePool", "r", {"kind": "average"}),
    ("SequenceReverse", "r", {}),
    ("SequenceContext", "r", {"length": 3, "start": -1}),
    ("SequenceConcat", "r q r", {}),
    ("SequenceAppend", "r q", {}),
    ("SequenceExpand", "n_rows r", {}),
    ("SequenceLengths", "r", {}),
    ("SequencePad", "r long", {}),
    ("SequenceFill", "r low", {"time": 6}),
    ("SequenceFill", "r row", {"time": 7}),
    ("SequenceReset", "r moved", {}),
    ("SequenceLike", "tags r", {}),
    ("SequenceData", "r", {}),
    ("SequenceUnpad", "x lengths", {"time_major": 1}),
    ("CrfDecode", "tags crf", {}),
]
"""Cases whose sizes are known before a call."""


def cases() -> tuple[list[Node], list[str]]:
    """The nodes of all cases, and what is compared."""
    nodes, names = [], []
    for at, (op, inputs, attributes) in enumerate(CASES):
        count = {"Split": 2, "TopK": 2, "Dropout": 2, "LayerNormalization": 3}.get(op, 1)
        made = [f"v{at}_{k}" for k in range(count)]
        nodes.append(Node(op, tuple(inputs.split(" ")), tuple(made), attributes))
        names += made
    # What only a call counts is no output: it is brought to a size that is known.
    nodes += [
        Node("Compress", ("p", "choice"), ("chosen",), {"axis": 2}),
        Node("ReduceSum", ("chosen", "axis2"), ("few",)),
        Node("Compress", ("p", "choice"), ("flat",)),
        Node("ReduceSum", ("flat", "axis0"), ("few_flat",)),
        Node("NonZero", ("i",), ("places",)),
        Node("ReduceSum", ("places", "axis1"), ("where",)),
        Node("ReduceMax", ("places", "axis1"), ("last",)),
    ]
    unpadded = next(node for node in nodes if node.op == "SequenceUnpad")
    names.remove(unpadded.outputs[0])
    nodes += [
        Node("SequencePool", unpadded.outputs, ("ends",), {"kind": "last"}),
        Node("Shape", ("x",), ("sizes",)),
        Node("Size", ("x",), ("size",)),
        Node("ConstantOfShape", ("sizes",), ("zeros",)),
        Node("Gather", ("sizes", "zero"), ("time",)),
        Node("Range", ("zero", "time", "one"), ("steps",)),
        Node("Slice", ("tags", "axis1", "three", "axis1"), ("fewer_tags",)),
        Node("ReduceSum", ("tags", "axis1"), ("scores",)),
        Node("SequenceSoftmax", ("scores",), ("attention",)),
    ]
    return nodes, [
        *names,
        "few",
        "few_flat",
        "where",
        "last",
        "ends",
        "sizes",
        "size",
        "zeros",
        "steps",
        "attention",
        "fewer_tags",
    ]


BODY = Graph("body", (Value("v"),), (Value("w"),), (Node("Neg", ("v",), ("w",)),), {})
TURN = (Value("turn", "int64", ()), Value("going", "bool", ()))
LOOP = {"body": replace(BODY, inputs=(*TURN, *BODY.inputs), outputs=(*TURN[1:], *BODY.outputs))}
LOOP["carried"] = 0
SCAN = {"body": BODY, "states": 0, "scanned": 1}
SCAN |= {f"{side}_{what}": (0,) for side in ("input", "output") for what in ("axes", "directions")}
BRANCHES = {"then_branch": BODY, "else_branch": BODY, "then_taken": 1}
BEYOND: list[tuple[str, str, dict[str, Any], str]] = [
    ("If", "going x x", BRANCHES, "graphs of its own"),
    ("Loop", "far  x", LOOP, "graphs of its own"),
    ("Scan", "x", SCAN, "graphs of its own"),
    ("SequenceExpand", "r r", {}, "nobody bounds how many words"),
    ("SequencePad", "r", {}, "padded to the longest sentence"),
    ("SequenceFill", "r low", {}, "padded to the longest sentence"),
    ("SequencePool", "x", {"kind": "max"}, "'x' carries no offsets"),
    ("Softmax", "r", {"axis": 0}, "axis 0 would mix the words of a LoD"),
    ("ReduceSum", "x outside", {}, "only neighbouring ones"),
    ("Div", "i lengths_like", {}, "by what may be 0 or -1"),
    ("Add", "b b", {}, "of bool"),
    ("Exp", "i", {}, "of int64"),
    ("Add", "x i", {}, r"inputs of several types \['float32', 'int64'\]"),
    ("Concat", "x i", {"axis": 0}, r"inputs of several types \['float32', 'int64'\]"),
    ("NonZero", "x", {}, "output 'y' of .*, which only a call tells"),
    ("TopK", "x far", {"axis": 2}, "at least 0"),
    ("Gather", "x x", {}, "of float32"),
    ("Pad", "x around", {"mode": "symmetric"}, "mode='symmetric'"),
    ("SequencePool", "r", {"kind": "median"}, "kind='median'"),
    ("Gelu", "x", {"approximate": "some"}, "approximate=some of float32"),
    ("Mod", "i divisor", {"fmod": 2}, "fmod=2 of int64"),
    ("MatMul", "x matrix", {}, "sizes 6 and 5 should be one"),
    ("BatchNormalization", "x scale middle middle scale", {"training_mode": 1}, "only inference"),
    ("Dropout", "x low true", {}, "only inference"),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "reason"), BEYOND)
def test_what_is_refused_has_a_reason(
    op: str, inputs: str, attributes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    node = Node(op, tuple(inputs.split(" ")), ("y",), attributes)
    with pytest.raises(UnsupportedError, match=reason):
        write_cpp(model([node], ["y"]), tmp_path)


def test_what_reads_a_refused_value_is_not_named(tmp_path: Path) -> None:
    nodes = [
        Node("SequenceExpand", ("r", "r"), ("more",)),
        Node("SequencePool", ("more",), ("y",), {"kind": "sum"}),
    ]
    with pytest.raises(UnsupportedError, match="node 'more'") as error:
        write_cpp(model(nodes, ["y"]), tmp_path)
    assert "'y'" not in str(error.value)


def test_no_operator_is_left_out() -> None:
    nodes, _ = cases()
    refused = {op for op, *_ in BEYOND}
    assert {node.op for node in nodes} | refused == set(OPERATORS)
    assert refused - {node.op for node in nodes} == {"If", "Loop", "Scan"}


def model(nodes: list[Node], names: list[str], takes: Iterable[str] = FEED) -> Graph:
    inputs = []
    for name in takes:
        value = FEED[name]
        array = data_of(value)
        shape = tuple(
            None if axis < array.ndim - 1 or array.ndim == 1 else size
            for axis, size in enumerate(array.shape)
        )
        inputs.append(Value(name, array.dtype.name, shape, int(isinstance(value, Ragged))))
    constants = {**CONSTANTS, "zero": np.array(0), "one": np.array(1)}
    outputs = tuple(map(Value, names))
    return Graph("every", tuple(inputs), outputs, tuple(nodes), constants).pruned()


def test_every_operator_gives_what_a_run_of_the_graph_gives(tmp_path: Path) -> None:
    nodes, names = cases()
    graph = model(nodes, names)
    want = Session(graph, backend="reference", passes=()).run(FEED)
    emitted = build({"every": graph}, tmp_path, QUICK)["every"]
    status, got = emitted.run(FEED, want)
    assert status == 0, got
    ops = {name: node.op for node in nodes for name in node.outputs}
    wrong = [(n, ops[n]) for n in want if differs(got[n], data_of(want[n]).reshape(-1))]
    assert not wrong


RNN = Node("Rnn", ("p",), ("y",), {"spec": SPEC, "weights": random_weights(SPEC, 0)})


TIMED = {
    name: Value(name, FEED[name].dtype.name, ("T", "N", WIDTH))  # type: ignore[arg-type]
    for name in ("x", "p", "i", "b")
}


def streaming(node: Node) -> str:
    """Why a layer with an operator beside it has no step, "" where it has one."""
    program = parse(model([RNN, node], ["y", node.outputs[0]]), TIMED)
    infer(program)
    initialize(program)
    return program.no_step


def test_operators_that_go_word_by_word_give_what_they_give_of_all_words(tmp_path: Path) -> None:
    nodes, _ = cases()
    timed = [node for node in nodes if TIMED.keys() & node.inputs]
    counted = ("Rnn", "Compress", "NonZero")  # the others' sizes are no outputs
    flows = [node for node in timed if node.op not in counted and not streaming(node)]
    made = {node.outputs[0]: node.op for node in flows}
    graph = model([RNN, *flows], ["y", *made])
    want = Session(graph, backend="reference", passes=()).run(FEED)
    # The driver puts pieces side by side: what has words has them on its first axis here.
    first = [name for name in want if np.shape(want[name])[:1] == (T,)]
    flowing = {"flows": model([RNN, *flows], first, TIMED)}
    emitted = build(flowing, tmp_path, QUICK, declared=TIMED)["flows"]
    assert len(first) > 60 and "Status step(" in (tmp_path / "flows.hpp").read_text()
    status, got = emitted.run(FEED, {name: want[name] for name in first}, "step")
    assert status == 0, got
    assert not [(n, made.get(n)) for n in first if differs(got[n], want[n].reshape(-1))]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Softmax", "p", {"axis": 0}),
        ("CumSum", "p axis0", {}),
        ("ReduceMean", "p axis0", {}),
        ("ArgMax", "p", {"axis": 0}),
        ("TopK", "p one_best", {"axis": 0}),
        ("Tile", "p everywhere", {}),
        ("Pad", "p around", {}),
        ("Slice", "p axis0 far axis0", {}),
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
    assert streaming(node) == f"{node.label} looks at all words"


def differs(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether numbers are apart; what is no number, or infinite, is so in both."""
    if want.dtype.kind != "f":
        return got.tolist() != want.tolist()
    told = np.isfinite(want)
    apart = np.abs(got[told] - want[told]).max(initial=0)
    same = np.array_equal(got[~told], want[~told], equal_nan=True)
    return not same or apart > 2e-6 + 1e-5 * np.abs(want[told]).max(initial=0)


def test_the_comparison_sees_another_number() -> None:
    numbers = np.array([1, np.nan, np.inf], np.float32)
    assert not differs(numbers, numbers) and differs(numbers[[0, 2, 2]], numbers)
    assert differs(numbers + np.float32(1e-3), numbers) and differs(-numbers, numbers)
    assert differs(whole(1, 2), whole(1, 3))
