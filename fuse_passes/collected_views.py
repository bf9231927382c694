"""An axis of 1 that a scan collects is put behind it: what is left is a cell that passes see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onernn.fuse_passes.bodies import source_of
from onernn.fuse_passes.rewriting import fresh
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass


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
        for at, value in enumerate(body.outputs[count:], count):
            maker = body.producer(source_of(body, value.name))
            axes = None if maker is None else body.constants.get(maker.input(1))
            if maker is None or maker.op != "Unsqueeze" or axes is None or (axes < 0).any():
                continue
            if at < len(node.outputs) and node.outputs[at]:
                return Collected(node, at, maker.inputs[0], tuple(axes.reshape(-1).tolist()))
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
