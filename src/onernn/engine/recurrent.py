"""The recurrent nodes of a session: layers prepared once, and found again by their nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any

import numpy as np

from onernn.backend import Stack
from onernn.fuse_passes.bodies import bodies
from onernn.ir.arrays import Array
from onernn.ir.budget import Recurrence, running
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Graph, Node
from onernn.ir.ragged import Ragged
from onernn.ir.records import cached_property, dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.weights import RnnWeights
from onernn.ops import quantized


@dataclass(frozen=True, eq=False)
class PreparedNode:
    """A recurrent node and the layer that runs it.

    ``cells_from``: the weights that give the cell state of every word; None where nobody reads it.
    """

    node: Node
    layer: Stack
    cells_from: RnnWeights | None

    @cached_property
    def recurrence(self) -> Recurrence:
        """How long its steps take."""
        spec, layers = self.layer.spec, Recurrent.of(self.node).layers
        work = sum(array.size for one in layers for array in one.arrays.values())
        return Recurrence(spec.layers * spec.directions, work)

    def run(self, x: Any, h: Any = None, c: Any = None, attention: Any = None) -> tuple[Any, ...]:
        """(y, final states...); then the cell state of every word, where somebody reads it.

        Raises `BudgetError` where its steps would take more than the run may.
        """
        if isinstance(x, Ragged):
            steps, rows = int(np.diff(x.offsets).max(initial=0)), len(x.data)
        else:
            steps, rows = prod(x.shape[:1]), prod(x.shape[:2])
        running().turn(self.recurrence.cost(steps, rows))
        state = None if h is None and c is None else self._state(x, h, c)
        y, final = self.layer.run(x, state, attention)
        if self.cells_from is None:
            return (y, *final)
        from onernn.backend.reference import cell_sequence  # kernels give it themselves

        return (y, *final, cell_sequence(self.layer.spec, self.cells_from, x, y, state))

    def _state(self, x: Any, h: Any, c: Any) -> tuple[Array, ...]:
        """Both states, zeros for the one of an LSTM's that is absent."""
        spec = self.layer.spec
        shape = (spec.layers, spec.directions, len(x) if isinstance(x, Ragged) else x.shape[1])
        given = {"h": (h, spec.recurrent_size), "c": (c, spec.hidden_size)}
        return tuple(
            np.zeros((*shape, width), np.float32) if state is None else state
            for state, width in (given[name] for name in spec.cell.states)
        )


_PREPARED: ContextVar[Mapping[Node, PreparedNode]] = ContextVar("prepared nodes of the session")


@contextmanager
def prepared(nodes: Mapping[Node, PreparedNode]) -> Iterator[None]:
    """The recurrent nodes that may run inside, in bodies of loops and branches, too."""
    token = _PREPARED.set(nodes)
    try:
        yield
    finally:
        _PREPARED.reset(token)


def recurrence_of(
    graph: Graph, node: Node, layers: Mapping[Node, PreparedNode]
) -> Recurrence | None:
    """How long a recurrent layer's steps take; None for others, and where only a call tells."""
    if node in layers:
        return layers[node].recurrence
    if node.op == "DynamicQuantizeLSTM":
        w, r = (graph.constants.get(name) for name in node.inputs[1:3])
        return None if w is None or r is None else quantized.recurrence(w, r)
    return None


def share_of(graph: Graph, layers: Mapping[Node, PreparedNode]) -> int:
    """What a row costs in all recurrent layers together, those of graphs inside of nodes, too."""
    known = (recurrence_of(graph, node, layers) for node in graph.nodes)
    inner = (body for node in graph.nodes for body in bodies(node).values())
    return sum(each.share for each in known if each) + sum(share_of(b, layers) for b in inner)


def run_prepared(node: Node, *values: Any) -> tuple[Any, ...]:
    """Runs a recurrent node on the layer that the session has for it."""
    found = _PREPARED.get({}).get(node)
    if found is None:
        raise ShapeError("a recurrent layer runs in a session only")
    return found.run(*values)
