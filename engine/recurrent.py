"""The recurrent nodes of a session: layers prepared once, and found again by their nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from onernn.backend import Stack
from onernn.backend.cell_states import cell_sequence
from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.graph import Node
from onernn.core.ragged import Ragged
from onernn.core.records import dataclass
from onernn.core.weights import RnnWeights


@dataclass(frozen=True, eq=False)
class PreparedNode:
    """A recurrent node and the layer that runs it.

    ``cells_from``: the weights that give the cell state of every word; None where nobody reads it.
    """

    node: Node
    layer: Stack
    cells_from: RnnWeights | None

    def run(self, x: Any, h: Any = None, c: Any = None, attention: Any = None) -> tuple[Any, ...]:
        """(y, final states...); then the cell state of every word, where somebody reads it."""
        state = None if h is None and c is None else self._state(x, h, c)
        y, final = self.layer.run(x, state, attention)
        if self.cells_from is None:
            return (y, *final)
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


def run_prepared(node: Node, *values: Any) -> tuple[Any, ...]:
    """Runs a recurrent node on the layer that the session has for it."""
    found = _PREPARED.get({}).get(node)
    if found is None:
        raise ShapeError("a recurrent layer runs in a session only")
    return found.run(*values)
