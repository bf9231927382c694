"""Graphs as plans take them: bodies opened, halves in float32, convolutions of bytes in floats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from onernn.fuse_passes.bodies import bodies
from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass
from onernn.ir.types import Type
from onernn.ops import OPERATORS
from onernn.ops.rules import ONE

Part = tuple[str, str]
"""A node's first output, and which of its graphs."""


@dataclass
class Flat:
    """A graph without graphs in it.

    ``parts``: for each value, the branches that it is made in, the innermost last. ``marks``: for
    what marks make, the first output of their If. ``sources``: by the nodes, those that they were
    before they had other names. ``left``: the Ifs that stay as they are, with the reason;
    ``refused``: the branches that end the call.
    """

    graph: Graph
    parts: dict[str, tuple[Part, ...]] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    sources: dict[Node, Node] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[Part, str] = field(default_factory=dict)


def flattened(
    graph: Graph,
    left: Mapping[str, str] = MappingProxyType({}),
    refused: Mapping[Part, str] = MappingProxyType({}),
) -> Flat:
    """The graph with all nodes that have graphs opened, but for those that are ``left``."""
    made = Flat(graph, left=left, refused=refused)
    if not any(map(bodies, graph.nodes)):
        return made
    taken = {value.name for value in graph.inputs}.union(graph.constants)
    taken.update(name for node in graph.nodes for name in node.outputs)
    opened = _Opened(made, taken, dict(graph.constants))
    for node in graph.nodes:
        opened.add(node, {}, ())
    made.graph = replace(graph, nodes=tuple(opened.nodes), constants=opened.constants)
    return made


