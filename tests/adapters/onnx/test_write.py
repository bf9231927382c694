"""Graphs of canonical operators written as ONNX and run by plain ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import onnx_schemas, operator_cases
from support.arrays import uniform
from support.graphs import new_node, reference, rnn_node, small, unfused
from support.layers import random_ragged, random_state, random_weights
from support.onnx_models import read, session_of
from support.onnx_written import assert_same, graph_over, padded_feed, run, written

import onernn
from onernn import (
    Activation,
    Cell,
    Graph,
    OnernnError,
    Ragged,
    RnnSpec,
    RnnWeights,
    Session,
    UnsupportedError,
    fuse,
)
from onernn.adapters.onnx import opsets
from onernn.adapters.onnx.opsets import IR_VERSIONS
from onernn.ir.graph import Node, Value
from onernn.ir.ragged import data_of
from onernn.ops import OPERATORS

COUNTS = operator_cases.COUNTS
FEED = operator_cases.FEED | {"x": np.nan_to_num(operator_cases.X)}
LENGTHS = [3, 0, 5, 1]
X = random_ragged(LENGTHS, 4, 0)
DENSE = uniform(4, 4, seed=1, bound=2)
MATRIX = uniform(4, 6, seed=2)


def graph(nodes: list[Node], outputs: list[str], constants: dict[str, Any] | None = None) -> Graph:
    return Graph(
        "test",
        (Value("x", "float32", (None, 4), 1), Value("d", "float32", (None, 4))),
        tuple(Value(name) for name in outputs),
        tuple(nodes),
        {name: np.asarray(array) for name, array in (constants or {}).items()},
    )


def check(
    nodes: list[Node],
    outputs: list[str],
    constants: dict[str, Any] | None = None,
    x: Ragged = X,
    **options: Any,
) -> None:
    built = graph(nodes, outputs, constants)
    inputs = {"x": x, "d": DENSE[: len(x)]}
    want = unfused(built, inputs)
    # Offsets that stand in the model fit no made-up batch.
    fixed = any(each.op == "SequenceReset" for each in nodes)
    got = run(written(built, inputs if fixed else None, **options), inputs)
    assert list(got) == outputs
    assert_each(got, want)


def assert_each(got: Any, want: Mapping[str, Any]) -> None:
    for name, value in want.items():
        assert_same(got[name], value)


ROW_WISE = [
    [new_node("y = Gemm x m row", alpha=0.5, beta=2.0)],
    [new_node("y = Gemm x mt", transB=1)],
    [new_node("y = Mul row4 x")],
    [new_node("y = Sub x column1")],
    [new_node("y = CastLike x one")],
    [new_node("u = Unsqueeze x one"), new_node("y = Squeeze u one")],
    [new_node("u = Unsqueeze x one"), new_node("y = Flatten u")],
    [new_node("u = Reshape x apart"), new_node("y = Softmax u", axis=1)],
    [new_node("a y = Split x sizes", axis=1)],
    [new_node("a = ArgMax x", axis=1, keepdims=0), new_node("y = Gather mt a")],
    [new_node("a = ArgMax x", axis=1, keepdims=0), new_node("y = OneHot a four oo")],
    [new_node("a = ArgMax x", axis=1), new_node("y = GatherElements x a", axis=1)],
    [new_node("w = SequenceData x"), new_node("y = Add x w")],
    [
        new_node("q = QuantizeLinear x step zero"),
        new_node("i = MatMulInteger q bytes zero"),
        new_node("y = Cast i", to="float32"),
    ],
]
"""Forms over ragged values beside the cases of single operators."""
CONSTANTS = {
    "m": MATRIX,
    "mt": MATRIX.T.copy(),
    "row": MATRIX[0],
    "row4": DENSE[0],
    "column1": DENSE[:1, :1],
    "low": np.float32(-0.5),
    "one": np.array([1]),
    "four": np.array(4),
    "last": np.array([-1]),
    "oo": np.array([0, 1], np.float32),
    "step": np.float32(0.02),
    "zero": np.uint8(128),
    "bytes": (8 * MATRIX).astype(np.int8),
    "apart": np.array([-1, 2, 2]),
    "sizes": np.array([1, 3]),
    "offsets": np.array([0, 2, 2, 9]),
}
REFUSALS = "NOT_IMPLEMENTED|unsupported type|Type Error|exceeds maximum|differ in dimension"
"""What onnx's checker and ONNX Runtime say of operators on types and sizes that they lack."""


