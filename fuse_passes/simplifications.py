"""Removes nodes that need not run: identities, integers and branches known before a run, repeated
computations.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from onernn.fuse_passes.bodies import inline, numbers
from onernn.fuse_passes.polynomials import is_ones_like
from onernn.fuse_passes.rewriting import hand_on, orders, rewrite
from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node
from onernn.ops import OPERATORS


@rewrite("identities", "Identity", "Dropout", "Mul")
def drop_identities(graph: Graph, node: Node) -> Graph | str | None:
    """Turns ``f(Identity(x))`` into ``f(x)``. In inference, an ONNX Dropout is an Identity.

    So is a product with ``ones_like(x)``, which Keras writes for a recurrent dropout.

    Adapters write a framework's dropout as Identity only if it is one in that framework, otherwise
    as a product. The last Identity before an output stays, because the output's name comes from it.
    """
    if graph.is_output(node.outputs[0]):
        return None
    if node.op == "Mul":
        same = (x for x, factor in orders(node) if is_ones_like(graph, factor, x))
        return hand_on(graph, node, x) if (x := next(same, "")) else None
    if node.op == "Dropout":
        mask = node.outputs[1] if len(node.outputs) > 1 else ""
        if graph.is_read(mask):
            return f"the mask {mask!r} is used"
        training = node.input(2)
        if training and (training not in graph.constants or graph.constants[training].any()):
            return "it may drop values: training_mode"
    return graph.bypass([node])


@rewrite("taken_branches", "If")
def take_branches(graph: Graph, node: Node) -> Graph | None:
    """Turns ``If(condition, then, else)`` into the operators of one branch.

    The condition must be constant, or computed from known sizes and integers.
    """
    condition = numbers(graph, node.inputs[0])
    if condition is None:
        return None
    count, taken = node.attributes["then_taken"], node.inputs[1:]
    if condition.all():
        return inline(graph, node, "then_branch", taken[:count])
    return inline(graph, node, "else_branch", taken[count:])


@rewrite("taken_constants", "If")
def take_constants(graph: Graph, node: Node) -> Graph | None:
    """Turns ``If(condition, constant...)`` into ``If(condition)``, with the constant in the branch.

    Other passes can then use the constant in the branch. Integers that are known before a run count
    as constants.
    """
    if all(numbers(graph, name) is None for name in node.inputs[1:]):
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
    """Turns ``Slice(x, 0, Shape(x)[1] / 4)`` into ``Slice(x, 0, 5)`` if x has 20 columns.

    Exporters compute the bounds of slices from sizes. One call replaces all integers of the graph
    that are known before a run. Integers that depend on a named size stay, and so do outputs of the
    graph.
    """
    if _find_integers(graph, node) is None:
        return None
    known = {
        each.outputs[0]: n for each in graph.nodes if (n := _find_integers(graph, each)) is not None
    }
    gone = [each for each in graph.nodes if each.outputs[0] in known]
    return graph.splice(gone, (), known)


def _find_integers(graph: Graph, node: Node) -> Array | None:
    if graph.is_output(node.outputs[0]) or len(node.outputs) > 1 or not node.inputs:
        return None
    return numbers(graph, node.outputs[0])


_SMALL = 16  # maximum size of constants that are compared by their elements


_MOVING = {
    name
    for name, each in OPERATORS.items()
    if each.since and each.kind in ("view", "moves") and name != "Identity"
}
# An Identity that remains determines the name of an output, so merging it would rename this output.


@rewrite("common_values", "Einsum", *_MOVING)
def share_values(graph: Graph, node: Node) -> Graph | None:
    """Merges nodes that move the same elements in the same way, so that layers read the same
    value.
    """
    for other in graph.users(node.inputs[0]) if len(node.outputs) == 1 else ():
        if other is node:
            return None
        if other.op == node.op and _key(graph, other) == _key(graph, node):
            return hand_on(graph, node, other.outputs[0])
    return None


def _key(graph: Graph, node: Node) -> Hashable:
    attributes = sorted((name, str(value)) for name, value in node.attributes.items())
    inputs = tuple(_content(graph, name) for name in node.inputs)
    return inputs, tuple(attributes), len(node.outputs)


def _content(graph: Graph, name: str) -> Hashable:
    array = graph.constants.get(name)
    if array is None or array.size > _SMALL:
        return name
    return array.shape, array.dtype.str, array.tobytes()
