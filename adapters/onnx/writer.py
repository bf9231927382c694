"""A graph as ONNX under construction: protobuf messages, padding of ragged values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from onernn.adapters.common.lowering import Names, Operand, Tape
from onernn.adapters.common.signatures import Tensor, refuse
from onernn.adapters.onnx.read import ATTRIBUTE_FIELDS, BFLOAT16, MESSAGES, NUMBERS, native_graph
from onernn.adapters.onnx.rules import became_inputs
from onernn.ir.arrays import Array, bfloat16_bits
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Node
from onernn.ir.types import Type
from onernn.ir.weights import LayerPrecision
from onernn.ops import OPERATORS

# ONNX graphs under construction: nodes, constants and names, without the onnx package.

_ATTRIBUTE_TYPES = {field: number for number, field in ATTRIBUTE_FIELDS.items()}

_SHARED = 64  # elements of a constant that is looked up before it is written again


class ProtoGraph(Tape):
    """A graph, or the body of an operator or a function; each name is made once.

    A graph ``around`` it lends what is made there, and its names are not made again. ``narrow``:
    in what float32 arrays of two axes or more are stored, to be widened by a Cast.
    Masks and exchanged axes are made once for each value.
    """

    def __init__(self, proto: Any = None, around: ProtoGraph | None = None) -> None:
        self.proto = MESSAGES.message("GraphProto")() if proto is None else proto
        self.proto.name = "onernn"
        self.narrow: str = "float32" if around is None else around.narrow
        self._names: Names = Names({"": 0}) if around is None else around._names
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.masks: dict[tuple[str, str], Any] = {}
        self.swapped: dict[str, str] = {}

    def fresh(self, hint: str) -> str:
        """Returns the hint as a name, or one made from it that nothing bears yet."""
        return self._names.fresh(hint)

    def constant(self, array: Any, dtype: str | None = None, name: str = "") -> str:
        """Returns a constant; small ones of equal numbers are one, unless they have a name."""
        array = np.asarray(array, dtype)
        if name or array.size > _SHARED:
            return self._store(array, self.fresh(name or "constant"))
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self._store(array, self.fresh("constant"))
        return self._constants[key]

    def _store(self, array: Array, name: str) -> str:
        stored = array, name
        if self.narrow != "float32" and array.dtype == np.float32 and array.ndim > 1:
            stored = array, self.fresh(f"{name}/{self.narrow}")
            self.add("Cast", stored[1], outputs=(name,), to=NUMBERS["float32"])
            if self.narrow == "bfloat16":
                self.proto.initializer.append(bfloat16_tensor(*stored))
                return name
            with np.errstate(over="ignore"):
                stored = array.astype(np.float16), stored[1]
            if not np.array_equal(np.isfinite(stored[0]), np.isfinite(array)):
                refuse(f"weight {name!r} does not fit into float16; use bfloat16")
        self.proto.initializer.append(tensor(*stored))
        return name

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
        """Returns a node of one output; its name."""
        (out,) = self.emit_many(op, 1, *inputs, **attributes)
        return out

    def emit_many(self, op: str, count: int, *inputs: Operand, **attributes: Any) -> list[str]:
        named, outs = self.named(inputs), [self.fresh(op.lower()) for _ in range(count)]
        self.add(op, *named, outputs=outs, **attributes)
        return outs

    def cast(self, value: str, dtype: str) -> str:
        return self.emit("Cast", value, to=number_of(dtype))

    def scalar(self, value: float, dtype: str) -> str:
        return self.constant(value, dtype)

    def input(self, name: str, dtype: str) -> OnnxValue:
        """Returns a new input of a body, whose type comes from outside."""
        chosen = self.fresh(name)
        self.proto.input.add(name=chosen)
        return OnnxValue(self, chosen, dtype)

    def output(self, *values: OnnxValue) -> None:
        """Adds outputs of a body."""
        for value in values:
            self.proto.output.add(name=value.name)

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
        """Returns the graph as a FunctionProto, which has constants as nodes only."""
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
    """Returns a TensorProto."""
    out = MESSAGES.message("TensorProto")(name=name, dims=array.shape)
    out.data_type = number_of(str(array.dtype))
    out.raw_data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return out


def bfloat16_tensor(array: Array, name: str) -> Any:
    """Returns a float32 array rounded to bfloat16, to even; numbers that would overflow are none
    here.
    """
    out = MESSAGES.message("TensorProto")(name=name, dims=array.shape, data_type=BFLOAT16)
    out.raw_data = bfloat16_bits(array).astype("<u2").tobytes()
    return out


def value_info(name: str, dtype: str, shape: Sequence[int | str | None] | None) -> Any:
    """Returns a ValueInfoProto; a size is a number, a name, or None."""
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
    else:
        single = isinstance(value, str) or not hasattr(value, "__len__")
        values = [value] if single else value
        kinds = {type(each) for each in values}
        if kinds == {str}:
            field, values = "s", [each.encode() for each in values]
        elif all(issubclass(kind, int | np.integer) for kind in kinds):
            field, values = "i", [int(each) for each in values]
        else:
            field, values = "f", [float(each) for each in values]
        if single:
            setattr(out, field, values[0])
        else:
            field = {"s": "strings", "i": "ints", "f": "floats"}[field]
            getattr(out, field).extend(values)
    out.type = _ATTRIBUTE_TYPES[field]
    return out


# Ragged values in ONNX: padded tensors (N, T, ...) and their lengths.


class OnnxValue(Tensor):
    """A tensor of the graph ``op`` under construction; ONNX's operators are its methods.

    ``rank``: that of a graph's value. With ``lengths`` (N,) int32 such a value is padded,
    (N, T, ...), and anything may follow the sequences.
    """

    dtype: str = ""  # type: ignore[assignment]
    rank: int = 0

    def __init__(
        self, op: Any, name: str, dtype: str = "", rank: int = 0, lengths: OnnxValue | None = None
    ) -> None:
        super().__init__(op, name)
        self.dtype, self.rank, self.lengths = dtype, rank, lengths

    def new(self, name: str) -> Self:
        """Returns another tensor of the same graph and dtype."""
        return type(self)(self.op, name, self.dtype)

    def __rsub__(self, number: float) -> Self:
        return self.scalar(number) - self

    def replace(self, **changes: Any) -> Self:
        return type(self)(**{**self.parts, **changes})

    @property
    def parts(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in ("op", "name", "dtype", "rank", "lengths")}

    def under(self, lengths: OnnxValue | None) -> Self:
        """Returns this tensor as a padded one with these lengths."""
        return self.replace(lengths=lengths)

    @property
    def ragged(self) -> Self:
        return self if self.lengths else refuse(f"{self.name!r} is not ragged")

    @property
    def dense(self) -> Self:
        return refuse(f"{self.name!r} is ragged") if self.lengths else self

    @property
    def padded_rank(self) -> int:
        return self.rank + 1

    def cast(self, dtype: str) -> Self:
        return self.Cast(to=number_of(dtype))

    def swap_time(self, rank: int) -> Self:
        """Exchanges batch and time; what was exchanged is taken back."""
        swapped = self.op.swapped
        if self.name not in swapped:
            out = self.transpose(1, 0, *range(2, rank)).name
            swapped |= {self.name: out, out: self.name}
        return self.new(swapped[self.name])

    def reduce(self, kind: str, *axes: int, keepdims: int) -> Self:
        """Reduces axes, which are an attribute before opset 18 for most operators."""
        if self.op.opset >= became_inputs(kind)[0]:
            return getattr(self, kind)(axes, keepdims=keepdims)
        return getattr(self, kind)(axes=axes, keepdims=keepdims)

    # Of lengths (N,), and of a padded size T (1,).

    @property
    def steps(self) -> Self:
        """0, 1, ... T-1 as (T,) int64."""
        return self.new(self.op.emit("Range", 0, self.squeeze(0).name, 1))

    def mask(self, time: Self) -> Self:
        """Returns (N, T) bool, true inside the sequences."""
        return time.steps.Less(self.unsqueeze(1).cast("int64"))

    @property
    def longest(self) -> Self:
        """The length of the longest sequence, (1,) int64."""
        return self.ReduceMax(keepdims=1).cast("int64")

    # Of ragged values.

    @property
    def inside(self) -> Self:
        """(N, T) bool, true inside the sequences."""
        assert self.lengths is not None  # `ragged`
        key = (self.name, self.lengths.name)
        if key not in self.op.masks:
            self.op.masks[key] = self.lengths.mask(self.size(1))
        return self.op.masks[key]

    def end_with(self, rest: Any = 0) -> Self:
        """Puts a number, or a tensor, after each sequence."""
        mask = self.inside
        if self.padded_rank > 2:
            mask = mask.unsqueeze(*range(2, self.padded_rank))
        rest = rest if isinstance(rest, Tensor) else self.scalar(rest)
        return self.new(mask.Where(self, rest).name)

    @property
    def words(self) -> Self:
        """The steps of all sequences (W, ...); those of a dense value are its rows."""
        if not self.lengths:
            return self
        flat, sizes = self.inside.reshape(-1), self.Shape()
        shape = sizes.new(self.op.joined([-1], sizes.Slice([2], [2**31]).name))
        return self.Reshape(shape).Compress(flat, axis=0)

    def spread(self, lengths: Self, time: Self) -> Self:
        """Returns steps (W, ...) under lengths (N,), padded to T (1,)."""
        starts = lengths.cast("int64").CumSum(0, exclusive=1).unsqueeze(1)
        last = self.size(0).Sub([1])
        rows = self.Gather((starts + time.steps).Min(last))
        return rows.replace(rank=self.rank, lengths=lengths)

    def with_time(self, time: Self) -> Self:
        """Pads to T (1,), which is at least as long as the longest sequence."""
        cut = self.Slice([0], time, [1])
        more, zeros = time - cut.size(1), [0] * (self.padded_rank + 1)
        after = [[0] * (self.padded_rank - 2)] if self.padded_rank > 2 else []
        return self.replace(name=cut.Pad(time.new(self.op.joined(zeros, more.name, *after))).name)


# What the rules that write an ONNX model share: values, constants, names, the opset.

_SINCE = {
    "AveragePool": {"dilations": 19},
    "BatchNormalization": {"training_mode": 14},
    "Resize": {"antialias": 18, "axes": 18, "keep_aspect_ratio_policy": 18},
    "Reshape": {"allowzero": 14},
}
"""The first opset of an attribute, which may be 0 before."""


class GraphWriter(ProtoGraph):
    """An ONNX graph under construction, and what each value of the graph is called in it.

    ``functions`` takes those of the model's own, None: there must be none. ``domains``: those of
    its operators. ``precisions``: of layers, by their first outputs. ``node`` is written now, and
    ``inputs`` are its values, None if absent.
    """

    node: Node
    inputs: list[Any]

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

    def inner(self, graph: Graph, types: Mapping[str, Type], proto: Any = None) -> GraphWriter:
        """Returns what writes a graph inside this one, or more nodes of its own."""
        return GraphWriter(proto, self.opset, graph, types, self.functions, self)

    def value(self, name: str) -> OnnxValue:
        """Returns a value's tensor; a constant is written with its first use."""
        if name not in self._values:
            self.hold(name, self.graph.constants[name], name)
        return self._values[name]

    def hold(self, name: str, array: Array, hint: str = "") -> None:
        """Binds a value to a constant."""
        held = self.constant(array, name=hint)
        self._values[name] = OnnxValue(self, held, str(array.dtype), array.ndim)

    def bind(self, name: str, tensor: str, lengths: OnnxValue | None = None) -> OnnxValue:
        """Says what a value is called."""
        known = self.types[name]
        value = OnnxValue(self, tensor, known.dtype or "", len(known.counts), lengths)
        self._values[name] = value
        return value

    def begin(self, node: Node) -> None:
        """Turns to a node that is to be written."""
        self.node = node
        self.inputs = [self.value(name) if name else None for name in node.inputs]

    def give(self, values: Sequence[OnnxValue | None]) -> None:
        """Binds the outputs of the node that have names."""
        for name, value in zip(self.node.outputs, values, strict=False):
            if name and value and value.name:
                self.bind(name, value.name, value.lengths)

    def array(self, index: int, role: str) -> Array:
        """Returns the array of a constant input. Raises `UnsupportedError` if it is computed."""
        name = self.node.input(index)
        if name not in self.graph.constants:
            refuse(f"{role} {name!r} is computed at run time")
        return self.graph.constants[name]

    def attributes(self) -> dict[str, Any]:
        """Returns the attributes in ONNX's form. Raises `UnsupportedError` for those it has not."""
        node, attributes = self.node, dict(self.node.attributes)
        for name in ("non_negative", "rational", "together"):  # a check; how a runtime computes
            attributes.pop(name, None)
        if node.op == "Split" and not node.input(1) and self.opset >= 18:
            attributes["num_outputs"] = len(node.outputs)
        if node.op in ("Cast", "CastLike") and "to" in attributes:
            attributes["to"] = number_of(attributes["to"])
        for name, since in _SINCE.get(node.op, {}).items():
            if name in attributes and self.opset < since and attributes.pop(name) != 0:
                refuse(f"attribute {name} needs opset {since}")
        return attributes

    def copy(self, *inputs: Any, **attributes: Any) -> list[OnnxValue]:
        """Writes the operator as it is, of other inputs; returns its outputs."""
        outs = [self.fresh(name) if name else "" for name in self.node.outputs]
        domain = OPERATORS[self.node.op].domain
        self.domains |= {domain}
        names = [value.name if value else "" for value in inputs]
        self.add(self.node.op, *names, outputs=outs, domain=domain, **attributes)
        return [OnnxValue(self, name) for name in outs]
