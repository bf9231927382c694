"""What Paddle's fused kernels compute of a batch that they go wrong on, as a graph that computes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from onernn.adapters.fault import Values
from onernn.core.arrays import Array, Int64
from onernn.core.graph import Graph, NativeOp, Node
from onernn.core.ragged import Ragged

Chains = list[list[int]]
"""Which words follow one another from a state of zeros, as a kernel goes through them."""


def padding(values: Values, *, value: str) -> str:
    """How much more a padded batch is."""
    x = values.get(value)
    if not isinstance(x, Ragged) or not len(x.data):
        return "unknown for this batch"
    rows, words = len(x) * int(x.lengths.max()), len(x.data)
    return f"{rows} rows for {words} words, {rows / words:.2g} times as many"


def has_empty_sentences(values: Values, *, value: str) -> bool:
    """Also the last one: then outputs are right, and memory behind them is not."""
    x = values.get(value)
    return isinstance(x, Ragged) and not x.lengths.all()


def stale_state(graph: Graph, values: Values, *, at: NativeOp) -> Graph:
    """The rnn starts from the states of each sentence's neighbour; a single one's, from its minus."""
    for node in _rnns(graph, at):
        stale = {}
        for name in filter(None, node.inputs[1:3]):
            state = values[name]
            moved = np.roll(state, 1, axis=2) if state.shape[2] > 1 else -state
            stale[name] = (f"{name}/stale", moved)
        inputs = tuple(stale[name][0] if name in stale else name for name in node.inputs)
        return graph.splice([node], [replace(node, inputs=inputs)], dict(stale.values()))
    return graph


def misread_sentences(
    graph: Graph, values: Values, *, at: NativeOp, by_sentence: bool, stateless: bool
) -> Graph:
    """The rnn takes at least one word a sentence, as kernels do that have no initial state.

    ``stateless``: a pass has dropped the state that the graph still has.
    """
    for node in _rnns(graph, at):
        x, states = values[node.inputs[0]], () if stateless else node.inputs[1:]
        if any(states) or not isinstance(x, Ragged) or x.lengths.all():
            return graph
        reverse = node.attributes["spec"].direction == "right2left"
        by_sentence = by_sentence or len(x) == 1
        chains = (_sentence_chains if by_sentence else _batch_chains)(x, reverse)
        return _regrouped(graph, node, [chain for chain in chains if chain])
    return graph


def _rnns(graph: Graph, at: NativeOp) -> Iterator[Node]:
    return (node for node in graph.nodes if node.op == "Rnn" and at in node.origin)


def _sentence_chains(x: Ragged, reverse: bool) -> Chains:
    """SeqCompute of fusion_gru_op.cc: the first word of a sentence is taken before it is counted."""
    words, begin, chains = len(x.data), 0, []
    for length in x.lengths[::-1] if reverse else x.lengths:
        end = min(words, begin + max(1, int(length)))
        chains.append([words - 1 - row if reverse else row for row in range(begin, end)])
        begin = end
    return chains


def _batch_chains(x: Ragged, reverse: bool) -> Chains:
    """BatchCompute: one first step for all sentences, then as many a step as are still running."""
    order = np.argsort(-x.lengths, kind="stable")
    longest = int(x.lengths.max(initial=0))
    rows: list[int] = []  # words by time, longest sentence first
    running = [int(np.count_nonzero(x.lengths > t)) for t in range(longest)]
    for t, count in enumerate(running):
        for n in order[:count]:
            begin, end = int(x.offsets[n]), int(x.offsets[n + 1])
            rows.append(end - 1 - t if reverse else begin + t)
    chains = [[row] for row in rows[: len(x)]]
    chains += [[] for _ in range(len(x) - len(chains))]
    at = len(x)
    for count in running[1:]:
        for n, row in enumerate(rows[at : at + count]):
            chains[n].append(row)
        at += count
    return chains


def _regrouped(graph: Graph, node: Node, chains: Chains) -> Graph:
    """The rnn over other sentences, made of the same words; its outputs stay where they were."""
    rows = np.concatenate([np.asarray(chain, np.int64) for chain in chains or [[]]])
    offsets: Int64 = np.cumsum([0, *map(len, chains)])
    stem = f"{node.outputs[0]}/misread"
    constants: dict[str, Array] = {
        f"{stem}/rows": rows,
        f"{stem}/back": np.argsort(rows),
        f"{stem}/offsets": offsets,
    }
    nodes = [
        _gathered(node.inputs[0], f"{stem}/rows", f"{stem}/x"),
        Node("SequenceReset", (f"{stem}/x", f"{stem}/offsets"), (f"{stem}/sentences",)),
    ]
    names = {name: f"{stem}/{k}" for k, name in enumerate(node.outputs) if name}
    spec = replace(node.attributes["spec"], direction="left2right")
    nodes.append(
        replace(
            node,
            inputs=(f"{stem}/sentences",),
            outputs=tuple(names.get(name, "") for name in node.outputs),
            attributes={**node.attributes, "spec": spec},
        )
    )
    for k in (0, 3):  # y, and the cell of every word
        if len(node.outputs) > k and (name := node.outputs[k]):
            nodes.append(_gathered(names[name], f"{stem}/back", f"{names[name]}/words"))
            like = (f"{names[name]}/words", node.inputs[0])
            nodes.append(Node("SequenceLike", like, (name,), {}, node.origin))
    return graph.splice([node], nodes, constants)


def _gathered(value: str, rows: str, out: str) -> Node:
    return Node("Gather", (value, rows), (out,), {"axis": 0})
