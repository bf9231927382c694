"""Reads Paddle's program and parameter files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.files import (
    ONE_FILE,
    ByteStream,
    Malformed,
    file_bytes,
    name_malformed,
    pairs,
    parse_json,
)
from onernn.adapters.paddle import messages
from onernn.adapters.paddle.operators import OPERATORS, Meaning
from onernn.ir.arrays import Array
from onernn.ir.budget import loading
from onernn.ir.errors import ModelFormatError, UnsupportedError
from onernn.ir.files import check_file, inside, only_file
from onernn.ir.graph import NativeOp
from onernn.ir.records import dataclass


@dataclass(frozen=True)
class Variable:
    """One of a block's variables. ``kind``: its VarType.Type, 7 for a tensor, 13 for a tensor
    array.

    ``dtype``: NumPy's name, or "bfloat16". ``shape``: the sizes, None for a dynamic size. Both are
    None for kinds without them.
    """

    name: str
    kind: int
    dtype: str | None
    shape: tuple[int | None, ...] | None
    lod_depth: int
    persistable: bool


@dataclass(frozen=True, eq=False)
class Operator:
    """One of a block's operators. ``inputs``, ``outputs``: its variables by slot.

    In ``attributes``, lists are tuples, and blocks are their numbers.
    """

    position: int
    type: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, Any]

    @property
    def native(self) -> NativeOp:
        slots = [slot for slot in RESULTS if self.outputs.get(slot)] or self.outputs
        names = (name for slot in slots for name in self.outputs[slot] if name)
        return NativeOp(self.position, self.type, value=next(names, ""))

    @property
    def reads(self) -> list[str]:
        """The variables in all input slots."""
        return [name for names in self.inputs.values() for name in names if name]

    @property
    def writes(self) -> list[str]:
        """The variables in all output slots."""
        return [name for names in self.outputs.values() for name in names if name]


def feed_operators(names: Iterable[str]) -> list[Operator]:
    """Returns the operators that feed these variables."""
    return [
        Operator(-1, "feed", {"X": ("feed",)}, {"Out": (name,)}, {"col": column})
        for column, name in enumerate(names)
    ]


def fetch_operators(names: Iterable[str]) -> list[Operator]:
    """Returns the operators that fetch these variables."""
    return [
        Operator(-1, "fetch", {"X": (name,)}, {"Out": ("fetch",)}, {"col": column})
        for column, name in enumerate(names)
    ]


RESULTS = ("Out", "Hidden", "Output", "Y", "ViterbiPath", "Result")
"""The output slots that hold main results."""
OPERAND, RESULT = "operand 0", "result 0"
"""onernn's names for the first input and output slot of an unknown operator of Paddle 3, whose
slots the file does not name.
"""


@dataclass(frozen=True, eq=False)
class Block:
    """A block that a loop or a branch runs. The block's ``variables`` exist for one iteration."""

    operators: tuple[Operator, ...]
    variables: Mapping[str, Variable]


@dataclass(frozen=True, eq=False)
class Program:
    """The contents of a model's files. Arrays are read-only. bfloat16 parameters are stored as
    float32.

    ``operators`` and ``variables`` belong to block 0. ``inner`` holds the other blocks.
    """

    file: Path
    operators: tuple[Operator, ...]
    variables: Mapping[str, Variable]
    parameters: Mapping[str, Array]
    version: int
    inner: Mapping[int, Block] = field(default_factory=dict)


Parameters = Callable[[Sequence[Variable]], Mapping[str, Array]]
"""A function that returns the arrays of variables by name."""


# Paddle's tensor stream, which is the format of .pdiparams files and of files with one parameter
# each.

# Limits that refuse a hostile length field before it costs time or memory.
_MOST_AXES = 9  # DDim::kMaxRank of Paddle
_MOST_LEVELS = 16  # LoD levels; no real batch has so many
_MOST_DESCRIPTION = 4096  # bytes of a TensorDesc; 9 axes make 101


