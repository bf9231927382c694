"""Runs graphs and keeps every value, layer by layer; runs again only the nodes that a change
reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from onernn.backend import open_backend
from onernn.backend.stack import Stack
from onernn.engine.kernels import PreparedNode
from onernn.engine.session import Observer, Session
from onernn.fuse_passes import fuse
from onernn.fuse_passes.bodies import bodies
from onernn.fuse_passes.expand_layers import ExpandLayers, part_name
from onernn.fuse_passes.normal_forms import NORMAL_FORMS, constants_last
from onernn.ir.arrays import Array
from onernn.ir.errors import LibraryError, OnernnError
from onernn.ir.feeds import Feed
from onernn.ir.graph import Graph, Node, Value, describe_operators, layer_operators, native_types
from onernn.ir.ragged import Ragged, depth_of
from onernn.ir.records import cached_property, dataclass
from onernn.ir.rnn import Recurrent, parts
from onernn.ir.spec import RnnSpec
from onernn.ir.types import Size, Type, dense
from onernn.ops.control import types_inside
from onernn.verification.comparing import Batches, Tolerance, all_pass, largest_difference

Values = Mapping[str, Any]
_Packed = dict[tuple[int, RnnSpec], Stack | None]
_PACKED: WeakKeyDictionary[Graph, _Packed] = WeakKeyDictionary()
"""Packed layers of graphs from which other graphs differ in some nodes."""


def trace(graph: Graph, feed: Batches, backend: str = "reference") -> dict[str, Any]:
    """Returns every value of a run by name, inputs included; nothing is fused."""
    values: dict[str, Any] = dict(feed)

    def keep(node: Node, results: tuple[Any, ...], _: float) -> None:
        values.update((name, v) for name, v in zip(node.outputs, results, strict=False) if name)

    values.update(_Run(graph, backend, {}).run(feed, keep))
    return values


class _Run(Session):
    """A run of a search: it is unfused and uses one thread, because it is short and other runs need
    the cores.

    ``packed``: layers by their weights and specs, which several runs share.
    """

    def __init__(self, graph: Graph, backend: str, packed: _Packed) -> None:
        self._packed = packed
        super().__init__(graph, backend=backend, passes=(), threads=1)

    def _layer(self, rnn: Recurrent) -> Stack:
        key = (id(rnn.weights), rnn.spec)
        if key not in self._packed:
            return super()._layer(rnn)
        if (result := self._packed[key]) is None:
            result = self._packed[key] = super()._layer(rnn)
        return result


def rerun(graph: Graph, known: Graph, values: Values, backend: str = "reference") -> dict[str, Any]:
    """Returns the outputs of a graph that differs in some nodes from a ``known`` one with these
    values. It runs only the new nodes and the nodes after them.
    """
    old = set(map(id, known.nodes))
    changed: set[str] = set()
    nodes = []
    for node in graph.nodes:
        if id(node) not in old or not changed.isdisjoint(node.inputs):
            nodes.append(node)
            changed.update(filter(None, node.outputs))
    if known not in _PACKED:
        layers = (Recurrent.of(node) for node in known.nodes if node.op == "Rnn")
        _PACKED[known] = {(id(rnn.weights), rnn.spec): None for rnn in layers}
    return run_nodes(graph, nodes, values, backend, _PACKED[known])


def run_nodes(
    graph: Graph,
    nodes: list[Node],
    values: Values,
    backend: str = "reference",
    packed: _Packed | None = None,
) -> dict[str, Any]:
    """Returns the outputs of a graph, of which it runs only these nodes."""
    computed = {name for node in nodes for name in node.outputs if name}
    read = {name for node in nodes for name in node.inputs if name} - computed
    taken = {name: values[name] for name in sorted(read - set(graph.constants))}
    wanted = tuple(value for value in graph.outputs if value.name in computed)
    part = replace(
        graph,
        inputs=tuple(Value(name, lod_depth=depth_of(value)) for name, value in taken.items()),
        outputs=wanted,
        nodes=tuple(nodes),
    ).prune()
    result = _Run(part, backend, packed or {}).run(taken, _ignore) if wanted else {}
    known = {**graph.constants, **values, **result}
    return {each.name: known.get(each.name) for each in graph.outputs}


def _ignore(*_: Any) -> None:
    """Observes nothing: a session with an observer runs node by node, without a plan."""


@cache
def fast_backend() -> str:
    """Returns the backend for the runs of a search: compiled kernels if there are any."""
    try:
        open_backend("kernels")
    except LibraryError:
        return "reference"
    return "kernels"


# --- how many steps of each recurrent layer a run makes


@dataclass(frozen=True)
class Steps:
    """The steps that a run made in a recurrent layer or loop, for the longest sequence.

    ``count``: None if the layer did not run. ``most``: as many as its shape allows, None if any
    number.
    """

    layer: str
    count: int | None
    most: int | None

    @property
    def unseen(self) -> bool:
        """Whether the run made one step or none, though more steps were possible."""
        return self.count is not None and self.count < 2 and (self.most is None or self.most > 1)

    def __str__(self) -> str:
        if self.count is None:
            return f"{self.layer}: did not run, its branch was not taken"
        fixed = ", its shape allows no more" if self.most == self.count else ""
        return f"{self.layer}: {self.count} step{'s' * (self.count != 1)}{fixed}"

    def as_json(self) -> dict[str, Any]:
        """Returns ``{"layer", "count", "most", "unseen"}``."""
        return {**vars(self), "unseen": self.unseen}


_ONCE = Size.of(1)


def size_layers(
    graph: Graph, types: Mapping[str, Type], turns: Size | None = _ONCE
) -> Iterator[tuple[Node, Size | None]]:
    """Yields each recurrent layer and loop with states, and its number of steps by the types, None
    if the types leave it open. Layers in bodies run in each of a loop's ``turns``.
    """
    for node in graph.nodes:
        given = [types[name] if name else None for name in node.inputs]
        first = next(iter(given), None)
        size, states = None, 0
        if node.op in ("Rnn", "DynamicQuantizeLSTM") and first is not None:
            states, size = 1, _longest(graph, types, first)
        elif node.op == "Scan":
            states, x = node.attrs.states, given[node.attrs.states]
            size = x.shape[node.attrs.input_axes[0]] if x is not None and x.shape else None
        elif node.op == "Loop":
            states, most = node.attrs.carried, None if first is None else first.value
            size = most if isinstance(most, Size) else None
        size = None if size is None or turns is None else size * turns
        if states:
            yield node, size
        for name, body in bodies(node).items():
            inner = zip(body.inputs, types_inside(node, name, given), strict=True)
            inside = turns if node.op == "If" else size
            yield from size_layers(
                body, body.infer_types({v.name: each for v, each in inner}), inside
            )


def _longest(graph: Graph, types: Mapping[str, Type], x: Type) -> Size | None:
    """Returns T of a layer's input; for unpadded sequences, T of the padded input."""
    if x.lod == ():
        return x.shape[0] if x.shape else None
    made = x.lod[-1].rpartition(".")[0] if x.lod else ""
    unpadded = graph.producer(made, "SequenceUnpad")
    shape = types[unpadded.inputs[0]].shape if unpadded else None
    return shape[1 - bool(unpadded.attrs.time_major)] if unpadded and shape else None


