"""A model with many weights, and what other processes run: found there by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import onernn
from onernn import Cell, Graph, RnnSpec, Session
from onernn.ir.graph import Value
from support.graphs import new_node, rnn_node


def large() -> Graph:
    """Some 25 MB in a table, and as many in a layer, which stand there twice when it is packed."""
    spec = RnnSpec(Cell.LSTM, 512, 512, layers=3)
    rng = np.random.default_rng(0)
    nodes = (
        new_node("x = Gather table words"),
        rnn_node("y = Rnn x", spec),
    )
    table = rng.normal(size=(12_000, 512)).astype(np.float32)
    words = Value("words", "int64", (None,), 1)
    return Graph("large", (words,), (Value("y"),), nodes, {"table": table})


def run_of(session: Session, feed: Any) -> Any:
    return session.run(feed)


def run_shared(shared: onernn.Shared[Session], feed: Any, barrier: Any, results: Any) -> None:
    """Reads all numbers; puts outputs, and the MB of this process when all others have run, too:
    its own share of them, and all that it sees."""
    session = shared.open()
    made = session.run(feed)
    for array in session.graph.constants.values():
        array.sum()
    barrier.wait(60)
    told = dict(
        line.split()[:2] for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    )
    barrier.wait(60)
    results.put((made, int(told["Pss:"]) / 1024, int(told["Rss:"]) / 1024))


def where_weights_are(session: Session) -> list[str]:
    """The file that each large array of a session is mapped from, "" where it is memory."""
    arrays = list(session.graph.constants.values())
    for prepared in session.layers.values():
        origin: Any = prepared.layer.origin
        arrays += [packed[1] for packed in origin.packed.values()]
        arrays += [array for layer in origin.weights for array in layer.arrays.values()]
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [(*(int(at, 16) for at in line[0].split("-")), *line[5:]) for line in maps]
    return [
        next((" ".join(map(str, at[2:])) for at in spans if at[0] <= a.ctypes.data < at[1]), "")
        for a in arrays
        if a.nbytes > 2**20
    ]
