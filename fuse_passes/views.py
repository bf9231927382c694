"""Views of values: how a chain of them moves axes, and passes that cancel or move them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.fuse_passes.bodies import source_of
from onernn.fuse_passes.rewriting import fresh, handed_on
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node, infer
from onernn.ir.operator import OPERATORS
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.types import UNKNOWN, Shape, Size, dense, volume
from onernn.ops.shaping import perm_of

_LONGEST = 8  # views in a row


class Factor(NamedTuple):
    """An axis that others are made of: two may be of one size."""

    name: str
    size: Size


Axis = tuple[Factor, ...]
"""The factors of an axis; () is one of size 1."""


def is_view(op: str) -> bool:
    """Whether an operator of ONNX gives the same elements in another order or shape."""
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
    """The axes behind the views; None where they are not known.

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
            left = [left[index] for index in perm_of(node.attrs, len(left))]
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


# Transposed and reversed views cancel, or move behind a Concat, out of the way of other passes.


SWAP = "ab...->ba..."
"""The einsum that exchanges time and batch."""


@dataclass(frozen=True, eq=False)
class Cancelling:
    """The second view undoes the first."""

    first: Node
    second: Node


@dataclass(frozen=True, eq=False)
class Sinking:
    """All inputs of a Concat are the same view."""

    concat: Node
    views: tuple[Node, ...]


class MoveViews:
    """``view(view(x))`` -> x; ``Concat(view(x), view(y))`` -> ``view(Concat(x, y))``.

    Views are the exchange of the first two axes and the reversal of one.
    """

    name = "moved_views"

    def match(self, graph: Graph, node: Node) -> Cancelling | Sinking | Refusal | None:
        if node.op == "Concat":
            return self._sinking(graph, node)
        second = _view(graph, node)
        first = graph.producer(node.inputs[0]) if second else None
        if first is None or _view(graph, first) != second:
            return None
        return Cancelling(first, node)

    def _sinking(self, graph: Graph, node: Node) -> Sinking | None:
        views = [view for name in node.inputs if (view := graph.producer(name))]
        if len(views) < len(node.inputs) or _view(graph, views[0]) != SWAP:
            return None
        axis, rank = node.attributes["axis"], graph.types[node.outputs[0]].rank
        if axis < 0:
            axis = 0 if rank is None else axis + rank  # not known: as one that is exchanged
        if axis < 2 or any(_view(graph, view) != SWAP for view in views):
            return None
        if any(not graph.used_only_by(view.outputs[0], node) for view in views):
            return None
        return Sinking(node, tuple(views))

    def rewrite(self, graph: Graph, match: Any) -> Graph:
        if isinstance(match, Cancelling):
            return handed_on(graph, match.second, match.first.inputs[0])
        concat, views = match.concat, match.views
        name = fresh(graph, f"{concat.outputs[0]}/Concat")
        joined = Node(
            "Concat",
            tuple(view.inputs[0] for view in views),
            (name,),
            concat.attributes,
            concat.origin,
        )
        first = views[0]
        moved = Node(
            first.op, (name, *first.inputs[1:]), concat.outputs, first.attributes, first.origin
        )
        return graph.splice((concat, *views), (joined, moved))


def _view(graph: Graph, node: Node) -> str | tuple[int, ...] | None:
    """The view of its first input that a node is: `SWAP`, the reversed axis, or none of these."""
    if node.op == "Einsum" and node.attributes["equation"] == SWAP:
        return SWAP
    perm = tuple(node.attributes.get("perm", ()))
    if node.op == "Transpose" and perm == (1, 0, *range(2, len(perm))) and len(perm) > 1:
        return SWAP
    if node.op != "Slice" or len(node.inputs) < 5:
        return None
    cuts = [graph.number(name) for name in node.inputs[1:5]]
    if None in cuts:
        return None
    start, end, axis, step = cuts
    return (axis,) if (start, step) == (-1, -1) and end < -(2**31) else None


# An axis of 1 that a Scan collects is put behind the Scan: passes see the cell that is left.


@dataclass(frozen=True, eq=False)
class Collected:
    """``at``: which result of the scan; ``source``: what it is without the ``axes``."""

    scan: Node
    at: int
    source: str
    axes: tuple[int, ...]


class MoveCollectedAxes:
    """``Scan(...; body collects Unsqueeze(h, 1))`` -> ``Unsqueeze(Scan(...), 2)``."""

    name = "collected_views"

    def match(self, graph: Graph, node: Node) -> Collected | None:
        if node.op != "Scan" or any(node.attributes["output_axes"]):
            return None
        body, count = node.attributes["body"], node.attributes["states"]
        for index, value in enumerate(body.outputs[count:], count):
            maker = body.producer(source_of(body, value.name))
            axes = None if maker is None else body.constants.get(maker.input(1))
            if maker is None or maker.op != "Unsqueeze" or axes is None or (axes < 0).any():
                continue
            if index < len(node.outputs) and node.outputs[index]:
                return Collected(node, index, maker.inputs[0], tuple(axes.reshape(-1).tolist()))
        return None

    def rewrite(self, graph: Graph, match: Collected) -> Graph:
        scan, at = match.scan, match.at
        body: Graph = scan.attributes["body"]
        outputs = list(body.outputs)
        outputs[at] = replace(outputs[at], name=match.source, shape=None)
        inner = replace(body, outputs=tuple(outputs)).pruned()
        name, axes = (
            fresh(graph, f"{scan.outputs[at]}/steps"),
            fresh(graph, f"{scan.outputs[at]}/axes"),
        )
        results = (*scan.outputs[:at], name, *scan.outputs[at + 1 :])
        new = replace(scan, outputs=results, attributes={**scan.attributes, "body": inner})
        behind = Node("Unsqueeze", (name, axes), (scan.outputs[at],), {}, scan.origin)
        return graph.splice((scan,), (new, behind), {axes: np.array(match.axes, np.int64) + 1})


