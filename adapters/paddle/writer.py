"""The Paddle program that is written, and the table of rules that write nodes."""

from __future__ import annotations

import struct
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onernn.adapters.common.lowering import Names, Rules
from onernn.adapters.common.signatures import Signature
from onernn.adapters.common.writing import Rule as WritingRule
from onernn.adapters.paddle import messages
from onernn.adapters.paddle.lower import RULES as READING
from onernn.adapters.paddle.messages import CODES
from onernn.adapters.paddle.operators import OPERATORS
from onernn.adapters.paddle.read import Operator, feed_operators, fetch_operators
from onernn.adapters.paddle.table import PaddleBuilder, PaddleOperator, list_places
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, UnsupportedError
from onernn.ir.files import replacing_all
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.operator import OPERATORS as CANONICAL
from onernn.ir.records import dataclass
from onernn.ir.types import UNKNOWN, Type, type_of
from onernn.ops.control import types_inside

# Formats: paddle/fluid/framework/framework.proto, tensor_util.cc (TensorToStream) and
# lod_tensor.cc (SerializeToStream) of 2.6.

VERSION = 2006002
"""The version of Paddle 2.6.2's format, which 3.x also reads."""
_MOST_DIMS = 2**31 - 1  # attributes are int32

_OUTPUTS = {
    **{meaning.type: meaning.outputs for meaning in OPERATORS.values()},
    "sequence_pool": ("Out", "MaxIndex"),
    "crf_decoding": ("ViterbiPath",),
    "conv3d": ("Output",),
    "index_put": ("out",),
}
"""The output slots that an operator requires, the main slot first. Other operators have ``Out``."""


class VariableNames(Names):
    mark = "_"


def _check_dtype(name: str, dtype: str | None) -> None:
    if dtype not in CODES:
        raise UnsupportedError(
            f"{name!r}: expected one of {', '.join(CODES)}, got {dtype}; cast it first"
        )


@dataclass(eq=False)
class ProgramWriter:
    """A block of the program, and the data that all its blocks share.

    ``variables``: the types of the variables in the block, then in each block around it. ``kinds``:
    the VarType.Type of variables that are not tensors. ``fetches``: the block's variables that are
    read outside of it.
    """

    names: VariableNames
    feeds: list[str] = field(default_factory=list)
    fetches: list[str] = field(default_factory=list)
    operations: list[Operator] = field(default_factory=list)
    variables: ChainMap[str, Type] = field(default_factory=ChainMap)
    parameters: dict[str, Array] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    blocks: list[ProgramWriter] = field(default_factory=list)
    parent: int = -1
    index: int = 0

    def inner(self) -> ProgramWriter:
        """Returns a new block inside this one."""
        self.blocks.append(
            replace(
                self,
                feeds=[],
                fetches=[],
                operations=[],
                variables=self.variables.new_child(),
                parent=self.index,
                index=len(self.blocks) + 1,
            )
        )
        return self.blocks[-1]

    def parameter(self, array: Array, stem: str) -> str:
        name = self.names.fresh(stem)
        _check_dtype(name, array.dtype.name)
        self.parameters[name] = np.ascontiguousarray(array).reshape(array.shape)
        self.variables.maps[-1][name] = type_of(array)
        return name

    def list_needed_operations(self) -> list[Operator]:
        """Returns the operators that compute ``fetches``."""
        needed, operations = set(self.fetches), list[Operator]()
        for each in reversed(self.operations):
            if needed.intersection(each.writes):
                operations.insert(0, each)
                needed.update(each.reads)
        return operations

    def files(self) -> tuple[bytes, list[bytes]]:
        """Returns the bytes of ``.pdmodel``, and the bytes of each tensor of ``.pdiparams``."""
        operations = self.list_needed_operations()
        used = {*self.feeds, *self.fetches}
        for each in operations:
            used.update(each.reads, each.writes)
        if not self.parameters.keys() & used:  # paddle.inference cannot load an empty file
            used.add(self.parameter(np.zeros(1, np.float32), "none"))
        desc = messages.message("ProgramDesc")()
        desc.version.version = VERSION
        block = desc.blocks.add(idx=0, parent_idx=-1)
        for name, kind in (("feed", messages.FEED), ("fetch", messages.FETCH)):
            block.vars.add(name=name, persistable=True).type.type = kind
        for name in sorted(used):
            self._declare(block, name)
        for each in [*feed_operators(self.feeds), *operations, *fetch_operators(self.fetches)]:
            _write_operation(block, each)
        for inner in self.blocks:
            inner._add_to(desc)
        tensors = [_tensor(self.parameters[name]) for name in sorted(self.parameters.keys() & used)]
        return desc.SerializeToString(deterministic=True), tensors

    def _add_to(self, desc: Any) -> None:
        block = desc.blocks.add(idx=self.index, parent_idx=self.parent)
        operations = self.list_needed_operations()
        used = {name for each in operations for name in (*each.reads, *each.writes)}
        for name in sorted(used & self.variables.maps[0].keys()):
            self._declare(block, name)
        for each in operations:
            _write_operation(block, each)

    def _declare(self, block: Any, name: str) -> None:
        type_ = self.variables[name]
        desc = block.vars.add(name=name, persistable=name in self.parameters)
        desc.need_check_feed = name in self.feeds
        desc.is_parameter = desc.stop_gradient = name in self.parameters
        desc.type.type = self.kinds.get(name, messages.LOD_TENSOR)
        if desc.type.type == messages.SCOPES:
            return
        held = desc.type.lod_tensor if name not in self.kinds else desc.type.tensor_array
        held.lod_level = type_.depth
        held.tensor.data_type = CODES[type_.dtype or ""]
        held.tensor.dims.extend(-1 if size is None else size for size in type_.counts)


