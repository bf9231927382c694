"""Loops over canonical operators: turned into scans where turn t reads step t, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.fusing import check_fused, operators
from support.graphs import new_node, small_graph
from support.layers import random_layer

from onernn import Cell, Graph, OnernnError, RnnSpec, Session
from onernn.ir.graph import Node, Value

X = uniform(5, 2, 3)
ONE = {"one": np.array(1), "zero": np.array(0), "first": np.array([0]), "go": np.array(True)}


def loop(*nodes: Node, carried: str = "s", turns: str = "n", **shapes: Any) -> Graph:
    """A loop over the inputs' steps ``e``, and of m ``f``; ``nodes`` make ``s_out`` and ``y``."""
    inside = [Value("turn"), Value("going"), *map(Value, (f"{carried}_in", "x_in", "m_in", "n_in"))]
    reads = [Node("Gather", (f"{n}_in", "turn"), (e,)) for n, e in (("x", "e"), ("m", "f"))]
    outputs = tuple(map(Value, ("going", "s_out", "y")))
    body = Graph("turn", tuple(inside), outputs, (*reads, *nodes), ONE).prune()
    around = [
        new_node("sizes = Shape x"),
        new_node("n = Gather sizes zero"),
        new_node("fewer = Sub n one"),
        new_node("s = Expand start row"),
        Node("Loop", (turns, "", "s", "x", "m", "n"), ("end", "ys"), {"body": body, "carried": 1}),
    ]
    constants = {**ONE, "start": np.float32(0.5), "row": np.array([2, 3])}
    inputs = {"x": (None, 2, 3), "m": (5, 2, 3), **shapes}
    return small_graph(around, "end ys", constants, **inputs).prune()


def kinds(graph: Graph, *feeds: dict[str, np.ndarray]) -> set[str]:
    """The operators after fusion, which computes the same."""
    given = [{value.name: feed[value.name] for value in graph.inputs} for feed in feeds]
    return {*operators(check_fused(graph, *given, atol=1e-6))}


SUMS = [new_node("s_out = Add e s_in"), new_node("y = Neg s_out")]


def test_a_loop_over_all_steps_is_a_scan() -> None:
    assert "Scan" in kinds(loop(*SUMS), {"x": X, "m": X}, {"x": X[:2], "m": X})


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_a_counter_after_the_loop_keeps_its_shape(shape: tuple[int, ...]) -> None:
    graph = loop(new_node("s_out = Add one s_in"), new_node("y = Neg e"))
    nodes = tuple(node for node in graph.nodes if "s" not in node.outputs)
    graph = replace(graph, nodes=nodes, constants={**ONE, "s": np.zeros(shape, np.int64)})
    assert "Scan" in kinds(graph, {"x": X, "m": X})


@pytest.mark.parametrize("turns", ["fewer", "one"])
def test_a_loop_over_some_steps_is_none(turns: str) -> None:
    assert "Loop" in kinds(loop(*SUMS, turns=turns), {"x": X, "m": X})


def test_a_step_that_is_collected_as_it_is_stays_so() -> None:
    nodes = [new_node("s_out = Add e s_in"), new_node("y = Identity e")]
    assert "Scan" in kinds(loop(*nodes), {"x": X, "m": X})


def two(declared: int | None) -> Graph:
    """A mask beside the words: there are as many turns as words."""
    both = [new_node("ef = Mul e f"), new_node("s_out = Add ef s_in")]
    return loop(*both, new_node("y = Neg s_out"), x=(5, 2, 3), m=(declared, 2, 3))


@pytest.mark.parametrize("declared", [5, 6, None])
def test_two_values_are_scanned_together_where_one_has_as_many_steps_as_turns(declared) -> None:
    """The other one may have more, which nobody reads."""
    feed = {"x": X, "m": np.concatenate([X, X[:1]])[: declared or 6]}
    assert "Scan" in kinds(two(declared), feed)


def test_a_value_that_has_fewer_steps_than_turns_is_refused_as_before() -> None:
    for passes in ((), None):
        with pytest.raises(OnernnError):
            Session(two(None), backend="reference", passes=passes).run({"x": X, "m": X[:3]})


@pytest.mark.parametrize("name", ["turn", "x_in"])
def test_a_turn_that_is_read_otherwise_stays_one(name: str) -> None:
    """Its number is part of the sum, or x as a whole is: a scan may take that."""
    nodes = [
        Node("Cast", (name,), ("number",), {"to": "float32"}),
        new_node("all = ReduceSum number", keepdims=0),
        new_node("ea = Mul e all"),
        new_node("s_out = Add ea s_in"),
        new_node("y = Neg s_out"),
    ]
    op = {"turn": "Loop", "x_in": "Scan"}[name]
    assert op in kinds(loop(*nodes), {"x": X, "m": X})


@pytest.mark.parametrize("direction", ["left2right", "right2left"])
def test_one_step_of_a_layer_has_no_direction(direction: str) -> None:
    spec = RnnSpec(Cell.RNN_TANH, 3, 3, direction=direction)
    axes = {"a0": np.array([0]), "a01": np.array([0, 1])}
    nodes = [
        new_node("e1 = Unsqueeze e first"),
        new_node("s1 = Reshape s_in four"),
        new_node("y1 h1 = Rnn e1 s1", **random_layer(spec, 1)),
        new_node("s_out = Squeeze h1 a01"),
        new_node("y = Squeeze y1 a0"),
    ]
    ONE.update(axes, four=np.array([1, 1, -1, 3]))
    graph = loop(*nodes)
    found = kinds(graph, {"x": X, "m": X})
    assert "Rnn" in found and not {"Loop", "Scan"} & found
