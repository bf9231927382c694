"""Operators whose results follow from how many steps there are: chunks have fewer than the whole.

A few steps do not show it where a threshold is far away: for more than 1,000 steps another branch.
"""

from __future__ import annotations

from collections.abc import Iterator

from onernn.fuse_passes.bodies import bodies
from onernn.ir.graph import Graph, Node
from onernn.ir.operator import OPERATORS
from onernn.ir.types import Size

_FAR = 2**31 - 1  # a slice up to here has no end


def counting(graph: Graph, time: str) -> Iterator[tuple[Node, str]]:
    """The nodes that compute with the number of steps, whose name is ``time``, and why.

    Sums and products of it that tell a shape do not count: chunks of several sizes show these.
    """
    counts = set[str]()
    for node in graph.nodes:
        read = [at for at, name in enumerate(node.inputs) if name in counts]
        made = [graph.types[name].value for name in node.outputs if name]
        if node.op in ("Shape", "Size") or read:
            known = all(value is not None for value in made)
            if known and any(_plain(size, time) is None for value in made for size in _all(value)):
                yield node, "it divides the number of steps"
            elif known:
                if any(_plain(size, time) for value in made for size in _all(value)):
                    counts.update(filter(None, node.outputs))
            elif node.op in ("Shape", "Size") or not all(_tells_shape(node, at) for at in read):
                yield node, "it computes with the number of steps"
        within = [each for body in bodies(node).values() for each in _nodes(body)]
        if any(each.op in ("Shape", "Size") or each.op == "Slice" for each in within):
            if any(goes_along(graph, name, time) for name in node.inputs if name):
                yield node, "what is inside may compute with the number of steps"
        if node.op == "CumSum" and goes_along(graph, node.inputs[0], time):
            yield node, "it needs other steps than those so far: it may count them"


def _tells_shape(node: Node, at: int) -> bool:
    """Whether an input only says how large a result is, or which part of another."""
    operator = OPERATORS.get(node.op)
    if operator is None or operator.most is None:
        return False
    return node.op == "ConstantOfShape" or (at > 0 and operator.kind in ("view", "moves"))


def _all(value: Size | tuple[Size, ...] | None) -> tuple[Size, ...]:
    return (value,) if isinstance(value, Size) else value or ()


def _plain(size: Size, time: str) -> bool | None:
    """Whether the number of steps is in it; None where it is in a quotient."""
    if any(time in each.whole.names for each in size.quotients):
        return None
    return time in size.names


def goes_along(graph: Graph, name: str, time: str) -> bool:
    """Whether a value has the steps on an axis."""
    return any(size and time in size.names for size in graph.types[name].shape or ())


def _nodes(body: Graph) -> Iterator[Node]:
    for node in body.nodes:
        yield node
        for inner in bodies(node).values():
            yield from _nodes(inner)


def far_steps(graph: Graph, node: Node, time: str) -> str:
    """Why a slice counts steps; "" where it takes all, but the first or the last one perhaps."""
    starts, ends, axes = (
        graph.types[name].value if name else None for name in (*node.inputs, "")[1:4]
    )
    shape = graph.types[node.inputs[0]].shape or ()
    bounds = list(zip(_all(starts), _all(ends), strict=False))
    along = [size.number for size in _all(axes)] if axes is not None else [*range(len(bounds))]
    for axis, pair in zip(along, bounds, strict=False):
        size = shape[axis] if axis is not None and axis < len(shape) else None
        if size is None or time not in size.names:
            continue
        if any(each.number is not None and 1 < abs(each.number) < _FAR for each in pair):
            return f"it takes steps [{pair[0]}:{pair[1]}]"
    return ""
