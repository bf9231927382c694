"""Operators of every opset, and ONNX Runtime's own, compute what it computes, or are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from support.onnx_models import check, model, ours, parsed, read, theirs

from onernn import Session, UnsupportedError, convert

RNG = np.random.default_rng(4)
REALS = {
    "x": (2, 3, 5, 4), "one": (1, 3, 1), "waves": (2, 9, 1), "real": (2, 20), "u": (2, 5, 6),
    "v": (2, 5, 6), "bias": (6,), "m": (4, 6), "k": (6, 3), "c": (3,), "image": (1, 4, 7, 8),
    "kernels": (3, 4, 3, 3), "sum": (1, 3, 7, 8), "back": (3, 1, 5, 3),
    "rows": (4, 2, 5), "turned": (5, 2, 3), "leaning": (3, 5, 2), "deep": (2, 3, 4, 5),
    "other": (5, 2, 3, 7),
}  # fmt: skip
ARRAYS = {name: RNG.normal(size=shape).astype("f4") for name, shape in REALS.items()} | {
    **{f"c{k}": RNG.uniform(0.5, 1, 3).astype("f4") for k in range(4)},
    "gamma": RNG.uniform(0.5, 2, 6).astype("f4"),
    "scales": np.array([1, 1, 2, 3], "f4"),
    "halves": np.array([1, 1, 0.5, 2], "f4"),
    "thirds": np.array([1, 1, 0.3, 1], "f4"),
    "sizes": np.array([2, 3, 7, 4]),
    "roi": np.zeros(0, "f4"),
    "axis0": np.array([0]),
    "axis": np.array(-2),
    "step": np.array(2),
    "frame": np.array(4),
}
OWN = [helper.make_opsetid("com.microsoft", 1)]


def case(text: str, opset: int = 17) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A node's model and feed: the first array among its inputs is fed, others are constants."""
    names = [name for name in text.rsplit("(", 1)[1].strip(" )").split(", ") if name]
    fed = {name: ARRAYS[name] for name in names[:1]}
    outputs = [name for name in text.split(" = ")[0].split(", ") if name]
    constants = {name: ARRAYS[name] for name in names if name not in fed}
    return model(text, fed, outputs, opset, constants, opsets=OWN), fed


OLDER = [
    ("y = Upsample <scales = [1.0, 1.0, 2.0, 3.0]> (x)", 7),
    ('y = Upsample <scales = [1.0, 1.0, 2.0, 3.0], mode = "linear"> (x)', 8),
    ("y = Upsample (x, scales)", 9),
    ('y = Upsample <mode = "linear"> (x, scales)', 9),
    ("y = Resize (x, scales)", 10),
    ("y = Resize (x, halves)", 10),
    ('y = Resize <mode = "linear"> (x, halves)', 10),
    ("y = Resize (x, roi, scales)", 11),
    ("y = BatchNormalization <momentum = 0.5> (x, c0, c1, c2, c3)", 7),
    ("y = BatchNormalization (x, c0, c1, c2, c3)", 9),
    ('y = Pad <pads = [0, 0, 1, 2, 0, 0, 0, 1], mode = "reflect"> (x)', 10),
    ("y = MaxPool <kernel_shape = [2, 3], pads = [1, 0, 0, 1]> (x)", 7),
    ("y = MaxPool <kernel_shape = [2, 3], storage_order = 1> (x)", 8),
    ("y = AveragePool <kernel_shape = [2, 3], count_include_pad = 1> (x)", 7),
    ("y = Clip <min = -0.5, max = 0.5> (x)", 7),
    ("y = Clip <max = 0.5> (x)", 10),
    ("y = Softmax (x)", 7),
    ("y = Softmax <axis = 0> (x)", 11),
    ("y = Softmax <axis = -1> (x)", 12),
    ("y = LogSoftmax <axis = 2> (x)", 11),
    ("y = Unsqueeze <axes = [0, 2]> (x)", 7),
    ("y = Unsqueeze <axes = [-1]> (x)", 11),
    ("y = Slice <starts = [1, 0], ends = [9, -1]> (x)", 7),
    ("y = Slice <starts = [1], ends = [3], axes = [2]> (x)", 9),
    ("y, z = Split <axis = 1, split = [1, 2]> (x)", 7),
    ("y, z, w = Split <axis = 1> (x)", 11),
    ("y, z, w = Split <axis = 1> (x)", 13),
    ("y = ReduceSum <axes = [1], keepdims = 0> (x)", 7),
    ("y = ReduceMax <axes = [-1]> (x)", 12),
    ("y = ReduceMean (x)", 17),
    ("y, z = TopK <k = 2, axis = 1> (x)", 7),
    ("y = Pad <pads = [0, 0, 1, 0, 0, 0, 0, 2], value = 1.5> (x)", 7),
    ('y = Pad <pads = [0, 0, 1, 0, 0, 0, 1, 2], mode = "edge"> (x)', 10),
    ("y = Dropout <ratio = 0.3> (x)", 7),
    ("y, z = Dropout (x)", 12),
    ("y = Flatten (x)", 7),
    ("y = ArgMax <axis = 1> (x)", 11),
    ("y = LeakyRelu <alpha = 0.3> (x)", 7),
    ("y = Shape (x)", 13),
    ("y = Transpose (x)", 7),
    ("y = STFT (real, step, , frame)", 17),  # without its last axis, as Kokoro's file has it
]


