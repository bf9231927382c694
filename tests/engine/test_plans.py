"""Plans compute what the walk in Python does, for all operators, graphs and sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.arrays import uniform
from support.checking import assert_close
from support.fusing import departure
from support.graphs import new_node, reference, rnn_node, small, unfused
from support.operator_cases import (
    FEED,
    WALKED,
    cases,
    differs,
    half,
    half_apart,
    in_halves,
    model,
)
from support.planning import agrees, as_it_is, check_shared, planned
from support.random_graphs import GRAPHS
from support.random_models import random_trial
from support.taggers import documents, of_documents, padder, sentences, tagger, unpadded

from onernn import Cell, Graph, Ragged, RnnSpec, Session, ShapeError, UnsupportedError
from onernn.ir.errors import BudgetError, OnernnError
from onernn.ir.graph import Node
from onernn.ir.ragged import data_of

pytestmark = pytest.mark.usefixtures("built")


def test_every_operator_gives_what_the_walk_gives() -> None:
    nodes, names = cases()
    graph = model(nodes, names)
    session = as_it_is(graph)
    want, got = unfused(graph, FEED), session.run(FEED)
    ops = {name: node.op for node in nodes for name in node.outputs}
    assert not [(n, ops.get(n)) for n in want if differs(data_of(got[n]), data_of(want[n]))]
    for name, value in want.items():
        assert type(got[name]) is type(value), name
        if isinstance(value, Ragged):
            assert got[name].lod == value.lod, name
    assert not planned(session).outside


def test_operators_without_a_step_in_cpp_are_steps_of_numpy() -> None:
    nodes = [Node(op, tuple(i.split(" ")), (f"v{k}",), at) for k, (op, i, at) in enumerate(WALKED)]
    nodes.append(new_node("negated = Neg x"))
    graph = model(nodes, [node.outputs[0] for node in nodes])
    session = as_it_is(graph)
    feed = {value.name: FEED[value.name] for value in graph.inputs}
    agrees(session, feed, rtol=0)
    assert len(planned(session).outside) == len(WALKED)


def test_every_operator_of_halves_gives_what_the_walk_gives() -> None:
    graph, feed = in_halves()
    session = as_it_is(graph)
    want, got = session._walk(feed, None), session.run(feed)
    ops = {name: node.op for node in graph.nodes for name in node.outputs}
    for name, value in want.items():
        mine, theirs = data_of(got[name]), data_of(value)
        assert mine.dtype == theirs.dtype, (name, ops[name])
        assert not half_apart(mine, theirs), (name, ops[name])
    assert not planned(session).outside


def between_casts(graph: Graph) -> Graph:
    """The graph over halves; layers compute in float32, as those of ONNX files in float16 do."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op != "Rnn":
            nodes.append(node)
            continue
        names = [name for name in (*node.inputs, *node.outputs) if name]
        wide = {name: f"wide{len(nodes)} {name}" for name in names}
        given, made = (dict.fromkeys(filter(None, side)) for side in (node.inputs, node.outputs))
        nodes += [Node("Cast", (name,), (wide[name],), {"to": "float32"}) for name in given]
        nodes.append(node.rename(wide))
        nodes += [Node("Cast", (wide[name],), (name,), {"to": "float16"}) for name in made]
    inputs = tuple(replace(v, dtype=str(half(np.zeros(0, v.dtype)).dtype)) for v in graph.inputs)
    constants = {name: half(array) for name, array in graph.constants.items()}
    return replace(graph, inputs=inputs, nodes=tuple(nodes), constants=constants)


