"""ONNX graphs under construction: protobuf messages, padding of ragged values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Self

import numpy as np

from onernn.adapters.common.lowering import Names, Operand, Tape
from onernn.adapters.common.signatures import Tensor, refuse
from onernn.adapters.onnx.opsets import NEGATIVE, Need, later_attribute
from onernn.adapters.onnx.read import ATTRIBUTE_FIELDS, MESSAGES, NUMBERS, native_graph
from onernn.adapters.onnx.rules import became_inputs
from onernn.ir.arrays import Array, bfloat16_bits
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass
from onernn.ir.types import Type
from onernn.ir.weights import LayerPrecision
from onernn.ops import OPERATORS

_ATTRIBUTE_TYPES = {field: number for number, field in ATTRIBUTE_FIELDS.items()}

_SHARED = 64  # the largest number of elements of a shared constant


@dataclass(eq=False)
class WrittenModel:
    """The state that all graphs of a model under construction share.

    ``narrow``: the dtype in which float32 arrays of two axes or more are stored; a Cast widens
    them. ``functions``: the model's own functions; None if it must not have any. ``domains``: the
    domains of its operators. ``precisions``: the precisions of layers, by their first outputs.
    ``fresh``: a function that returns a name unchanged if it is unused, else a new name.
    ``arrays``: the constants by name. ``label``: the label of the current node. ``labels``: the
    labels of nodes by their outputs. ``needs``: reasons for a newer opset that no schema lists.
    """

    opset: int
    narrow: str = "float32"
    functions: dict[str, Any] | None = None
    domains: set[str] = field(default_factory=set)
    precisions: dict[str, LayerPrecision] = field(default_factory=dict)
    fresh: Callable[[str], str] = field(default_factory=lambda: Names({"": 0}).fresh)
    arrays: dict[str, Array] = field(default_factory=dict)
    label: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    needs: list[Need] = field(default_factory=list)

    def need(self, opset: int, reason: str) -> None:
        """Records that the current node needs an opset, for a reason that no schema lists."""
        if self.opset < opset:
            self.needs.append(Need(opset, self.label, reason))


class ProtoGraph(Tape):
    """A GraphProto under construction, which is the graph of ``model``, or the body of an operator
    or function.

    ``masks``, ``swapped``: the masks and transposed values that the graph already computes.
    """

    def __init__(self, model: WrittenModel, proto: Any = None) -> None:
        self.proto = MESSAGES.message("GraphProto")() if proto is None else proto
        self.proto.name = "onernn"
        self.model, self.fresh = model, model.fresh
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.masks: dict[tuple[str, str], Any] = {}
        self.swapped: dict[str, str] = {}

    def constant(self, array: Any, dtype: str | None = None, name: str = "") -> str:
        """Adds a constant and returns its name. Small equal constants are shared, unless ``name``
        is given.
        """
        array = np.asarray(array, dtype)
        if name or array.size > _SHARED:
            return self._store(array, self.fresh(name or "constant"))
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self._store(array, self.fresh("constant"))
        return self._constants[key]

    def _store(self, array: Array, name: str) -> str:
        dtype, stored, narrow = str(array.dtype), name, self.model.narrow
        self.model.arrays[name] = array
        if narrow != "float32" == dtype and array.ndim > 1:
            dtype, stored = narrow, self.fresh(f"{name}/{narrow}")
            self.add("Cast", stored, outputs=(name,), to=NUMBERS["float32"])
        if dtype == "float16" and array.dtype == np.float32:
            with np.errstate(over="ignore"):
                array, wide = array.astype(np.float16), array
            if not np.array_equal(np.isfinite(array), np.isfinite(wide)):
                refuse(f"weight {name!r}: expected values that fit into float16; use bfloat16")
        self.proto.initializer.append(tensor(array, stored, dtype))
        return name

    def ints(self, *values: int | None) -> str:
        return self.constant(values, "int64")

    def add(
        self, op: str, *inputs: str, outputs: Sequence[str], domain: str = "", **attributes: Any
    ) -> None:
        """Adds a node with these inputs and outputs; absent inputs at the end are left out.

        If the opset has an attribute in place of an input, a constant input is written as this
        attribute. An attribute that is newer than the opset is left out if it has its default.
        """
        if not domain:
            since, names = became_inputs(op)
            if self.model.opset < since:
                inputs, attributes = self._as_attributes(names, inputs, attributes)
            for name, value in [*attributes.items()]:
                if value in later_attribute(op, name, self.model.opset):
                    del attributes[name]
        given = inputs[: max((at for at, name in enumerate(inputs, 1) if name), default=0)]
        fields = [_attribute(name, value) for name, value in attributes.items()]
        self.model.labels |= dict.fromkeys(outputs, self.model.label)
        self.proto.node.add(
            op_type=op, input=given, output=outputs, domain=domain, attribute=fields
        )

    def _as_attributes(
        self, names: Sequence[str], inputs: tuple[str, ...], attributes: dict[str, Any]
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Returns the inputs and attributes after the inputs ``names`` became attributes; both stay
        unchanged if such an input is not constant.
        """
        arrays, rest = self.model.arrays, inputs[1 + len(names) :]
        given = {k: v for k, v in zip(names, inputs[1:], strict=False) if v}
        if any(rest) or not all(each in arrays for each in given.values()):
            return inputs, attributes
        lists = {k: arrays[v].reshape(-1).tolist() for k, v in given.items()}
        single = ("k", "min", "max", "value")
        more = {k: v[0] if k in single else v for k, v in lists.items() if v}
        return inputs[:1], {**attributes, **more}

    def emit(self, op: str, *inputs: Operand, **attributes: Any) -> str:
        """Adds a node with one output and returns the output's name."""
        return self.emit_many(op, 1, *inputs, **attributes)[0]

    def emit_many(self, op: str, count: int, *inputs: Operand, **attributes: Any) -> list[str]:
        named, outs = self.name_operands(inputs), [self.fresh(op.lower()) for _ in range(count)]
        self.add(op, *named, outputs=outs, **attributes)
        return outs

    def scalar(self, value: float, dtype: str) -> str:
        return self.constant(value, dtype)

    def input(self, name: str, dtype: str) -> OnnxValue:
        """Returns a new input of a body; its type comes from the outer graph."""
        chosen = self.fresh(name)
        self.proto.input.add(name=chosen)
        return OnnxValue(self, chosen, dtype)

    def output(self, *values: OnnxValue) -> None:
        """Adds outputs of a body."""
        for value in values:
            self.proto.output.add(name=value.name)

    def scan(
        self,
        body: ProtoGraph,
        states: Sequence[OnnxValue],
        scanned: Sequence[OnnxValue],
        outputs: Sequence[str],
        backwards: int = 0,
    ) -> list[OnnxValue]:
        """Adds a Scan and returns its outputs: the final states, then the values collected from all
        steps.
        """
        names = [self.fresh(name) for name in outputs]
        body.prune()
        self.add(
            "Scan",
            *(each.name for each in (*states, *scanned)),
            outputs=names,
            body=body,
            num_scan_inputs=len(scanned),
            scan_input_directions=[backwards] * len(scanned),
            scan_output_directions=[backwards] * (len(names) - len(states)),
        )
        return [*map(states[0].new, names)]

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
        self, name: str, domain: str, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Any:
        """Returns the graph as a FunctionProto, in which constants become nodes."""
        opset = {"domain": "", "version": self.model.opset}
        out = MESSAGES.message("FunctionProto")(
            name=name, domain=domain, input=inputs, output=outputs, opset_import=[opset]
        )
        for each in self.proto.initializer:
            value = {"name": "value", "type": _ATTRIBUTE_TYPES["t"], "t": each}
            out.node.add(op_type="Constant", output=(each.name,), attribute=[value])
        out.node.extend(self.proto.node)
        return out


