"""Operators on quantized numbers: sequences, tiny ranges, and ONNX Runtime's own products.

test_compute_against_onnx.py has what they compute and refuse.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from support.checking import assert_same
from support.graphs import new_node
from support.onnx_models import parsed, read

from onernn import Graph, Ragged, Session, ShapeError, convert
from onernn.engine.kernels import KERNELS
from onernn.ir.graph import Node, Value


def run(op: str, *values: Any, **attributes: Any) -> Any:
    outputs = ("a", "b", "c") if op == "DynamicQuantizeLinear" else ("a",)
    return KERNELS[op](Node(op, ("x",) * len(values), outputs, attributes), *values)


def test_numbers_whose_range_float32_cannot_divide_are_quantized() -> None:
    tiny = np.array([0, 1e-45], np.float32)
    q, scale, zero = run("DynamicQuantizeLinear", tiny)
    assert scale == 1 and zero == 0 and not q.any()
    q, scale, zero = run("DynamicQuantizeLinear", tiny[:0])
    assert scale == 1 and zero == 0 and q.shape == (0,)


def test_words_of_sentences_are_quantized_alike_and_never_together(tmp_path: Path) -> None:
    words = Ragged(np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32), [0, 3, 3, 9])
    constants = {
        "scale": np.array([0.01, 0.1, 0.02, 1], np.float32),
        "zero": np.full(4, 3, np.int8),
    }
    nodes = (
        new_node("QuantizeLinear", "x scale zero", "q"),
        new_node("DequantizeLinear", "q scale zero", "y", axis=-1),
    )
    face = [Value(name, "float32", (None, 4), 1) for name in "xy"]
    graph = Graph("m", (face[0],), (face[1],), nodes, constants)
    got = Session(graph).run({"x": words})["y"]
    assert got.lod == words.lod
    assert np.abs(got.data - words.data).max(0)[3] > 0.2  # it is rounded
    convert(graph, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    lengths = words.lengths.astype(np.int32)
    (padded,) = session.run(None, {"x": words.to_padded(time=6), "x_lengths": lengths})
    for n, length in enumerate(lengths):
        begin = words.offsets[n]
        assert_same(padded[n, :length], got.data[begin : begin + length])
    with pytest.raises(ShapeError, match="axis 0 .*LoD"):
        run("DynamicQuantizeLinear", words)


OWN = [helper.make_opsetid("com.microsoft", 1)]


@pytest.mark.parametrize("columns", [(), (7,)], ids=["one scale", "a scale each"])
@pytest.mark.parametrize("more", [0, 1, 2], ids=["plain", "zero points", "bias"])
def test_products_of_onnx_runtimes_own_are_as_there(columns: tuple[int, ...], more: int) -> None:
    rng = np.random.default_rng(2)
    constants = {
        "b": rng.integers(-64, 64, (40, 7), np.int8),  # see B_BYTES of test_compute_against_onnx
        "b_scale": rng.uniform(0.01, 0.02, columns).astype(np.float32),
        "b_zero": np.full(columns, 5, np.int8),
        "bias": rng.normal(size=7).astype(np.float32),
        "a_scale": np.float32(0.03),
        "a_zero": np.uint8(130),
    }
    options = [name if at < more else "" for at, name in enumerate(("b_zero", "bias"))]
    mine = {
        "DynamicQuantizeMatMul": ["a", "b", "b_scale", *options],
        "MatMulIntegerToFloat": ["a", "b", "a_scale", "b_scale", "a_zero", *options],
    }
    for op, inputs in mine.items():
        given = {k: v for k, v in constants.items() if k in inputs}
        kind = "float" if op.startswith("Dyn") else "uint8"
        text = f"({kind}[?, 40] a) => (y) {{ y = com.microsoft.{op} ({', '.join(inputs)}) }}"
        model = parsed(text, {k: np.asarray(v) for k, v in given.items()}, opsets=OWN)
        a: np.ndarray = rng.normal(size=(3, 40)).astype(np.float32)
        a = a if op.startswith("Dyn") else rng.integers(0, 256, (3, 40), np.uint8)
        graph = read(model)
        (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"a": a})
        np.testing.assert_allclose(Session(graph).run({"a": a})["y"], want, rtol=2e-6, atol=2e-6)