class _Opened:
    """Nodes on their way into one graph; ``taken``: the names of its values."""

    def __init__(self, made: Flat, taken: set[str], constants: dict[str, Array]) -> None:
        self.made, self.taken, self.constants = made, taken, constants
        self.nodes: list[Node] = []

    def fresh(self, name: str) -> str:
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        return name

    def add(self, node: Node, names: Mapping[str, str], within: tuple[Part, ...]) -> None:
        """A node, whose values have other names in the whole graph."""
        moved = node.renamed(names)
        key = next(filter(None, moved.outputs))
        if bodies(moved) and key not in self.made.left:
            (self._branches if moved.op == "If" else self._turns)(moved, key, within)
            return
        if moved is not node:
            self.made.sources[moved] = node
        self.nodes.append(moved)
        self.made.parts |= dict.fromkeys(filter(None, moved.outputs), within)

    def _branches(self, node: Node, key: str, within: tuple[Part, ...]) -> None:
        condition, count = node.inputs[0], node.attributes["then_taken"]
        outputs = [name for name in node.outputs if name]
        kept = [at for at, name in enumerate(node.outputs) if name]
        reasons = [self.made.refused.get((key, part), "") for part in ("then", "else")]
        then_mark, else_mark = (self.fresh(f"{key}/{part}") for part in ("then", "else"))
        self._mark(key, "Then", (condition,), (then_mark,), within, refused=reasons[0])
        given = self._body(node, key, "then", node.inputs[1 : 1 + count], within)
        copies = [self.fresh(f"{name}/then") for name in outputs] if given else []
        chosen = [given[at] for at in kept] if given else []
        made = (else_mark, *copies)
        self._mark(key, "Else", (condition, *chosen), made, within, refused=reasons[1])
        given = self._body(node, key, "else", node.inputs[1 + count :], within)
        others = [given[at] for at in kept] if given else []
        gives = "else" if reasons[0] else "then" if reasons[1] else "both"
        inputs = (condition, *copies, *others)
        self._mark(key, "EndIf", inputs, tuple(outputs), within, gives=gives)

    def _turns(self, node: Node, key: str, within: tuple[Part, ...]) -> None:
        at, body = node.at, node.attributes["body"]
        results = (*node.outputs, *[""] * len(body.outputs))  # some may be left out
        if node.op == "Loop":
            count, head, given = at.carried, node.inputs[:2], node.inputs[2:]
            scans, along = 0, None
            axes = backwards = (0,) * (len(body.outputs) - 1 - count)
        else:
            count, head, given = at.states, ("", ""), node.inputs
            scans, along = at.scanned, at.input_axes[0]
            axes, backwards = at.output_axes, at.output_directions
        begin, taken = given[:count], given[count + scans :]
        scanned = given[count : count + scans]
        turn, going = self.fresh(f"{key}/turn"), self.fresh(f"{key}/going")
        states = [self.fresh(f"{key}/state") for _ in begin]
        inputs, outputs = (*head, *begin, *scanned), (turn, going, *states)
        through = () if node.op == "Loop" else at.input_axes
        self._mark(key, "Repeat", inputs, outputs, within, states=count, scanned=through)
        own = [turn, going, *states]
        if node.op == "Scan":
            own = states + [
                self._element(key, turn, *each, within)
                for each in zip(scanned, at.input_axes, at.input_directions, strict=True)
            ]
        made = self._body(node, key, "body", (*own, *taken), within)
        again = made.pop(0) if node.op == "Loop" else ""
        last = [name or self.fresh(f"{key}/last") for name in results[:count]]
        kept = [at for at, name in enumerate(results[count:]) if name]
        values = (*states, *made[:count], *(made[count + at] for at in kept), *scanned[:1])
        self._mark(
            key,
            "Again",
            (turn, going, again, *values),
            (*last, *filter(None, results[count:])),
            within,
            states=count,
            axes=tuple(axes[at] for at in kept),
            backwards=tuple(backwards[at] for at in kept),
            along=along,
            operators=1 + len(body.nodes),
        )

    def _element(
        self, key: str, turn: str, x: str, axis: int, backwards: int, within: tuple[Part, ...]
    ) -> str:
        """What a turn of a Scan sees of a value."""
        name = self.fresh(f"{key}/element")
        self.nodes.append(
            Node("Element", (x, turn), (name,), {"axis": axis, "backwards": backwards})
        )
        self.made.parts[name] = (*within, (key, "body"))
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
        self.made.parts |= dict.fromkeys(outputs, within)
        self.made.marks |= dict.fromkeys(outputs, key)

    def _body(
        self, node: Node, key: str, part: str, given: Sequence[str], within: tuple[Part, ...]
    ) -> list[str]:
        """Adds the operators of a graph; what it gives. [] for one that ends the call."""
        if (key, part) in self.made.refused:
            return []
        body: Graph = node.attributes[part if part == "body" else f"{part}_branch"]
        names = {value.name: name for value, name in zip(body.inputs, given, strict=True)}
        made = [name for each in body.nodes for name in each.outputs if name]
        names |= {name: self.fresh(f"{key}/{name}") for name in (*body.constants, *made)}
        self.constants |= {names[name]: array for name, array in body.constants.items()}
        for each in body.nodes:
            self.add(each, names, (*within, (key, part)))
        return [names[value.name] for value in body.outputs]


def smaller(whole: Graph, flat: Flat, name: str, reason: str) -> Flat | None:
    """Without what makes a value, as it cannot run: a branch, or a node whose graphs stay inside.

    None for a value outside of them.
    """
    parts, key = flat.parts.get(name, ()), flat.marks.get(name)
    if key is not None:
        return flattened(whole, {**flat.left, key: reason}, flat.refused)
    return refusing(whole, flat, parts[-1], reason) if parts else None


def refusing(whole: Graph, flat: Flat, part: Part, reason: str) -> Flat:
    """A branch that cannot run ends the call; an If without any that can, or a loop, stays."""
    key, graph = part
    refused = {**flat.refused, part: reason}
    if graph == "body" or refused.keys() >= {(key, "then"), (key, "else")}:
        return flattened(whole, {**flat.left, key: reason}, flat.refused)
    return flattened(whole, flat.left, refused)


