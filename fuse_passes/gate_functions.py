"""Recognizes the functions of gates: ONNX's activation operators, and hard sigmoids made of
clips.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onernn.fuse_passes.affine import Affine, affine, cut_affine
from onernn.fuse_passes.polynomials import polynomial
from onernn.fuse_passes.rewriting import orders
from onernn.ir.activations import DEFAULTS, NAMES, complete
from onernn.ir.graph import Graph, Node
from onernn.ir.records import NamedTuple
from onernn.ir.spec import Activation

LINEAR = Activation("identity")
_OF_OPERATOR: Mapping[str, str] = {
    operator: name for name, operator in NAMES.items() if name != "identity"
}


class Function(NamedTuple):
    """A value that is ``activation`` of ``source``, and the ``nodes`` that compute it."""

    activation: Activation
    source: str
    nodes: tuple[Node, ...]


class Gate(NamedTuple):
    """A value that is ``activation`` of a sum of projections.

    The nodes of the sum include the nodes of the activation.
    """

    activation: Activation
    sum: Affine


def function_of(graph: Graph, name: str) -> Function | None:
    """Returns the function that computes a value; None if no layer supports it as an activation."""
    node = graph.producer(name)
    if node is None:
        return None
    if activation := _OF_OPERATOR.get(node.op):
        numbers = (node.attributes.get(key) for key in ("alpha", "beta"))
        given = Activation(activation, *numbers)
        if None in DEFAULTS[activation] and given.alpha is None:
            return None
        return Function(complete(given), node.inputs[0], (node,))
    return _hard_sigmoid(graph, node)


def gate_of(graph: Graph, name: str, *, peepholes: bool = False) -> Gate | None:
    """Returns the gate whose result is this value; None if no gate computes it. The value may be
    one output of a Split or Slice of several gates.

    ``peepholes``: see `affine`.
    """
    cut = graph.producer(name, "Split", "Slice")
    function = function_of(graph, cut.inputs[0] if cut else name)
    if function is None:
        result = affine(graph, name, peepholes=peepholes)
        return Gate(LINEAR, result) if result else None
    result = affine(graph, function.source, peepholes=peepholes)
    if result is not None and cut is not None:
        result = cut_affine(graph, cut, result, cut.outputs.index(name))
    if result is None:
        return None
    return Gate(function.activation, replace(result, nodes=(*result.nodes, *function.nodes)))


def is_symmetric(activation: Activation) -> bool:
    """Returns whether 1 - f(a) equals f(-a) for a function f."""
    return activation.name == "sigmoid" or activation[::2] == ("hardsigmoid", 0.5)


class Clipped(NamedTuple):
    """A value that is max(low, min(source, high)), and the ``nodes`` that compute it."""

    source: str
    low: float
    high: float
    nodes: tuple[Node, ...]


def clipped(graph: Graph, name: str) -> Clipped:
    """Returns the value before all clips, and the bounds, which are infinite without a clip."""
    result = Clipped(name, float("-inf"), float("inf"), ())
    while (clip := graph.producer(result.source, "Clip", "Min", "Max")) is not None:
        source, bounds = _bounds(graph, clip)
        if bounds is None:
            break
        # The outer clips also limit the bounds of the inner clip.
        low, high = (max(result.low, min(each, result.high)) for each in bounds)
        result = Clipped(source, low, high, (clip, *result.nodes))
    return result


def _hard_sigmoid(graph: Graph, node: Node) -> Function | None:
    """Matches max(0, min(1, alpha * x + beta)), in any equivalent form."""
    clip = clipped(graph, node.outputs[0])
    if (clip.low, clip.high) != (0.0, 1.0):
        return None

    def is_sum(name: str) -> bool:
        return affine(graph, name, peepholes=True) is not None

    value = polynomial(graph, clip.source, is_sum)
    if value is None or len(value.atoms) != 1:
        return None
    (source,) = value.atoms
    if not value.terms.keys() <= {(source,), ()} or value.likes:
        return None
    activation = Activation("hardsigmoid", value.terms[source,], value.terms.get((), 0.0))
    return Function(activation, source, (*value.nodes, *clip.nodes))


def _bounds(graph: Graph, node: Node) -> tuple[str, tuple[float, float] | None]:
    """Returns the value that a node clips, and the lower and upper bound."""
    ends = (float("-inf"), float("inf"))
    if node.op == "Clip":
        given = ((node.input(1), ends[0]), (node.input(2), ends[1]))
        numbers = [_number(graph, name) if name else end for name, end in given]
        low, high = numbers
        return node.inputs[0], None if low is None or high is None else (low, high)
    for source, bound in orders(node):
        if (number := _number(graph, bound)) is not None:
            return source, (number, ends[1]) if node.op == "Max" else (ends[0], number)
    return "", None


def _number(graph: Graph, name: str) -> float | None:
    """Returns the number in a float constant of one element, otherwise None."""
    array = graph.constants.get(name)
    if array is None or array.size != 1 or array.ndim > 2 or array.dtype.kind != "f":
        return None
    return float(array.item())
