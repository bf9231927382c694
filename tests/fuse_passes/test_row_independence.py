"""Graphs whose rows are said to be independent, run on shuffled, changed and single rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.graphs import new_node, small_graph
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
                fed = {value.name: value for value in values}
                graph = small_graph([node], " ".join(outputs), constants, **fed)
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
        inputs = (value.complete(data_of(trial.feeds[0][value.name])) for value in graph.inputs)
        graph = replace(graph, inputs=tuple(inputs))
        feed = trial.feeds[-1]
        counts = {count_of(feed[name], axes[name]) for name in axes}
        if len(counts) == 1 and min(counts) > 1:
            yield graph, feed, axes


def mixed(name: str, axis: int, rank: int) -> dict[str, tuple[list[Node], dict[str, Any]]]:
    """Nodes that make "planted" of a value, so that a row has something of the other rows."""
    perm = (*(k for k in range(rank) if k != axis), axis)
    constants = {"pl_axis": [axis], "pl_first": [0], "pl_start": [-1], "pl_end": [-(2**63)]}
    constants |= {"pl_zero": 0, "pl_one": 1}
    count = new_node(f"pl_shape = Shape {name}", start=axis, end=axis + 1)
    to_float = {"to": "float32"}
    ways = {
        "softmax": [new_node(f"planted = Softmax {name}", axis=axis)],
        "cumulative sum": [new_node(f"planted = CumSum {name} pl_axis")],
        "reversed": [new_node(f"planted = Slice {name} pl_start pl_end pl_axis pl_start")],
        "centered": [
            new_node(f"pl_mean = ReduceMean {name} pl_axis"),
            new_node(f"planted = Sub {name} pl_mean"),
        ],
        "by the largest": [
            new_node(f"pl_max = ReduceMax {name} pl_axis"),
            new_node(f"planted = Div {name} pl_max"),
        ],
        "the first row": [
            new_node(f"pl_row = Gather {name} pl_first", axis=axis),
            new_node(f"planted = Add {name} pl_row"),
        ],
        "sorted": [count, new_node(f"planted pl_places = TopK {name} pl_shape", axis=axis)],
        "times the number of rows": [
            count,
            new_node("pl_count = Cast pl_shape", **to_float),
            new_node(f"planted = Mul {name} pl_count"),
        ],
        "and its number": [
            count,
            new_node("pl_size = Squeeze pl_shape pl_first"),
            new_node("pl_number = Range pl_zero pl_size pl_one"),
            new_node("pl_float = Cast pl_number", **to_float),
            new_node(f"pl_last = Transpose {name}", perm=perm),
            new_node("planted = Add pl_last pl_float"),
        ],
        "one scale for all": [
            new_node(f"planted pl_scale pl_zero_point = DynamicQuantizeLinear {name}")
        ],
    }
    arrays = {each: np.array(numbers) for each, numbers in constants.items()}
    return {how: (nodes, arrays) for how, nodes in ways.items()}


def test_random_graphs_that_keep_rows_apart_do_and_planted_mixing_is_never_missed() -> None:
    proved = total = planted = 0
    for seed in range(3 * GRAPHS):
        for graph, feed, axes in rows_of_trial(seed):
            for output in graph.outputs:
                one = replace(graph, outputs=(output,)).prune()
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
    values = {name: Value(name, "float32", (None, 2), 1) for name in "xyz"}
    nodes = (new_node("s = Add x y"), new_node("p = SequencePool z", kind="sum"))
    graph = small_graph(nodes, "s p", **values)
    known = independence(graph, dict.fromkeys("xyz", 0), ["s", "p"])
    assert not known.doubt and known.same_lengths == {("x", "y")}


@pytest.mark.parametrize("size", [None, 2])
def test_a_constant_for_each_place_in_the_batch_is_noticed(size: int | None) -> None:
    for k, differs in ((uniform(2, 3), True), (np.ones((2, 3), np.float32), False)):
        graph = small_graph([new_node("y = Add x k")], "y", {"k": k}, x=(size, 3))
        doubt = independence(graph, {"x": 0}, ["y"]).doubt
        assert ("'k'" in doubt) == differs and bool(doubt) == (differs or size is None)


@pytest.mark.parametrize("axis", [0, 1], ids=["batch-major", "time-major"])
def test_rows_are_found_again_after_axes_were_merged_in_their_own_order_only(axis: int) -> None:
    """(N, T, F) and (T, N, F) become the rows of a product, and (N, T, K)."""
    constants = {"flat": [-1, 3], "w": np.ones((3, 4), np.float32), "k": [4]}
    constants |= {"first": [0], "second": [2], "same": [0, 1], "turned": [1, 0]}
    for order in ("same", "turned"):
        nodes = (
            new_node("rows = Reshape x flat"),
            new_node("product = MatMul rows w"),
            new_node("shape = Shape x"),
            new_node("sizes = Slice shape first second"),
            new_node(f"front = Gather sizes {order}"),
            new_node("wanted = Concat front k", axis=0),
            new_node("y = Reshape product wanted"),
        )
        graph = small_graph(nodes, "y", constants, x=(None, None, 3))
        known = independence(graph, {"x": axis}, ["y"])
        assert known.doubt if order == "turned" else known.axes == {"y": axis}


SQUARE, CUBE = uniform(3, 3, seed=2), uniform(3, 3, 3, seed=3)
CALLED: list[tuple[str, dict[str, Any]]] = [
    *((f"MatMul {two}", {}) for two in ("x w", "w x", "x x", "m w", "w m", "x v", "v x")),
    *((f"Gemm {all_of}", {"transA": a}) for a in (0, 1) for all_of in ("m w", "m w w", "m w v")),
    ("Gemm w m", {}),
    *(("Einsum x w", {"equation": f"abc,{two}->abd"}) for two in ("cd", "bd", "ad")),
    *((f"Add x {other}", {}) for other in "wvm"),
    *(("Transpose x", {"perm": perm}) for perm in ((1, 0, 2), (2, 0, 1), (0, 2, 1))),
    *((f"ReduceMean x axis{k}", {"keepdims": 0}) for k in range(3)),
    *((f"CumSum x axis{k}", {}) for k in range(3)),
    *(("Gather x turn", {"axis": k}) for k in range(3)),
    *(("Softmax x", {"axis": k}) for k in range(3)),
    *(("LayerNormalization x w w", {"axis": k}) for k in (1, 2)),
    ("BatchNormalization x v v v p", {}),
    ("Trilu x", {}),
    *((f"Pad x shift{k}", {}) for k in range(3)),
    *((f"Slice x last before axis{k} last", {}) for k in range(3)),
    ("GatherElements x places", {"axis": 1}),
    ("Compress x some", {"axis": 1}),
    ("Split x", {"axis": 1}),
]


@pytest.mark.parametrize("fixed", [True, False])
def test_axes_of_equal_sizes_are_told_apart(fixed: bool) -> None:
    constants = {f"axis{k}": np.array([k]) for k in range(3)}
    constants |= {"w": SQUARE, "v": SQUARE[0], "p": np.abs(SQUARE[1]) + 1}
    constants |= {"turn": np.array([1, 2, 0]), "some": np.array([True, False, True])}
    constants |= {f"shift{k}": np.array([0, 0, 0] * 2) for k in range(3)}
    for k in range(3):  # as many steps more at the front as less at the end
        constants[f"shift{k}"][[k, k + 3]] = 1, -1
    constants |= {"last": np.array([-1]), "before": np.array([-(2**63)])}
    constants["places"] = np.random.default_rng(4).integers(0, 3, (3, 3, 3))
    arrays, proved = {"x": CUBE, "m": SQUARE + 1}, 0
    for call, attributes in CALLED:
        node = new_node(f"y = {call}", **attributes)
        feed = {name: arrays[name] for name in node.inputs if name in arrays}
        for axis in range(3):
            axes = {name: min(axis, array.ndim - 1) for name, array in feed.items()}
            shapes = {
                name: tuple(None if k == at and not fixed else 3 for k in range(feed[name].ndim))
                for name, at in axes.items()
            }
            graph = small_graph([node], "y", constants, **shapes).prune()
            if not (known := independence(graph, axes, ["y"])).doubt:
                check_rows(graph, feed, axes, known.axes)
                proved += 1
    assert proved > 40, proved
