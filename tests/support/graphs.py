"""Small graphs of projected GRUs, as an adapter lowers them."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from onernn import Cell, Graph, RnnSpec, Session
from onernn.ir.graph import NativeOp, Node, Value
from onernn.reorders.gates import GateLayout
from support.arrays import uniform
from support.layers import random_weights

INPUT, HIDDEN = 4, 3
NO_CONSTANTS: Mapping[str, Any] = MappingProxyType({})
DTYPES = "bool float16 float32 float64 int8 int32 int64 uint8".split()
PLAIN = GateLayout((0, 1, 2), (1, 1, 1))
TURNED = GateLayout((2, 0, 1), (-1, 1, 1))


def new_node(text: str, inputs: str = "", outputs: str = "", /, **attributes: Any) -> Node:
    """``y = Concat a b``, or the operator, inputs and outputs; two spaces leave a value out."""
    if not outputs:
        outputs, _, rest = text.partition(" = ")
        text, _, inputs = rest.partition(" ")
    return Node(text, tuple(inputs.split(" ")), tuple(outputs.split(" ")), attributes)


def rnn_node(text: str, spec: RnnSpec, seed: int = 0, **attributes: Any) -> Node:
    """A layer with random weights."""
    return new_node(text, spec=spec, weights=random_weights(spec, seed), **attributes)


def new_nodes(text: str) -> tuple[Node, ...]:
    """Nodes by lines, as ``h c = Concat a b axis=0``."""
    nodes = []
    for line in text.strip().splitlines():
        words = line.split()
        named = [word.split("=", 1) for word in words if "=" in word[1:]]
        attributes = {name: literal_eval(value) for name, value in named}
        nodes.append(new_node(" ".join(words[: len(words) - len(named)]), **attributes))
    return tuple(nodes)


def small_graph(
    nodes: Iterable[Node], outputs: str, constants: Mapping[str, Any] = NO_CONSTANTS, **inputs: Any
) -> Graph:
    """A graph by the names of its outputs; inputs as of `small`."""
    return small(nodes, inputs, outputs, **constants)


def small(
    nodes: Iterable[Node], inputs: Mapping[str, Any], outputs: str = "y", **constants: Any
) -> Graph:
    """Nodes over inputs, see `input_of`; ``constants``: arrays, or what becomes one."""
    values = (input_of(name, given) for name, given in inputs.items())
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    return Graph("small", tuple(values), tuple(map(Value, outputs.split())), tuple(nodes), arrays)


def input_of(name: str, given: Any) -> Value:
    """An input of float32 with these sizes, or of the dtype before them, ragged if it is a list; or
    of an array's dtype, with open sizes; or without a type."""
    if isinstance(given, Value):
        return given
    if given is None:
        return Value(name)
    if isinstance(given, np.ndarray):
        return Value(name, given.dtype.name, (None,) * given.ndim)
    own = tuple(given)
    dtype, *sizes = own if own[:1] and own[0] in DTYPES else ("float32", *own)
    return Value(name, dtype, tuple(sizes), int(isinstance(given, list)))


def step_model(words: int = 0) -> Graph:
    """One frame of an LSTM, 6 to 8; with ``words``, a frame is the number of a row of a table."""
    nodes = [
        new_node("row = Gather table x") if words else new_node("row = Identity x"),
        new_node("steps = Unsqueeze row first"),
        rnn_node("ys hN cN = Rnn steps h c", RnnSpec(Cell.LSTM, 6, 8)),
        new_node("out = Squeeze ys first"),
        new_node("scores = MatMul out w"),
        new_node("y = Softmax scores"),
    ]
    inputs = {"x": ("int64", 1) if words else (1, 6), "h": (1, 1, 1, 8), "c": (1, 1, 1, 8)}
    arrays = {"w": uniform(8, 3, seed=1), "table": uniform(11, 6, seed=2)}
    return small(nodes, inputs, "y hN cN", first=[0], **arrays)


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
    x = Value("x", "float32", (None, INPUT), 1)
    return small_graph(nodes, " ".join(outputs), constants, x=x, h0=(1, 1, None, HIDDEN))


def constants(seed: int = 0) -> dict[str, np.ndarray]:
    """A projection w (INPUT, 3*HIDDEN) and its bias b."""
    return {"w": uniform(INPUT, 3 * HIDDEN, seed=seed), "b": uniform(3 * HIDDEN, seed=seed + 1)}


MATMUL = Node("MatMul", ("x", "w"), ("xw",), {}, (NativeOp(0, "mul"),))
ADD = Node("Add", ("xw", "b"), ("xwb",), {}, (NativeOp(1, "elementwise_add"),))
