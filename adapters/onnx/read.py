"""Reads ONNX files: protobuf messages, tensors and models."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.common.files import (
    ByteStream,
    Schema,
    count_of,
    find_stored_dtype,
    numbers_of,
    open_budgeted,
    read_all,
)
from onernn.adapters.common.native import NativeGraph, NativeNode, sort_positions
from onernn.ir.arrays import Array
from onernn.ir.budget import FileBudget, loading, text_size
from onernn.ir.errors import ModelFormatError, UnsupportedError
from onernn.ir.files import ARRAY, check_file, inside
from onernn.ir.graph import NativeOp
from onernn.ir.records import cached_property, dataclass

# The messages of a ModelProto, with the field numbers of onnx 1.19's onnx/onnx.proto. Fields that
# no reader needs are left out (training, quantization, devices, documentation). Packed floats are
# declared as bytes, because protobuf would make a Python object of each float. Old writers may have
# written unpacked floats; UnpackedTensor declares these.
SCHEMA = """
ModelProto:         optional int64 ir_version = 1; optional string producer_name = 2;
                    optional string producer_version = 3; optional GraphProto graph = 7;
                    repeated OperatorSetId opset_import = 8;
                    repeated StringStringEntry metadata_props = 14;
                    repeated FunctionProto functions = 25
OperatorSetId:      optional string domain = 1; optional int64 version = 2
FunctionProto:      optional string name = 1; repeated string input = 4;
                    repeated string output = 5; repeated string attribute = 6;
                    repeated NodeProto node = 7; repeated OperatorSetId opset_import = 9;
                    optional string domain = 10; repeated AttributeProto attribute_proto = 11;
                    optional string overload = 13
GraphProto:         repeated NodeProto node = 1; optional string name = 2;
                    repeated TensorProto initializer = 5; repeated ValueInfoProto input = 11;
                    repeated ValueInfoProto output = 12; repeated ValueInfoProto value_info = 13;
                    repeated SparseTensorProto sparse_initializer = 15
NodeProto:          repeated string input = 1; repeated string output = 2;
                    optional string name = 3; optional string op_type = 4;
                    repeated AttributeProto attribute = 5; optional string domain = 7;
                    optional string overload = 8
AttributeProto:     optional string name = 1; optional float f = 2; optional int64 i = 3;
                    optional bytes s = 4; optional TensorProto t = 5; optional GraphProto g = 6;
                    repeated float floats = 7; repeated int64 ints = 8; repeated bytes strings = 9;
                    optional int32 type = 20; optional string ref_attr_name = 21
ValueInfoProto:     optional string name = 1; optional TypeProto type = 2
TypeProto:          optional TensorType tensor_type = 1; optional Other sequence_type = 4;
                    optional Other map_type = 5; optional Other opaque_type = 7;
                    optional Other sparse_tensor_type = 8; optional Other optional_type = 9
TensorType:         optional int32 elem_type = 1; optional TensorShapeProto shape = 2
Other:              optional int32 elem_type = 1
TensorShapeProto:   repeated Dimension dim = 1
Dimension:          optional int64 dim_value = 1; optional string dim_param = 2
TensorProto:        repeated int64 dims = 1; optional int32 data_type = 2;
                    optional Other segment = 3; repeated bytes float_data = 4;
                    repeated int32 int32_data = 5; repeated bytes string_data = 6;
                    repeated int64 int64_data = 7; optional string name = 8;
                    optional bytes raw_data = 9; repeated bytes double_data = 10;
                    repeated uint64 uint64_data = 11; repeated StringStringEntry external_data = 13;
                    optional int32 data_location = 14
