"""The recorded models: what frameworks saved, beside inputs and what they computed from them."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
RECORDED = {
    f"{file.parents[1].name}/{file.parent.name}": file.parent
    for file in sorted(DATA.glob("*/*/io.npz"))
    if file.parents[1].name != "paddle_int8"  # its numbers are those of one CPU
}
"""Folders by ``FRAMEWORK/MODEL``."""


def model_of(folder: Path) -> Path:
    """What `onernn.load` takes: one file, or the folder of several."""
    files = [folder / f"model.{suffix}" for suffix in ("onnx", "pt2", "keras", "h5")]
    return next((file for file in files if file.exists()), folder)
