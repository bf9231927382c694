"""A Paddle program under construction: operators, variables, parameters; and its two files.

Formats: paddle/fluid/framework/framework.proto, tensor_util.cc (TensorToStream) and
lod_tensor.cc (SerializeToStream) of 2.6.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.paddle import messages
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.files import replacing_all
from onernn.core.records import dataclass
from onernn.core.types import Type, type_of

VERSION = 2006002
"""Of the format: that of Paddle 2.6.2, which 3.x reads, too."""
_CODES = {name: code for code, name in messages.DTYPES.items()}
_MOST_DIMS = 2**31 - 1  # attributes are int32

Slots = dict[str, list[str]]


@dataclass(eq=False)
class Operation:
    """An operator: variables by slot; attributes are bool, int, float, str, or lists of these."""

    type: str
    inputs: Slots
    outputs: Slots
    attributes: dict[str, Any]


@dataclass(eq=False)
class ProgramWriter:
    """Block 0. ``taken`` are names that `fresh` must not give."""

    taken: set[str]
    feeds: list[str] = field(default_factory=list)
    fetches: list[str] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    variables: dict[str, Type] = field(default_factory=dict)
    parameters: dict[str, Array] = field(default_factory=dict)

    def fresh(self, stem: str) -> str:
        """The name, or one made from it that nothing bears yet."""
        chosen, count = stem, 0
        while chosen in self.taken:
            count += 1
            chosen = f"{stem}_{count}"
        self.taken.add(chosen)
        return chosen

    def parameter(self, array: Array, stem: str) -> str:
        name = self.fresh(stem)
        if array.dtype.name not in _CODES:
            raise UnsupportedError(f"{name!r}: Paddle has no {array.dtype} parameters")
        self.parameters[name] = np.ascontiguousarray(array).reshape(array.shape)
        self.variables[name] = type_of(array)
        return name

    def add(
        self,
        type: str,
        inputs: Mapping[str, str | Sequence[str]],
        outputs: Slots,
        attributes: Mapping[str, Any],
    ) -> Operation:
        """Appends an operator; input slots of "" and of nothing are left out."""
        slots = {slot: [v] if isinstance(v, str) else list(v) for slot, v in inputs.items()}
        given = {slot: names for slot, names in slots.items() if any(names)}
        made = Operation(type, given, outputs, dict(attributes))
        self.operations.append(made)
        return made

    def pruned(self) -> list[Operation]:
        """The operators that a fetched value needs."""
        needed, kept = set(self.fetches), []
        for each in reversed(self.operations):
            if any(needed.intersection(names) for names in each.outputs.values()):
                kept.append(each)
                needed.update(*each.inputs.values())
        return kept[::-1]

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
            slots = ({"X": ["feed"]}, {"Out": [name]})
            _write_operation(block, Operation("feed", *slots, {"col": column}))
        for each in operations:
            _write_operation(block, each)
        for column, name in enumerate(self.fetches):
            slots = ({"X": [name]}, {"Out": ["fetch"]})
            _write_operation(block, Operation("fetch", *slots, {"col": column}))
        tensors = [_tensor(self.parameters[name]) for name in sorted(self.parameters.keys() & used)]
        return desc.SerializeToString(deterministic=True), tensors

    def _declare(self, block: Any, name: str) -> None:
        found = self.variables[name]
        saved = block.vars.add(name=name, persistable=name in self.parameters)
        saved.need_check_feed = name in self.feeds
        saved.is_parameter = saved.stop_gradient = name in self.parameters
        saved.type.type = messages.LOD_TENSOR
        held = saved.type.lod_tensor
        held.lod_level = found.depth
        held.tensor.data_type = _CODES[found.dtype or ""]
        held.tensor.dims.extend(-1 if size is None else size for size in found.counts)


def save(program: ProgramWriter, path: Path) -> None:
    """Writes ``NAME.pdmodel`` and ``NAME.pdiparams``; what stood there is replaced at the end."""
    model, tensors = program.files()
    with replacing_all([path, path.with_suffix(".pdiparams")]) as (program_file, parameters):
        program_file.write(model)
        parameters.writelines(tensors)


def _tensor(array: Array) -> bytes:
    """What `tensors.read_tensors` reads: no LoD, then the description, then the numbers."""
    desc = messages.message("TensorDesc")(data_type=_CODES[array.dtype.name])
    desc.dims.extend(array.shape)
    described = desc.SerializeToString()
    head = struct.pack("<IQIi", 0, 0, 0, len(described)) + described
    return head + array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


# The AttrType of a Python value, and the field that holds it; of lists, by their first element.
_SINGLE = {bool: "b", int: "i", float: "f", str: "s"}
_LISTS = {bool: "bools", int: "ints", float: "floats", str: "strings"}


def _write_operation(block: Any, operation: Operation) -> None:
    op = block.ops.add(type=operation.type)
    for slots, into in ((operation.inputs, op.inputs), (operation.outputs, op.outputs)):
        for slot, names in slots.items():
            into.add(parameter=slot, arguments=names)
    for name, value in operation.attributes.items():
        several = isinstance(value, list | tuple)
        kind = type(value[0] if value else 0) if several else type(value)
        for number in value if several else [value]:
            if kind is int and abs(number) > _MOST_DIMS:
                raise UnsupportedError(
                    f"attribute {name}={value} of {operation.type}: over 32 bits"
                )
        chosen = (_LISTS if several else _SINGLE)[kind]
        attribute = op.attrs.add(name=name, type=messages.ATTRIBUTE_FIELDS.index(chosen))
        if several:
            getattr(attribute, chosen).extend(value)
        else:
            setattr(attribute, chosen, value)
