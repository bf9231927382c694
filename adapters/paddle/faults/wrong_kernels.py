"""What Paddle's fused kernels compute of a batch that they go wrong on, as a graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from onernn.adapters.common.fault import Values
from onernn.ir.arrays import Array, Int64
from onernn.ir.graph import Graph, NativeOp, Node
from onernn.ir.ragged import Ragged
from onernn.ir.rnn import Recurrent

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
    """The rnn starts from the neighbour's states, a single sentence from minus its own."""
    for node in _rnns(graph, at):
        rnn = Recurrent.of(node)
        stale = {}
        for name in filter(None, rnn.states):
            state = values[name]
            stale[f"{name}/stale"] = np.roll(state, 1, axis=2) if state.shape[2] > 1 else -state
        states = tuple(name and f"{name}/stale" for name in rnn.states)
        return graph.splice([node], [rnn.with_states(states, rnn.finals).node()], stale)
    return graph


def misread_sentences(
    graph: Graph, values: Values, *, at: NativeOp, by_sentence: bool, stateless: bool
) -> Graph:
    """The rnn takes at least one word a sentence, as kernels do that have no initial state.

    ``stateless``: a pass has dropped the state that the graph still has.
    """
    for node in _rnns(graph, at):
        rnn = Recurrent.of(node)
        x, has_states = values[rnn.x], any(rnn.states) and not stateless
        if has_states or not isinstance(x, Ragged) or x.lengths.all():
            return graph
        by_sentence = by_sentence or len(x) == 1
        order = _sentence_chains if by_sentence else _batch_chains
        chains = order(x, rnn.spec.direction == "right2left")
        return _regrouped(graph, node, [chain for chain in chains if chain])
    return graph


def _rnns(graph: Graph, at: NativeOp) -> Iterator[Node]:
    return (node for node in graph.nodes if node.op == "Rnn" and at in node.origin)


def _sentence_chains(x: Ragged, reverse: bool) -> Chains:
    """SeqCompute of fusion_gru_op.cc: it takes a sentence's first word before it counts words."""
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
    rnn = Recurrent.of(node)
    rows = np.concatenate([np.asarray(chain, np.int64) for chain in chains or [[]]])
    offsets: Int64 = np.cumsum([0, *map(len, chains)])
    stem = f"{rnn.y}/misread"
    constants: dict[str, Array] = {
        f"{stem}/rows": rows,
        f"{stem}/back": np.argsort(rows),
        f"{stem}/offsets": offsets,
    }
    misread = replace(
        rnn,
        spec=replace(rnn.spec, direction="left2right"),
        x=f"{stem}/sentences",
        y=f"{stem}/y",
        cells=rnn.cells and f"{stem}/cells",
    ).with_states((), rnn.finals)
    nodes = [
        _gathered(rnn.x, f"{stem}/rows", f"{stem}/x"),
        Node("SequenceReset", (f"{stem}/x", f"{stem}/offsets"), (misread.x,)),
        misread.node(),
    ]
    for name, made in ((rnn.y, misread.y), (rnn.cells, misread.cells)):
        if name:
            words = f"{made}/words"
            nodes.append(_gathered(made, f"{stem}/back", words))
            nodes.append(Node("SequenceLike", (words, rnn.x), (name,), {}, node.origin))
    return graph.splice([node], nodes, constants)


def _gathered(value: str, rows: str, out: str) -> Node:
    return Node("Gather", (value, rows), (out,), {"axis": 0})
