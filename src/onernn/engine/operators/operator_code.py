"""Rules that turn a node into the steps of a plan. A rule reads types and sizes from the program,
and declares which inputs, sizes and memory its steps need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from onernn.engine.program import (
    Call,
    LodLevel,
    Program,
    Step,
    UnknownError,
    WrittenNode,
    find_moved_type,
    name_kept,
)
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Context, Node, Sizes
from onernn.ir.operator import Path, at_axis
from onernn.ir.types import Shape, Size, Type, as_tuple, counts_of, dense, volume, words_of
from onernn.ops import OPERATORS

_SPELLED = {"float": "float32 or float64", "int": "a signed integer"}
"""The names of groups of dtypes in error messages."""


class OperatorCode:
    """The object that a rule gets for a node, and through which the rule writes the node's steps.
    In its methods, ``index`` is the position of an input or output.
    """

    def __init__(self, program: Program, node: Node) -> None:
        self.program, self.node, self.attrs = program, node, node.attrs
        self.reads: list[str] = []
        self.views: dict[str, str] = {}

    def read(self, index: int) -> str:
        """Returns an input's name, "" if it is absent; the input must be in memory when the node
        runs.
        """
        name = self.node.input(index)
        if name:
            self.reads.append(name)
        return name

    def read_first(self, count: int) -> list[str]:
        """Returns the first ``count`` inputs, see `read`."""
        return [self.read(index) for index in range(count)]

    def view(self, name: str) -> None:
        """Makes the first output a view of another value."""
        self.views[self.node.outputs[0]] = name

    def constant(self, index: int) -> Array | None:
        """Returns an input if it is a constant, otherwise None."""
        return self.program.graph.constants.get(self.node.input(index))

    @property
    def types(self) -> list[Type | None]:
        """The inputs' types; None for absent inputs. Names of sizes are replaced by the sizes that
        they are bound to so far.
        """
        return [self.program.settle(name) if name else None for name in self.node.inputs]

    def shape(self, index: int = 0) -> Shape:
        """Returns the shape of input ``index``."""
        return self.program.shape(self.node.inputs[index])

    def out(self, index: int = 0) -> tuple[str, Shape]:
        """Returns an output's name and shape."""
        return self.node.outputs[index], self.program.shape(self.node.outputs[index])

    @property
    def paths(self) -> Sequence[Path]:
        """The paths of the inputs: see `Operator.paths`. Raises `UnsupportedError` for paths that
        only a run knows.
        """
        record = OPERATORS[self.node.op]
        result = record.paths and record.paths(self.attrs, *self.types)
        return result or self.refuse("its axes are computed at run time: expected constants")

    def types_of_outputs(self) -> tuple[Type, ...]:
        """Returns the types of all outputs, including absent outputs, inferred from the inputs."""
        return as_tuple(OPERATORS[self.node.op].type(Context(self.node, Sizes()), *self.types))

    def result_size(self, axis: int) -> Size:
        """Returns a size of the first output. If the size is only a name, the rule binds it by
        `same`.
        """
        return self.size(self.node.outputs[0], axis)

    def size(self, name: str, axis: int) -> Size:
        """Returns a size of a value. Raises `UnknownError` if it is not known yet."""
        shape = self.program.types[name].shape
        size = shape[axis] if shape else None
        if size is None:
            raise UnknownError(name)
        return self.program.size(size)

    def dtype(self, index: int = 0) -> str:
        """Returns the dtype of input ``index``."""
        return self.program.dtype(self.node.inputs[index])

    def of(self, *kinds: str, index: int = 0) -> None:
        """Raises `UnsupportedError` unless the input's dtype begins with one of ``kinds``. Also
        raises it for float16, which `widen` should have cast.
        """
        if not self.dtype(index).startswith(kinds) or self.dtype(index) == "float16":
            expected = " or ".join(_SPELLED.get(kind, kind) for kind in kinds)
            name = self.node.input(index)
            self.refuse(f"input {name!r}: expected {expected}, got {self.dtype(index)}")

    def alike(self, *places: int) -> None:
        """Raises `UnsupportedError` if one of these inputs has a different dtype from the first
        input.
        """
        for index in places:
            if self.node.input(index) and self.dtype(index) != self.dtype():
                self.refuse(f"inputs: expected one dtype, got {self.dtype()}, {self.dtype(index)}")

    def refuse(self, reason: str) -> NoReturn:
        raise UnsupportedError(reason)

    def same(self, a: Size, b: Any) -> Size:
        """Declares that two sizes are equal, and returns the size that replaces both."""
        return self.program.same(a, Size.of(b), self.node)

    def fits(self, index: int, sizes: Sequence[Any]) -> None:
        """Declares that an input has these sizes."""
        for size, other in zip(self.shape(index), sizes, strict=True):
            self.same(size, other)

    def holds(self, index: int, count: Any) -> None:
        """Declares that an input has this number of elements."""
        self.same(volume(self.shape(index)), count)

    def axis(self, rank: int) -> int:
        """Returns the attribute ``axis``, counted from the front."""
        return at_axis(self.attrs.axis, rank)

    def sentences(self, index: int = 0) -> LodLevel:
        """Returns the innermost LoD level of an input, which must be ragged."""
        result = self.program.sentences(self.node.inputs[index])
        name = self.node.inputs[index]
        return result or self.refuse(f"input {name!r} has no offsets: expected ragged values")

    def numbers(self, index: int, what: str) -> list[Any] | None:
        """Returns the integers of an input, which may be sizes; None if it is absent.

        Raises `UnsupportedError` if only a call knows them.
        """
        name, result = self.node.input(index), self.constant(index)
        if not name:
            return None
        if result is None:
            result = self.program.numbers(name)
        if result is None:
            self.refuse(f"{what} {name!r} is computed at run time: expected a constant")
        return [one if isinstance(one, Size) else int(one) for one in result.reshape(-1)]

    def integers(self, index: int, what: str) -> list[int] | None:
        """Returns `numbers` as integers. Raises `UnsupportedError` if one of them is an open
        size.
        """
        result = self.numbers(index, what)
        if result is None:
            return None
        plain = [one.number if isinstance(one, Size) else one for one in result]
        if None in plain:
            self.refuse(f"{what} {self.node.input(index)!r} depends on a size: fix the size")
        return [int(one) for one in plain if one is not None]

    def keep(self, what: str, dtype: str, shape: Sequence[Any], *, held: bool = False) -> str:
        """Adds memory of this shape and returns its name. ``held``: whether only calls that run a
        single step need it.
        """
        name = name_kept(self.node.outputs[0], what)
        self.program.memory[name] = dense(dtype, shape)
        self.program.held |= {name} if held else set()
        return name

    def finds(self, size: Size, what: str, most: Size) -> Size:
        """Adds and returns a size that only a call computes; ``most``: its upper bound."""
        program = self.program
        ident = program.ident(name_kept(self.node.outputs[0], what))
        size = program.size(size)
        if size.name != ident and "." not in (size.name or ""):
            self.refuse(f"only a run knows the number of its results: expected {size}")
        # a call may compute the bound as well
        program.inner[ident] = most.substitute(program.inner)
        program.rename(size, ident)
        return Size.of(ident)

    def makes_sentences(
        self, *counts: Size, words: Size | None = None, most: Size | None = None
    ) -> tuple[LodLevel, ...]:
        """Adds LoD levels of the first output; without ``words``, the number of steps is known only
        during a call, and is at most ``most``.
        """
        out, program = self.node.outputs[0], self.program
        lod = program.type(out).lod or self.refuse("the offsets of its result are not known")
        if words is None:
            words = self.finds(self.result_size(0), "words", most or Size(()))
        program.rename(words_of(lod), words)
        self.same(self.result_size(0), words)
        for name, count in zip(counts_of(program.type(out)), counts, strict=True):
            program.rename(name, count)
        levels = program.add_levels(out, (*counts, words))
        program.memory |= {each.offsets: dense("int64", (each.count + 1,)) for each in levels}
        return levels

    def call(self, function: str, *arguments: Any, **more: Any) -> Call:
        """Returns the call that writes the first output; see `Call`. ``types`` defaults to the
        dtype of the first input.
        """
        return Call(function, self.node.outputs[0], *arguments, **{"types": [self.dtype()], **more})

    def move(self, function: str, *arguments: Any, by: int = 0, **more: Any) -> Call:
        """Returns the `call` of a function that only moves elements. ``by``: the index of the input
        with positions or lengths, 0 if there is none.
        """
        types = [find_moved_type(self.dtype()), *([self.dtype(by)] if by else [])]
        return self.call(function, *arguments, types=types, **more)

    def finish(self, codes: list[Step]) -> WrittenNode:
        """Returns the node with the steps that run it."""
        begins = {name: (around, Size(())) for name, around in self.views.items()}
        return WrittenNode(self.node, codes, self.reads, begins)


