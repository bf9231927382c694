"""The plug-in as strangers' programs use it: in a process of their own, which it does not end.

Each test is a script: Paddle's tracer wants files, and what crashes takes its process along.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import paddle
import pytest
from support.interpreters import run_python

Said = Callable[[str], list[str]]


@pytest.fixture
def said(tmp_path: Path) -> Said:
    """What a script prints; a crash, a traceback or two minutes fail."""

    def run(script: str) -> list[str]:
        file = tmp_path / "script.py"
        file.write_text(script)
        # As Paddle's users have it: PIR in Paddle 3, which its tracer needs.
        environ = {k: v for k, v in os.environ.items() if k != "FLAGS_enable_pir_api"}
        return run_python(file, env=environ, timeout=600).stdout.splitlines()

    return run


AFTER = """
import paddle
from onernn.adapters.paddle import optimize

net = optimize(paddle.nn.GRU(5, 3))
net(paddle.ones([2, 6, 5]))[0].sum().backward()
assert all(float(each.grad.abs().sum()) > 0 for each in net.parameters())
print("whole")
"""

BEFORE = """
from onernn.adapters.paddle import optimize
import paddle
import zlib
import numpy.random

assert zlib.decompress(zlib.compress(b"words")) == b"words"
optimize(paddle.nn.GRU(5, 3))(paddle.to_tensor(numpy.random.rand(2, 6, 5).astype("float32")))
print("whole")
"""


@pytest.mark.parametrize("script", [AFTER, BEFORE], ids=["paddle-first", "plug-in-first"])
def test_either_may_be_imported_first(script: str, said: Said) -> None:
    """Paddle 2.6.2 breaks Python's zlib where that comes after it, and NumPy's random with it."""
    assert said(script)[-1] == "whole"


TO_STATIC = """
import copy, sys
import zlib
import numpy as np
import paddle
from onernn.adapters.paddle import optimize


class Doubled(paddle.nn.GRU):
    def forward(self, x):
        return paddle.nn.GRU.forward(self, x * 2)[0] + 1


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.gru = paddle.nn.GRU(5, 3)
        self.blocks = paddle.nn.Sequential(Doubled(3, 4), paddle.nn.Linear(4, 2))
        self.lstm = paddle.nn.LSTM(2, 3, num_layers=2, direction="bidirect")

    def forward(self, x, lengths):
        y, h = self.gru(x * 3)
        y, (h, c) = self.lstm(self.blocks(y + 1), None, lengths)
        return y * 2 + h.sum() + c.mean()


def trained(net, call):
    made = []
    optimizer = paddle.optimizer.SGD(0.05, parameters=net.parameters())
    for size in (2, 2, 3):
        x, lengths = paddle.ones([size, 6, 5]), paddle.to_tensor([3, 6, 1][:size], "int32")
        y = call(x, lengths)
        (y**2).mean().backward()
        optimizer.step()
        optimizer.clear_grad()
        made.append(y.numpy())
    net.eval()
    with paddle.no_grad():
        made.append(call(x, lengths).numpy())
    return made


paddle.seed(0)
net = Net()
theirs, eager = copy.deepcopy(net), optimize(copy.deepcopy(net), dtype="bf16")
traced = optimize(net, dtype="bf16")
static = paddle.jit.to_static(traced, full_graph=False)
results = [trained(theirs, theirs), trained(eager, eager), trained(traced, static)]
for stock, want, got in zip(*results):
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert 1e-4 < np.abs(got - stock).max() < 0.5  # ours ran, which the smaller numbers tell
print("whole")
"""


def test_traced_layers_run_as_they_are(said: Said) -> None:
    """`paddle.jit.to_static` in its default mode follows Python's bytecode, but not into ours."""
    assert said(TO_STATIC)[-1] == "whole"


FORKED = """
import os
import sys
import paddle
from onernn.adapters.paddle import optimize

os.chdir(os.path.dirname(__file__))
spec = [paddle.static.InputSpec([None, None, 5], "float32")]
paddle.jit.save(paddle.nn.GRU(5, 3), "m", input_spec=spec)
(model,) = [name for name in ("m.json", "m.pdmodel") if os.path.exists(name)]
config = optimize(paddle.inference.Config(model, "m.pdiparams"), backend="kernels")
child = os.fork()
if not child:
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
paddle.inference.create_predictor(config)
print("whole")
"""


NO_COMPILER = """
import os, tempfile
os.environ |= {"CXX": "/bin/false", "XDG_CACHE_HOME": tempfile.mkdtemp()}
from onernn.adapters.paddle import optimize
import numpy as np
import paddle

paddle.enable_static()
main, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, startup):
    y, _ = paddle.nn.GRU(5, 3)(paddle.static.data("x", [None, None, 5]))
executor, feed = paddle.static.Executor(), {"x": np.ones((2, 6, 5), "float32")}
executor.run(startup)
ours = optimize(main, fetch_list=[y])
assert "py_func" in [op.type for op in ours.global_block().ops]
got, want = (executor.run(each, feed, [y])[0] for each in (ours, main))
np.testing.assert_allclose(got, want, atol=1e-5)
print("whole")
"""


def test_a_child_that_ends_leaves_a_config_its_files(said: Said) -> None:
    assert said(FORKED)[-1] == "whole"


@pytest.mark.skipif(paddle.__version__ >= "3", reason="its programs are of PIR")
def test_without_a_compiler_programs_of_paddle_2_enter_python(said: Said) -> None:
    assert said(NO_COMPILER)[-1] == "whole"
