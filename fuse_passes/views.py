"""Where a chain of views leaves the axes of a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from onernn.ir.graph import Graph, Node, infer
from onernn.ir.operator import OPERATORS
from onernn.ir.types import Shape, Size, dense, volume

_LONGEST = 8  # views in a row


class Factor(NamedTuple):
    """An axis that others are made of: two may be of one size."""

    name: str
    size: Size


Axis = tuple[Factor, ...]
"""What an axis is the product of; () is one of size 1."""


def is_view(op: str) -> bool:
    """Whether an operator of ONNX's only tells the same elements in another order or shape."""
    operator = OPERATORS.get(op)
    return op == "Transpose" or bool(operator and operator.kind == "view" and operator.since)


def views_behind(graph: Graph, name: str) -> tuple[str, list[Node]]:
    """The value that a chain of views is made of, and the chain, first view first."""
    chain: list[Node] = []
    while (node := graph.producer(name)) is not None and is_view(node.op) and len(chain) < _LONGEST:
        chain.insert(0, node)
        name = node.inputs[0]
    return name, chain


def moved(graph: Graph, chain: Sequence[Node], axes: Sequence[Axis]) -> list[Axis] | None:
    """The axes behind the views; None where nobody can tell.

    They are those of a value with these axes, whatever sizes its factors have.
    """
    left = [tuple(factor for factor in axis if factor.size.number != 1) for axis in axes]
    if not chain:
        return left
    types = {name: graph.types[name] for node in chain for name in node.inputs if name}
    types[chain[0].inputs[0]] = dense("float32", [_size(axis) for axis in left])
    types = infer((replace(node) for node in chain), types)
    for node in chain:
        shape = types[node.outputs[0]].shape
        if shape is None or None in shape:
            return None
        if node.op == "Transpose":
            perm = node.attrs.perm or range(len(left))[::-1]
            left = [left[at] for at in perm]
            continue
        dealt = _dealt([factor for axis in left for factor in axis], shape)  # type: ignore[arg-type]
        if dealt is None:
            return None
        left = dealt
    return left


def _size(axis: Axis) -> Size:
    return volume(tuple(factor.size for factor in axis))


def _dealt(factors: list[Factor], shape: Shape) -> list[Axis] | None:
    """The factors in their order as axes of these sizes."""
    axes: list[Axis] = []
    for size in shape:
        count = 0
        while _size(tuple(factors[:count])) != size:
            count += 1
            if count > len(factors):
                return None
        axes.append(tuple(factors[:count]))
        factors = factors[count:]
    return None if factors else axes
