"""Inputs of ONNX files that are also initializers: a caller may feed them, as in ONNX Runtime."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from support.arrays import uniform
from support.command_line import onernn
from support.onnx_models import parameters, parsed, quiet

from onernn import ModelFormatError, Session, ShapeError, fuse, load, verify

pytestmark = pytest.mark.usefixtures("built")

ARRAYS = parameters("GRU", 3, 4) | {
    "h": uniform(1, 2, 4, seed=1),
    "p": uniform(4, 5, seed=2),
    "b": uniform(5, seed=3),
    "axis": np.array([1]),
}
FED = {
    "a state": {"h": uniform(1, 2, 4, seed=9)},
    "a factor": {"p": uniform(4, 5, seed=9)},
    "several": {"h": np.zeros((1, 2, 4), "f4"), "b": uniform(5, seed=8), "p": uniform(4, 5)},
    "axes": {"axis": np.array([1])},
    "weights of a layer": {"W": uniform(1, 12, 3, seed=9), "h": uniform(1, 2, 4, seed=7)},
    "float64": {"b": uniform(5, seed=8).astype("f8")},
}
X = uniform(6, 2, 3, seed=4)


def saved(folder: Path, version: int = 8) -> Path:
    model = parsed(
        """(float[?, 2, 3] x, float[1, ?, 4] h, float[4, 5] p, float[5] b, float[1, 12, 3] W,
            int64[1] axis) => (float[?, 2, 5] y) {
        s = GRU <hidden_size = 4> (x, W, R, B, , h)
        t = Squeeze (s, axis)
        m = MatMul (t, p)
        y = Add (m, b)
        }""",
        ARRAYS,
    )
    model.ir_version = version
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def theirs(file: Path, feed: dict[str, np.ndarray]) -> Any:
    session = onnxruntime.InferenceSession(file, quiet())
    floats = {n: a.astype("f4") if a.dtype == np.float64 else a for n, a in feed.items()}
    return session.run(None, floats)[0]


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("fed", FED.values(), ids=FED)
def test_what_has_a_default_may_be_fed(fed: dict[str, Any], backend: str, tmp_path: Path) -> None:
    """A second feed of other numbers is not confused with the first, nor with the default."""
    file = saved(tmp_path)
    session = Session(file, backend=backend)
    assert [value.name for value in session.inputs] == ["x"]
    others = {
        name: array * 0.5 if array.dtype.kind == "f" else array for name, array in fed.items()
    }
    for more in ({}, fed, others, fed, {}):
        feed = {"x": X, **more}
        np.testing.assert_allclose(session.run(feed)["y"], theirs(file, feed), 1e-5, 2e-6)


def test_wrong_arrays_for_defaults_are_refused_by_name(tmp_path: Path) -> None:
    session = Session(saved(tmp_path))
    with pytest.raises(ShapeError, match=r"input p: float32\(4, 5\): got float32 \(4, 6\)"):
        session.run({"x": X, "p": np.ones((4, 6), "f4")})
    with pytest.raises(ShapeError, match=r"input W: float32\(1, 12, 3\): got float32 \(12, 3\)"):
        session.run({"x": X, "W": np.ones((12, 3), "f4")})
    with pytest.raises(ShapeError, match=r"unknown \['R'\]; the model takes x: "):
        session.run({"x": X, "R": ARRAYS["R"]})  # an initializer that is not an input


def test_initializers_of_files_before_version_4_are_constants(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"unknown \['p'\]"):
        Session(saved(tmp_path, version=3)).run({"x": X, "p": ARRAYS["p"]})


def test_a_file_that_changed_feeds_no_defaults(tmp_path: Path) -> None:
    file = saved(tmp_path)
    session = Session(file)
    os.utime(file, (1, 1))
    with pytest.raises(ModelFormatError, match=r"changed since it was loaded.*\['h', 'p'\]"):
        session.run({"x": X, "h": ARRAYS["h"], "p": ARRAYS["p"]})
    assert session.run({"x": X})["y"].shape == (6, 2, 5)


def test_a_graph_that_was_changed_has_no_defaults(tmp_path: Path) -> None:
    """The file says nothing of a model that was made from it."""
    graph = load(saved(tmp_path))
    for model in (fuse(graph).model, pickle.loads(pickle.dumps(graph))):
        with pytest.raises(ShapeError, match=r"unknown \['p'\]"):
            Session(model).run({"x": X, "p": ARRAYS["p"]})


def test_recordings_bring_what_has_a_default(tmp_path: Path) -> None:
    file, fed = saved(tmp_path), {"x": X, **FED["several"]}
    recorded = {f"in__{name}": array for name, array in fed.items()}
    np.savez(tmp_path / "io.npz", **recorded, out__y=theirs(file, fed))
    assert verify(file, tmp_path / "io.npz").passed
    run = onernn("run", file, "--input", tmp_path / "io.npz", "--output", tmp_path / "out.npz")
    assert run.returncode == 0, run.stderr
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_allclose(arrays["out__y"], theirs(file, fed), 1e-5, 2e-6)
