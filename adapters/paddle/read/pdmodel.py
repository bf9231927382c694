"""Paddle 2's own format, a serialized ProgramDesc, read with protobuf and NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onernn.adapters.paddle import messages
from onernn.adapters.paddle.read.program import Block, Operator, Parameters, Program, Variable
from onernn.core.errors import ModelFormatError

_NOT_READ = "op_callstack"  # where the operator was built: paths of somebody's machine


def parse_program(data: bytes, file: Path, parameters: Parameters) -> Program:
    """A serialized ProgramDesc; ``parameters`` gives the arrays among the variables of all blocks.

    Raises `ModelFormatError` naming the file.
    """
    desc = messages.parse("ProgramDesc", data, file)
    if not desc.blocks:  # any unrelated protobuf may parse, too
        raise ModelFormatError("not a Paddle program: it has no block", file)
    try:
        # Paddle saves the variables of all blocks, each name once.
        blocks = [[_variable(each) for each in block.vars] for block in desc.blocks]
        operators = [tuple(map(_operator, range(len(b.ops)), b.ops)) for b in desc.blocks]
    except _Malformed as error:
        raise ModelFormatError(f"not a Paddle program: {error}", file) from error
    named = [{each.name: each for each in block} for block in blocks]
    return Program(
        file,
        operators[0],
        variables=named[0],
        parameters=parameters([each for block in blocks for each in block]),
        version=desc.version.version,
        blocks=len(blocks),
        inner={at: Block(operators[at], named[at]) for at in range(1, len(blocks))},
    )


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
            dtype = messages.DTYPES.get(tensor.data_type)
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
    if not 0 <= desc.type < len(messages.ATTRIBUTE_FIELDS):
        raise _Malformed(f"attribute {desc.name!r} has the unknown type {desc.type}")
    field = messages.ATTRIBUTE_FIELDS[desc.type]
    value = getattr(desc, field)
    if field == "scalar":
        return _scalar(value)
    if field == "scalars":
        return tuple(map(_scalar, value))
    return value if isinstance(value, bool | int | float | str | bytes) else tuple(value)


def _scalar(desc: Any) -> bool | int | float | complex:
    if desc.type not in messages.SCALAR_FIELDS:
        raise _Malformed(f"a scalar has the unknown type {desc.type}")
    value = getattr(desc, messages.SCALAR_FIELDS[desc.type])
    return complex(value.r, value.i) if desc.type == 4 else value
