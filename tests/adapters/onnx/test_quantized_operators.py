"""Operators on quantized values produce the integers that ONNX Runtime produces.

Weights are within -64 and 63: with larger ones ONNX Runtime's products saturate on CPUs without
VNNI. Scales whose quotient is exact (0.1 over 0.2) put results halfway between two integers, except
for QLinearAveragePool, whose sums are float32 there too.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import helper
from onnxruntime.quantization import (
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from support.onnx_models import ours, parameters, parsed, quiet, read, theirs

from onernn import Session, ShapeError, UnsupportedError, load
from onernn.adapters.onnx.table import RULES
from onernn.ir.graph import UNSUPPORTED

pytestmark = pytest.mark.usefixtures("built")

OWN = [helper.make_opsetid("com.microsoft", 1)]
RNG = np.random.default_rng(7)
ZEROS = {"uint8": {"z": 119, "o": 130, "l": 0}, "int8": {"z": -9, "o": 2, "l": -128}}
CONSTANTS: dict[str, Any] = {
    **{"s": np.float32(0.1), "t": np.float32(0.2), "u": np.float32(0.037)},
    **{"one_s": np.full(1, 0.1, "f4"), "tiny": np.float32(1 / 256), "rough": np.float32(1 / 255)},
    "column_s": RNG.uniform(0.01, 0.02, 7).astype("f4"),
    "channel_s": RNG.uniform(0.01, 0.02, 6).astype("f4"),
    "w": RNG.integers(-64, 64, (40, 7)).astype("i1"),
    "turned": RNG.integers(-64, 64, (7, 40)).astype("i1"),
    "w_zero": np.int8(3),
    "columns_zero": np.full(7, -2, "i1"),
    "one_zero": np.zeros(1, "i1"),
    "kernels": RNG.integers(-64, 64, (6, 4, 3, 3)).astype("i1"),
    "filters": RNG.integers(-64, 64, (6, 2, 3)).astype("i1"),
    "one_filter": RNG.integers(-64, 64, (1, 4, 3)).astype("i1"),
    "nothing": np.float32(0),
    "channels_zero": np.zeros(6, "i1"),
    "whole": RNG.integers(-3000, 3000, 7).astype("i4"),
    "of_channels": RNG.integers(-3000, 3000, 6).astype("i4"),
    "real": RNG.normal(size=7).astype("f4"),
}
"""Constants of the cases; a number in it has the dtype of the case's values if it is a zero."""
SHAPES = {
    **{
        "a": (2, 3, 40, 5),
        "b": (2, 3, 40, 5),
        "row": (1, 5),
        "rows": (2, 5, 40),
        "matrix": (5, 40),
    },
    **{"columns": (40, 5), "image": (2, 4, 9, 8), "line": (2, 4, 9), "last": (2, 9, 4)},
}
CASES = [
    "com.microsoft.QLinearAdd (a, s, z, b, t, o, t, z)",
    "com.microsoft.QLinearAdd (a, u, z, b, s, o, t, o)",
    "com.microsoft.QLinearAdd (a, s, z, row, t, o, t)",
    "com.microsoft.QLinearMul (a, s, z, b, t, o, u, z)",
    "com.microsoft.QLinearMul (a, s, z, b, s, o, t, z)",
    "com.microsoft.QLinearMul (a, s, z, row, t, o, t)",
    "com.microsoft.QLinearSigmoid (a, s, z, tiny, l)",
    "com.microsoft.QLinearLeakyRelu <alpha = 0.2> (a, t, z, s, o)",
    "com.microsoft.QLinearConcat <axis = 1> (s, o, a, t, z, b, s, o)",
    "com.microsoft.QLinearWhere (choice, a, t, z, b, s, o, u, o)",
    "com.microsoft.QLinearSoftmax <opset = 13> (a, u, z, tiny, l)",
    "com.microsoft.QLinearSoftmax <opset = 13, axis = 1> (a, u, z, rough, l)",
    "com.microsoft.QLinearSoftmax <opset = 12> (matrix, u, z, tiny, l)",
    "com.microsoft.QLinearSoftmax <opset = 12, axis = 2> (a, u, z, tiny, l)",
    "com.microsoft.QLinearGlobalAveragePool (image, s, z, u, o)",
    "com.microsoft.QLinearGlobalAveragePool <channels_last = 1> (last, s, z, u, o)",
    "com.microsoft.QLinearAveragePool <kernel_shape = [3, 2], strides = [2, 1], pads = [1, 0, 1, 1]"
    "> (image, s, z, u, o)",
    "com.microsoft.QLinearAveragePool <kernel_shape = [3, 2], pads = [1, 0, 1, 1],"
    " count_include_pad = 1> (image, s, z, u, o)",
    "QLinearMatMul (rows, s, z, w, t, w_zero, t, o)",
    "QLinearMatMul (rows, one_s, z, w, column_s, columns_zero, u, o)",
    "com.microsoft.QGemm <alpha = 0.7> (matrix, s, z, w, t, w_zero, whole, t, o)",
    "com.microsoft.QGemm <transA = 1, transB = 1> (columns, s, z, turned, column_s, columns_zero,"
    " whole, u, o)",
    "com.microsoft.QGemm (matrix, s, z, w, column_s, columns_zero)",
    "QLinearConv <pads = [1, 0, 2, 1], strides = [2, 1]> (image, s, z, kernels, channel_s,"
    " channels_zero, u, o, of_channels)",
    "QLinearConv <group = 2, pads = [1, 1]> (line, s, z, filters, one_s, one_zero, t, o)",
    "com.microsoft.QLinearConv <group = 2> (line, s, z, filters, u, w_zero, t, o)",
    "com.microsoft.DequantizeLinear (a, s, z)",
    "MaxPool <kernel_shape = [3, 2], pads = [1, 0, 1, 1]> (image)",
]


