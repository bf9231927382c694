"""The kernel of recurrent layers, which a session has prepared before."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.backend.cells import cell_sequence
from onernn.core.arrays import Array
from onernn.core.graph import Node
from onernn.core.ragged import Ragged
from onernn.core.weights import RnnWeights
from onernn.runtime.kernels.registry import kernel


@kernel("Rnn")
def _rnn(node: Node, x: Any, h: Any = None, c: Any = None, attention: Any = None) -> Any:
    """(y, final states...); then the cell state of every word, where ``cells`` asks for it.

    ``layer``: the `PreparedLayer` that runs the node.
    """
    layer, spec, weights = (node.attributes[key] for key in ("layer", "spec", "weights"))
    state = None if h is None and c is None else _state(node, x, h, c)
    y, final = layer.run(x, state, attention)
    if not node.attributes["cells"]:
        return (y, *final)
    first = weights if isinstance(weights, RnnWeights) else weights[0]
    return (y, *final, cell_sequence(spec, first, x, y, state))


def _state(node: Node, x: Any, h: Any, c: Any) -> tuple[Array, ...]:
    """Both states, zeros for the one of an LSTM's that is absent."""
    spec = node.attributes["spec"]
    shape = (spec.layers, spec.directions, len(x) if isinstance(x, Ragged) else x.shape[1])
    given = {"h": (h, spec.recurrent_size), "c": (c, spec.hidden_size)}
    return tuple(
        np.zeros((*shape, given[name][1]), np.float32) if given[name][0] is None else given[name][0]
        for name in spec.cell.states
    )
