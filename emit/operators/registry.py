"""What every operator says of itself, in the steps of `onernn.emit.pipeline`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node
from onernn.core.sizes import Shape, Size
from onernn.emit.program import Program
from onernn.emit.storing import Store


@dataclass
class Code:
    """C++ of a step: a template, and what it is rendered with."""

    template: str
    context: dict[str, Any] = field(default_factory=dict)


class Operator:
    """An operator of a program. Methods are called in this order, `mixes` last.

    ``attributes``: those that it reads; others are refused.
    """

    attributes: tuple[str, ...] = ()

    def __init__(self, node: Node) -> None:
        self.node = node

    def types(self, program: Program) -> tuple[str, ...]:
        """The dtypes of the outputs: as the first input, unless told otherwise."""
        return (program.dtypes[self.node.inputs[0]],) * len(self.node.outputs)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        """The shapes of the outputs; says in ``program.lods`` which of them are ragged."""
        raise NotImplementedError

    def view(self, program: Program) -> str:
        """The input that the output is another shape of, "" where numbers are made."""
        return ""

    def initialize(self, program: Program, store: Store) -> None:
        """Packs constants into the store, which others are put in as they are."""

    def reads(self, program: Program) -> tuple[str, ...]:
        """The inputs that stand in memory when it runs."""
        return tuple(name for name in self.node.inputs if name)

    def code(self, program: Program) -> list[Code]:
        """What runs it; `view` has none."""
        return []

    def mixes(self, program: Program) -> list[Size]:
        """The sizes along which one output element depends on several input ones."""
        return []


OPERATORS: dict[str, type[Operator]] = {}
_Class = TypeVar("_Class", bound=type[Operator])


def operator(*names: str) -> Callable[[_Class], _Class]:
    def register(found: _Class) -> _Class:
        OPERATORS.update(dict.fromkeys(names, found))
        return found

    return register


def axis_of(node: Node, rank: int, default: int) -> int:
    """Attribute axis, counted from the front."""
    axis = int(node.attributes.get("axis", default))
    if not -rank <= axis < rank:
        raise UnsupportedError(f"attribute axis={axis}: the value has {rank} axes")
    return axis % rank


def words_stay(program: Program, node: Node, axes: Any) -> None:
    """Ragged like the first ragged input; refuses axes that would mix words."""
    lod = program.lod(node.inputs)
    if lod is None:
        return
    if 0 in axes:
        raise UnsupportedError("axis 0 would mix the words of a LoD")
    for name in filter(None, node.outputs):
        program.lods[name] = lod