Rule = Callable[[OperatorCode], Step | Sequence[Step] | None]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Returns a decorator that registers a rule for the operators ``names``. The rule returns the
    steps of a node, or makes the node's output a view.
    """

    def register(found: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, found))
        return found

    return register


def write_node(program: Program, node: Node, found: Rule) -> WrittenNode:
    """Returns the node with its steps. Raises the errors of rules."""
    op = OperatorCode(program, node)
    codes = found(op) or []
    for name in filter(None, node.outputs):
        program.dtype(name)
        program.shape(name)
        # raises an error if the plan lacks the LoD levels of a value that Python makes
        program.levels(name)
    return op.finish(list(codes) if isinstance(codes, Sequence) else [codes])


def is_natural(size: Size) -> bool:
    """Returns whether a size is at least 0 for all values of its names."""
    return all(by > 0 for _, by in size.terms)


def at_least(op: OperatorCode, *sizes: Size) -> list[Call]:
    """Returns the calls that refuse negative sizes. Raises `UnsupportedError` for a size that is
    negative in every call.
    """
    if any((size.number or 0) < 0 for size in sizes):
        op.refuse(f"sizes {', '.join(map(str, sizes))}: expected at least 0")
    return [Call("natural", size, checks=True) for size in sizes if not is_natural(size)]
