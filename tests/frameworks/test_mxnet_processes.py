"""The plug-in in processes that fork and end: MXNet's own threads call our operators there, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NET = """
import os
import mxnet as mx
from onernn.adapters.mxnet import optimize

net = mx.gluon.rnn.GRU(8, 2, bidirectional=True, layout="NTC", input_size=5)
net.initialize(mx.init.Uniform(0.3))
optimize(net, backend="kernels")
x = mx.nd.random.uniform(shape=(4, 6, 5))
"""

FORKS = """
expected = net(x).asnumpy()
for _ in range(8):
    net(x).asnumpy()
    child = os.fork()
    if not child:
        os._exit(not (abs(net(x).asnumpy() - expected).max() < 1e-6))
    assert os.waitpid(child, 0)[1] == 0
"""

WORKERS = """
class Words(mx.gluon.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, at):
        return net(x)[at % 4].asnumpy()

expected = net(x).asnumpy()
for batch in mx.gluon.data.DataLoader(Words(), 4, num_workers=2):
    assert abs(batch.asnumpy() - expected).max() < 1e-6
"""

PENDING = """
net.hybridize(static_alloc=True, static_shape=True)
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
for _ in range(20):
    with mx.autograd.record():
        loss = (net(x) ** 2).mean()
    loss.backward()
    trainer.step(1)
"""


LIGHT = """
import sys
stack = mx.rnn.FusedRNNCell(4, 2, mode="gru", prefix="gru_")
optimize(stack.unroll(3, mx.sym.Variable("data"), layout="TNC")[0], backend="kernels")
net(x).wait_to_read()
# They take longer to import than such a program to run.
assert not [name for name in sys.modules if name.startswith(("onernn.fuse_passes", "onernn.ops"))]
"""

EARLY = """
import sys
assert "concurrent.futures.thread" in sys.modules  # an exit that has begun refuses its import
"""


@pytest.mark.parametrize(
    "script", [FORKS, WORKERS, PENDING, EARLY], ids=["forks", "workers", "exit", "early"]
)
def test_forks_and_exits_neither_hang_nor_crash(script: str, tmp_path: Path) -> None:
    run(script, tmp_path)


def test_the_recurrent_operator_is_replaced_without_importing_passes(tmp_path: Path) -> None:
    run(LIGHT, tmp_path)


def run(script: str, folder: Path) -> None:
    file = folder / "script.py"
    file.write_text(f"{NET}{script}\nprint('whole')\n")
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.split() == ["whole"], done.stderr[-3000:]
    assert "Error" not in done.stderr, done.stderr[-3000:]
