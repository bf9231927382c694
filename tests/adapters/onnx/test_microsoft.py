"""ONNX Runtime's own operators give what ONNX Runtime gives, or are refused."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from support.onnx_models import parsed, quiet, read

from onernn import Session, UnsupportedError

OWN = [helper.make_opsetid("com.microsoft", 1)]
RNG = np.random.default_rng(4)
REALS = {
    "x": RNG.normal(size=(2, 5, 6)).astype("f4"),
    "w": RNG.normal(size=(2, 5, 6)).astype("f4"),
    "bias": RNG.normal(size=6).astype("f4"),
    "gamma": RNG.uniform(0.5, 2, 6).astype("f4"),
    "m": RNG.normal(size=(4, 6)).astype("f4"),
    "v": RNG.normal(size=(6, 3)).astype("f4"),
    "c": RNG.normal(size=3).astype("f4"),
    "image": RNG.normal(size=(1, 4, 7, 8)).astype("f4"),
    "kernels": RNG.normal(size=(3, 4, 3, 3)).astype("f4"),
    "sum": RNG.normal(size=(1, 3, 7, 8)).astype("f4"),
}
BYTES = {
    "a": RNG.integers(0, 256, (2, 3, 4, 5), np.uint8),
    "b": RNG.integers(0, 256, (2, 3, 4, 5), np.uint8),
    "s": np.float32(0.02),
    "t": np.float32(0.05),
    "z": np.uint8(119),
    "o": np.uint8(130),
}
WINDOWS = "pads = [1, 1, 1, 1], kernel_shape = [3, 3]"

EQUAL = [
    "y = com.microsoft.Gelu (x)",
    "y = com.microsoft.BiasGelu (x, bias)",
    "y = com.microsoft.FastGelu (x)",
    "y = com.microsoft.FastGelu (x, bias)",
    "y = com.microsoft.QuickGelu <alpha = 1.5> (x)",
    "y = com.microsoft.SkipLayerNormalization (x, w, gamma)",
    "y, , , z = com.microsoft.SkipLayerNormalization <epsilon = 0.1> (x, w, gamma, bias, bias)",
    "y = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (x, w)",
    "y = com.microsoft.FusedMatMul <transA = 1> (x, w)",
    'y = com.microsoft.FusedGemm <activation = "Relu", beta = 0.5> (m, v, c)',
    'y = com.microsoft.FusedGemm <activation = "LeakyRelu", activation_alpha = 0.3> (m, v)',
    f'y = com.microsoft.FusedConv <{WINDOWS}, activation = "Relu"> (image, kernels, c)',
    f'y = com.microsoft.FusedConv <{WINDOWS}, activation = "Tanh"> (image, kernels, c, sum)',
    f'y = com.microsoft.FusedConv <{WINDOWS}, activation = "Clip", activation_params = [-0.5, 1.0]>'
    " (image, kernels)",
    f'y = com.microsoft.FusedConv <{WINDOWS}, activation = "HardSigmoid",'
    " activation_params = [0.3, 0.4]> (image, kernels)",
]
QUANTIZED = [
    "y = com.microsoft.QLinearAdd (a, s, z, b, t, o, t, z)",
    "y = com.microsoft.QLinearMul (a, s, z, b, t, o, t, z)",
    "y = com.microsoft.QLinearSigmoid (a, t, z, s, o)",
    "y = com.microsoft.QLinearLeakyRelu <alpha = 0.2> (a, t, z, s, o)",
    "y = com.microsoft.QLinearConcat <axis = 1> (s, o, a, t, z, b, s, o)",
    "y = com.microsoft.QLinearGlobalAveragePool (a, s, z, s, o)",
]


def outputs(text: str, arrays: dict[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """What onernn gives, and ONNX Runtime, of a node whose first input is the model's."""
    made, inputs = text.split(" = ")[0], text.rsplit("(", 1)[1].strip(" )").split(", ")
    first = next(name for name in inputs if np.asarray(arrays[name]).ndim)
    sizes = ", ".join(map(str, arrays[first].shape))
    kind = "float" if arrays is REALS else "uint8"
    results = ", ".join(filter(None, (name.strip() for name in made.split(","))))
    constants = {n: np.asarray(arrays[n]) for n in dict.fromkeys(inputs) if n != first}
    graph = f"({kind}[{sizes}] {first}) => ({results}) {{ {text} }}"
    model = parsed(graph, constants, opsets=OWN)
    peer = onnxruntime.InferenceSession(model.SerializeToString(), quiet())
    feed = {first: arrays[first]}
    mine = Session(read(model)).run(feed)
    return list(zip(mine.values(), peer.run(None, feed), strict=True))


@pytest.mark.parametrize("text", EQUAL)
def test_operators_that_stand_for_several_are_as_in_onnx_runtime(text: str) -> None:
    for mine, theirs in outputs(text, REALS):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("text", QUANTIZED)
def test_operators_on_bytes_are_as_in_onnx_runtime(text: str) -> None:
    """A number halfway between two bytes may go the other way: sums are rounded elsewhere."""
    for mine, theirs in outputs(text, BYTES):
        apart = np.abs(mine.astype(int) - theirs.astype(int))
        assert mine.dtype == np.uint8 and len(np.unique(theirs)) > 3
        assert apart.max() <= 1 and (apart > 0).mean() < 0.02


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("y = com.microsoft.FusedMatMul <transBatchA = 1> (x, w)", "transBatchA=1"),
        ('y = com.microsoft.FusedGemm <activation = "Hardmax"> (m, v)', "activation='Hardmax'"),
        (
            'y = com.microsoft.FusedGemm <activation = "Relu", activation_alpha = 0.1> (m, v)',
            "Relu' with alpha",
        ),
        ("y, z = com.microsoft.SkipLayerNormalization (x, w, gamma)", "output 1 is not computed"),
        ("y = com.microsoft.QLinearGlobalAveragePool <channels_last = 1> (a, s, z, s, o)", "=1"),
    ],
)
def test_what_these_operators_do_not_mean_here_is_refused(text: str, reason: str) -> None:
    arrays = REALS | BYTES
    inputs = text.rsplit("(", 1)[1].strip(" )").split(", ")
    made = text.split(" = ")[0]
    model = parsed(
        f"() => ({made}) {{ {text} }}", {n: np.asarray(arrays[n]) for n in inputs}, opsets=OWN
    )
    with pytest.raises(UnsupportedError, match=reason):
        Session(read(model))
