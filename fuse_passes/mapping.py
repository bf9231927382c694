"""A graph over one more axis: what it computes of one row, computed of all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from onernn.fuse_passes.pipeline import fuse
from onernn.fuse_passes.rewriting import Tape
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, UnsupportedError
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.operator import OPERATORS
from onernn.ir.records import dataclass

Part = int | str
"""A part of a shape: a size, or the name of a vector of sizes."""


def shift(axis: Any) -> Any:
    """Returns axes of a row as those of all rows; those counted from the end stay."""
    return axis + (np.asarray(axis) >= 0)


@dataclass
class Mapper(Tape):
    """Builds the nodes of a graph whose values in ``mapped`` have a new axis 0, that of rows.

    A value keeps its name. Values that no row reaches are computed once. An operator's definition
    says how (`Operator.batched`). ``add`` raises `UnsupportedError` naming an operator that says
    nothing, or a value of unknown rank.
    """

    mapped: set[str] = field(default_factory=set)
    _count: str = ""

    @classmethod
    def of(cls, graph: Graph, inputs: Iterable[Value]) -> Mapper:
        """Returns the mapper of a graph whose ``inputs`` have rows.

        Raises `UnsupportedError` for an input of unknown axes.
        """
        names = set[str]()
        for value in inputs:
            if value.shape is None or value.lod_depth:
                why = "expected dense inputs of a known number of axes"
                raise UnsupportedError(f"{graph.name}:", (Refusal(why, value.name),))
            names.add(value.name)
        return cls(graph, mapped=names)

    def model(self) -> Graph:
        """Returns all rows at once, when all nodes are there."""
        return fuse(self.whole().pruned()).model

    def whole(self) -> Graph:
        """Returns the same, every node as `add` made it."""

        def wide(value: Value) -> Value:
            if value.name not in self.mapped or value.shape is None:
                return value
            return replace(value, shape=(None, *value.shape))

        return replace(
            self.graph,
            inputs=tuple(map(wide, self.graph.inputs)),
            outputs=tuple(map(wide, self.graph.outputs)),
            nodes=tuple(self.nodes),
            constants={**self.graph.constants, **self.constants},
        )

    def add(self, node: Node) -> None:
        """The node for all rows."""
        if self.mapped.isdisjoint(node.inputs):
            self.nodes.append(node)
            return
        operator = OPERATORS.get(node.op)
        rule = operator and operator.batched
        if not rule:
            raise self.refused(node, f"{node.op} is not computed for many rows at once")
        self.stem = node.outputs[0]
        (_RULES[rule] if isinstance(rule, str) else rule)(self, node)

    def refused(self, node: Node, why: str) -> UnsupportedError:
        return UnsupportedError(f"{self.graph.name}:", (Refusal(why, node.label),))

    def alike(self, node: Node, names: Iterable[str]) -> None:
        """Refuses inputs that differ from row to row."""
        if not self.mapped.isdisjoint(names):
            raise self.refused(node, "its parameters differ from row to row")

    def rank(self, node: Node, name: str) -> int:
        """Returns the number of axes of one row."""
        rank = self.graph.types[name].rank
        if rank is None:
            raise self.refused(node, f"the number of axes of {name!r} is not known")
        return rank

    def known(self, node: Node, name: str) -> Array | None:
        """Returns the integers of a value that every row has alike, None where it is absent."""
        numbers = self.graph.types[name].numbers if name else None
        if name in self.mapped or (name and numbers is None):
            raise self.refused(node, f"{name!r} is not known before a run")
        return numbers

    def put(self, node: Node, inputs: Iterable[str], **attributes: Any) -> None:
        """The node of other inputs and attributes, all of its outputs mapped."""
        self.nodes.append(
            replace(node, inputs=tuple(inputs), attributes={**node.attributes, **attributes})
        )
        self.mapped.update(filter(None, node.outputs))

    def end(self, node: Node, op: str, inputs: Sequence[str], **attributes: Any) -> None:
        """The node's first output, made by another operator."""
        self.nodes.append(Node(op, tuple(inputs), node.outputs[:1], attributes, node.origin))
        self.mapped.add(node.outputs[0])

    def widened(self, node: Node, name: str, rank: int) -> str:
        """Returns a mapped value whose rows have ones in front, so that they have ``rank`` axes."""
        missing = rank - self.rank(node, name)
        if name not in self.mapped or missing <= 0:
            return name
        return self.emit("Unsqueeze", (name, self.constant(range(1, 1 + missing))))

    def sizes(self, name: str, start: int, end: int | None) -> str:
        ends: dict[str, Any] = {} if end is None else {"end": end}
        return self.emit("Shape", (name,), start=start, **ends)

    def shape(self, parts: Sequence[Part]) -> str:
        """Returns the vector of sizes and vectors one behind the other."""
        if all(isinstance(part, int) for part in parts):
            return self.constant(parts)
        vectors = [part if isinstance(part, str) else self.constant([part]) for part in parts]
        return vectors[0] if len(vectors) == 1 else self.emit("Concat", vectors, axis=0)

    def reshaped(self, name: str, parts: Sequence[Part]) -> str:
        return self.emit("Reshape", (name, self.shape(parts)))

    def merged(self, name: str, axis: int = 0) -> str:
        """Returns the value with two axes from ``axis`` on made one."""
        front: list[Part] = [self.sizes(name, 0, axis)] if axis else []
        return self.reshaped(name, [*front, -1, self.sizes(name, axis + 2, None)])

    def rows(self, node: Node, name: str) -> str:
        """Returns a value that has as many rows as there are, all alike where it is not mapped."""
        if name in self.mapped:
            return name
        wide = self.emit("Unsqueeze", (name, self.constant([0])))
        ones = [1] * self.rank(node, name)
        return self.emit("Expand", (wide, self.shape([self.count, *ones])))

    def over_axes(self, node: Node, default: Iterable[int] | None = None) -> None:
        """An operator with an input of axes, ``default`` where that is absent."""
        operator, (x, *others) = OPERATORS[node.op], node.inputs
        place = [slot.axes for slot in operator.slots].index(True)
        self.alike(node, others)
        axes: Any = self.known(node, node.input(place))
        if axes is None or not axes.size:
            types = [self.graph.types[name] if name else None for name in node.inputs]
            axes = default
            if default is None and operator.paths and (paths := operator.paths(node.attrs, *types)):
                axes = [axis for axis, to in enumerate(paths[0]) if to is None]
            if axes is None:
                raise self.refused(node, "its axes are not known before a run")
            if not (axes or node.attributes.get("noop_with_empty_axes")):  # it would be all of them
                raise self.refused(node, "it reduces a value without axes")
        moved = self.constant(shift(np.array(axes)))
        inputs = (*others, "", "", "")[: max(len(others), place)]
        self.put(node, (x, *inputs[: place - 1], moved, *inputs[place:]))

    def over_batch(self, node: Node) -> None:
        """An operator whose axis 0 is a batch: rows join it."""
        x, *others = node.inputs
        self.alike(node, others)
        whole = self.emit(node.op, (self.merged(x), *others), **node.attributes)
        sizes = self.shape([self.sizes(x, 0, 2), self.sizes(whole, 1, None)])
        self.end(node, "Reshape", (whole, sizes))

    @property
    def count(self) -> str:
        """The number of rows, as a vector of one."""
        if not self._count:
            first = next(v.name for v in self.graph.inputs if v.name in self.mapped)
            self._count = self.sizes(first, 0, 1)
        return self._count


def _stretch(m: Mapper, node: Node) -> None:
    rank = max(m.rank(node, name) for name in node.inputs if name)
    m.put(node, (m.widened(node, name, rank) if name else "" for name in node.inputs))


def _axis(m: Mapper, node: Node) -> None:
    m.alike(node, node.inputs[1:])
    m.put(node, node.inputs, axis=int(shift(node.attrs.axis)))


def _join(m: Mapper, node: Node) -> None:
    inputs = [m.rows(node, name) for name in node.inputs]
    m.put(node, inputs, axis=int(shift(node.attrs.axis)))


_RULES: dict[str, Callable[[Mapper, Node], None]] = {
    "stretched": _stretch,
    "axis": _axis,
    "joined": _join,
    "axes": Mapper.over_axes,
    "batch": Mapper.over_batch,
}