def read_tensors(file: Path, elements: Mapping[str, int | None]) -> dict[str, Array]:
    """Returns the read-only tensors of a file by name.

    ``elements``: the number of elements of each tensor in the order of the file, None if the
    program does not state it. Each tensor is read into its own aligned array. A memory-mapped file
    would have unaligned tensors, and would change in a running model when the file is saved again.
    """
    with _Stream.open(file) as stream:
        tensors = {name: stream.tensor(name, count) for name, count in elements.items()}
        if stream.left:
            raise stream.error(
                f"expected the end of the file after {len(elements)} parameters, got {stream.left}"
                " bytes; pass the parameters of this program"
            )
    return tensors


class _Stream(ByteStream):
    def tensor(self, name: str, elements: int | None) -> Array:
        """Reads a tensor: u32 0 | LoD, ignored | u32 0 | i32 length, TensorDesc | data."""
        what = f"parameter {name!r}"
        self._version(what)
        start = self.at
        if (levels := self.integer("<Q", what)) > _MOST_LEVELS:
            raise self.error(
                f"{what}: expected at most {_MOST_LEVELS} LoD levels, got {levels}", start
            )
        for level in range(levels):
            start = self.at
            if (length := self.integer("<Q", what)) % 8:
                raise self.error(
                    f"{what}: LoD level {level}: expected a multiple of 8 bytes, got {length}",
                    start,
                )
            self.skip(length, what)
        self._version(what)
        start = self.at
        dims, kind = self._description(what)
        if elements not in (None, math.prod(dims)):
            raise self.error(f"{what}: expected {elements} elements, got {dims}", start)
        array = self.numbers(dims, kind, f"{what}, {kind} {dims}")
        array.flags.writeable = False
        return array

    def _description(self, what: str) -> tuple[tuple[int, ...], str]:
        start = self.at
        length = self.integer("<i", what)
        if not 0 < length <= _MOST_DESCRIPTION:
            raise self.error(
                f"{what}: expected a description of 1 to {_MOST_DESCRIPTION} bytes, got {length}",
                start,
            )
        start = self.at
        desc = messages.parse("TensorDesc", self.take(length, what), Path(self.file), start)
        if desc.data_type not in messages.DTYPES:
            raise self.error(
                f"{what}: expected a data type of {[*messages.DTYPES]}, got {desc.data_type}", start
            )
        dims = self.check_shape(desc.dims, _MOST_AXES, what, start)
        return dims, messages.DTYPES[desc.data_type]

    def _version(self, what: str) -> None:
        start = self.at
        if version := self.integer("<I", what):
            raise self.error(f"{what}: expected tensor version 0, got {version}", start)


# Paddle 2's own format, a serialized ProgramDesc, read with protobuf and NumPy.

_NOT_READ = "op_callstack"  # a stack trace with paths of another machine


def parse_program(data: bytes, file: Path, parameters: Parameters) -> Program:
    """Returns the program of a serialized ProgramDesc. ``parameters`` returns the arrays of
    variables.

    Raises `ModelFormatError`, which names the file.
    """
    desc = messages.parse("ProgramDesc", data, file)
    if not desc.blocks:  # an unrelated protobuf may also parse
        raise ModelFormatError("not a Paddle program: it has no block", file)
    loading().reads_operators(sum(len(block.ops) for block in desc.blocks))
    with name_malformed("not a Paddle program", file):
        # Paddle saves the variables of all blocks, each name once.
        blocks = [[_variable(each) for each in block.vars] for block in desc.blocks]
        operators = [tuple(map(_operator, range(len(b.ops)), b.ops)) for b in desc.blocks]
    named = [{each.name: each for each in block} for block in blocks]
    return Program(
        file,
        operators[0],
        variables=named[0],
        parameters=parameters([each for block in blocks for each in block]),
        version=desc.version.version,
        inner={at: Block(operators[at], named[at]) for at in range(1, len(blocks))},
    )


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes):  # protobuf returns bytes if a string is not UTF-8
        raise Malformed(f"the name {value!r} is not UTF-8")
    return value


