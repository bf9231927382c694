"""Every kernel that bears an ONNX name, against ONNX Runtime and onnx's own evaluator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from support import operator_cases
from support.graphs import new_node
from support.operator_cases import CONSTANTS, FEED, UNARY

from onernn import Ragged, ShapeError
from onernn.engine.kernels import KERNELS
from onernn.ir.graph import Node
from onernn.ops import OPERATORS

RNG = np.random.default_rng(3)
MATRIX = RNG.uniform(-2, 2, (4, 3)).astype(np.float32)
CUBE = RNG.uniform(-2, 2, (2, 3, 5)).astype(np.float32)
SQUARE = RNG.uniform(-2, 2, (4, 4)).astype(np.float32)
POSITIVE = np.abs(CUBE) + np.float32(0.1)
HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], np.float32)
WHOLE = np.array([[7, -7, 7], [-7, 0, 3]], np.int64)
BY = np.array([2, 2, -2], np.int64)
TRUTH = np.array([[True, False, True], [False, True, True]])
TIED = np.array([[3, 1, 3, 2], [0, 0, -1, -1]], np.float32)
DOUBLE = RNG.uniform(-2, 2, (3, 4))
IMAGE = RNG.uniform(-2, 2, (2, 4, 7, 6)).astype(np.float32)
FILTERS = RNG.uniform(-1, 1, (6, 2, 3, 2)).astype(np.float32)
TAPS = RNG.uniform(-1, 1, (2, 3, 3)).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


Case = tuple[str, list[Any], dict[str, Any]]
AUTO = [{"auto_pad": name} for name in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")]
AROUND = [{}, *AUTO, {"pads": (1, 0, 2, 1)}]
BACK = {"group": 2, "strides": (2, 2)}
COLUMNS = [POSITIVE[0, :, k].copy() for k in range(2)]
WAVES = RNG.uniform(-1, 1, (2, 11, 1)).astype(np.float32)
SPECTRA = RNG.uniform(-1, 1, (2, 5, 2)).astype(np.float32)
WINDOW = POSITIVE[0, 0, :4].copy()
MODES = [
    {"coordinate_transformation_mode": name}
    for name in (
        "half_pixel half_pixel_symmetric asymmetric pytorch_half_pixel align_corners"
    ).split()
]
POOLED = [
    {"kernel_shape": (3, 2), "strides": strides, **around}
    for strides in ((1, 1), (2, 3))
    for around in AROUND
]
POOLED += [
    {"kernel_shape": (3, 2), "strides": (2, 3), "pads": pads, "ceil_mode": 1}
    for pads in ((0, 0, 0, 0), (2, 1, 0, 0), (0, 0, 2, 1))
]
POOLED += [{"kernel_shape": (2, 2), "dilations": (3, 2)}]
CASES: list[Case] = [
    *((op, [3 * CUBE], {}) for op in UNARY),
    *((op, [2 * DOUBLE], {}) for op in ("Tanh", "Sigmoid", "Exp", "Relu", "Softplus", "Erf")),
    *((op, [ODD], {}) for op in ("Neg", "Abs", "Exp", "Sign", "Tanh", "Sigmoid", "IsNaN", "Relu")),
    *((op, [ODD], {}) for op in ("Log", "Sqrt")),
    *((op, [WHOLE, BY], {}) for op in "Add Sub Mul Div Mod Equal Less Greater".split()),
    ("Div", [ODD, ODD[::-1].copy()], {}),
    ("Max", [ODD, np.zeros(6, np.float32)], {}),
    ("MatMul", [MATRIX[0], CUBE], {}),
    ("Squeeze", [CUBE[:1, :, :1]], {}),
    ("Slice", [CUBE, ints(1, 0), ints(9, -1)], {}),
    ("Slice", [CUBE, ints(-1), ints(-(2**63)), ints(-1), ints(-2)], {}),
    ("Slice", [CUBE, ints(3, -9), ints(0, 2), ints(2, 0), ints(-1, 1)], {}),
    ("Shape", [CUBE], {"start": -2}),
    ("Size", [CUBE], {}),
    ("ConstantOfShape", [ints(2, 0)], {"value": np.array([True])}),
    ("Range", [np.float32(0), np.float32(1), np.float32(0.3)], {}),
    ("GatherElements", [CUBE, np.array([[[4, 0], [1, 1]]])], {"axis": -1}),
    ("Pad", [MATRIX, ints(-1, 2, 0, -1), np.float32(9)], {}),
    ("Pad", [CUBE, ints(1, 1), np.float32(9), ints(-2)], {}),
    ("Pad", [IMAGE, ints(4, 3), None, ints(-1)], {"mode": "reflect"}),
    ("NonZero", [WHOLE], {}),
    ("Compress", [MATRIX, np.array([False, True, True, False, True])], {}),
    *((f"Reduce{k}", [POSITIVE], {}) for k in ("Sum", "Mean", "Max", "Min", "Prod", "LogSum")),
    *((f"Reduce{k}", [50 * CUBE, ints(-1, 0)], {"keepdims": 0}) for k in ("Max", "LogSumExp")),
    *((f"Reduce{k}", [CUBE[:, :0], ints(1)], {}) for k in ("Sum", "Prod")),
    ("ArgMax", [TIED], {"axis": -1, "keepdims": 0, "select_last_index": 1}),
    ("ArgMin", [TIED], {}),
    ("TopK", [TIED, ints(3)], {}),
    *(("Conv", [IMAGE, FILTERS], {"group": 2, **around}) for around in AROUND),
    ("Conv", [IMAGE, FILTERS[:4, :1].copy()], {"group": 4, "kernel_shape": (3, 2)}),
    ("Conv", [IMAGE.astype(np.float64), FILTERS.astype(np.float64)], {"group": 2}),
    *((op, [IMAGE], pooled) for op in ("MaxPool", "AveragePool") for pooled in POOLED),
    *(("AveragePool", [IMAGE], {"count_include_pad": 1, **pooled}) for pooled in POOLED),
    *(
        ("ConvTranspose", [IMAGE, FILTERS[:4], FILTERS[:4, 0, 0, 0]], {**BACK, **more})
        for more in (*AROUND, {"output_padding": (1, 1)}, {"output_shape": (14, 12)})
    ),
    ("ConvTranspose", [CUBE, TAPS[[0, 1, 1]]], {"strides": (2,), "output_shape": (12,)}),
    *(
        ("Resize", [IMAGE, None, floats(1, 1, 2.5, 0.5)], {"nearest_mode": mode, **coordinates})
        for mode in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        for coordinates in MODES[:3]
    ),
    *(
        ("Resize", [each, None, None, ints(*sizes)], {"mode": mode, **coordinates})
        for each, sizes in ((IMAGE, (2, 4, 11, 3)), (CUBE, (2, 3, 8)))
        for mode in ("nearest", "linear")
        for coordinates in MODES
    ),
    *(("DFT", [WAVES, np.int64(n)], {"onesided": one}) for n in (4, 9, 17) for one in (0, 1)),
    ("DFT", [SPECTRA, np.int64(9)], {"inverse": 1, "onesided": 1}),
    *(("STFT", [WAVES, np.int64(3), WINDOW], {"onesided": one}) for one in (0, 1)),
]
"""Values and sizes at their ends. onnx's own cases are run in test_peer_suites.py."""
OUTPUTS = {"TopK": 2, "LayerNormalization": 3, "MaxPool": 2, "DynamicQuantizeLinear": 3}
# What onnx's evaluator cuts down instead of towards zero, and what ONNX Runtime has no kernel for.
NOT_BY_ONNX = {"Div", "Mod", "Clip", "LayerNormalization"}
HALF = CUBE.astype(np.float16)
EVEN = np.array([[0.5, 1.5, 2.5, -0.5], [-1.5, 300, -300, np.inf]], np.float32)  # halves, and more
A_BYTES = RNG.integers(0, 256, (2, 3, 700), np.uint8)
# Seven bits: on CPUs without VNNI ONNX Runtime adds pairs of products in 16 bits.
B_BYTES = RNG.integers(-64, 64, (700, 5), np.int8)
IMAGES = RNG.integers(0, 256, (2, 4, 7, 9), np.uint8)
KERNELS_U8 = RNG.integers(0, 256, (6, 4, 3, 2), np.uint8)
EXTREME = np.full((1, 700), 255, np.uint8), np.full((700, 1), -64, np.int8)
FOUR = np.array([0.1, 1, 2, 0.5], np.float32)
ZEROS = {t: np.array([0, 3, 7, 100], t) for t in ("uint8", "int8")}
CASES += [
    ("QuantizeLinear", [EVEN, np.float32(1)], {}),
    *(("QuantizeLinear", [EVEN, FOUR, ZEROS[t]], {"axis": k}) for t in ZEROS for k in (1, -1)),
    *(("DequantizeLinear", [np.arange(256).astype(t), np.float32(0.3)], {}) for t in ZEROS),
    ("DequantizeLinear", [np.array([2**31 - 1, -(2**31)], np.int32), np.float32(0.5)], {}),
    *(("DynamicQuantizeLinear", [x], {}) for x in (CUBE, POSITIVE, -POSITIVE, 0 * CUBE)),
    ("MatMulInteger", [A_BYTES, B_BYTES, np.uint8(7), np.arange(5, dtype=np.int8)], {}),
    ("MatMulInteger", [*EXTREME, np.uint8(0), np.int8(127)], {}),
    ("ConvInteger", [IMAGES, KERNELS_U8, np.uint8(7), np.uint8(130)], {"pads": (1, 0, 2, 1)}),
    ("MatMul", [HALF, np.swapaxes(HALF, 1, 2).copy()], {}),
    ("Gemm", [HALF[0], HALF[1].T.copy()], {}),
    ("Softmax", [HALF], {}),
    ("LayerNormalization", [HALF, HALF[0, 0], HALF[0, 1]], {}),
]
APART = {"ArgMax", "ArgMin", "MaxPool"}
"""ONNX Runtime passes over what is no number, of which the shared inputs have one."""


