"""ONNX's saved models, read with protobuf and NumPy: no onnx package needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from onernn.adapters.onnx.messages import ATTRIBUTE_FIELDS, MESSAGES
from onernn.adapters.onnx.read.tensors import ExternalData, array_of, dtype_of
from onernn.core.arrays import Array
from onernn.core.budget import FileBudget, loading
from onernn.core.errors import ModelFormatError, UnsupportedError
from onernn.core.node import NativeOp
from onernn.core.records import dataclass

IR_VERSIONS = range(3, 15)
OPSETS = range(7, 27)
"""Versions of ONNX's own operators; a later one may give them another meaning."""
_OPERATOR, _NUMBER = 500, 32
"""Bytes of an operator, and of a number of a list, as Python has them; two in the file may do."""


@dataclass(frozen=True)
class Variable:
    """A value as the model declares it: dtype by NumPy's name or bfloat16, sizes None if dynamic.

    ``refusal``: why it cannot be a value of ours, "" where it can.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    refusal: str = ""


@dataclass(frozen=True)
class Reference:
    """An attribute's value inside a function: that of the call's attribute of this name."""

    name: str


@dataclass(frozen=True)
class Unread:
    """An attribute's value that is none of ours, and why."""

    reason: str


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator; absent inputs and outputs are "".

    Attributes are Python values, arrays, or a `Subgraph`; lists are tuples.
    """

    position: int
    domain: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    name: str = ""

    @property
    def native(self) -> NativeOp:
        value = next(filter(None, self.outputs), "")
        return NativeOp(self.position, self.type, self.name, value)


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A graph with its constants; ``unread`` tells why a constant is none of ours."""

    operators: tuple[Operator, ...]
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    constants: Mapping[str, Array]
    unread: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the model's own: what its calls stand for."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    operators: tuple[Operator, ...]
    opset: int


@dataclass(frozen=True, eq=False)
class Model:
    """What a file holds; ``opset`` is that of ONNX's own operators, ``producer`` who wrote it.

    ``metadata``: texts of any tool, by their keys; of one that stands there twice the last one.
    """

    file: Path
    graph: Subgraph
    opset: int
    functions: Mapping[tuple[str, str], Function]
    producer: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


def read_model(path: str | Path) -> Model:
    """The model in an ``.onnx`` file, with the data of files beside it.

    Raises `ModelFormatError` for files that hold none, `UnsupportedError` for versions of the
    format that are not read.
    """
    file = Path(path)
    if not os.path.isfile(file):
        raise ModelFormatError("no such file", file)
    budget = loading()
    try:
        budget.reads(os.stat(file))
        return parse_model(file.read_bytes(), file, budget)
    except OSError as error:
        raise ModelFormatError(f"cannot be read: {error.strerror}", file) from error


def parse_model(data: bytes, file: Path, budget: FileBudget | None = None) -> Model:
    """The model in the bytes of a file; ``file`` tells where data of its own would lie.

    ``budget``: what reading may take; without one, as much as for a file of these bytes.
    """
    if budget is None:
        budget = FileBudget(2 * len(data))
    if not data:
        raise ModelFormatError("the file is empty, expected an ONNX model", file)
    found = MESSAGES.parse("ModelProto", data, file)
    del data  # its numbers are in the message, and will be in arrays: twice is enough
    return model_of(found, file, budget)


def model_of(found: Any, file: Path, budget: FileBudget | None = None) -> Model:
    """The model in a ModelProto of ours; ``file`` and ``budget`` as in `parse_model`."""
    if budget is None:
        budget = FileBudget(2 * found.ByteSize())
    if not found.HasField("graph") or not found.opset_import:  # any protobuf may parse, too
        raise ModelFormatError("not an ONNX model: it has no graph, or no opset", file)
    if found.ir_version not in IR_VERSIONS:
        raise UnsupportedError(
            f"{file}: IR version {found.ir_version}; {IR_VERSIONS[0]} to {IR_VERSIONS[-1]} are read"
        )
    reader = _Reader(file, budget)
    try:
        opset = _opset(found.opset_import, file)
        functions = {
            (reader.text(f.domain), reader.text(f.name)): reader.function(f, opset)
            for f in found.functions
        }
        producer = f"{reader.text(found.producer_name)} {reader.text(found.producer_version)}"
        metadata = {reader.text(each.key): reader.text(each.value) for each in found.metadata_props}
        graph = reader.graph(found.graph)
        return Model(file, graph, opset, functions, producer.strip(), metadata)
    except RecursionError as error:
        raise ModelFormatError("graphs inside graphs, too deep", file) from error


