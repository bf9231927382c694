"""The types of a graph's values, from the operators' own rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace

from onernn.ir.errors import OnernnError, ShapeError
from onernn.ir.node import Node
from onernn.ir.operator import OPERATORS, Operator, mixes_nothing
from onernn.ir.sizes import Size
from onernn.ir.types import UNKNOWN, Type, valued

FAILURES = (OnernnError, ValueError, IndexError, TypeError, KeyError, OverflowError)
"""What a rule, or a formula on sizes, raises where a run would fail: nothing is known then."""


class Sizes:
    """Which names of sizes mean the same: rules fill it where two sizes must be equal."""

    def __init__(self) -> None:
        self._bound: dict[str, Size] = {}

    def same(self, *sizes: Size | None) -> Size | None:
        """The one size that all are, a number where one of them is; None where none is known."""
        known = [self.settled(size) for size in sizes if size is not None]
        if not known:
            return None
        chosen = min(known, key=lambda size: (size.number is None, size.name is None))
        for size in known:
            if size != chosen and size.name and size.name not in chosen.names:
                self._bound[size.name] = chosen
        return chosen

    def settled(self, size: Size) -> Size:
        while self._bound and not size.names.isdisjoint(self._bound):
            size = size.put(self._bound)
        return size

    def settle(self, found: Type) -> Type:
        """The type with every size as it is known now."""
        if not self._bound or found.shape is None:
            return found
        shape = tuple(None if size is None else self.settled(size) for size in found.shape)
        value = found.value
        if value is not None:
            value = self.settled(value) if isinstance(value, Size) else (*map(self.settled, value),)
        if shape == found.shape and value == found.value:
            return found
        return replace(found, shape=shape, value=value)


class Context:
    """What a type rule knows beside its inputs' types.

    ``at``: the node's attributes with their defaults. ``same(a, b)`` says that two sizes are equal
    and gives the one, or raises `ShapeError`; ``fresh(label)`` is a size that only a run tells,
    named after the node.
    """

    def __init__(self, node: Node, sizes: Sizes) -> None:
        self.at: SimpleNamespace = node.at
        self.said: list[tuple[Size | None, ...]] = []
        self.named = False  # whether anything is named after the node
        self._sizes, self._name = sizes, next(filter(None, node.outputs), "")

    def same(self, *sizes: Size | None) -> Size | None:
        self.said.append(sizes)
        found = self._sizes.same(*sizes)
        numbers = {self._sizes.settled(size).number for size in sizes if size is not None} - {None}
        if len(numbers) > 1:
            raise ShapeError(f"expected equal sizes, got {sorted(filter(None, numbers))}")
        return found

    def fresh(self, label: str) -> Size:
        self.named = True
        return Size.of(f"{self._name}.{label}")

    def lod(self, label: str = "lod0") -> str:
        """The name of LoD offsets that this node makes."""
        self.named = True
        return f"{self._name}.{label}"


class Inference:
    """The types of values, found node after node. ``known``: those that no node makes."""

    def __init__(self, known: Mapping[str, Type] = MappingProxyType({})) -> None:
        self._sizes, self._found = Sizes(), dict(known)

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __getitem__(self, name: str) -> Type:
        return self._sizes.settle(self._found[name])

    def __setitem__(self, name: str, known: Type) -> None:
        self._found[name] = known

    def add(self, node: Node) -> None:
        """Finds the types of a node's outputs; those of its inputs are there."""
        inputs = tuple(self[name] if name else None for name in node.inputs)
        before, outputs, said, _ = node.typed
        if before == inputs:  # graphs made one from another share most nodes
            for equal in said:
                self._sizes.same(*equal)
        else:
            context = Context(node, self._sizes)
            outputs = _outputs(node, inputs, context)
            node.remember_types(inputs, outputs, tuple(context.said), context.named)
        self._found.update(zip(node.outputs, outputs, strict=True))

    def rename(self, name: str, new: str) -> None:
        self._found[new] = self._found.pop(name)

    def types(self) -> dict[str, Type]:
        return {name: self._sizes.settle(found) for name, found in self._found.items() if name}


def infer(nodes: Iterable[Node], known: Mapping[str, Type]) -> dict[str, Type]:
    """The type of every value, ``known`` and made; what a rule cannot tell is unknown."""
    inference = Inference(known)
    for node in nodes:
        inference.add(node)
    return inference.types()


def _outputs(node: Node, inputs: tuple[Type | None, ...], context: Context) -> tuple[Type, ...]:
    """The types of a node's outputs."""
    unknown = (UNKNOWN,) * len(node.outputs)
    operator = OPERATORS.get(node.op)
    if operator is None or node.problem:
        return unknown
    try:
        made = operator.type(context, *inputs)
        outputs = tuple(made) if isinstance(made, tuple) else (made,)
        if not operator.offsets:
            outputs = _under_words(operator, node, inputs, outputs)
    except FAILURES:
        return unknown
    try:
        outputs = _numbers(operator, node, inputs, outputs[0]) or outputs
    except FAILURES:
        pass  # the shape is known all the same
    return (*outputs, *unknown)[: len(node.outputs)]


def _under_words(
    operator: Operator, node: Node, inputs: tuple[Type | None, ...], outputs: tuple[Type, ...]
) -> tuple[Type, ...]:
    """The outputs with the LoD of the first ragged input, as `Operator.run` gives it."""
    given = [each for each in inputs if each is not None]
    like = next((each for each in given if each.lod != ()), None)
    if like is None or operator.dropped is True:
        return tuple(Type(each.dtype, each.shape, (), each.value) for each in outputs)
    rank = given[0].rank
    keeps = operator.mixed is mixes_nothing and operator.dropped is False
    if like.lod is None or rank is None:
        return tuple(replace(each, lod=like.lod if keeps else None) for each in outputs)
    rest = [each and each.numbers for each in inputs[1:]]
    if any(
        operator.slot(place).tells and given is not None and numbers is None
        for place, (given, numbers) in enumerate(zip(inputs[1:], rest, strict=True), 1)
    ):
        return tuple(UNKNOWN for _ in outputs)
    axes = operator.mixed(node.at, rank, *rest)
    dropped = operator.drops(node.at, rank, *rest)
    if axes is None or any(axis in (0, -rank) for axis in axes):
        return tuple(UNKNOWN for _ in outputs)
    if dropped:
        return tuple(replace(each, lod=()) for each in outputs)
    words = like.shape[0] if like.shape else None
    return tuple(
        replace(each, lod=like.lod, shape=each.shape and (words, *each.shape[1:]), value=None)
        for each in outputs
    )


def _numbers(
    operator: Operator, node: Node, inputs: tuple[Type | None, ...], out: Type
) -> tuple[Type, ...] | None:
    """Integers and truths that are computed from known ones, sizes with names among them.

    Smaller integers wrap around.
    """
    if not operator.sized or out.dtype not in ("int32", "int64", "bool"):
        return None
    if not inputs or any(each is not None and each.value is None for each in inputs):
        return None
    made = operator.compute(node.at, *(e if e is None else e.sizes for e in inputs))  # type: ignore[misc]
    parts = made if isinstance(made, tuple) else (made,)
    return tuple(valued(out.dtype, part) for part in parts)