def number_of(dtype: str) -> int:
    """Returns ONNX's number of a dtype, given NumPy's name."""
    if dtype not in NUMBERS:
        raise UnsupportedError(f"dtype {dtype}: expected one of {', '.join(NUMBERS)}")
    return NUMBERS[dtype]


def tensor(array: Array, name: str, dtype: str) -> Any:
    """Returns a TensorProto; a float32 array may be stored as bfloat16.

    The values must not overflow in bfloat16.
    """
    array = bfloat16_bits(array) if dtype == "bfloat16" else array
    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return MESSAGES.message("TensorProto")(
        name=name, dims=array.shape, data_type=number_of(dtype), raw_data=data
    )


def value_info(name: str, dtype: str, shape: Sequence[int | str | None]) -> Any:
    """Returns a ValueInfoProto with this type; a size is a number, a name, or None."""
    fields = {int: "dim_value", str: "dim_param"}
    sizes = [{} if size is None else {fields[type(size)]: size} for size in shape]
    kind = {"elem_type": number_of(dtype), "shape": {"dim": sizes}}
    return MESSAGES.message("ValueInfoProto")(name=name, type={"tensor_type": kind})


def _attribute(name: str, value: Any) -> Any:
    single = isinstance(value, str) or not hasattr(value, "__len__")
    if isinstance(value, ProtoGraph):
        field, value = "g", value.proto
    elif isinstance(value, np.ndarray):
        field, value = "t", tensor(value, "", str(value.dtype))
    else:
        values = [value] if single else value
        if values and all(isinstance(each, str) for each in values):
            field, values = "s", [each.encode() for each in values]
        elif all(isinstance(each, int | np.integer) for each in values):
            field, values = "i", [int(each) for each in values]
        else:
            field, values = "f", [float(each) for each in values]
        many = {"s": "strings", "i": "ints", "f": "floats"}[field]
        field, value = (field, values[0]) if single else (many, values)
    return {"name": name, "type": _ATTRIBUTE_TYPES[field], field: value}


