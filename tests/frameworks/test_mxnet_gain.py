"""What MXNet is faster at stays MXNet's, and says so; MXNet's profiler tells what is ours."""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from tests.frameworks import mxnet_graphs
from tests.frameworks.mxnet_graphs import hybridized, operators_of, run, stacked
from tests.frameworks.mxnet_models import fed
from tests.frameworks.mxnet_rnn import arrays, operator_of, symbol_of

from onernn.adapters.common import gain
from onernn.adapters.mxnet import explain, optimize, partition

FASTER = "; backend='kernels' replaces it anyway"


@pytest.fixture(autouse=True)
def one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules are the same on every CPU, the thresholds are not. Nothing was warned of yet."""
    measured = {
        "mxnet GRU": gain.Least(units=512),
        "mxnet GRU trained": gain.Least(units=512, words=1024),
        "mxnet LSTM": gain.Least(units=512),
    }
    monkeypatch.setattr(gain, "_table", lambda: {**measured, **gain.ANYWHERE})
    gain.is_faster.cache_clear()
    monkeypatch.setattr(partition, "_WARNED", deque())


def unrolled(cell: Any, steps: int, width: int = 8) -> Any:
    data = mx.sym.Variable("data", shape=(2, steps, width))
    return cell.unroll(steps, data, layout="NTC", merge_outputs=True)[0]


@pytest.mark.parametrize(
    "kind, hidden, fewest",
    [("RNNCell", 8, 40), ("RNNCell", 256, 18), ("GRUCell", 8, 12), ("LSTMCell", 256, 6)],
)
def test_few_steps_of_small_cells_stay_mxnets(
    kind: str, hidden: int, fewest: int, caplog: Any
) -> None:
    cell = getattr(mx.rnn, kind)
    few, more = (unrolled(cell(hidden, prefix="a_"), n) for n in (fewest - 1, fewest))
    with caplog.at_level(logging.INFO, "onernn"):
        assert optimize(few) is few
    (refusal,) = explain(few).refusals
    assert f"fewer than {fewest} steps" in refusal.reason and FASTER in refusal.reason
    assert f"stays with MXNet: {refusal.where}: {refusal.reason}" in caplog.text
    assert len(explain(optimize(more)).replaced) == 1
    assert len(explain(optimize(few, backend="kernels")).replaced) == 1


def test_buckets_of_one_cell_warn_once(caplog: Any) -> None:
    for steps in (5, 9, 7):
        above = mx.rnn.ZoneoutCell(mx.rnn.LSTMCell(9, prefix="bucket_b_"), 0.1, 0.1)
        cell = stacked(mx.rnn.GRUCell(9, prefix="bucket_a_"), above, legacy=True)
        optimize(unrolled(cell, steps))
    assert caplog.text.count("stays with MXNet: bucket_a: ") == 1
    assert caplog.text.count(" steps of it: where ") == 1
    assert len(caplog.records) == 1


def operator(
    mode: str = "lstm", hidden: int = 512, shape: Any = None, behind: int = 0, **more: Any
) -> Any:
    data = mx.sym.Variable("data", shape=shape)
    if behind:
        data = mx.sym.FullyConnected(data, num_hidden=behind, flatten=False)
    told = {"state_size": hidden, "num_layers": 1, "name": "net", **more}
    return operator_of(mode, data, **told)


@pytest.mark.parametrize(
    "ours, symbol",
    {
        "large GRU": (True, operator("gru", shape=(100, 32, 512))),
        "large GRU of any batch": (True, operator("gru", 768)),
        "small GRU": (False, operator("gru", 128, shape=(100, 32, 128))),
        "few rows": (False, operator("gru", shape=(2, 1, 512))),
        "LSTM": (False, operator(shape=(100, 32, 512))),
        "plain": (False, operator("rnn_tanh", shape=(100, 32, 512))),
        "LSTM behind a projection": (True, operator(shape=(100, 32, 64), behind=512)),
        "small behind a projection": (False, operator(hidden=64, shape=(9, 3, 16), behind=64)),
        "lengths": (True, operator(hidden=32, use_sequence_length=True)),
        "clip": (True, operator(hidden=32, lstm_state_clip_min=-1, lstm_state_clip_max=1)),
        "projection": (True, operator(hidden=32, projection_size=8, state_outputs=True)),
        "dropout": (False, operator(hidden=32, num_layers=2, p=0.5)),
    }.values(),
)
def test_an_operator_is_ours_where_it_is_faster_or_computes_something_else(
    ours: bool, symbol: Any
) -> None:
    made = optimize(symbol)
    assert (made is not symbol) is ours
    assert ("Custom" in operators_of(made)) is ours
    assert [FASTER in each.reason for each in explain(symbol).refusals] == [True] * (not ours)
    whole = optimize(symbol, backend="kernels")
    assert "Custom" in operators_of(whole)


def test_mxnet_keeps_what_it_ignores_where_that_is_asked_for() -> None:
    symbol = operator(hidden=32, use_sequence_length=True)
    assert optimize(symbol, semantics="mxnet-cpu") is symbol


def test_what_is_known_to_run_forward_only_has_its_own_sizes() -> None:
    layer, x = mx.gluon.rnn.LSTM(512, input_size=4), mx.nd.ones((3, 2, 4))
    layer.initialize()
    optimize(layer)
    layer(x)
    assert explain(layer).replaced
    with mx.autograd.record():
        layer(x)
    assert explain(layer).refusals
    layer.hybridize()
    layer(x)
    assert explain(layer).refusals


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_gluon_layer_is_asked_when_it_runs(hybrid: bool, caplog: Any) -> None:
    layer = mx.gluon.rnn.GRU(32)
    layer.initialize()
    if hybrid:
        layer.hybridize()
    x = mx.nd.random.uniform(shape=(3, 2, 4))
    want = layer(x).asnumpy()
    optimize(layer)
    with caplog.at_level(logging.INFO, "onernn"):
        np.testing.assert_array_equal(layer(x).asnumpy(), want)  # to the bit: it is MXNet's
        layer(x)
    assert caplog.text.count(f"stays with MXNet: {layer.name}: ") == 1 and FASTER in caplog.text
    replaced, (refusal,) = explain(layer)
    assert not replaced and FASTER in refusal.reason
    optimize(layer, backend="kernels")
    layer(x)
    assert explain(layer, backend="kernels") == ((layer.name,), ())


def test_an_imported_block_that_stays_mxnets_is_given_back(tmp_path: Any) -> None:
    layer = hybridized(mx.gluon.rnn.GRU(8))
    x, h = mx.nd.ones((3, 2, 4)), mx.nd.ones((1, 2, 8))
    want = layer(x, h)[0].asnumpy()
    block = mxnet_graphs.imported(layer, tmp_path, "data0", "data1")
    assert optimize(block) is block
    assert "Custom" not in operators_of(block._cached_graph[1])
    np.testing.assert_array_equal(block(x, h)[0].asnumpy(), want)


def test_mxnets_profiler_shows_our_operators_by_name_and_time(tmp_path: Any) -> None:
    cells = unrolled(mx.rnn.LSTMCell(8, prefix="a_"), 12)
    given = fed(cells, data=np.ones((2, 12, 8), np.float32))
    mx.profiler.set_config(
        profile_imperative=True, aggregate_stats=True, filename=str(tmp_path / "profile.json")
    )
    mx.profiler.set_state("run")
    try:
        run(mxnet_graphs.optimize(symbol_of("gru")), arrays("gru"))
        run(optimize(cells), given)
    finally:
        mx.nd.waitall()
        mx.profiler.set_state("stop")
    found = json.loads(mx.profiler.dumps(reset=True, format="json"))["Time"]["Custom Operator"]
    for name in ("onernn_rnn::pure_python", "onernn_cells::pure_python"):
        assert found[name]["Count"] == 1 and found[name]["Total"] > 0
