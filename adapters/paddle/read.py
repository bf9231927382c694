"""Paddle's saved models, read with protobuf and NumPy: no Paddle needed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from onernn.adapters.paddle import framework
from onernn.adapters.paddle.tensors import read_tensors
from onernn.core.arrays import Array
from onernn.core.budget import loading
from onernn.core.errors import ModelFormatError, UnsupportedError
from onernn.core.files import inside

# Kinds of persistable variables that Paddle does not save (is_persistable in framework/io_utils.py).
_NOT_SAVED = (framework.FEED, framework.FETCH, framework.READER, framework.RAW)
_NOT_READ = "op_callstack"  # where the operator was built: paths of somebody's machine


@dataclass(frozen=True)
class Variable:
    """A variable of block 0. ``kind``: VarType.Type, 7 a tensor; dtype by NumPy's name, or bfloat16.

    Sizes are None where dynamic; dtype and shape are None where the kind has none.
    """

    name: str
    kind: int
    dtype: str | None
    shape: tuple[int | None, ...] | None
    lod_depth: int
    persistable: bool


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of block 0, variables by the names of its slots.

    Attributes are Python values, lists are tuples, a block is its number.
    """

    position: int
    type: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Program:
    """What the files hold. Arrays are read-only, bfloat16 ones are float32 of the same values."""

    file: Path
    operators: tuple[Operator, ...]
    variables: Mapping[str, Variable]
    parameters: Mapping[str, Array]
    version: int
    blocks: int


class Files(NamedTuple):
    """A model, and its parameters: one combined file, or the folder with a file for each."""

    model: Path
    params: Path


def read_program(path: str | Path, params: str | Path | None = None) -> Program:
    """A model as Paddle saved it: see `find` for what ``path`` and ``params`` may be.

    Raises `ModelFormatError` for files that are not one, `UnsupportedError` for newer ones of PIR.
    """
    from onernn.adapters.paddle.pir import parse_pir

    files = find(path, params)
    parse = parse_pir if files.model.suffix == ".json" else parse_program
    return parse(_bytes(files.model), files.model, partial(_parameters, files))


def parse_program(
    data: bytes, file: Path, parameters: Callable[[Sequence[Variable]], Mapping[str, Array]]
) -> Program:
    """A serialized ProgramDesc; ``parameters`` gives the arrays among the variables of all blocks.

    Raises `ModelFormatError` naming the file.
    """
    desc = framework.parse("ProgramDesc", data, file)
    if not desc.blocks:  # any unrelated protobuf may parse, too
        raise ModelFormatError("not a Paddle program: it has no block", file)
    try:
        # Paddle saves the variables of all blocks, each name once.
        blocks = [[_variable(each) for each in block.vars] for block in desc.blocks]
        operators = tuple(_operator(i, each) for i, each in enumerate(desc.blocks[0].ops))
    except _Malformed as error:
        raise ModelFormatError(f"not a Paddle program: {error}", file) from error
    return Program(
        file,
        operators,
        variables={each.name: each for each in blocks[0]},
        parameters=parameters([each for block in blocks for each in block]),
        version=desc.version.version,
        blocks=len(blocks),
    )