def shared() -> Iterator[Case]:
    """The cases that plans and generated code have, too, as far as ONNX has them."""
    arrays: dict[str, Any] = {**FEED, **CONSTANTS, "": None}
    for op, inputs, attributes in operator_cases.CASES:
        given = [arrays[name] for name in inputs.split(" ")]
        is_ours = any(isinstance(each, Ragged) for each in given) or op in ("Rnn", "Cast")
        of_all_floats = not (op in APART and given[0] is FEED["x"])
        if OPERATORS[op].since and not OPERATORS[op].domain and not is_ours and of_all_floats:
            if "last_axes" not in inputs:  # reflected more than once
                yield op, given, attributes | ({"num_outputs": 2} if op == "Split" else {})


CASES += shared()
CASTS = [
    (CUBE * 3, "int32"),
    (CUBE, "float64"),
    (CUBE, "float16"),
    (WHOLE, "float32"),
    (ODD, "bool"),
    (TRUTH, "int64"),
]


def model_of(
    op: str, arrays: list[Any], attributes: dict[str, Any], outputs: int
) -> onnx.ModelProto:
    names = ["" if a is None else f"i{k}" for k, a in enumerate(arrays)]
    results = [f"o{k}" for k in range(outputs)]
    tensors = {
        k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
        for k, v in attributes.items()
    }
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.asarray(a).dtype), None)
        for n, a in zip(names, arrays, strict=True)
        if n
    ]
    outs = [helper.make_value_info(name, onnx.TypeProto()) for name in results]
    graph = helper.make_graph([helper.make_node(op, names, results, **tensors)], "g", infos, outs)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 22)])


