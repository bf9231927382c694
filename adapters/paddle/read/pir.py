"""Paddle 3's own format, PIR: a ``.json`` with the program, read with NumPy alone.

Read as the operators of Paddle 2 that mean the same, which the table of rules knows. Format:
paddle/fluid/pir/serialize_deserialize/ of 3.x; names of operands: paddle/phi/ops/yaml/ops.yaml and
op_compat.yaml. Measured with 3.3.1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.paddle import messages
from onernn.adapters.paddle.read.pir_operators import OPERATORS, Meaning
from onernn.adapters.paddle.read.program import Block, Operator, Parameters, Program, Variable
from onernn.core.arrays import Array
from onernn.core.budget import loading
from onernn.core.errors import ModelFormatError, UnsupportedError

VERSIONS = range(1, 5)
"""Of the format; 3.3.1 writes 4. Between them no operator of the table changed its meaning."""
_DTYPES = {
    **{"t_bool": "bool", "t_ui8": "uint8", "t_i8": "int8", "t_i16": "int16", "t_i32": "int32"},
    **{"t_i64": "int64", "t_f16": "float16", "t_bf16": "bfloat16", "t_f32": "float32"},
    **{"t_f64": "float64"},
}
_CODES = {name: code for code, name in messages.DTYPES.items()}
_INERT = ("struct_name", "place", "op_role", "op_dist_attr", "stop_gradient", "persistable")
_NUMBERS = {"NAN": math.nan, "INF": math.inf, "-INF": -math.inf}
_MOST = 2**16  # elements of a constant that is made while reading
_DEEPEST = 32  # blocks inside blocks


def parse_pir(data: bytes, file: Path, parameters: Parameters) -> Program:
    """A program from its JSON; ``parameters`` gives the arrays of the variables that are saved.

    Raises `ModelFormatError` for what is no PIR program, `UnsupportedError` for a newer version.
    """
    loading().parses_json(data)
    try:
        whole = json.loads(data)
        json.dumps(whole, ensure_ascii=False).encode()  # "\\ud800" is JSON, but no text
        base = whole["base_code"]
        if base["magic"] != "pir":
            raise KeyError("magic")
        version = int(base["version"])
        (region,) = whole["program"]["regions"]
        (block,) = region["blocks"]
        operations = list(block["ops"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelFormatError(f"not a PIR program: {_text(error)}", file) from error
    if version not in VERSIONS:
        raise UnsupportedError(
            f"{file}: PIR version {version}; {VERSIONS[0]} to {VERSIONS[-1]} are read"
        )
    reader, at = _Reader(), 0
    try:
        reader.changed = {f"%{number}" for number in _changed(operations, 0)}
        for operation in operations:
            reader.read(operation)
            at += 1
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ModelFormatError(f"operator {at}: malformed: {_text(error)}", file) from error
    arrays = {**reader.constants, **parameters(list(reader.saved.values()))}
    outer, inner = tuple(reader.operators), reader.inner
    return Program(file, outer, reader.variables, arrays, version, 1 + len(inner), inner)


def _text(error: Exception) -> str:
    return f"{type(error).__name__} {error}"[:200]


def _in_place(name: str) -> int | None:
    """Which operand an operator writes its result into; None where it makes a new value."""
    dialect, _, kind = name.partition(".")
    if dialect != "1" or not kind.endswith("_") or kind == "batch_norm_":  # writes statistics
        return None
    return 1 if kind == "assign_out_" else 0


def _changed(operations: Any, depth: int) -> set[int]:
    """The values that operators write into, those of inner blocks among them: no constants."""
    if depth > _DEEPEST:
        raise ValueError(f"blocks inside blocks, deeper than {_DEEPEST}")
    found = set()
    for operation in operations:
        if (at := _in_place(operation["#"])) is not None:
            found.add(int(operation["I"][at]["%"]))
        for region in operation.get("regions", ()):
            for block in region["blocks"]:
                found |= _changed(block["ops"], depth + 1)
    return found


class _Reader:
    """Goes through the operations; values are named by their number, ``%7``, or by a user.

    A value that is written into is one variable, that is assigned again, as in Paddle 2.
    ``changed``: these.
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
            return self._parted(kind, operation, operands)
        attributes = {
            each["N"]: _attribute(each["AT"]) for each in operation["A"] if each["N"] not in _INERT
        }
        if dialect == "1" and kind == "data":
            return self._feed(operation, attributes)
        if dialect == "1" and kind == "fetch":
            return self._fetch(operands[0], attributes)
        outputs = [self._made(each) for each in operation["O"]]
        if name in ("1.while", "1.if"):
            return self._nest(kind, operation, [self._names[at] for at in operands], outputs)
        if (at := _in_place(name)) is not None:
            outputs[0] = [self._names[operands[at]]]
            self._names[int(operation["O"][0]["%"])] = outputs[0][0]
        meaning = OPERATORS.get(kind) or OPERATORS.get(kind.removesuffix("_"))
        if meaning is None or dialect != "1" or operation.get("regions"):
            return self._unknown(name, operands, outputs, attributes)
        if kind in ("full", "full_int_array") and self._constant(outputs[0], attributes):
            return None
        self._known(meaning, [self._operand(at) for at in operands], outputs, attributes)

    def _parameter(self, operation: Mapping[str, Any]) -> None:
        """A: is_distributed, is_parameter, need_clip, name; OA: persistable, ...."""
        name, made = str(operation["A"][3]), operation["O"]
        dtype, sizes = _tensor(made["TT"])
        self._names[int(made["%"])] = name
        kept = bool(operation["OA"][0])
        found = Variable(name, messages.LOD_TENSOR, dtype, sizes, 0, kept)
        self.variables[name] = found
        if kept:
            self.saved[name] = found

    def _feed(self, operation: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        (made,), name = operation["O"], str(attributes["name"])
        self._names[int(made["%"])] = name
        dtype, sizes = _tensor(made["TT"])
        self.variables[name] = Variable(name, messages.LOD_TENSOR, dtype, sizes, 0, False)
        self._add("feed", {"X": ("feed",)}, {"Out": (name,)}, {"col": len(self.operators)})

    def _nest(
        self, kind: str, operation: Mapping[str, Any], operands: list[str], made: list[list[str]]
    ) -> None:
        """A loop or a branch: its blocks have names for what goes in and for what comes out."""
        outputs = {"Out": tuple(name for names in made for name in names)}
        regions = operation["regions"]
        if kind == "if":
            (then, given), (other, other_given) = map(self._block, regions)
            taken = {"true_block": then[0], "false_block": other[0]}
            results = {"then": given, "else": other_given}
            return self._add("if", {"Cond": tuple(operands)}, outputs, {**taken, **results})
        (region,) = regions
        (number, arguments), given = self._block(region)
        inputs = {"Condition": tuple(operands[:1]), "Initial": tuple(operands[1:])}
        inside = {"sub_block": number, "arguments": arguments, "given": given}
        return self._add("while", inputs, outputs, inside)

    def _block(
        self, region: Mapping[str, Any]
    ) -> tuple[tuple[int, tuple[str, ...]], tuple[str, ...]]:
        """The number of a block, its arguments, and what it gives."""
        (block,) = region["blocks"]
        self._blocks += 1
        number, outside = self._blocks, (self.operators, self.variables, dict(self._names))
        self.operators, self.variables = [], {}
        arguments, given = [], tuple[str, ...]()
        for each in block["args"]:  # numbered anew in each block
            name = f"%{int(each['#'])} of block {number}"
            dtype, _ = _tensor(each["TT"])
            self._names[int(each["#"])] = name
            self.variables[name] = Variable(name, messages.LOD_TENSOR, dtype, None, 0, False)
            arguments.append(name)
        for operation in block["ops"]:
            if operation["#"].endswith(".yield"):
                given = tuple(self._names[int(operand["%"])] for operand in operation["I"])
            else:
                self.read(operation)
        self.inner[number] = Block(tuple(self.operators), self.variables)
        self.operators, self.variables, self._names = outside
        return (number, tuple(arguments)), given

    def _fetch(self, operand: int, attributes: Mapping[str, Any]) -> None:
        """Under the name that Paddle's predictor gives it."""
        value, name = self._names[operand], str(attributes["name"])
        found = self.variables[value]
        self.variables[name] = Variable(name, found.kind, found.dtype, found.shape, 0, False)
        self._add("assign", {"X": (value,)}, {"Out": (name,)}, {})
        self._add("fetch", {"X": (name,)}, {"Out": ("fetch",)}, {"col": int(attributes["col"])})

    def _parted(self, kind: str, operation: Mapping[str, Any], operands: list[int]) -> None:
        parts = self._lists[operands[0]]
        if kind == "slice":
            found = {each["N"]: _attribute(each["AT"]) for each in operation["A"]}
            parts = [parts[found["index"]]]
        for made, part in zip(operation["O"], parts, strict=True):
            self._names[int(made["%"])] = part

    def _operand(self, at: int) -> list[str]:
        return self._lists[at] if at in self._lists else [self._names[at]]

    def _made(self, made: Mapping[str, Any]) -> list[str]:
        """The variables of a result, a list of them for a vector; a null type gives none."""
        at, kind = int(made["%"]), made["TT"]
        if kind["#"] == "NULL":
            return []
        several = kind["#"] == "0.t_vec"
        types = kind["D"] if several else [kind]
        names = [f"%{at}.{k}" for k in range(len(types))] if several else [f"%{at}"]
        for name, each in zip(names, types, strict=True):
            dtype, sizes = _tensor(each)
            held = messages.ARRAY if "tensor_array" in each["#"] else messages.LOD_TENSOR
            self.variables[name] = Variable(name, held, dtype, sizes, 0, False)
        if several:
            self._lists[at] = names
        else:
            self._names[at] = names[0]
        return names

    def _constant(self, made: list[str], attributes: Mapping[str, Any]) -> bool:
        value, dtype = attributes["value"], str(attributes["dtype"])
        sizes = attributes.get("shape", (len(value),) if isinstance(value, tuple) else ())
        if dtype not in _CODES or dtype == "bfloat16" or math.prod(sizes) > _MOST:
            return False
        if any(size < 0 for size in sizes):
            raise ValueError(f"a constant of shape {sizes}")
        array = np.asarray(value, np.float64 if isinstance(value, float) else None)
        self.constants[made[0]] = np.broadcast_to(array.astype(dtype), sizes)
        del self.variables[made[0]]  # of no block: each may read it
        return True

    def _known(
        self,
        meaning: Meaning,
        operands: list[list[str]],
        outputs: list[list[str]],
        attributes: Mapping[str, Any],
    ) -> None:
        slots: dict[str, tuple[str, ...]] = {}
        given: dict[str, Any] = dict(meaning.fixed)
        if len(operands) > len(meaning.inputs):
            raise ValueError(f"{len(operands)} operands of {meaning.type}")
        for slot, names in zip(meaning.inputs, operands, strict=False):
            attribute, _, tensor = slot.partition("|")
            if slot == "-":
                continue
            if not attribute.startswith("="):
                slots[slot] = tuple(filter(None, names))
            elif names[0] in self.constants and names[0] not in self.changed and len(names) == 1:
                given[attribute[1:]] = _value(self.constants[names[0]], meaning)
            elif any(names):
                slots[tensor or f"{attribute[1:]} of run time"] = tuple(names)
        for name, value in attributes.items():
            if name in meaning.coded:
                given[meaning.coded[name]] = _CODES.get(str(value), -1)
            elif name not in meaning.dropped:
                given[meaning.renamed.get(name, name)] = value
        made = {
            s: tuple(names) for s, names in zip(meaning.outputs, outputs, strict=False) if names
        }
        self._add(meaning.type, slots, made, given)
        if meaning.widened:
            self._widened(made["Out"][0])

    def _widened(self, name: str) -> None:
        """What Paddle 2 gives as int32 is int64 here: the operator gives it under another name."""
        last = self.operators.pop()
        narrow = f"{name}.int32"
        found = self.variables[name]
        self.variables[narrow] = Variable(narrow, found.kind, "int32", found.shape, 0, False)
        self._add(last.type, last.inputs, {"Out": (narrow,)}, last.attributes)
        codes = {"in_dtype": _CODES["int32"], "out_dtype": _CODES["int64"]}
        self._add("cast", {"X": (narrow,)}, {"Out": (name,)}, codes)

    def _unknown(
        self,
        name: str,
        operands: list[int],
        outputs: list[list[str]],
        attributes: Mapping[str, Any],
    ) -> None:
        inputs = {f"operand {k}": tuple(self._operand(at)) for k, at in enumerate(operands)}
        made = {f"result {k}": tuple(names) for k, names in enumerate(outputs)}
        self._add(name.replace("1.", "pd_op.", 1), inputs, made, attributes)

    def _add(self, type_: str, inputs: Any, outputs: Any, attributes: Mapping[str, Any]) -> None:
        self.operators.append(
            Operator(len(self.operators), type_, inputs, outputs, dict(attributes))
        )


def _value(array: Array, meaning: Meaning) -> Any:
    """A constant operand as an attribute: a list, or the one number."""
    numbers = tuple(array.reshape(-1).tolist())
    return numbers if meaning.lists or array.size != 1 else numbers[0]


def _tensor(kind: Mapping[str, Any]) -> tuple[str | None, tuple[int | None, ...]]:
    """D: dtype, sizes, layout, LoD, offset."""
    dtype, sizes = kind["D"][0]["#"], kind["D"][1]
    if len(sizes) > 9 or any(abs(size) >= 2**56 for size in sizes):
        raise ValueError(f"impossible shape {sizes[:9]}")
    known = tuple(None if size < 0 else int(size) for size in sizes)  # 3.3.1 multiplies by -1
    return _DTYPES.get(dtype.partition(".")[2]), known


def _attribute(found: Mapping[str, Any]) -> Any:
    if "VD" in found:  # a number that JSON has not
        return _NUMBERS[found["VD"]]
    kind, value = found["#"], found.get("D")
    if kind == "0.a_array":
        return tuple(_attribute(each) for each in value or ())
    if kind == "1.a_scalar":
        return value[1] if value else None
    return tuple(value) if isinstance(value, list) else value
