"""A graph mapped over rows computes of all rows what it computes of each."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from support.graphs import new_node
from support.random_models import random_trial

from onernn import Graph, Session, UnsupportedError
from onernn.fuse_passes.mapping import Mapper
from onernn.ir.graph import Node, Value
from onernn.ir.ragged import Ragged
from onernn.ops import OPERATORS

GRAPHS, ROWS = int(os.environ.get("ONERNN_RANDOM_GRAPHS", "40")), 3


def mapped(graph: Graph) -> Graph:
    mapper = Mapper(graph, mapped={value.name for value in graph.inputs})
    for node in graph.nodes:
        mapper.add(node)
    rows = (replace(v, shape=None if v.shape is None else (None, *v.shape)) for v in graph.inputs)
    return replace(
        graph,
        inputs=tuple(rows),
        outputs=tuple(Value(v.name) for v in graph.outputs if v.name in mapper.mapped),
        nodes=tuple(mapper.nodes),
        constants={**graph.constants, **mapper.constants},
    )


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
            scale = 1 + np.nanmax(np.abs(want))
            same = np.array_equal(np.isnan(got), np.isnan(want))
            worst = max(worst, np.nanmax(np.abs(got - want)) / scale) if same else np.inf
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


def one(
    op: str, shapes: list[tuple[int, ...]], extra: dict[str, np.ndarray], **at: object
) -> float:
    """The departure of one operator over rows of these shapes, its other inputs constants."""
    names = [f"x{i}" for i in range(len(shapes))]
    outputs = ("y", "z")[: OPERATORS[op].outputs[0]]
    node = Node(op, (*names, *extra), outputs, at)
    graph = Graph(
        "one",
        tuple(Value(n, "float32", s) for n, s in zip(names, shapes, strict=True)),
        tuple(Value(n) for n in outputs),
        (node,),
        extra,
    )
    rng = np.random.default_rng(0)
    feeds = [
        {n: rng.uniform(-1, 1, s).astype("f4") for n, s in zip(names, shapes, strict=True)}
        for _ in range(ROWS)
    ]
    return departure(graph, feeds)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_each_rule_moves_its_axes() -> None:
    rng = np.random.default_rng(1)
    w = rng.uniform(-1, 1, (4, 5)).astype("f4")
    kernel = rng.uniform(-1, 1, (6, 4, 3)).astype("f4")
    cases = [
        one("Add", [(2, 3, 4), (4,)], {}),
        one("Mul", [(4,)], {"w": np.ones((2, 3, 4), np.float32)}),
        one("Softmax", [(2, 4)], {}, axis=0),
        one("Softmax", [(2, 4)], {}, axis=-1),
        one("Concat", [(2, 4), (3, 4)], {}, axis=0),
        one("Concat", [(2, 4)], {"w": np.ones((1, 4), np.float32)}, axis=0),
        one("Split", [(4, 3)], {}, axis=0),
        one("ReduceMean", [(2, 3, 4)], {"axes": ints(0, 2)}, keepdims=0),
        one("ReduceSum", [(2, 3, 4)], {}),
        one("ReduceSum", [(2, 3)], {"axes": ints()}),
        one("ReduceSum", [(2, 3)], {"axes": ints()}, noop_with_empty_axes=1),
        one("Squeeze", [(1, 3, 1)], {}),
        one("Squeeze", [(1, 3, 1)], {"axes": ints(-1)}),
        one("Unsqueeze", [(3, 4)], {"axes": ints(0, 2)}),
        one("CumSum", [(3, 4)], {"axis": np.array(0)}),
        one("Slice", [(5, 4)], {"a": ints(1, 0), "b": ints(4, 3)}),
        one("Slice", [(5, 4)], {"a": ints(3), "b": ints(-9), "c": ints(0), "d": ints(-1)}),
        one("Pad", [(3, 4)], {"pads": ints(1, 0, 2, 3)}, mode="reflect"),
        one("Pad", [(3, 4)], {"p": ints(1, 2), "v": np.float32(7), "axes": ints(0)}),
        one("Transpose", [(2, 3, 4)], {}),
        one("Transpose", [(2, 3, 4)], {}, perm=(1, 0, 2)),
        one("Reshape", [(2, 3, 4)], {"s": ints(0, -1)}),
        one("Reshape", [(2, 3, 4)], {"s": ints(-1)}),
        one("Flatten", [(2, 3, 4)], {}, axis=2),
        one("Flatten", [(2, 3, 4)], {}, axis=0),
        one("Flatten", [(2, 3, 4)], {}, axis=3),
        one("Flatten", [(2, 3, 4)], {}, axis=-1),
        one("Flatten", [(2, 3, 4)], {}, axis=-3),
        one("CastLike", [(4,)], {"like": np.zeros((2, 2), np.int64)}),
        one("Expand", [(3, 1)], {"s": ints(2, 1, 4)}),
        one("Expand", [(2, 3, 1)], {"s": ints(4)}),
        one("Tile", [(2, 3)], {"s": ints(2, 1)}),
        one("Gather", [(3, 4)], {"at": ints(2, 0)}, axis=0),
        one("Gather", [(3, 4)], {"at": np.array(-1)}, axis=-1),
        one("MatMul", [(2, 3, 4)], {"w": w}),
        one("MatMul", [(4,)], {"w": w}),
        one("MatMul", [(3, 4)], {"w": np.stack([w, w])}),
        one("MatMul", [(2, 3, 4), (4, 5)], {}),
        one("Gemm", [(3, 4)], {"w": w, "b": np.ones(5, np.float32)}, alpha=0.5),
        one("LayerNormalization", [(3, 4)], {"s": np.ones(4, np.float32)}),
        one("ArgMax", [(3, 4)], {}, axis=0),
        one("Conv", [(2, 4, 7)], {"k": kernel}, kernel_shape=(3,), pads=(1, 1)),
        one("MaxPool", [(2, 4, 7)], {}, kernel_shape=(3,), strides=(2,)),
        one("GlobalAveragePool", [(2, 4, 7)], {}),
    ]
    assert max(cases) < 1e-6, cases


def test_rows_look_up_in_one_table_along_any_axis() -> None:
    table = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    for axis in range(-3, 3):
        node = new_node("Gather", "table at", "y", axis=axis)
        at = Value("at", "int64", (2,))
        graph = Graph("g", (at,), (Value("y"),), (node,), {"table": table})
        feeds = [{"at": ints(0, 1)}, {"at": ints(1, 1)}]
        assert departure(graph, feeds) == 0


@pytest.mark.parametrize("start", [0, 1, -1, -9, 5])
@pytest.mark.parametrize("end", [None, 2, -1, -9, 9])
def test_sizes_of_a_row_do_not_count_the_rows(start: int, end: int | None) -> None:
    ends = {} if end is None else {"end": end}
    nodes = (
        new_node("Shape", "x", "sizes", start=start, **ends),
        new_node("CastLike", "sizes x", "floats"),
        new_node("ReduceSum", "floats", "sum", keepdims=0),
        new_node("Add", "x sum", "y"),
    )
    graph = Graph("g", (Value("x", "float32", (2, 5, 4)),), (Value("y"),), nodes, {})
    assert departure(graph, [{"x": np.full((2, 5, 4), at, np.float32)} for at in range(ROWS)]) == 0


def test_padding_by_a_value_of_the_row_and_reducing_no_axes_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="differ from row to row"):
        pads = new_node("Pad", "x pads value", "y")
        values = (Value("x", "float32", (3,)), Value("value", "float32", ()))
        mapped(Graph("g", values, (Value("y"),), (pads,), {"pads": ints(1, 0)}))
    with pytest.raises(UnsupportedError, match="without axes"):
        one("ReduceSum", [()], {}, keepdims=0)


def test_what_no_rule_maps_is_refused_by_name() -> None:
    node = new_node("NonZero", "x", "y")
    graph = Graph("g", (Value("x", "float32", (3,)),), (Value("y"),), (node,), {})
    with pytest.raises(UnsupportedError, match="NonZero is not computed for many rows"):
        mapped(graph)