def case(text: str, kind: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node and its feed; ``kind``: the dtype of its values."""
    names = [name for name in text[text.index("(") + 1 : -1].replace(" ", "").split(",") if name]
    bounds = np.iinfo(kind)
    feed = {
        name: np.random.default_rng(3).integers(bounds.min, bounds.max + 1, SHAPES[name], kind)
        for name in names
        if name in SHAPES
    }
    if "choice" in names:
        feed["choice"] = RNG.integers(0, 2, SHAPES["a"]).astype(bool)
    zeros = {name: np.array(zero, kind) for name, zero in ZEROS[kind].items()}
    known = {k: np.asarray(v) for k, v in {**CONSTANTS, **zeros}.items() if k in names}
    inputs = ", ".join(
        f"{'bool' if a.dtype == bool else kind}[{', '.join('?' * a.ndim)}] {name}"
        for name, a in feed.items()
    )
    return parsed(f"({inputs}) => (y) {{ y = {text} }}", known, opsets=OWN), feed


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("text", CASES)
def test_integers_are_those_of_onnx_runtime(text: str, kind: str) -> None:
    """In ONNX Runtime a Softmax of 1 in signed bytes wraps to the smallest: none is 1 here."""
    built, feed = case(text, kind)
    (want,) = theirs(built, feed)
    for options in ({}, {"backend": "reference"}):
        (mine,) = ours(built, feed, **options)
        assert mine.dtype == want.dtype and mine.shape == want.shape
        if want.dtype.kind == "f":
            assert_allclose(mine, want, rtol=2e-6, atol=2e-6)
        else:
            assert_array_equal(mine, want)
    assert len(np.unique(want)) > 3


@pytest.mark.parametrize("text", CASES)
def test_plans_run_every_step_of_a_quantized_operator(text: str) -> None:
    """Python runs none: so they are in compiled files and generated code, too."""
    built, feed = case(text, "uint8")
    session = Session(read(built))
    session.run(feed)
    assert "in Python" not in session.explain().partition("graph: ")[2]


def test_every_rule_of_a_quantized_operator_has_a_case() -> None:
    """Those with a file of their own: test_quantized.py and test_quantized_lstm.py of tests/ops."""
    here = {text.split(" ")[0].replace("com.microsoft.", "com.microsoft ") for text in CASES}
    here |= {f"com.microsoft {n}" for n in ("DynamicQuantizeMatMul", "MatMulIntegerToFloat")}
    here |= {"com.microsoft DynamicQuantizeLSTM", "com.microsoft QuantizeLinear"}
    named = {n for n in RULES if "Quantize" in n or n.split()[-1].startswith(("QL", "QG"))}
    assert named - here <= {"QuantizeLinear", "DequantizeLinear"}  # of ONNX, see `SHAPED`


@pytest.mark.parametrize(
    "text, reason",
    [
        ("QLinearMatMul (rows, column_s, z, w, t, w_zero, t, o)", r"input 1: expected one element"),
        ("QLinearMatMul (rows, s, z, w, t, w_zero, column_s, o)", r"input 6: expected one element"),
        (
            "com.microsoft.QLinearAdd (a, s, z, b, column_s, o, t, z)",
            "input 4: expected one element",
        ),
        (
            "QLinearMatMul (rows, s, z, w, channel_s, w_zero, t, o)",
            r"input 4: expected one element or 7 of them, got float32\(6\)",
        ),
        (
            "QLinearConv (line, s, z, one_filter, channel_s, w_zero, t, o)",
            r"input 4: expected one element, got float32\(6\)",
        ),
        (
            "QLinearConv (line, s, z, filters, s, w_zero, t, o, whole)",
            r"input 8: expected 6 elements, one per channel, got int32\(7\)",
        ),
        ("com.microsoft.QLinearMul (a, s, w_zero, b, s, o, t, z)", "input 2: expected uint8"),
        ("com.microsoft.QLinearAdd (a, s, z, b, s, o, t, w_zero)", "input 7: expected uint8"),
        ("com.microsoft.QLinearAdd (a, s, z, b, s, o, nothing)", "scales other than 0, got 0.0"),
        ("com.microsoft.QLinearAdd (a, s, z, b)", "input 4 is missing"),
        ("com.microsoft.QLinearConcat (s, o, a, t)", "for each value, got 4 inputs"),
        ("com.microsoft.QLinearGlobalAveragePool (matrix, s, z, u, o)", "expected three axes"),
        ("com.microsoft.QGemm (rows, s, z, w, t, w_zero)", "expected matrices, got uint8"),
        (
            "com.microsoft.QGemm (matrix, s, z, w, t, w_zero, of_channels)",
            r"input C: expected int32\(.*, 7\) or one row or column of it, got int32\(6\)",
        ),
        ("com.microsoft.QGemm (matrix, s, z, w, t, w_zero, whole, t)", "expected both or none"),
        (
            "com.microsoft.QLinearConv <channels_last = 1> (line, s, z, filters, u, w_zero, t, o)",
            "channels_last=1",
        ),
    ],
)
def test_what_onnx_runtime_does_not_take_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        Session(read(case(text, "uint8")[0]))


ONE: list[tuple[Any, Any]] = [((1,), ()), ((), (1,)), ((1,), (1,)), ((), ()), ((1,), None)]
SHAPED = [*ONE, ((3,), (3,)), ((3,), None)]


@pytest.mark.parametrize("scale, zero", SHAPED, ids=str)
@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int32"])
def test_scales_and_zero_points_of_every_shape_that_onnx_runtime_takes(
    scale: Any, zero: Any, kind: str
) -> None:
    """ONNX Runtime's own optimizer refuses what it accepts itself: it is off."""
    x: np.ndarray = np.random.default_rng(0).normal(size=(4, 3)).astype("f4")
    given = {"s": RNG.uniform(0.01, 0.02, scale).astype("f4")}
    if zero is not None:
        given["z"] = np.full(zero, 0 if kind == "int32" else 5, kind)
    names = ", ".join(given)
    if kind == "int32":
        given["q"] = np.arange(12, dtype=kind).reshape(4, 3)
        text = f"d = DequantizeLinear (q, {names}) y = Add (d, x)"
    elif zero is None and kind != "uint8":
        pytest.skip("without a zero point QuantizeLinear writes uint8")
    else:
        text = f"q = QuantizeLinear (x, {names}) y = DequantizeLinear (q, {names})"
    built = parsed(f"(float[?, 3] x) => (y) {{ {text} }}", given, opset=21)
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        built.SerializeToString(), quiet(graph_optimization_level=level)
    )
    (want,) = session.run(None, {"x": x})
    for options in ({}, {"backend": "reference"}):
        assert_array_equal(ours(built, {"x": x}, **options)[0], want)


