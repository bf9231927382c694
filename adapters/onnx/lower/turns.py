"""Loops that read step t of a value in turn t, as PyTorch and TensorFlow export them.

TensorFlow's carry values that never change, count for themselves, and go on while that count is
below the number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from onernn.adapters.onnx.lower.operator import KEEPS_SHAPE, OnnxOperator
from onernn.adapters.onnx.read import Operator, Subgraph
from onernn.core.arrays import Array
from onernn.core.graph import Graph, Node, Value

_SAME = ("Identity", "Reshape", "Squeeze", "Unsqueeze")  # what leaves one number what it is
_WIDE = ("int32", "int64", "float32", "float64")  # what a number may be cast to on the way
_ENDLESS = 2**31 - 1  # turns; exporters write it where nobody counts
_MOST_READ = 300  # values of a loop's numbers: sums of sums would be read again and again
_COMPARISONS = {"Less": (0, 1, 0), "LessOrEqual": (0, 1, 1)}  # places of both sides, what is added
_COMPARISONS |= {"Greater": (1, 0, 0), "GreaterOrEqual": (1, 0, 1)}


def without_constants(
    op: OnnxOperator, graph: Subgraph, slots: list[int]
) -> tuple[Subgraph, list[int]]:
    """The body with what every turn hands on unchanged taken from outside, and which these are.

    ``slots``: for each value that the body carries, which of the loop's it is.
    """
    makers = {name: each for each in graph.operators for name in each.outputs}
    own = {v.name for v in graph.inputs} | {*graph.constants, *graph.unread, *makers}
    fixed, names = [], []
    for slot, inside, result in zip(slots, graph.inputs[2:], graph.outputs[1:], strict=False):
        name, outside = result.name, op.inputs[str(2 + slot)][0]
        for _ in makers:  # a file may hold cycles
            if name not in makers or makers[name].type != "Identity":
                break
            name = makers[name].inputs[0]
        if name == inside.name and outside and outside not in own:
            fixed.append(slot)
            names.append(Operator(op.at.position, "", "Identity", (outside,), (name,), {}))
    kept = [at for at, slot in enumerate(slots) if slot not in fixed]
    return replace(
        graph,
        operators=(*names, *graph.operators),
        inputs=(*graph.inputs[:2], *(graph.inputs[2 + at] for at in kept)),
        outputs=(
            graph.outputs[0],
            *(graph.outputs[1 + at] for at in kept),
            *graph.outputs[1 + len(slots) :],
        ),
    ), fixed


@dataclass(frozen=True, eq=False)
class Steps:
    """A body that is run once for each step of a value, from the first to the last.

    Its inputs: ``carried`` states, a step of ``scanned``, then what it takes from outside. Its
    outputs: the states, then what is collected. ``kept``: which values of the loop the states are,
    the others count turns.
    """

    body: Graph
    carried: tuple[str, ...]
    scanned: str
    taken: tuple[str, ...]
    kept: tuple[int, ...]


def steps_of_loop(
    op: OnnxOperator, body: Graph, carried: list[str], taken: list[str]
) -> Steps | None:
    """A loop of as many turns as a value has steps, reading step t in turn t; None for others."""
    loop = _Loop(op, body, carried, taken)
    kept = tuple(at for at in range(len(carried)) if at not in loop.counters)
    collected = body.outputs[1 + len(carried) :]
    outputs = (*(body.outputs[1 + at] for at in kept), *collected)
    body = replace(body, outputs=outputs).pruned()
    reads = [node for node in body.nodes if loop.turns.intersection(node.inputs)]
    if not reads or not all(
        node.op == "Gather"
        and node.inputs[1] in loop.turns
        and node.inputs[0] in loop.inside
        and node.attributes.get("axis", 0) == 0
        for node in reads
    ):
        return None
    sources = {loop.inside[node.inputs[0]] for node in reads}
    counted = loop.turns | {body.inputs[1].name}
    used = {name for node in body.nodes if node not in reads for name in node.inputs}
    used.update(value.name for value in outputs)
    if len(sources) > 1 or used & counted or not loop.goes_through(*sources):
        return None
    (source,) = sources
    step = f"{source}/step"
    renamed = {node.outputs[0]: step for node in reads}
    nodes = tuple(
        replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        for node in body.nodes
        if node not in reads
    )
    rest = tuple(name for name in loop.inside if name in used)
    inputs = (
        *(sized(op, body.inputs[2 + at], carried[at]) for at in kept),
        sized(op, Value(step), source, step=True),
        *(sized(op, Value(name), loop.inside[name]) for name in rest),
    )
    outputs = tuple(replace(v, name=renamed.get(v.name, v.name)) for v in outputs)
    return Steps(
        Graph(body.name, inputs, outputs, nodes, body.constants).pruned(),
        tuple(carried[at] for at in kept),
        source,
        tuple(loop.inside[name] for name in rest),
        kept,
    )


def sized(op: OnnxOperator, inside: Value, outside: str, *, step: bool = False) -> Value:
    """An input of a body with the shape that is known of what it gets, or of one step of it.

    Passes that look for cells ask how many axes there are.
    """
    if inside.shape is not None:
        return inside
    found = op.builder.type_of(outside)
    if found.shape is None:
        return inside
    return replace(inside, shape=found.counts[1:] if step else found.counts)


class _Sum(NamedTuple):
    """A number in turn t: t times ``turns``, plus a constant, plus the size of a value's axis."""

    turns: int
    plus: int
    size: tuple[str, int] | None = None


