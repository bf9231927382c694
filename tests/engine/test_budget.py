"""A run takes no more memory than its budget, and refuses before it does."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.branching import branch
from support.graphs import new_node, small
from support.looping import scan

from onernn import BudgetError, Graph, Ragged, Session, UnsupportedError, load
from onernn.ir.budget import Budget
from onernn.ir.graph import Node, Value
from onernn.ir.ragged import data_of
from onernn.ops import OPERATORS, growth
from onernn.verification.input_generation import make_inputs
from onernn.verification.recording import read_arrays, read_inputs

MOST = 10**7
"""Bytes that the runs below may take. Each would take ten times as many, or far more."""

LONG = np.ones(10**4, np.float32)
COLUMN, ROW = LONG[:, None], LONG[None]
WORDS = Ragged(np.ones((10**4, 1), np.float32), [0, 10**4, *[10**4] * 10**4])
WIDE = Ragged(np.ones((1, 10**4), np.float32), [0, 1, *[1] * 10**4])


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


Call = tuple[list[Any], dict[str, Any]]
GREEDY: dict[str, Call] = {
    "Add": ([COLUMN, ROW], {}),
    "Where": ([COLUMN > 0, ROW, np.float64(1)], {}),
    "Clip": ([COLUMN, ROW], {}),
    "PRelu": ([COLUMN, ROW], {}),
    "Concat": ([LONG[None].repeat(100, 0)] * 30, {"axis": 0}),
    "MatMul": ([COLUMN, ROW], {}),
    "Gemm": ([ROW, ROW], {"transA": 1}),
    "Einsum": ([LONG, LONG], {"equation": "i,j->ij"}),
    "Expand": ([LONG, ints(10**6, 1)], {}),
    "ConstantOfShape": ([ints(10**9)], {}),
    "Range": ([np.int64(0), np.int64(10**9), np.int64(1)], {}),
    "Tile": ([LONG, ints(10**4)], {}),
    "Pad": ([LONG, ints(0, 10**9)], {}),
    "Gather": ([ROW, np.zeros(10**4, np.int64)], {}),
    "GatherND": ([ROW, np.zeros((10**4, 1), np.int64)], {}),
    "OneHot": ([ints(*range(100)), ints(10**7), LONG[:2]], {}),
    "Cast": ([np.ones(3 * 10**6, bool)], {"to": "float64"}),
    "ArgMax": ([np.ones((3 * 10**6, 1), np.int8)], {"axis": 1}),
    "NonZero": ([np.ones((3, 10**6), np.int8)], {}),
    "Conv": ([np.ones((1, 1, 3), np.float32)] * 2, {"pads": (10**7, 0)}),
    "ConvTranspose": ([np.ones((1, 1, 3), np.float32)] * 2, {"strides": (10**7,)}),
    "Resize": ([np.ones((1, 3), np.float32)], {"scales": (1.0, 1e7)}),
    "DFT": ([np.ones((1, 3, 1), np.float32), ints(10**7)], {}),
    "STFT": ([np.ones((1, 10**4, 1)), ints(1), np.ones(9000)], {}),
    "MaxPool": ([np.ones((1, 1, 3))], {"kernel_shape": (10**7,), "pads": (0, 10**7 - 1)}),
    "LayerNormalization": ([COLUMN, LONG], {}),
    "ReduceSum": ([np.empty((2**40, 0), np.float32), ints(1)], {}),
    "Sample": ([np.int64(1), COLUMN, ROW], {"distribution": "uniform"}),
    "SequencePad": ([WORDS], {}),
    "SequenceFill": ([WIDE, np.float32(0)], {"time": 10**5}),
    "SequencePool": ([WIDE], {"kind": "sum", "empty": 0.0}),
    "SequenceContext": ([WORDS], {"length": 10**6, "start": 0}),
    "SequenceExpand": ([LONG[None], Ragged(WORDS.data, [0, 10**4])], {"level": 0}),
    "CrfDecode": ([Ragged(np.ones((10**3, 99), np.float32), range(1001)), np.ones((101, 99))], {}),
}


@contextmanager
def peak() -> Iterator[list[int]]:
    """The largest number of bytes that were taken inside."""
    found: list[int] = []
    tracemalloc.start()
    try:
        yield found
    finally:
        found.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


def model_of(nodes: list[Node], feed: Mapping[str, Any], output: str) -> Graph:
    depths = {name: 1 if isinstance(value, Ragged) else 0 for name, value in feed.items()}
    inputs = tuple(Value(name, lod_depth=depth) for name, depth in depths.items())
    return Graph("m", inputs, (Value(output),), tuple(nodes), {})


def refused(nodes: list[Node], feed: Mapping[str, Any], output: str = "y", most: int = MOST) -> str:
    """What the refusal says; nothing large was made before."""
    session = Session(model_of(nodes, feed, output), backend="reference", max_bytes=most)
    with peak() as taken, pytest.raises(BudgetError) as error:
        session.run(feed)
    assert taken[0] < 2 * most
    return str(error.value)


@pytest.mark.parametrize("op", GREEDY)
def test_operators_ask_before_they_grow(op: str) -> None:
    values, attributes = GREEDY[op]
    feed = {f"i{k}": value for k, value in enumerate(values)}
    said = refused([Node(op, tuple(feed), ("y",), attributes)], feed)
    assert "node 'y'" in said and "10,000,000" in said and "max_bytes" in said


def test_doubling_34_times_is_refused_early() -> None:
    nodes = [Node("Concat", (f"x{k}",) * 2, (f"x{k + 1}",), {"axis": 0}) for k in range(34)]
    said = refused(nodes, {"x0": np.ones(1, np.float32)}, "x34")
    assert "node 'x21'" in said  # of 2**23 bytes, behind as many in those before it


def test_a_view_of_one_number_is_counted_where_it_grows() -> None:
    """Expand gives a view without memory of its own; what copies it would not."""
    shape = new_node("s = ConstantOfShape n", value=ints(10**4))
    nodes = [shape, new_node("w = Expand x s"), new_node("y = Neg w")]
    refused(nodes, {"x": np.ones(1, np.float32), "n": ints(2)})


def loop(body: list[Node], outputs: str, collected: int = 0, **constants: np.ndarray) -> list[Node]:
    """A loop of a carried x over a body that makes the named outputs of k, go and x."""
    inside = branch(*body, takes="k go x", gives=outputs, **constants)
    made = ("y", *(f"c{k}" for k in range(collected)))
    return [Node("Loop", ("n", "", "i"), made, {"body": inside, "carried": 1})]


def test_a_loop_that_doubles_is_refused() -> None:
    body = [new_node("z = Concat x x", axis=0), new_node("on = Identity go")]
    said = refused(loop(body, "on z"), {"n": np.int64(100), "i": np.ones(1, np.float32)})
    assert "node 'y' (Loop)" in said


@pytest.mark.parametrize("size, most", [(1, 10**5), (10**4, MOST)])
def test_a_loop_that_collects_is_refused(size: int, most: int) -> None:
    body = [new_node("z = Neg x"), new_node("on = Identity go")]
    feed = {"n": np.int64(10**6), "i": np.ones(size, np.float32)}
    refused(loop(body, "on z z", 1), feed, most=most)


def test_a_loop_that_collects_parts_of_large_values_keeps_the_parts_only() -> None:
    """A view of one number would keep its whole array alive, turn by turn."""
    cut = new_node("part = Slice w zero one")
    body = [new_node("w = Neg x"), cut, new_node("on = Identity go")]
    (node,) = loop(body, "on x part", 1, zero=ints(0), one=ints(1))
    feed = {"n": np.int64(100), "i": np.ones(10**6, np.float32)}
    session = Session(model_of([node], feed, "c0"), backend="reference", max_bytes=2 * MOST)
    with peak() as taken:
        out = session.run(feed)["c0"]
    assert out.shape == (100, 1) and taken[0] < 2 * MOST


def test_what_a_turn_leaves_behind_is_free_again() -> None:
    """A thousand turns make a hundred times the budget, and hold a hundredth of it."""
    body = [new_node("z = Neg x"), new_node("on = Identity go")]
    feed = {"n": np.int64(1000), "i": np.ones(10**6 // 4, np.float32)}
    session = Session(model_of(loop(body, "on z"), feed, "y"), backend="reference", max_bytes=MOST)
    np.testing.assert_array_equal(session.run(feed)["y"], feed["i"])


def test_a_scan_that_collects_is_refused() -> None:
    inside = branch(new_node("z = Add state e"), takes="state e", gives="z z")
    feed = {"s": np.ones(10**5, np.float32), "x": LONG}
    refused([scan(inside, "s x", "y all")], feed)


def test_branches_ask_too() -> None:
    shape = ints(10**9)
    big = small((new_node("z = ConstantOfShape n"),), {}, "z", n=shape)
    branches = {"then_branch": big, "else_branch": big, "then_taken": 0}
    refused([new_node("y = If c", **branches)], {"c": np.array(True)})


def test_views_of_large_values_take_nothing() -> None:
    x = np.ones((1000, 1000), np.float32)
    names = [f"x{k}" for k in range(101)]
    nodes = [new_node(f"{b} = Transpose {a}", perm=(1, 0)) for a, b in pairwise(names)]
    session = Session(
        model_of(nodes, {"x0": x}, "x100"), backend="reference", passes=(), max_bytes=MOST
    )
    np.testing.assert_array_equal(session.run({"x0": x})["x100"], x)


def test_runs_after_a_refused_one_have_the_whole_budget() -> None:
    nodes = [new_node("y = Tile x n")]
    feed = {"x": LONG, "n": ints(200)}
    session = Session(model_of(nodes, feed, "y"), backend="reference", max_bytes=MOST)
    for _ in range(3):
        assert session.run(feed)["y"].shape == (2 * 10**6,)
        with pytest.raises(BudgetError):
            session.run(feed | {"n": ints(300)})


@pytest.mark.parametrize("framework", ["paddle", "mxnet", "onnx"])
@pytest.mark.parametrize("passes", [None, ()], ids=["fused", "unfused"])
def test_no_operator_of_a_recorded_model_makes_more_than_it_asks_for(
    framework: str, passes: tuple[()] | None, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds are measured: every value that real models make."""
    asked, ask = list[int](), Budget.ask

    def record(budget: Budget, size: int, what: str = "it") -> None:
        asked.append(size)
        ask(budget, size, what)

    monkeypatch.setattr(Budget, "ask", record)
    files = sorted((data / framework).glob("*/io.npz"))
    assert sum(checked(file, passes, asked) for file in files) > 40


