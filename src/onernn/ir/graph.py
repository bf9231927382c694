"""The one form that every framework's model is lowered to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from types import MappingProxyType
from typing import Any

from onernn.ir.arrays import Array, frozen
from onernn.ir.cached import cached_property
from onernn.ir.errors import ModelFormatError, UnsupportedError, printable
from onernn.ir.inference import infer
from onernn.ir.node import UNSUPPORTED, NativeOp, Node, Value, native_types
from onernn.ir.pickling import Immutable
from onernn.ir.records import dataclass
from onernn.ir.types import Type, constant_type

__all__ = [
    "UNSUPPORTED",
    "Graph",
    "NativeOp",
    "Node",
    "Value",
    "graph_of",
    "native_types",
    "register_reader",
]


@dataclass(frozen=True, eq=False)
class Graph(Immutable):
    """An immutable model: nodes in an order in which they can run, constants read-only.

    ``notes`` are what a reader wants a user to know. Raises `ModelFormatError` where a value is
    used before it is made (a cycle, too) or made twice, and where a node's inputs, outputs or
    attributes are not those of its operator.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        constants = {name: frozen(array) for name, array in self.constants.items()}
        object.__setattr__(self, "constants", MappingProxyType(constants))
        object.__setattr__(self, "notes", tuple(map(printable, self.notes)))
        known = {value.name for value in self.inputs} | set(constants)
        if len({value.name for value in self.inputs}) != len(self.inputs):
            names = [value.name for value in self.inputs]
            raise ModelFormatError(f"inputs {names}: a name stands there twice", self.name)
        for node in self.nodes:
            if node.problem:
                raise ModelFormatError(f"{node.label}: {node.problem}", self.name)
            for name in filter(None, node.inputs):
                if name not in known:
                    raise ModelFormatError(
                        f"{node.label} uses {name!r} before anything makes it", self.name
                    )
            for name in filter(None, node.outputs):
                if name in known:
                    raise ModelFormatError(f"{node.label} makes {name!r} again", self.name)
                known.add(name)
        for value in self.outputs:
            if value.name not in known:
                raise ModelFormatError(f"output {value.name!r} is made by no operator", self.name)

    @cached_property
    def _producers(self) -> dict[str, Node]:
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def _users(self) -> dict[str, list[Node]]:
        users: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                users.setdefault(name, []).append(node)
        return users

    @cached_property
    def types(self) -> dict[str, Type]:
        """What is known of every value, from what the inputs declare; see `Type`."""
        return self.typed({value.name: value.type for value in self.inputs})

    def typed(self, inputs: Mapping[str, Type]) -> dict[str, Type]:
        """The types of all values where the inputs are of these types."""
        constants = {name: constant_type(array) for name, array in self.constants.items()}
        return infer(self.nodes, {**constants, **inputs})

    def is_dense(self, *names: str) -> bool:
        """Whether all values are surely without offsets; absent ones are."""
        return all(self.types[name].lod == () for name in names if name)

    def _repr_html_(self) -> str:
        """A table for notebooks: inputs, operators with the types that they make, and outputs."""
        from onernn.ir import html

        rows = [("input", "", value.name, str(self.types[value.name])) for value in self.inputs]
        for node in self.nodes:
            made = [name for name in node.outputs if name]
            types = "; ".join(str(self.types[name]) for name in made)
            rows.append((node.op, native_types(node.origin), ", ".join(made), types))
        rows += [("output", "", value.name, "") for value in self.outputs]
        return html.table(self.name, ("operator", "from", "makes", "type"), rows)

    def producer(self, name: str) -> Node | None:
        """The node that makes a value; None for inputs, constants and ""."""
        return self._producers.get(name)

    def has(self, node: Node) -> bool:
        """Whether this very node is in the graph."""
        return any(self.producer(name) is node for name in node.outputs if name)

    def users(self, name: str) -> list[Node]:
        return list(self._users.get(name, ()))

    def is_output(self, name: str) -> bool:
        return any(value.name == name for value in self.outputs)

    def is_read(self, name: str) -> bool:
        """Whether any node, or the caller of the graph, reads the value; nobody reads ""."""
        return bool(name) and (name in self._users or self.is_output(name))

    def used_only_by(self, name: str, node: Node) -> bool:
        """Whether nobody else, the caller of the graph included, sees the value."""
        return self.users(name) == [node] and not self.is_output(name)

    def splice(
        self,
        old: Iterable[Node],
        new: Iterable[Node],
        constants: Mapping[str, Array] = MappingProxyType({}),
    ) -> Graph:
        """The graph with ``new`` in the place of the last of ``old``, and constants added."""
        gone = set(map(id, old))
        place = max(i for i, node in enumerate(self.nodes) if id(node) in gone)
        kept = [node for node in self.nodes[: place + 1] if id(node) not in gone]
        nodes = (*kept, *new, *self.nodes[place + 1 :])
        return self._pruned(nodes, {**self.constants, **constants})

    def bypass(self, identities: Iterable[Node]) -> Graph:
        """The graph in which the users of each node read its first input instead.

        An output of the graph keeps its name, through an Identity.
        """
        behind = {node.outputs[0]: node.inputs[0] for node in identities}

        def source(name: str) -> str:
            while name in behind:
                name = behind[name]
            return name

        nodes = []
        for node in self.nodes:
            inputs = tuple(map(source, node.inputs))
            if node.outputs[0] not in behind:
                nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
            elif self.is_output(node.outputs[0]):
                nodes.append(Node("Identity", inputs[:1], node.outputs[:1], {}, node.origin))
        return self._pruned(nodes, self.constants)

    def pruned(self) -> Graph:
        """Without the nodes and constants that no output needs; inputs stay, they are the face."""
        return self._pruned(self.nodes, self.constants)

    def _pruned(self, nodes: Sequence[Node], constants: Mapping[str, Array]) -> Graph:
        needed = {value.name for value in self.outputs} | {""}
        kept = []
        for node in reversed(nodes):
            if not needed.isdisjoint(filter(None, node.outputs)):
                kept.append(node)
                needed.update(node.inputs)
        used = {name: array for name, array in constants.items() if name in needed}
        return replace(self, nodes=tuple(reversed(kept)), constants=used)


_readers: list[Callable[[Any], Graph]] = []


def register_reader(read: Callable[[Any], Graph]) -> None:
    """Tells what reads a model where only its path is given."""
    _readers.append(read)


def graph_of(model: Graph | str | PathLike[str]) -> Graph:
    """The model itself, or what `onernn.load` makes of a path.

    Raises what that raises, and `UnsupportedError` for what is neither.
    """
    if isinstance(model, Graph):
        return model
    if isinstance(model, str | PathLike):
        return _readers[-1](model)
    raise UnsupportedError(
        "expected a model as onernn.load gives it, or the path of one, got"
        f" {type(model).__module__}.{type(model).__qualname__}"
    )