def expected(op: str, arrays: list[Any], attributes: dict[str, Any], outputs: int) -> list[Any]:
    model = model_of(op, arrays, attributes, outputs)
    feed = {f"i{k}": np.asarray(a) for k, a in enumerate(arrays) if a is not None}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    except Exception:  # ONNX Runtime lacks a kernel for some operators of some dtypes
        assert op not in NOT_BY_ONNX
        return ReferenceEvaluator(model).run(None, feed)
    return session.run(None, feed)


def check(op: str, arrays: list[Any], attributes: dict[str, Any], outputs: int) -> None:
    given = [None if a is None else np.asarray(a) for a in arrays]
    kept = [None if a is None else a.copy() for a in given]
    node = Node(op, ("x",) * len(arrays), tuple(f"o{k}" for k in range(outputs)), attributes)
    got = KERNELS[op](node, *given)
    got = got if isinstance(got, tuple) else (got,)
    want = expected(op, arrays, attributes, outputs)
    assert len(got) >= len(want) == outputs
    for mine, theirs in zip(got, want, strict=False):
        assert np.asarray(mine).shape == theirs.shape and np.asarray(mine).dtype == theirs.dtype
        # A few roundings of sums of at most 30 terms; what cancels may lose some of their size.
        close = 4e-3 if theirs.dtype == np.float16 else 5e-6
        if op in ("DFT", "STFT"):  # ONNX Runtime computes each turn from the one before
            close = 2e-5
        np.testing.assert_allclose(mine, theirs, rtol=close, atol=close)
    for array, before in zip(given, kept, strict=True):
        np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize("op, arrays, attributes", CASES)