def _variable(desc: Any) -> Variable:
    name, kind, dtype, shape, depth = _text(desc.name), desc.type, None, None, 0
    for part in ("selected_rows", "lod_tensor", "tensor_array"):
        if kind.HasField(part):
            description = getattr(kind, part)
            tensor = description if part == "selected_rows" else description.tensor
            depth = 0 if part == "selected_rows" else description.lod_level
            if not 0 <= depth <= _MOST_LEVELS:
                raise Malformed(
                    f"variable {desc.name!r}: expected 0 to {_MOST_LEVELS} LoD levels, got {depth}"
                )
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
        most = len(messages.ATTRIBUTE_FIELDS) - 1
        raise Malformed(f"attribute {desc.name!r}: expected a type of 0 to {most}, got {desc.type}")
    field = messages.ATTRIBUTE_FIELDS[desc.type]
    value = getattr(desc, field)
    if field == "scalar":
        return _scalar(value)
    if field == "scalars":
        return tuple(map(_scalar, value))
    return value if isinstance(value, bool | int | float | str | bytes) else tuple(value)


def _scalar(desc: Any) -> bool | int | float | complex:
    if desc.type not in messages.SCALAR_FIELDS:
        raise Malformed(f"scalar: expected a type of 1 to 4, got {desc.type}")
    value = getattr(desc, messages.SCALAR_FIELDS[desc.type])
    return complex(value.r, value.i) if desc.type == 4 else value


# Paddle 3's own format, PIR: a ``.json`` with the program, read with NumPy alone.
#
# Operators are converted to equivalent operators of Paddle 2, for which there are rules. Sources:
# paddle/fluid/pir/serialize_deserialize/ of 3.x (format), paddle/phi/ops/yaml/ops.yaml and
# op_compat.yaml (operands). Measured with 3.3.1.

VERSIONS = range(1, 5)
"""The supported versions of the format; 3.3.1 writes 4. The operators in `OPERATORS` are the same
in all versions.
"""
_DTYPES = pairs(
    """
    t_bool=bool t_ui8=uint8 t_i8=int8 t_i16=int16 t_i32=int32 t_i64=int64 t_f16=float16
    t_bf16=bfloat16 t_f32=float32 t_f64=float64
    """
)
_INERT = ("struct_name", "place", "op_role", "op_dist_attr", "stop_gradient", "persistable")
_NUMBERS = {"NAN": math.nan, "INF": math.inf, "-INF": -math.inf}
_MOST = 2**16  # elements of a constant that is computed while reading
_DEEPEST = 32  # nested blocks


def parse_pir(data: bytes, file: Path, parameters: Parameters) -> Program:
    """Returns the program of a PIR JSON. ``parameters`` returns the arrays of the saved variables.

    Raises `ModelFormatError` if it is not a PIR program, and `UnsupportedError` for a newer
    version.
    """
    whole = parse_json(data, file, "not a PIR program")
    try:
        base = whole["base_code"]
        if base["magic"] != "pir":
            raise KeyError("magic")
        version = int(base["version"])
        (region,) = whole["program"]["regions"]
        (block,) = region["blocks"]
        operations = block["ops"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelFormatError(f"not a PIR program: {_reason(error)}", file) from error
    if version not in VERSIONS:
        raise UnsupportedError(
            f"{file}: PIR version {version}: expected {VERSIONS[0]} to {VERSIONS[-1]}; save the"
            " model with Paddle 3.3"
        )
    reader, at = _Reader(), 0
    try:
        reader.changed = {f"%{number}" for number in _find_changed(operations, 0)}
        for operation in operations:
            reader.read(operation)
            at += 1
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ModelFormatError(f"operator {at}: malformed: {_reason(error)}", file) from error
    arrays = {**reader.constants, **parameters(list(reader.saved.values()))}
    outer = tuple(reader.operators)
    return Program(file, outer, reader.variables, arrays, version, reader.inner)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__} {error}"[:200]


def _in_place(name: str) -> int | None:
    """Returns the index of the operand that an operator overwrites, None if there is none."""
    dialect, _, kind = name.partition(".")
    # batch_norm_ overwrites only statistics
    if dialect != "1" or not kind.endswith("_") or kind == "batch_norm_":
        return None
    return 1 if kind == "assign_out_" else 0


