"""Views behind a layer that undo each other, and padding that is taken off again, go away.

ONNX's layers give (T, D, N, O), the next one wants (T, N, D*O): exporters transpose and reshape in
between, and what a reader puts around a layer does the opposite.
"""

from __future__ import annotations

from dataclasses import replace

from onernn.fuse_passes.views import Axis, Factor, is_view, moved, views_behind
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.types import Size


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
        same = Node("Identity", (match.source,), match.node.outputs, {}, match.node.origin)
        return graph.splice((match.node,), (same,)).bypass((same,))


def _as_long(graph: Graph, node: Node) -> Padded | None:
    """Who pads to the length of what was padded pads to what that was padded to."""
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
    """What the axes of a layer's output are, padded or dense; None for other values."""
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