@pytest.mark.parametrize("text, opset", OLDER)
def test_older_forms_mean_what_they_meant(text: str, opset: int) -> None:
    check(*case(text, opset))


REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"


@pytest.mark.parametrize("name", REDUCTIONS.split())
@pytest.mark.parametrize("backend", ["kernels", "reference"])
def test_a_reduction_over_no_axis_still_computes_its_function(name: str, backend: str) -> None:
    """ONNX: a ReduceSumSquare without axes is a square. So is that of a scalar."""
    for x, attribute in ((ARRAYS["u"], "<noop_with_empty_axes = 1>"), (np.float32(-1.5), "")):
        proto = model(f"y = Reduce{name} {attribute} (x)", {"x": np.asarray(x)}, ["y"], 18)
        (want,) = theirs(proto, {"x": np.asarray(x)})
        (got,) = ours(proto, {"x": np.asarray(x)}, backend=backend)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_layer_normalization_returns_float32_statistics_of_any_dtype(dtype: str) -> None:
    x, scale = ARRAYS["u"].astype(dtype), np.ones(6, dtype)
    proto = model(
        "y, mean, inverse = LayerNormalization (x, s)",
        {"x": x},
        ["y", "mean", "inverse"],
        constants={"s": scale},
    )
    for got, want in zip(ours(proto, {"x": x}), theirs(proto, {"x": x}), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-3 if dtype == "float16" else 1e-5, atol=1e-6)


def test_max_pool_of_no_images_has_no_results() -> None:
    x = np.zeros((0, 3, 4, 5), np.float32)
    proto = model("y, z = MaxPool <kernel_shape = [2, 2]> (x)", {"x": x}, ["y", "z"])
    check(proto, {"x": x})


WINDOWS = "pads = [1, 1, 1, 1], kernel_shape = [3, 3]"
MICROSOFT = [
    "Gelu (u)",
    "BiasGelu (u, bias)",
    "FastGelu (u)",
    "FastGelu (u, bias)",
    "QuickGelu <alpha = 1.5> (u)",
    "SkipLayerNormalization (u, v, gamma)",
    "SkipLayerNormalization <epsilon = 0.1> (u, v, gamma, bias, bias)",
    "FusedMatMul <alpha = 0.5, transB = 1> (u, v)",
    "FusedMatMul <transA = 1> (u, v)",
    "FusedMatMul <transBatchA = 1> (rows, v)",
    "FusedMatMul <transBatchA = 1, transBatchB = 1, alpha = 2.0> (rows, turned)",
    "FusedMatMul <transA = 1, transB = 1, transBatchA = 1, transBatchB = 1> (u, leaning)",
    "FusedMatMul <transBatchB = 1> (deep, other)",
    'FusedGemm <activation = "Relu", beta = 0.5> (m, k, c)',
    'FusedGemm <activation = "LeakyRelu", activation_alpha = 0.3> (m, k)',
    f'FusedConv <{WINDOWS}, activation = "Relu"> (image, kernels, c)',
    f'FusedConv <{WINDOWS}, activation = "Tanh"> (image, kernels, c, sum)',
    f'FusedConv <{WINDOWS}, activation = "Clip", activation_params = [-0.5, 1.0]> (image, kernels)',
    f'FusedConv <{WINDOWS}, activation = "HardSigmoid", activation_params = [0.3, 0.4]>'
    " (image, kernels)",
]


@pytest.mark.parametrize("text", MICROSOFT)
def test_operators_that_stand_for_several_are_as_in_onnx_runtime(text: str) -> None:
    made = "y, , , z" if "epsilon" in text else "y"
    check(*case(f"{made} = com.microsoft.{text}"))


