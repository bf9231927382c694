"""Which layers inside ONNX Runtime are replaced, and what goes with them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from support.onnx_models import parsed

from onernn.adapters.onnx import optimize

pytestmark = pytest.mark.usefixtures("built")
GATES = {"GRU": 3, "LSTM": 4}


def layer(op: str, sizes: tuple[int | None, ...], before: str = "", h: str = "") -> onnx.ModelProto:
    """A layer over (T, N, 5) of these sizes, behind other nodes that may make its state ``h``."""
    rng = np.random.default_rng(0)
    shapes = {"W": (1, 3 * GATES[op], 5), "R": (1, 3 * GATES[op], 3)}
    constants = {n: rng.uniform(-0.5, 0.5, shape).astype("f4") for n, shape in shapes.items()}
    constants |= {"at": np.array([1]), "first": np.array([1]), "last": np.array([3])}
    named = ", ".join("?" if size is None else str(size) for size in sizes)
    node = f"y = {op} <hidden_size = 3> (x, W, R{h})"
    return parsed(f"(float[{named}, 5] x) => (y) {{ {before} {node} }}", constants)


@pytest.mark.parametrize("threads", [None, 1, 2, 3, 16])
@pytest.mark.parametrize("sizes", [(1, 1), (7, None), (None, None)])
def test_every_layer_is_replaced_on_any_number_of_threads(
    sizes: tuple[int | None, ...], threads: int | None
) -> None:
    for model in (layer("GRU", sizes), layer("LSTM", sizes)):
        session = optimize(model, threads=threads)
        assert len(session.replaced) == 1 and not session.refusals


def exported(value: float, expanded: bool) -> onnx.ModelProto:
    """An initial state of one number in a size that is computed, as PyTorch exports it."""
    number = f"<value = float[1] {{{value}}}>"
    state = f"wide = ConstantOfShape {number} (shape)"
    if expanded:
        state = f"one = Constant {number} () wide = Expand (one, shape)"
    before = f"""
        sizes = Shape (x)
        count = Gather (sizes, at)
        shape = Concat <axis = 0> (first, count, last)
        {state}
        h = Identity (wide)
        """
    return layer("GRU", (None, None), before, ", , , h")


@pytest.mark.parametrize("expanded", [False, True], ids=["ConstantOfShape", "Expand"])
@pytest.mark.parametrize("value", [0.0, 0.5])
def test_states_that_are_zeros_are_not_made(value: float, expanded: bool) -> None:
    model = exported(value, expanded)
    session = optimize(model, backend="kernels")
    kinds = [node.op_type for node in onnx.load_from_string(session._model_bytes).graph.node]
    assert (kinds == ["Layer"]) == (value == 0) and "Layer" in kinds
    assert len(model.graph.node) > 5  # what was given stays as it was
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    for count in (1, 3):
        x = np.random.default_rng(1).uniform(-1, 1, (4, count, 5)).astype("f4")
        (got,), (want,) = session.run(None, {"x": x}), theirs.run(None, {"x": x})
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
        assert np.abs(want).max() > 0.05