def _opset(imports: Any, file: Path) -> int:
    versions = [each.version for each in imports if each.domain in ("", "ai.onnx")]
    if len(versions) != 1:
        raise ModelFormatError(
            f"opsets of ONNX's own operators: expected one, got {versions}", file
        )
    if versions[0] not in OPSETS:
        raise UnsupportedError(
            f"{file}: opset {versions[0]}; {OPSETS[0]} to {OPSETS[-1]} are read, convert it with"
            " onnx.version_converter"
        )
    return int(versions[0])


class _Reader:
    def __init__(self, file: Path, budget: FileBudget) -> None:
        self._file, self._budget = file, budget
        self._external = ExternalData(file, budget)

    def text(self, value: str | bytes) -> str:
        try:
            return value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"the name {value!r} is not UTF-8", self._file) from error

    def texts(self, values: Any) -> tuple[str, ...]:
        return tuple(map(self.text, values))

    def graph(self, graph: Any) -> Subgraph:
        constants: dict[str, Array] = {}
        unread: dict[str, str] = {}
        for tensor in graph.initializer:
            name = self.text(tensor.name)
            if name in constants or name in unread:
                raise ModelFormatError(f"initializer {name!r} stands there twice", self._file)
            try:
                constants[name] = array_of(tensor, f"initializer {name!r}", self._external)
            except UnsupportedError as error:
                unread[name] = str(error)
        for sparse in graph.sparse_initializer:
            unread[self.text(sparse.values.name)] = "a sparse tensor is not read"
        inputs, outputs = (tuple(map(self.variable, v)) for v in (graph.input, graph.output))
        return Subgraph(
            tuple(self.operator(at, node) for at, node in enumerate(graph.node)),
            tuple(v for v in inputs if v.name not in constants and v.name not in unread),
            outputs,
            constants,
            unread,
        )

    def variable(self, info: Any) -> Variable:
        name, kind = self.text(info.name), info.type
        for other in ("sequence", "map", "opaque", "sparse_tensor", "optional"):
            if kind.HasField(f"{other}_type"):
                return Variable(name, refusal=f"values of type {other} are not supported")
        if not kind.HasField("tensor_type"):
            return Variable(name)
        tensor = kind.tensor_type
        shape = None
        if tensor.HasField("shape"):
            sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
            shape = tuple(None if size < 0 else size for size in sizes)
        if not tensor.elem_type:
            return Variable(name, None, shape)
        try:
            return Variable(name, dtype_of(tensor.elem_type), shape)
        except UnsupportedError as error:
            return Variable(name, None, shape, str(error))

    def operator(self, position: int, node: Any) -> Operator:
        self._budget.take(_OPERATOR, f"operator {position}")
        attributes: dict[str, Any] = {}
        for each in node.attribute:
            if (name := self.text(each.name)) in attributes:
                raise ModelFormatError(f"attribute {name!r} stands there twice", self._file)
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
        )

    def attribute(self, attribute: Any) -> Any:
        if attribute.ref_attr_name:
            return Reference(self.text(attribute.ref_attr_name))
        field = ATTRIBUTE_FIELDS.get(attribute.type, "")
        if not attribute.type:  # old writers leave it to the field
            present = [f.name for f, _ in attribute.ListFields()]
            field = next((f for f in ATTRIBUTE_FIELDS.values() if f in present), "ints")
        if not field:
            return Unread(f"attributes of type {attribute.type} are not read")
        value = getattr(attribute, field)
        if field == "g":
            return self.graph(value)
        try:
            if field == "t":
                return array_of(value, f"attribute {attribute.name!r}", self._external)
            if field in ("s", "strings"):
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
        return Function(
            self.texts(function.input),
            self.texts(function.output),
            attributes,
            tuple(self.operator(at, node) for at, node in enumerate(function.node)),
            _opset(own, self._file) if own else opset,
        )
