"""What the rules that write an ONNX model share: values, constants, names, the opset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onernn.adapters.onnx.write.padding import Batch, Batches
from onernn.adapters.onnx.write.protobuf import GraphProto, number_of
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node
from onernn.core.types import Type
from onernn.operators import OPERATORS

_SINCE = {"Reshape": {"allowzero": 14}, "Shape": {"start": 15, "end": 15}}
"""The first opset of an attribute, which is 0 where it is not given."""


class Writing:
    """An ONNX graph under construction, and what each value of ours is called in it.

    ``functions`` takes those of the model's own, None: there must be none. ``wanted``: the values
    that anybody reads.
    """

    def __init__(
        self,
        graph: GraphProto,
        opset: int,
        types: Mapping[str, Type],
        constants: Mapping[str, Array],
        functions: dict[str, Any] | None = None,
        wanted: frozenset[str] = frozenset(),
    ) -> None:
        self.graph, self.opset, self.types, self.constants = graph, opset, types, constants
        self.functions, self.wanted = functions, wanted
        self.batches = Batches(graph)
        self._values: dict[str, Batch] = {}

    def batch(self, name: str) -> Batch:
        """A value's tensors; a constant is written with its first use."""
        if name not in self._values:
            array = self.constants[name]
            tensor = self.graph.constant(array, name=name)
            self._values[name] = Batch(tensor, str(array.dtype), array.ndim)
        return self._values[name]

    def batches_of(self, node: Node) -> list[Batch | None]:
        return [self.batch(name) if name else None for name in node.inputs]

    def bind(self, name: str, batch: Batch) -> None:
        """Says what a value is called."""
        self._values[name] = batch

    def give(self, node: Node, tensor: str, lengths: str = "", at: int = 0) -> None:
        """Binds an output of a node, where anybody named it."""
        if at < len(node.outputs) and (name := node.outputs[at]):
            found = self.types[name]
            self.bind(name, Batch(tensor, found.dtype or "", len(found.counts), lengths))

    def emit(self, op: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        return self.graph.emit(op, *inputs, name=name, **attributes)

    def ints(self, *values: int) -> str:
        return self.graph.ints(*values)

    def zero(self, dtype: str) -> str:
        return self.graph.constant(0, dtype)

    def reduce(self, op: str, x: str, axes: Sequence[int], *, keepdims: int, name: str = "") -> str:
        """A Reduce operator over axes, which are an attribute before opset 18 for most."""
        if self.opset >= 18 or op == "ReduceSum":
            return self.emit(op, x, self.ints(*axes), keepdims=keepdims, name=name)
        return self.emit(op, x, axes=tuple(axes), keepdims=keepdims, name=name)

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        outs = [self.graph.fresh("split") for _ in sizes]
        self.graph.add("Split", x, self.ints(*sizes), outputs=outs, axis=axis)
        return outs

    def attributes(self, node: Node) -> dict[str, Any]:
        """A node's attributes in ONNX's form. Raises `UnsupportedError` for those it has not."""
        found = dict(node.attributes)
        found.pop("non_negative", None)  # a check that ONNX has not
        if node.op in ("Cast", "CastLike") and "to" in found:
            found["to"] = number_of(found["to"])
        for name, since in _SINCE.get(node.op, {}).items():
            if name in found and self.opset < since and found.pop(name) != 0:
                raise UnsupportedError(f"attribute {name} needs opset {since}")
        operator = OPERATORS[node.op]
        if not operator.since or operator.kind == "control":
            raise UnsupportedError(f"ONNX has no {node.op} with attributes {sorted(found)}")
        return found

    def constant(self, name: str, role: str) -> Array:
        """The array of a constant value. Raises `UnsupportedError` where it is computed."""
        if name not in self.constants:
            raise UnsupportedError(f"{role} {name!r} is computed at run time")
        return self.constants[name]


def dense(batch: Batch | None, role: str) -> str:
    """The tensor of a value that must not be ragged."""
    if batch is None or batch.lengths:
        raise UnsupportedError(f"{role} {'is ragged' if batch else 'is missing'}")
    return batch.data


def ragged(batch: Batch | None, role: str) -> Batch:
    """A value that must be ragged."""
    if batch is None or not batch.lengths:
        raise UnsupportedError(f"{role} is not ragged")
    return batch