def save(program: ProgramWriter, path: Path) -> None:
    """Writes ``NAME.pdmodel`` and ``NAME.pdiparams``. Replaces old files when both new files are
    complete.
    """
    model, tensors = program.files()
    with replacing_all([path, path.with_suffix(".pdiparams")]) as (program_file, parameters):
        program_file.write(model)
        parameters.writelines(tensors)


def _tensor(array: Array) -> bytes:
    """Returns the bytes of a tensor in the format of `read.read_tensors`, without a LoD."""
    desc = messages.message("TensorDesc")(data_type=CODES[array.dtype.name])
    desc.dims.extend(array.shape)
    description = desc.SerializeToString()
    head = struct.pack("<IQIi", 0, 0, 0, len(description)) + description
    return head + array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


# The OpAttr field by Python type. For a list, the type of the first element decides.
_SINGLE = {bool: "b", int: "i", float: "f", str: "s"}
_LISTS = {bool: "bools", int: "ints", float: "floats", str: "strings"}


def _write_operation(block: Any, operation: Operator) -> None:
    op = block.ops.add(type=operation.type)
    for slots, into in ((operation.inputs, op.inputs), (operation.outputs, op.outputs)):
        for slot, names in slots.items():
            into.add(parameter=slot, arguments=names)
    for name, value in operation.attributes.items():
        several = isinstance(value, tuple)
        kind = type(value[0] if value else 0) if several else type(value)
        for number in value if several else [value]:
            if kind is int and abs(number) > _MOST_DIMS:
                raise UnsupportedError(
                    f"{operation.type}: attribute {name}={value}: expected integers of 32 bits"
                )
        member = "block_idx" if name == "sub_block" else (_LISTS if several else _SINGLE)[kind]
        number = messages.ATTRIBUTE_FIELDS.index(member)
        op.attrs.add(name=name, type=number, **{member: value})


ALL = 2**31 - 1
"""The value of ``ends`` that denotes the end of an axis."""


