"""Paddle's own profiler tells what runs here by name and time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import profiler

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
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        layer = paddle.nn.GRU(5, 3)
        layer.eval()
        total = layer(paddle.static.data("x", [2, 6, 5], "float32"))[0].sum()
    executor = paddle.static.Executor()
    feed = {"x": np.ones((2, 6, 5), np.float32)}
    with paddle.static.scope_guard(paddle.static.Scope()):  # others' variables may have these names
        executor.run(startup)
        ours = optimize(main, fetch_list=[total])
        events = shown(lambda: executor.run(ours, feed=feed, fetch_list=[total]), tmp_path)
    assert events["onernn_part"] >= 0