BLOCKS = [((4, 6), 1, 2), ((5, 3), 0, 2), ((2, 3, 7), -1, 3), ((4, 6), 1, 9)]


@pytest.mark.parametrize("shape, axis, size", BLOCKS, ids=str)
@pytest.mark.parametrize("zero", ["uint8", "int8", "uint16", ""])
def test_blocks_have_scales_of_their_own(shape: Any, axis: int, size: int, zero: str) -> None:
    """The last block of an axis may be shorter."""
    blocks = list(shape)
    blocks[axis] = -(-shape[axis] // size)
    given = {"s": RNG.uniform(0.01, 0.02, blocks).astype("f4")}
    if zero:
        given["z"] = RNG.integers(0, 9, blocks).astype(zero)
    names, attributes = ", ".join(given), f"<axis = {axis}, block_size = {size}>"
    built = parsed(
        f"""(float[{", ".join(map(str, shape))}] x) => (q, y) {{
        q = QuantizeLinear {attributes} (x, {names})
        y = DequantizeLinear {attributes} (q, {names})
        }}""",
        given,
        opset=21,
    )
    feed = {"x": RNG.normal(size=shape).astype("f4")}
    for mine, want in zip(ours(built, feed), theirs(built, feed), strict=True):
        assert mine.dtype == want.dtype
        assert_array_equal(mine, want)


@pytest.mark.parametrize(
    "x, size, reason",
    [
        ("2, 6", 4, r"input 1: expected \(2, 2\) \(block_size=4\), got float32\(2, 3\)"),
        ("?, 6", 2, r"input 1: expected x of known sizes"),
        ("2, 6", -2, "block_size=-2"),
    ],
)
def test_scales_that_do_not_fit_the_blocks_are_refused(x: str, size: int, reason: str) -> None:
    text = f"(float[{x}] x) => (y) {{ y = QuantizeLinear <block_size = {size}> (x, s) }}"
    with pytest.raises(UnsupportedError, match=reason):
        Session(read(parsed(text, {"s": np.ones((2, 3), "f4")}, opset=21)))


def test_a_zero_point_for_each_column_with_one_scale_is_refused() -> None:
    given = {"s": np.float32(0.1), "z": np.zeros(3, "u1")}
    built = parsed("(float[?, 3] x) => (y) { y = QuantizeLinear (x, s, z) }", given)
    with pytest.raises(ShapeError, match=r"zero point \(3,\): expected \(\), the scale's shape"):
        ours(built, {"x": np.ones((2, 3), "f4")})


@pytest.mark.parametrize("per_channel", [False, True])
def test_layers_read_dequantized_weights_biases_and_states(per_channel: bool) -> None:
    floats = parameters("LSTM", 5, 4) | {"h": RNG.normal(size=(1, 2, 4)).astype("f4")}
    given: dict[str, np.ndarray] = {}
    lines = []
    for name, array in floats.items():
        several = per_channel and array.ndim == 3 and name != "h"
        count = array.shape[1] if several else 1
        given[f"{name}s"] = np.full(count, 0.01, "f4")
        given[f"{name}z"] = np.zeros(count if several else (), "i4" if name == "B" else "i1")
        given[f"{name}q"] = np.rint(array / 0.01).astype(given[f"{name}z"].dtype)
        lines.append(f"{name} = DequantizeLinear <axis = 1> ({name}q, {name}s, {name}z)")
    text = f"{' '.join(lines)} y, yh, yc = LSTM <hidden_size = 4> (x, W, R, B, , h, h)"
    built = parsed(f"(float[?, 2, 5] x) => (y, yh, yc) {{ {text} }}", given)
    feed = {"x": RNG.normal(size=(6, 2, 5)).astype("f4")}
    assert [node.op for node in read(built).nodes if node.op == "Rnn"]
    for mine, want in zip(ours(built, feed), theirs(built, feed), strict=True):
        assert_allclose(mine, want, rtol=1e-5, atol=2e-6)


def small_network() -> tuple[onnx.ModelProto, Any]:
    """A convolution, pools, an LSTM and products, as scene text is read."""
    arrays = parameters("LSTM", 8, 6) | {
        "k": RNG.normal(size=(4, 1, 3, 3)).astype("f4"),
        "kb": RNG.normal(size=4).astype("f4"),
        "shape": np.array([0, 0, 8]),
        "ax": np.array([1]),
        "p": RNG.normal(size=(6, 5)).astype("f4"),
        "pb": RNG.normal(size=5).astype("f4"),
    }
    text = """(float[1, 1, 4, 9] x) => (y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, k, kb)
        r = Relu (c)
        m = MaxPool <kernel_shape = [2, 1], strides = [2, 1]> (r)
        t = Transpose <perm = [3, 0, 1, 2]> (m)
        f = Reshape (t, shape)
        l = LSTM <hidden_size = 6> (f, W, R, B)
        s = Squeeze (l, ax)
        g = Sigmoid (s)
        v = Mul (g, s)
        w = MatMul (v, p)
        b = Add (w, pb)
        y = Softmax (b)
    }"""
    rng = np.random.default_rng(5)
    return parsed(text, arrays), lambda: {"x": rng.normal(size=(1, 1, 4, 9)).astype("f4")}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("form", ["dynamic", "QDQ", "QOperator"])
def test_files_of_onnx_runtimes_quantizer_run_as_there(
    form: str, per_channel: bool, tmp_path: Path
) -> None:
    """One sequence: DynamicQuantizeLSTM quantizes a batch together there, see design/0008.

    Weights have 7 bits: on CPUs without VNNI, ONNX Runtime's sums of two products saturate.
    Sums of float32 differ by a rounding: a value between two bytes may become the other one. The
    results are at most one step of their scale apart.
    """
    model, feed = small_network()
    onnx.save(model, tmp_path / "plain.onnx")
    file = tmp_path / "quantized.onnx"
    if form == "dynamic":
        quantize_dynamic(tmp_path / "plain.onnx", file, per_channel=per_channel, reduce_range=True)
    else:
        reader = SimpleNamespace(get_next=iter([*(feed() for _ in range(4)), None]).__next__)
        quantize_static(
            tmp_path / "plain.onnx",
            file,
            reader,
            quant_format=QuantFormat[form],
            per_channel=per_channel,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"WeightSymmetric": True},
        )
    graph, fed = load(file), feed()
    assert not [node for node in graph.nodes if node.op == UNSUPPORTED]
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(file, quiet(graph_optimization_level=level))
    (want,) = session.run(None, fed)
    (mine,) = Session(graph).run(fed).values()
    assert_allclose(mine, want, rtol=0, atol=1e-5 if form == "dynamic" else 1 / 255)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_nodes_in_any_order_are_sorted(order: tuple[int, ...]) -> None:
    """quantize_dynamic writes the quantization of an input after its readers."""
    built = parsed(
        """(float[2, 3] x) => (y) {
        a = MatMul (x, w)
        b = Relu (a)
        going = Cast <to = 9> (one)
        y = If (going) <
            then_branch = then () => (t) { t = Add (a, b) },
            else_branch = other () => (e) { e = Sub (a, b) }
        >
        }""",
        {"w": np.arange(9, dtype="f4").reshape(3, 3) - 4, "one": np.array(1)},
    )
    nodes = list(built.graph.node)
    feed = {"x": np.ones((2, 3), "f4")}
    want = ours(built, feed)
    del built.graph.node[:]
    built.graph.node.extend(nodes[at] for at in order)
    assert_array_equal(ours(built, feed), want)
    (mine,), x = want, feed["x"] @ (np.arange(9, dtype="f4").reshape(3, 3) - 4)
    assert_array_equal(mine, x + np.maximum(x, 0))