class Variable:
    """A variable of the program that is written. Paddle's operators are its methods.

    ``x.cumsum(axis=0)`` appends an operator with x in its first slot, and returns its main output.
    A keyword argument that is a variable, a list of variables or None fills a slot. Other keyword
    arguments are attributes. The operators +, - and * broadcast like NumPy. An integer operand
    becomes an int64 constant (1,).
    """

    def __init__(self, w: Writing, name: str) -> None:
        self.w, self.name = w, name

    def __getattr__(self, kind: str) -> Callable[..., Variable]:
        if kind not in READING:
            raise AttributeError(kind)
        return partial(self.w.emit, kind, self)

    @property
    def type(self) -> Type:
        return self.w.program.variables[self.name]

    @property
    def dtype(self) -> str:
        return self.type.dtype or ""

    @property
    def sizes(self) -> tuple[int | None, ...]:
        return self.type.counts

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def depth(self) -> int:
        """The number of LoD levels."""
        return self.type.depth

    @property
    def known(self) -> Array | None:
        """The constant's array; None if the variable is not a constant."""
        return self.w.program.parameters.get(self.name)

    @property
    def array(self) -> Array:
        """The constant's array. Raises `UnsupportedError` if the variable is not a constant."""
        if self.known is None:
            raise UnsupportedError(f"{self.name!r} is computed at run time, expected a constant")
        return self.known

    def binary(self, kind: str, other: Variable | int) -> Variable:
        """Returns the output of a new elementwise operator."""
        y = self.w.number(other) if isinstance(other, int) else other
        return self.w.emit(kind, self, Y=y, axis=-1)

    def __add__(self, other: Variable | int) -> Variable:
        return self.binary("elementwise_add", other)

    def __sub__(self, other: Variable | int) -> Variable:
        return self.binary("elementwise_sub", other)

    def __mul__(self, other: Variable | int) -> Variable:
        return self.binary("elementwise_mul", other)

    def scale_by(self, factor: float) -> Variable:
        return self.scale(scale=float(factor), bias=0.0, bias_after_scale=True)

    def copy(self) -> Variable:
        return self.assign()

    def under(self, like: Variable) -> Variable:
        """Returns this variable with the LoD of another variable."""
        return self.lod_reset(Y=like)

    @property
    def dense(self) -> Variable:
        """The variable without its LoD, which a slice of axis 0 drops."""
        if not self.depth:
            return self
        return self.slice(axes=[0], starts=[0], ends=[ALL], infer_flags=[1])

    def check_levels(self) -> Variable:
        """Returns this variable. Raises `UnsupportedError` if it does not have one LoD level."""
        if self.depth != 1:
            raise UnsupportedError(f"{self.name!r}: expected 1 LoD levels, got {self.depth}")
        return self

    def cast(self, dtype: str, *, always: bool = False) -> Variable:
        """Returns the variable in this dtype. Without ``always``, a variable that has the dtype is
        not cast.
        """
        if self.dtype == dtype and not always:
            return self
        codes = {"in_dtype": CODES[self.dtype], "out_dtype": CODES[dtype]}
        return self.w.emit("cast", self, **codes)

    def reshape(self, *sizes: int, computed: Variable | None = None) -> Variable:
        """Reshapes to ``sizes``, 0 for the input's size and -1 for an inferred size, or to
        ``computed``.
        """
        shape = computed and computed.cast("int32")
        return self.reshape2(Shape=shape, shape=sizes)

    def resize(self, *sizes: int | Variable) -> Variable:
        """Reshapes to these sizes. A computed size is int64 of shape (1,)."""
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) == len(sizes):
            return self.reshape(*known)
        parts = [self.w.number(size) if isinstance(size, int) else size for size in sizes]
        return self.reshape(*[-1] * len(sizes), computed=self.w.concat(parts, 0))

    def before(self, axis: int) -> Variable:
        """Returns, for each element, the sum of the previous elements along an axis.

        Does not use Paddle's exclusive cumsum, which returns a single element unchanged.
        """
        x = self.dense
        return x.cumsum(axis=axis, flatten=False, exclusive=False, reverse=False) - x

    def transpose(self, *perm: int) -> Variable:
        return self.transpose2(axis=perm)

    def swap(self) -> Variable:
        """Returns the variable with its first two axes, batch and time, exchanged."""
        return self.transpose(1, 0, *range(2, self.rank))

    def take(self, cuts: Mapping[int, tuple[int, int]], gone: Sequence[int] = ()) -> Variable:
        """Returns a slice. ``cuts``: (start, end) by axis. ``gone``: cut axes of size one to
        remove.
        """
        starts, ends = zip(*cuts.values(), strict=True)
        flags = [1] * len(cuts)
        return self.slice(
            axes=tuple(cuts), starts=starts, ends=ends, infer_flags=flags, decrease_axis=gone
        )

    def size(self, axis: int) -> Variable:
        """Returns the size of an axis as int64 of shape (1,)."""
        return self.shape().take({0: (axis, axis + 1)}).cast("int64")

    def size_or_number(self, axis: int) -> int | Variable:
        """Returns the size of an axis. If the size is known only at run time, returns `size`."""
        known = self.sizes[axis]
        return self.size(axis) if known is None else known

    def split(self, axis: int, count: int, sections: Sequence[int] = ()) -> Sequence[Variable]:
        """Returns parts of the sizes ``sections``, or ``count`` parts of one size."""
        number = 0 if sections else count
        return self.w.emit_all(
            "split", self, {"Out": count}, axis=axis, num=number, sections=sections
        )["Out"]


