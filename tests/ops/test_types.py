"""Inferred types agree with what a run produces, on every recording; and the check can fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.graphs import new_node
from support.operator_cases import FEED, WALKED, cases, model
from support.random_graphs import GRAPHS
from support.random_models import random_trial
from support.recordings import MODELS, fused, loaded
from support.typing import Bindings, check_types

from onernn import Ragged, fuse
from onernn.ir.feeds import check_feed
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.types import UNKNOWN, Size, Type, dense
from onernn.verification.recording import read_arrays, read_inputs


@pytest.mark.parametrize("name", MODELS)
def test_types_of_a_recorded_model_are_what_its_run_shows(name: str) -> None:
    graph, arrays = loaded(name), read_arrays(MODELS[name] / "io.npz")
    feed = check_feed(graph.inputs, read_inputs(arrays, graph.inputs))
    check_types(graph, feed)
    check_types(fused(name), feed)


def test_types_of_every_operator_are_what_its_run_shows() -> None:
    nodes, names = cases()
    more = [Node(op, tuple(i.split(" ")), (f"w{k}",), at) for k, (op, i, at) in enumerate(WALKED)]
    graph = model([*nodes, *more], [*names, *(node.outputs[0] for node in more)])
    check_types(graph, {value.name: FEED[value.name] for value in graph.inputs})
    for node in more:
        assert graph.types[node.outputs[0]].rank is not None, node.label


def test_types_of_random_graphs_are_what_their_runs_show() -> None:
    known = total = 0
    for seed in range(GRAPHS):
        trial = random_trial(seed)
        for graph in (trial.graph, fuse(trial.graph).model):
            for feed in trial.feeds:
                unknown = check_types(graph, feed, backend="reference")
                known, total = known + len(graph.types) - len(unknown), total + len(graph.types)
    assert known > 0.9 * total  # else the check says little


RAGGED = Ragged(np.zeros((3, 4), np.float32), [0, 1, 3])
TYPE = Type("float32", (Size.of("x.lod0.words"), Size.of(4)), ("x.lod0",))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(TYPE, dtype="float64"),
        replace(TYPE, shape=(Size.of(3),)),
        replace(TYPE, shape=(Size.of(3), Size.of(5))),
        replace(TYPE, shape=(Size.of("x.lod0.count"), Size.of(4))),
        replace(TYPE, lod=()),
        replace(TYPE, lod=("x.lod0", "x.lod1")),
    ],
    ids=str,
)
def test_a_type_that_is_not_the_values_is_found(wrong: Type) -> None:
    Bindings().check("x", TYPE, RAGGED)
    with pytest.raises(AssertionError, match="^x: "):
        Bindings().check("x", wrong, RAGGED)


def test_offsets_of_one_name_are_the_same() -> None:
    other = Ragged(RAGGED.data, [0, 2, 3])
    seen = Bindings()
    seen.check("x", TYPE, RAGGED)
    with pytest.raises(AssertionError, match="^y: LoD x.lod0"):
        seen.check("y", TYPE, other)


X = Value("x", "float32", (None, 4), 1)
IDS = {"ids": np.array([[0, 1], [1, 0], [0, 0]])}


@pytest.mark.parametrize(
    "node, constants, expected",
    [
        (new_node("Gather", "x ids", "y"), IDS, dense("float32", (3, 2, 4))),
        (new_node("Unsqueeze", "x axis", "y"), {"axis": np.array([0])}, "dense"),
        (new_node("Unsqueeze", "x axis", "y"), {"axis": np.array([1])}, "ragged"),
        (new_node("Squeeze", "x axis", "y"), {"axis": np.array([-2])}, "dense"),
        (new_node("SequencePool", "x", "y", kind="sum"), {}, "dense"),
        (new_node("Transpose", "x", "y", perm=[1, 0]), {}, "unknown"),
        (new_node("Softmax", "x", "y", axis=0), {}, "unknown"),
    ],
    ids=lambda found: found.op if isinstance(found, Node) else "",
)
def test_raggedness_follows_the_axis_of_the_words(
    node: Node, constants: dict[str, np.ndarray], expected: Type | str
) -> None:
    found = Graph("g", (X,), (Value("y"),), (node,), constants).types["y"]
    if isinstance(expected, Type):
        assert found == expected
    elif expected == "unknown":
        assert found == UNKNOWN
    else:
        assert found.ragged == (expected == "ragged")


def test_shapes_are_followed_through_integers() -> None:
    """x (A, B, 6) reshaped by its own shape, [Shape(x)[0] * Shape(x)[1], 6], is (A*B, 6)."""
    nodes = (
        new_node("Shape", "x", "shape"),
        new_node("Gather", "shape first", "rows"),
        new_node("Gather", "shape second", "columns"),
        new_node("Mul", "rows columns", "product"),
        new_node("Concat", "product six", "target", axis=0),
        new_node("Reshape", "x target", "flat"),
        new_node("Reshape", "flat back", "y"),
    )
    constants = {
        "first": np.array([0]),
        "second": np.array([1]),
        "six": np.array([6]),
        "back": np.array([-1, 3, 2]),
    }
    x = Value("x", "float32", (None, None, 6))
    graph = Graph("g", (x,), (Value("y"),), nodes, constants)
    rows = Size.of("x.0") * Size.of("x.1")
    assert graph.types["flat"] == dense("float32", (rows, 6))
    assert graph.types["y"] == dense("float32", (rows, 3, 2))
    assert check_types(graph, {"x": np.zeros((2, 5, 6), np.float32)}) == []


def test_a_size_with_a_name_may_be_one_and_stretch() -> None:
    inputs = (Value("a", "float32", (None, 4)), Value("b", "float32", (None, 1)))
    graph = Graph("g", inputs, (Value("y"),), (new_node("Add", "a b", "y"),), {})
    assert graph.types["y"].shape == (None, Size.of(4))
