"""What TensorFlow's exporter writes, run by ours: the outputs that TensorFlow computed."""

from __future__ import annotations

from pathlib import Path

import pytest

import onernn

pytest.importorskip("tf2onnx", reason="TensorFlow's exporter is a package of its own")
from tests.frameworks.tensorflow_exports import EXPORTS, KERAS3, export  # noqa: E402


@pytest.mark.parametrize("name", [*EXPORTS, *KERAS3])
def test_an_exported_model_gives_what_tensorflow_gave(name: str, tmp_path: Path) -> None:
    export(name, tmp_path)
    assert onernn.verify(onernn.load(tmp_path / "model.onnx"), tmp_path / "io.npz")