def find(path: str | Path, params: str | Path | None = None) -> Files:
    """The files of a model, given by its file, its folder, or its prefix without the suffix.

    Parameters, unless ``params`` names their file or folder: ``NAME.pdiparams`` beside
    ``NAME.pdmodel`` and ``NAME.json`` (of Paddle 3), ``__params__`` or ``params`` beside any other name, else one file for each
    in the model's folder.
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
    found = _only(combined, "params")
    if found:
        inside(model.parent, found.name, "the parameters", model)
    return Files(model, found or model.parent)


def _model(path: Path) -> Path:
    prefix = Path(f"{path}.pdmodel")
    folder = os.path.isdir(path)
    held = [*sorted(path.glob("*.pdmodel")), path / "__model__"] if folder else []
    # A .json is one of Paddle 3's programs only where parameters are beside it.
    pir = [Path(f"{path}.json"), *(sorted(path.glob("*.json")) if folder else [])]
    pir = [file for file in pir if os.path.isfile(file.with_suffix(".pdiparams"))]
    found = path if os.path.isfile(path) else _only([*held, prefix, *pir], "path")
    if found:
        if found.parent == path:
            inside(path, found.name, "the model", path)
        return found
    if folder:
        raise ModelFormatError(
            f"no model; looked for *.pdmodel, __model__, *.json and {prefix}", path
        )
    raise ModelFormatError(f"no such file or folder, and no {prefix}", path)


def _only(candidates: Iterable[Path], argument: str) -> Path | None:
    """The one that is a file, or None."""
    files = [file for file in candidates if os.path.isfile(file)]
    if len(files) > 1:
        names = ", ".join(map(str, files))
        raise ModelFormatError(f"several candidates, give one as {argument}: {names}")
    return files[0] if files else None


def _bytes(file: Path) -> bytes:
    try:
        loading().reads(os.stat(file))
        data = file.read_bytes()
    except OSError as error:
        raise ModelFormatError(f"cannot be read: {error.strerror}", file) from error
    if not data:
        raise ModelFormatError("the file is empty, expected a Paddle program", file)
    return data


class _Malformed(Exception):
    """Parses as protobuf, but cannot be a program."""


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes):  # how protobuf gives a string that is not UTF-8
        raise _Malformed(f"the name {value!r} is not UTF-8")
    return value


def _variable(desc: Any) -> Variable:
    name, kind, dtype, shape, depth = _text(desc.name), desc.type, None, None, 0
    for field in ("selected_rows", "lod_tensor", "tensor_array"):
        if kind.HasField(field):
            held = getattr(kind, field)
            tensor = held if field == "selected_rows" else held.tensor
            depth = 0 if field == "selected_rows" else held.lod_level
            dtype = framework.DTYPES.get(tensor.data_type)
            shape = tuple(None if size < 0 else size for size in tensor.dims)
    return Variable(name, kind.type, dtype, shape, depth, desc.persistable)


def _operator(position: int, desc: Any) -> Operator:
    def slots(variables: Any) -> dict[str, tuple[str, ...]]:
        return {_text(v.parameter): tuple(map(_text, v.arguments)) for v in variables}

    attributes = {
        _text(each.name): _attribute(each) for each in desc.attrs if each.name != _NOT_READ
    }
    return Operator(position, _text(desc.type), slots(desc.inputs), slots(desc.outputs), attributes)


def _attribute(desc: Any) -> Any:
    if not 0 <= desc.type < len(framework.ATTRIBUTE_FIELDS):
        raise _Malformed(f"attribute {desc.name!r} has the unknown type {desc.type}")
    field = framework.ATTRIBUTE_FIELDS[desc.type]
    value = getattr(desc, field)
    if field == "scalar":
        return _scalar(value)
    if field == "scalars":
        return tuple(map(_scalar, value))
    return value if isinstance(value, bool | int | float | str | bytes) else tuple(value)


def _scalar(desc: Any) -> bool | int | float | complex:
    if desc.type not in framework.SCALAR_FIELDS:
        raise _Malformed(f"a scalar has the unknown type {desc.type}")
    value = getattr(desc, framework.SCALAR_FIELDS[desc.type])
    return complex(value.r, value.i) if desc.type == 4 else value


def _parameters(files: Files, variables: Iterable[Variable]) -> dict[str, Array]:
    saved = {v.name: v for v in variables if v.persistable and v.kind not in _NOT_SAVED}
    for each in saved.values():
        if each.kind != framework.LOD_TENSOR:  # its bytes have another form
            raise UnsupportedError(
                f"{files.model}: variable {each.name!r} of kind {each.kind} is saved with the"
                f" parameters; only tensors (kind {framework.LOD_TENSOR}) are read"
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
