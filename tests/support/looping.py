"""Graphs with loops: states that change places, early ends, loops and branches in each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn import Cell, Graph, RnnSpec
from onernn.ir.graph import Node
from onernn.ops.control import scan_attributes
from support.branching import branch, chosen
from support.graphs import new_node, rnn_node, small

F32, ROW = np.float32, np.float32([[1, -2, 3], [0.5, 1, 2]])
TURN = "turn going "
INPUTS = {"x": (None, 2, 3), "n": ("int64",), "c": ("bool",), "limit": ()}


def scan(body: Graph, inputs: str, gives: str, states: int = 1, **more: Any) -> Node:
    """Over axis 0 of one value, unless ``more`` tells others."""
    attributes = scan_attributes(body, states, more.pop("scanned", 1))
    return Node("Scan", tuple(inputs.split()), tuple(gives.split()), attributes | more)


def loop(body: Graph, inputs: str, gives: str, carried: int = 1) -> Node:
    """``inputs``: the number of turns, the condition (- for none), states, what it takes."""
    names = tuple("" if name == "-" else name for name in inputs.split())
    return Node("Loop", names, tuple(gives.split()), {"body": body, "carried": carried})


def graph(*nodes: Node, gives: str, **constants: Any) -> Graph:
    """Of x (T, 2, 3), a number n, a condition and a limit."""
    return small(nodes, INPUTS, gives, **constants)


SPEC = RnnSpec(Cell.GRU, 3, 3)
CELL = rnn_node("y h1 = Rnn a h", SPEC)
SUM = branch(new_node("t = Add s e"), new_node("y = Tanh t"), takes="s e", gives="t y")
EARLY = branch(  # goes on while the largest sum is below a limit
    new_node("t = Add s k"),
    new_node("m = ReduceMax t", keepdims=0),
    new_node("more = Less m l"),
    new_node("y = Neg t"),
    takes=TURN + "s k l",
    gives="more t y s",
)
GRAPHS: dict[str, Graph] = {
    "sums": graph(scan(SUM, "row x", "last ys"), gives="last ys", row=ROW),
    "backwards": graph(
        scan(SUM, "row x", "last ys", input_directions=(1,), output_axes=(1,)),
        new_node("zs = Neg ys"),
        gives="zs last",
        row=ROW,
    ),
    "reversed results": graph(
        scan(SUM, "row x", "last ys", output_directions=(1,), output_axes=(-1,)),
        gives="ys last",
        row=ROW,
    ),
    "along other axes": graph(
        new_node("xt = Transpose x", perm=(1, 2, 0)),
        scan(SUM, "row xt", "last ys", input_axes=(-1,)),
        gives="last ys",
        row=ROW,
    ),
    "states change places": graph(
        scan(
            branch(
                new_node("s = Add a b"),
                new_node("y = Mul s e"),
                new_node("old = Identity a"),
                takes="a b d e",
                gives="b s a y old d",
            ),
            "row x0 row x",
            "p q r y a0 d0",
            states=3,
        ),
        new_node("z = Add row2 p"),
        gives="p q r y a0 d0 z",
        row=ROW,
        row2=ROW + 1,
        x0=ROW * 0.5,
    ),
    "what it begins with is read again": graph(
        new_node("e = Exp limit"),
        new_node("begin = Mul row e"),
        scan(
            branch(
                new_node("t = Mul s e"),
                new_node("u = Sub t b"),
                takes="s e b",
                gives="u t",
            ),
            "begin x begin",
            "last ys",
        ),
        new_node("z = Add begin last"),
        gives="z ys begin",
        row=ROW,
    ),
    "early end": graph(
        loop(EARLY, "twelve c row k limit", "last ys olds"),
        new_node("zs = MatMul ys w"),
        new_node("count = Shape olds"),
        gives="last zs count olds",
        row=ROW,
        twelve=np.int64(12),
        k=np.abs(ROW),
        w=np.float32([[1, 2], [3, 4], [5, 6]]),
    ),
    "nothing gathered": graph(
        loop(
            branch(new_node("t = Add s e"), takes=TURN + "s e", gives="going t"),
            "n - row k",
            "last",
        ),
        gives="last",
        row=ROW,
        k=ROW,
    ),
    "reads by its turn": graph(
        new_node("shape = Shape x"),
        new_node("t = Gather shape zero"),
        loop(
            branch(
                new_node("e = Gather x turn"),
                new_node("f = Gather e one"),
                new_node("number = Cast turn", to="float32"),
                new_node("g = Mul f number"),
                new_node("y = Add s g"),
                takes=TURN + "s x one",
                gives="going y f turn",
            ),
            "t - row x one",
            "last fs turns",
        ),
        gives="last fs turns",
        row=ROW,
        zero=np.int64(0),
        one=np.int64(1),
    ),
    "a layer in it": graph(
        new_node("h0 = Unsqueeze row front"),
        new_node("h00 = Unsqueeze h0 front"),
        scan(
            branch(
                new_node("a = Unsqueeze e f"),
                CELL,
                new_node("z = Squeeze y f"),
                takes="h e",
                gives="h1 z",
                f=[0],
            ),
            "h00 x",
            "last ys",
        ),
        gives="last ys",
        row=ROW,
        front=np.array([0]),
    ),
    "loops in loops": graph(
        scan(
            branch(
                loop(
                    branch(
                        new_node("u = Mul t half"),
                        new_node("v = Add u e"),
                        takes=TURN + "t e half",
                        gives="going v u",
                    ),
                    "three - s e half",
                    "t us",
                ),
                new_node("sum = ReduceSum us f", keepdims=0),
                takes="s e three half",
                gives="t sum",
                f=[0],
            ),
            "row x three half",
            "last ys",
        ),
        gives="last ys",
        row=ROW,
        three=np.int64(3),
        half=np.float32(0.5),
    ),
    "branches in loops": graph(
        scan(
            branch(
                new_node("m = ReduceMax e", keepdims=0),
                new_node("low = Less m l"),
                chosen(
                    "low",
                    branch(new_node("y = Add a b"), takes="a b"),
                    branch(takes="b", gives="b"),
                    "s e|s",
                    "t",
                ),
                takes="s e l",
                gives="t t",
            ),
            "row x limit",
            "last ys",
        ),
        gives="last ys",
        row=ROW,
    ),
    "loops in branches": graph(
        chosen(
            "c",
            branch(
                scan(SUM, "k b", "last ys"),
                takes="b",
                gives="last ys",
                k=ROW,
            ),
            branch(new_node("n = Neg b"), takes="b", gives="k n", k=ROW),
            "x|x",
            "y ys",
        ),
        gives="y ys",
    ),
    "sizes found in turns": graph(
        new_node("r = Relu x"),
        scan(
            branch(
                new_node("where = NonZero e"),
                new_node("w = Cast where", to="float32"),
                new_node("sum = ReduceSum w", keepdims=0),
                new_node("t = Add s sum"),
                takes="s e",
                gives="t sum",
            ),
            "zero r",
            "last sums",
        ),
        new_node("all = NonZero x"),
        gives="last sums all",
        zero=F32(0),
    ),
}


def feeds() -> list[dict[str, Any]]:
    """No turn, one, many; ended early, and not."""
    rng = np.random.default_rng(0)
    return [
        {
            "x": rng.uniform(-1, 1, (time, 2, 3)).astype(F32),
            "n": np.array(turns),
            "c": np.array(going),
            "limit": F32(limit),
        }
        for time, turns in ((3, 3), (1, 0), (7, 5), (0, 1), (2, -1), (40, 2000))
        for going in (True, False)
        for limit in (0.3, 9.0)
    ]
