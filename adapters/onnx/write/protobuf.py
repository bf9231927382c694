"""ONNX graphs under construction: nodes, constants and names, without the onnx package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onernn.adapters.onnx.messages import BFLOAT16, MESSAGES, NUMBERS, reads
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError

_ATTRIBUTE_TYPES = {"f": 1, "i": 2, "s": 3, "t": 4, "g": 5, "floats": 6, "ints": 7, "strings": 8}

_SHARED = 64  # elements of a constant that is looked up before it is written again


class ProtoGraph:
    """A graph, or the body of an operator or a function; each name is made once.

    A graph ``around`` it lends what is made there, and its names are not made again.
    """

    def __init__(self, proto: Any = None, around: ProtoGraph | None = None) -> None:
        self.proto = MESSAGES.message("GraphProto")() if proto is None else proto
        self.proto.name = "onernn"
        # And how many were made from each.
        self._names: dict[str, int] = {"": 0} if around is None else around._names
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def fresh(self, hint: str) -> str:
        """The hint as a name, or one made from it that nothing bears yet."""
        chosen = hint
        while chosen in self._names:
            self._names[hint] += 1
            chosen = f"{hint}#{self._names[hint]}"
        self._names[chosen] = 0
        return chosen

    def constant(self, value: Any, dtype: str | None = None, name: str = "") -> str:
        """A constant; small ones of equal numbers are one, unless they have a name."""
        array = np.asarray(value, dtype)
        if name or array.size > _SHARED:
            chosen = self.fresh(name or "constant")
            self.proto.initializer.append(tensor(array, chosen))
            return chosen
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.fresh("constant")
            self.proto.initializer.append(tensor(array, self._constants[key]))
        return self._constants[key]

    def ints(self, *values: int) -> str:
        return self.constant(values, "int64")

    def add(
        self, op: str, *inputs: str, outputs: Sequence[str], domain: str = "", **attributes: Any
    ) -> None:
        """A node whose outputs bear the given names; absent inputs at its end are left out."""
        given = inputs[: max((at for at, name in enumerate(inputs, 1) if name), default=0)]
        node = self.proto.node.add(op_type=op, input=given, output=outputs, domain=domain)
        for name, value in attributes.items():
            node.attribute.append(_attribute(name, value))

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node of one output; its name."""
        out = self.fresh(op.lower())
        self.add(op, *inputs, outputs=(out,), **attributes)
        return out

    def faces(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """The inputs and outputs of a body, whose types come from outside."""
        self.proto.input.extend(MESSAGES.message("ValueInfoProto")(name=name) for name in inputs)
        self.proto.output.extend(MESSAGES.message("ValueInfoProto")(name=name) for name in outputs)

    def prune(self) -> None:
        """Drops the nodes and constants that no output needs."""
        needed = {value.name for value in self.proto.output}
        for at, node in reversed(list(enumerate(self.proto.node))):
            if needed.isdisjoint(node.output):
                del self.proto.node[at]
            else:
                needed.update(reads(node))
        for at, each in reversed(list(enumerate(self.proto.initializer))):
            if each.name not in needed:
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
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    out = MESSAGES.message("TensorProto")(name=name, dims=array.shape, data_type=BFLOAT16)
    out.raw_data = rounded.astype("<u2").tobytes()
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