@dataclass(frozen=True)
class Padded:
    """The padded form of a ragged value: ``data`` (T, N, ...), and ``lengths`` (N,) in int64.

    ``like``: the name of the padded value in the graph. ``time_major``: whether that value has the
    layout (T, N, ...). ``zeros``: whether the padding in ``data`` is zero, as later operators
    require.
    """

    data: Variable
    lengths: Variable
    like: str
    time_major: bool
    zeros: bool


Input = Variable | Sequence[Variable | None] | None
"""The contents of an operator's slot."""


@dataclass(eq=False)
class Writing:
    """A program that is written from a graph's nodes. ``node``: the current node.

    ``fused``: whether recurrent layers become fusion_gru and fusion_lstm. ``place``: "cpu" or
    "onednn".

    The rule that reads an operator runs when the operator is written. It infers the dtype, sizes
    and LoD of the results.
    """

    graph: Graph
    program: ProgramWriter
    fused: bool
    place: str
    inputs: list[Variable | None] = field(default_factory=list)
    padded: dict[str, Padded] = field(default_factory=dict)
    unplaced: list[Refusal] = field(default_factory=list)
    types: Mapping[str, Type] = field(default_factory=dict)
    _values: dict[str, str] = field(default_factory=dict)
    _makers: dict[str, int] = field(default_factory=dict)
    _reader: PaddleBuilder = field(default_factory=lambda: PaddleBuilder("written"))

    def __post_init__(self) -> None:
        self.types = self.types or self.graph.types

    def write(self, node: Node) -> None:
        if node.op not in RULES:
            other = "; ONNX has one: write .onnx" if CANONICAL[node.op].since else ""
            raise UnsupportedError(f"operator {node.op} has no equivalent in Paddle{other}")
        for name in filter(None, (*node.inputs, *node.outputs)):
            if name in self.types:
                _check_dtype(name, self.types[name].dtype)
        self.node = node
        results = RULES[node.op](self)
        for name, result in zip(
            node.outputs, results if isinstance(results, tuple) else (results,), strict=False
        ):
            if name and result:
                self._give(name, result)

    def value(self, name: str) -> Variable:
        """Returns the variable of a graph's value. A constant becomes a parameter when it is first
        used.
        """
        if name not in self._values:
            self._values[name] = self.constant(self.graph.constants[name], name).name
        return Variable(self, self._values[name])

    def constant(self, array: npt.ArrayLike, stem: str = "constant") -> Variable:
        array = np.asarray(array)
        name = self.program.parameter(array, stem)
        self._reader.give(name, self._reader.constant(array, name))
        return Variable(self, name)

    def number(self, value: int) -> Variable:
        """Returns an int64 constant of shape (1,)."""
        return self.constant(np.full(1, value), "number")

    def feed(self, value: Value) -> None:
        """Adds a feed for an input of the graph, with the same name."""
        _check_dtype(value.name, value.dtype)
        self.program.feeds.append(value.name)
        self.program.variables[value.name] = value.type
        self._reader.input(value)
        self._values[value.name] = value.name

    def stand_in(self, name: str) -> None:
        """Declares a variable for an output of a refused node."""
        self._values[name] = self.enter(name, self.types[name]).name

    def enter(self, name: str, known: Type) -> Variable:
        """Declares a variable of a known type, and returns it."""
        self.program.variables.setdefault(name, known)
        if not self._reader.holds(name):
            self._reader.input(Value(name, known.dtype, known.counts, known.depth))
            self._reader.declare(name, known)
        return Variable(self, name)

    def declare(self, known: Type, stem: str, kind: int = messages.LOD_TENSOR) -> Variable:
        """Returns a new variable that no operator computes yet."""
        name = self.program.names.fresh(stem)
        self.program.variables[name] = known
        if kind == messages.LOD_TENSOR:
            return self.enter(name, known)
        self.program.kinds[name] = kind
        return Variable(self, name)

    def block(self, key: str, inputs: Sequence[Variable]) -> Writing:
        """Returns an inner block for the graph in the node's attribute ``key``. ``inputs``: the
        variables for the last inputs of that graph.
        """
        graph: Graph = self.node.attributes[key]
        known = types_inside(self.node, key, [self.types.get(name) for name in self.node.inputs])
        names = [value.name for value in graph.inputs]
        types = graph.infer_types(dict(zip(names, known, strict=True)))
        inner = Writing(graph, self.program.inner(), self.fused, self.place, types=types)
        for name, value in zip(names[len(names) - len(inputs) :], inputs, strict=True):
            inner._values[name] = inner.take(value).name
        return inner

    def bind(self, name: str, variable: Variable) -> None:
        """Sets the variable for an input of the block."""
        self._values[name] = variable.name

    def take(self, outer: Variable) -> Variable:
        """Makes a variable of an outer block readable in this block, and returns it."""
        if outer.known is not None and not self._reader.holds(outer.name):
            self._reader.give(outer.name, self._reader.constant(outer.known, outer.name))
        return self.enter(outer.name, outer.type)

    def nest(self, kind: str, inputs: Any, outputs: Any, **attributes: Any) -> None:
        """Appends an operator with blocks or tensor arrays. Does not infer the types of its
        outputs.
        """
        slots, results = ({k: _names(v) for k, v in each.items()} for each in (inputs, outputs))
        at = len(self.program.operations)
        self.program.operations.append(Operator(at, kind, slots, results, attributes))

    def reads(self) -> list[Variable]:
        """Returns the variables of outer blocks that this block reads."""
        operations = self.program.list_needed_operations()
        names = {name for each in operations for name in each.reads}
        return [
            Variable(self, name) for name in sorted(names - self.program.variables.maps[0].keys())
        ]

    def fetch(self, name: str) -> None:
        """Adds a fetch for an output of the graph, with the same name."""
        if (held := self.value(name)).name != name:  # a second name for the same variable
            self._rename(held.copy(), name)
        self.program.fetches.append(name)

    def emit(self, kind: str, x: Input, /, **more: Any) -> Variable:
        """Appends an operator, as `Variable` describes. Returns its main output."""
        outputs = dict.fromkeys(_OUTPUTS.get(kind, ("Out",)), 1)
        return next(iter(self.emit_all(kind, x, outputs, **more).values()))[0]

    def emit_all(
        self, kind: str, x: Input, outputs: Mapping[str, int | Variable], /, **more: Any
    ) -> dict[str, tuple[Variable, ...]]:
        """Appends an operator like `emit`. ``outputs``: the number of new variables in each slot,
        or an existing variable.

        The first slot is the main one.
        """
        rule = READING[kind]
        first = next(iter((*rule.slots, rule.rest))) if isinstance(rule, Signature) else "X"
        slots = {first: x, **{k: v for k, v in more.items() if _is_input(v)}}
        inputs = {slot: names for slot, value in slots.items() if (names := _names(value))}
        attributes = {
            name: tuple(value) if isinstance(value, list | range) else value
            for name, value in more.items()
            if name not in slots
        }
        results: dict[str, tuple[str, ...]] = {}
        for slot, target in outputs.items():
            if isinstance(target, Variable):
                results[slot] = (target.name,)
                continue
            stem = f"{kind}.{slot if results else 'out'}"
            results[slot] = tuple(self.program.names.fresh(stem) for _ in range(target))
            self._makers.update(dict.fromkeys(results[slot], len(self.program.operations)))
        op = Operator(len(self.program.operations), kind, inputs, results, attributes)
        self.program.operations.append(op)
        self._read(op)
        return {slot: tuple(Variable(self, n) for n in names) for slot, names in results.items()}

    def _read(self, op: Operator) -> None:
        """Infers the types of an operator's outputs. Side outputs get the type of the main
        output.
        """
        results = PaddleOperator(self._reader, {}, op, VERSION).run_rule(READING[op.type])
        like = UNKNOWN
        for place, name in (
            e for slot, names in op.outputs.items() for e in list_places(slot, names)
        ):
            if place in results:
                self._reader.give(name, results[place])
                like = self._reader.type_of(self._reader.value(name))
                if None in (like.dtype, like.shape, like.lod):
                    raise UnsupportedError(
                        f"Paddle's {op.type}: expected a result of known dtype, axes and LoD;"
                        " declare the model's inputs (--input)"
                    )
            self.program.variables.setdefault(name, like)

    def _give(self, name: str, variable: Variable) -> None:
        """Sets the variable for an output of the node. The variable gets as many LoD levels as the
        graph declares.
        """
        expected = self.types[name]
        if expected.depth and variable.depth != expected.depth:
            variable = variable.under(self._like(expected.depth))
        elif not expected.depth:
            variable = variable.dense
        if (variable.dtype, variable.rank) != (expected.dtype, expected.rank):
            raise UnsupportedError(
                f"{name!r}: expected {expected}, got {variable.type} from Paddle's operators"
            )
        inside = self.program.index > 0  # two blocks may use the same name
        self._values[name] = variable.name if inside else self._rename(variable, name)
        if self._values[name] == name:
            self.program.variables[name] = expected

    def concat(self, variables: Sequence[Variable], axis: int) -> Variable:
        return self.emit("concat", variables, axis=axis)

    def fill(self, shape: Variable, value: Any) -> Variable:
        """Returns a variable of a computed shape (int64 or int32), filled with a number."""
        number = np.asarray(value)
        return self.emit(
            "fill_constant",
            None,
            ShapeTensor=shape.cast("int32"),
            value=float(value),
            dtype=CODES[number.dtype.name],
            str_value=str(number),
        )

    def ones(self, *sizes: Variable) -> Variable:
        """Returns ones. Each size is int64 of shape (1,)."""
        return self.fill(self.concat(sizes, 0), np.ones((), np.int64))

    def _like(self, depth: int) -> Variable:
        for name in self.node.inputs:
            if name in self._values and self.value(name).depth == depth:
                return self.value(name)
        raise UnsupportedError(f"expected an input with {depth} LoD levels, got none")

    def _rename(self, variable: Variable, new: str) -> str:
        """Renames a variable if its name is generated. Returns the variable's name."""
        old = variable.name
        place = self._makers.pop(old, None)
        if place is None:
            return old
        operations = self.program.operations
        for at in range(place, len(operations)):
            inputs, outputs = (
                {slot: tuple(new if n == old else n for n in names) for slot, names in each.items()}
                for each in (operations[at].inputs, operations[at].outputs)
            )
            operations[at] = replace(operations[at], inputs=inputs, outputs=outputs)
        self.program.variables[new] = self.program.variables.pop(old)
        self._reader.give(new, self._reader.value(old))
        return new


