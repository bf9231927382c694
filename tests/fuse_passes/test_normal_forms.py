"""A normalization and a dense layer, as exporters write them, come to one form of equal numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support.onnx_models import parsed

import onernn
from onernn.fuse_passes import fuse
from onernn.fuse_passes.normal_forms import NORMAL_FORMS
from onernn.verification.tracing import trace

C, OUT = 6, 4
Steps = list[tuple[str, str, str]]
CENTRED = [("ReduceMean", "x", "mean"), ("Sub", "x mean", "apart")]
SQUARED = [*CENTRED, ("Mul", "apart apart", "square"), ("ReduceMean", "square", "variance")]
ROOT = [*SQUARED, ("Add", "variance eps", "safe"), ("Sqrt", "safe", "root")]
POWER = [*CENTRED, ("Pow", "apart two", "square"), ("ReduceMean", "square", "variance")]
TORCH = [*POWER, *ROOT[-2:], ("Div", "apart root", "unit"), ("Mul", "unit scale", "scaled"),
         ("Add", "scaled shift", "y")]  # fmt: skip
INVERSE = [*ROOT, ("Reciprocal", "root", "inverse")]
FACTOR = [*INVERSE, ("Mul", "inverse scale", "factor"), ("Mul", "x factor", "whole")]
WAYS: dict[str, Steps] = {
    "torch": TORCH,
    "inverse": [*INVERSE, ("Mul", "scale inverse", "factor"), ("Mul", "apart factor", "scaled"),
                ("Add", "shift scaled", "y")],
    "unit": [*INVERSE, ("Mul", "inverse apart", "unit"), ("Mul", "scale unit", "scaled"),
             ("Add", "shift scaled", "y")],
    "divided": [*ROOT, ("Div", "one root", "inverse"), ("Mul", "apart inverse", "unit"),
                ("Mul", "unit scale", "scaled"), ("Add", "scaled shift", "y")],
    "tensorflow": [*FACTOR, ("Mul", "mean factor", "moved"), ("Sub", "shift moved", "rest"),
                   ("Add", "whole rest", "y")],
    "keras": [*FACTOR, ("Neg", "mean", "minus"), ("Mul", "minus factor", "moved"),
              ("Add", "moved shift", "rest"), ("Add", "whole rest", "y")],
}  # fmt: skip
LIKE_IT: dict[str, Steps] = {
    "third_power": [*TORCH[:2], ("Pow", "apart three", "square"), *TORCH[3:]],
    "no_mean": [("ReduceMean", "x", "mean"), ("Sub", "x shift", "apart"), *TORCH[2:]],
    "scalar_shift": [*TORCH[:-1], ("Add", "scaled one", "y")],
}


def model(path: Path, steps: Steps, axis: int = -1) -> str:
    rng = np.random.default_rng(0)
    arrays = {"scale": rng.normal(1, 0.3, C), "shift": rng.normal(0, 0.3, C)}
    arrays |= {"eps": np.float64(1e-3), "one": np.float64(1), "two": np.float64(2)}
    arrays |= {"three": np.float64(3), "W": rng.normal(size=(OUT, C)), "b": rng.normal(size=OUT)}
    kept = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    kept |= {"flat": np.array([-1, C]), "again": np.array([3, -1, OUT])}
    told = {"ReduceMean": f"<axes = [{axis}]>", "Gemm": "<transB = 1>"}
    nodes = (f"{out} = {op} {told.get(op, '')} ({', '.join(i.split())})" for op, i, out in steps)
    onnx.save(parsed(f"(float[3, N, {C}] x) => (float[] y) {{ {' '.join(nodes)} }}", kept), path)
    return str(path)


def both(path: str) -> tuple[onernn.Graph, np.ndarray, np.ndarray]:
    """The normal form, what it gives, and what ONNX Runtime gives."""
    x = np.random.default_rng(1).normal(0.2, 1, (3, 5, C)).astype(np.float32)
    graph = fuse(onernn.load(path), NORMAL_FORMS).model
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return graph, trace(graph, {"x": x})["y"], session.run(None, {"x": x})[0]


@pytest.mark.parametrize("way", WAYS)
def test_a_normalization_in_parts_is_one_node(tmp_path: Path, way: str) -> None:
    graph, got, expected = both(model(tmp_path / "m.onnx", WAYS[way]))
    (node,) = graph.nodes
    assert node.op == "LayerNormalization" and node.attrs.epsilon == np.float32(1e-3)
    # Some ten roundings of numbers up to 4; variances here are 0.3 and more.
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("way", LIKE_IT)
def test_what_is_no_normalization_stays(tmp_path: Path, way: str) -> None:
    graph = fuse(onernn.load(model(tmp_path / "m.onnx", LIKE_IT[way])), NORMAL_FORMS).model
    assert "LayerNormalization" not in [node.op for node in graph.nodes]


def test_a_mean_over_another_axis_stays(tmp_path: Path) -> None:
    graph = fuse(onernn.load(model(tmp_path / "m.onnx", TORCH, axis=1)), NORMAL_FORMS).model
    assert "LayerNormalization" not in [node.op for node in graph.nodes]


def test_a_dense_layer_over_flat_rows_is_one_over_all_axes(tmp_path: Path) -> None:
    steps = [("Reshape", "x flat", "rows"), ("Gemm", "rows W b", "scores"), ("Relu", "scores", "a"),
             ("Reshape", "a again", "y")]  # fmt: skip
    graph, got, expected = both(model(tmp_path / "m.onnx", steps))
    assert [node.op for node in graph.nodes[:3]] == ["MatMul", "Add", "Relu"]
    assert graph.nodes[0].inputs[0] == "x"
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)  # sums of six products
