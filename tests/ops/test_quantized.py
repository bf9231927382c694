"""Operators on quantized numbers, and those that put elements to places: what is refused, and why.

What they compute stands in test_compute_against_onnx.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from support.graphs import new_node
from support.onnx_models import parsed, read

from onernn import Graph, Ragged, Session, ShapeError, convert
from onernn.engine.kernels import KERNELS
from onernn.ir.graph import Node, Value

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
X = np.array([[0.3, -2, 7], [1, 2, 3]], np.float32)
BYTES = np.arange(6, dtype=np.uint8).reshape(2, 3)
ONE = np.float32(1)


def run(op: str, *values: Any, **attributes: Any) -> Any:
    outputs = ("a", "b", "c") if op == "DynamicQuantizeLinear" else ("a",)
    return KERNELS[op](Node(op, ("x",) * len(values), outputs, attributes), *values)


@pytest.mark.parametrize(
    "op, values, attributes, reason",
    [
        ("QuantizeLinear", [X, np.float32(0)], {}, "scale 0.0: expected finite floats other"),
        ("QuantizeLinear", [X, np.float32(np.nan)], {}, "scale nan"),
        ("QuantizeLinear", [X, np.float32(np.inf)], {}, "scale inf"),
        ("QuantizeLinear", [X * np.nan, ONE], {}, "x holds NaN"),
        ("QuantizeLinear", [X, ONE, np.zeros(3, np.uint8)], {}, "expected .., the scale's shape"),
        ("QuantizeLinear", [X, ONE, np.int32(0)], {}, "expected integers of 8 or 16 bits"),
        ("QuantizeLinear", [X, ONE, np.float32(0)], {}, "expected integers of 8 or 16 bits"),
        ("QuantizeLinear", [X, np.ones(2, np.float32)], {}, "expected 3, x has axis 1"),
        ("QuantizeLinear", [X, np.ones(3, np.float32)], {"axis": 2}, "axis 2"),
        ("QuantizeLinear", [X, np.ones((2, 3), np.float32)], {}, "one a slice of an axis"),
        ("DequantizeLinear", [BYTES, ONE, np.int8(0)], {}, "zero point of int8: expected uint8"),
        ("DequantizeLinear", [BYTES, np.float32(0)], {}, "scale 0.0"),
        ("DequantizeLinear", [X, ONE], {}, "x of float32: expected integers"),
        ("DequantizeLinear", [BYTES.astype("i4"), ONE, np.int32(1)], {}, "expected 0"),
        ("DynamicQuantizeLinear", [X * np.nan], {}, "NaN or infinity"),
        ("DynamicQuantizeLinear", [X * np.inf], {}, "NaN or infinity"),
        ("DynamicQuantizeLinear", [X.astype("f8")], {}, "expected float32"),
        ("MatMulInteger", [X, BYTES.T], {}, "a of float32: expected uint8 or int8"),
        ("MatMulInteger", [BYTES, BYTES.T, np.int8(0)], {}, "zero point of a is int8"),
        (
            "MatMulInteger",
            [BYTES, BYTES.T, None, np.zeros((3, 1), np.uint8)],
            {},
            "zero point of b",
        ),
        ("ConvInteger", [BYTES, BYTES], {}, "expected .N, C"),
        ("ConvInteger", [BYTES[None], BYTES[None], BYTES[0]], {}, "expected one for all of x"),
        ("ConvInteger", [BYTES[None], X[None]], {}, "w of float32"),
        ("ScatterElements", [X, np.array([[2]]), X[:1, :1]], {}, "index 2 is outside"),
        ("ScatterElements", [X, np.array([[-3]]), X[:1, :1]], {}, "index -3 is outside"),
        ("ScatterElements", [X, np.array([[0.0]]), X[:1, :1]], {}, "indices of float64"),
        ("ScatterElements", [X, np.zeros((1, 4), int), np.ones((1, 4), "f4")], {}, "no larger"),
        ("ScatterElements", [X, np.array([[0]]), X], {}, "expected equal shapes"),
        ("ScatterElements", [X, np.array([[0]]), BYTES[:1, :1]], {}, "updates of uint8"),
        ("ScatterElements", [X, np.array([[0]]), X[:1, :1]], {"axis": 2}, "axis 2"),
        ("ScatterElements", [X, np.array([[0]]), X[:1, :1]], {"reduction": "xor"}, "'xor'"),
        ("ScatterND", [X, np.array([[0, 3]]), X[0, :1]], {}, "index 3 is outside"),
        ("ScatterND", [X, np.array([[0, 0, 0]]), X[0, :1]], {}, "expected at most 2"),
        ("ScatterND", [X, np.array(0), X[0, 0]], {}, "expected at most 2"),
        ("ScatterND", [X, np.array([[0]]), X[0, :2]], {}, r"updates \(2,\): expected \(1, 3\)"),
        ("TopK", [X, np.array([4])], {}, "at most 3"),
        ("TopK", [X, np.array([-1])], {}, "-1"),
    ],
)
def test_what_no_result_stands_for_is_refused(
    op: str, values: list[Any], attributes: dict[str, Any], reason: str
) -> None:
    given = [None if value is None else np.asarray(value) for value in values]
    with pytest.raises(ShapeError, match=reason):
        run(op, *given, **attributes)


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
        np.testing.assert_array_equal(padded[n, :length], got.data[begin : begin + length])
    with pytest.raises(ShapeError, match="mix the steps of ragged sequences"):
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