class StepCounter(Session):
    """A session that runs node by node, and knows the steps of its last run."""

    def __init__(self, graph: Graph, **options: Any) -> None:
        self._counts: dict[Node, int] = {}
        super().__init__(graph, **options)

    def _prepare(self, graph: Graph) -> dict[Node, PreparedNode]:
        return {
            node: _Counted(node, each.layer, each.cells_from, self._counts)
            for node, each in super()._prepare(graph).items()
        }

    def run(self, inputs: Feed, observe: Observer | None = None) -> dict[str, Ragged | Array]:
        """Returns the outputs of `Session.run`, and counts steps: node by node, if need be."""
        self._counts.clear()
        if observe is None and self.count_by_types(inputs):
            outputs = super().run(inputs)
            self.count_by_types(inputs)  # again: layers outside of a plan have counted theirs
            return outputs
        values: dict[str, Any] = dict(inputs)

        def keep(node: Node, results: tuple[Any, ...], seconds: float) -> None:
            values.update(zip(node.outputs, results, strict=False))
            if node.op == "DynamicQuantizeLSTM":
                self._counts[node] = len(values[node.inputs[0]])
            elif node.op == "Scan" and node.attrs.states:
                x = values.get(node.inputs[node.attrs.states])
                x = self.graph.constants[node.inputs[node.attrs.states]] if x is None else x
                self._counts[node] = x.shape[node.attrs.input_axes[0]]
            elif node.op == "Loop" and len(results) > node.attrs.carried > 0:
                self._counts[node] = len(results[-1])
            if observe is not None:
                observe(node, results, seconds)

        return super().run(inputs, keep)

    def count_by_types(self, inputs: Feed) -> bool:
        """Counts the steps that a run of these inputs makes, without a run; returns whether their
        shapes tell all of them. Ragged values, loops and branches need a run.
        """
        self._counts.clear()
        if any(node.op in ("Loop", "If") for node in self.graph.nodes):
            return False
        known = {}
        for value in self.graph.inputs:
            batch = inputs.get(value.name)
            if isinstance(batch, Ragged):
                return False
            known[value.name] = dense(value.dtype, np.asarray(batch).shape)
        found = list(size_layers(self.graph, types := self.graph.infer_types(known)))
        own = set(map(id, self.graph.nodes))
        for node, size in found:
            ragged = types[node.inputs[0]].lod != () if id(node) in own else True
            if ragged or size is None or size.number is None:
                return False
        self._counts.update((node, size.number) for node, size in found if size and size.number)
        return True

    def steps(self, inputs: Iterable[Value] = ()) -> tuple[Steps, ...]:
        """Returns the steps of the last run. ``inputs``: with sizes that another model declares."""
        declared = {value.name: value for value in (*self.graph.inputs, *inputs)}
        types = self.graph.infer_types({v.name: declared[v.name].type for v in self.graph.inputs})
        result = []
        for node, size in size_layers(self.graph, types):
            count, most = self._counts.get(node), None if size is None else size.number
            if node.op == "Loop" and (count is None or size is None):
                continue  # a loop whose end depends on data is not a layer
            several = native_types(node.origin).count("+")  # of an unrolled or written-out cell
            first = layer_operators(node.origin)[:1]
            name = describe_operators(first) if several and first else node.native
            result.append(Steps(name, count, most))
        return tuple(result)


