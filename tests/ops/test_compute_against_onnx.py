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
from support.checking import assert_same
from support.graphs import new_node
from support.operator_cases import CONSTANTS, FEED, UNARY

from onernn import Ragged, ShapeError
from onernn.engine.kernels import KERNELS
from onernn.ir.graph import Node
from onernn.ir.ragged import data_of
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


X, ONE = np.array([[0.3, -2, 7], [1, 2, 3]], np.float32), np.array(1, np.float32)
BYTES = np.arange(6, dtype=np.uint8).reshape(2, 3)
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
    assert_same(given, kept)


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
    assert_same(got, want)


def test_every_onnx_kernel_is_in_the_table() -> None:
    onnx_names = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}
    tested = {op for op, _, _ in CASES} | {"Cast", "If", "Loop", "Scan"}  # the last three elsewhere
    assert set(KERNELS) & onnx_names == tested


RAGGED = Ragged(MATRIX, [0, 1, 1, 4], ([0, 3],))


def run(op: str, *values: Any, outputs: int = 1, **attributes: Any) -> Any:
    names = tuple(f"o{k}" for k in range(outputs))
    return KERNELS[op](Node(op, ("x",) * len(values), names, attributes), *values)


def test_words_of_sentences_are_kept_apart_or_refused() -> None:
    """Each case with its inputs as words of sentences: what is ragged has what each sentence gives.

    An operator without words in its result gives an array, as for dense inputs.
    """
    kept, refused, arrays = set(), set(), {**FEED, **CONSTANTS, "": None}
    cases = operator_cases.CASES
    first_axis = [(op, inputs, {**at, "axis": 0}) for op, inputs, at in cases if "axis" in at]
    for op, inputs, attributes in [*cases, *first_axis]:
        given = [(arrays[name], name in FEED) for name in inputs.split(" ")]
        first = given[0][0]
        if isinstance(first, Ragged) or first.ndim < 2 or not given[0][1]:
            continue
        if OPERATORS[op].kind in ("sequences", "layer") or op == "SequenceLike":
            continue
        cuts, values = [0, 1, 1, len(first)], [each for each, _ in given]
        along = [each is not None and np.shape(each)[:1] == first.shape[:1] for each in values]
        along = [k and x.ndim == first.ndim for k, x in zip(along, values, strict=True)]
        fed = [k and is_fed for k, (_, is_fed) in zip(along, given, strict=True)]
        words = [Ragged(x, cuts) if k else x for k, x in zip(fed, values, strict=True)]
        more = {"outputs": operator_cases.COUNTS.get(op, 1), **attributes}
        try:
            got = run(op, *words, **more)
        except ShapeError:
            refused.add(op)
            continue
        first_of = got[0] if isinstance(got, tuple) else got
        if isinstance(first_of, Ragged):
            kept.add(op)
            pairs = [*zip(along, values, strict=True)]
            sentences = [
                run(op, *(x[cut] if k else x for k, x in pairs), **more)
                for cut in (slice(0, 1), slice(1, None))
            ]
            parts = [each if isinstance(each, tuple) else (each,) for each in sentences]
            want: Any = tuple(map(np.concatenate, zip(*parts, strict=True)))
        else:
            want = run(op, *values, **more)
        both = (each if isinstance(each, tuple) else (each,) for each in (got, want))
        for mine, theirs in zip(*both, strict=True):
            assert not isinstance(mine, Ragged) or mine.offsets.tolist() == cuts, op
            np.testing.assert_allclose(data_of(mine), theirs, 1e-5, 1e-5, err_msg=op)
    assert len(kept) > 80, kept
    assert {"Softmax", "ArgMax", "TopK", "Split", "Slice", "Concat", "Transpose"} <= refused


