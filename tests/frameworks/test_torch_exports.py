"""What PyTorch's exporters write, run by ours: the outputs that PyTorch computed."""

from __future__ import annotations

from pathlib import Path

import pytest

import onernn

pytest.importorskip("onnxscript", reason="torch's exporter wants onnxscript")
from tests.frameworks.torch_exports import EXPORTS, export  # noqa: E402


@pytest.mark.parametrize("name", EXPORTS)
def test_an_exported_model_gives_what_pytorch_gave(name: str, tmp_path: Path) -> None:
    export(name, tmp_path)
    assert onernn.verify(onernn.load(tmp_path / "model.onnx"), tmp_path / "io.npz")
