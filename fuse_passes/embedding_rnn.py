"""A constant table of words is projected once, not each word again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import Refusal
from onernn.core.graph import Graph, Node
from onernn.core.weights import RnnWeights, layers_of
from onernn.fuse_passes.ordering import fresh

LIMIT = 64 * 2**20
"""Bytes that a projected table may have."""
NARROWEST = 512
"""Channels of the narrowest table for which it pays.

Measured, one thread, 1000 words: 512 -> 512 gains a third; 128 -> 256 loses 2 to 10 %, as rows three
or four times as wide are read.
"""


@dataclass(frozen=True, eq=False)
class Embedded:
    gather: Node
    rnn: Node
    table: Array
    projection: Array


class FuseEmbeddingRnn:
    """``Rnn(Gather(table, ids))`` -> ``Rnn(Gather(table @ weights, ids))``.

    Paddle's embedding_fc_lstm_fuse_pass. The bias stays in the rnn, so that a row of zeros stays
    one. ``limit``: bytes of the new table above which the pass refuses; ``narrowest``: channels of
    the old one below which it does.
    """

    name = "embedding_rnn"

    def __init__(self, limit: int = LIMIT, narrowest: int = NARROWEST) -> None:
        self.limit, self.narrowest = limit, narrowest

    def match(self, graph: Graph, node: Node) -> Embedded | Refusal | None:
        if node.op != "Rnn":
            return None
        gather = graph.producer(node.inputs[0])
        if gather is None or gather.op != "Gather" or gather.attributes.get("axis", 0):
            return None
        (weights, *others), spec, where = _layers(node), node.attributes["spec"], node.outputs[0]
        if weights.layer is None:
            return None
        if others and spec.stacking == "onednn":
            return Refusal("oneDNN's own stacking has input weights in every layer", where)
        if weights.layer.shape[1] > 1:
            return Refusal("two directions would need two tables", where)
        table = graph.constants.get(gather.inputs[0])
        if table is None:
            return Refusal(f"the table {gather.inputs[0]!r} is computed at run time", where)
        if table.ndim != 2 or table.dtype != weights.iter.dtype:
            return Refusal(f"the table is {table.dtype} {table.shape}", where)
        if not graph.used_only_by(gather.outputs[0], node):
            return Refusal(f"{gather.outputs[0]!r} has another user", where)
        if table.shape[1] < self.narrowest:
            return Refusal(f"{table.shape[1]} channels: wider rows would cost more", where)
        size = len(table) * weights.layer[0, 0, 0].nbytes
        if size > self.limit:
            return Refusal(f"the table would take {size} bytes, the limit is {self.limit}", where)
        return Embedded(gather, node, table, weights.layer[0, 0].reshape(table.shape[1], -1))

    def rewrite(self, graph: Graph, match: Embedded) -> Graph:
        gather, rnn = match.gather, match.rnn
        (first, *others), spec = _layers(rnn), rnn.attributes["spec"]
        layers = [replace(first, layer=None), *others]
        name = fresh(graph, f"{rnn.outputs[0]}/table")
        rows = fresh(graph, f"{rnn.outputs[0]}/projected")
        words = Node(
            "Gather", (name, *gather.inputs[1:]), (rows,), gather.attributes, gather.origin
        )
        new = Node(
            "Rnn",
            (rows, *rnn.inputs[1:]),
            rnn.outputs,
            {
                "spec": replace(spec, input_size=match.projection.shape[1]),
                "weights": layers if others else layers[0],
            },
            tuple(dict.fromkeys((*gather.origin, *rnn.origin))),
        )
        table = np.matmul(match.table, match.projection)
        return graph.splice((gather, rnn), (words, new), {name: table})


def _layers(rnn: Node) -> tuple[RnnWeights, ...]:
    return layers_of(rnn.attributes["spec"], rnn.attributes["weights"])