def test_kernels_compute_what_onnx_runtime_does(op: str, arrays: list, attributes: dict) -> None:
    outputs = attributes.get("num_outputs", OUTPUTS.get(op, 1))
    if op == "Split" and len(arrays) > 1:
        outputs = len(arrays[1])
    check(op, arrays, attributes, outputs)


@pytest.mark.parametrize("array, dtype", CASTS)
def test_casts_are_named_by_numpy(array: np.ndarray, dtype: str) -> None:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    (want,) = expected("Cast", [array], {"to": number}, 1)
    got = KERNELS["Cast"](new_node("Cast", "x", "y", to=dtype), array)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_every_onnx_kernel_is_in_the_table() -> None:
    onnx_names = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}
    tested = {op for op, _, _ in CASES} | {"Cast", "If", "Loop", "Scan"}  # the last three elsewhere
    assert set(KERNELS) & onnx_names == tested


RAGGED = Ragged(MATRIX, [0, 1, 1, 4], ([0, 3],))


def run(op: str, *values: Any, outputs: int = 1, **attributes: Any) -> Any:
    names = tuple(f"o{k}" for k in range(outputs))
    return KERNELS[op](Node(op, ("x",) * len(values), names, attributes), *values)


@pytest.mark.parametrize(
    "op, more, attributes",
    [
        ("Softmax", [], {}),
        ("Add", [RAGGED], {}),
        ("Relu", [], {}),
        ("Identity", [], {}),
        ("Concat", [RAGGED], {"axis": 1}),
        ("ReduceSum", [ints(-1)], {}),
        ("TopK", [ints(2)], {}),
        ("Dropout", [], {}),
        ("Split", [ints(1, 2)], {"axis": 1}),
        ("Slice", [ints(0), ints(2), ints(1)], {}),
        ("Where", [MATRIX, MATRIX], {}),
        ("LayerNormalization", [MATRIX[0]], {}),
        ("CumSum", [np.int64(1)], {}),
        ("Transpose", [], {"perm": (0, 1)}),
    ],
)
def test_what_runs_along_the_channels_keeps_the_offsets(op, more, attributes) -> None:
    outputs = 2 if op in ("Split", "TopK") else 1
    got = run(op, RAGGED, *more, outputs=outputs, **attributes)
    arrays = (MATRIX if each is RAGGED else each for each in more)
    plain = run(op, MATRIX, *arrays, outputs=outputs, **attributes)
    both = zip(*(v if isinstance(v, tuple) else (v,) for v in (got, plain)), strict=True)
    for mine, array in both:
        assert mine.lod == RAGGED.lod
        np.testing.assert_array_equal(mine.data, array)