@dataclass(frozen=True, eq=False)
class _Counted(PreparedNode):
    """A recurrent node that adds up the steps of all its runs, because a node in a loop runs
    several times.
    """

    counts: dict[Node, int]

    def run(self, x: Any, *others: Any) -> tuple[Any, ...]:
        steps = int(x.lengths.max(initial=0)) if isinstance(x, Ragged) else len(x)
        self.counts[self.node] = self.counts.get(self.node, 0) + steps
        return super().run(x, *others)


# --- graphs in which some nodes are others


def with_nodes(
    graph: Graph, new: Mapping[str, Sequence[Node]], constants: Mapping[str, Array] | None = None
) -> Graph:
    """Returns the graph with nodes replaced. ``new``: new nodes by the old node's first output."""
    nodes = [each for node in graph.nodes for each in new.get(node.outputs[0], [node])]
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **(constants or {})})


def recurrent_layers(graph: Graph, names: Container[str] | None = None) -> dict[str, Recurrent]:
    """Returns the recurrent layers by their y: all layers, or only the ones with these names."""
    result = (Recurrent.of(node) for node in graph.nodes if node.op == "Rnn")
    return {rnn.y: rnn for rnn in result if names is None or rnn.y in names}


def map_arrays(graph: Graph, change: Callable[[Array], Array]) -> Graph:
    """Returns the graph with ``change`` made to each constant, then to each layer's weights."""
    constants = {name: change(array) for name, array in graph.constants.items()}
    layers = {
        y: [replace(rnn, weights=[each.map(change) for each in rnn.layers]).node()]
        for y, rnn in recurrent_layers(graph).items()
    }
    return with_nodes(graph, layers, constants)


