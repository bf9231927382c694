"""A constant table of words is projected once, not each word again."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from onernn.fuse_passes.linear_rnn import of_another_input
from onernn.fuse_passes.rewriting import fresh
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.rnn import Recurrent

LIMIT = 64 * 2**20
"""Bytes that a projected table may have."""
NARROWEST = 512
"""Channels of the narrowest table for which it pays.

Measured, one thread, 1000 words: 512 -> 512 gains a third; 128 -> 256 loses 2 to 10 %, as rows
three or four times as wide are read.
"""


class Embedded(NamedTuple):
    gather: Node
    node: Node
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
        gather = graph.producer(node.inputs[0], "Gather") if node.op == "Rnn" else None
        if gather is None or gather.attrs.axis:
            return None
        rnn = Recurrent.of(node)
        weights, *others = rnn.layers
        if weights.layer is None:
            return None
        if rnn.precision.is_narrow:
            return Refusal(of_another_input(rnn), rnn.y)
        if others and rnn.spec.stacking == "onednn":
            return Refusal("oneDNN's own stacking has input weights in every layer", rnn.y)
        if weights.layer.shape[1] > 1:
            return Refusal("two directions would need two tables", rnn.y)
        table = graph.constants.get(gather.inputs[0])
        if table is None:
            return Refusal(f"the table {gather.inputs[0]!r} is computed at run time", rnn.y)
        if table.ndim != 2 or table.dtype != weights.iter.dtype:
            return Refusal(f"the table is {table.dtype} {table.shape}", rnn.y)
        if not graph.used_only_by(rnn.x, node):
            return Refusal(f"{rnn.x!r} has another user", rnn.y)
        if table.shape[1] < self.narrowest:
            return Refusal(f"{table.shape[1]} channels: wider rows would cost more", rnn.y)
        size = len(table) * weights.layer[0, 0, 0].nbytes
        if size > self.limit:
            return Refusal(f"the table would take {size} bytes, the limit is {self.limit}", rnn.y)
        return Embedded(gather, node, table, weights.layer[0, 0].reshape(table.shape[1], -1))

    def rewrite(self, graph: Graph, match: Embedded) -> Graph:
        gather, rnn = match.gather, Recurrent.of(match.node)
        first, *others = rnn.layers
        projected = replace(first, layer=None)
        table = fresh(graph, f"{rnn.y}/table")
        rows = fresh(graph, f"{rnn.y}/projected")
        words = replace(gather, inputs=(table, *gather.inputs[1:]), outputs=(rows,))
        new = replace(
            rnn,
            x=rows,
            spec=replace(rnn.spec, input_size=match.projection.shape[1]),
            weights=(projected, *others) if others else projected,
            origin=tuple(dict.fromkeys((*gather.origin, *rnn.origin))),
        )
        product = np.matmul(match.table, match.projection)
        return graph.splice((gather, match.node), (words, new.node()), {table: product})
