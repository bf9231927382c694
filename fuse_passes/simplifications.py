"""Nodes that need not run: identities, known numbers, decided branches, values computed twice."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from onernn.fuse_passes.bodies import inline, numbers
from onernn.fuse_passes.rewriting import hand_on, rewrite
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.operator import OPERATORS


@rewrite("identities")
def drop_identities(graph: Graph, node: Node) -> Graph | Refusal | None:
    """``f(Identity(x))`` -> ``f(x)``; an ONNX Dropout is one in inference.

    What a framework calls dropout is an Identity here only if its implementation says so:
    adapters lower the others to a product. The last Identity before an output stays, it
    gives the output its name.
    """
    if node.op not in ("Identity", "Dropout") or graph.is_output(node.outputs[0]):
        return None
    if node.op == "Dropout":
        mask = node.outputs[1] if len(node.outputs) > 1 else ""
        if graph.is_read(mask):
            return Refusal(f"the mask {mask!r} is used", node.outputs[0])
        training = node.input(2)
        if training and (training not in graph.constants or graph.constants[training].any()):
            return Refusal("it may drop something: training_mode", node.outputs[0])
    return graph.bypass([node])


@rewrite("taken_branches")
def take_branches(graph: Graph, node: Node) -> Graph | None:
    """``If(condition, then, else)`` -> the operators of the branch that is taken.

    The condition is constant, or follows from sizes and numbers that are known.
    """
    condition = numbers(graph, node.inputs[0]) if node.op == "If" else None
    if condition is None:
        return None
    count, taken = node.attributes["then_taken"], node.inputs[1:]
    if condition.all():
        return inline(graph, node, "then_branch", taken[:count])
    return inline(graph, node, "else_branch", taken[count:])


@rewrite("taken_constants")
def take_constants(graph: Graph, node: Node) -> Graph | None:
    """``If(condition, constant...)`` -> ``If(condition)``, with the constant in the branch.

    There passes see it. Integers that are known before a run are constants, too.
    """
    if node.op != "If" or all(numbers(graph, name) is None for name in node.inputs[1:]):
        return None
    count, names = node.attributes["then_taken"], node.inputs[1:]
    attributes, left = dict(node.attributes), list[str]()
    for branch, taken in (("then_branch", names[:count]), ("else_branch", names[count:])):
        body: Graph = attributes[branch]
        known = [numbers(graph, name) for name in taken]
        own = {v.name: k for v, k in zip(body.inputs, known, strict=True) if k is not None}
        rest = tuple(value for value in body.inputs if value.name not in own)
        attributes[branch] = replace(body, inputs=rest, constants={**body.constants, **own})
        left += [name for name, k in zip(taken, known, strict=True) if k is None]
        if branch == "then_branch":
            attributes["then_taken"] = len(left)
    inputs = (node.inputs[0], *left)
    return graph.splice((node,), (replace(node, inputs=inputs, attributes=attributes),))


@rewrite("known_numbers")
def take_known_numbers(graph: Graph, node: Node) -> Graph | None:
    """``Slice(x, 0, Shape(x)[1] / 4)`` -> ``Slice(x, 0, 5)`` if x has 20 columns.

    All at once: exporters compute the bounds of slices. Integers that depend on a size with a name
    stay, and so do outputs of the graph.
    """
    if _find_integers(graph, node) is None:
        return None
    known = {
        each.outputs[0]: n for each in graph.nodes if (n := _find_integers(graph, each)) is not None
    }
    gone = [each for each in graph.nodes if each.outputs[0] in known]
    return graph.splice(gone, (), known)


def _find_integers(graph: Graph, node: Node) -> Array | None:
    """Returns the integers that a node computes, if they are known and it computes nothing else."""
    if graph.is_output(node.outputs[0]) or len(node.outputs) > 1 or not node.inputs:
        return None
    return numbers(graph, node.outputs[0])


_SMALL = 16  # elements of constants that are compared by their numbers: axes and shapes


@rewrite("common_values")
def share_values(graph: Graph, node: Node) -> Graph | None:
    """Merges two nodes that move the same elements alike, so that layers read one value."""
    key = _key(graph, node)
    for other in graph.users(node.inputs[0]) if key else ():
        if other is node:
            return None
        if other.op == node.op and _key(graph, other) == key:
            return hand_on(graph, node, other.outputs[0])
    return None


def _key(graph: Graph, node: Node) -> Hashable:
    """Returns a key that is equal for nodes that compute the same; None for other nodes."""
    operator = OPERATORS.get(node.op)
    if operator is None or not operator.since or len(node.outputs) > 1:
        return None
    if node.op == "Identity":  # one that is left only names an output: it would be the next one's
        return None
    if node.op != "Einsum" and operator.kind not in ("view", "moves"):
        return None
    attributes = tuple(sorted((name, str(value)) for name, value in node.attributes.items()))
    return node.op, tuple(_content(graph, name) for name in node.inputs), attributes


def _content(graph: Graph, name: str) -> Hashable:
    """Returns a value's name, of a small constant its numbers."""
    array = graph.constants.get(name)
    if array is None or array.size > _SMALL:
        return name
    return array.shape, str(array.dtype), array.tobytes()