UnpackedTensor:     repeated float float_data = 4; repeated double double_data = 10
SparseTensorProto:  optional TensorProto values = 1
StringStringEntry:  optional string key = 1; optional string value = 2
"""

MESSAGES = Schema("ONNX", SCHEMA)

# AttributeProto.AttributeType -> the field that holds the value. Other types are not read.
ATTRIBUTE_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings"}

# TensorProto.DataType -> NumPy's name of the dtype (DTYPES), and the field of a TensorProto that
# may hold the values (NUMBER_FIELDS). NumPy has no bfloat16, so these values are read as float32.
DTYPES = {
    **{1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64"},
    **{9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16"},
}
OTHER_DTYPES = {
    **{8: "string", 14: "complex64", 15: "complex128", 17: "float8e4m3fn", 18: "float8e4m3fnuz"},
    **{19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4e2m1"},
    **{24: "float8e8m0", 25: "uint2", 26: "int2", 27: "float6e2m3", 28: "float6e3m2"},
}
NUMBER_FIELDS = {
    **dict.fromkeys((2, 3, 4, 5, 6, 9, 10, 16), "int32_data"),
    **{1: "float_data", 7: "int64_data", 11: "double_data", 12: "uint64_data", 13: "uint64_data"},
}
BFLOAT16 = 16
BFLOAT16_NOTE = "bfloat16 values are computed in float32, and rounded by the model's casts"
NUMBERS = {name: number for number, name in DTYPES.items()}
"""The number of each dtype in ONNX, by NumPy's name."""


RECURRENT = ("RNN", "GRU", "LSTM")
PARAMETERS = (1, 2, 3, 7)
"""The positions of the inputs W, R, B and P of recurrent operators."""


