"""Nodes that hand their input on as it is."""

from __future__ import annotations

from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node


class DropIdentities:
    """``f(Identity(x))`` -> ``f(x)``; an ONNX Dropout is one, too, in inference.

    What a framework calls dropout is an Identity here only where its implementation says so:
    adapters lower the others to a product. The last Identity in front of an output stays, it
    gives the output its name.
    """

    name = "identities"

    def match(self, graph: Graph, node: Node) -> Node | Refusal | None:
        if node.op not in ("Identity", "Dropout") or graph.is_output(node.outputs[0]):
            return None
        if node.op == "Dropout":
            mask = node.outputs[1] if len(node.outputs) > 1 else ""
            if mask and (graph.users(mask) or graph.is_output(mask)):
                return Refusal(f"the mask {mask!r} is used", node.outputs[0])
            training = node.input(2)
            if training and (training not in graph.constants or graph.constants[training].any()):
                return Refusal("it may drop something: training_mode", node.outputs[0])
        return node

    def rewrite(self, graph: Graph, match: Node) -> Graph:
        return graph.bypass([match])
