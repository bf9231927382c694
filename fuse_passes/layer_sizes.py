"""Sizes that are asked of a layer's output are those of its input: the layer need not run for them.

Keras makes zeros like a first output before a masked loop; exporters write that step out.
"""

from __future__ import annotations

from onernn.fuse_passes.stacked_steps import Stacker
from onernn.fuse_passes.views import views_behind
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass


@dataclass(frozen=True, eq=False)
class LayerSizes:
    """``sizes``: numbers, or names of axes of ``x``, which are counted from -1 downwards."""

    shape: Node
    x: str
    sizes: tuple[int, ...]


class AskInputs:
    """``Shape(Rnn(x))`` -> what Shape(x) and the layer's width say."""

    name = "layer_sizes"

    def match(self, graph: Graph, node: Node) -> LayerSizes | None:
        if node.op != "Shape" or node.attrs.start or node.attrs.end is not None:
            return None
        rnn = graph.producer(views_behind(graph, node.inputs[0])[0], "Rnn")
        if rnn is None or not graph.is_dense(rnn.inputs[0]):
            return None
        asked, known = graph.types[node.inputs[0]].shape, graph.types[rnn.inputs[0]].shape
        if asked is None or known is None:
            return None
        sizes = []
        for size in asked:
            if size is None or (size.number is None and size not in known):
                return None
            sizes.append(known.index(size) - len(known) if size.number is None else size.number)
        return LayerSizes(node, rnn.inputs[0], tuple(sizes))

    def rewrite(self, graph: Graph, match: LayerSizes) -> Graph:
        node = match.shape
        to = Stacker(graph, node.outputs[0], node.origin)
        of_x = to.emit("Shape", (match.x,))
        parts = [
            to.emit("Gather", (of_x, to.constant([size])), axis=0)
            if size < 0
            else to.constant([size])
            for size in match.sizes
        ]
        made = Node("Concat", tuple(parts), node.outputs, {"axis": 0}, node.origin)
        return graph.splice((node,), (*to.nodes, made), to.constants)