class _Loop:
    """What can be told of a loop's numbers. ``inside``: names in the body of values outside.

    ``counters``: which carried values are t in turn t, ``turns`` all names of t in the body.
    """

    def __init__(self, op: OnnxOperator, body: Graph, carried: list[str], taken: list[str]) -> None:
        self._op, self._body, self._builder, self._left = op, body, op.builder, _MOST_READ
        outside = (value.name for value in body.inputs[2 + len(carried) :])
        self.inside = dict(zip(outside, taken, strict=True))
        self.counters = {at for at, begin in enumerate(carried) if self._counts(at, begin)}
        self.turns = {body.inputs[2 + at].name for at in self.counters} | {body.inputs[0].name}

    def _counts(self, at: int, begin: str) -> bool:
        """Whether a value starts at 0, and every turn adds 1."""
        first = self._builder.constants.get(begin)
        if first is None or first.shape != () or first.dtype.kind != "i" or first != 0:
            return False
        node = self._body.producer(self._body.outputs[1 + at].name)
        while node is not None and node.op == "Identity":
            node = self._body.producer(node.inputs[0])
        if node is None or node.op != "Add" or self._body.inputs[2 + at].name not in node.inputs:
            return False
        added = [self._body.constants.get(name) for name in node.inputs]
        return any(each is not None and each.shape == () and each == 1 for each in added)

    def goes_through(self, source: str) -> bool:
        """Whether there are as many turns as a value has steps, whatever that number is.

        What is compared may be rounded to float32, as TensorFlow's exporter does: the number of
        steps is below 2^24 then.
        """
        length = self._size(source, 0)
        begin = self._op.optional(1)
        before = self._compared(begin, False) if begin else []
        after = self._compared(self._body.outputs[0].name, True)
        most = self._most()
        if before is None or after is None or most is None:
            return False
        # How many turns each lets pass. Before the first turn t is 0, behind turn t it is t.
        limits = (
            [high._replace(plus=high.plus - low.plus) for low, high in before],
            [high._replace(plus=high.plus - low.plus + 1) for low, high in after],
            most,
        )
        counts = [low.turns == 0 for low, _ in before] + [low.turns == 1 for low, _ in after]
        alike = (limit._replace(plus=0) == length._replace(plus=0) for limit in chain(*limits))
        if not all(counts) or not all(alike):
            return False
        more = [[limit.plus - length.plus for limit in each] for each in limits]
        exact = 0 in more[2] or 0 in more[0] and 0 in more[1]
        return exact and min(chain(*more)) >= 0

    def _most(self) -> list[_Sum] | None:
        """The number of turns that is given, none where that is no bound."""
        name = self._op.optional(0)
        found = self._sum(name, False) if name else None
        if not name or found and found.size is None and found.plus >= _ENDLESS:
            return []
        return None if found is None else [found]

    def _compared(self, name: str, within: bool) -> list[tuple[_Sum, _Sum]] | None:
        """Pairs a, b so that a condition says: each a is less than its b."""
        constant, self._left = self._constant(name, within), self._left - 1
        if constant is not None or self._left < 0:
            return [] if constant is not None and constant.all() else None
        if within and name == self._body.inputs[1].name:
            return []  # as it was before
        node = self._node(name, within)
        if node is not None and node.op in ("Identity", "Cast"):
            return self._compared(node.inputs[0], within)
        if node is not None and node.op == "And":
            one, other = (self._compared(each, within) for each in node.inputs)
            return None if one is None or other is None else one + other
        if node is None or node.op not in _COMPARISONS:
            return None
        left, right, more = _COMPARISONS[node.op]
        low, high = (self._sum(node.inputs[at], within) for at in (left, right))
        if low is None or high is None or low.size is not None:
            return None
        return [(low, high._replace(plus=high.plus + more))]

    def _node(self, name: str, within: bool) -> Node | None:
        return self._body.producer(name) if within else self._builder.makers.get(name)

    def _constant(self, name: str, within: bool) -> Array | None:
        return (self._body if within else self._builder).constants.get(name)

    def _sum(self, name: str, within: bool) -> _Sum | None:
        """What is known of one number, in the body or outside."""
        self._left -= 1
        if self._left < 0:
            return None
        if within and name in self.turns:
            return _Sum(1, 0)
        if within and name in self.inside:
            return self._sum(self.inside[name], False)
        constant, node = self._constant(name, within), self._node(name, within)
        if constant is not None:
            whole = constant.size == 1 and constant.dtype.kind in "iuf" and constant % 1 == 0
            return _Sum(0, int(constant.reshape(()))) if whole else None
        if node is not None and (node.op in _SAME or _is_wide_cast(node)):
            return self._sum(node.inputs[0], within)
        if node is not None and node.op in ("Gather", "Slice"):
            return self._element(node, within)
        if node is None or node.op != "Add":
            return None
        one, other = (self._sum(each, within) for each in node.inputs)
        if one is None or other is None or (one.size and other.size):
            return None
        return _Sum(one.turns + other.turns, one.plus + other.plus, one.size or other.size)

    def _element(self, node: Node, within: bool) -> _Sum | None:
        """One element of a value's shape, by Gather or Slice."""
        shape = self._node(node.inputs[0], within)
        while shape is not None and (shape.op == "Identity" or _is_wide_cast(shape)):
            shape = self._node(shape.inputs[0], within)
        places = [self._constant(name, within) for name in node.inputs[1:]]
        if shape is None or shape.op != "Shape" or shape.attributes or len(places) > 3:
            return None
        if any(place is None or place.size != 1 for place in places):
            return None
        axis, *end = (int(place.reshape(())) for place in places[:2] if place is not None)
        value = shape.inputs[0]
        if within:
            value = self.inside.get(value, "")
        if axis < 0 or end not in ([], [axis + 1]) or not value:
            return None
        return self._size(value, axis)

    def _size(self, value: str, axis: int) -> _Sum:
        """The size of an axis, by the value that first had it, or as a number."""
        while (node := self._builder.makers.get(value)) is not None:
            if node.op == "Transpose" and "perm" in node.attributes:
                axis = node.attributes["perm"][axis]
            elif node.op not in KEEPS_SHAPE:
                break
            value = node.inputs[0]
        sizes = self._builder.type_of(value).counts
        size = sizes[axis] if axis < len(sizes) else None
        return _Sum(0, 0, (value, axis)) if size is None else _Sum(0, size)


def _is_wide_cast(node: Node) -> bool:
    return node.op == "Cast" and node.attributes["to"] in _WIDE
