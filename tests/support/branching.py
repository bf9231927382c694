"""Graphs with branches: nested, of several sizes, with layers, handing on what they were given."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn import Cell, Graph, RnnSpec
from onernn.ir.graph import Node
from support.graphs import new_node, rnn_node, small

SPEC = RnnSpec(Cell.GRU, 3, 3)


def branch(*nodes: Node, takes: str = "a", gives: str = "y", **constants: Any) -> Graph:
    """A graph over values of outside."""
    return small(nodes, dict.fromkeys(takes.split()), gives, **constants)


def layer(seed: int, x: str, y: str, h: str = "") -> Node:
    outputs = f"{y} {h}".strip()
    return rnn_node(f"{outputs} = Rnn {x}", SPEC, seed)


def chosen(condition: str, then: Graph, other: Graph, takes: str, gives: str) -> Node:
    """``takes``: what the first branch takes, a bar, what the other one takes."""
    first, second = (side.split() for side in takes.split("|"))
    attributes = {"then_branch": then, "else_branch": other, "then_taken": len(first)}
    return Node("If", (condition, *first, *second), tuple(gives.split()), attributes)


def graph(*nodes: Node, gives: str = "y", **constants: Any) -> Graph:
    """Of x (T, 2, 3), and two conditions."""
    inputs = {"x": (None, 2, 3), "c": ("bool",), "d": ("bool", 1)}
    return small(nodes, inputs, gives, **constants)


ONE = np.float32([[1, 2, 3], [4, 5, 6]])
DOUBLE = branch(new_node("y = Add a a"))

GRAPHS: dict[str, Graph] = {
    "layers": graph(
        new_node("n = Neg x"),
        chosen(
            "c",
            branch(layer(0, "a", "s", "h"), layer(1, "s", "y"), gives="y h"),
            branch(
                chosen(
                    "d",
                    branch(layer(2, "a", "y", "h"), gives="y h"),
                    branch(new_node("t = Tanh a"), layer(3, "t", "y", "h"), gives="y h"),
                    "a|a",
                    "y h",
                ),
                takes="a d",
                gives="y h",
            ),
            "n|x d",
            "y h",
        ),
        new_node("z = Sub y n"),
        gives="z y h",
    ),
    "handed on": graph(  # a value of outside, twice, a constant, and an output of the graph
        new_node("e = Exp x"),
        chosen(
            "c",
            branch(takes="a b", gives="a a k b", k=ONE),
            branch(new_node("n = Neg a"), new_node("m = Abs n"), gives="n m k n", k=-ONE),
            "e x|x",
            "p q r s",
        ),
        new_node("t = Add p r"),
        gives="t e p q s",
    ),
    "other sizes": graph(  # T or T + 1 rows, of which a product is made afterwards
        chosen(
            "c",
            branch(new_node("y = Concat a k", axis=0), k=ONE[None]),
            branch(new_node("y = Neg a")),
            "x|x",
            "y",
        ),
        new_node("z = MatMul y w"),
        new_node("s = Shape y"),
        new_node("sum = ReduceSum z", keepdims=0),
        gives="z s y sum",
        w=np.float32([[1, 2], [3, 4], [5, 6]]),
    ),
    "sizes in sizes": graph(
        chosen(
            "c",
            branch(
                chosen(
                    "d",
                    branch(new_node("y = Concat a a", axis=0)),
                    branch(takes="a", gives="a"),
                    "a|a",
                    "y",
                ),
                new_node("z = Tanh y"),
                takes="a d",
                gives="z",
            ),
            branch(new_node("y = Slice a k l z"), k=[0], l=[0], z=[0]),
            "x d|x",
            "y",
        ),
        new_node("z = Neg y"),
        gives="z y",
    ),
    "in place": graph(  # what one branch would write is read in the other one, and behind them
        new_node("e = Exp x"),
        new_node("f = Sin x"),
        chosen(
            "c",
            branch(
                new_node("n = Neg b"),
                new_node("y = Concat a n", axis=2),
                takes="a b",
            ),
            branch(
                new_node("n = Cos b"),
                new_node("m = Concat n b", axis=2),
                new_node("p = Mul a b"),
                new_node("q = Concat p p", axis=2),
                new_node("y = Sub m q"),
                takes="a b",
            ),
            "e f|e f",
            "y",
        ),
        new_node("g = Add e f"),
        gives="y g",
    ),
    "same twice": graph(
        chosen("c", DOUBLE, branch(gives="a"), "x|x", "y"),
        chosen("d", DOUBLE, branch(gives="a"), "y|x", "z"),
        chosen("c", branch(gives="a"), DOUBLE, "z|z", "u"),
        gives="u",
    ),
}


def feeds() -> list[dict[str, Any]]:
    """All conditions, for several sizes, none among them."""
    rng = np.random.default_rng(0)
    return [
        {
            "x": rng.uniform(-1, 1, (time, 2, 3)).astype(np.float32),
            "c": np.array(c),
            "d": np.array([d]),
        }
        for time in (3, 1, 7, 0, 2)
        for c in (True, False)
        for d in (True, False)
    ]
