"""Which layer and direction of which recurrent node something is, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from onernn.fuse_passes.expand_layers import ExpandLayers, part_name
from onernn.fuse_passes.normal_forms import NORMAL_FORMS, constants_last
from onernn.fuse_passes.pipeline import fuse
from onernn.ir.graph import Graph, layer_operators
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent, parts


@dataclass(frozen=True)
class LayerName:
    """Which layer and direction of which recurrent node something is, as a reader counts them.

    ``own``: the one operator of the file that is this layer, where each layer is one.
    """

    node: str
    layer: int
    direction: str
    layers: int = 1
    own: str = ""

    def __str__(self) -> str:
        return f"{self._place}, {self.direction}"

    @property
    def _place(self) -> str:
        layer = f", layer {self.layer + 1} of {self.layers}" if self.layers > 1 else ""
        return (self.own or self.node) + layer


def in_words(parts: Iterable[LayerName]) -> str:
    """Several parts in few words: directions of one layer together."""
    sides: dict[str, list[str]] = {}
    for part in parts:
        sides.setdefault(part._place, []).append(part.direction)
    both = {place: "both directions" if len(s) == 2 else s[0] for place, s in sides.items()}
    return " and ".join(f"{place}, {side}" for place, side in both.items())


def expanded(graph: Graph) -> tuple[Graph, dict[str, LayerName]]:
    """A graph in which every Rnn is one layer in one direction; and what part each is, by its y.

    What exporters write in several ways has one form.
    """
    found: dict[str, LayerName] = {}
    for node in graph.nodes:
        if node.op == "Rnn":
            rnn = Recurrent.of(node)
            own = [replace(node, origin=(op,)).native for op in layer_operators(node.origin)]
            for part in parts(rnn.spec):
                side = "backward" if part.backwards else "forward"
                name = part_name(rnn, part)
                alone = own[part.layer] if 1 < len(own) == rnn.spec.layers else ""
                found[name] = LayerName(node.native, part.layer, side, rnn.spec.layers, alone)
    return constants_last(fuse(graph, (ExpandLayers(), *NORMAL_FORMS)).model), found
