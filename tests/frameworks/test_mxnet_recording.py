"""NDArrays of a real MXNet in recordings."""

from __future__ import annotations

from pathlib import Path

import mxnet as mx
import numpy as np

from onernn import recording


def test_arrays_are_recorded(tmp_path: Path) -> None:
    found = mx.nd.arange(6).reshape((2, 3))
    recording.save(tmp_path / "io.npz", {"x": found}, {"y": found + 1})
    with np.load(tmp_path / "io.npz") as arrays:
        np.testing.assert_array_equal(arrays["in__x"], np.arange(6).reshape(2, 3))
        np.testing.assert_array_equal(arrays["out__y"], np.arange(6).reshape(2, 3) + 1)
