"""A graph as ONNX under construction: protobuf messages, padding of ragged values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.adapters.common.lowering import Names, Operand, Tape
from onernn.adapters.common.writing import NodeWriter
from onernn.adapters.onnx.read import ATTRIBUTE_FIELDS, BFLOAT16, MESSAGES, NUMBERS, native_graph
from onernn.adapters.onnx.rules import became_inputs
from onernn.ir.arrays import Array, bfloat16_bits
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass
from onernn.ir.types import Type
from onernn.ir.weights import LayerPrecision
from onernn.ops import OPERATORS

# ONNX graphs under construction: nodes, constants and names, without the onnx package.

_ATTRIBUTE_TYPES = {field: number for number, field in ATTRIBUTE_FIELDS.items()}

_SHARED = 64  # elements of a constant that is looked up before it is written again


class ProtoGraph(Tape):
    """A graph, or the body of an operator or a function; each name is made once.

    A graph ``around`` it lends what is made there, and its names are not made again.
    """

    def __init__(self, proto: Any = None, around: ProtoGraph | None = None) -> None:
        self.proto = MESSAGES.message("GraphProto")() if proto is None else proto
        self.proto.name = "onernn"
        self._names: Names = Names({"": 0}) if around is None else around._names
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def fresh(self, hint: str) -> str:
        """The hint as a name, or one made from it that nothing bears yet."""
        return self._names.fresh(hint)

    def constant(self, array: Any, dtype: str | None = None, name: str = "") -> str:
        """A constant; small ones of equal numbers are one, unless they have a name."""
        array = np.asarray(array, dtype)
        if name or array.size > _SHARED:
            chosen = self.fresh(name or "constant")
            self.proto.initializer.append(tensor(array, chosen))
            return chosen
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.fresh("constant")
            self.proto.initializer.append(tensor(array, self._constants[key]))
        return self._constants[key]

    def ints(self, *values: int | None) -> str:
        return self.constant(values, "int64")

    def add(
        self, op: str, *inputs: str, outputs: Sequence[str], domain: str = "", **attributes: Any
    ) -> None:
        """A node whose outputs bear the given names; absent inputs at its end are left out."""
        given = inputs[: max((at for at, name in enumerate(inputs, 1) if name), default=0)]
        node = self.proto.node.add(op_type=op, input=given, output=outputs, domain=domain)
        for name, value in attributes.items():
            node.attribute.append(_attribute(name, value))

    def emit(self, op: str, *inputs: Operand, **attributes: Any) -> str:
        """A node of one output; its name."""
        named, out = self.named(inputs), self.fresh(op.lower())
        self.add(op, *named, outputs=(out,), **attributes)
        return out

    def cast(self, value: str, dtype: str) -> str:
        return self.emit("Cast", value, to=number_of(dtype))

    def faces(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """The inputs and outputs of a body, whose types come from outside."""
        self.proto.input.extend(MESSAGES.message("ValueInfoProto")(name=name) for name in inputs)
        self.proto.output.extend(MESSAGES.message("ValueInfoProto")(name=name) for name in outputs)

    def prune(self) -> None:
        """Drops the nodes and constants that no output needs."""
        graph, constants = native_graph(self.proto), len(self.proto.initializer)
        needed = {*graph.sources(graph.outputs)}
        for at in reversed(range(len(graph.nodes))):
            if at >= constants and at not in needed:
                del self.proto.node[at - constants]
            elif at not in needed:
                del self.proto.initializer[at]

    def function(
        self, name: str, domain: str, inputs: Sequence[str], outputs: Sequence[str], opset: int
    ) -> Any:
        """The graph as a FunctionProto, which has constants as nodes only."""
        out = MESSAGES.message("FunctionProto")(name=name, domain=domain)
        out.input.extend(inputs)
        out.output.extend(outputs)
        out.opset_import.add(domain="", version=opset)
        for each in self.proto.initializer:
            node = out.node.add(op_type="Constant", output=(each.name,))
            node.attribute.add(name="value", type=_ATTRIBUTE_TYPES["t"]).t.CopyFrom(each)
        out.node.extend(self.proto.node)
        return out


def number_of(dtype: str) -> int:
    """ONNX's number of a dtype by NumPy's name."""
    if dtype not in NUMBERS:
        raise UnsupportedError(f"ONNX has no {dtype} tensors that we write")
    return NUMBERS[dtype]


def tensor(array: Array, name: str = "") -> Any:
    """A TensorProto."""
    out = MESSAGES.message("TensorProto")(name=name, dims=array.shape)
    out.data_type = number_of(str(array.dtype))
    out.raw_data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return out


def bfloat16_tensor(array: Array, name: str) -> Any:
    """A float32 array rounded to bfloat16, to even; numbers that would overflow are none here."""
    out = MESSAGES.message("TensorProto")(name=name, dims=array.shape, data_type=BFLOAT16)
    out.raw_data = bfloat16_bits(array).astype("<u2").tobytes()
    return out


def value_info(name: str, dtype: str, shape: Sequence[int | str | None] | None) -> Any:
    """A ValueInfoProto; a size is a number, a name, or None."""
    out = MESSAGES.message("ValueInfoProto")(name=name)
    out.type.tensor_type.elem_type = number_of(dtype)
    if shape is not None:
        out.type.tensor_type.shape.SetInParent()
        for size in shape:
            dim = out.type.tensor_type.shape.dim.add()
            if isinstance(size, str):
                dim.dim_param = size
            elif size is not None:
                dim.dim_value = size
    return out


def _attribute(name: str, value: Any) -> Any:
    out = MESSAGES.message("AttributeProto")(name=name)
    if isinstance(value, ProtoGraph):
        field, out.g.name = "g", value.proto.name
        out.g.CopyFrom(value.proto)
    elif isinstance(value, np.ndarray):
        field = "t"
        out.t.CopyFrom(tensor(value))
    elif isinstance(value, str):
        field, out.s = "s", value.encode()
    elif isinstance(value, bool | int | np.integer):
        field, out.i = "i", int(value)
    elif isinstance(value, float | np.floating):
        field, out.f = "f", float(value)
    elif all(isinstance(each, str) for each in value) and len(value):
        field = "strings"
        out.strings.extend(each.encode() for each in value)
    elif all(isinstance(each, int | np.integer) for each in value):
        field = "ints"
        out.ints.extend(map(int, value))
    else:
        field = "floats"
        out.floats.extend(map(float, value))
    out.type = _ATTRIBUTE_TYPES[field]
    return out


# Ragged values in ONNX: padded tensors (N, T, ...) and their lengths.


@dataclass(frozen=True)
class OnnxValue:
    """A value of a graph as tensors of ONNX.

    ``data`` is what ONNX calls it: a dense tensor, or, where there are ``lengths`` (N,) int32, a
    padded one (N, T, ...) in which anything may stand behind the sentences.
    """

    data: str
    dtype: str
    rank: int
    lengths: str = ""

    def __bool__(self) -> bool:
        """Whether it is there: an absent input has no tensor."""
        return bool(self.data)

    @property
    def padded_rank(self) -> int:
        return self.rank + 1


ABSENT = OnnxValue("", "", 0)


class PaddedGraph(ProtoGraph):
    """A graph that works on padded values; masks and exchanged axes are made once for each."""

    def __init__(self, proto: Any = None, around: ProtoGraph | None = None) -> None:
        super().__init__(proto, around)
        self._masks: dict[tuple[str, str], str] = {}
        self._swapped: dict[str, str] = {}

    def swapped(self, tensor: str, rank: int) -> str:
        """With batch and time, or time and batch, exchanged; what was exchanged is taken back."""
        if tensor not in self._swapped:
            out = self.transposed(tensor, 1, 0, *range(2, rank))
            self._swapped |= {tensor: out, out: tensor}
        return self._swapped[tensor]

    def steps(self, time: str) -> str:
        """0, 1, ... T-1 as (T,) int64, from T (1,)."""
        scalar = self.squeezed(time, 0)
        return self.emit("Range", 0, scalar, 1)

    def mask(self, lengths: str, time: str) -> str:
        """(N, T) bool: true inside the sentences."""
        columns = self.unsqueezed(lengths, 1)
        wide = self.cast(columns, "int64")
        return self.emit("Less", self.steps(time), wide)

    def mask_of(self, value: OnnxValue) -> str:
        """(N, T) bool of a ragged value."""
        key = (value.data, value.lengths)
        if key not in self._masks:
            self._masks[key] = self.mask(value.lengths, self.size(value.data, 1))
        return self._masks[key]

    def filled(self, value: OnnxValue, rest: float | str = 0) -> str:
        """The padded tensor with a number, or a tensor, behind each sentence."""
        mask = self.mask_of(value)
        if value.padded_rank > 2:
            mask = self.unsqueezed(mask, *range(2, value.padded_rank))
        if not isinstance(rest, str):
            rest = self.constant(rest, value.dtype)
        return self.emit("Where", mask, value.data, rest)

    def words(self, value: OnnxValue) -> str:
        """The words of a ragged value (W, ...), sentence by sentence; a dense one has them."""
        if not value.lengths:
            return value.data
        flat = self.reshaped(self.mask_of(value), -1)
        sizes = self.emit("Shape", value.data)
        inner = self.emit("Slice", sizes, [2], [2**31])
        shape = self.joined([-1], inner)
        rows = self.emit("Reshape", value.data, shape)
        return self.emit("Compress", rows, flat, axis=0)

    def from_words(self, words: str, lengths: str, time: str) -> str:
        """Words (W, ...) under lengths (N,), padded to T (1,)."""
        wide = self.cast(lengths, "int64")
        starts = self.emit("CumSum", wide, 0, exclusive=1)
        columns = self.unsqueezed(starts, 1)
        at = self.emit("Add", columns, self.steps(time))
        last = self.emit("Sub", self.size(words, 0), [1])
        return self.emit("Gather", words, self.emit("Min", at, last))

    def with_time(self, value: OnnxValue, time: str) -> OnnxValue:
        """The same value padded to T (1,), which is as long as the longest sentence at least."""
        cut = self.emit("Slice", value.data, [0], time, [1])
        more = self.emit("Sub", time, self.size(cut, 1))
        after = [[0] * (value.padded_rank - 2)] if value.padded_rank > 2 else []
        pads = self.joined([0] * (value.padded_rank + 1), more, *after)
        return replace(value, data=self.emit("Pad", cut, pads))

    def longest(self, lengths: str) -> str:
        """The longest sentence's length, (1,) int64."""
        return self.cast(self.emit("ReduceMax", lengths, keepdims=1), "int64")