# Views behind a layer that undo each other, and padding that is taken off again, are dropped.
# ONNX's layers give (T, D, N, O), the next one reads (T, N, D*O): exporters transpose and reshape
# in between, and what a reader puts around a layer does the opposite.


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
        if node.op == "Identity" or not is_view(node.op):
            return None
        source, chain = views_behind(graph, node.outputs[0])
        axes = _axes(graph, source)
        if axes is None or graph.types[node.outputs[0]].rank not in (None, 3):
            return None
        if moved(graph, chain, axes) != moved(graph, [], axes):
            return None
        return Undone(node, source)

    def rewrite(self, graph: Graph, match: Undone | Padded) -> Graph:
        if isinstance(match, Padded):
            pad = replace(match.pad, inputs=(match.pad.inputs[0], match.like))
            return graph.splice((match.pad,), (pad,))
        return handed_on(graph, match.node, match.source)


def _as_long(graph: Graph, node: Node) -> Padded | None:
    """Padding to the length of a padded value is padding to that value's own length."""
    like = graph.producer(node.input(1), "SequencePad")
    if like is None or not like.input(1):
        return None
    majors = {bool(each.attributes.get("time_major", 0)) for each in (node, like)}
    return Padded(node, like.inputs[1]) if len(majors) == 1 else None


def _repacked(graph: Graph, node: Node) -> Undone | None:
    """Words that were padded are taken out again by the lengths that they came with."""
    pad = graph.producer(node.input(0), "SequencePad")
    rnn = pad and graph.producer(pad.inputs[0], "Rnn")
    unpad = rnn and graph.producer(rnn.inputs[0], "SequenceUnpad")
    if pad is None or rnn is None or unpad is None:
        return None
    majors = {bool(each.attributes.get("time_major", 0)) for each in (node, pad, unpad)}
    if len(majors) > 1 or unpad.input(1) != node.input(1):
        return None
    return Undone(node, pad.inputs[0])


def _axes(graph: Graph, name: str) -> list[Axis] | None:
    """The axes of a layer's output, padded or dense; None for other values."""
    counts = graph.types[name].counts or (None, None)
    padded = graph.producer(name, "SequencePad")
    name = padded.inputs[0] if padded else name
    maker = graph.producer(name, "Rnn")
    if maker is None or maker.outputs[0] != name:
        return None
    if not padded and not graph.is_dense(name):
        return None
    spec = Recurrent.of(maker).spec
    sizes = {"D": spec.output_size // spec.recurrent_size, "O": spec.recurrent_size}
    channels = tuple(Factor(each, Size.of(size)) for each, size in sizes.items())
    front = zip(("first", "second"), counts, strict=False)
    return [*((Factor(n, Size.of(n if c is None else c)),) for n, c in front), channels]


# Offsets that are dropped and put back around row-wise operators stay.


@dataclass(frozen=True, eq=False)
class Views:
    like: Node
    drops: tuple[Node, ...]


class DropSequenceViews:
    """``SequenceLike(f(SequenceData(g(x))), x)`` -> ``f(g(x))`` for row-wise f and g.

    Paddle's matmul_v2 loses the LoD and lod_reset gives it back; nothing in between minds. They are
    row-wise where types show that the result has x's offsets without these nodes, too.
    """

    name = "sequence_views"

    def match(self, graph: Graph, node: Node) -> Views | Refusal | None:
        if node.op != "SequenceLike":
            return None
        drops: list[Node] = []
        (name, source), user, where = node.inputs, node, node.outputs[0]
        while name != source:
            maker = graph.producer(name)
            if maker is None:
                return Refusal(f"{node.inputs[0]!r} does not come from {source!r}", where)
            if not graph.used_only_by(name, user):
                return Refusal(f"{name!r} has another user", where)
            if maker.op == "SequenceData":
                drops.append(maker)
            elif maker.op not in OPERATORS or OPERATORS[maker.op].offsets:
                return Refusal(f"{maker.label} is not row-wise", where)
            name, user = maker.inputs[0], maker
        result = node.inputs[0]
        while (maker := graph.producer(result)) in drops and maker is not None:
            result = maker.inputs[0]
        views = Views(node, tuple(drops))
        lod = self.rewrite(graph, views).types.get(result, UNKNOWN).lod
        if not lod or lod != graph.types[source].lod:
            return Refusal(f"what makes {result!r} is not row-wise", where)
        return views

    def rewrite(self, graph: Graph, match: Views) -> Graph:
        return graph.bypass((match.like, *match.drops))
