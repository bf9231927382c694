"""Convolutions of bytes as those of floats: exact, as floats hold sums of so few whole numbers.

Such a sum is the same in any order. Without the zero points a number of x is at most 255.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node
from onernn.ops.rules import ONE

_EXACT = 2**24
"""Up to here float32 holds every whole number, float64 up to its square and more."""


def in_floats(graph: Graph) -> Graph:
    """The graph with convolutions of bytes by constant weights as convolutions of floats."""
    if not any(node.op == "ConvInteger" for node in graph.nodes):
        return graph
    nodes, constants, taken = list[Node](), dict(graph.constants), set(graph.types)

    def new(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    for node in graph.nodes:
        weights = None if node.op != "ConvInteger" else _weights(graph, node)
        if weights is None:
            nodes.append(node)
            continue
        dtype, name = weights.dtype.name, node.outputs[0]
        x, w, y = (new(f"{name}.{part}") for part in ("x", "w", "y"))
        constants[w] = weights
        nodes.append(Node("Cast", node.inputs[:1], (x,), {"to": dtype}))
        if node.input(2):
            zero, whole = new(f"{name}.zero"), new(f"{name}.whole")
            nodes.append(Node("Cast", (node.inputs[2],), (zero,), {"to": dtype}))
            nodes.append(Node("Sub", (x, zero), (whole,)))
            x = whole
        nodes.append(Node("Conv", (x, w), (y,), node.attributes, node.origin))
        nodes.append(Node("Cast", (y,), node.outputs, {"to": "int32"}, node.origin))
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _weights(graph: Graph, node: Node) -> Array | None:
    """Constant weights without their zero points; None where the walk has to look at them."""
    x, w = graph.types[node.inputs[0]], graph.constants.get(node.inputs[1])
    zero = graph.constants.get(node.input(3))
    if w is None or x.dtype not in ("uint8", "int8") or w.dtype not in (np.uint8, np.int8):
        return None
    if node.input(2):
        known = graph.types[node.inputs[2]]
        if known.dtype != x.dtype or known.shape not in ((), (ONE,)):
            return None
    if node.input(3) and (zero is None or zero.dtype != w.dtype):
        return None
    shift = np.zeros(1, np.int16) if zero is None else zero.astype(np.int16).reshape(-1)
    if shift.size not in (1, len(w)):
        return None
    whole = w.astype(np.int16) - shift.reshape(-1, *[1] * (w.ndim - 1))
    most = 255 * np.abs(whole.astype(np.int64)).reshape(len(w), -1).sum(axis=1).max(initial=0)
    return whole.astype(np.float32 if most < _EXACT else np.float64)