@pytest.mark.parametrize("opset", [13, 18, 22, None])
@pytest.mark.parametrize("ragged, least", [(False, 150), (True, 60)], ids=["dense", "ragged"])
def test_every_operator_is_right_in_onnx_runtime_or_refused(
    ragged: bool, least: int, opset: int
) -> None:
    """``ragged``: inputs of T rows are sequences of 1, 0 and 3 rows."""
    right = 0
    for op, inputs, attributes in operator_cases.CASES:
        names, outputs = inputs.split(" "), ["y", "more", "most"][: COUNTS.get(op, 1)]
        node = Node(op, tuple(names), tuple(outputs), attributes)
        built = operator_cases.model([node], outputs, {n for n in names if n in FEED})
        feed = {value.name: FEED[value.name] for value in built.inputs}
        if ragged:
            rows = {n for n, a in feed.items() if not isinstance(a, Ragged) and len(a) == 4}
            feed |= {name: Ragged(feed[name], np.array([0, 1, 1, 4])) for name in rows}
            values = [replace(v, lod_depth=int(v.name in rows)) for v in built.inputs]
            built = replace(built, inputs=tuple(values))
        try:
            want, proto = unfused(built, feed), written(built, feed, opset=opset)
            got = run(proto, feed)
        except Exception as error:
            assert isinstance(error, OnernnError) or re.search(REFUSALS, str(error)), (op, error)
            continue
        assert_each(got, want)
        right += 1
    assert right >= least


@pytest.mark.parametrize("opset", [13, 18, 22, None])
@pytest.mark.parametrize("nodes", ROW_WISE, ids=lambda nodes: nodes[-1].op)
def test_row_wise_operators_run_over_padded_batches(nodes: list[Node], opset: int) -> None:
    check(nodes, ["y"], CONSTANTS, opset=opset and max(opset, OPERATORS[nodes[-1].op].since))


POOLS = ["sum", "average", "sqrt", "max", "first", "last"]
SENTENCES = [
    *([new_node("y = SequencePool x", kind=kind, empty=-0.5)] for kind in POOLS),
    [
        new_node("s = ReduceSum x last"),
        new_node("p = SequenceSoftmax s"),
        new_node("y = Mul x p"),
    ],
    [
        new_node("s = ReduceSum x last", keepdims=0),
        new_node("y = SequenceSoftmax s"),
    ],
    [new_node("y = SequenceContext x", length=2, start=1)],
    [new_node("y = SequenceContext x", length=3, start=-4)],
    [new_node("y = SequenceFill x low")],
    [new_node("w = SequenceExpand d x", level=0), new_node("y = SequenceLike w x")],
    [new_node("r = SequenceReset x offsets"), new_node("y = SequenceAppend x r x")],
    [new_node("y = SequencePad x")],
    [
        new_node("p = SequencePad x", time_major=1),
        new_node("n = SequenceLengths x"),
        new_node("u = SequenceUnpad p n", time_major=1),
        new_node("y = Add u x"),
    ],
]


@pytest.mark.parametrize("opset", [13, 18, 22, None])
@pytest.mark.parametrize("nodes", SENTENCES, ids=lambda nodes: nodes[-1].op)
def test_operators_over_sentences_run_over_padded_batches(nodes: list[Node], opset: int) -> None:
    check(nodes, ["y"], CONSTANTS, opset=opset)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 99))