# Ragged values in ONNX: padded tensors (N, T, ...) and their lengths.


class OnnxValue(Tensor):
    """A tensor of the graph ``op`` under construction; ONNX's operators are its methods.

    ``rank``: the rank of the canonical graph's value. ``lengths``: the lengths (N,) int32 of a
    ragged value. The tensor is padded, (N, T, ...), and the padding may hold any values.
    """

    dtype: str = ""  # type: ignore[assignment]
    rank: int = 0

    def __init__(
        self, op: Any, name: str, dtype: str = "", rank: int = 0, lengths: OnnxValue | None = None
    ) -> None:
        super().__init__(op, name)
        self.dtype, self.rank, self.lengths = dtype, rank, lengths

    def new(self, name: str) -> Self:
        """Returns the tensor of this name, with the same graph and dtype."""
        return type(self)(self.op, name, self.dtype)

    def replace(self, **changes: Any) -> Self:
        parts = {k: getattr(self, k) for k in ("op", "name", "dtype", "rank", "lengths")}
        return type(self)(**{**parts, **changes})

    def under(self, lengths: OnnxValue | None) -> Self:
        """Returns this tensor as a padded batch of sequences with these lengths."""
        return self.replace(lengths=lengths)

    @property
    def ragged(self) -> Self:
        return self if self.lengths else refuse(f"{self.name!r}: expected ragged, got dense")

    @property
    def dense(self) -> Self:
        return refuse(f"{self.name!r}: expected dense, got ragged") if self.lengths else self

    def cast(self, dtype: str) -> Self:
        return self.Cast(to=number_of(dtype))

    def swap_time(self, rank: int) -> Self:
        """Exchanges batch and time; exchanging twice returns the original tensor."""
        swapped = self.op.swapped
        if self.name not in swapped:
            out = self.transpose(1, 0, *range(2, rank)).name
            swapped |= {self.name: out, out: self.name}
        return self.new(swapped[self.name])

    def reduce(self, kind: str, *axes: int, keepdims: int) -> Self:
        return getattr(self, kind)(axes, keepdims=keepdims)

    # Properties and methods of lengths (N,), and of a padded size T (1,).

    @property
    def steps(self) -> Self:
        """The integers 0, 1, ... T-1 as (T,) int64; this value is T."""
        return self.new(self.op.emit("Range", 0, self.squeeze(0).name, 1))

    def mask(self, time: Self) -> Self:
        """Returns a mask (N, T) bool that is true inside the sequences."""
        return time.steps.Less(self.unsqueeze(1).cast("int64"))

    @property
    def longest(self) -> Self:
        """The length of the longest sequence, which is int64 (1,)."""
        return self.ReduceMax(keepdims=1).cast("int64")

    # Properties and methods of ragged values.

    @property
    def inside(self) -> Self:
        """The mask (N, T) bool that is true inside the sequences."""
        assert self.lengths is not None  # `ragged`
        key = (self.name, self.lengths.name)
        if key not in self.op.masks:
            self.op.masks[key] = self.lengths.mask(self.size(1))
        return self.op.masks[key]

    def end_with(self, rest: Any = 0) -> Self:
        """Returns the tensor with its padding replaced by a number or a tensor."""
        mask, inner = self.inside, range(2, self.rank + 1)
        mask = mask.unsqueeze(*inner) if inner else mask
        rest = rest if isinstance(rest, Tensor) else self.scalar(rest)
        return self.new(mask.Where(self, rest).name)

    @property
    def words(self) -> Self:
        """The steps of all sequences (W, ...); a dense value is returned unchanged."""
        if not self.lengths:
            return self
        flat, sizes = self.inside.reshape(-1), self.Shape()
        shape = sizes.new(self.op.join([-1], sizes.Slice([2], [2**31]).name))
        return self.Reshape(shape).Compress(flat, axis=0)

    def spread(self, lengths: Self, time: Self) -> Self:
        """Returns steps (W, ...) as sequences with ``lengths`` (N,), padded to ``time`` (1,)
        steps.
        """
        starts = lengths.cast("int64").CumSum(0, exclusive=1).unsqueeze(1)
        last = self.size(0).Sub([1])
        rows = self.Gather((starts + time.steps).Min(last))
        return rows.replace(rank=self.rank, lengths=lengths)

    def with_time(self, time: Self) -> Self:
        """Returns the tensor padded or cut to ``time`` (1,) steps. ``time`` is at least the longest
        length.
        """
        cut = self.Slice([0], time, [1])
        more, after = time - cut.size(1), [0] * (self.rank - 1)
        pads = self.op.join([0] * (self.rank + 2), more.name, *([after] if after else []))
        return self.replace(name=cut.Pad(time.new(pads)).name)


