"""A Paddle program under construction, and the rules by which nodes are written."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onernn.adapters.common.lowering import Names
from onernn.adapters.common.writing import NodeWriter
from onernn.adapters.paddle import messages
from onernn.adapters.paddle.lower import RULES as READING
from onernn.adapters.paddle.messages import CODES
from onernn.adapters.paddle.operators import OPERATORS
from onernn.adapters.paddle.read import Operator
from onernn.adapters.paddle.table import PaddleBuilder, PaddleOperator, listed
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, UnsupportedError
from onernn.ir.files import replacing_all
from onernn.ir.graph import Graph, Value
from onernn.ir.records import dataclass
from onernn.ir.types import UNKNOWN, Type, type_of

# A Paddle program under construction: operators, variables, parameters; and its two files.
#
# Formats: paddle/fluid/framework/framework.proto, tensor_util.cc (TensorToStream) and
# lod_tensor.cc (SerializeToStream) of 2.6.

VERSION = 2006002
"""Of the format: that of Paddle 2.6.2, which 3.x reads, too."""
_MOST_DIMS = 2**31 - 1  # attributes are int32

_OUTPUTS = {
    **{meaning.type: meaning.outputs for meaning in OPERATORS.values()},
    "sequence_pool": ("Out", "MaxIndex"),
    "crf_decoding": ("ViterbiPath",),
}
"""The output slots that an operator insists on, the main one first; ``Out`` for all others."""


class VariableNames(Names):
    mark = "_"


@dataclass(eq=False)
class ProgramWriter:
    """Block 0, and the names of its variables."""

    names: VariableNames
    feeds: list[str] = field(default_factory=list)
    fetches: list[str] = field(default_factory=list)
    operations: list[Operator] = field(default_factory=list)
    variables: dict[str, Type] = field(default_factory=dict)
    parameters: dict[str, Array] = field(default_factory=dict)

    def parameter(self, array: Array, stem: str) -> str:
        name = self.names.fresh(stem)
        if array.dtype.name not in CODES:
            raise UnsupportedError(f"{name!r}: Paddle has no {array.dtype} parameters")
        self.parameters[name] = np.ascontiguousarray(array).reshape(array.shape)
        self.variables[name] = type_of(array)
        return name

    def add(
        self,
        type: str,
        inputs: Mapping[str, str | Sequence[str]],
        outputs: Mapping[str, tuple[str, ...]],
        attributes: Mapping[str, Any],
    ) -> Operator:
        """Appends an operator; input slots of "" and of nothing are left out."""
        slots = {slot: (v,) if isinstance(v, str) else tuple(v) for slot, v in inputs.items()}
        nonempty = {slot: names for slot, names in slots.items() if any(names)}
        lists = {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()}
        result = Operator(len(self.operations), type, nonempty, outputs, lists)
        self.operations.append(result)
        return result

    def pruned(self) -> list[Operator]:
        """The operators that a fetched value needs."""
        needed, operations = set(self.fetches), []
        for each in reversed(self.operations):
            if any(needed.intersection(names) for names in each.outputs.values()):
                operations.append(each)
                needed.update(*each.inputs.values())
        return operations[::-1]

    def files(self) -> tuple[bytes, list[bytes]]:
        """The bytes of ``.pdmodel``, and those of ``.pdiparams`` tensor by tensor."""
        operations = self.pruned()
        used = set(self.feeds) | set(self.fetches)
        for each in operations:
            used.update(*each.inputs.values(), *each.outputs.values())
        if not self.parameters.keys() & used:  # paddle.inference loads no empty file
            used.add(self.parameter(np.zeros(1, np.float32), "none"))
        desc = messages.message("ProgramDesc")()
        desc.version.version = VERSION
        block = desc.blocks.add(idx=0, parent_idx=-1)
        for name, kind in (("feed", messages.FEED), ("fetch", messages.FETCH)):
            block.vars.add(name=name, persistable=True).type.type = kind
        for name in sorted(used):
            self._declare(block, name)
        for column, name in enumerate(self.feeds):
            slots = ({"X": ("feed",)}, {"Out": (name,)})
            _write_operation(block, Operator(column, "feed", *slots, {"col": column}))
        for each in operations:
            _write_operation(block, each)
        for column, name in enumerate(self.fetches):
            slots = ({"X": (name,)}, {"Out": ("fetch",)})
            _write_operation(block, Operator(column, "fetch", *slots, {"col": column}))
        tensors = [_tensor(self.parameters[name]) for name in sorted(self.parameters.keys() & used)]
        return desc.SerializeToString(deterministic=True), tensors

    def _declare(self, block: Any, name: str) -> None:
        type_ = self.variables[name]
        desc = block.vars.add(name=name, persistable=name in self.parameters)
        desc.need_check_feed = name in self.feeds
        desc.is_parameter = desc.stop_gradient = name in self.parameters
        desc.type.type = messages.LOD_TENSOR
        lod_tensor = desc.type.lod_tensor
        lod_tensor.lod_level = type_.depth
        lod_tensor.tensor.data_type = CODES[type_.dtype or ""]
        lod_tensor.tensor.dims.extend(-1 if size is None else size for size in type_.counts)


def save(program: ProgramWriter, path: Path) -> None:
    """Writes ``NAME.pdmodel`` and ``NAME.pdiparams``; old files are replaced at the end."""
    model, tensors = program.files()
    with replacing_all([path, path.with_suffix(".pdiparams")]) as (program_file, parameters):
        program_file.write(model)
        parameters.writelines(tensors)


def _tensor(array: Array) -> bytes:
    """What `read.read_tensors` reads: no LoD, then the description, then the numbers."""
    desc = messages.message("TensorDesc")(data_type=CODES[array.dtype.name])
    desc.dims.extend(array.shape)
    description = desc.SerializeToString()
    head = struct.pack("<IQIi", 0, 0, 0, len(description)) + description
    return head + array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


# The AttrType of a Python value, and the field that holds it; of lists, by their first element.
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
                    f"attribute {name}={value} of {operation.type}: over 32 bits"
                )
        member = (_LISTS if several else _SINGLE)[kind]
        attribute = op.attrs.add(name=name, type=messages.ATTRIBUTE_FIELDS.index(member))
        if several:
            getattr(attribute, member).extend(value)
        else:
            setattr(attribute, member, value)


# What the rules that write a Paddle program share: values, constants, LoDs.

ALL = 2**31 - 1
"""The end of an axis, as a Slice says it."""

SlotNames = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True)
class Padded:
    """A ragged value as variables: (T, N, ...) and (N,) int64.

    ``like``: the padded value, of the layout ``time_major``. ``zeros``: whether zeros follow each
    sequence in ``data``, as operators require; else any numbers may.
    """

    data: str
    lengths: str
    like: str
    time_major: bool
    zeros: bool


@dataclass(eq=False)
class Writing(NodeWriter):
    """``inputs``: the variables of the node that is written, "" where absent.

    ``fused``: recurrent layers as fusion_gru and fusion_lstm; ``place``: "cpu" or "onednn".

    Each operator is lowered as soon as it is written, as a reader of the file lowers it: dtype,
    sizes and LoD of its results follow from its rule and the operators' types.
    """

    graph: Graph
    program: ProgramWriter
    fused: bool
    place: str
    inputs: list[str] = field(default_factory=list)
    padded: dict[str, Padded] = field(default_factory=dict)
    unplaced: list[Refusal] = field(default_factory=list)
    _values: dict[str, str] = field(default_factory=dict)
    _makers: dict[str, int] = field(default_factory=dict)
    _reader: PaddleBuilder = field(default_factory=lambda: PaddleBuilder("written"))

    @property
    def types(self) -> Mapping[str, Type]:
        return self.graph.types

    @property
    def x(self) -> str:
        """The first input."""
        return self.inputs[0]

    @property
    def out_rank(self) -> int:
        """The number of axes of the first output."""
        return len(self.types[self.node.outputs[0]].counts)

    def value(self, name: str) -> str:
        """The variable that holds a value; a constant becomes a parameter with its first use."""
        if name not in self._values:
            self._values[name] = self.constant(self.graph.constants[name], name)
        return self._values[name]

    def constant(self, array: npt.ArrayLike, stem: str = "constant") -> str:
        array = np.asarray(array)
        name = self.program.parameter(array, stem)
        self._reader.give(name, self._reader.constant(array, name))
        return name

    def feed(self, value: Value) -> None:
        """An input of the graph, under its own name."""
        self.program.feeds.append(value.name)
        self.program.variables[value.name] = value.type
        self._reader.input(value)
        self.bind(value.name, value.name)

    def of(self, variable: str) -> Type:
        return self.program.variables[variable]

    def dtype(self, variable: str) -> str:
        return self.of(variable).dtype or ""

    def sizes(self, variable: str) -> tuple[int | None, ...]:
        return self.of(variable).counts

    def rank(self, variable: str) -> int:
        return len(self.sizes(variable))

    def bind(self, name: str, variable: str) -> None:
        self._values[name] = variable

    def emit(self, type: str, inputs: SlotNames, /, **attributes: Any) -> str:
        """Appends an operator and gives a provisional name for its main output."""
        outputs = dict.fromkeys(_OUTPUTS.get(type, ("Out",)), 1)
        return next(iter(self.emit_all(type, inputs, outputs, **attributes).values()))[0]

    def emit_all(
        self, type: str, inputs: SlotNames, outputs: Mapping[str, int | str], /, **attributes: Any
    ) -> dict[str, tuple[str, ...]]:
        """As `emit`, with so many variables in each slot, or one that exists.

        The first slot is the main one.
        """
        result: dict[str, tuple[str, ...]] = {}
        for slot, target in outputs.items():
            if isinstance(target, str):
                result[slot] = (target,)
                continue
            stem = f"{type}.{slot if result else 'out'}"
            result[slot] = tuple(self.program.names.fresh(stem) for _ in range(target))
            self._makers.update(dict.fromkeys(result[slot], len(self.program.operations)))
        self._read(self.program.add(type, inputs, result, attributes))
        return result

    def _read(self, op: Operator) -> None:
        """Infers the types of an operator's outputs; side outputs get the main one's."""
        results = PaddleOperator(self._reader, {}, op, VERSION).lowered(READING[op.type])
        like = UNKNOWN
        for place, name in (e for slot, names in op.outputs.items() for e in listed(slot, names)):
            if place in results:
                self._reader.give(name, results[place])
                like = self._reader.type_of(self._reader.value(name))
                if None in (like.dtype, like.shape, like.lod):
                    raise UnsupportedError(f"the result of Paddle's {op.type} is not known")
            self.program.variables.setdefault(name, like)

    def give(self, variable: str, index: int = 0) -> None:
        """Binds an output, where it has a name, with the LoD that it must have."""
        name = self.node.outputs[index] if index < len(self.node.outputs) else ""
        if not name:
            return
        expected, actual = self.types[name], self.of(variable)
        if expected.depth and actual.depth != expected.depth:
            variable = self.under(variable, self._like(expected.depth))
        elif actual.depth and not expected.depth:
            variable = self.dense(variable)
        if (actual.dtype, actual.rank) != (expected.dtype, expected.rank):
            raise UnsupportedError(f"{name!r}: Paddle gives {actual}, expected {expected}")
        variable = self.renamed(variable, name)
        if variable == name:
            self.program.variables[name] = expected
        self.bind(name, variable)

    def under(self, variable: str, like: str) -> str:
        """The rows of a variable under the LoD of another."""
        return self.emit("lod_reset", {"X": variable, "Y": like})

    def dense(self, variable: str) -> str:
        """The variable without its LoD: which a slice along the words drops."""
        if not self.of(variable).depth:
            return variable
        return self.emit(
            "slice", {"Input": variable}, axes=[0], starts=[0], ends=[ALL], infer_flags=[1]
        )

    def cast(self, variable: str, dtype: str, *, always: bool = False) -> str:
        """In this dtype; the variable itself where it is, unless ``always`` by an operator."""
        current = self.dtype(variable)
        if current == dtype and not always:
            return variable
        return self.emit("cast", {"X": variable}, in_dtype=CODES[current], out_dtype=CODES[dtype])

    def reshape(self, variable: str, sizes: Sequence[int], computed: str = "") -> str:
        """To these sizes, where 0 is that of the input and -1 what is left, or computed ones."""
        slots = {"X": variable}
        if computed:
            slots["Shape"] = self.cast(computed, "int32")
        return self.emit("reshape2", slots, shape=list(sizes))

    def transpose(self, variable: str, perm: Sequence[int]) -> str:
        return self.emit("transpose2", {"X": variable}, axis=list(perm))

    def take(
        self, variable: str, cuts: Mapping[int, tuple[int, int]], gone: Sequence[int] = ()
    ) -> str:
        """The elements [start, end) of axes; those ``gone`` are one element, and dropped."""
        return self.emit(
            "slice",
            {"Input": variable},
            axes=list(cuts),
            starts=[start for start, _ in cuts.values()],
            ends=[end for _, end in cuts.values()],
            infer_flags=[1] * len(cuts),
            decrease_axis=list(gone),
        )

    def binary(self, type: str, x: str, y: str) -> str:
        """An elementwise operator, broadcast as NumPy does."""
        return self.emit(type, {"X": x, "Y": y}, axis=-1)

    def add(self, x: str, y: str) -> str:
        return self.binary("elementwise_add", x, y)

    def minus(self, x: str, y: str) -> str:
        return self.binary("elementwise_sub", x, y)

    def times(self, x: str, y: str) -> str:
        return self.binary("elementwise_mul", x, y)

    def scaled(self, x: str, factor: float) -> str:
        return self.emit("scale", {"X": x}, scale=float(factor), bias=0.0, bias_after_scale=True)

    def concat(self, variables: Sequence[str], axis: int) -> str:
        return self.emit("concat", {"X": variables}, axis=axis)

    def split(self, x: str, axis: int, count: int, sections: Sequence[int] = ()) -> Sequence[str]:
        """Parts of these sizes, or so many of one size."""
        number = 0 if sections else count
        outputs = self.emit_all(
            "split", {"X": x}, {"Out": count}, axis=axis, num=number, sections=list(sections)
        )
        return outputs["Out"]

    def copy(self, variable: str) -> str:
        return self.emit("assign", {"X": variable})

    def filled(self, shape: str, value: Any) -> str:
        """A value of a shape that is computed, int64 or int32."""
        return self.emit(
            "fill_constant",
            {"ShapeTensor": self.cast(shape, "int32")},
            value=float(value),
            dtype=CODES[np.asarray(value).dtype.name],
            str_value=str(np.asarray(value)),
        )

    def _like(self, depth: int) -> str:
        for name in self.node.inputs:
            if name in self._values and self.of(self._values[name]).depth == depth:
                return self._values[name]
        raise UnsupportedError(f"no input of {depth} LoD levels to take them from")

    def renamed(self, old: str, new: str) -> str:
        """A variable under another name, where its own is provisional."""
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


Written = str | Sequence[str]
"""What a rule returns: the variable of the output, or those of all, "" where absent."""


class Rule(NamedTuple):
    """How a node is written; ``attributes``: those that the function reads, others are refused."""

    function: Callable[[Writing], Written]
    attributes: Collection[str] = ()


RULES: dict[str, Rule] = {}


def rule(
    names: str, attributes: str = ""
) -> Callable[[Callable[[Writing], Written]], Callable[[Writing], Written]]:
    """Enters the function that writes these operators, and the attributes that it reads."""

    def enter(function: Callable[[Writing], Written]) -> Callable[[Writing], Written]:
        RULES.update(dict.fromkeys(names.split(), Rule(function, attributes.split())))
        return function

    return enter


def ragged(w: Writing, variable: str, levels: int = 1) -> str:
    """A variable that must carry so many LoD levels."""
    if (depth := w.of(variable).depth) != levels:
        raise UnsupportedError(f"a value of {depth} LoD levels, Paddle's operator takes {levels}")
    return variable
