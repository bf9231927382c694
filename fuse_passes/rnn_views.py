"""Views behind a layer that undo each other, and padding that is taken off again, go away.

ONNX's layers give (T, D, N, O), the next one wants (T, N, D*O): exporters transpose and reshape in
between, and what a reader puts around a layer does the opposite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from onernn.core.graph import Graph, Node

VIEWS = frozenset({"Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_LONGEST = 8  # views in a row

Axis = tuple[str, ...]
"""The sizes that one axis is the product of, by their names; () is an axis of size 1."""


@dataclass(frozen=True, eq=False)
class Undone:
    """``node`` makes what ``source`` is."""

    node: Node
    source: str


@dataclass(frozen=True, eq=False)
class Padded:
    """``pad`` pads to the length of ``like``, too."""

    pad: Node
    like: str


class DropRnnViews:
    """``views(Rnn(x))`` -> ``Rnn(x)`` and ``Unpad(Pad(Rnn(Unpad(x))))`` -> ``Rnn(Unpad(x))``."""

    name = "rnn_views"

    def match(self, graph: Graph, node: Node) -> Undone | Padded | None:
        if node.op == "SequencePad":
            return _as_long(graph, node)
        if node.op == "SequenceUnpad":
            return _repacked(graph, node)
        if node.op not in VIEWS or node.op == "Identity":
            return None
        chain = [node]
        while (maker := graph.producer(chain[-1].input(0))) is not None and maker.op in VIEWS:
            chain.append(maker)
            if len(chain) > _LONGEST:
                return None
        source = chain[-1].input(0)
        known = _axes(graph, source)
        if known is None:
            return None
        before, sizes = known
        axes: list[Axis] | None = before
        for view in reversed(chain):
            axes = _viewed(graph, view, axes, sizes) if axes is not None else None
        return Undone(node, source) if axes == before else None

    def rewrite(self, graph: Graph, match: Undone | Padded) -> Graph:
        if isinstance(match, Padded):
            pad = replace(match.pad, inputs=(match.pad.inputs[0], match.like))
            return graph.splice((match.pad,), (pad,))
        same = Node("Identity", (match.source,), match.node.outputs, {}, match.node.origin)
        return graph.splice((match.node,), (same,)).bypass((same,))


def _as_long(graph: Graph, node: Node) -> Padded | None:
    """Who pads to the length of what was padded pads to what that was padded to."""
    like = graph.producer(node.input(1))
    if like is None or like.op != "SequencePad" or not like.input(1):
        return None
    majors = {bool(each.attributes.get("time_major", 0)) for each in (node, like)}
    return Padded(node, like.inputs[1]) if len(majors) == 1 else None


def _repacked(graph: Graph, node: Node) -> Undone | None:
    """Words that were padded are taken out again by the lengths that they came with."""
    pad = graph.producer(node.input(0))
    if pad is None or pad.op != "SequencePad":
        return None
    rnn = graph.producer(pad.inputs[0])
    unpad = graph.producer(rnn.inputs[0]) if rnn is not None and rnn.op == "Rnn" else None
    if rnn is None or unpad is None or unpad.op != "SequenceUnpad":
        return None
    majors = {bool(each.attributes.get("time_major", 0)) for each in (node, pad, unpad)}
    if len(majors) > 1 or unpad.input(1) != node.input(1):
        return None
    return Undone(node, pad.inputs[0])


def _axes(graph: Graph, name: str) -> tuple[list[Axis], dict[str, int]] | None:
    """What the axes of a layer's output are, padded or dense, and the sizes that are known."""
    maker = graph.producer(name)
    padded = maker is not None and maker.op == "SequencePad"
    if padded and maker is not None:
        name = maker.inputs[0]
        maker = graph.producer(name)
    if maker is None or maker.op != "Rnn" or maker.outputs[0] != name:
        return None
    if not padded and not graph.is_dense(name):
        return None
    spec = maker.attributes["spec"]
    sides = spec.output_size // spec.recurrent_size
    channels = ("D", "O") if sides == 2 else ("O",)
    return [("first",), ("second",), channels], {"D": sides, "O": spec.recurrent_size}


def _viewed(
    graph: Graph, view: Node, axes: list[Axis], sizes: Mapping[str, int]
) -> list[Axis] | None:
    """The axes behind a view; None where it is not told what they are."""
    if view.op == "Identity":
        return axes
    if view.op == "Transpose":
        perm = view.attributes.get("perm", range(len(axes))[::-1])
        return [axes[at] for at in perm] if sorted(perm) == [*range(len(axes))] else None
    constant = graph.constants.get(view.input(1))
    if constant is None or constant.dtype.kind != "i" or view.attributes.get("allowzero", 0):
        return None
    numbers: list[int] = constant.reshape(-1).tolist()
    if view.op == "Reshape":
        return _reshaped(axes, numbers, sizes)
    rank = len(axes) + (len(numbers) if view.op == "Unsqueeze" else 0)
    if not all(-rank <= at < rank for at in numbers):
        return None
    places = {at % rank for at in numbers}
    if len(places) != len(numbers):
        return None
    if view.op == "Unsqueeze":
        rest = iter(axes)
        return [() if at in places else next(rest) for at in range(rank)]
    if any(axes[at] for at in places):
        return None
    return [axis for at, axis in enumerate(axes) if at not in places]


def _reshaped(axes: list[Axis], shape: list[int], sizes: Mapping[str, int]) -> list[Axis] | None:
    """The factors of all axes dealt out anew, from both ends up to the -1."""
    names = [name for axis in axes for name in axis]
    cut = shape.index(-1) if -1 in shape else len(shape)
    front: list[Axis] = []
    back: list[Axis] = []
    for at in [*range(cut), *range(len(shape) - 1, cut, -1)]:
        axis = axes[at] if at < len(axes) else ()
        step = 1 if at < cut else -1
        taken = _taken(names[::step], shape[at], axis[::step], sizes)
        if taken is None:
            return None
        names = names[len(taken) :] if at < cut else names[: len(names) - len(taken)]
        (front if at < cut else back).append(taken[::step])
    if cut == len(shape):
        return None if names else front
    return [*front, tuple(names), *back[::-1]]


def _taken(names: list[str], size: int, axis: Axis, sizes: Mapping[str, int]) -> Axis | None:
    """The first of the names whose sizes multiply to one size; 0: those of the axis there."""
    if size == 0:
        return axis if tuple(names[: len(axis)]) == axis else None
    count, product = 0, 1
    while product != size:
        if count == len(names) or names[count] not in sizes or product > size:
            return None
        product *= sizes[names[count]]
        count += 1
    return tuple(names[:count])
