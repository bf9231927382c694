"""Operators whose form changed mean in older opsets what ONNX Runtime computes there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from support.onnx_models import check, model, read, theirs

from onernn import Session, UnsupportedError, convert

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (2, 3, 5, 4)).astype(np.float32)
WAVES = RNG.uniform(-1, 1, (2, 9, 1)).astype(np.float32)
FOUR = {f"c{k}": RNG.uniform(0.5, 1, 3).astype(np.float32) for k in range(4)}
SCALES = {"scales": np.array([1, 1, 2, 3], np.float32)}
HALVES = {"scales": np.array([1, 1, 0.5, 2], np.float32)}
OLDER = [
    ("Upsample", [], {"scales": [1.0, 1.0, 2.0, 3.0]}, {}, 7),
    ("Upsample", [], {"scales": [1.0, 1.0, 2.0, 3.0], "mode": "linear"}, {}, 8),
    ("Upsample", ["scales"], {}, SCALES, 9),
    ("Upsample", ["scales"], {"mode": "linear"}, SCALES, 9),
    ("Resize", ["scales"], {}, SCALES, 10),
    ("Resize", ["scales"], {}, HALVES, 10),
    ("Resize", ["scales"], {"mode": "linear"}, HALVES, 10),
    ("Resize", ["roi", "scales"], {}, {"roi": np.zeros(0, np.float32), **HALVES}, 11),
    ("BatchNormalization", list(FOUR), {"momentum": 0.5}, FOUR, 7),
    ("BatchNormalization", list(FOUR), {}, FOUR, 9),
    ("Pad", [], {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "value": 2.0}, {}, 7),
    ("Pad", [], {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "mode": "reflect"}, {}, 10),
    ("MaxPool", [], {"kernel_shape": [2, 3], "pads": [1, 0, 0, 1]}, {}, 7),
    ("MaxPool", [], {"kernel_shape": [2, 3], "storage_order": 1}, {}, 8),
    ("AveragePool", [], {"kernel_shape": [2, 3], "count_include_pad": 1}, {}, 7),
]


@pytest.mark.parametrize("op, more, attributes, constants, opset", OLDER)
def test_older_forms_mean_what_they_meant(
    op: str, more: list[str], attributes: dict[str, Any], constants: dict[str, Any], opset: int
) -> None:
    node = helper.make_node(op, ["x", *more], ["y"], **attributes)
    check(model([node], {"x": X}, ["y"], opset, constants), {"x": X})


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
    "op, more, attributes, constants, x",
    [
        ("Resize", ["", "scales"], {"mode": "linear"}, HALVES, X),
        ("Resize", ["", "", "sizes"], {}, {"sizes": np.array([2, 3, 7, 4])}, X),
        ("DFT", ["", "axis"], {"onesided": 1}, {"axis": np.array(-2)}, WAVES),
        ("STFT", ["step", "", "frame"], {}, {"step": np.array(2), "frame": np.array(4)}, WAVES),
        ("ConvTranspose", ["w"], {"strides": [2, 2]}, {"w": X[0, :, None, :3].copy()}, X),
        ("InstanceNormalization", ["c0", "c1"], {}, FOUR, X),
    ],
)
def test_what_is_written_is_what_was_read(
    op: str,
    more: list[str],
    attributes: dict[str, Any],
    constants: dict[str, Any],
    x: np.ndarray,
    tmp_path: Path,
) -> None:
    node = helper.make_node(op, ["x", *more], ["y"], **attributes)
    proto = model([node], {"x": x}, ["y"], 20, constants)
    graph = read(proto)
    convert(graph, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    (got,) = session.run(None, {"x": x})
    (want,) = Session(graph).run({"x": x}).values()
    np.testing.assert_allclose(got, want, atol=2e-5)