def rename_values(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Returns the graph with its inputs and outputs renamed.

    Values inside the graph that have one of the new names are also renamed.
    """
    border = {value.name for value in (*graph.inputs, *graph.outputs)}
    inside = {name for node in graph.nodes for name in node.outputs} - border
    taken = {name: f"{name}@inside" for name in names.values() if name in inside}
    every = {**taken, **names}
    inputs, outputs = (
        tuple(replace(value, name=names.get(value.name, value.name)) for value in values)
        for values in (graph.inputs, graph.outputs)
    )
    nodes = tuple(node.rename(every) for node in graph.nodes)
    return replace(graph, inputs=inputs, outputs=outputs, nodes=nodes)


# --- texts for layers and directions of recurrent nodes


@dataclass(frozen=True)
class LayerName:
    """Names a layer and direction of a recurrent node. As a text, layers are counted from 1.

    ``own``: the operator of the file that is this layer, if each layer is one operator.
    """

    node: str
    layer: int
    direction: str
    layers: int = 1
    own: str = ""

    def __str__(self) -> str:
        return f"{self._place}, {self.direction}"

    @property
    def _place(self) -> str:
        layer = f", layer {self.layer + 1} of {self.layers}" if self.layers > 1 else ""
        return (self.own or self.node) + layer


def in_words(parts: Iterable[LayerName]) -> str:
    """Returns a short text of several parts: both directions of a layer together."""
    sides: dict[str, list[str]] = {}
    for part in parts:
        sides.setdefault(part._place, []).append(part.direction)
    both = {place: "both directions" if len(s) == 2 else s[0] for place, s in sides.items()}
    return " and ".join(f"{place}, {side}" for place, side in both.items())


def expand(graph: Graph) -> tuple[Graph, dict[str, LayerName]]:
    """Returns a graph in which every Rnn is one layer in one direction, and the name of each by its
    y. Operators that exporters write in several ways get one form.
    """
    result: dict[str, LayerName] = {}
    for node in graph.nodes:
        if node.op == "Rnn":
            rnn = Recurrent.of(node)
            own = [replace(node, origin=(op,)).native for op in layer_operators(node.origin)]
            for part in parts(rnn.spec):
                side = "backward" if part.backwards else "forward"
                name = part_name(rnn, part)
                single = own[part.layer] if 1 < len(own) == rnn.spec.layers else ""
                result[name] = LayerName(node.native, part.layer, side, rnn.spec.layers, single)
    return constants_last(fuse(graph, (ExpandLayers(), *NORMAL_FORMS)).model), result


@dataclass(frozen=True, eq=False)
class Traced:
    """An expanded graph, the name of each of its Rnn nodes, and all values of a run."""

    graph: Graph
    parts: dict[str, LayerName]
    values: Values


def trace_layers(model: Graph, feed: Batches, backend: str = "reference") -> Traced:
    """Returns a run of a model that is fused and expanded."""
    graph, parts = expand(fuse(model).model)
    return Traced(graph, parts, trace(graph, feed, backend))


@dataclass(frozen=True, eq=False)
class Trial(Traced):
    """A run of the model on which changes are tried, and the expected outputs.

    ``values``: also of inputs that only the reference takes; ``all_inputs``: all batches.
    """

    expected: Batches
    tolerances: Mapping[str, Tolerance]
    all_inputs: Batches = field(default_factory=dict)

    @cached_property
    def before(self) -> float:
        """The `distance` of the unchanged graph."""
        return largest_difference(self.values, self.expected)

    def passes(self, changed: Graph) -> bool:
        """Returns whether every output is as expected."""
        outputs = self.outputs(changed)
        return outputs is not None and all_pass(outputs, self.expected, self.tolerances)

    def distance(self, changed: Graph) -> float:
        """Returns the largest difference from the expected outputs, see `largest_difference`."""
        outputs = self.outputs(changed)
        return np.inf if outputs is None else largest_difference(outputs, self.expected)

    def outputs(self, changed: Graph) -> Values | None:
        """Returns the outputs of a changed graph; None if it cannot run."""
        try:
            with np.errstate(all="ignore"):
                return rerun(changed, self.graph, self.values, fast_backend())
        except OnernnError:
            return None