@pytest.mark.parametrize(
    "op, values, attributes, reason",
    [
        ("ConstantOfShape", [ints(-1)], {}, "sizes of at least 0"),
        ("Expand", [MATRIX, ints(-1, 4, 3)], {}, "sizes of at least 0"),
        ("Tile", [MATRIX, ints(2)], {}, "repeats: expected 2"),
        ("Range", [np.int64(0), np.int64(5), np.int64(0)], {}, "delta=0"),
        ("OneHot", [ints(0), ints(-1), np.zeros(2)], {}, "depth=-1"),
        ("Pad", [MATRIX, ints(1, 1)], {}, "expected two for each of 2 axes"),
        ("Pad", [CUBE[:, :1], ints(0, -2, 0, 0, 1, 0)], {}, "expected to cut at most"),
        ("Trilu", [ints(1, 2, 3)], {}, "expected matrices"),
        ("Div", [WHOLE, ints(0)], {}, "division by zero"),
        ("Mod", [WHOLE, ints(0)], {}, "division by zero"),
        ("Mod", [CUBE, CUBE], {}, "expected integers, got float"),
        (
            "GatherElements",
            [MATRIX, np.array([[4]])],
            {},
            r"index 4: expected an index in \[-4, 4\)",
        ),
        ("GatherND", [CUBE, np.array([[0, 5]])], {}, "index 5: expected an index in"),
        ("GatherND", [CUBE, np.array([[0, 5]])], {"batch_dims": 1}, "batch_dims=1"),
        ("Split", [CUBE, ints(1, 1)], {"axis": 1}, "sum to 3"),
        ("Slice", [MATRIX, ints(-1), ints(2**63 - 1), ints(0), ints(-1)], {}, "disagree"),
        ("Slice", [MATRIX, ints(-9), ints(-9), ints(0), ints(-1)], {}, "disagree"),
        ("ArgMax", [CUBE[:0]], {}, "expected at least one element"),
        ("TopK", [CUBE, ints(6)], {}, "expected 0 to 5"),
        ("Dropout", [CUBE, np.float32(0.5), np.array(True)], {}, "for inference"),
        ("ReverseSequence", [CUBE, ints(3, 4)], {"time_axis": 1, "batch_axis": 0}, "at most 3"),
        ("ReverseSequence", [CUBE, ints(3)], {"time_axis": 2, "batch_axis": 0}, "got 2 and 0"),
        ("Einsum", [RAGGED], {"equation": "wi->i"}, "without LoD"),
        ("Conv", [IMAGE, FILTERS], {}, "group=1: expected"),
        ("Conv", [CUBE, FILTERS], {}, "N, C"),
        ("Conv", [MATRIX, MATRIX], {}, "0 further axes"),
        *(
            ("Conv", [IMAGE, *given], {"group": 2}, reason)
            for given, reason in (
                ([FILTERS[:5].copy()], "group=2: expected"),
                ([FILTERS.astype(np.float64)], "float64"),
                ([FILTERS, MATRIX[0]], r"bias: expected float32 \(6,\)"),
            )
        ),
        *(
            ("Conv", [IMAGE, FILTERS], {"group": 2, **more}, reason)
            for more, reason in (
                ({"group": 0}, "group=0: expected"),
                ({"kernel_shape": (2, 2)}, "kernel_shape"),
                ({"strides": (0, 1)}, "strides=.*at least 1"),
                ({"strides": (1,)}, "strides=.*expected 2"),
                ({"pads": (0, 0, -1, 0)}, "pads=.*at least 0"),
                ({"auto_pad": "SAME"}, "auto_pad='SAME'"),
                ({"auto_pad": "VALID", "pads": (1, 0, 0, 0)}, "auto_pad=VALID and pads"),
                ({"dilations": (4, 1)}, "9 elements"),
                ({"dilations": (2**30, 1)}, "windows of"),
            )
        ),
        *(
            (op, [CUBE], {"kernel_shape": shape, **more}, reason)
            for op, shape, more, reason in (
                ("MaxPool", (6,), {}, "6 elements: expected at most 5"),
                ("MaxPool", (2, 2), {}, "N, C"),
                ("MaxPool", (2,), {"pads": (2, 0)}, "pads="),
                ("AveragePool", (2,), {"ceil_mode": 1, "auto_pad": "VALID"}, "ceil_mode"),
            )
        ),
        ("GlobalMaxPool", [CUBE[:, :, :0]], {}, "with elements"),
        ("AveragePool", [WHOLE[None]], {"kernel_shape": (1,)}, "expected floats, got int64"),
        ("ConvTranspose", [IMAGE, FILTERS], {}, "group=1: expected"),
        *(
            ("ConvTranspose", [IMAGE, FILTERS[:4]], more, reason)
            for more, reason in (
                ({"pads": (5, 0, 5, 0)}, "result axes of"),
                ({"strides": (4, 1), "auto_pad": "SAME_UPPER"}, "axis 2: expected at most"),
                ({"output_shape": (11, 7)}, "axis 2: expected at most"),
                ({"output_padding": (-1, 0)}, "output_padding"),
            )
        ),
        ("InstanceNormalization", [CUBE, *[MATRIX[0, :2]] * 2], {}, r"scale: expected \(3,\)"),
        ("GroupNormalization", [CUBE, *COLUMNS], {"num_groups": 2}, "num_groups=2"),
        ("Resize", [IMAGE], {}, "scales and sizes: expected one of them"),
        *(
            ("Resize", [MATRIX, None, floats(*scales)], more, reason)
            for scales, more, reason in (
                *((scales, {}, "expected 2 positive") for scales in ((1, 0), (1, np.inf), (1,))),
                ((1, 2), {"mode": "cubic"}, "mode='cubic'"),
                ((1, 0.5), {"mode": "linear", "antialias": 1}, "antialias"),
                ((1, 1.5), MODES[-1], "round it differently"),
                ((1, 1), {"axes": (0, 0)}, "expected each axis once"),
            )
        ),
        ("Resize", [MATRIX[:, :0], None, None, ints(4, 2)], {}, "has no elements"),
        ("Resize", [WHOLE, None, floats(1, 2)], {"mode": "linear"}, "expected floats"),
        ("Resize", [RAGGED, None, floats(2, 1)], {}, "without LoD"),
        ("DFT", [MATRIX], {}, "expected floats"),
        ("DFT", [SPECTRA], {"onesided": 1}, "expected real numbers"),
        ("DFT", [WAVES], {"onesided": 1, "inverse": 1}, "expected complex numbers"),
        ("DFT", [WAVES, np.int64(0)], {}, "dft_length: expected one integer of at least 1"),
        ("DFT", [SPECTRA, np.int64(4)], {"onesided": 1, "inverse": 1}, "dft_length=4: expected"),
        ("DFT", [WAVES, None, np.int64(2)], {}, "holds complex parts"),
        ("STFT", [WAVES, np.int64(0), WINDOW], {}, "frame_step: expected"),
        ("STFT", [WAVES, np.int64(2), None, np.int64(12)], {}, "frame_length=12: expected 1 to 11"),
        ("STFT", [WAVES, np.int64(2), WINDOW, np.int64(5)], {}, r"window: expected \(5,\)"),
        ("STFT", [SPECTRA, np.int64(2), WINDOW], {}, "expected real numbers"),
        ("BatchNormalization", [CUBE, *[MATRIX[0, :2]] * 4], {}, r"scale: expected \(3,\)"),
        *(
            ("QuantizeLinear", [X, *given], more, reason)
            for given, more, reason in (
                *(([scale], {}, f"scale {scale}") for scale in floats(0, np.nan, np.inf)),
                ([ONE, np.zeros(3, np.uint8)], {}, "the scale's shape"),
                ([ONE, np.int32(0)], {}, "int32"),
                ([ONE, ONE], {}, "float32"),
                ([floats(1, 1)], {}, "expected 3 values, the size of x's axis 1"),
                ([floats(1, 1, 1)], {"axis": 2}, "axis 2"),
                ([np.ones((2, 3), np.float32)], {}, "one per slice"),
            )
        ),
        ("QuantizeLinear", [X * np.nan, ONE], {}, "NaN"),
        (
            "DequantizeLinear",
            [BYTES, ONE, np.int8(0)],
            {},
            "zero point: expected uint8, .*, got int8",
        ),
        ("DequantizeLinear", [BYTES, np.float32(0)], {}, "scale 0.0"),
        ("DequantizeLinear", [X, ONE], {}, "x: expected .*, got float32"),
        ("DequantizeLinear", [BYTES.astype("i4"), ONE, np.int32(1)], {}, "expected 0"),
        ("DynamicQuantizeLinear", [X * np.nan], {}, "NaN or infinity"),
        ("DynamicQuantizeLinear", [X * np.inf], {}, "NaN or infinity"),
        ("DynamicQuantizeLinear", [X.astype("f8")], {}, "expected float32"),
        ("MatMulInteger", [X, BYTES.T], {}, "a: expected .*, got float32"),
        (
            "MatMulInteger",
            [BYTES, BYTES.T, np.int8(0)],
            {},
            "zero point of a: expected uint8, got int8",
        ),
        ("MatMulInteger", [BYTES, BYTES.T, None, BYTES.T[:, :1]], {}, "zero point of b"),
        ("ConvInteger", [BYTES, BYTES], {}, "expected .N, C"),
        (
            "ConvInteger",
            [BYTES[None], BYTES[None], BYTES[0]],
            {},
            "expected one value for all of x",
        ),
        ("ConvInteger", [BYTES[None], X[None]], {}, "w: expected .*, got float32"),
        *(
            (op, [X, np.array(indices), updates], more, reason)
            for op, indices, updates, more, reason in (
                ("ScatterElements", [[2]], X[:1, :1], {}, "index 2: expected"),
                ("ScatterElements", [[-3]], X[:1, :1], {}, "index -3: expected"),
                (
                    "ScatterElements",
                    [[0.0]],
                    X[:1, :1],
                    {},
                    "indices: expected integers, got float64",
                ),
                ("ScatterElements", [[0] * 4], np.ones((1, 4), "f4"), {}, "no larger"),
                ("ScatterElements", [[0]], X, {}, "equal shapes"),
                ("ScatterElements", [[0]], BYTES[:1, :1], {}, "updates: expected .*, got uint8"),
                ("ScatterElements", [[0]], X[:1, :1], {"axis": 2}, "axis 2"),
                ("ScatterElements", [[0]], X[:1, :1], {"reduction": "xor"}, "'xor'"),
                ("ScatterND", [[0, 3]], X[0, :1], {}, "index 3: expected"),
                ("ScatterND", [[0, 0, 0]], X[0, :1], {}, "at most 2"),
                ("ScatterND", 0, X[0, 0], {}, "at most 2"),
                ("ScatterND", [[0]], X[0, :2], {}, r"updates \(2,\): expected \(1, 3\)"),
            )
        ),
        ("TopK", [X, ints(-1)], {}, "-1"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_has_no_right_answer_is_refused(op, values, attributes, reason) -> None:
    with pytest.raises(ShapeError, match=reason):
        run(op, *values, outputs=2 if op == "Split" else OUTPUTS.get(op, 1), **attributes)