@pytest.mark.parametrize(
    "op, more, attributes",
    [
        ("Conv", [FILTERS], {"group": 2}),
        ("MaxPool", [], {"kernel_shape": (2, 2)}),
        ("GlobalAveragePool", [], {}),
    ],
)
def test_windows_go_over_each_word_by_itself(op, more, attributes) -> None:
    words = Ragged(IMAGE, [0, 0, 1, 2])
    got = run(op, words, *more, **attributes)
    assert got.lod == words.lod
    for at, image in enumerate(IMAGE):
        alone = run(op, image[None], *more, **attributes)
        np.testing.assert_allclose(got.data[at], alone[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "op, more, attributes",
    [
        ("Softmax", [], {"axis": 0}),
        ("LogSoftmax", [], {"axis": -2}),
        ("ReduceSum", [], {}),
        ("ReduceMax", [ints(-2)], {"keepdims": 0}),
        ("ArgMax", [], {}),
        ("TopK", [ints(2)], {"axis": 0}),
        ("Split", [], {}),
        ("Slice", [ints(0), ints(2)], {}),
        ("Concat", [RAGGED], {"axis": 0}),
        ("LayerNormalization", [MATRIX], {"axis": 0}),
        ("CumSum", [np.int64(0)], {}),
        ("Transpose", [], {}),
    ],
)
def test_what_would_mix_words_is_refused(op, more, attributes) -> None:
    with pytest.raises(ShapeError, match="steps of ragged sequences; drop the LoD before"):
        run(op, RAGGED, *more, **attributes)


@pytest.mark.parametrize(
    "op, values, attributes, reason",
    [
        ("ConstantOfShape", [ints(-1)], {}, "sizes are at least 0"),
        ("Expand", [MATRIX, ints(-1, 4, 3)], {}, "sizes are at least 0"),
        ("Tile", [MATRIX, ints(2)], {}, "expected 2 repeats"),
        ("Range", [np.int64(0), np.int64(5), np.int64(0)], {}, "delta is 0"),
        ("OneHot", [ints(0), ints(-1), np.zeros(2)], {}, "depth -1"),
        ("Pad", [MATRIX, ints(1, 1)], {}, "expected two for each of 2 axes"),
        ("Pad", [CUBE[:, :1], ints(0, -2, 0, 0, 1, 0)], {}, "cut more than there is"),
        ("Trilu", [ints(1, 2, 3)], {}, "expected matrices"),
        ("Div", [WHOLE, ints(0)], {}, "division by zero"),
        ("Mod", [WHOLE, ints(0)], {}, "division by zero"),
        ("Mod", [CUBE, CUBE], {}, "integers only"),
        ("GatherElements", [MATRIX, np.array([[4]])], {}, r"index 4 is outside \[-4, 4\)"),
        ("GatherND", [CUBE, np.array([[0, 5]])], {}, r"index 5 is outside \[-3, 3\)"),
        ("GatherND", [CUBE, np.array([[0, 5]])], {"batch_dims": 1}, "batch_dims=1"),
        ("Split", [CUBE, ints(1, 1)], {"axis": 1}, "sum to 3"),
        ("Slice", [MATRIX, ints(-1), ints(2**63 - 1), ints(0), ints(-1)], {}, "disagree"),
        ("Slice", [MATRIX, ints(-9), ints(-9), ints(0), ints(-1)], {}, "disagree"),
        ("ArgMax", [CUBE[:0]], {}, "no element"),
        ("TopK", [CUBE, ints(6)], {}, "at most 5"),
        ("Dropout", [CUBE, np.float32(0.5), np.array(True)], {}, "only inference"),
        ("ReverseSequence", [CUBE, ints(3, 4)], {"time_axis": 1, "batch_axis": 0}, "at most 3"),
        (
            "ReverseSequence",
            [CUBE, ints(3)],
            {"time_axis": 2, "batch_axis": 0},
            "as the first axes",
        ),
        ("Einsum", [RAGGED], {"equation": "wi->i"}, "drop the LoD"),
        ("Conv", [IMAGE, FILTERS], {}, "in 1 groups do not fit"),
        ("Conv", [IMAGE, FILTERS], {"group": 0}, "in 0 groups"),
        ("Conv", [IMAGE, FILTERS[:5].copy()], {"group": 2}, "in 2 groups"),
        ("Conv", [CUBE, FILTERS], {}, r"expected \(N, C, ...\)"),
        ("Conv", [MATRIX, MATRIX], {}, "windows over 0 axes"),
        ("Conv", [IMAGE, FILTERS.astype(np.float64)], {"group": 2}, "floats of one type"),
        ("Conv", [IMAGE, FILTERS, MATRIX[0]], {"group": 2}, r"bias: expected float32 \(6,\)"),
        ("Conv", [IMAGE, FILTERS], {"group": 2, "kernel_shape": (2, 2)}, "kernel_shape"),
        ("Conv", [IMAGE, FILTERS], {"group": 2, "strides": (0, 1)}, "strides=.*at least 1"),
        ("Conv", [IMAGE, FILTERS], {"group": 2, "strides": (1,)}, "strides=.*expected 2"),
        ("Conv", [IMAGE, FILTERS], {"group": 2, "pads": (0, 0, -1, 0)}, "pads=.*at least 0"),
        ("Conv", [IMAGE, FILTERS], {"group": 2, "auto_pad": "SAME"}, "auto_pad='SAME'"),
        (
            "Conv",
            [IMAGE, FILTERS],
            {"group": 2, "auto_pad": "VALID", "pads": (1, 0, 0, 0)},
            "only one may say it",
        ),
        ("Conv", [IMAGE, FILTERS], {"group": 2, "dilations": (4, 1)}, "9 elements over an axis"),
        ("Conv", [IMAGE, FILTERS], {"group": 2, "dilations": (2**30, 1)}, "windows of"),
        ("MaxPool", [CUBE], {"kernel_shape": (6,)}, "6 elements over an axis of 5"),
        ("MaxPool", [CUBE], {"kernel_shape": (2, 2)}, r"expected \(N, C, ...\)"),
        ("MaxPool", [CUBE], {"kernel_shape": (2,), "pads": (2, 0)}, "nothing but what is added"),
        (
            "AveragePool",
            [CUBE],
            {"kernel_shape": (2,), "ceil_mode": 1, "auto_pad": "VALID"},
            "ONNX does not define",
        ),
        ("GlobalMaxPool", [CUBE[:, :, :0]], {}, "with elements"),
        ("AveragePool", [WHOLE[None]], {"kernel_shape": (1,)}, "expected floats, got int64"),
        ("ConvTranspose", [IMAGE, FILTERS], {}, "in 1 groups do not fit"),
        ("ConvTranspose", [IMAGE, FILTERS[:4]], {"pads": (5, 0, 5, 0)}, "gives axes of"),
        (
            "ConvTranspose",
            [IMAGE, FILTERS[:4]],
            {"strides": (4, 1), "auto_pad": "SAME_UPPER"},
            "axis 2: windows reach 1 elements less",
        ),
        (
            "ConvTranspose",
            [IMAGE, FILTERS[:4]],
            {"output_shape": (11, 7)},
            "axis 2: windows reach 2 elements less",
        ),
        ("ConvTranspose", [IMAGE, FILTERS[:4]], {"output_padding": (-1, 0)}, "output_padding"),
        ("InstanceNormalization", [CUBE, *[MATRIX[0, :2]] * 2], {}, r"scale: expected \(3,\)"),
        ("GroupNormalization", [CUBE, *COLUMNS], {"num_groups": 2}, "num_groups=2"),
        ("Resize", [IMAGE], {}, "expected scales or sizes"),
        ("Resize", [MATRIX, None, floats(1, 0)], {}, "expected 2 positive numbers"),
        ("Resize", [MATRIX, None, floats(1, np.inf)], {}, "expected 2 positive numbers"),
        ("Resize", [MATRIX, None, floats(1)], {}, "expected 2 positive numbers"),
        ("Resize", [MATRIX, None, floats(1, 2)], {"mode": "cubic"}, "mode='cubic'"),
        ("Resize", [MATRIX, None, floats(1, 0.5)], {"mode": "linear", "antialias": 1}, "antialias"),
        ("Resize", [MATRIX, None, floats(1, 1.5)], MODES[-1], "round differently"),
        ("Resize", [MATRIX, None, floats(1, 1)], {"axes": (0, 0)}, "an axis twice"),
        ("Resize", [MATRIX[:, :0], None, None, ints(4, 2)], {}, "has no elements"),
        ("Resize", [WHOLE, None, floats(1, 2)], {"mode": "linear"}, "of floats"),
        ("Resize", [RAGGED, None, floats(2, 1)], {}, "drop the LoD"),
        ("DFT", [MATRIX], {}, "expected floats"),
        ("DFT", [SPECTRA], {"onesided": 1}, "of real numbers"),
        ("DFT", [WAVES], {"onesided": 1, "inverse": 1}, "of complex numbers"),
        ("DFT", [WAVES, np.int64(0)], {}, "dft_length: expected a number of at least 1"),
        ("DFT", [SPECTRA, np.int64(4)], {"onesided": 1, "inverse": 1}, "not those of 4"),
        ("DFT", [WAVES, None, np.int64(2)], {}, "parts of complex numbers"),
        ("STFT", [WAVES, np.int64(0), WINDOW], {}, "frame_step: expected"),
        ("STFT", [WAVES, np.int64(2), None, np.int64(12)], {}, "frames of 12 in a signal of 11"),
        ("STFT", [WAVES, np.int64(2), WINDOW, np.int64(5)], {}, r"window: expected \(5,\)"),
        ("STFT", [SPECTRA, np.int64(2), WINDOW], {}, "of real numbers"),
        ("BatchNormalization", [CUBE, *[MATRIX[0, :2]] * 4], {}, r"scale: expected \(3,\)"),
    ],
)
def test_what_has_no_right_answer_is_refused(op, values, attributes, reason) -> None:
    with pytest.raises(ShapeError, match=reason):
        run(op, *values, outputs=2 if op == "Split" else 1, **attributes)
