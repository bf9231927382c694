"""The files of a saved model: which they are, and what they hold together."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from onernn.adapters.paddle import messages
from onernn.adapters.paddle.read.pdmodel import parse_program
from onernn.adapters.paddle.read.pir import parse_pir
from onernn.adapters.paddle.read.program import Program, Variable
from onernn.adapters.paddle.read.tensors import read_tensors
from onernn.core.arrays import Array
from onernn.core.budget import loading
from onernn.core.errors import ModelFormatError, UnsupportedError, did_you_mean
from onernn.core.files import inside, only_file

# Kinds of persistable variables that Paddle does not save (is_persistable, io_utils.py).
_NOT_SAVED = (messages.FEED, messages.FETCH, messages.READER, messages.RAW)


class Files(NamedTuple):
    """A model, and its parameters: one combined file, or the folder with a file for each."""

    model: Path
    params: Path


def read_program(path: str | Path, params: str | Path | None = None) -> Program:
    """A model as Paddle saved it: see `find` for what ``path`` and ``params`` may be.

    Raises `ModelFormatError` for files that are not one, `UnsupportedError` for newer ones of PIR.
    """
    files = find(path, params)
    parse = parse_pir if files.model.suffix == ".json" else parse_program
    return parse(_bytes(files.model), files.model, partial(_parameters, files))


def find(path: str | Path, params: str | Path | None = None) -> Files:
    """The files of a model, given by its file, its folder, or its prefix without the suffix.

    Parameters, unless ``params`` names their file or folder: ``NAME.pdiparams`` beside
    ``NAME.pdmodel`` and ``NAME.json`` (of Paddle 3), ``__params__`` or ``params`` beside any other
    name, else one file for each in the model's folder.
    """
    model = _model(Path(path))
    if params is not None:
        if not (os.path.isfile(params) or os.path.isdir(params)):
            raise ModelFormatError("no such file or folder of parameters", params)
        return Files(model, Path(params))
    if model.suffix in (".pdmodel", ".json"):
        combined = [model.with_suffix(".pdiparams")]
    else:
        combined = [model.with_name("__params__"), model.with_name("params")]
    found = only_file(combined, "params")
    if found:
        inside(model.parent, found.name, "the parameters", model)
    return Files(model, found or model.parent)


def combined(files: Files) -> bytes:
    """The parameters of a program as their combined file holds them: sorted, one after another."""
    if files.params.is_file():
        return _bytes(files.params)
    variables = read_program(*files).variables.values()
    names = sorted(v.name for v in variables if v.persistable and v.kind not in _NOT_SAVED)
    return b"".join(_bytes(_file_of(name, files)) for name in names)


def _model(path: Path) -> Path:
    prefix = Path(f"{path}.pdmodel")
    folder = os.path.isdir(path)
    held = [*sorted(path.glob("*.pdmodel")), path / "__model__"] if folder else []
    # A .json is one of Paddle 3's programs only where parameters are beside it.
    pir = [Path(f"{path}.json"), *(sorted(path.glob("*.json")) if folder else [])]
    pir = [file for file in pir if os.path.isfile(file.with_suffix(".pdiparams"))]
    found = path if os.path.isfile(path) else only_file([*held, prefix, *pir], "path")
    if found:
        if found.parent == path:
            inside(path, found.name, "the model", path)
        return found
    if folder:
        raise ModelFormatError(
            f"no model; looked for *.pdmodel, __model__, *.json and {prefix}", path
        )
    if os.path.exists(path):
        raise ModelFormatError("neither a file nor a folder", path)
    beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = did_you_mean(path.name, beside)
    raise ModelFormatError(f"no such file or folder, and no {prefix}{hint}", path)


def _bytes(file: Path) -> bytes:
    try:
        loading().reads(os.stat(file))
        data = file.read_bytes()
    except OSError as error:
        raise ModelFormatError(f"cannot be read: {error.strerror}", file) from error
    if not data:
        raise ModelFormatError("the file is empty, expected a Paddle program", file)
    return data


def _parameters(files: Files, variables: Iterable[Variable]) -> dict[str, Array]:
    saved = {v.name: v for v in variables if v.persistable and v.kind not in _NOT_SAVED}
    for each in saved.values():
        if each.kind != messages.LOD_TENSOR:  # its bytes have another form
            raise UnsupportedError(
                f"{files.model}: variable {each.name!r} of kind {each.kind} is saved with the"
                f" parameters; only tensors (kind {messages.LOD_TENSOR}) are read"
            )
    elements = {name: _elements(saved[name]) for name in sorted(saved)}
    if files.params.is_dir():
        parameters: dict[str, Array] = {}
        for name, count in elements.items():
            parameters |= read_tensors(_file_of(name, files), {name: count})
        return parameters
    return read_tensors(files.params, elements)


def _elements(variable: Variable) -> int | None:
    sizes = [size for size in variable.shape or () if size is not None]
    return math.prod(sizes) if variable.shape and len(sizes) == len(variable.shape) else None


def _file_of(name: str, files: Files) -> Path:
    file = inside(files.params, name, f"parameter {name!r}", files.model)
    if not os.path.isfile(file):
        raise ModelFormatError(
            f"parameter {name!r} has no file in the folder, and there is no combined file;"
            " give the file or folder as params",
            files.params,
        )
    return file