def checked(file: Path, passes: tuple[()] | None, asked: list[int]) -> int:
    """How many operators of a model were compared with what they asked for."""
    model = load(next(file.parent.glob("*.onnx"), file.parent))
    feed = read_inputs(read_arrays(file), model.inputs)
    session = Session(model, backend="reference", passes=passes)
    values: dict[str, Any] = {**session.graph.constants, **feed}
    count = 0

    def observe(node: Node, outputs: tuple[Any, ...], _: float) -> None:
        nonlocal count
        given = [values[name] if name else None for name in node.inputs]
        values.update(zip(node.outputs, outputs, strict=False))
        own = OPERATORS[node.op].growth
        if own is not growth.no_new_bytes:
            count += 1
            cheap = 0
            if own in (None, growth.results):
                by_sizes = growth.product_of_sizes if own is None else growth.product_with_numbers
                cheap = by_sizes(given)
            if cheap:
                assert growth.results(node, *given) <= cheap, node.label
            made = sum(data_of(each).nbytes for each in outputs)
            assert made <= max([cheap, *asked]), node.label
        asked.clear()

    session.run(feed, observe)
    return count


def test_inputs_that_make_a_model_grow_without_end_are_tried_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("onernn.verification.input_generation._BYTES", 10**7)
    names = ["x", *(f"twice{k}" for k in range(60))]
    nodes = [new_node(f"{b} = Concat {a} {a}", axis=0) for a, b in pairwise(names)]
    made = small(nodes, {"x": (None, None)}, "twice59")
    with pytest.raises(UnsupportedError, match="10,000,000"):
        make_inputs(made)
