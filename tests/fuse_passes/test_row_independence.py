"""Graphs whose rows are said to be independent, run on shuffled, changed and single rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from support.operator_cases import CASES, CONSTANTS, COUNTS, FEED, WALKED
from support.random_graphs import GRAPHS
from support.random_models import random_trial

from onernn import Graph, OnernnError, Ragged, Session, fuse
from onernn.fuse_passes.row_independence import independence
from onernn.ir.graph import Node, Value
from onernn.ir.ragged import data_of

RNG = np.random.default_rng(0)


def take(value: Any, rows: Any, axis: int) -> Any:
    """Some rows of a batch, in this order."""
    if not isinstance(value, Ragged):
        return np.take(value, rows, axis)
    places, levels = np.asarray(rows), []
    for level in (*value.outer, value.offsets):
        parts = [np.arange(level[place], level[place + 1]) for place in places]
        levels.append(np.cumsum([0, *map(len, parts)]))
        places = np.concatenate([np.zeros(0, np.int64), *parts])
    return Ragged(value.data[places], levels[-1], tuple(levels[:-1]))


def count_of(value: Any, axis: int) -> int:
    if isinstance(value, Ragged):
        return len((*value.outer, value.offsets)[0]) - 1
    return int(value.shape[axis])


def is_fixed(graph: Graph, axes: dict[str, int]) -> bool:
    """Whether the model declares the number of rows."""
    return any(
        value.shape and not value.lod_depth and value.shape[axes[value.name]] is not None
        for value in graph.inputs
    )


def check_rows(graph: Graph, feed: dict[str, Any], axes: dict[str, int], where: Any) -> None:
    """Every row by itself, and all rows in another order, have the results that they have here."""
    session = Session(graph, backend="reference", passes=())
    count = {count_of(feed[value.name], axes[value.name]) for value in graph.inputs}.pop()
    batches = [RNG.permutation(count)]
    if not is_fixed(graph, axes):
        batches += [np.array([row]) for row in range(count)]
        batches.append(np.repeat(np.arange(count), 2))
    whole = session.run(feed)
    for rows in batches:
        try:
            part = session.run({name: take(x, rows, axes[name]) for name, x in feed.items()})
        except OnernnError:  # a constant fixes the number of rows
            assert len(rows) != count
            continue
        for name, axis in where.items():
            got, want = part[name], take(whole[name], rows, axis)
            if isinstance(want, Ragged):
                assert isinstance(got, Ragged) and got.lod == want.lod, (name, rows)
            got, want = data_of(got), data_of(want)
            assert got.shape == want.shape, (name, rows, graph.nodes)
            np.testing.assert_allclose(got, want, 1e-4, 1e-5, err_msg=f"{name} {rows}")


def operator_graphs() -> Iterator[tuple[Graph, dict[str, Any], dict[str, int]]]:
    """Each case of each operator with rows on every axis of its inputs, and in some of these."""
    for op, inputs, attributes in [*CASES, *WALKED]:
        names = inputs.split(" ")
        there = [*dict.fromkeys(filter(None, names))]
        arrays = {**FEED, **CONSTANTS, "zero": np.array(0), "one": np.array(1)}
        ways = []
        for name in there:
            value = arrays[name]
            axes = [0] if isinstance(value, Ragged) else range(value.ndim)
            ways.append([None, *axes] if not isinstance(value, Ragged) else [0])
        for chosen in product(*ways):
            axes = {k: axis for k, axis in zip(there, chosen, strict=True) if axis is not None}
            counts = {count_of(arrays[name], axis) for name, axis in axes.items()}
            if len(counts) != 1:
                continue
            for fixed in (False, True):
                values = []
                for name, axis in axes.items():
                    array = data_of(arrays[name])
                    depth = len(getattr(arrays[name], "lod", ()))
                    open_axes = [0] if depth else [] if fixed else [axis]
                    shape = [None if k in open_axes else s for k, s in enumerate(array.shape)]
                    values.append(Value(name, array.dtype.name, tuple(shape), depth))
                count = {**COUNTS, "MaxPool": 2}.get(op, 1)
                outputs = tuple(f"out{k}" for k in range(count))
                constants = {name: arrays[name] for name in there if name not in axes}
                node = Node(op, tuple(names), outputs, attributes)
                graph = Graph("one", tuple(values), tuple(map(Value, outputs)), (node,), constants)
                yield graph, {name: arrays[name] for name in axes}, axes


def test_operators_that_keep_rows_apart_give_each_row_what_it_has_alone() -> None:
    proved, certain = dict[str, int](), 0
    for graph, feed, axes in operator_graphs():
        for output in graph.outputs:
            known = independence(graph, axes, [output.name])
            certain += known.certain
            assert not (known.certain and not known.doubt)
            if known.doubt:
                continue
            try:
                Session(graph, backend="reference", passes=()).run(feed)
            except OnernnError:
                continue  # rows on an axis that the operator does not take
            check_rows(graph, feed, axes, known.axes)
            op = graph.nodes[0].op
            proved[op] = proved.get(op, 0) + 1
    assert len(proved) > 95 and certain > 300, (len(proved), certain)


def rows_of_trial(seed: int) -> Iterator[tuple[Graph, dict[str, Any], dict[str, int]]]:
    trial = random_trial(seed)
    for graph, axis in product((trial.graph, fuse(trial.graph).model), (0, 1)):
        axes = {
            value.name: min(axis, data_of(trial.feeds[0][value.name]).ndim - 1)
            for value in graph.inputs
        }
        if axis and all(value.lod_depth for value in graph.inputs):
            continue
        if min(axes.values()) < 0:
            continue  # a single number has no rows
        inputs = (value.opened(data_of(trial.feeds[0][value.name])) for value in graph.inputs)
        graph = replace(graph, inputs=tuple(inputs))
        for feed in trial.feeds[-1:]:
            counts = {count_of(feed[name], axes[name]) for name in axes}
            if len(counts) == 1 and min(counts) > 1:
                yield graph, feed, axes


def mixed(name: str, axis: int, rank: int) -> dict[str, tuple[list[Node], dict[str, Any]]]:
    """Nodes that make "planted" of a value, so that a row has something of the other rows."""
    perm = tuple(k for k in range(rank) if k != axis)
    constants = {
        "pl_axis": np.array([axis]),
        "pl_first": np.array([0]),
        "pl_start": np.array([-1]),
        "pl_end": np.array([-(2**63)]),
    }
    center = [
        Node("ReduceMean", (name, "pl_axis"), ("pl_mean",)),
        Node("Sub", (name, "pl_mean"), ("planted",)),
    ]
    largest = [
        Node("ReduceMax", (name, "pl_axis"), ("pl_max",)),
        Node("Div", (name, "pl_max"), ("planted",)),
    ]
    first = [
        Node("Gather", (name, "pl_first"), ("pl_row",), {"axis": axis}),
        Node("Add", (name, "pl_row"), ("planted",)),
    ]
    counted = [
        Node("Shape", (name,), ("pl_shape",), {"start": axis, "end": axis + 1}),
        Node("Cast", ("pl_shape",), ("pl_count",), {"to": "float32"}),
        Node("Mul", (name, "pl_count"), ("planted",)),
    ]
    numbered = [
        Node("Shape", (name,), ("pl_shape",), {"start": axis, "end": axis + 1}),
        Node("Squeeze", ("pl_shape", "pl_first"), ("pl_size",)),
        Node("Range", ("pl_zero", "pl_size", "pl_one"), ("pl_number",)),
        Node("Cast", ("pl_number",), ("pl_float",), {"to": "float32"}),
        Node("Transpose", (name,), ("pl_last",), {"perm": (*perm, axis)}),
        Node("Add", ("pl_last", "pl_float"), ("planted",)),
    ]
    backwards = ("pl_start", "pl_end", "pl_axis", "pl_start")
    ways = {
        "softmax": [Node("Softmax", (name,), ("planted",), {"axis": axis})],
        "cumulative sum": [Node("CumSum", (name, "pl_axis"), ("planted",))],
        "reversed": [Node("Slice", (name, *backwards), ("planted",))],
        "centered": center,
        "by the largest": largest,
        "the first row": first,
        "sorted": [
            Node("Shape", (name,), ("pl_k",), {"start": axis, "end": axis + 1}),
            Node("TopK", (name, "pl_k"), ("planted", "pl_places"), {"axis": axis}),
        ],
        "times the number of rows": counted,
        "and its number": numbered,
        "one scale for all": [
            Node("DynamicQuantizeLinear", (name,), ("planted", "pl_scale", "pl_zero_point"))
        ],
    }
    constants |= {"pl_zero": np.array(0), "pl_one": np.array(1)}
    return {how: (nodes, constants) for how, nodes in ways.items()}


def test_random_graphs_that_keep_rows_apart_do_and_planted_mixing_is_never_missed() -> None:
    proved = total = planted = 0
    for seed in range(3 * GRAPHS):
        for graph, feed, axes in rows_of_trial(seed):
            for output in graph.outputs:
                one = replace(graph, outputs=(output,)).pruned()
                known = independence(one, axes, [output.name])
                total += 1
                if known.doubt:
                    continue
                proved += 1
                check_rows(one, feed, axes, known.axes)
                value = Session(one, backend="reference", passes=()).run(feed)[output.name]
                if isinstance(value, Ragged) or value.dtype != np.float32:
                    continue
                (axis,) = known.axes.values()
                for how, (nodes, constants) in mixed(output.name, axis, value.ndim).items():
                    if how == "times the number of rows" and is_fixed(one, axes):
                        continue  # it is a constant
                    longer = replace(
                        one,
                        nodes=(*one.nodes, *nodes),
                        outputs=(Value("planted"),),
                        constants={**one.constants, **constants},
                    )
                    assert independence(longer, axes, ["planted"]).doubt, (seed, how)
                    planted += 1
    assert proved > total / 5 and planted > 5 * GRAPHS, (proved, planted, total)


def test_two_ragged_inputs_that_meet_must_have_equal_lengths() -> None:
    values = tuple(Value(name, "float32", (None, 2), 1) for name in "xyz")
    nodes = (Node("Add", ("x", "y"), ("s",)), Node("SequencePool", ("z",), ("p",), {"kind": "sum"}))
    graph = Graph("g", values, (Value("s"), Value("p")), nodes, {})
    known = independence(graph, dict.fromkeys("xyz", 0), ["s", "p"])
    assert not known.doubt and known.same_lengths == {("x", "y")}


@pytest.mark.parametrize("size", [None, 2])
def test_a_constant_for_each_place_in_the_batch_is_noticed(size: int | None) -> None:
    graph = Graph(
        "g",
        (Value("x", "float32", (size, 3)),),
        (Value("y"),),
        (Node("Add", ("x", "k"), ("y",)),),
        {"k": np.arange(6, dtype=np.float32).reshape(2, 3)},
    )
    assert "'k', which differs along the axis" in independence(graph, {"x": 0}, ["y"]).doubt
    same = replace(graph, constants={"k": np.ones((2, 3), np.float32)})
    assert bool(independence(same, {"x": 0}, ["y"]).doubt) == (size is None)


@pytest.mark.parametrize("axis", [0, 1], ids=["batch-major", "time-major"])
def test_rows_are_found_again_after_axes_were_merged_in_their_own_order_only(axis: int) -> None:
    """(N, T, F) and (T, N, F) become the rows of a product, and (N, T, K)."""
    nodes = (
        Node("Reshape", ("x", "flat"), ("rows",)),
        Node("MatMul", ("rows", "w"), ("product",)),
        Node("Slice", ("shape", "first", "second"), ("front",)),
        Node("Concat", ("front", "k"), ("wanted",), {"axis": 0}),
        Node("Reshape", ("product", "wanted"), ("y",)),
    )
    nodes = (Node("Shape", ("x",), ("shape",)), *nodes)
    constants = {"flat": np.array([-1, 3]), "w": np.ones((3, 4), np.float32), "k": np.array([4])}
    constants |= {"first": np.array([0]), "second": np.array([2])}
    graph = Graph("g", (Value("x", "float32", (None, None, 3)),), (Value("y"),), nodes, constants)
    known = independence(graph, {"x": axis}, ["y"])
    assert not known.doubt and known.axes == {"y": axis}
    turned = (Node("Gather", ("front0", "order"), ("front",)),)
    nodes = tuple(replace(n, outputs=("front0",)) if n.op == "Slice" else n for n in nodes)
    nodes = (*nodes[:4], *turned, *nodes[4:])
    other = replace(graph, nodes=nodes, constants={**constants, "order": np.array([1, 0])})
    assert independence(other, {"x": axis}, ["y"]).doubt


SQUARE = np.random.default_rng(2).normal(size=(3, 3)).astype(np.float32)
EQUAL: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("MatMul", ("x", "w"), {}),
    ("MatMul", ("w", "x"), {}),
    ("MatMul", ("x", "x"), {}),
    ("MatMul", ("m", "w"), {}),
    ("MatMul", ("w", "m"), {}),
    ("MatMul", ("x", "v"), {}),
    ("MatMul", ("v", "x"), {}),
    *(("Gemm", ("m", "w", *c), {"transA": a}) for a in (0, 1) for c in ((), ("w",), ("v",))),
    ("Gemm", ("w", "m"), {}),
    *(("Einsum", ("x", "w"), {"equation": f"abc,{two}->abd"}) for two in ("cd", "bd", "ad")),
    ("Add", ("x", "w"), {}),
    ("Add", ("x", "v"), {}),
    ("Add", ("x", "m"), {}),
    *(("Transpose", ("x",), {"perm": perm}) for perm in ((1, 0, 2), (2, 0, 1), (0, 2, 1))),
    *(("ReduceMean", ("x", f"axis{k}"), {"keepdims": 0}) for k in range(3)),
    *(("CumSum", ("x", f"axis{k}"), {}) for k in range(3)),
    *(("Gather", ("x", "turn"), {"axis": k}) for k in range(3)),
    *(("Softmax", ("x",), {"axis": k}) for k in range(3)),
    *(("LayerNormalization", ("x", "w", "w"), {"axis": k}) for k in (1, 2)),
    *(("BatchNormalization", ("x", "v", "v", "v", "p"), {}) for _ in range(1)),
    ("Trilu", ("x",), {}),
    *(("Pad", ("x", f"shift{k}"), {}) for k in range(3)),
    *(("Slice", ("x", "last", "before", f"axis{k}", "last"), {}) for k in range(3)),
    ("GatherElements", ("x", "places"), {"axis": 1}),
    ("Compress", ("x", "some"), {"axis": 1}),
    ("Split", ("x",), {"axis": 1}),
]


@pytest.mark.parametrize("fixed", [True, False])
def test_axes_of_equal_sizes_are_told_apart(fixed: bool) -> None:
    cube = np.random.default_rng(3).normal(size=(3, 3, 3)).astype(np.float32)
    constants = {f"axis{k}": np.array([k]) for k in range(3)}
    constants |= {"w": SQUARE, "v": SQUARE[0], "p": np.abs(SQUARE[1]) + 1}
    constants |= {"turn": np.array([1, 2, 0]), "some": np.array([True, False, True])}
    constants |= {f"shift{k}": np.array([0, 0, 0] * 2) for k in range(3)}
    for k in range(3):  # as many steps more at the front as less at the end
        constants[f"shift{k}"][[k, k + 3]] = 1, -1
    constants |= {"last": np.array([-1]), "before": np.array([-(2**63)])}
    constants["places"] = np.random.default_rng(4).integers(0, 3, (3, 3, 3))
    proved = 0
    for op, names, attributes in EQUAL:
        feed = {name: {"x": cube, "m": SQUARE + 1}[name] for name in names if name in "xm"}
        for axis in range(3):
            axes = {name: min(axis, array.ndim - 1) for name, array in feed.items()}
            inputs = tuple(
                Value(
                    n,
                    "float32",
                    tuple(None if k == axes[n] and not fixed else 3 for k in range(a.ndim)),
                )
                for n, a in feed.items()
            )
            node = Node(op, names, ("y",), attributes)
            graph = Graph("g", inputs, (Value("y"),), (node,), constants).pruned()
            if not (known := independence(graph, axes, ["y"])).doubt:
                check_rows(graph, feed, axes, known.axes)
                proved += 1
    assert proved > 40, proved
