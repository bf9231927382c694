"""A graph mapped over rows computes of all rows what it computes of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.graphs import new_node, small_graph
from support.operator_cases import CASES, COUNTS, FEED, model
from support.random_graphs import GRAPHS
from support.random_models import random_trial

from onernn import Graph, Session, UnsupportedError
from onernn.fuse_passes.mapping import Mapper
from onernn.ir.graph import Node, Value
from onernn.ir.ragged import Ragged

ROWS = 3


def mapped(graph: Graph) -> Graph:
    mapper = Mapper.of(graph, graph.inputs)
    for node in graph.nodes:
        mapper.add(node)
    outputs = tuple(value for value in graph.outputs if value.name in mapper.mapped)
    return replace(mapper.whole(), outputs=outputs)


def departure(graph: Graph, feeds: list[dict[str, np.ndarray]]) -> float:
    """How far all rows at once are from row by row; infinite where the shapes differ."""
    whole = Session(mapped(graph), backend="reference", passes=())
    stacked = {name: np.stack([each[name] for each in feeds]) for name in feeds[0]}
    once = whole.run(stacked)
    single = Session(graph, backend="reference", passes=())
    each = [single.run(feed) for feed in feeds]
    worst = 0.0
    for name, got in once.items():
        want = np.stack([one[name] for one in each])
        if got.shape != want.shape or got.dtype != want.dtype:
            return np.inf
        if want.size and want.dtype.kind == "f":
            same = np.array_equal(np.isnan(got), np.isnan(want))
            numbers, right = np.nan_to_num(got), np.nan_to_num(want)
            apart = np.abs(numbers - right).max() / (1 + np.abs(right).max())
            worst = max(worst, apart) if same else np.inf
        elif not np.array_equal(got, want):
            return np.inf
    return worst


def test_random_graphs_compute_of_all_rows_what_they_compute_of_each() -> None:
    """Sums of another order are a few roundings apart: 1e-5 of the largest number."""
    ran: Counter[str] = Counter()
    refused = 0
    for seed in range(GRAPHS):
        trial = random_trial(seed)
        feed = trial.feeds[0]
        if any(isinstance(value, Ragged) for value in feed.values()):
            continue
        rng = np.random.default_rng(seed)
        feeds = [
            {
                name: rng.uniform(-1, 1, x.shape).astype(x.dtype) if x.dtype.kind == "f" else x
                for name, x in feed.items()
            }
            for _ in range(ROWS)
        ]
        try:
            apart = departure(trial.graph, feeds)
        except UnsupportedError:
            refused += 1
            continue
        assert apart < 1e-5, (seed, apart)
        ran.update(node.op for node in trial.graph.nodes)
    assert sum(ran.values()) > GRAPHS and refused < GRAPHS / 2, (ran, refused)


def one(op: str, inputs: str, attributes: dict[str, Any]) -> float:
    """The departure of one operator, whose inputs that are fed differ from row to row."""
    names = inputs.split(" ")
    node = Node(op, tuple(names), ("y", "z", "u")[: COUNTS.get(op, 1)], attributes)
    fed = [name for name in FEED if name in names]
    graph = model([node], [*node.outputs], fed)
    sized = tuple(replace(v, shape=FEED[v.name].shape) for v in graph.inputs)
    rng = np.random.default_rng(0)
    feeds = [{name: rng.permuted(FEED[name]) for name in fed} for _ in range(ROWS)]
    graph = replace(graph, inputs=sized)
    return departure(graph, feeds)


FORMS: list[tuple[str, str, dict[str, Any]]] = [
    *(("Flatten", "x", {"axis": axis}) for axis in (0, 3, -1, -3)),
    ("Transpose", "x", {}),
    ("Reshape", "x minus", {}),
    ("Squeeze", "samples", {}),
    ("Squeeze", "samples minus", {}),
    ("Unsqueeze", "x outside", {}),
    ("ReduceSum", "x", {}),
    ("Softmax", "x", {"axis": 0}),
    ("Concat", "n_rows one_word", {"axis": 0}),
    ("MatMul", "n_rows w", {}),
    ("Gemm", "n_rows w low", {"alpha": 0.5}),
    ("Slice", "x axis1 three", {}),
    ("Gather", "x one", {"axis": -1}),
    ("Gather", "row i", {}),
    *(("Expand", "three_rows " + sizes, {}) for sizes in ("stretched", "one_best")),
]
"""Beside those of every operator."""
MIXED = (
    "DynamicQuantizeLinear DynamicQuantizeLSTM GateLayout GatherND Resize ReverseSequence"
    " ScatterND SequenceUnpad Trilu"
).split()
"""Operators of dense values that are not computed for many rows."""


def test_each_operator_computes_of_all_rows_what_it_computes_of_each() -> None:
    refused = set()
    for op, inputs, attributes in [*CASES, *FORMS]:
        given = [FEED[name] for name in inputs.split(" ") if name in FEED]
        if not given or any(isinstance(value, Ragged) for value in given):
            continue
        try:
            assert one(op, inputs, attributes) < 1e-5, (op, inputs, attributes)
        except UnsupportedError as error:
            assert f"({op})" in error.refusal.where
            refused.add(op)
    assert refused == {*MIXED}


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_rows_look_up_in_one_table_along_any_axis() -> None:
    table = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    for axis in range(-3, 3):
        node = new_node("y = Gather table at", axis=axis)
        at = Value("at", "int64", (2,))
        graph = small_graph([node], "y", {"table": table}, at=at)
        feeds = [{"at": ints(0, 1)}, {"at": ints(1, 1)}]
        assert departure(graph, feeds) == 0


@pytest.mark.parametrize("start", [0, 1, -1, -9, 5])
@pytest.mark.parametrize("end", [None, 2, -1, -9, 9])
def test_sizes_of_a_row_do_not_count_the_rows(start: int, end: int | None) -> None:
    ends = {} if end is None else {"end": end}
    nodes = (
        new_node("sizes = Shape x", start=start, **ends),
        new_node("floats = CastLike sizes x"),
        new_node("sum = ReduceSum floats", keepdims=0),
        new_node("y = Add x sum"),
    )
    graph = small_graph(nodes, "y", x=(2, 5, 4))
    assert departure(graph, [{"x": np.full((2, 5, 4), at, np.float32)} for at in range(ROWS)]) == 0


@pytest.mark.parametrize(
    "node, inputs",
    [
        (new_node("y = Pad x pads value"), {"x": (3,), "value": ()}),  # a value of the row
        (new_node("y = ReduceSum x", keepdims=0), {"x": ()}),  # a row without axes
        (new_node("y = NonZero x"), {"x": (3,)}),  # no rule
    ],
    ids=lambda each: each.op if isinstance(each, Node) else "",
)
def test_what_is_not_mapped_is_refused_by_its_node(node: Node, inputs: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as error:
        mapped(small_graph([node], "y", {"pads": ints(1, 0)}, **inputs))
    assert error.value.refusal.where == node.label
