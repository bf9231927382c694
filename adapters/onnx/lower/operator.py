"""One ONNX operator as a rule of the table reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from onernn.adapters.folding import FoldingBudget
from onernn.adapters.lowering import GraphBuilder, NativeOperator
from onernn.adapters.onnx.lower.precision import ToldPrecisions
from onernn.adapters.onnx.read import Operator, Subgraph, Unread
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph

INERT = frozenset({"momentum", "seed", "saturate", "sorted"})
"""Attributes without effect on what is run: training's, those of eight-bit floats, and leave for
results in any order.
"""


class OnnxBuilder(GraphBuilder):
    """A graph under construction.

    ``empty``: variables that are sequences without a tensor, ``stacked``: those whose tensor stands
    for all of a sequence. ``precisions``: what the file tells of layers.
    """

    def __init__(
        self, name: str, budget: FoldingBudget, precisions: ToldPrecisions | None = None
    ) -> None:
        super().__init__(name, budget)
        self.empty: set[str] = set()
        self.stacked: set[str] = set()
        self.precisions = precisions or ToldPrecisions({})


class Scope:
    """Where operators stand: a graph, or a function's call, whose names are others outside."""

    def __init__(
        self,
        builder: OnnxBuilder,
        names: Mapping[str, str] = MappingProxyType({}),
        prefix: str = "",
    ) -> None:
        self.builder, self._names, self._prefix = builder, names, prefix

    def variable(self, name: str) -> str:
        """The builder's variable of a name."""
        return self._names[name] if name in self._names else f"{self._prefix}{name}"


class OnnxOperator(NativeOperator):
    """One operator with the graph it is lowered into; inputs and outputs by their position."""

    def __init__(
        self,
        scope: Scope,
        op: Operator,
        attributes: Mapping[str, Any],
        opset: int,
        body: Callable[[Subgraph, OnnxOperator], tuple[Graph, list[str]]],
    ) -> None:
        slots = {str(at): (name,) for at, name in enumerate(op.inputs)}
        results = {str(at): (name,) for at, name in enumerate(op.outputs)}
        super().__init__(op.native, slots, results, attributes, INERT)
        for name, value in attributes.items():
            if isinstance(value, Unread):
                raise UnsupportedError(f"attribute {name}: {value.reason}")
        self.builder, self.opset, self.scope = scope.builder, opset, scope
        self._body = body

    def optional(self, at: int) -> str:
        """The value of an input, "" where it is absent."""
        name = self.variable(str(at))
        return name and self.builder.value(self.scope.variable(name))

    def value(self, at: int = 0) -> str:
        found = self.optional(at)
        if not found:
            raise UnsupportedError(f"input {at} is missing")
        return found

    def constant(self, at: int, role: str) -> Array | None:
        """A constant input, None where it is absent."""
        value = self.optional(at)
        return self.builder.array(value, role) if value else None

    def subgraph(self, name: str) -> Subgraph:
        """The graph in an attribute."""
        found = self.attribute(name, None)
        if not isinstance(found, Subgraph):
            raise UnsupportedError(f"attribute {name}: expected a graph")
        return found

    def body(self, name: str) -> tuple[Graph, list[str]]:
        """The graph in an attribute, lowered, and the values of outside that it takes.

        These stand behind its own inputs.
        """
        return self.body_of(self.subgraph(name))

    def body_of(self, graph: Subgraph) -> tuple[Graph, list[str]]:
        return self._body(graph, self)

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.builder.emit(op, inputs, attributes)

    def emit_many(self, op: str, count: int, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        return self.builder.emit_many(op, inputs, count, attributes)

    def ints(self, *values: int) -> str:
        """A constant list of int64: axes or a shape."""
        return self.builder.constant(np.asarray(values, np.int64), f"{self.at.type}/ints")

    def made(self, at: int) -> str:
        """The builder's variable of an output."""
        return self.scope.variable(self.outputs[str(at)][0])

    def wants(self, at: int) -> bool:
        """Whether the model names an output."""
        return bool(self.outputs.get(str(at), ("",))[0])
