"""Out of the plug-in again: exports hold MXNet's own operators, and `restore` undoes `optimize`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from support.arrays import uniform
from tests.frameworks.mxnet_graphs import Block, hybridized, imported, network, stacked
from tests.frameworks.mxnet_models import fed
from tests.frameworks.mxnet_rnn import close, train_alike

import onernn
from onernn import plugins_disabled
from onernn.adapters.common.live import NOT_CALLED
from onernn.adapters.mxnet import explain, optimize, restore
from onernn.adapters.mxnet.plugin import STEPWISE

STEPS = 20
IMPORTS = """
import sys, mxnet as mx, numpy as np
names, prefix = sys.argv[1].split(","), sys.argv[2]
block = mx.gluon.SymbolBlock.imports(f"{prefix}-symbol.json", names, f"{prefix}-0000.params")
np.save(f"{prefix}-y.npy", block(mx.nd.array(np.load(f"{prefix}-x.npy"))).asnumpy())
assert "onernn" not in sys.modules
"""
rnn = mx.gluon.rnn


PARTS: dict[str, Callable[[], Any]] = {
    "layer": lambda: rnn.LSTM(16, num_layers=2, layout="NTC", dropout=0.3),
    "lstm": lambda: rnn.LSTMCell(16),
    "stack": lambda: stacked(rnn.LSTMCell(16), rnn.GRUCell(16)),
    "both ways": lambda: rnn.BidirectionalCell(rnn.GRUCell(16), rnn.LSTMCell(16)),
}


def operators(text: str) -> list[str]:
    return [node["op"] for node in json.loads(text)["nodes"] if node["op"] != "null"]


def traced(net: Any) -> list[str]:
    return operators(net._cached_graph[1].tojson())


@pytest.fixture(params=PARTS)
def net(request: pytest.FixtureRequest) -> Any:
    return hybridized(network(PARTS[request.param], STEPS), 0.2)


@pytest.fixture
def x() -> Any:
    return mx.nd.array(uniform(4, STEPS, 8))


def test_an_exported_network_runs_without_onernn(net: Any, x: Any, tmp_path: Path) -> None:
    y = optimize(net, backend="kernels")(x).asnumpy()
    assert "Custom" in traced(net)
    net.export(str(tmp_path / "m"))
    assert "Custom" not in operators((tmp_path / "m-symbol.json").read_text())
    np.save(tmp_path / "m-x.npy", x.asnumpy())
    subprocess.run([sys.executable, "-c", IMPORTS, "data", str(tmp_path / "m")], check=True)
    close(np.load(tmp_path / "m-y.npy"), y)
    session = onernn.Session(tmp_path / "m-symbol.json")
    close(*session.run({"data": x.asnumpy()}).values(), y)


def test_a_hybridized_network_follows_the_switch(net: Any, x: Any) -> None:
    theirs, names = net(x).asnumpy(), list(net.collect_params())
    own = sorted(traced(net))
    assert optimize(net, backend="kernels") is net
    net(x)
    assert list(net.collect_params()) == names
    with plugins_disabled():
        assert (net(x).asnumpy() == theirs).all()
        assert sorted(traced(net)) == own
    net(x)
    assert "Custom" in traced(net)


def test_a_restored_network_is_as_it_was(net: Any, x: Any) -> None:
    theirs, kinds = net(x).asnumpy(), [type(net), type(net.part)]
    own = sorted(traced(net))
    optimize(net, backend="kernels")(x)
    assert restore(net) is net
    assert [type(net), type(net.part)] == kinds
    assert (net(x).asnumpy() == theirs).all()
    assert sorted(traced(net)) == own


def test_an_imported_block_follows_the_switch_and_is_restored(
    net: Any, x: Any, tmp_path: Path
) -> None:
    net(x)
    block = imported(net, tmp_path, "data")
    theirs = block(x).asnumpy()
    for backend in ("reference", "kernels"):  # a second time, too
        assert optimize(block, backend=backend) is block
        assert rf"\"backend\": \"{backend}\"" in block._cached_graph[1].tojson()
        ours = block(x).asnumpy()
        close(ours, theirs)
        close(block(x[:1]).asnumpy(), theirs[:1])
    with plugins_disabled():
        assert (block(x).asnumpy() == theirs).all()
    assert (block(x).asnumpy() == ours).all()
    assert (restore(block)(x).asnumpy() == theirs).all()
    assert "Custom" not in traced(block)
    optimize(block, backend="kernels").hybridize(static_alloc=True, static_shape=True)
    close(block(x).asnumpy(), theirs)


def test_a_checkpoint_of_an_optimized_symbol_trains_on_in_mxnet(tmp_path: Path) -> None:
    """With a projection that became part of the layer, and a loss behind."""
    data, state = mx.sym.var("data"), mx.sym.var("state", shape=(1, 4, 16))
    linear = mx.sym.FullyConnected(data, num_hidden=64, flatten=False, name="linear")
    layer = mx.sym.RNN(
        linear, mx.sym.var("p"), state, mode="gru", state_size=16, num_layers=1, name="rnn"
    )
    symbol = optimize(layer, backend="kernels")
    loss = mx.sym.LinearRegressionOutput(symbol, mx.sym.var("label"), name="loss")
    stock = mx.sym.LinearRegressionOutput(layer, mx.sym.var("label"), name="loss")
    assert loss.list_arguments() == stock.list_arguments()
    assert symbol.list_outputs() == restore(symbol).list_outputs() == layer.list_outputs()
    mx.model.save_checkpoint(str(tmp_path / "m"), 0, loss, {}, {})
    saved = mx.sym.load(str(tmp_path / "m-symbol.json"))
    assert "Custom" not in operators(saved.tojson())
    given = {"data": uniform(STEPS, 4, 8), "label": uniform(STEPS, 4, 16)}
    expected = train_alike(loss, saved, fed(saved, **given), 1e-5)
    assert all(want.any() or name == "label" for name, want in expected.items())


def test_loops_and_single_steps_are_put_back(x: Any) -> None:
    cell = rnn.LSTMCell(16, input_size=8)
    begin = [mx.sym.var("h"), mx.sym.var("c")]
    out, states = mx.sym.contrib.foreach(cell, mx.sym.var("data"), begin)
    steps, _ = cell.unroll(STEPS, mx.sym.var("data"), begin_state=begin, layout="TNC")
    for symbol in (mx.sym.Group([out, *states]), mx.sym.Group([*out]), steps[3] + steps[-1]):
        ours = optimize(symbol, backend="kernels")
        assert "Custom" in operators(ours.tojson())
        back = restore(ours)
        assert sorted(operators(back.tojson())) == sorted(operators(symbol.tojson()))
        assert back.list_outputs() == symbol.list_outputs()
        assert back.list_arguments() == symbol.list_arguments()
        assert restore(symbol) is symbol


@pytest.mark.parametrize("inputs", [0, 8])
@pytest.mark.parametrize("turns", [True, False])
def test_a_loop_directly_over_the_input_is_replaced(inputs: int, turns: bool, x: Any) -> None:
    def run(net: Any, F: Any, x: Any) -> Any:  # noqa: N803
        begin = [F.zeros((4, 16)), F.zeros((4, 16))]
        return F.contrib.foreach(net.cell, F.swapaxes(x, 0, 1) if turns else x, begin)[0]

    block = Block(run, cell=lambda: rnn.LSTMCell(16, input_size=inputs))
    given = x if turns else x.swapaxes(0, 1)
    block.initialize(mx.init.Uniform(0.2))
    theirs = block(given).asnumpy()
    optimize(block).hybridize()
    close(block(given).asnumpy(), theirs)
    assert len(explain(block).replaced) == 1 and not explain(block).refusals


def test_explain_says_what_waits_for_a_call_and_what_is_never_traced(
    x: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Plain(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.cell, self.layer = rnn.LSTMCell(16), rnn.LSTM(16)

        def forward(self, x: Any) -> Any:
            return self.layer(self.cell.unroll(STEPS, x, layout="NTC", merge_outputs=True)[0])

    net = Plain()
    net.initialize()
    assert f"{net.layer.name}: stays with MXNet: optimize() has not seen it" in str(explain(net))
    optimize(net, backend="kernels")
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert f"{net.cell.name}: {STEPWISE}" in caplog.text
    layer, cell = explain(net, backend="kernels").refusals
    assert (layer.where, layer.reason) == (net.layer.name, NOT_CALLED)
    assert (cell.where, cell.reason) == (net.cell.name, STEPWISE)
    net(x)
    ran = explain(net, backend="kernels")
    assert ran == ((net.layer.name,), (cell,))
    lines = f"{net.layer.name}: onernn", f"{net.cell.name}: stays with MXNet: {STEPWISE}"
    assert str(ran) == "\n".join(lines)