def test_tags_are_decoded_as_by_the_kernel(lengths: list[int], tags: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    transition = rng.standard_normal((tags + 2, tags)).astype(np.float32)
    emission = Value("e", "float32", (None, tags), 1)
    built = graph_over(emission, new_node("path = CrfDecode e t"), t=transition)
    batch = {
        "e": Ragged.from_lengths(rng.standard_normal((sum(lengths), tags)).astype("f4"), lengths)
    }
    want = Session(built).run(batch)["path"]
    assert_same(run(written(built), batch)["path"], want)


@pytest.mark.parametrize("shape", [(2, 0), (3, 2), (4,)])
def test_a_transition_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    emission, transition = Value("e", "float32", (None, 2), 1), np.zeros(shape, np.float32)
    graph = graph_over(emission, new_node("path = CrfDecode e t"), t=transition)
    with pytest.raises(UnsupportedError, match=r"a transition \(K\+2, K\), got"):
        written(graph)


CELLS: list[tuple[Cell, dict[str, Any]]] = [
    (Cell.RNN_TANH, {}),
    (Cell.RNN_RELU, {}),
    (Cell.RNN_SIGMOID, {}),
    (Cell.RNN_TANH, {"activations": (Activation("elu", 0.7),), "gate_clip": 0.4}),
    (Cell.GRU, {}),
    (Cell.GRU, {"activations": ("sigmoid", "relu")}),
    (Cell.GRU, {"activations": ("sigmoid", "identity")}),
    (
        Cell.GRU,
        {"activations": (Activation("hardsigmoid", 0.3, 0.4), Activation("affine", 0.5, 0.1))},
    ),
    (Cell.GRU, {"update": "replace", "activations": ("tanh", "tanh")}),
    (Cell.LBR_GRU, {}),
    (Cell.LBR_GRU, {"gate_clip": 0.3}),
    (Cell.LSTM, {}),
    (Cell.LSTM, {"peephole": True}),
    (Cell.LSTM, {"input_forget": True, "peephole": True}),
    (Cell.LSTM, {"activations": ("sigmoid", "softsign", Activation("scaledtanh", 0.5, 0.6))}),
    (Cell.LSTM, {"projection_size": 2, "peephole": True}),
    (Cell.LSTM, {"cell_clip": (-0.1, 0.2)}),
    (Cell.LSTM, {"cell_clip": (-0.1, 0.2), "cell_clip_nan": True, "gate_clip": 0.5}),
    (Cell.LSTM, {"stacking": "onednn"}),
    (Cell.AUGRU, {}),
    (Cell.LBR_AUGRU, {}),
]


def layer(
    spec: RnnSpec, *, ragged: bool = True, states: bool = True, dtype: str = "float32"
) -> tuple[Graph, dict[str, Any]]:
    """A graph of the layer, and a batch for it."""
    rng, feed = np.random.default_rng(7), dict[str, Any]()
    for name, width, low in (("x", spec.input_size, -1), ("a", 1, 0)):
        if name == "x" or spec.cell.has_attention:
            sizes = (sum(LENGTHS),) if ragged else (max(LENGTHS), len(LENGTHS))
            data = rng.uniform(low, 1, (*sizes, width)).astype(dtype)
            feed[name] = Ragged.from_lengths(data, LENGTHS) if ragged else data
    begin = random_state(spec, len(LENGTHS), 8) if states else ()
    feed |= {f"{n}0": a.astype(dtype) for n, a in zip(spec.cell.states, begin, strict=False)}
    weights = [
        RnnWeights(**{name: array.astype(dtype) for name, array in each.arrays.items()})
        for each in random_weights(spec, 3)
    ]
    outputs = ("y", *(f"{name}_n" for name in spec.cell.states))
    inputs = tuple(name if name in feed else "" for name in ("x", "h0", "c0", "a"))
    rnn = Node("Rnn", inputs, outputs, {"spec": spec, "weights": weights})
    values = (declared(name, value) for name, value in feed.items())
    return Graph("layer", tuple(values), tuple(map(Value, outputs)), (rnn,), {}), feed


def declared(name: str, value: Any) -> Value:
    """An input of open lengths and batches."""
    array = data_of(value)
    *sizes, width = array.shape
    front = (*sizes[:2], None) if array.ndim == 4 else (None,) * len(sizes)
    return Value(name, array.dtype.name, (*front, width), int(isinstance(value, Ragged)))


@pytest.mark.parametrize(
    "direction", ["left2right", "right2left", "bidirectional_concat", "bidirectional_sum"]
)
@pytest.mark.parametrize(
    "cell, more", CELLS, ids=lambda v: v.name if isinstance(v, Cell) else str(v)
)
def test_every_cell_runs_in_onnx_runtime(cell: Cell, more: dict, direction: Any) -> None:
    for ragged, states, layers in ((True, True, 1), (True, False, 2), (False, True, 2)):
        width = 4 if "stacking" in more else 3  # oneDNN's stacks have one width
        spec = RnnSpec(cell, width, 4, direction=direction, layers=layers, **more)
        built, feed = layer(spec, ragged=ragged, states=states)
        want = reference(built, feed)
        proto = written(built, allow_functions=cell.has_attention)
        assert proto.ir_version >= 8 * bool(proto.functions)  # functions came with version 8
        assert_each(run(proto, feed), want)


BEYOND = [
    (Cell.AUGRU, {}),
    (Cell.AUGRU, {"update": "replace"}),
    (Cell.LBR_AUGRU, {}),
    (Cell.LBR_AUGRU, {"update": "replace"}),
    (Cell.LSTM, {"projection_size": 2}),
]


@pytest.mark.parametrize("direction", ["left2right", "right2left"])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(
    "cell, more", BEYOND, ids=lambda v: v.name if isinstance(v, Cell) else str(v)
)
def test_what_became_a_scan_comes_back_as_one_layer(
    cell: Cell, more: dict, ragged: bool, direction: Any
) -> None:
    spec = RnnSpec(cell, 3, 4, direction=direction, **more)
    built, feed = layer(spec, ragged=ragged)
    again = read(written(built, allow_functions=cell.has_attention))
    ops = {node.op: node for node in fuse(again).model.nodes}
    assert "Scan" not in ops and ops["Rnn"].attrs.spec == spec
    want = reference(built, feed)
    for backend in ("reference", "auto"):
        assert_each(Session(again, backend=backend).run(padded_feed(feed)), want)


def test_nothing_is_written_that_nobody_reads_and_no_axes_are_exchanged_twice() -> None:
    spec = RnnSpec(Cell.GRU, 3, 4, layers=3, direction="bidirectional_concat")
    model = written(layer(spec, states=False)[0])
    made = {name: node for node in model.graph.node for name in node.output}
    read = {name for node in model.graph.node for name in node.input}
    read |= {value.name for value in model.graph.output}
    for each in model.graph.node:
        assert read.intersection(each.output)
        source = made.get(each.input[0])
        assert each.op_type != "Transpose" or source is None or source.op_type != "Transpose"
    assert {each.name for each in model.graph.initializer} <= read


@pytest.mark.parametrize("cell", [Cell.GRU, Cell.LSTM])
def test_float64_layers_stay_float64(cell: Cell) -> None:
    spec = RnnSpec(cell, 3, 4, direction="bidirectional_concat")
    built, feed = layer(spec, dtype="float64")
    want = Session(built).run(feed)
    for name, array in run(written(built), feed).items():
        assert_same(array, want[name], rtol=1e-14, atol=1e-14)


def test_an_input_that_is_projected_already_is_written() -> None:
    spec = RnnSpec(Cell.GRU, 12, 4, direction="right2left")
    (weights,) = random_weights(spec, 0, projected=True)
    rnn = new_node("y = Rnn x", spec=spec, weights=weights)
    built = graph_over(Value("x", "float32", (None, 12), 1), rnn)
    feed = {"x": random_ragged(LENGTHS, 12, 3)}
    assert_same(run(written(built), feed)["y"], Session(built).run(feed)["y"])


def test_sentences_may_be_padded_wider_than_the_longest() -> None:
    spec = RnnSpec(Cell.GRU, 4, 3, direction="bidirectional_concat")
    rnn = rnn_node("r = Rnn x", spec)
    built = graph([rnn, new_node("y = SequencePool r", kind="last", empty=0)], ["r", "y"])
    want = Session(built).run({"x": X, "d": DENSE})
    model = written(built)
    wide = {"x": X.to_padded(time=9) + 0, "x_lengths": X.lengths.astype(np.int32), "d": DENSE}
    wide["x"][wide["x"] == 0] = np.nan  # what stands behind the sentences is nobody's business
    assert_each(run(model, wide), want)


def test_a_ragged_input_becomes_two_with_open_axes() -> None:
    model = written(graph([new_node("y = Relu x")], ["y"]))
    x, lengths, dense = model.graph.input
    named = [(d.dim_param or d.dim_value) for d in x.type.tensor_type.shape.dim]
    assert (x.name, named) == ("x", ["batch", "time", 4])
    assert (lengths.name, lengths.type.tensor_type.elem_type) == ("x_lengths", 6)
    assert [d.dim_param for d in lengths.type.tensor_type.shape.dim] == ["batch"]
    assert {node.domain for node in model.graph.node} == {""}


REFUSED = [
    (layer(RnnSpec(Cell.AUGRU, 3, 4))[0], "AUGRU"),
    (
        graph([new_node("y = Add x y0")], ["y"], {"y0": np.zeros((1, 1, 4), "f4")}),
        r"'y' \(Add\)",
    ),
    (
        graph([new_node("y = Softmax x", axis=0)], ["y"]),
        r"result of node 'y' \(Softmax\) for float32\(.*4\) under LoD x",
    ),
    (graph([new_node("y = Shape x")], ["y"]), "no form in padded batches"),
    (
        graph([new_node("y = Expand x s")], ["y"], {"s": np.ones(2, np.int64)}),
        "number of steps of all sequences",
    ),
    (graph([new_node("y = SequenceLike x d")], ["y"]), "expected ragged, got dense"),
]


@pytest.mark.parametrize("built, reason", REFUSED)
def test_what_onnx_cannot_say_is_refused_by_name(built: Graph, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        written(built)


ONE = np.array([1])
LATER = [
    (9, [new_node("y = Relu d")]),
    (9, [new_node("y = Softmax d", axis=0)]),
    (9, [new_node("y = ReduceMax d one")]),
    (11, [new_node("y = CumSum d first")]),
    (11, [new_node("y = Equal d d")]),
    (12, [new_node("i = Cast d", to="int64"), new_node("y = Max i i")]),
    (14, [new_node("i = Cast d", to="int32"), new_node("y = Relu i")]),
    (14, [new_node("y = Reshape d flat", allowzero=1)]),
    (18, [new_node("y = Pad d two low one")]),
    (18, [new_node("y = ReduceMax d", noop_with_empty_axes=1)]),
    (18, [new_node("y = ScatterND d places d", reduction="max")]),
    (20, [new_node("y = Gelu d")]),
]
LATER_ARRAYS = {"one": ONE, "first": np.array(0), "flat": -ONE, "two": np.array([1, 1])}
LATER_ARRAYS |= {"low": np.float32(0), "places": np.arange(len(DENSE))[:, None]}


@pytest.mark.parametrize("opset, nodes", LATER, ids=lambda each: str(each)[:3])
def test_the_lowest_opset_is_one_below_which_onnx_s_checker_refuses_the_form(
    opset: int, nodes: list[Node]
) -> None:
    built = graph(nodes, ["y"], LATER_ARRAYS)
    proto = written(built, {"x": X, "d": DENSE})
    assert [each.version for each in proto.opset_import] == [opset]
    ir_versions = {row[2]: row[1] for row in onnx.helper.VERSION_TABLE}
    assert proto.ir_version == ir_versions[opset]
    check(nodes, ["y"], LATER_ARRAYS)
    if opset == min(IR_VERSIONS):
        with pytest.raises(UnsupportedError, match="opset 8: expected 9 to 22"):
            written(built, opset=8)
        return
    with pytest.raises(UnsupportedError) as refused:
        written(built, {"x": X, "d": DENSE}, opset=opset - 1)
    (refusal,) = refused.value.refusals
    assert "'y'" in refusal.where and nodes[-1].op in refusal.reason
    assert refusal.reason.endswith(f"needs opset {opset}")
    proto.opset_import[0].version = opset - 1
    if nodes[-1].attributes.get("reduction") != "max":  # a value of an attribute, in no schema
        with pytest.raises(Exception, match=r"Bad node|Unrecognized|No Op|type|axes|axis"):
            onnx.checker.check_model(proto, full_check=True)


@pytest.mark.parametrize(
    "dtype", "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
)
def test_the_lowest_opset_is_one_that_onnx_runtime_runs_if_it_runs_a_higher_one(dtype: str) -> None:
    x, one, tried = Value("x", dtype, (None, 3)), np.array([[1, 2, 3]], dtype), 0
    for op, operator in OPERATORS.items():
        if operator.kind != "elementwise" or not operator.since or operator.least > 2:
            continue
        try:
            built = graph_over(x, Node(op, ("x",) * max(operator.least, 1), ("y",)))
            (want,) = session_of(written(built, opset=18)).run(None, {"x": one})
        except Exception:  # an attribute is missing, or nothing runs it
            continue
        (got,) = session_of(written(built)).run(None, {"x": one})
        np.testing.assert_array_equal(got, want, err_msg=op)
        tried += 1
    assert tried


def test_all_that_an_opset_lacks_is_listed_in_one_error() -> None:
    nodes = [
        Node("Unsupported", ("d",), ("u",), {"reason": "nobody knows it"}),
        new_node("v = Relu u"),
        new_node("a = Gelu d"),
        new_node("b = ReduceMax a", noop_with_empty_axes=1),
        new_node("c = Expand x two"),
        new_node("e = Relu c"),
        new_node("f = Gelu e"),
        new_node("g = SequenceLike x d"),
    ]
    broken = graph(nodes, ["v", "b", "f", "g"], {"two": np.array([1, 4])})
    never, later = [nodes[k].label for k in (0, 4, 7)], [nodes[k].label for k in (2, 3, 6)]
    for opset, expected in ((None, never), (13, never + later)):
        with pytest.raises(UnsupportedError) as refused:
            written(broken, opset=opset)
        assert [each.where for each in refused.value.refusals[:3]] == never
        assert {each.where for each in refused.value.refusals} == {*expected}
    ends = {each.where: each.reason[-2:] for each in refused.value.refusals[3:]}
    assert ends == dict(zip(later, ("20", "18", "20"), strict=True))
    (proto,) = written(graph(nodes[2:4], ["b"])).opset_import
    assert proto.version == 20


def test_the_schemas_are_onnx_s() -> None:
    assert opsets.FILE.read_text() == onnx_schemas.text()
    table = {row[2]: row[1] for row in onnx.helper.VERSION_TABLE}
    assert all(table[opset] == version for opset, version in opsets.IR_VERSIONS.items())


@pytest.mark.parametrize("attributes, opset", [({"allowzero": 0}, 13), ({"allowzero": 1}, 14)])
def test_attributes_that_came_later_are_written_where_they_mean_something(
    attributes, opset
) -> None:
    check(
        [new_node("y = Reshape d flat", **attributes)], ["y"], {"flat": np.array([-1])}, opset=opset
    )
    built = graph([new_node("y = Reshape d flat", allowzero=1)], ["y"], {"flat": np.array([-1])})
    with pytest.raises(UnsupportedError, match="allowzero.*14"):
        written(built, opset=13)


@pytest.mark.parametrize("attributes", [{"start": 1}, {"end": -1}, {"start": -3, "end": 2}])
def test_a_part_of_a_shape_is_written_for_opsets_that_have_whole_ones(attributes: Any) -> None:
    for opset in (13, 15):
        check([new_node("y = Shape d", **attributes)], ["y"], opset=opset)


def test_an_unknown_operator_is_refused_with_its_reason() -> None:
    built = graph([Node("Unsupported", (), ("y",), {"reason": "nobody knows it"})], ["y"])
    with pytest.raises(UnsupportedError, match="cannot be written(.|\n)*nobody knows it"):
        onernn.convert(built, "never.onnx")


@pytest.mark.parametrize(
    "how, lengths", [({}, [1, 2]), ({"exclusive": 1}, [3, 7]), ({"reverse": 1}, [0, 3])]
)
def test_offsets_that_are_sums_are_written_as_lengths_if_these_are_summed_forwards(
    how: dict[str, int], lengths: list[int]
) -> None:
    """Exclusive or backward sums are offsets of sequences with other lengths."""
    nodes = [
        new_node("sums = CumSum lengths axis", **how),
        new_node("offsets = Concat first sums", axis=0),
        new_node("r = SequenceReset x offsets"),
        new_node("y = SequencePool r", kind="sum"),
    ]
    inputs = {"x": (None, 4), "lengths": ("int64", None)}
    model = small(nodes, inputs, axis=np.int64(0), first=np.array([0]))
    feed = {"x": uniform(3, 4), "lengths": np.array(lengths)}
    proto = written(model)
    assert_same(run(proto, feed)["y"], unfused(model, feed)["y"])
    subtracts = any(node.op_type == "Sub" for node in proto.graph.node if "slice" in node.input[0])
    assert subtracts == bool(how)