def graphs(graph: Any) -> Iterator[Any]:
    """Yields a GraphProto and the graphs in its nodes' attributes, at any depth."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from graphs(body)


def bodies(node: Any) -> list[Any]:
    """Returns the graphs in the attributes of a node."""
    return [each.g for each in node.attribute if each.HasField("g")]


def names_in(model: Any) -> set[str]:
    """Returns the names of all values of a model, including values in bodies."""
    names = {""}
    for graph in graphs(model.graph):
        names.update(each.name for each in (*graph.input, *graph.output, *graph.initializer))
        names.update(name for node in graph.node for name in node.output)
    return names


def native_graph(graph: Any) -> NativeGraph:
    """Returns a GraphProto as a `NativeGraph`, in which initializers are operators and come first.

    Initializers that are also inputs are never pruned.
    """
    made = [NativeNode("", frozenset(), frozenset([each.name])) for each in graph.initializer]
    made += map(native_node, graph.node)
    inputs = [value.name for value in graph.input]
    local = {*inputs}.union(*(each.writes for each in made))
    return NativeGraph(made, local, [*inputs, *(value.name for value in graph.output)])


def native_node(node: Any) -> NativeNode:
    reads, writes = (frozenset(filter(None, names)) for names in (node.input, node.output))
    kind = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
    return NativeNode(kind, reads, writes, tuple(map(native_graph, bodies(node))))


CLASH = "values of one branch, and outer values in the other: expected different names"


def clashes(bodies: Sequence[NativeGraph]) -> list[str]:
    """Returns the names of values of one body that another body of the same node reads as outer
    values. ONNX Runtime then passes the outer values to both bodies.
    """
    return sorted(
        {name for own in bodies for other in bodies for name in own.local & other.outer_reads}
    )


def overridable(model: Any) -> set[str]:
    """Returns the names of the initializers that callers may override.

    Before version 4 of the format, all initializers were also inputs, but they count as constants.
    """
    names = {each.name for each in model.graph.initializer} if model.ir_version >= 4 else set()
    return {value.name for value in model.graph.input if value.name in names}


SMALL = 1024
"""The largest number of elements of a constant whose values may determine types, such as a
shape.
"""


def without_values(model: Any) -> Any:
    """Returns a copy of a ModelProto in which large constants are inputs; the types of values stay
    the same.
    """
    out, inputs = type(model)(ir_version=model.ir_version), {v.name for v in model.graph.input}
    out.opset_import.extend(model.opset_import)
    out.functions.extend(model.functions)
    out.graph.name = "types"
    for part in ("node", "input", "output", "value_info"):
        getattr(out.graph, part).extend(getattr(model.graph, part))
    variable = overridable(model)
    for each in model.graph.initializer:
        if each.name not in variable and prod(each.dims) <= SMALL:
            out.graph.initializer.append(each)
        elif each.name not in inputs:
            shape = {"dim": [{"dim_value": size} for size in each.dims]}
            kind = {"tensor_type": {"elem_type": each.data_type, "shape": shape}}
            out.graph.input.add(name=each.name, type=kind)
    return out


# ONNX's tensors as NumPy arrays, including tensors in other files of the model.

_MOST_AXES = 32  # NumPy 1's limit of axes


class ExternalData:
    """The reader of a model's other files, which contain external data of tensors.

    Files are read, not mapped, because mapped memory would change or disappear if a file were saved
    again. Paths out of the model's folder, also through links, are refused. Tensors with the same
    offset and length share one array. Apart from such tensors, the lengths in one file may add up
    to at most the file's size, so that a small file cannot fill the memory.
    """

    def __init__(self, model: Path, budget: FileBudget) -> None:
        self.model, self.budget, self._folder = model, budget, model.parent
        self._regions: dict[tuple[Path, int, int], Array] = {}
        self._arrays: dict[tuple[int, str], Array] = {}
        self._read: dict[Path, int] = {}

    def array(self, what: str, entries: Any, kind: str, size: int) -> Array:
        """Returns the elements of a tensor of ``size`` bytes; ``entries`` name its file and
        offset.
        """
        data = self.bytes_of(what, entries, size)
        key = (id(data), kind)  # self._regions keeps data, so no other array gets its id
        if key not in self._arrays:
            self._arrays[key] = _from_bytes(data, kind, self.budget, what)
        return self._arrays[key]

    def bytes_of(self, what: str, entries: Any, expected: int) -> Array:
        """Returns ``expected`` bytes from the file and offset that ``entries`` name.

        Raises `ModelFormatError` that names the tensor ``what``, or the file.
        """
        result = {entry.key: entry.value for entry in entries}
        file = inside(self._folder, result.get("location", ""), what, self.model)
        check_file(file)
        numbers = [result.get("offset", "0"), result.get("length", str(expected))]
        if not all(text.isascii() and text.isdigit() and len(text) < 20 for text in numbers):
            raise ModelFormatError(
                f"{what}: expected integers as offset and length in {file}, got {numbers}",
                self.model,
            )
        offset, length = map(int, numbers)
        if length != expected:
            raise ModelFormatError(
                f"{what}: expected {expected} bytes, got a declared length of {length}", self.model
            )
        key = (file, offset, length)
        if key not in self._regions:
            self._regions[key] = self._region(what, *key)
        return self._regions[key]

    def _region(self, what: str, file: Path, offset: int, length: int) -> Array:
        try:
            with file.open("rb") as raw:
                status = os.fstat(raw.fileno())
                self.budget.reads(status)
                stream = ByteStream(raw, file, status.st_size, self.budget)
                stream.skip(offset, what)
                self._read[file] = self._read.get(file, 0) + length
                if self._read[file] > stream.size:
                    raise stream.error(f"{what}: it overlaps with other tensors", offset)
                data = stream.numbers((length,), "uint8", what)
        except OSError as error:
            raise ModelFormatError(f"cannot be read: {error.strerror}", file) from error
        data.flags.writeable = False
        return data


def dtype_of(number: int) -> str:
    """Returns NumPy's name of a TensorProto.DataType, or "bfloat16"."""
    if number not in DTYPES:
        name = OTHER_DTYPES.get(number, number)
        raise UnsupportedError(
            f"dtype {name} is not supported: expected bool, floats of 16 to 64 bits, or integers of"
            " 8 to 64 bits"
        )
    return DTYPES[number]


def array_of(tensor: Any, what: str, external: ExternalData) -> Array:
    """Returns the read-only array of a TensorProto; bfloat16 becomes float32.

    Raises `ModelFormatError` if values and shape contradict each other, `UnsupportedError`
    for dtypes that NumPy does not have.
    """
    kind, dims = dtype_of(tensor.data_type), tuple(tensor.dims)
    count = count_of(dims, _MOST_AXES)
    if count is None:
        expected = f"expected at most {_MOST_AXES} sizes of 0 or more, got shape {dims}"
        raise ModelFormatError(f"{what}: {expected}", external.model)
    if tensor.HasField("segment"):
        raise UnsupportedError("tensors in segments are not supported: expected all data in one")
    size, budget = find_stored_dtype(kind).itemsize, external.budget
    budget.take(ARRAY, what)
    flat: Array | None = None
    if tensor.data_location == 1:
        flat = external.array(what, tensor.external_data, kind, count * size)
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data  # protobuf returns a copy
        budget.take(len(raw), what)
        if len(raw) == count * size:
            flat = _from_bytes(raw, kind, budget, what)
    elif (field := NUMBER_FIELDS[tensor.data_type]) in ("float_data", "double_data"):
        flat = _floats(tensor, field, kind, what, external)
    elif len(numbers := getattr(tensor, field)) == count:
        flat = _from_numbers(numbers, kind, budget, what)
    if flat is None or flat.size != count:
        raise ModelFormatError(
            f"{what}: expected data for {kind} {dims}, got a different number of elements",
            external.model,
        )
    flat.flags.writeable = False
    return flat.reshape(dims)