def test_random_graphs_of_halves_give_what_the_walk_gives() -> None:
    planned_ones = compared = 0
    for seed in range(GRAPHS // 2):
        trial = random_trial(seed)
        session = as_it_is(between_casts(trial.graph))
        for given in trial.feeds:
            feed = {name: half(value) for name, value in given.items()}
            try:
                want = session._walk(feed, None)
            except OnernnError as error:
                with pytest.raises(type(error)):
                    session.run(feed)
                continue
            got = session.run(feed)
            # A sum that differs in float32 may round to the next half, one operator after another.
            for name in want:
                assert not departure(got[name], want[name], 2e-2), (seed, name)
            compared += 1
        planned_ones += any(plan is not None for plan in session._plans.values())
    assert planned_ones > 0.7 * (GRAPHS // 2) and compared > GRAPHS // 2


def same(got: Any, want: Any) -> None:
    assert_array_equal(got["tags"].data, want["tags"].data)
    assert_array_equal(got["tags"].offsets, want["tags"].offsets)
    assert_allclose(got["scores"].data, want["scores"].data, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [15, 16, 17, 64, 100])
def test_products_of_stacks_of_matrices_are_those_of_each(dtype: str, columns: int) -> None:
    rng = np.random.default_rng(columns)
    a, b = (rng.normal(size=shape).astype(dtype) for shape in ((3, 9, 20), (3, 20, columns)))
    inputs = {"a": (dtype, *a.shape), "b": (dtype, *b.shape)}
    session = Session(small([new_node("y = MatMul a b")], inputs), backend="kernels")
    got = session.run({"a": a, "b": b})["y"]
    assert "one call of the library" in session.explain()
    want = np.stack([x.astype("f8") @ y.astype("f8") for x, y in zip(a, b, strict=True)])
    assert_close(got, want.astype(dtype))


@pytest.mark.parametrize("columns", [15, 16, 17, 64, 100])
def test_the_arrays_of_steps_begin_a_cache_line(columns: int) -> None:
    weight = uniform(20, columns)
    graph = small([new_node("y = MatMul x w")], {"x": ("float32", 9, 20)}, w=weight)
    session = Session(graph, backend="kernels")
    session.run({"x": np.ones((9, 20), np.float32)})
    *_, packed = planned(session).encoded.keeps
    assert packed.size >= weight.size and packed.ctypes.data % 64 == 0


RAGGED = {"words": (tagger(), sentences), "documents": (documents(), of_documents)}
RAGGED["padded to the longest"] = padder(), unpadded


@pytest.mark.parametrize("name", RAGGED)
def test_one_plan_runs_ragged_batches_of_all_sizes_in_several_threads(name: str) -> None:
    """Sentences, two LoD levels, and sentences padded to the longest one of a call."""
    graph, feed_of = RAGGED[name]
    session, rng = Session(graph, backend="kernels"), np.random.default_rng(0)
    feeds = [feed_of(rng, count) for count in (3, 1, 20, 0, 7, 2)]
    for feed in feeds:
        want, got = reference(graph, feed), session.run(feed)
        for key, value in want.items():
            assert_close(data_of(got[key]), data_of(value))
            assert getattr(got[key], "lod", None) == getattr(value, "lod", None), key
    assert len(session._plans) == 1 and not planned(session).outside
    check_shared(session, feeds, 50)


@pytest.mark.parametrize("cell", [Cell.GRU, Cell.LSTM])
def test_layers_in_bytes_are_steps_of_the_plan(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they refuse is refused as by themselves; NaN stays in its sequence."""
    spec = RnnSpec(cell, 6, 20, direction="bidirectional_concat", layers=2)
    rnn = rnn_node("y = Rnn n", spec)
    nodes = (new_node("n = Neg x"), rnn, new_node("z = Tanh y"))
    for depth, x in enumerate(((None, None, 6), [None, 6])):
        session = Session(small(nodes, {"x": x}, "z"), "u8", backend="kernels")
        rng = np.random.default_rng(0)
        for count in (3, 1, 8):
            words = rng.normal(size=(4 * count, 6)).astype(np.float32)
            for odd in (0, np.nan, np.inf):
                words[1, 2] = odd
                given = Ragged(words, 4 * np.arange(count + 1)) if depth else words[:, None]
                if odd == np.inf:
                    with pytest.raises(UnsupportedError, match="for u8, got inf"):
                        session.run({"x": given})
                    continue
                want = data_of(session._walk({"x": given}, None)["z"])
                with monkeypatch.context() as patch:  # nor does it take the plan from the others
                    patch.delattr(Session, "_walk")
                    got = data_of(session.run({"x": given})["z"])
                assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        assert not planned(session).outside


@pytest.mark.parametrize("direction", ["left2right", "right2left"])
def test_a_plan_gives_the_cell_state_of_every_word(direction: Any) -> None:
    spec = RnnSpec(Cell.LSTM, 3, 18, direction=direction, peephole=True)
    node = rnn_node("y h_n  cells = Rnn x h c", spec)
    rng = np.random.default_rng(0)
    for dense in (False, True):
        inputs = dict.fromkeys("hc", (1, 1, None, 18)) | {
            "x": (None, None, 3) if dense else [None, 3]
        }
        graph = small((node,), inputs, "y h_n cells")
        rows = rng.normal(size=(4, 3, 3) if dense else (9, 3)).astype(np.float32)
        feed = {"x": rows if dense else Ragged(rows, [0, 4, 4, 9])}
        feed |= {name: rng.normal(size=(1, 1, 3, 18)).astype(np.float32) for name in "hc"}
        session = Session(graph, backend="kernels")
        want, got = reference(graph, feed), session.run(feed)
        assert not planned(session).outside
        for name, value in want.items():
            assert_close(data_of(got[name]), data_of(value))


def test_an_index_outside_of_its_table_is_told_as_the_walk_tells_it() -> None:
    session = Session(tagger(), backend="kernels")
    with pytest.raises(ShapeError, match="Gather"):
        session.run({"words": Ragged(np.array([1, 50]), [0, 2])})
    rng = np.random.default_rng(0)
    same(session.run(feed := sentences(rng, 3)), reference(tagger(), feed))


def test_a_run_takes_no_more_memory_than_it_may() -> None:
    session = Session(tagger(), backend="kernels", max_bytes=4096)
    with pytest.raises(BudgetError):
        session.run(sentences(np.random.default_rng(0), 1000))


def test_outputs_are_arrays_of_their_own() -> None:
    session = Session(tagger(), backend="kernels")
    feed = sentences(np.random.default_rng(0), 4)
    first = session.run(feed)
    kept = {name: value.data.copy() for name, value in first.items()}
    session.run(sentences(np.random.default_rng(1), 4))
    for name, array in kept.items():
        assert_array_equal(first[name].data, array)


def test_steps_that_are_squeezed_tell_how_many_there_are() -> None:
    """Of another number of steps the walk tells that the first one is none."""
    parts = [f"p{k}" for k in range(3)]
    nodes = [Node("Split", ("x",), tuple(parts))]
    nodes += [new_node(f"s{part} = Squeeze {part} axis") for part in parts]
    nodes += [Node("Sum", tuple(f"s{part}" for part in parts), ("y",))]
    graph = small(nodes, {"x": (None, None)}, axis=np.array([0]))
    session = as_it_is(graph)
    for width in (4, 1):
        feed = {"x": np.arange(3.0 * width, dtype=np.float32).reshape(3, width)}
        assert_array_equal(session.run(feed)["y"], feed["x"].sum(0))
        assert not planned(session).outside
    for steps in (2, 4):
        with pytest.raises(ShapeError, match="Squeeze"):
            session.run({"x": np.ones((steps, 2), np.float32)})


def test_elementwise_operators_in_a_row_become_loops_of_some_at_a_time() -> None:
    names = ["Tanh", "Neg", "Sigmoid", "Abs"]
    for count in (3, 19, 24, 70):
        nodes = [new_node("v0 = MatMul x w")]
        nodes += [Node(names[k % 4], (f"v{k}",), (f"v{k + 1}",)) for k in range(count)]
        session = as_it_is(small(nodes, {"x": (None, 4)}, f"v{count}", w=uniform(4, 4)))
        agrees(session, {"x": uniform(3, 4, seed=1)})
        plan = planned(session)
        assert not plan.outside and len(plan.encoded.steps) <= 2 + count // 9


def test_a_join_with_nothing_is_a_view_of_the_rest() -> None:
    """Of what has no elements no step may be left, which would write into the caller's memory."""
    nodes = (
        new_node("rows = Transpose x", perm=(1, 2, 0)),
        new_node("joined = Concat nothing rows", axis=2),
        new_node("y = Concat s joined", axis=2),
    )
    shapes = {"nothing": (1, 4, 0), "s": (1, 4, 1), "x": (1, 1, 4)}
    graph = small(nodes, shapes)
    feed = {name: uniform(*shape) for name, shape in shapes.items()}
    want = np.concatenate([feed["s"], feed["x"].transpose(1, 2, 0)], 2)
    assert np.array_equal(Session(graph).run(feed)["y"], want)