# The class with which rules write a graph: values, constants, names, the opset.


class GraphWriter(ProtoGraph):
    """An ONNX graph under construction, which is written from the canonical graph ``graph``.

    ``node``: the node that is being written. ``inputs``: the tensors of its inputs, None if absent.
    """

    node: Node
    inputs: list[Any]

    def __init__(
        self, model: WrittenModel, graph: Graph, types: Mapping[str, Type], proto: Any = None
    ) -> None:
        super().__init__(model, proto)
        self.types, self.graph = types, graph
        self._values: dict[str, OnnxValue] = {}

    def value(self, name: str) -> OnnxValue:
        """Returns a value's tensor; a constant is written when it is first used."""
        if name not in self._values:
            self.bind(name, self.constant(self.graph.constants[name], name=name))
        return self._values[name]

    def bind(self, name: str, tensor: str, lengths: OnnxValue | None = None) -> OnnxValue:
        """Records the tensor of a graph's value."""
        known = self.types[name]
        value = OnnxValue(self, tensor, known.dtype or "", len(known.counts), lengths)
        self._values[name] = value
        return value

    def stand_in(self, name: str) -> None:
        """Gives an output of a node that cannot be written a new name, so that the writer can try
        later nodes.
        """
        lengths = OnnxValue(self, self.fresh("lengths")) if self.types[name].depth else None
        self.bind(name, self.fresh(name), lengths)

    def array(self, index: int, role: str) -> Array:
        """Returns the array of a constant input. Raises `UnsupportedError` if the input is not
        constant.
        """
        name = self.node.input(index)
        if name not in self.graph.constants:
            refuse(f"{role} {name!r} is computed at run time, expected a constant")
        return self.graph.constants[name]

    def attributes(self) -> dict[str, Any]:
        """Returns the attributes in ONNX's form. Raises `UnsupportedError` for attributes that ONNX
        does not have.
        """
        node, attributes = self.node, dict(self.node.attributes)
        for name in ("non_negative", "rational", "together"):  # a check, or hints for a runtime
            attributes.pop(name, None)
        if node.op == "Split" and not node.input(1) and self.model.opset >= 18:
            attributes["num_outputs"] = len(node.outputs)
        if node.op in ("Cast", "CastLike") and "to" in attributes:
            attributes["to"] = number_of(attributes["to"])
        axis, x = attributes.get("axis", 0), self.inputs[0]
        if self.model.opset < NEGATIVE and axis < 0 and node.op != "OneHot" and x:
            attributes["axis"] = axis + x.rank
        return attributes

    def copy(self, *inputs: Any, **attributes: Any) -> list[OnnxValue]:
        """Writes the current node's operator with these inputs and attributes; returns its
        outputs.
        """
        outs = [self.fresh(name) if name else "" for name in self.node.outputs]
        domain = OPERATORS[self.node.op].domain
        self.model.domains.add(domain)
        names = [value.name if value else "" for value in inputs]
        self.add(self.node.op, *names, outputs=outs, domain=domain, **attributes)
        return [OnnxValue(self, name) for name in outs]