def _from_bytes(data: bytes | Array, kind: str, budget: FileBudget, what: str) -> Array:
    flat = np.frombuffer(data, find_stored_dtype(kind))
    return numbers_of(flat.astype(flat.dtype.newbyteorder("="), copy=False), kind, budget, what)


def _floats(tensor: Any, field: str, kind: str, what: str, external: ExternalData) -> Array | None:
    """Returns the floats of a field that the schema declares as bytes; None if the last float is
    incomplete.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet

    pieces = getattr(tensor, field)
    external.budget.take(sum(map(len, pieces)), what)
    packed = b"".join(pieces)
    number = tensor.DESCRIPTOR.fields_by_name[field].number
    others: Any = UnknownFieldSet(tensor)
    if any(each.field_number == number for each in others):
        if packed:  # the order of both kinds is unknown
            problem = f"{what}: expected values that are all packed or all unpacked, got both"
            raise ModelFormatError(problem, external.model)
        unpacked = MESSAGES.message("UnpackedTensor").FromString(tensor.SerializeToString())
        numbers = getattr(unpacked, field)
        external.budget.take(8 * len(numbers), what)
        return np.fromiter(numbers, kind, len(numbers))
    if len(packed) % find_stored_dtype(kind).itemsize:
        return None
    return _from_bytes(packed, kind, external.budget, what)


def _from_numbers(numbers: Any, kind: str, budget: FileBudget, what: str) -> Array | None:
    """Returns integers as an array of dtype ``kind``, None if one does not fit. float16 and
    bfloat16 values are given as the integers of their bits.
    """
    wider = {"int64": np.int64, "uint32": np.uint64, "uint64": np.uint64}
    field = np.dtype(wider.get(kind, np.int32))
    narrow = np.dtype("uint16" if kind in ("bfloat16", "float16") else kind)
    count = len(numbers)
    budget.take(narrow.itemsize * count, what)
    with budget.lent((field.itemsize + 1) * count, what):
        wide = np.fromiter(numbers, field, count)
        if kind == "bool":
            return wide != 0
        flat = wide.astype(narrow, copy=False)
        if not np.array_equal(flat, wide):
            return None
        del wide
    return flat.view(kind) if kind == "float16" else numbers_of(flat, kind, budget, what)


# ONNX's saved models, read with protobuf and NumPy, without the onnx package.

IR_VERSIONS = range(3, 15)
OPSETS = range(7, 29)
"""The opsets that onernn reads. A later opset may change what an operator computes."""
_NAMELESS = ("", "?", "*", "-1", "None")
"""The texts that writers use instead of a name for an unknown size."""
_VALUE, _NUMBER = 1000, 40
"""The bytes of memory for a declared value, and for a number in a list. In the file, each may take
only two bytes.
"""


@dataclass(frozen=True)
class Variable:
    """A value that the model declares.

    ``dtype``: NumPy's name or "bfloat16". ``shape``: its dynamic sizes are None. ``names``: the
    model's names of dynamic sizes, "" for other sizes; () if the model names none. ``refusal``: the
    reason why onernn does not support the value's type, "" if it does.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    names: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True)
class Reference:
    """The value of an attribute inside a function: the call's attribute ``name`` supplies it."""

    name: str


