"""Paddle's own profiler tells what runs here by name and time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle
import pytest
from paddle import profiler
from tests.frameworks.paddle_nets import Built, I, N, O, T

from onernn.adapters.paddle import optimize
from onernn.adapters.paddle.custom_operators import missing_operators


def shown(run: Callable[[], Any], folder: Path) -> dict[str, float]:
    """Microseconds by name of what is ours among Paddle's events of five runs: one event that its
    recorder drops is no failure. They are 0 where a clock's ticks are longer."""
    run()
    file = folder / "events.json"
    with profiler.Profiler(
        targets=[profiler.ProfilerTarget.CPU], on_trace_ready=lambda _: None
    ) as recorded:
        for _ in range(5):
            run()
    recorded.export(str(file), format="json")
    events = json.loads(file.read_text())["traceEvents"]
    return {e["name"].partition("[")[0]: e["dur"] for e in events if "onernn" in e.get("name", "")}


@pytest.mark.usefixtures("dynamic_mode")
@pytest.mark.skipif(bool(missing_operators()), reason=missing_operators())
def test_layers_and_their_gradients(tmp_path: Path) -> None:
    layer, x = optimize(paddle.nn.GRU(5, 3), backend="kernels"), paddle.randn([2, 6, 5])
    events = shown(lambda: layer(x)[0].sum().backward(), tmp_path)
    assert events["onernn_rnn"] >= 0
    assert any(name.endswith("onernn_rnn_grad") and took >= 0 for name, took in events.items())


@pytest.mark.skipif(paddle.__version__ >= "3", reason="programs of Paddle 3: case_single_steps")
def test_programs(tmp_path: Path) -> None:
    paddle.enable_static()

    def build(_: Any, x: Any, __: Any) -> list[Any]:
        layer = paddle.nn.GRU(I, O)
        layer.eval()
        return [layer(x)[0].sum()]

    built = Built(build, (N, T, I))
    ours = optimize(built.main, built.scope, fetch_list=built.wanted)
    events = shown(lambda: built.run(ours), tmp_path)
    assert events["onernn_part"] >= 0
