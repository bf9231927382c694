"""Turns a graph that computes one row (a frame, for example) into a graph that computes many rows
in one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from onernn.fuse_passes.bodies import bodies
from onernn.fuse_passes.pipeline import fuse
from onernn.fuse_passes.rewriting import Tape
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, UnsupportedError
from onernn.ir.graph import Graph, Node, Value, input_types, with_rows
from onernn.ir.operator import OPERATORS
from onernn.ir.records import dataclass

Part = int | str
"""A part of a shape: one size, or the name of a vector that contains several sizes."""


def shift(axis: Any) -> Any:
    """Adds 1 to indices of axes, because a new axis 0 precedes them; negative indices do not
    change.
    """
    return axis + (np.asarray(axis) >= 0)


@dataclass
class Mapper(Tape):
    """Builds the graph for all rows: each value in ``mapped`` has a new axis 0, whose entries are
    rows.

    Values keep their names. Values that do not depend on the rows are computed once. A ragged value
    gets no new axis: it has the sequences of all rows, row after row. The definition of an operator
    says how to compute it for all rows (`Operator.batched`). ``add`` raises `UnsupportedError` that
    names an operator without such a definition, or a value of unknown rank.
    """

    mapped: set[str] = field(default_factory=set)
    _count: str = ""

    @classmethod
    def of(cls, graph: Graph, inputs: Iterable[Value]) -> Mapper:
        """Returns a mapper of a graph; the values ``inputs`` get the axis of rows.

        Raises `UnsupportedError` for a ragged input or an unknown number of axes.
        """
        names = set[str]()
        for value in inputs:
            if value.shape is None or value.lod_depth:
                why = "expected dense inputs of a known number of axes"
                raise UnsupportedError(f"{graph.name}:", (Refusal(why, value.name),))
            names.add(value.name)
        return cls(graph, mapped=names)

    def model(self) -> Graph:
        """Returns the fused graph for all rows, after all nodes were added."""
        return fuse(self.whole().prune()).model

    def whole(self) -> Graph:
        """Returns the graph for all rows without fusing it; `add` must have added all nodes.

        All inputs must have the same number of rows. Raises `UnsupportedError` for ragged outputs,
        because they do not show which sequences belong to which row.
        """
        for value in self.graph.outputs:
            maker = self.graph.producer(value.name)
            if maker and value.name in self.mapped and self.graph.types[value.name].lod:
                raise self.make_error(maker, "its sequences are an output: expected padded ones")
        taken = {name for value in self.graph.inputs for name in value.names}
        rows = "frames"
        while rows in taken:
            rows += "'"

        def wide(value: Value) -> Value:
            return with_rows(value, None, rows) if value.name in self.mapped else value

        return replace(
            self.graph,
            inputs=tuple(map(wide, self.graph.inputs)),
            outputs=tuple(map(wide, self.graph.outputs)),
            nodes=tuple(self.nodes),
            constants={**self.graph.constants, **self.constants},
        )

    def add(self, node: Node) -> None:
        """Adds the node for all rows."""
        if self.mapped.isdisjoint(node.inputs):
            self.nodes.append(node)
            return
        operator = OPERATORS.get(node.op)
        if operator is None or not operator.batched:
            raise self.make_error(node, _UNMAPPED)
        self.stem, rule = node.outputs[0], operator.batched
        lods = {self.graph.types[name].lod for name in node.inputs if name in self.mapped}
        lods -= {(), None}
        if lods and node.op not in ("Rnn", "SequencePad"):
            if operator.kind != "elementwise" or len(lods) > 1:
                raise self.make_error(
                    node, "it combines sequences: expected sequences of one length"
                )
            self.add_mapped(node, node.inputs)
            return
        (_RULES[rule] if isinstance(rule, str) else rule)(self, node)

    def make_error(self, node: Node, why: str) -> UnsupportedError:
        return UnsupportedError(f"{self.graph.name}:", (Refusal(why, node.label),))

    def alike(self, node: Node, names: Iterable[str]) -> None:
        """Raises `UnsupportedError` for inputs that may differ from row to row."""
        if not self.mapped.isdisjoint(names):
            raise self.make_error(node, "its parameters differ from row to row: expected constants")

    def rank(self, node: Node, name: str) -> int:
        """Returns the number of axes of a value in one row."""
        rank = self.graph.types[name].rank
        if rank is None:
            why = f"the number of axes of {name!r} is not known: declare inputs with --input"
            raise self.make_error(node, why)
        return rank

    def find_integers(self, node: Node, name: str) -> Array | None:
        """Returns the integers of a value that is the same for all rows; None for an absent
        value.
        """
        numbers = self.graph.types[name].numbers if name else None
        if name in self.mapped or (name and numbers is None):
            raise self.make_error(node, f"{name!r} is not known before a run: expected a constant")
        return numbers

    def add_mapped(self, node: Node, inputs: Iterable[str], **attributes: Any) -> None:
        """Adds the node with new inputs and attributes; all of its outputs have rows."""
        self.nodes.append(
            replace(node, inputs=tuple(inputs), attributes={**node.attributes, **attributes})
        )
        self.mapped.update(filter(None, node.outputs))

    def end(self, node: Node, op: str, inputs: Sequence[str], **attributes: Any) -> None:
        """Adds the operator ``op``, which makes the node's first output in place of the node; the
        output has rows.
        """
        self.nodes.append(Node(op, tuple(inputs), node.outputs[:1], attributes, node.origin))
        self.mapped.add(node.outputs[0])

    def widen(self, node: Node, name: str, rank: int) -> str:
        """Returns a value with axes of size 1 after the axis of rows, so that one row has ``rank``
        axes.
        """
        missing = rank - self.rank(node, name)
        if name not in self.mapped or missing <= 0:
            return name
        return self.emit("Unsqueeze", name, range(1, 1 + missing))

    def sizes(self, name: str, start: int, end: int | None) -> str:
        ends: dict[str, Any] = {} if end is None else {"end": end}
        return self.emit("Shape", name, start=start, **ends)

    def shape(self, parts: Sequence[Part]) -> str:
        """Returns the name of a vector that joins ``parts`` in order."""
        if all(isinstance(part, int) for part in parts):
            return self.constant(parts)
        vectors = [part if isinstance(part, str) else self.constant([part]) for part in parts]
        return vectors[0] if len(vectors) == 1 else self.emit("Concat", *vectors, axis=0)

    def reshape(self, name: str, parts: Sequence[Part]) -> str:
        return self.emit("Reshape", name, self.shape(parts))

    def merge(self, name: str, axis: int = 0) -> str:
        """Returns the value with ``axis`` and the next axis merged."""
        front: list[Part] = [self.sizes(name, 0, axis)] if axis else []
        return self.reshape(name, [*front, -1, self.sizes(name, axis + 2, None)])

    def merge_batch(self, node: Node, name: str, axis: int) -> str:
        """Returns a value of all rows; the axis of rows is merged with ``axis``, an axis of one
        row.
        """
        rank = self.rank(node, name) + 1
        perm = (*range(1, 1 + axis), 0, *range(1 + axis, rank))
        return self.merge(self.emit("Transpose", self.rows(node, name), perm=perm), axis)

    def rows(self, node: Node, name: str) -> str:
        """Returns a value with an axis of rows; a value that does not depend on the rows is
        repeated.
        """
        if name in self.mapped:
            return name
        wide = self.emit("Unsqueeze", name, [0])
        ones = [1] * self.rank(node, name)
        return self.emit("Expand", wide, self.shape([self.count, *ones]))

    def over_axes(self, node: Node, default: Iterable[int] | None = None) -> None:
        """Adds an operator with an input that lists axes.

        ``default``: the axes if this input is absent.
        """
        operator, (x, *others) = OPERATORS[node.op], node.inputs
        place = [slot.axes for slot in operator.slots].index(True)
        self.alike(node, others)
        axes: Any = self.find_integers(node, node.input(place))
        if axes is None or not axes.size:
            types = input_types(self.graph.types, node)
            axes = default
            if default is None and operator.paths and (paths := operator.paths(node.attrs, *types)):
                axes = [axis for axis, to in enumerate(paths[0]) if to is None]
            if axes is None:
                raise self.make_error(
                    node, "its axes are not known before a run: expected constants"
                )
            if not (axes or node.attributes.get("noop_with_empty_axes")):  # [] means all axes
                raise self.make_error(node, "it reduces a value without axes: expected one axis")
        moved = self.constant(shift(np.array(axes)))
        inputs = (*others, "", "", "")[: max(len(others), place)]
        self.add_mapped(node, (x, *inputs[: place - 1], moved, *inputs[place:]))

    def over_batch(self, node: Node) -> None:
        """Adds an operator whose axis 0 is a batch: the rows are merged into this axis."""
        x, *others = node.inputs
        self.alike(node, others)
        whole = self.emit(node.op, self.merge(x), *others, **node.attributes)
        sizes = self.shape([self.sizes(x, 0, 2), self.sizes(whole, 1, None)])
        self.end(node, "Reshape", (whole, sizes))

    @property
    def count(self) -> str:
        """The name of a vector with one element, the number of rows."""
        if not self._count:
            first = next(v.name for v in self.graph.inputs if v.name in self.mapped)
            self._count = self.sizes(first, 0, 1)
        return self._count


def find_unmappable(graph: Graph, decisive: Iterable[str]) -> Refusal | None:
    """Returns a refusal that names the first operator that cannot run on many rows; None if there
    is none.

    Ignores operators inside of branches and loops, or used only there, and operators on sizes or
    ``decisive`` inputs only. If sizes and these inputs are known, passes may remove such operators.
    """
    needed = {value.name for value in graph.outputs}
    for node in reversed(graph.nodes):
        if not bodies(node) and not needed.isdisjoint(node.outputs):
            needed.update(filter(None, node.inputs))
    read = {value.name for value in graph.inputs}.difference(decisive)
    for node in graph.nodes:
        if node.op in ("Shape", "Size") or bodies(node) or read.isdisjoint(node.inputs):
            continue
        operator = OPERATORS.get(node.op)
        if not needed.isdisjoint(node.outputs) and not (operator and operator.batched):
            return Refusal(_UNMAPPED, node.label)
        read.update(filter(None, node.outputs))
    return None


_UNMAPPED = "it is not computed for many rows at once"


def _stretch(m: Mapper, node: Node) -> None:
    rank = max(m.rank(node, name) for name in node.inputs if name)
    m.add_mapped(node, (m.widen(node, name, rank) if name else "" for name in node.inputs))


def _axis(m: Mapper, node: Node) -> None:
    m.alike(node, node.inputs[1:])
    m.add_mapped(node, node.inputs, axis=int(shift(node.attrs.axis)))


def _join(m: Mapper, node: Node) -> None:
    inputs = [m.rows(node, name) for name in node.inputs]
    m.add_mapped(node, inputs, axis=int(shift(node.attrs.axis)))


_RULES: dict[str, Callable[[Mapper, Node], None]] = {
    "stretched": _stretch,
    "axis": _axis,
    "joined": _join,
    "axes": Mapper.over_axes,
    "batch": Mapper.over_batch,
}