@dataclass(frozen=True)
class Unread:
    """The value of an attribute that onernn cannot read, with the reason."""

    reason: str


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of a model.

    ``inputs``, ``outputs``: names, "" if absent. ``attributes``: Python values (tuples for lists),
    arrays, `Subgraph`, `Reference` or `Unread`. ``overload``: selects one of several functions that
    have the same domain and name.
    """

    position: int
    domain: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    name: str = ""
    overload: str = ""

    @cached_property
    def native(self) -> NativeOp:
        value = next(filter(None, self.outputs), "")
        return NativeOp(self.position, self.type, self.name, value)

    @property
    def bodies(self) -> list[Subgraph]:
        return [value for value in self.attributes.values() if isinstance(value, Subgraph)]

    @cached_property
    def node(self) -> NativeNode:
        reads, writes = frozenset(filter(None, self.inputs)), frozenset(filter(None, self.outputs))
        return NativeNode(self.type, reads, writes, tuple(body.native for body in self.bodies))


def in_order(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Returns the operators, sorted so that each comes after the operators whose results it reads.

    Apart from this, the order of the file is kept. Tools such as quantize_dynamic write unsorted
    operators, and ONNX Runtime sorts them. Operators in a cycle come last; they cannot run.
    """
    makers = {name: at for at, op in enumerate(operators) for name in op.outputs if name}
    needs = {
        at: {makers[name] for name in op.node.all_reads if name in makers}
        for at, op in enumerate(operators)
    }
    return tuple(operators[at] for at in sort_positions(needs))


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A graph with its constants.

    ``unread``: the reason for each constant that onernn cannot read. ``inner``: the values between
    operators for which the model names a size.
    """

    operators: tuple[Operator, ...]
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    constants: Mapping[str, Array]
    unread: Mapping[str, str]
    inner: tuple[Variable, ...] = ()

    @cached_property
    def makers(self) -> dict[str, Operator]:
        """The operators by the names of their outputs."""
        return {name: op for op in self.operators for name in op.outputs if name}

    @cached_property
    def native(self) -> NativeGraph:
        local = {*(v.name for v in self.inputs), *self.constants, *self.unread, *self.makers}
        nodes = (op.node for op in self.operators)
        return NativeGraph(nodes, local, (v.name for v in self.outputs))

    def everywhere(self) -> Iterator[tuple[Subgraph, Operator]]:
        """Yields each operator, including operators in bodies, after the graph that contains it."""
        for op in self.operators:
            yield self, op
            for body in op.bodies:
                yield from body.everywhere()


@dataclass(frozen=True, eq=False)
class Function:
    """A function that the model defines; its operators replace each call."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    operators: tuple[Operator, ...]
    opset: int


@dataclass(frozen=True, eq=False)
class Model:
    """The content of an ``.onnx`` file.

    ``opset``: the version of ONNX's own operators. ``functions``: the functions by domain, name and
    overload. ``producer``: the program that wrote the file.
    ``metadata``: the file's metadata texts by key; of two texts with one key, the later one.
    ``overridable``: the constants that callers may override.
    """

    file: Path
    graph: Subgraph
    opset: int
    functions: Mapping[tuple[str, str, str], Function]
    producer: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    overridable: tuple[Variable, ...] = ()

    def fed(self, names: Collection[str]) -> Model:
        """Returns a copy of the model in which the overridable constants ``names`` are inputs."""
        inputs = tuple(each for each in self.overridable if each.name in names)
        constants = {name: a for name, a in self.graph.constants.items() if name not in names}
        graph = replace(self.graph, inputs=(*self.graph.inputs, *inputs), constants=constants)
        return replace(self, graph=graph)


def read_model(path: str | Path) -> Model:
    """Returns the model in an ``.onnx`` file, including the data of other files in its folder.

    Raises `ModelFormatError` for files that do not contain a model, and `UnsupportedError` for
    versions of the format that onernn does not read.
    """
    file = Path(path)
    with open_budgeted(file) as (raw, budget):
        return parse_model(read_all(raw, budget), file, budget, taken=True)


def parse_model(
    data: bytes, file: Path, budget: FileBudget | None = None, *, taken: bool = False
) -> Model:
    """Returns the model in the bytes of a file; the model's other files are in the folder of
    ``file``.

    ``budget``: the memory that reading may take; the default is the budget for a file of this size.
    ``taken``: whether the budget already counts the bytes, and no other code reads them.
    """
    budget = budget or loading(2 * len(data))
    if not data:
        raise ModelFormatError("the file is empty, expected an ONNX model", file)
    size, before = len(data) if taken else 0, budget.used
    message = MESSAGES.parse("ModelProto", data, file, budget=budget)
    held = budget.used - before
    del data  # frees one of three copies
    budget.release(size)
    model = model_of(message, file, budget)
    budget.release(held)
    return model


