"""Finds the writer for a file: another framework's, from any loaded model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onernn.adapters.declaring import declared
from onernn.adapters.onnx.checking import check_written
from onernn.adapters.onnx.files import narrow_weights, rename, save
from onernn.adapters.onnx.write import OPSET, to_onnx
from onernn.adapters.paddle.write import Place, write_paddle
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph
from onernn.core.guard import guarded
from onernn.fuse_passes import fuse

Progress = Callable[[str, int, int], None]


def write_model(
    model: Graph,
    path: str | Path,
    *,
    opset: int = OPSET,
    output_dtype: str = "float32",
    names: Mapping[str, str] | None = None,
    allow_functions: bool = False,
    place: Place = "cpu",
    fused: bool | None = None,
    inputs: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> None:
    """Writes a model as the kind of file that the suffix of ``path`` names: ``.onnx``, ``.pdmodel``.

    The model is fused before. Of ONNX alone: ``opset``, that of ONNX's operators. ``output_dtype``: in what
    weights of two axes or more are stored, float32, float16 or bfloat16; they are computed with in
    float32. ``names``: new names of inputs and outputs. ``allow_functions``: what ONNX's operators
    cannot say may become a function of the model's own. Of Paddle alone: ``place`` and ``fused``,
    see `adapters.paddle.write.write_paddle`. ``inputs``: a batch that the model runs on, where it
    declares no shapes. ``progress(stage, done, of)`` is called now and then, ``note(text)`` for
    what a user should know.

    An ONNX model is checked before there is a file, see `adapters.onnx.checking`.

    Raises `UnsupportedError` naming what the target cannot say, for an option of another target,
    and for other suffixes.
    """
    path = Path(path)
    if path.suffix not in (".onnx", ".pdmodel"):
        raise UnsupportedError(
            f"{path}: cannot write {path.suffix or 'a file of no suffix'}; .onnx and .pdmodel can be"
        )
    of_onnx = {"opset": opset != OPSET, "names": names, "allow_functions": allow_functions}
    of_onnx["output_dtype"] = output_dtype != "float32"
    of_paddle = {"place": place != "cpu", "fused": fused is not None}
    for name, given in (of_paddle if path.suffix == ".onnx" else of_onnx).items():
        if given:
            raise UnsupportedError(f"{path}: {name} is no option of {path.suffix} files")
    model = fuse(model).model
    if path.suffix == ".pdmodel":
        with guarded(lambda: model.name):
            unplaced = write_paddle(
                model, path, place=place, fused=fused, inputs=inputs, progress=progress
            )
        for refusal in unplaced:
            if note is not None:
                note(f"not placed on oneDNN: {refusal}")
        return
    with guarded(lambda: model.name):
        model = declared(model, inputs)
        written = to_onnx(model, opset=opset, allow_functions=allow_functions, progress=progress)
        narrow_weights(written, output_dtype)
        rename(written, names or {})
        outputs = [model.types[value.name] for value in model.outputs]
        check_written(written, path, outputs, note or (lambda _: None))
    save(written, path)
