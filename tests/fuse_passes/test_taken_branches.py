"""An If becomes the branch that is taken, where that is known before a run."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.fusing import check_fused, operators
from support.graphs import new_node, small_graph
from support.layers import random_layer

from onernn import Cell, Graph, RnnSpec, fuse
from onernn.ir.graph import Node, Value

X = uniform(5, 2, 3)
COMPARED = {
    "Equal": operator.eq,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
}


def branch(op: str) -> Graph:
    return small_graph([new_node(f"n = {op} a")], "n", a=Value("a"))


BRANCHES = {"then_branch": branch("Neg"), "else_branch": branch("Abs"), "then_taken": 1}


def decided(sizes: tuple[int | None, ...], *nodes: Node, **constants: Any) -> bool | None:
    """Which branch of an If is taken for x of these sizes; None where it stays one."""
    chosen = new_node("y = If c x x", **BRANCHES)
    graph = small_graph([*nodes, chosen], "y", constants, x=sizes)
    (kind,) = {"Neg", "Abs", "If"} & {*operators(fuse(graph))}
    return {"Neg": True, "Abs": False, "If": None}[kind]


@pytest.mark.parametrize("op", COMPARED)
def test_a_branch_is_taken_where_every_size_gives_the_same_answer(op: str) -> None:
    """``by * T + more`` compared with a number: T may be 0, and is never less."""
    nodes = (
        new_node("shape = Shape x"),
        new_node("t = Gather shape first"),
        new_node("m = Mul t by"),
        new_node("s = Add m more"),
        new_node(f"c = {op} s n"),
    )
    for by, more, number in itertools.product((-2, 0, 1), (-1, 0, 2), (-1, 0, 1)):
        answers = {
            COMPARED[op](by * size + more, number) for size in range(-by * by, 9) if size >= 0
        }
        expected = answers.pop() if len(answers) == 1 else None
        found = decided((None, 3), *nodes, first=0, by=by, more=more, n=number)
        if by and expected is not None and found is None:
            assert op == "Equal" and (more - number) % 2  # no size, but only as it is even
            continue
        assert found is expected, (by, more, number)


def test_conditions_of_known_sizes_are_known() -> None:
    shape = new_node("shape = Shape x")
    size = new_node("s = Gather shape at")
    truth = new_node("c = Cast s", to="bool")
    assert decided((None, 3), shape, size, truth, at=1) is True
    assert decided((None, 0), shape, size, truth, at=1) is False
    assert decided((None, 3), shape, size, truth, at=0) is None
    count = new_node("all = Size x")
    empty = (count, new_node("e = Equal all zero"), new_node("c = Not e"))
    assert decided((2, 3), *empty, zero=0) is True
    assert decided((0, 3), *empty, zero=0) is False
    assert decided((None, 3), *empty, zero=0) is None
    both = new_node("c = And e no")
    assert decided((0, 3), *empty[:2], both, zero=0, no=False) is False


def test_a_branch_that_is_always_taken_is_part_of_the_graph() -> None:
    """Its values may have the names of others outside."""
    for number in (True, False):
        nodes = (
            new_node("n = Exp x"),
            new_node("y = If c n x", **BRANCHES),
            new_node("z = Add n y"),
        )
        graph = small_graph(nodes, "z", {"c": number}, x=(None, 2, 3))
        assert "If" not in operators(check_fused(graph, {"x": X}, atol=0))


def nested() -> Graph:
    """An If in an If, layers in each branch; a constant of outside decides the inner one."""
    spec = RnnSpec(Cell.GRU, 3, 3)

    def layers(seed: int) -> Graph:
        lower = new_node("b = Rnn a", **random_layer(spec, seed))
        upper = new_node("n = Rnn b", **random_layer(spec, seed + 1))
        return small_graph([lower, upper], "n", a=Value("a"))

    inner = {"then_branch": layers(0), "else_branch": layers(2), "then_taken": 1}
    nodes = (new_node("d = Not k"), new_node("n = If d a a", **inner))
    both = small_graph(nodes, "n", a=Value("a"), k=Value("k"))
    outer = {"then_branch": both, "else_branch": layers(4), "then_taken": 2}
    node = new_node("y = If c x no x", **outer)
    condition = Value("c", "bool", ())
    return small_graph([node], "y", {"no": False}, x=(None, 2, 3), c=condition)


def test_layers_in_branches_are_fused_there() -> None:
    feeds = [{"x": X, "c": np.array(condition)} for condition in (True, False)]
    result = check_fused(nested(), *feeds, backends=("reference", "auto"), atol=1e-6)
    (node,) = result.model.nodes
    for body in (node.attributes["then_branch"], node.attributes["else_branch"]):
        layers = [each for each in body.nodes if each.op != "Identity"]
        assert [each.attributes["spec"].layers for each in layers] == [2]  # and the If is decided
