"""Prepares graphs for plans: moves nodes out of branches and loops, and adds casts so that float16
operators compute in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from onernn.fuse_passes.bodies import bodies
from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node
from onernn.ir.records import NOTHING, dataclass
from onernn.ir.types import Type
from onernn.ops import OPERATORS
from onernn.ops.control import Turns

Part = tuple[str, str]
"""A branch or loop body: the first output of its If or loop, and "then", "else" or "body"."""


@dataclass
class Flat:
    """A graph in which the nodes of branches and loops are nodes of the outer graph.

    ``parts``: the branches and loops that contain each value, the innermost last. Marks are nodes
    that begin or end a branch or loop, such as Then and Repeat; ``marks`` maps each output of a
    mark to the first output of its If or loop. ``sources``: the original of each renamed node.
    ``left``: the reason why an If or loop stays one node with its own graphs, by its first output.
    ``refused``: the reason why a branch ends the call instead of running.
    """

    graph: Graph
    parts: dict[str, tuple[Part, ...]] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    sources: dict[Node, Node] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[Part, str] = field(default_factory=dict)


def flatten(
    graph: Graph,
    left: Mapping[str, str] = NOTHING,
    refused: Mapping[Part, str] = NOTHING,
) -> Flat:
    """Returns the graph with the nodes of all branches and loops; an If or loop in ``left`` keeps
    its graphs.
    """
    result = Flat(graph, left=left, refused=refused)
    if not any(map(bodies, graph.nodes)):
        return result
    taken = {value.name for value in graph.inputs}.union(graph.constants)
    taken.update(name for node in graph.nodes for name in node.outputs)
    opened = _Opened(result, taken, dict(graph.constants))
    for node in graph.nodes:
        opened.add(node, {}, ())
    result.graph = replace(graph, nodes=tuple(opened.nodes), constants=opened.constants)
    return result


class _Opened:
    """Builder of a flat graph; ``taken``: the names that its values have."""

    def __init__(self, flat: Flat, taken: set[str], constants: dict[str, Array]) -> None:
        self.flat, self.taken, self.constants = flat, taken, constants
        self.nodes: list[Node] = []

    def fresh(self, name: str) -> str:
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        return name

    def add(self, node: Node, names: Mapping[str, str], within: tuple[Part, ...]) -> None:
        """Adds a node to the flat graph. ``names``: the new names of its values. ``within``: the
        branches and loops that contain the node.
        """
        moved = node.rename(names)
        key = next(filter(None, moved.outputs))
        if bodies(moved) and key not in self.flat.left:
            (self._branches if moved.op == "If" else self._turns)(moved, key, within)
            return
        if moved is not node:
            self.flat.sources[moved] = node
        self.nodes.append(moved)
        self.flat.parts |= dict.fromkeys(filter(None, moved.outputs), within)

    def _branches(self, node: Node, key: str, within: tuple[Part, ...]) -> None:
        condition, count = node.inputs[0], node.attributes["then_taken"]
        outputs = [name for name in node.outputs if name]
        kept = [index for index, name in enumerate(node.outputs) if name]
        reasons = [self.flat.refused.get((key, part), "") for part in ("then", "else")]
        then_mark, else_mark = (self.fresh(f"{key}/{part}") for part in ("then", "else"))
        self._mark(key, "Then", (condition,), (then_mark,), within, refused=reasons[0])
        results = self._body(node, key, "then", node.inputs[1 : 1 + count], within)
        copies = [self.fresh(f"{name}/then") for name in outputs] if results else []
        chosen = [results[index] for index in kept] if results else []
        result = (else_mark, *copies)
        self._mark(key, "Else", (condition, *chosen), result, within, refused=reasons[1])
        results = self._body(node, key, "else", node.inputs[1 + count :], within)
        others = [results[index] for index in kept] if results else []
        gives = "else" if reasons[0] else "then" if reasons[1] else "both"
        inputs = (condition, *copies, *others)
        self._mark(key, "EndIf", inputs, tuple(outputs), within, gives=gives)

    def _turns(self, node: Node, key: str, within: tuple[Part, ...]) -> None:
        own = Turns.of(node.attrs)
        body, count = own.body, own.states
        results = (*node.outputs, *[""] * len(body.outputs))  # some outputs may be absent
        head, begin, scanned, taken = own.parts(node.inputs)
        turn, going = self.fresh(f"{key}/turn"), self.fresh(f"{key}/going")
        states = [self.fresh(f"{key}/state") for _ in begin]
        inputs, outputs = (*(head or ("", "")), *begin, *scanned), (turn, going, *states)
        more: dict[str, Any] = {"states": count, "scanned": own.input_axes}
        self._mark(key, "Repeat", inputs, outputs, within, **more)
        ways = zip(scanned, own.input_axes, own.input_directions, strict=True)
        elements = [self._element(key, turn, *each, within) for each in ways]
        given = (*(turn, going)[: own.front], *states, *elements, *taken)
        result = self._body(node, key, "body", given, within)
        again = result.pop(0) if own.skip else ""
        last = [name or self.fresh(f"{key}/last") for name in results[:count]]
        kept = [index for index, name in enumerate(results[count:]) if name]
        values = (
            *states,
            *result[:count],
            *(result[count + index] for index in kept),
            *scanned[:1],
        )
        self._mark(
            key,
            "Again",
            (turn, going, again, *values),
            (*last, *filter(None, results[count:])),
            within,
            states=count,
            axes=tuple(own.output_axes[index] for index in kept),
            backwards=tuple(own.output_directions[index] for index in kept),
            along=own.input_axes[0] if scanned else None,
            operators=1 + len(body.nodes),
        )

    def _element(
        self, key: str, turn: str, x: str, axis: int, backwards: int, within: tuple[Part, ...]
    ) -> str:
        name = self.fresh(f"{key}/element")
        self.nodes.append(
            Node("Element", (x, turn), (name,), {"axis": axis, "backwards": backwards})
        )
        self.flat.parts[name] = (*within, (key, "body"))
        return name

    def _mark(
        self,
        key: str,
        op: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        within: tuple[Part, ...],
        **attributes: Any,
    ) -> None:
        self.nodes.append(Node(op, inputs, outputs, attributes))
        self.flat.parts |= dict.fromkeys(outputs, within)
        self.flat.marks |= dict.fromkeys(outputs, key)

    def _body(
        self, node: Node, key: str, part: str, inputs: Sequence[str], within: tuple[Part, ...]
    ) -> list[str]:
        """Adds the nodes of a branch or loop. Returns the names of its outputs, or [] if a branch
        ends the call because it cannot run.
        """
        if (key, part) in self.flat.refused:
            return []
        body: Graph = node.attributes[part if part == "body" else f"{part}_branch"]
        names = {value.name: name for value, name in zip(body.inputs, inputs, strict=True)}
        result = [name for each in body.nodes for name in each.outputs if name]
        names |= {name: self.fresh(f"{key}/{name}") for name in (*body.constants, *result)}
        self.constants |= {names[name]: array for name, array in body.constants.items()}
        for each in body.nodes:
            self.add(each, names, (*within, (key, part)))
        return [names[value.name] for value in body.outputs]


def smaller(whole: Graph, flat: Flat, name: str, reason: str) -> Flat | None:
    """Returns `refusing` of the innermost branch or loop that contains the value ``name``, because
    this value cannot be computed there.

    If a mark makes the value, the If or loop keeps its graphs. Returns None for a value outside of
    branches and loops.
    """
    parts, key = flat.parts.get(name, ()), flat.marks.get(name)
    if key is not None:
        return flatten(whole, {**flat.left, key: reason}, flat.refused)
    return refusing(whole, flat, parts[-1], reason) if parts else None


def refusing(whole: Graph, flat: Flat, part: Part, reason: str) -> Flat:
    """Returns the graph in which the call ends if it reaches a branch that cannot run.

    If the part is a loop's body, or if neither branch of the If can run, the loop or If stays one
    node with its own graphs.
    """
    key, graph = part
    refused = {**flat.refused, part: reason}
    if graph == "body" or refused.keys() >= {(key, "then"), (key, "else")}:
        return flatten(whole, {**flat.left, key: reason}, flat.refused)
    return flatten(whole, flat.left, refused)


# Operators on float16 compute in float32 and round their results, in the same way as
# `Operator.run`.

_MOVE = ("view", "moves", "sizes", "control", "layer")


def widen(graph: Graph) -> Graph:
    """Returns the graph with casts around operators that compute; operators that move elements get
    none.
    """
    types = graph.types
    if all(found.dtype != "float16" for found in types.values()):
        return graph
    taken, nodes = set(types), list[Node]()

    def new(name: str) -> str:
        name = f"{name}.float32"
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    for node in graph.nodes:
        if not _computes(node, types):
            nodes.append(node)
            continue
        halves = [name for name in node.inputs if name and types[name].dtype == "float16"]
        wide = {name: new(name) for name in dict.fromkeys(halves)}
        result = {
            name: new(name) for name in node.outputs if name and types[name].dtype == "float16"
        }
        nodes += [Node("Cast", (name,), (to,), {"to": "float32"}) for name, to in wide.items()]
        nodes.append(node.rename(wide | result))
        nodes += [Node("Cast", (name,), (to,), {"to": "float16"}) for to, name in result.items()]
    return replace(graph, nodes=tuple(nodes))


def _computes(node: Node, types: Mapping[str, Type]) -> bool:
    """Returns whether a node computes new values, with float16 as the only float dtype of its
    inputs.
    """
    record = OPERATORS.get(node.op)
    if record is None or record.kind in _MOVE or node.op in ("Cast", "CastLike"):
        return False
    dtypes = {types[name].dtype or "" for name in node.inputs if name}
    return {dtype for dtype in dtypes if dtype[:5] in ("", "float")} == {"float16"}
