"""What the rules that write an ONNX model share: values, constants, names, the opset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from onernn.adapters.onnx.lower.rules import became_inputs
from onernn.adapters.onnx.write.padding import OnnxValue, PaddedGraph
from onernn.adapters.onnx.write.protobuf import number_of
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph, Node
from onernn.core.precision import LayerPrecision
from onernn.core.types import Type
from onernn.operators import OPERATORS

Inputs = list[OnnxValue | None]
Function = TypeVar("Function", bound=Callable[..., None])

_SINCE = {
    "AveragePool": {"dilations": 19},
    "BatchNormalization": {"training_mode": 14},
    "Resize": {"antialias": 18, "axes": 18, "keep_aspect_ratio_policy": 18},
    "Reshape": {"allowzero": 14},
    "Shape": {"start": 15, "end": 15},
}
"""The first opset of an attribute, which may be 0 before."""


class GraphWriter(PaddedGraph):
    """An ONNX graph under construction, and what each value of ours is called in it.

    ``functions`` takes those of the model's own, None: there must be none. ``wanted``: the values
    that anybody reads. ``domains``: those of its operators. ``precisions``: of layers, by their
    first outputs.
    """

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
        self.opset, self.types, self.arrays = opset, types, graph.constants
        self.functions = functions
        self.precisions: dict[str, LayerPrecision] = {} if around is None else around.precisions
        self.domains: set[str] = {""} if around is None else around.domains
        read = {name for node in graph.nodes for name in node.inputs}
        self.wanted = frozenset(read | {value.name for value in graph.outputs}) - {""}
        self._values: dict[str, OnnxValue] = {}

    def writer_of(self, body: Graph, types: Mapping[str, Type]) -> GraphWriter:
        """What writes a graph inside this one."""
        return GraphWriter(None, self.opset, body, types, self.functions, self)

    def value(self, name: str) -> OnnxValue:
        """A value's tensors; a constant is written with its first use."""
        if name not in self._values:
            array = self.arrays[name]
            tensor = self.constant(array, name=name)
            self._values[name] = OnnxValue(tensor, str(array.dtype), array.ndim)
        return self._values[name]

    def inputs_of(self, node: Node) -> list[OnnxValue | None]:
        return [self.value(name) if name else None for name in node.inputs]

    def bind(self, name: str, value: OnnxValue) -> None:
        """Says what a value is called."""
        self._values[name] = value

    def give(self, node: Node, tensor: str, lengths: str = "", at: int = 0) -> None:
        """Binds an output of a node, where anybody named it."""
        if at < len(node.outputs) and (name := node.outputs[at]):
            found = self.types[name]
            self.bind(name, OnnxValue(tensor, found.dtype or "", len(found.counts), lengths))

    def reduce(self, op: str, x: str, axes: Sequence[int], *, keepdims: int) -> str:
        """A Reduce operator over axes, which are an attribute before opset 18 for most."""
        if self.opset >= became_inputs(op)[0]:
            return self.emit(op, x, self.ints(*axes), keepdims=keepdims)
        return self.emit(op, x, axes=tuple(axes), keepdims=keepdims)

    def attributes(self, node: Node) -> dict[str, Any]:
        """A node's attributes in ONNX's form. Raises `UnsupportedError` for those it has not."""
        found = dict(node.attributes)
        found.pop("non_negative", None)  # a check that ONNX has not
        if node.op == "Split" and not node.input(1) and self.opset >= 18:
            found["num_outputs"] = len(node.outputs)
        if node.op in ("Cast", "CastLike") and "to" in found:
            found["to"] = number_of(found["to"])
        for name, since in _SINCE.get(node.op, {}).items():
            if name in found and self.opset < since and found.pop(name) != 0:
                raise UnsupportedError(f"attribute {name} needs opset {since}")
        return found

    def array(self, name: str, role: str) -> Array:
        """The array of a constant value. Raises `UnsupportedError` where it is computed."""
        if name not in self.arrays:
            raise UnsupportedError(f"{role} {name!r} is computed at run time")
        return self.arrays[name]

    def copy(
        self, node: Node, tensors: Sequence[str], lengths: str = "", **attributes: Any
    ) -> None:
        """The operator as it stands."""
        outs = [self.fresh(name) if name else "" for name in node.outputs]
        domain = OPERATORS[node.op].domain
        self.domains |= {domain}
        self.add(node.op, *tensors, outputs=outs, domain=domain, **attributes)
        for at, out in enumerate(outs):
            self.give(node, out, lengths, at)


class Rules(dict[str, Callable[..., None]]):
    """Functions that write operators, by name; as a decorator it takes one up."""

    def __call__(self, *ops: str) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            self.update(dict.fromkeys(ops, function))
            return function

        return register


def dense(value: OnnxValue | None, role: str) -> str:
    """The tensor of a value that must not be ragged."""
    if value is None or value.lengths:
        raise UnsupportedError(f"{role} {'is ragged' if value else 'is missing'}")
    return value.data


def ragged(value: OnnxValue | None, role: str) -> OnnxValue:
    """A value that must be ragged."""
    if value is None or not value.lengths:
        raise UnsupportedError(f"{role} is not ragged")
    return value
