"""The cells of gluon inside a live MXNet: projected, residual, both ways, with lengths; the rest.

What becomes ours gives the same numbers and gradients; what cannot is left to MXNet with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import contrib
from support.arrays import uniform
from tests.frameworks.mxnet_graphs import losses_of, operators_of, optimize

from onernn.adapters.mxnet import explain
from onernn.ir.arrays import Array

T, N, C, H, R = 12, 3, 6, 5, 4
X = uniform(N, T, C)
LENGTHS = np.array([12, 3, 7], np.float32)
cells = mx.gluon.rnn


class Net(mx.gluon.HybridBlock):  # type: ignore[misc]
    """A cell unrolled, with lengths or without; the sum of its last states is added."""

    def __init__(self, cell: Callable[[], Any], states: bool) -> None:
        super().__init__()
        self.states = states
        with self.name_scope():
            self.cell = cell()
            self.out = mx.gluon.nn.Dense(3, flatten=False)

    def hybrid_forward(self, F: Any, x: Any, *lengths: Any) -> Any:  # noqa: N803
        told = {"valid_length": lengths[0]} if lengths else {}
        y, states = self.cell.unroll(T, x, layout="NTC", merge_outputs=True, **told)
        made = self.out(y)
        for state in states if self.states else ():
            made = F.broadcast_add(made, F.mean(state))
        return made


KINDS: dict[str, tuple[int, Callable[[], Any]]] = {
    "lstm": (1, lambda: cells.LSTMCell(H, input_size=C)),
    "gru": (1, lambda: cells.GRUCell(H, input_size=C)),
    "projected": (1, lambda: contrib.rnn.LSTMPCell(H, R, input_size=C)),
    "projected to its own size": (1, lambda: contrib.rnn.LSTMPCell(H, H, input_size=C)),
    "residual": (1, lambda: cells.ResidualCell(cells.GRUCell(C, input_size=C))),
    "both ways": (
        2,
        lambda: cells.BidirectionalCell(
            cells.GRUCell(H, input_size=C), contrib.rnn.LSTMPCell(H, R, input_size=C)
        ),
    ),
}


def curve(block: Any, *given: Array, **how: Any) -> list[float]:
    """Ten losses of training, then all outputs."""
    losses = losses_of(block, *given, steps=10, **how)
    return [*losses, *block(*map(mx.nd.array, given)).asnumpy().ravel().tolist()]


@pytest.mark.parametrize("states", [False, True], ids=["outputs", "states"])
@pytest.mark.parametrize("lengths", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_gives_the_same_and_trains_the_same(kind: str, lengths: bool, states: bool) -> None:
    given = [X, LENGTHS] if lengths else [X]
    want, block = curve(Net(KINDS[kind][1], states), *given), Net(KINDS[kind][1], states)
    got = curve(block, *given, plug=optimize)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    replaced, refusals = explain(block._cached_graph[1])
    # Lengths choose among the cell states of all steps, which a layer does not give.
    chosen = lengths and states and kind not in ("gru", "residual")
    assert len(replaced) == KINDS[kind][0] - chosen, refusals


REFUSED = {
    "zoneout": (lambda: cells.ZoneoutCell(cells.GRUCell(H, input_size=C), 0.2, 0.2), "where"),
    "zoneout of states": (
        lambda: cells.ZoneoutCell(cells.LSTMCell(H, input_size=C), 0, 0.2),
        "where",
    ),
    "dropout of states": (
        lambda: contrib.rnn.VariationalDropoutCell(
            cells.LSTMCell(H, input_size=C), drop_states=0.2
        ),
        "elemwise_mul",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_changes_between_steps_stays_mxnets_by_name(name: str) -> None:
    cell, between = REFUSED[name]
    block = Net(cell, False)
    block.initialize()
    block.hybridize()
    want = block(mx.nd.array(X)).asnumpy()
    optimize(block)
    np.testing.assert_array_equal(block(mx.nd.array(X)).asnumpy(), want)
    symbol = block._cached_graph[1]
    assert "Custom" not in operators_of(symbol)
    assert any(
        f"{between} " in each.reason and "stands between its steps" in each.reason
        for each in explain(symbol).refusals
    ), explain(symbol).refusals