def model_of(proto: Any, file: Path, budget: FileBudget | None = None) -> Model:
    """Returns the model in a ModelProto of onernn's schema; for ``file`` and ``budget`` see
    `parse_model`.
    """
    budget = budget or loading(2 * proto.ByteSize())
    if not proto.HasField("graph") or not proto.opset_import:  # a different message may parse
        raise ModelFormatError("not an ONNX model: expected a graph and an opset", file)
    if proto.ir_version not in IR_VERSIONS:
        raise UnsupportedError(
            f"{file}: IR version {proto.ir_version}: expected {IR_VERSIONS[0]} to"
            f" {IR_VERSIONS[-1]}; export it with a different version of onnx"
        )
    reader = _Reader(file, budget)
    try:
        opset = _opset(proto.opset_import, file)
        functions = dict[tuple[str, str, str], Function]()
        for each in proto.functions:
            domain, name, overload = reader.texts((each.domain, each.name, each.overload))
            key = (domain, name, overload)
            if key in functions:
                text = f"function {name!r} of domain {domain!r} with overload {overload!r}"
                raise ModelFormatError(f"{text}: expected one, got two", file)
            functions[key] = reader.function(each, opset)
        producer = f"{reader.text(proto.producer_name)} {reader.text(proto.producer_version)}"
        metadata = {reader.text(each.key): reader.text(each.value) for each in proto.metadata_props}
        graph, names = reader.graph(proto.graph), overridable(proto)
        free = tuple(reader.variable(v) for v in proto.graph.input if v.name in names)
        return Model(file, graph, opset, functions, producer.strip(), metadata, free)
    except RecursionError as error:
        raise ModelFormatError("graphs are nested too deep: expected fewer levels", file) from error


def _opset(imports: Any, file: Path) -> int:
    """Returns the opset of ONNX's own operators; `onnx.compose` writes it once for each merged
    part.
    """
    versions = {each.version for each in imports if each.domain in ("", "ai.onnx")}
    if not versions:
        raise ModelFormatError("expected an opset of ONNX's own operators, it imports none", file)
    if len(versions) > 1:
        numbers = " and ".join(map(str, sorted(versions)))
        raise ModelFormatError(
            f"it imports opsets {numbers} of ONNX's own operators, expected one; convert its parts"
            " with onnx.version_converter before you merge them",
            file,
        )
    (version,) = versions
    if version not in OPSETS:
        raise UnsupportedError(
            f"{file}: opset {version}: expected {OPSETS[0]} to {OPSETS[-1]}; convert it with"
            " onnx.version_converter"
        )
    return int(version)