def _is_input(value: Any) -> bool:
    """Returns whether a keyword argument fills a slot; see `Variable`."""
    values = value if isinstance(value, list | tuple) and value else [value]
    return all(each is None or isinstance(each, Variable) for each in values)


def _names(value: Input) -> tuple[str, ...]:
    values = [value] if isinstance(value, Variable) else value or ()
    return tuple(each.name for each in values if each is not None)


class Rule(WritingRule):
    """A rule that refuses an attribute if neither the rule's signature nor ``attributes`` names
    it.
    """

    def __init__(self, function: Callable[..., Any], attributes: Iterable[str] = ()) -> None:
        super().__init__(function)
        self.attributes = {*attributes, *self.keywords}

    def __call__(self, w: Writing) -> Variable | tuple[Variable | None, ...]:
        """Returns the variable of the output, or the variables of all outputs."""
        if unknown := sorted({*w.node.attributes} - self.attributes - _OF_A_RUNTIME):
            raise UnsupportedError(
                f"attributes {', '.join(unknown)} have no equivalent in Paddle; write .onnx"
            )
        w.inputs = [w.value(name) if name else None for name in w.node.inputs]
        return super().__call__(w)


rule = RULES = Rules[Rule](Rule)
"""The rules by canonical operator. ``rule`` registers a function that writes these operators."""
_OF_A_RUNTIME = {"rational", "together"}
"""Attributes that describe ONNX Runtime's rounding. They are not written."""


def integers(x: Variable | None) -> list[int]:
    """Returns the integers of a constant, an empty list if it is absent."""
    return [] if x is None else [int(number) for number in x.array.reshape(-1)]