# What the rules that write an ONNX model share: values, constants, names, the opset.

Inputs = list[OnnxValue]
Written = str | tuple[Sequence[str], str]
"""What a rule returns: the tensor of the one output, or those of all, "" where absent, with the
lengths of sentences where they are padded.
"""

_SINCE = {
    "AveragePool": {"dilations": 19},
    "BatchNormalization": {"training_mode": 14},
    "Resize": {"antialias": 18, "axes": 18, "keep_aspect_ratio_policy": 18},
    "Reshape": {"allowzero": 14},
}
"""The first opset of an attribute, which may be 0 before."""


class GraphWriter(NodeWriter, PaddedGraph):
    """An ONNX graph under construction, and what each value of the graph is called in it.

    ``functions`` takes those of the model's own, None: there must be none. ``domains``: those of
    its operators. ``precisions``: of layers, by their first outputs. ``inputs``: of the node that
    is written.
    """

    inputs: Inputs

    def __init__(
        self,
        proto: Any,
        opset: int,
        graph: Graph,
        types: Mapping[str, Type],
        functions: dict[str, Any] | None = None,
        around: GraphWriter | None = None,
    ) -> None:
        super().__init__(proto, around)
        self.opset, self.types, self.graph = opset, types, graph
        self.functions = functions
        self.precisions: dict[str, LayerPrecision] = {} if around is None else around.precisions
        self.domains: set[str] = {""} if around is None else around.domains
        self._values: dict[str, OnnxValue] = {}

    def writer_of(self, body: Graph, types: Mapping[str, Type]) -> GraphWriter:
        """What writes a graph inside this one."""
        return GraphWriter(None, self.opset, body, types, self.functions, self)

    def value(self, name: str) -> OnnxValue:
        """A value's tensors; a constant is written with its first use."""
        if name not in self._values:
            array = self.graph.constants[name]
            tensor = self.constant(array, name=name)
            self._values[name] = OnnxValue(tensor, str(array.dtype), array.ndim)
        return self._values[name]

    @property
    def x(self) -> OnnxValue:
        """The first input."""
        return self.inputs[0]

    @property
    def tensors(self) -> list[str]:
        """Those of the inputs, "" where absent."""
        return [value.data for value in self.inputs]

    def begin(self, node: Node) -> None:
        """Turns to a node that is to be written."""
        self.node = node
        self.inputs = [self.value(name) if name else ABSENT for name in node.inputs]

    def bind(self, name: str, value: OnnxValue) -> None:
        """Says what a value is called."""
        self._values[name] = value

    def give(self, tensors: Sequence[str], lengths: str = "") -> None:
        """Binds the outputs of the node that have names."""
        for name, tensor in zip(self.node.outputs, tensors, strict=False):
            if name and tensor:
                known = self.types[name]
                self.bind(name, OnnxValue(tensor, known.dtype or "", len(known.counts), lengths))

    def reduce(self, op: str, x: str, axes: Sequence[int], *, keepdims: int) -> str:
        """A Reduce operator over axes, which are an attribute before opset 18 for most."""
        if self.opset >= became_inputs(op)[0]:
            return self.emit(op, x, axes, keepdims=keepdims)
        return self.emit(op, x, axes=tuple(axes), keepdims=keepdims)

    def attributes(self) -> dict[str, Any]:
        """The attributes in ONNX's form. Raises `UnsupportedError` for those it has not."""
        node, attributes = self.node, dict(self.node.attributes)
        for name in ("non_negative", "rational", "together"):  # a check; how a runtime computes
            attributes.pop(name, None)
        if node.op == "Split" and not node.input(1) and self.opset >= 18:
            attributes["num_outputs"] = len(node.outputs)
        if node.op in ("Cast", "CastLike") and "to" in attributes:
            attributes["to"] = number_of(attributes["to"])
        for name, since in _SINCE.get(node.op, {}).items():
            if name in attributes and self.opset < since and attributes.pop(name) != 0:
                raise UnsupportedError(f"attribute {name} needs opset {since}")
        return attributes

    def copy(self, tensors: Sequence[str], **attributes: Any) -> list[str]:
        """The operator as it stands, of other inputs; its outputs."""
        outs = [self.fresh(name) if name else "" for name in self.node.outputs]
        domain = OPERATORS[self.node.op].domain
        self.domains |= {domain}
        self.add(self.node.op, *tensors, outputs=outs, domain=domain, **attributes)
        return outs


def dense(value: OnnxValue, role: str) -> str:
    """The tensor of a value that must not be ragged."""
    if not value or value.lengths:
        raise UnsupportedError(f"{role} {'is ragged' if value else 'is missing'}")
    return value.data


def ragged(value: OnnxValue, role: str) -> OnnxValue:
    """A value that must be ragged."""
    if not value.lengths:
        raise UnsupportedError(f"{role} is not ragged")
    return value