class _Reader:
    def __init__(self, file: Path, budget: FileBudget) -> None:
        self._file, self._budget = file, budget
        self._external = ExternalData(file, budget)
        self._texts: dict[str | bytes, str] = {}

    def text(self, value: str | bytes) -> str:
        """Returns a name as text; equal names share one string object."""
        if (known := self._texts.get(value)) is not None:
            return known
        try:
            text = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"name {value!r}: expected UTF-8", self._file) from error
        self._budget.take(2 * sys.getsizeof(text), "the names")
        self._texts[value] = text
        return text

    def texts(self, values: Any) -> tuple[str, ...]:
        return tuple(map(self.text, values))

    def graph(self, graph: Any) -> Subgraph:
        constants: dict[str, Array] = {}
        unread: dict[str, str] = {}
        for tensor in graph.initializer:
            name = self.text(tensor.name)
            if name in constants or name in unread:
                raise ModelFormatError(f"initializer {name!r}: expected one, got two", self._file)
            try:
                constants[name] = array_of(tensor, f"initializer {name!r}", self._external)
            except UnsupportedError as error:
                unread[name] = str(error)
        values = len(graph.input) + len(graph.output) + len(graph.value_info)
        self._budget.take(_VALUE * values, "the signature")
        for sparse in graph.sparse_initializer:
            unread[self.text(sparse.values.name)] = "a sparse tensor: expected a dense one"
        inputs, outputs = (tuple(map(self.variable, v)) for v in (graph.input, graph.output))
        known = {*(each.name for each in inputs), *constants, *unread}
        return Subgraph(
            self.operators(graph.node, known),
            tuple(v for v in inputs if v.name not in constants and v.name not in unread),
            outputs,
            constants,
            unread,
            tuple(each for each in map(self.variable, graph.value_info) if each.names),
        )

    def variable(self, info: Any) -> Variable:
        name, kind = self.text(info.name), info.type
        for other in ("sequence", "map", "opaque", "sparse_tensor", "optional"):
            if kind.HasField(f"{other}_type"):
                return Variable(name, refusal=f"type {other} is not supported: expected a tensor")
        if not kind.HasField("tensor_type"):
            return Variable(name)
        tensor, shape, names = kind.tensor_type, None, list[str]()
        if tensor.HasField("shape"):
            sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
            shape = tuple(None if size < 0 else size for size in sizes)
            named = (self.text(d.dim_param) if d.dim_param else "" for d in tensor.shape.dim)
            names = ["" if name in _NAMELESS else name for name in named]
        dtype, refusal = None, ""
        if tensor.elem_type:
            try:
                dtype = dtype_of(tensor.elem_type)
            except UnsupportedError as error:
                refusal = str(error)
        return Variable(name, dtype, shape, tuple(names) if any(names) else (), refusal)

    def operators(self, nodes: Any, known: Collection[str]) -> tuple[Operator, ...]:
        """Returns the operators in order; ``known``: the names of inputs and initializers.

        Raises `ModelFormatError` if two of them define the same value.
        """
        self._budget.reads_operators(len(nodes))
        operators = [self.operator(at, node) for at, node in enumerate(nodes)]
        made = Counter([*known, *(name for op in operators for name in op.outputs if name)])
        for name, count in made.most_common(1):
            if count > 1:
                text = f"expected one input, initializer or operator that makes it, got {count}"
                raise ModelFormatError(f"value {name!r}: {text}", self._file)
        return in_order(operators)

    def operator(self, position: int, node: Any) -> Operator:
        attributes: dict[str, Any] = {}
        for each in node.attribute:
            if (name := self.text(each.name)) in attributes:
                raise ModelFormatError(f"attribute {name!r}: expected one, got two", self._file)
            attributes[name] = self.attribute(each)
        domain = self.text(node.domain)
        return Operator(
            position,
            "" if domain == "ai.onnx" else domain,
            self.text(node.op_type),
            self.texts(node.input),
            self.texts(node.output),
            attributes,
            self.text(node.name),
            self.text(node.overload),
        )

    def attribute(self, attribute: Any) -> Any:
        if attribute.ref_attr_name:
            return Reference(self.text(attribute.ref_attr_name))
        field = ATTRIBUTE_FIELDS.get(attribute.type, "")
        if not attribute.type:  # old writers set only the field
            present = [f.name for f, _ in attribute.ListFields()]
            field = next((f for f in ATTRIBUTE_FIELDS.values() if f in present), "ints")
        if not field:
            return Unread(f"attribute type {attribute.type} is not supported")
        value = getattr(attribute, field)
        if field == "g":
            return self.graph(value)
        try:
            if field == "t":
                return array_of(value, f"attribute {attribute.name!r}", self._external)
            if field in ("s", "strings"):
                texts = [value] if field == "s" else value
                self._budget.take(sum(64 + text_size(each) for each in texts), "texts")
                return value.decode() if field == "s" else tuple(v.decode() for v in value)
        except (UnsupportedError, UnicodeDecodeError) as error:
            return Unread(str(error))
        if isinstance(value, int | float):
            return value
        self._budget.take(_NUMBER * len(value), f"attribute {attribute.name!r}")
        return tuple(value)

    def function(self, function: Any, opset: int) -> Function:
        attributes: dict[str, Any] = dict.fromkeys(self.texts(function.attribute))
        for each in function.attribute_proto:
            attributes[self.text(each.name)] = self.attribute(each)
        own = [each for each in function.opset_import if each.domain in ("", "ai.onnx")]
        inputs = self.texts(function.input)
        return Function(
            inputs,
            self.texts(function.output),
            attributes,
            self.operators(function.node, inputs),
            _opset(own, self._file) if own else opset,
        )
