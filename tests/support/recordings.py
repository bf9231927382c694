"""The recorded models: what frameworks saved, beside inputs and what they computed from them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from onernn import Graph, fuse, load

DATA = Path(__file__).parents[1] / "data"
MODELS = {
    f"{file.parents[1].name}/{file.parent.name}": file.parent
    for file in sorted(DATA.glob("*/*/io.npz"))
}
"""Folders by ``FRAMEWORK/MODEL``."""
RECORDED = {name: folder for name, folder in MODELS.items() if not name.startswith("paddle_int8/")}
"""Those with numbers of any CPU."""


@cache
def loaded(name: str) -> Graph:
    """From one file, or from the folder of several."""
    files = [MODELS[name] / f"model.{suffix}" for suffix in ("onnx", "pt2", "keras", "h5")]
    return load(next((file for file in files if file.exists()), MODELS[name]))


def off(folder: Path) -> dict[str, np.ndarray]:
    """What is recorded there, but for one number of an output: it is 0.01 too large."""
    with np.load(folder / "io.npz") as recorded:
        arrays = {key: recorded[key].copy() for key in recorded}
    arrays[next(key for key in arrays if key.startswith("out__"))][0, 0] += 0.01
    return arrays


@cache
def fused(name: str) -> Graph:
    return fuse(loaded(name)).model
