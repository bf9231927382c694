"""What goes wrong beside recurrent layers, as changes of a graph: functions, norms, transposes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from onernn.core.graph import Graph, Node
from onernn.operators.activations import NAMES
from onernn.verification.diagnosis.graph_faults import Hypothesis
from onernn.verification.graph_changes import with_nodes

_FUNCTIONS = tuple(NAMES[name] for name in ("relu", "tanh", "sigmoid"))
_EPSILONS = (1e-3, 1e-5, 1e-6, 1e-12)
"""Keras; PyTorch and ONNX; Paddle 1 and Keras 3; BERT."""


def operator_faults(graph: Graph) -> Iterator[Hypothesis]:
    """A function left out, added or taken for another, an epsilon, a square weight transposed."""
    for node in graph.nodes:
        (name, *_), label = node.outputs, node.label
        if node.op in _FUNCTIONS:
            text = f"{node.op} is left out"
            without = Node("Identity", node.inputs, node.outputs, origin=node.origin)
            yield _with("operator_added", text, graph, node, without)
            for other in _FUNCTIONS:
                if other != node.op:
                    text = f"{node.op} is {other}"
                    turned = Node(other, node.inputs, node.outputs, origin=node.origin)
                    yield _with("operator_changed", text, graph, node, turned)
        elif _sums(graph, node):
            before = f"{name}.before"
            first = replace(node, outputs=(before,))
            for other in _FUNCTIONS:
                new = (first, Node(other, (before,), (name,)))
                yield _with("operator_missing", f"{other} follows", graph, node, *new)
        if hasattr(node.at, "epsilon"):
            for epsilon in _EPSILONS:
                if not np.isclose(epsilon, node.at.epsilon, rtol=1e-3):
                    other_norm = replace(node, attributes={**node.attributes, "epsilon": epsilon})
                    text = f"epsilon is {epsilon:g}"
                    yield _with("attribute_changed", text, graph, node, other_norm)
        for at, weight in enumerate(node.inputs):
            array = graph.constants.get(weight)
            if node.op in ("MatMul", "Gemm") and array is not None and array.ndim == 2:
                rows, columns = array.shape
                if rows == columns > 1:
                    turned_name = f"{name}.turned"
                    inputs = (*node.inputs[:at], turned_name, *node.inputs[at + 1 :])
                    made = with_nodes(
                        graph,
                        {name: [replace(node, inputs=inputs)]},
                        {turned_name: np.ascontiguousarray(array.T)},
                    )
                    text = f"the weight {weight!r} is transposed"
                    yield Hypothesis("weight_transposed", text, made, place=label)


def _sums(graph: Graph, node: Node) -> bool:
    """Whether it adds, or has weights, as products and norms do: a function may follow it."""
    weights = [graph.constants[each] for each in node.inputs if each in graph.constants]
    weighted = any(each.dtype.kind == "f" and each.ndim > 0 for each in weights)
    return node.op == "Add" or (weighted and node.op not in ("Gather", "Rnn"))


def _with(cause: str, text: str, graph: Graph, node: Node, *new: Node) -> Hypothesis:
    changed = with_nodes(graph, {node.outputs[0]: list(new)})
    return Hypothesis(cause, text, changed, place=node.label)
