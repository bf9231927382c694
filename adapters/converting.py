"""Writes any loaded model as a file of a framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onernn.adapters.common.adapter import Writer
from onernn.adapters.common.writing import Progress
from onernn.adapters.registry import WRITERS
from onernn.fuse_passes import fuse
from onernn.ir.errors import UnsupportedError, did_you_mean, guard
from onernn.ir.graph import Graph
from onernn.ir.ragged import Batch


def write_model(
    model: Graph,
    path: str | Path,
    *,
    inputs: Mapping[str, Batch] | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    **options: Any,
) -> None:
    """Writes a model as the kind of file that the suffix of ``path`` names: .onnx, .pdmodel.

    The model is fused first. ``inputs``: a batch for the model, used if the model declares no
    shapes. ``progress(stage, done, of)`` is called repeatedly during the writing; ``note(text)`` is
    called with each remark for the user. ``options``: for ONNX see
    `adapters.onnx.write.write_onnx`, for Paddle see `adapters.paddle.write.write_paddle`.

    Raises `UnsupportedError` for an unknown suffix, for an option of a different format, and for a
    model that the format cannot express; the message names the obstacle.
    """
    path = Path(path)
    writer = writer_for(path)
    foreign = {name: value for each in WRITERS.values() for name, value in each.options.items()}
    for name, value in options.items():
        if name not in foreign:
            raise TypeError(f"{name!r} is no option; there are {', '.join(foreign)}")
        if name not in writer.options and value not in (None, foreign[name]):
            raise UnsupportedError(f"{path}: {name} is no option of {path.suffix} files")
    chosen = {name: options.get(name, default) for name, default in writer.options.items()}
    model = fuse(model).model
    with guard(lambda: model.name):
        tell = note or (lambda _: None)
        writer.write(model, path, inputs=inputs, progress=progress, note=tell, **chosen)


def writer_for(path: Path) -> Writer:
    """Returns the `Writer` of the framework whose files have this suffix. Raises `UnsupportedError`
    for other suffixes.
    """
    if path.suffix not in WRITERS:
        kind, known = path.suffix or "a file of no suffix", " and ".join(WRITERS)
        hint = did_you_mean(path.suffix, WRITERS)
        raise UnsupportedError(f"{path}: cannot write {kind}; {known} can be{hint}")
    return WRITERS[path.suffix]
