"""Nodes that need not run: identities, known numbers, decided branches, values computed twice."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from onernn.fuse_passes.bodies import inlined, numbers
from onernn.fuse_passes.rewriting import handed_on
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.operator import OPERATORS
from onernn.ir.records import dataclass


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


# A branch that is always taken is part of the graph around it.


class TakeBranches:
    """``If(condition, then, else)`` -> the operators of the one that is taken.

    The condition is constant, or follows from sizes and numbers that are known.
    """

    name = "taken_branches"

    def match(self, graph: Graph, node: Node) -> tuple[Node, Array] | None:
        condition = numbers(graph, node.inputs[0]) if node.op == "If" else None
        return None if condition is None else (node, condition)

    def rewrite(self, graph: Graph, match: tuple[Node, Array]) -> Graph:
        node, condition = match
        count, taken = node.attributes["then_taken"], node.inputs[1:]
        if condition.all():
            return inlined(graph, node, "then_branch", taken[:count])
        return inlined(graph, node, "else_branch", taken[count:])


# Constants that branches read from outside move inside, where passes see them.


class TakeConstants:
    """``If(condition, constant...)`` -> ``If(condition)``, with the constant in the branch.

    So are integers that are known before a run.
    """

    name = "taken_constants"

    def match(self, graph: Graph, node: Node) -> Node | None:
        if node.op != "If" or all(numbers(graph, name) is None for name in node.inputs[1:]):
            return None
        return node

    def rewrite(self, graph: Graph, match: Node) -> Graph:
        count, names = match.attributes["then_taken"], match.inputs[1:]
        attributes, left = dict(match.attributes), list[str]()
        for branch, taken in (("then_branch", names[:count]), ("else_branch", names[count:])):
            body: Graph = attributes[branch]
            known = [numbers(graph, name) for name in taken]
            own = {v.name: k for v, k in zip(body.inputs, known, strict=True) if k is not None}
            rest = tuple(value for value in body.inputs if value.name not in own)
            attributes[branch] = replace(body, inputs=rest, constants={**body.constants, **own})
            left += [name for name, k in zip(taken, known, strict=True) if k is None]
            if branch == "then_branch":
                attributes["then_taken"] = len(left)
        inputs = (match.inputs[0], *left)
        return graph.splice((match,), (replace(match, inputs=inputs, attributes=attributes),))


# Integers that are known before a run are constants: exporters compute the bounds of slices.


class TakeKnownNumbers:
    """``Slice(x, 0, Shape(x)[1] / 4)`` -> ``Slice(x, 0, 5)`` where x has 20 columns.

    All in one go. Integers that depend on a size with a name stay, and so do outputs of the graph.
    """

    name = "known_numbers"

    def match(self, graph: Graph, node: Node) -> dict[str, Array] | None:
        if not _known(graph, node):
            return None
        return {k: v for each in graph.nodes for k, v in _known(graph, each).items()}

    def rewrite(self, graph: Graph, match: dict[str, Array]) -> Graph:
        gone = [node for node in graph.nodes if node.outputs[0] in match]
        return graph.splice(gone, (), match)


def _known(graph: Graph, node: Node) -> dict[str, Array]:
    """The outputs of a node that computes nothing but such integers; none of another one."""
    if graph.is_output(node.outputs[0]) or len(node.outputs) > 1 or not node.inputs:
        return {}
    known = numbers(graph, node.outputs[0])
    return {} if known is None else {node.outputs[0]: known}


# Views and joins of the same value are computed once, so that two layers read one value.


_SMALL = 16  # elements of constants that are compared by their numbers: axes and shapes


@dataclass(frozen=True, eq=False)
class Same:
    first: Node
    second: Node


class ShareValues:
    """Two nodes that move the same elements alike become one."""

    name = "common_values"

    def match(self, graph: Graph, node: Node) -> Same | Refusal | None:
        key = _key(graph, node)
        if key is None:
            return None
        for other in graph.users(node.inputs[0]):
            if other is node:
                return None
            if other.op == node.op and _key(graph, other) == key:
                return Same(other, node)
        return None

    def rewrite(self, graph: Graph, match: Same) -> Graph:
        return handed_on(graph, match.second, match.first.outputs[0])


def _key(graph: Graph, node: Node) -> Hashable:
    """A key that is equal for nodes that compute the same; None for other nodes."""
    operator = OPERATORS.get(node.op)
    if operator is None or not operator.since or len(node.outputs) > 1:
        return None
    if node.op == "Identity":  # one that is left only names an output: it would be the next one's
        return None
    if node.op != "Einsum" and operator.kind not in ("view", "moves"):
        return None
    attributes = tuple(sorted((name, str(value)) for name, value in node.attributes.items()))
    return node.op, tuple(_named(graph, name) for name in node.inputs), attributes


def _named(graph: Graph, name: str) -> Hashable:
    """A value by its name, a small constant by its numbers."""
    array = graph.constants.get(name)
    if array is None or array.size > _SMALL:
        return name
    return array.shape, str(array.dtype), array.tobytes()
