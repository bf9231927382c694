"""Which layers inside ONNX Runtime are replaced: those that were measured as faster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onernn.adapters.onnx import optimize
from onernn.backend import choosing
from onernn.backend.compiled.library import load_kernels

pytestmark = pytest.mark.usefixtures("built")
TABLE = """way dtype threads cell batch 64
inside f32 1 GRU 1 step 1.5
inside f32 1 GRU 8 step 1.0
inside f32 1 GRU 1 dense 0.5
inside f32 1 GRU 8 dense 1.2
inside f32 1 LBR_GRU 8 ragged 1.04
inside f32 1 LSTM 8 ragged 1.5
"""
GATES = {"GRU": 3, "LSTM": 4}


@pytest.fixture(autouse=True)
def table(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / f"{load_kernels().isa}.txt").write_text(TABLE)
    monkeypatch.setattr(choosing, "TABLES", tmp_path)
    choosing.measurements.cache_clear()
    yield
    choosing.measurements.cache_clear()


def layer(
    op: str, sizes: tuple[int | None, ...], lengths: bool = False, dtype: str = "f4", **more: int
) -> onnx.ModelProto:
    """A layer over (T, N, 5) of these sizes."""
    shapes = {"W": (1, 3 * GATES[op], 5), "R": (1, 3 * GATES[op], 3)}
    node = helper.make_node(
        op, ["x", "W", "R", *(["", "n"] if lengths else [])], ["y"], hidden_size=3, **more
    )
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [helper.make_tensor_value_info("x", kind, [*sizes, 5])]
    if lengths:
        inputs.append(helper.make_tensor_value_info("n", TensorProto.INT32, [sizes[1]]))
    constants = [numpy_helper.from_array(np.zeros(s, dtype), n) for n, s in shapes.items()]
    outputs = [helper.make_tensor_value_info("y", kind, None)]
    graph = helper.make_graph([node], "g", inputs, outputs, constants)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    "sizes, ours",
    [
        ((1, 1), True),
        ((1, 8), False),  # as fast, no faster
        ((1, None), True),  # 1.22 together
        ((7, 1), False),
        ((7, 8), True),
        ((7, None), False),  # one sequence would lose
        ((None, 8), True),  # a step loses nothing, more of them gain
        ((None, None), False),
    ],
)
def test_sizes_decide_as_far_as_the_model_tells_them(
    sizes: tuple[int | None, ...], ours: bool
) -> None:
    session = optimize(layer("GRU", sizes), threads=1)
    assert bool(session.replaced) == ours and len(session.refusals) == (not ours)


def test_lengths_and_cells_decide_and_the_refusal_tells_what_was_asked_for() -> None:
    assert optimize(layer("LSTM", (None, None), lengths=True), threads=1).replaced
    session = optimize(layer("GRU", (7, 4), True, linear_before_reset=1), threads=1)
    (refusal,) = session.refusals
    assert "not measured as faster: LBR_GRU of 3 units, ragged batches of 4" in refusal.reason
    assert "1 threads" in refusal.reason and "backend='kernels' replaces it" in refusal.reason
    assert not optimize(layer("LSTM", (7, 4)), threads=1).replaced  # nobody measured it dense


def test_three_threads_were_never_measured() -> None:
    model = layer("LSTM", (None, None), lengths=True)
    assert optimize(model, threads=2).replaced  # as one
    assert not optimize(model, threads=3).replaced
    assert optimize(model, threads=3, backend="kernels").replaced


def test_what_onnx_runtime_does_not_run_is_ours() -> None:
    assert optimize(layer("LSTM", (7, 4), dtype="f8"), threads=1).replaced
    assert optimize(layer("LSTM", (4, 7), layout=1), threads=1).replaced
    assert optimize(layer("LSTM", (7, 4)), threads=1, dtype="bf16").replaced