# Operators on float16 compute in float32, and round their results: as `Operator.run` does it.

_MOVE = ("view", "moves", "sizes", "control", "layer")


def widened(graph: Graph) -> Graph:
    """The graph with casts around operators that compute; those that move numbers stay."""
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
        made = {name: new(name) for name in node.outputs if name and types[name].dtype == "float16"}
        nodes += [Node("Cast", (name,), (to,), {"to": "float32"}) for name, to in wide.items()]
        inputs = tuple(wide.get(name, name) for name in node.inputs)
        outputs = tuple(made.get(name, name) for name in node.outputs)
        nodes.append(replace(node, inputs=inputs, outputs=outputs))
        nodes += [Node("Cast", (name,), (to,), {"to": "float16"}) for to, name in made.items()]
    return replace(graph, nodes=tuple(nodes))


def _computes(node: Node, types: Mapping[str, Type]) -> bool:
    """Whether a node makes new numbers of halves and of no wider ones."""
    record = OPERATORS.get(node.op)
    if record is None or record.kind in _MOVE or node.op in ("Cast", "CastLike"):
        return False
    dtypes = {types[name].dtype or "" for name in node.inputs if name}
    return {dtype for dtype in dtypes if dtype[:5] in ("", "float")} == {"float16"}


# Convolutions of bytes as those of floats: exact, as floats hold sums of so few whole numbers.
#
# Such a sum is the same in any order. Without the zero points a number of x is at most 255.

_EXACT = 2**24
"""Up to here float32 holds every whole number, float64 up to its square and more."""


def in_floats(graph: Graph) -> Graph:
    """The graph with convolutions of bytes by constant weights as convolutions of floats."""
    if not any(node.op == "ConvInteger" for node in graph.nodes):
        return graph
    nodes, constants, taken = list[Node](), dict(graph.constants), set(graph.types)

    def new(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    for node in graph.nodes:
        weights = None if node.op != "ConvInteger" else _weights(graph, node)
        if weights is None:
            nodes.append(node)
            continue
        dtype, name = weights.dtype.name, node.outputs[0]
        x, w, y = (new(f"{name}.{part}") for part in ("x", "w", "y"))
        constants[w] = weights
        nodes.append(Node("Cast", node.inputs[:1], (x,), {"to": dtype}))
        if node.input(2):
            zero, whole = new(f"{name}.zero"), new(f"{name}.whole")
            nodes.append(Node("Cast", (node.inputs[2],), (zero,), {"to": dtype}))
            nodes.append(Node("Sub", (x, zero), (whole,)))
            x = whole
        nodes.append(Node("Conv", (x, w), (y,), node.attributes, node.origin))
        nodes.append(Node("Cast", (y,), node.outputs, {"to": "int32"}, node.origin))
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _weights(graph: Graph, node: Node) -> Array | None:
    """Constant weights without their zero points; None where the walk has to look at them."""
    x, w = graph.types[node.inputs[0]], graph.constants.get(node.inputs[1])
    zero = graph.constants.get(node.input(3))
    if w is None or x.dtype not in ("uint8", "int8") or w.dtype not in (np.uint8, np.int8):
        return None
    if node.input(2):
        known = graph.types[node.inputs[2]]
        if known.dtype != x.dtype or known.shape not in ((), (ONE,)):
            return None
    if node.input(3) and (zero is None or zero.dtype != w.dtype):
        return None
    shift = np.zeros(1, np.int16) if zero is None else zero.astype(np.int16).reshape(-1)
    if shift.size not in (1, len(w)):
        return None
    whole = w.astype(np.int16) - shift.reshape(-1, *[1] * (w.ndim - 1))
    most = 255 * np.abs(whole.astype(np.int64)).reshape(len(w), -1).sum(axis=1).max(initial=0)
    return whole.astype(np.float32 if most < _EXACT else np.float64)
