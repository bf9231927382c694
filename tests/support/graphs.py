"""Small graphs of projected GRUs, as an adapter lowers them."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping
from typing import Any

import numpy as np

from onernn import Cell, Graph, RnnSpec, Session
from onernn.ir.graph import NativeOp, Node, Value
from onernn.reorders.gates import GateLayout
from support.layers import random_weights

INPUT, HIDDEN = 4, 3
PLAIN = GateLayout((0, 1, 2), (1, 1, 1))
TURNED = GateLayout((2, 0, 1), (-1, 1, 1))


def new_node(text: str, inputs: str = "", outputs: str = "", /, **attributes: Any) -> Node:
    """``y = Concat a b``, or the operator, inputs and outputs; two spaces leave a value out."""
    if not outputs:
        outputs, _, rest = text.partition(" = ")
        text, _, inputs = rest.partition(" ")
    return Node(text, tuple(inputs.split(" ")), tuple(outputs.split(" ")), attributes)


def new_nodes(text: str) -> tuple[Node, ...]:
    """Nodes by lines, as ``h c = Concat a b axis=0``."""
    nodes = []
    for line in text.strip().splitlines():
        words = line.split()
        named = [word.split("=", 1) for word in words if "=" in word[1:]]
        attributes = {name: literal_eval(value) for name, value in named}
        nodes.append(new_node(" ".join(words[: len(words) - len(named)]), **attributes))
    return tuple(nodes)


def reference(graph: Graph, feed: Mapping[str, Any]) -> dict[str, Any]:
    """What the reference computes of it, fused."""
    return Session(graph, backend="reference").run(feed)


def unfused(graph: Graph, feed: Mapping[str, Any]) -> dict[str, Any]:
    """What the reference computes of it as it stands."""
    return Session(graph, backend="reference", passes=()).run(feed)


def projected_gru(
    name: str,
    projection: str,
    *,
    seed: int = 0,
    layout: GateLayout = TURNED,
    state: str = "",
    outputs: tuple[str, ...] | None = None,
    **spec: Any,
) -> list[Node]:
    """``name = Rnn(GateLayout(projection))``."""
    gru = RnnSpec(Cell.GRU, 3 * HIDDEN, HIDDEN, **spec)
    (weights,) = random_weights(gru, seed, projected=True)
    return [
        Node("GateLayout", (projection,), (f"{name}/gates",), {"layout": layout}),
        Node(
            "Rnn",
            (f"{name}/gates", state),
            outputs or (name,),
            {"spec": gru, "weights": weights},
            (NativeOp(9, "gru"),),
        ),
    ]


def graph(nodes: list[Node], outputs: list[str], **constants: np.ndarray) -> Graph:
    """A graph over one ragged input x (W, INPUT) and one dense input h0 (1, 1, N, HIDDEN)."""
    return Graph(
        "test",
        (Value("x", "float32", (None, INPUT), 1), Value("h0", "float32", (1, 1, None, HIDDEN))),
        tuple(Value(name) for name in outputs),
        tuple(nodes),
        constants,
    )


def constants(seed: int = 0) -> dict[str, np.ndarray]:
    """A projection w (INPUT, 3*HIDDEN) and its bias b."""
    rng = np.random.default_rng(seed)
    return {
        "w": rng.uniform(-1, 1, (INPUT, 3 * HIDDEN)).astype(np.float32),
        "b": rng.uniform(-1, 1, 3 * HIDDEN).astype(np.float32),
    }


MATMUL = Node("MatMul", ("x", "w"), ("xw",), {}, (NativeOp(0, "mul"),))
ADD = Node("Add", ("xw", "b"), ("xwb",), {}, (NativeOp(1, "elementwise_add"),))