@pytest.mark.parametrize(
    "text, opset, reason",
    [
        (
            "y = com.microsoft.FusedMatMul <transBatchA = 1> (m, k)",
            17,
            "3 axes or more, got 2 axes",
        ),
        ('y = com.microsoft.FusedGemm <activation = "Hardmax"> (m, k)', 17, "'Hardmax'"),
        (
            'y = com.microsoft.FusedGemm <activation = "Relu", activation_alpha = 0.1> (m, k)',
            17,
            "Relu' with alpha",
        ),
        ("y, z = com.microsoft.SkipLayerNormalization (u, v, gamma)", 17, "output 1"),
        ("y = Resize (x, thirds)", 10, "export opset 11"),
        ("y = GroupNormalization <num_groups = 3> (x, c0, c1)", 18, "before opset 21"),
    ],
)
def test_what_operators_do_not_mean_here_is_refused(text: str, opset: int, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        Session(read(case(text, opset)[0]))


WAVES = {"y = DFT <axis = 1> (waves)": 17, "y = DFT <onesided = 1> (waves)": 17}
WRITTEN = {
    'y = Resize <mode = "linear"> (x, , halves)': 20,
    "y = Resize (x, , , sizes)": 20,
    "y = DFT <onesided = 1> (waves, , axis)": 20,
    "y = STFT (waves, step, , frame)": 20,
    "y = ConvTranspose <strides = [2, 2]> (x, back)": 20,
    "y = InstanceNormalization (x, c0, c1)": 20,
}


@pytest.mark.parametrize("text", WAVES | WRITTEN)
def test_what_is_written_is_what_was_read(text: str, tmp_path: Path) -> None:
    built, feed = case(text, (WAVES | WRITTEN)[text])
    graph = read(built)
    (got,) = Session(graph).run(feed).values()
    if text in WAVES:  # an older form has its axis as an attribute
        (want,) = theirs(built, feed)
    else:
        convert(graph, tmp_path / "model.onnx")
        (want,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, feed)
    np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize("text", ["Unsqueeze (x, axis)", "Expand (axis0, step)"])
def test_one_number_is_a_list_where_onnx_runtime_takes_it(text: str) -> None:
    check(*case(f"y = {text}"))


@pytest.mark.parametrize("text", ["<axes = [0]> (one)", "(one, axis0)", "(one)"])
def test_squeeze_takes_axes_in_both_forms_and_none(text: str) -> None:
    check(*case(f"y = Squeeze {text}", 7 if "axes" in text else 13))


RANDOM = {
    "RandomUniformLike (x)": (2, 3),
    "RandomNormalLike <seed = 1.0> (x)": (2, 3),
    "RandomUniform <shape = [2, 3]> ()": (2, 3),
    "RandomNormal <shape = [1, 3]> ()": (1, 3),
    "Bernoulli (p)": (2, 3),
}


@pytest.mark.parametrize("text", RANDOM)
def test_random_numbers_are_refused_with_the_call_that_makes_them_inputs(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call in the message, run as printed, writes a model that takes the numbers."""
    built = parsed(
        f"""(float[2, 3] x) => (float[2, 3] y, float[2, 3] z) {{
        p = Sigmoid (x)
        noise = {text}
        y = Add (x, noise)
        more = RandomNormalLike (x)
        z = Mul (p, more)
        }}"""
    )
    monkeypatch.chdir(tmp_path)
    onnx.save(built, "model.onnx")
    with pytest.raises(
        UnsupportedError, match="values are random.*inference mode, or make"
    ) as refused:
        Session("model.onnx")
    (call,) = {line.partition(": onnx.")[2] for line in str(refused.value).splitlines()[1:]}
    assert call.startswith("utils.extract_model('model.onnx', 'fed.onnx', ['x', 'noise', 'more']")
    eval(f"onnx.{call}", {"onnx": onnx})  # noqa: S307
    x, noise, more = (np.full((2, 3), value, "f4") for value in (0.5, 2, 3))
    got = Session("fed.onnx").run({"x": x, "noise": noise[: RANDOM[text][0]], "more": more})
    np.testing.assert_allclose(got["y"], x + noise)
    np.testing.assert_allclose(got["z"], 3 / (1 + np.exp(-x)), rtol=1e-6)


def test_random_numbers_in_a_body_are_refused() -> None:
    text = """(float[2, 3] x) => (y) {
        n = Constant <value_int = 3> ()
        t = Constant <value = bool {1}> ()
        y = Loop (n, t, x) <body = b (int64 i, bool c, float[2, 3] s) => (bool d, float[2, 3] r) {
            d = Identity (c)
            r = RandomNormalLike (s)
        }>
    }"""
    with pytest.raises(UnsupportedError, match="values are random.*export the model in inference"):
        Session(read(parsed(text)))
