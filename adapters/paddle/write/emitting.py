"""What the rules that write a Paddle program share: values, constants, who carries a LoD."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from onernn.adapters.paddle.messages import DTYPES
from onernn.adapters.paddle.write.program import Declared, ProgramWriter, Sizes
from onernn.core.arrays import Array
from onernn.core.errors import Refusal, UnsupportedError
from onernn.core.graph import Graph, Node
from onernn.core.types import Type

CODES = {name: code for code, name in DTYPES.items()}
Attributes = Mapping[str, Any]
NONE: Attributes = MappingProxyType({})
ALL = 2**31 - 1
"""The end of an axis, as a Slice says it."""


@dataclass(frozen=True)
class Padded:
    """A ragged value as variables: (T, N, ...) and (N,) int64; ``like`` is the padded value itself."""

    data: str
    lengths: str
    like: str


@dataclass(eq=False)
class Writing:
    """``fused``: recurrent layers as fusion_gru and fusion_lstm; ``place``: "cpu" or "onednn"."""

    graph: Graph
    program: ProgramWriter
    fused: bool
    place: str
    padded: dict[str, Padded] = field(default_factory=dict)
    unplaced: list[Refusal] = field(default_factory=list)
    _values: dict[str, str] = field(default_factory=dict)
    _makers: dict[str, int] = field(default_factory=dict)

    @property
    def types(self) -> Mapping[str, Type]:
        return self.graph.types

    def rank_of(self, node: Node) -> int:
        """The number of axes of a node's first output."""
        return len(self.types[node.outputs[0]].counts)

    def value(self, name: str) -> str:
        """The variable that holds a value; a constant becomes a parameter with its first use."""
        if name not in self._values:
            self._values[name] = self.program.parameter(self.graph.constants[name], name)
        return self._values[name]

    def array(self, name: str, role: str) -> Array:
        """The array of a constant value. Raises `UnsupportedError` where it is computed."""
        if name not in self.graph.constants:
            raise UnsupportedError(f"{role} {name!r} is computed at run time")
        return self.graph.constants[name]

    def constant(self, array: npt.ArrayLike, stem: str = "constant") -> str:
        return self.program.parameter(np.asarray(array), stem)

    def of(self, variable: str) -> Declared:
        return self.program.variables[variable]

    def rank(self, variable: str) -> int:
        return len(self.of(variable).sizes)

    def bind(self, name: str, variable: str) -> None:
        self._values[name] = variable

    def wants(self, node: Node, at: int) -> bool:
        """Whether anybody reads an output."""
        name = node.outputs[at] if at < len(node.outputs) else ""
        return bool(name) and (bool(self.graph.users(name)) or self.graph.is_output(name))

    def emit(
        self,
        type: str,
        inputs: Mapping[str, str | Sequence[str]],
        sizes: int | Sizes | None = None,
        dtype: str = "",
        /,
        *,
        out: str = "Out",
        also: Sequence[str] = (),
        lod: str | None = None,
        attributes: Attributes = NONE,
    ) -> str:
        """Appends an operator and gives a provisional name for the variable in its slot ``out``.

        ``sizes``, or their number, and ``dtype``: those of the first input, unless told. ``lod``:
        the variable whose LoD Paddle hands on, "" for none, the first input unless told. ``also``:
        slots of side outputs that the operator insists on.
        """
        (out_name,) = self.emit_many(
            type, inputs, 1, sizes, dtype, out=out, also=also, lod=lod, attributes=attributes
        )
        return out_name

    def emit_many(
        self,
        type: str,
        inputs: Mapping[str, str | Sequence[str]],
        count: int,
        sizes: int | Sizes | None = None,
        dtype: str = "",
        /,
        *,
        out: str = "Out",
        also: Sequence[str] = (),
        lod: str | None = None,
        attributes: Attributes = NONE,
    ) -> list[str]:
        """As `emit`, for a slot that is a list of variables."""
        given = next(iter(inputs.values()), "")
        first = given if isinstance(given, str) else given[0]
        like = self.of(first) if first else Declared("float32", ())
        if sizes is None:
            sizes = like.sizes
        elif isinstance(sizes, int):
            sizes = (None,) * sizes
        source = first if lod is None else lod
        depth = self.of(source).depth if source else 0
        made = [self.program.fresh(f"{type}.out") for _ in range(count)]
        side = {slot: [self.program.fresh(f"{type}.{slot}")] for slot in also}
        for name in [*made, *(name for names in side.values() for name in names)]:
            self.program.variables[name] = Declared(dtype or like.dtype, sizes, depth)
            self._makers[name] = len(self.program.operations)
        self.program.add(type, inputs, {out: list(made), **side}, attributes)
        return made

    def side(self, variable: str, slot: str) -> str:
        """The variable in another output slot of the operator that made this one."""
        return self.program.operations[self._makers[variable]].outputs[slot][0]

    def give(self, node: Node, variable: str, at: int = 0, sizes: Sizes | None = None) -> None:
        """Binds an output of a node, where anybody named it, with the LoD that it must have."""
        name = node.outputs[at] if at < len(node.outputs) else ""
        if not name:
            return
        found, held = self.types[name], self.of(variable)
        if found.depth and held.depth != found.depth:
            variable = self.under(variable, self._like(node, found.depth))
        elif held.depth and not found.depth:
            variable = self.dense(variable)
        if (place := self._makers.pop(variable, None)) is not None:
            self._rename(variable, name, place)
            known = sizes or self.of(name).sizes
            if len(known) != found.rank:
                known = (None,) * len(found.counts)
            self.program.variables[name] = Declared(found.dtype or "", known, found.depth)
            variable = name
        self.bind(name, variable)

    def under(self, variable: str, like: str) -> str:
        """The rows of a variable under the LoD of another."""
        return self.emit("lod_reset", {"X": variable, "Y": like}, lod=like)

    def dense(self, variable: str) -> str:
        """The variable without its LoD: which a slice along the words drops."""
        if not self.of(variable).depth:
            return variable
        cut = {"axes": [0], "starts": [0], "ends": [ALL], "infer_flags": [1]}
        return self.emit("slice", {"Input": variable}, lod="", attributes=cut)

    def cast(self, variable: str, dtype: str) -> str:
        found = self.of(variable).dtype
        if found == dtype:
            return variable
        codes = {"in_dtype": CODES[found], "out_dtype": CODES[dtype]}
        return self.emit("cast", {"X": variable}, None, dtype, attributes=codes)

    def reshape(self, variable: str, sizes: Sequence[int], known: Sizes | None = None) -> str:
        """To these sizes, where 0 is that of the input and -1 what is left."""
        shown = known or tuple(size if size > 0 else None for size in sizes)
        shape = list(sizes)
        return self.emit(
            "reshape2", {"X": variable}, shown, also=("XShape",), attributes={"shape": shape}
        )

    def transpose(self, variable: str, perm: Sequence[int]) -> str:
        sizes = tuple(self.of(variable).sizes[axis] for axis in perm)
        order = {"X": variable}
        return self.emit(
            "transpose2", order, sizes, also=("XShape",), lod="", attributes={"axis": list(perm)}
        )

    def take(self, variable: str, cuts: Mapping[int, tuple[int, int]], gone: Sequence[int]) -> str:
        """The elements [start, end) of axes; those ``gone`` are one element, and dropped."""
        sizes = [
            None if size is None or axis in cuts else size
            for axis, size in enumerate(self.of(variable).sizes)
            if axis not in gone
        ]
        axes = list(cuts)
        attributes: dict[str, Any] = {
            "axes": axes,
            "starts": [cuts[axis][0] for axis in axes],
            "ends": [cuts[axis][1] for axis in axes],
            "infer_flags": [1] * len(axes),
            "decrease_axis": list(gone),
        }
        lod = "" if 0 in cuts else None
        return self.emit("slice", {"Input": variable}, tuple(sizes), lod=lod, attributes=attributes)

    def add(self, x: str, y: str, type: str = "elementwise_add", dtype: str = "") -> str:
        """An elementwise operator, broadcast as NumPy does."""
        rank = max(self.rank(x), self.rank(y))
        sizes = self.of(x).sizes if self.rank(x) == rank == self.rank(y) else rank
        return self.emit(type, {"X": x, "Y": y}, sizes, dtype, attributes={"axis": -1})

    def concat(self, variables: Sequence[str], axis: int) -> str:
        sizes = self.of(variables[0]).sizes
        known = tuple(None if at == axis % len(sizes) else size for at, size in enumerate(sizes))
        return self.emit("concat", {"X": variables}, known, attributes={"axis": axis})

    def _like(self, node: Node, depth: int) -> str:
        for name in node.inputs:
            if name in self._values and self.of(self._values[name]).depth == depth:
                return self._values[name]
        raise UnsupportedError(f"no input of {depth} LoD levels to take them from")

    def _rename(self, old: str, new: str, place: int) -> None:
        for each in self.program.operations[place:]:
            for slots in (each.inputs, each.outputs):
                for names in slots.values():
                    names[:] = [new if name == old else name for name in names]
        self.program.variables[new] = self.program.variables.pop(old)


Rule = Callable[[Writing, Node, list[str]], None]
"""A node and the variables of its inputs, "" where absent."""
RULES: dict[str, Rule] = {}


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Registers a function that writes nodes of these operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, function))
        return function

    return register


def only(node: Node, *known: str) -> None:
    """Refuses attributes that a rule does not read."""
    if unknown := sorted(set(node.attributes) - set(known)):
        raise UnsupportedError(f"attributes {', '.join(unknown)} have no form in Paddle")


def ints(w: Writing, node: Node, at: int, role: str) -> list[int]:
    """The numbers in a constant input."""
    return [int(number) for number in w.array(node.input(at), role).reshape(-1)]
