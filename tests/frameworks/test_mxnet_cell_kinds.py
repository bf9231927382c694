"""The cells of gluon inside a live MXNet: projected, residual, both ways, with lengths; the rest.

What becomes ours gives the same numbers and gradients; what cannot is left to MXNet with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import contrib
from numpy.testing import assert_allclose, assert_array_equal
from support.arrays import uniform
from tests.frameworks.mxnet_graphs import (
    Block,
    hybridized,
    losses_of,
    network,
    operators_of,
    optimize,
    stacked,
)
from tests.frameworks.mxnet_rnn import all_close, close

from onernn.adapters.mxnet import explain, plugin, restore
from onernn.ir.arrays import Array

T, N, C, H, R = 12, 3, 6, 5, 4
X = uniform(N, T, C)
LENGTHS = np.array([12, 3, 7], np.float32)
cells = mx.gluon.rnn


KINDS: dict[str, tuple[int, Callable[[], Any]]] = {
    "lstm": (1, lambda: cells.LSTMCell(H, input_size=C)),
    "gru": (1, lambda: cells.GRUCell(H, input_size=C)),
    "plain": (1, lambda: cells.RNNCell(H, input_size=C)),
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
    stock, block = (network(KINDS[kind][1], T, states=states) for _ in range(2))
    want, got = curve(stock, *given), curve(block, *given, plug=optimize)
    assert want[9] < 0.9 * want[0]
    assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    replaced, refusals = explain(block._cached_graph[1])
    # Lengths choose among the cell states of all steps, which a layer does not give.
    chosen = lengths and states and kind not in ("gru", "plain", "residual")
    assert len(replaced) == KINDS[kind][0] - chosen, refusals


def zoneout(base: Callable[[], Any], outputs: float, states: float) -> Callable[[], Any]:
    return lambda: cells.ZoneoutCell(base(), outputs, states)


def residual() -> Any:
    """As in GluonTS's DeepAR: states stay over residual cells, too."""
    bases = cells.LSTMCell(C), cells.ResidualCell(cells.LSTMCell(C))
    return stacked(*(cells.ZoneoutCell(base, zoneout_states=0.4) for base in bases))


WHERE = f"{T} steps of it: where "
DROPPING: dict[str, tuple[int, Callable[[], Any], str]] = {
    "zoneout": (1, zoneout(lambda: cells.GRUCell(H), 0.4, 0.3), WHERE),
    "zoneout of states": (1, zoneout(lambda: cells.LSTMCell(H), 0, 0.4), WHERE),
    "zoneout of outputs": (1, zoneout(lambda: cells.LSTMCell(H), 0.4, 0), ""),
    "zoneout over zoneout": (
        1,
        zoneout(zoneout(lambda: cells.RNNCell(H), 0.2, 0.3), 0.2, 0.3),
        "onernn found no two steps of it",  # a plain cell is known by a step that follows
    ),
    "zoneout of a stack": (2, residual, WHERE),
    "the same dropout in all steps": (
        1,
        lambda: contrib.rnn.VariationalDropoutCell(cells.LSTMCell(H), 0.2, 0.3, 0.4),
        f"{T} steps of it: elemwise_mul ",
    ),
}


def step(block: Any) -> list[Array]:
    """The loss of a seed, and all gradients of it."""
    mx.random.seed(5)
    with mx.autograd.record():
        loss = (block(mx.nd.array(X)) ** 2).sum()
    loss.backward()
    return [loss.asnumpy(), *(each.grad().asnumpy() for each in block.collect_params().values())]


@pytest.mark.parametrize("states", [False, True], ids=["outputs", "states"])
@pytest.mark.parametrize("name", DROPPING)
def test_what_drops_between_steps_is_ours_in_prediction_only(
    name: str, states: bool, tmp_path: Path
) -> None:
    count, cell, reason = DROPPING[name]
    block, x = hybridized(network(cell, T, states=states)), mx.nd.array(X)
    want, trained = block(x).asnumpy(), step(block)
    block.export(str(tmp_path / "stock"))
    optimize(block)
    for _ in range(2):  # training and prediction take turns
        close(block(x).asnumpy(), want)
        replaced, refusals = explain(block)
        assert len(replaced) == count and not refusals
        found = step(block)
        if reason:  # MXNet's own operators draw MXNet's own masks
            assert list(map(np.array_equal, found, trained)) == [True] * len(trained)
            replaced, refusals = explain(block)
            assert len(refusals) == count and not replaced
            assert all(each.reason.startswith(reason) for each in refusals), refusals
        else:
            all_close(found, trained, 3e-5)
    block(x)
    block.export(str(tmp_path / "ours"))
    ours, stock = (mx.sym.load(f"{tmp_path}/{each}-symbol.json") for each in ("ours", "stock"))
    assert operators_of(ours) == operators_of(stock)
    restore(block)
    assert_array_equal(block(x).asnumpy(), want)


def test_zoneout_in_a_loop_is_traced_again() -> None:
    """It keeps a symbol from step to step, which a trace must not take from the one before."""

    def run(net: Any, F: Any, x: Any) -> Any:  # noqa: N803
        return F.contrib.foreach(net.cell, F.swapaxes(x, 0, 1), [F.zeros((N, H))])[0]

    cell = zoneout(lambda: cells.GRUCell(H, input_size=C), 0.3, 0.3)
    block = hybridized(Block(run, cell=cell))
    x = mx.nd.array(X)
    want, trained = block(x).asnumpy(), step(block)
    optimize(block)
    assert_array_equal(block(x).asnumpy(), want)
    assert all(map(np.array_equal, step(block), trained))
    assert_array_equal(restore(block)(x).asnumpy(), want)


def test_cells_behind_a_layer_are_found_and_others_are_named() -> None:
    def run(net: Any, F: Any, x: Any) -> Any:  # noqa: N803
        y, _ = net.cell.unroll(T, F.stack(x, x, axis=2), layout="NTC", merge_outputs=True)
        y = net.layer(F.reshape(y, (0, 0, -1)))
        return net.behind.unroll(T, y, layout="NTC", merge_outputs=True)[0]

    parts = {
        "cell": lambda: contrib.rnn.Conv1DGRUCell((2, C), 3, 3, 3, i2h_pad=1),
        "layer": lambda: cells.GRU(H, layout="NTC"),
        "behind": lambda: cells.GRUCell(H),
    }
    block = hybridized(Block(run, **parts))
    x = mx.nd.array(X)
    want = block(x).asnumpy()
    plugin.optimize(block)
    close(block(x).asnumpy(), want)
    (replaced,) = explain(block).replaced
    assert replaced.startswith(block.behind.prefix)
    left = {each.where: each.reason for each in explain(block).refusals}
    assert set(left) == {block.cell.name, block.layer.name}
    assert "found no two steps of it" in left[block.cell.name]


def test_dropout_that_is_always_wanted_stays() -> None:
    def run(net: Any, F: Any, x: Any) -> Any:  # noqa: N803
        x = F.Dropout(x, p=0.5, mode="always")
        return net.cell.unroll(T, x, layout="NTC", merge_outputs=True)[0]

    block = hybridized(Block(run, cell=lambda: cells.RNNCell(H, input_size=C)))
    x = mx.nd.array(X)
    mx.random.seed(7)
    want = block(x).asnumpy()
    optimize(block)
    mx.random.seed(7)
    close(block(x).asnumpy(), want)
    assert len(explain(block).replaced) == 1
    assert np.abs(block(x).asnumpy() - want).max() > 1e-3  # drawn anew