def _find_changed(operations: Any, depth: int) -> set[int]:
    """Returns the values that operators overwrite, also in inner blocks. Such values are not
    constants. A value is identified by its number in the file.
    """
    if depth > _DEEPEST:
        raise ValueError(f"expected at most {_DEEPEST} blocks inside blocks")
    result = set()
    for operation in operations:
        if (at := _in_place(operation["#"])) is not None:
            result.add(int(operation["I"][at]["%"]))
        for region in operation.get("regions", ()):
            for block in region["blocks"]:
                result |= _find_changed(block["ops"], depth + 1)
    return result


class _Reader:
    """A converter of PIR operations. The name of a value is its number, like ``%7``, or a user's
    name.

    ``changed``: the values that operators overwrite. Each of them becomes one variable, to which
    the operator assigns again, like in Paddle 2.
    """

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self.operators: list[Operator] = []
        self.variables: dict[str, Variable] = {}
        self.saved: dict[str, Variable] = {}
        self.constants: dict[str, Array] = {}
        self.inner: dict[int, Block] = {}
        self._blocks = 0
        self._names: dict[int, str] = {0: ""}
        self._lists: dict[int, list[str]] = {}

    def read(self, operation: Mapping[str, Any]) -> None:
        name = operation["#"]
        if name == "p":
            return self._parameter(operation)
        dialect, _, kind = name.partition(".")
        operands = [int(operand["%"]) for operand in operation["I"]]
        if dialect == "0" and kind == "combine":
            self._lists[int(operation["O"][0]["%"])] = [self._names[at] for at in operands]
            return None
        if dialect == "0" and kind in ("split", "slice") and operands[0] in self._lists:
            return self._part(kind, operation, operands)
        attributes = {
            each["N"]: _pir_attribute(each["AT"])
            for each in operation["A"]
            if each["N"] not in _INERT
        }
        if dialect == "1" and kind == "data":
            return self._feed(operation, attributes)
        if dialect == "1" and kind == "fetch":
            return self._fetch(operands[0], attributes)
        outputs = [self._results(each) for each in operation["O"]]
        if name in ("1.while", "1.if"):
            return self._nest(kind, operation, [self._names[at] for at in operands], outputs)
        if (at := _in_place(name)) is not None:
            outputs[0] = [self._names[operands[at]]]
            self._names[int(operation["O"][0]["%"])] = outputs[0][0]
        meaning = OPERATORS.get(kind) or OPERATORS.get(kind.removesuffix("_"))
        if meaning is None or dialect != "1" or operation.get("regions"):
            return self._add_unknown(name, operands, outputs, attributes)
        if kind in ("full", "full_int_array") and self._constant(outputs[0], attributes):
            return None
        self._add_known(meaning, [self._operand(at) for at in operands], outputs, attributes)

    def _declare(self, name: str, kind: Mapping[str, Any], persistable: bool = False) -> None:
        dtype, sizes = _tensor(kind)
        number = messages.ARRAY if "tensor_array" in kind["#"] else messages.LOD_TENSOR
        self.variables[name] = Variable(name, number, dtype, sizes, 0, persistable)

    def _parameter(self, operation: Mapping[str, Any]) -> None:
        """Reads a parameter. The list ``A`` holds is_distributed, is_parameter, need_clip and the
        name. The list ``OA`` begins with persistable.
        """
        name, result = str(operation["A"][3]), operation["O"]
        self._names[int(result["%"])] = name
        self._declare(name, result["TT"], bool(operation["OA"][0]))
        if self.variables[name].persistable:
            self.saved[name] = self.variables[name]

    def _feed(self, operation: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        (result,), name = operation["O"], str(attributes["name"])
        self._names[int(result["%"])] = name
        self._declare(name, result["TT"])
        self._add("feed", {"X": ("feed",)}, {"Out": (name,)}, {"col": len(self.operators)})

    def _nest(
        self,
        kind: str,
        operation: Mapping[str, Any],
        operands: list[str],
        variables: list[list[str]],
    ) -> None:
        """Reads a loop or a branch. The operation's attributes name the inputs and outputs of its
        blocks.
        """
        outputs = {"Out": tuple(name for names in variables for name in names)}
        regions = operation["regions"]
        if kind == "if":
            (then, then_results), (other, else_results) = map(self._block, regions)
            blocks = {"true_block": then[0], "false_block": other[0]}
            results = {"then": then_results, "otherwise": else_results}
            return self._add("if", {"Cond": tuple(operands)}, outputs, {**blocks, **results})
        (region,) = regions
        (number, arguments), values = self._block(region)
        inputs = {"Condition": tuple(operands[:1]), "Initial": tuple(operands[1:])}
        attributes = {"sub_block": number, "arguments": arguments, "given": values}
        return self._add("while", inputs, outputs, attributes)

    def _block(
        self, region: Mapping[str, Any]
    ) -> tuple[tuple[int, tuple[str, ...]], tuple[str, ...]]:
        """Reads a block. Returns its number, its arguments and its results."""
        (block,) = region["blocks"]
        self._blocks += 1
        number, outside = self._blocks, (self.operators, self.variables, dict(self._names))
        self.operators, self.variables = [], {}
        arguments, results = [], tuple[str, ...]()
        for each in block["args"]:  # numbered anew in each block
            name = f"%{int(each['#'])} of block {number}"
            dtype, _ = _tensor(each["TT"])
            self._names[int(each["#"])] = name
            self.variables[name] = Variable(name, messages.LOD_TENSOR, dtype, None, 0, False)
            arguments.append(name)
        for operation in block["ops"]:
            if operation["#"].endswith(".yield"):
                results = tuple(self._names[int(operand["%"])] for operand in operation["I"])
            else:
                self.read(operation)
        self.inner[number] = Block(tuple(self.operators), self.variables)
        self.operators, self.variables, self._names = outside
        return (number, tuple(arguments)), results

    def _fetch(self, operand: int, attributes: Mapping[str, Any]) -> None:
        """Adds an output with the name that Paddle's predictor uses."""
        value, name = self._names[operand], str(attributes["name"])
        like = self.variables[value]
        self.variables[name] = Variable(name, like.kind, like.dtype, like.shape, 0, False)
        self._add("assign", {"X": (value,)}, {"Out": (name,)}, {})
        self._add("fetch", {"X": (name,)}, {"Out": ("fetch",)}, {"col": int(attributes["col"])})

    def _part(self, kind: str, operation: Mapping[str, Any], operands: list[int]) -> None:
        parts = self._lists[operands[0]]
        if kind == "slice":
            attributes = {each["N"]: _pir_attribute(each["AT"]) for each in operation["A"]}
            parts = [parts[attributes["index"]]]
        for result, part in zip(operation["O"], parts, strict=True):
            self._names[int(result["%"])] = part

    def _operand(self, at: int) -> list[str]:
        return self._lists[at] if at in self._lists else [self._names[at]]

    def _results(self, result: Mapping[str, Any]) -> list[str]:
        """Declares the variables of a result, and returns them: several for a vector, none for a
        null type.
        """
        at, kind = int(result["%"]), result["TT"]
        if kind["#"] == "NULL":
            return []
        several = kind["#"] == "0.t_vec"
        types = kind["D"] if several else [kind]
        names = [f"%{at}.{k}" for k in range(len(types))] if several else [f"%{at}"]
        for name, each in zip(names, types, strict=True):
            self._declare(name, each)
        if several:
            self._lists[at] = names
        else:
            self._names[at] = names[0]
        return names

    def _constant(self, names: list[str], attributes: Mapping[str, Any]) -> bool:
        value, dtype = attributes["value"], messages.DTYPES.get(attributes["dtype"])
        sizes = attributes.get("shape", (len(value),) if isinstance(value, tuple) else ())
        if dtype in (None, "bfloat16") or math.prod(sizes) > _MOST:
            return False
        if any(size < 0 for size in sizes):
            raise ValueError(f"constant: expected sizes of 0 or more, got {sizes}")
        array = np.asarray(value, np.float64 if isinstance(value, float) else None)
        self.constants[names[0]] = np.broadcast_to(array.astype(dtype), sizes)
        del self.variables[names[0]]  # constants belong to no block: each block may read them
        return True

    def _add_known(
        self,
        meaning: Meaning,
        operands: list[list[str]],
        outputs: list[list[str]],
        attributes: Mapping[str, Any],
    ) -> None:
        slots: dict[str, tuple[str, ...]] = {}
        values: dict[str, Any] = dict(meaning.fixed)
        if len(operands) > len(meaning.inputs):
            raise ValueError(
                f"{meaning.type}: expected at most {len(meaning.inputs)} operands, got"
                f" {len(operands)}"
            )
        for slot, names in zip(meaning.inputs, operands, strict=False):
            attribute, _, tensor = slot.partition("|")
            if slot == "-":
                continue
            if not attribute.startswith("="):
                slots[slot] = tuple(filter(None, names))
            elif names[0] in self.constants and names[0] not in self.changed and len(names) == 1:
                numbers = tuple(self.constants[names[0]].reshape(-1).tolist())
                several = meaning.lists or len(numbers) != 1
                values[attribute[1:]] = numbers if several else numbers[0]
            elif any(names):
                slots[tensor or f"{attribute[1:]} of run time"] = tuple(names)
        for name, value in attributes.items():
            if name not in meaning.dropped:
                values[meaning.renamed.get(name, name)] = value
        results = {
            s: tuple(names) for s, names in zip(meaning.outputs, outputs, strict=False) if names
        }
        self._add(meaning.type, slots, results, values)

    def _add_unknown(
        self,
        name: str,
        operands: list[int],
        outputs: list[list[str]],
        attributes: Mapping[str, Any],
    ) -> None:
        inputs = {f"{OPERAND[:-1]}{k}": tuple(self._operand(at)) for k, at in enumerate(operands)}
        results = {f"{RESULT[:-1]}{k}": tuple(names) for k, names in enumerate(outputs)}
        self._add(name.replace("1.", "pd_op.", 1), inputs, results, attributes)

    def _add(self, type_: str, inputs: Any, outputs: Any, attributes: Mapping[str, Any]) -> None:
        self.operators.append(
            Operator(len(self.operators), type_, inputs, outputs, dict(attributes))
        )


def _tensor(kind: Mapping[str, Any]) -> tuple[str | None, tuple[int | None, ...]]:
    """Returns the dtype and the sizes of a type. ``kind["D"]`` holds dtype, sizes, layout, LoD,
    offset.
    """
    dtype, sizes = kind["D"][0]["#"], kind["D"][1]
    if len(sizes) > 9 or any(abs(size) >= 2**56 for size in sizes):
        raise ValueError(f"impossible shape {sizes[:9]}")
    shape = tuple(None if size < 0 else int(size) for size in sizes)  # dynamic: any negative number
    return _DTYPES.get(dtype.partition(".")[2]), shape


def _pir_attribute(entry: Mapping[str, Any]) -> Any:
    if "VD" in entry:  # NaN or infinity
        return _NUMBERS[entry["VD"]]
    kind, value = entry["#"], entry.get("D")
    if kind == "0.a_array":
        return tuple(_pir_attribute(each) for each in value or ())
    if kind == "1.a_scalar":
        return value[1] if value else None
    if kind == "1.a_dtype":
        return messages.CODES.get(str(value), -1)
    return tuple(value) if isinstance(value, list) else value


# Finds and reads the files of a saved model.

# Kinds of persistable variables that Paddle does not save (is_persistable, io_utils.py).
_NOT_SAVED = (messages.FEED, messages.FETCH, messages.READER, messages.RAW)


class Files(NamedTuple):
    """The file of a model, and its parameters: one combined file, or a folder with a file for
    each.
    """

    model: Path
    params: Path


def read_program(path: str | Path, params: str | Path | None = None) -> Program:
    """Returns the program of a saved model. `find` describes ``path`` and ``params``.

    Raises `ModelFormatError` for files that are not a model, and `UnsupportedError` for newer
    versions of PIR.
    """
    files = find(path, params)
    parse = parse_pir if files.model.suffix == ".json" else parse_program
    return parse(_bytes(files.model), files.model, partial(_parameters, files))


def find(path: str | Path, params: str | Path | None = None) -> Files:
    """Returns the files of a model. ``path``: its file, with or without the suffix, or its folder.

    ``params`` may name the file or folder of the parameters. The default is ``NAME.pdiparams`` next
    to ``NAME.pdmodel`` and ``NAME.json`` (of Paddle 3), and ``__params__`` or ``params`` next to
    any other name. If there is no such file, each parameter has its own file in the model's folder.
    """
    model = _model(Path(path))
    if params is not None:
        if not (os.path.isfile(params) or os.path.isdir(params)):
            raise ModelFormatError("no such file or folder; pass the parameters as params", params)
        return Files(model, Path(params))
    if model.suffix in (".pdmodel", ".json"):
        combined = [model.with_suffix(".pdiparams")]
    else:
        combined = [model.with_name("__params__"), model.with_name("params")]
    result = only_file(combined, "params")
    if result:
        inside(model.parent, result.name, "the parameters", model)
    return Files(model, result or model.parent)


def combine(files: Files) -> bytes:
    """Returns the bytes of a combined file of a program's parameters, sorted by name."""
    if files.params.is_file():
        return _bytes(files.params)
    variables = read_program(*files).variables.values()
    names = sorted(v.name for v in variables if v.persistable and v.kind not in _NOT_SAVED)
    return b"".join(_bytes(_file_of(name, files)) for name in names)


def _model(path: Path) -> Path:
    prefix = Path(f"{path}.pdmodel")
    folder = os.path.isdir(path)
    in_folder = [*sorted(path.glob("*.pdmodel")), path / "__model__"] if folder else []
    pir = [Path(f"{path}.json"), *(sorted(path.glob("*.json")) if folder else [])]
    pir = [file for file in pir if _is_pir(file)]
    result = path if os.path.isfile(path) else only_file([*in_folder, prefix, *pir], "path")
    if result:
        if result.parent == path:
            inside(path, result.name, "the model", path)
        return result
    if folder:
        others = (str(file) for file in sorted(path.glob("*.*")) if file.suffix in ONE_FILE)
        advice = next(map("did you mean {!r}?".format, others), "pass the path of the model's file")
        raise ModelFormatError(
            f"no model; looked for *.pdmodel, __model__, *.json and {prefix}; {advice}", path
        )
    if os.path.exists(path):
        check_file(path)
    raise ModelFormatError(f"no such file or folder, and no {prefix}; check the path", path)


def _is_pir(file: Path) -> bool:
    """Returns whether a ``.json`` is a program of Paddle 3: parameters are next to it, or it says
    so.
    """
    if os.path.isfile(file.with_suffix(".pdiparams")):
        return True
    with file.open("rb") if os.path.isfile(file) else BytesIO() as raw:
        return b'"magic":"pir"' in raw.read(64)


def _bytes(file: Path) -> bytes:
    data = file_bytes(file)
    if not data:
        raise ModelFormatError("the file is empty, expected a Paddle program", file)
    return data


def _parameters(files: Files, variables: Iterable[Variable]) -> dict[str, Array]:
    saved = {v.name: v for v in variables if v.persistable and v.kind not in _NOT_SAVED}
    for each in saved.values():
        if each.kind != messages.LOD_TENSOR:  # saved in a different format
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
    sizes = variable.shape
    return math.prod(size or 0 for size in sizes) if sizes and None not in sizes else None


def _file_of(name: str, files: Files) -> Path:
    file = inside(files.params, name, f"parameter {name!r}", files.model)
    if not os.path.isfile(file):
        raise ModelFormatError(
            f"parameter {name!r} has no file in the folder, and there is no combined file;"
            " pass the file or folder as params",
            files.params,
        )
    return file
