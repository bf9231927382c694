"""Operators whose form changed mean in older opsets what ONNX Runtime computes there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.onnx_models import check, model, read, theirs

from onernn import Session, UnsupportedError, convert

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (2, 3, 5, 4)).astype(np.float32)
WAVES = RNG.uniform(-1, 1, (2, 9, 1)).astype(np.float32)
FOUR = {f"c{k}": RNG.uniform(0.5, 1, 3).astype(np.float32) for k in range(4)}
SCALES = {"scales": np.array([1, 1, 2, 3], np.float32)}
HALVES = {"scales": np.array([1, 1, 0.5, 2], np.float32)}
OLDER = [
    ("y = Upsample <scales = [1.0, 1.0, 2.0, 3.0]> (x)", 7, {}),
    ('y = Upsample <scales = [1.0, 1.0, 2.0, 3.0], mode = "linear"> (x)', 8, {}),
    ("y = Upsample (x, scales)", 9, SCALES),
    ('y = Upsample <mode = "linear"> (x, scales)', 9, SCALES),
    ("y = Resize (x, scales)", 10, SCALES),
    ("y = Resize (x, scales)", 10, HALVES),
    ('y = Resize <mode = "linear"> (x, scales)', 10, HALVES),
    ("y = Resize (x, roi, scales)", 11, {"roi": np.zeros(0, np.float32), **HALVES}),
    ("y = BatchNormalization <momentum = 0.5> (x, c0, c1, c2, c3)", 7, FOUR),
    ("y = BatchNormalization (x, c0, c1, c2, c3)", 9, FOUR),
    ('y = Pad <pads = [0, 0, 1, 2, 0, 0, 0, 1], mode = "reflect"> (x)', 10, {}),
    ("y = MaxPool <kernel_shape = [2, 3], pads = [1, 0, 0, 1]> (x)", 7, {}),
    ("y = MaxPool <kernel_shape = [2, 3], storage_order = 1> (x)", 8, {}),
    ("y = AveragePool <kernel_shape = [2, 3], count_include_pad = 1> (x)", 7, {}),
    ("y = Clip <min = -0.5, max = 0.5> (x)", 7, {}),
    ("y = Clip <max = 0.5> (x)", 10, {}),
    ("y = Softmax (x)", 7, {}),
    ("y = Softmax <axis = 0> (x)", 11, {}),
    ("y = Softmax <axis = -1> (x)", 12, {}),
    ("y = LogSoftmax <axis = 2> (x)", 11, {}),
    ("y = Unsqueeze <axes = [0, 2]> (x)", 7, {}),
    ("y = Unsqueeze <axes = [-1]> (x)", 11, {}),
    ("y = Slice <starts = [1, 0], ends = [9, -1]> (x)", 7, {}),
    ("y = Slice <starts = [1], ends = [3], axes = [2]> (x)", 9, {}),
    ("y, z = Split <axis = 1, split = [1, 2]> (x)", 7, {}),
    ("y, z, w = Split <axis = 1> (x)", 11, {}),
    ("y, z, w = Split <axis = 1> (x)", 13, {}),
    ("y = ReduceSum <axes = [1], keepdims = 0> (x)", 7, {}),
    ("y = ReduceMax <axes = [-1]> (x)", 12, {}),
    ("y = ReduceMean (x)", 17, {}),
    ("y, z = TopK <k = 2, axis = 1> (x)", 7, {}),
    ("y = Pad <pads = [0, 0, 1, 0, 0, 0, 0, 2], value = 1.5> (x)", 7, {}),
    ('y = Pad <pads = [0, 0, 1, 0, 0, 0, 1, 2], mode = "edge"> (x)', 10, {}),
    ("y = Dropout <ratio = 0.3> (x)", 7, {}),
    ("y, z = Dropout (x)", 12, {}),
    ("y = Flatten (x)", 7, {}),
    ("y = ArgMax <axis = 1> (x)", 11, {}),
    ("y = LeakyRelu <alpha = 0.3> (x)", 7, {}),
    ("y = Shape (x)", 13, {}),
    ("y = Transpose (x)", 7, {}),
]


@pytest.mark.parametrize("node, opset, constants", OLDER)
def test_older_forms_mean_what_they_meant(
    node: str, opset: int, constants: dict[str, np.ndarray]
) -> None:
    outputs = node.partition(" =")[0].split(", ")
    check(model(node, {"x": X}, outputs, opset, constants), {"x": X})


def test_an_older_fourier_transform_has_its_axis_as_an_attribute() -> None:
    for attributes in ("", "<axis = 1>", "<onesided = 1>"):
        proto = model(f"y = DFT {attributes} (x)", {"x": WAVES}, ["y"], 17)
        (want,), (got,) = (
            theirs(proto, {"x": WAVES}),
            Session(read(proto)).run({"x": WAVES}).values(),
        )
        np.testing.assert_allclose(got, want, atol=2e-5)


def test_what_an_older_form_does_not_tell_is_refused() -> None:
    scales = {"scales": np.array([1, 1, 0.3, 1], np.float32)}
    with pytest.raises(UnsupportedError, match="before opset 11 the nearest element is not"):
        Session(read(model("y = Resize (x, scales)", {"x": X}, ["y"], 10, scales)))
    three = {"s": np.ones(3, np.float32)}
    node = "y = GroupNormalization <num_groups = 3> (x, s, s)"
    with pytest.raises(UnsupportedError, match="before opset 21"):
        Session(read(model(node, {"x": X}, ["y"], 18, three)))


@pytest.mark.parametrize(
    "node, constants, x",
    [
        ('y = Resize <mode = "linear"> (x, , scales)', HALVES, X),
        ("y = Resize (x, , , sizes)", {"sizes": np.array([2, 3, 7, 4])}, X),
        ("y = DFT <onesided = 1> (x, , axis)", {"axis": np.array(-2)}, WAVES),
        (
            "y = STFT (x, step, , frame)",
            {"step": np.array(2), "frame": np.array(4)},
            WAVES,
        ),
        ("y = ConvTranspose <strides = [2, 2]> (x, w)", {"w": X[0, :, None, :3].copy()}, X),
        ("y = InstanceNormalization (x, c0, c1)", FOUR, X),
    ],
)
def test_what_is_written_is_what_was_read(
    node: str, constants: dict[str, np.ndarray], x: np.ndarray, tmp_path: Path
) -> None:
    graph = read(model(node, {"x": x}, ["y"], 20, constants))
    convert(graph, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    (got,) = session.run(None, {"x": x})
    (want,) = Session(graph).run({"x": x}).values()
    np.testing.assert_allclose(got, want, atol=2e-5)
