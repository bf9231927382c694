"""Runs graphs and records every value, layer by layer. After a change of a graph, only the changed
nodes and the nodes after them run again.
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
from onernn.ir.graph import (
    Graph,
    Node,
    Value,
    describe_operators,
    input_types,
    layer_operators,
    native_types,
)
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
"""For each graph, the packed weights of its layers, which changed copies of the graph share."""


def trace(graph: Graph, feed: Batches, backend: str = "reference") -> dict[str, Any]:
    """Returns every value of a run by name, with the inputs. The graph is not fused."""
    values: dict[str, Any] = dict(feed)

    def keep(node: Node, results: tuple[Any, ...], _: float) -> None:
        values.update((name, v) for name, v in zip(node.outputs, results, strict=False) if name)

    values.update(_Run(graph, backend, {}).run(feed, keep))
    return values


class _Run(Session):
    """A session that fuses nothing and uses one thread, because a search makes many sessions.

    ``packed``: packed layers by weights and spec, which several runs share.
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
    """Returns the outputs of ``graph``, a changed copy of ``known``. ``values``: all values of a
    run of ``known``.

    Only changed nodes and nodes after them run.
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
    """Returns the outputs of a graph after a run of these nodes only; ``values`` has the results of
    the rest.
    """
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
    # A session with an observer runs node by node, without a plan.
    result = _Run(part, backend, packed or {}).run(taken, lambda *_: None) if wanted else {}
    known = {**graph.constants, **values, **result}
    return {each.name: known.get(each.name) for each in graph.outputs}


@cache
def fast_backend() -> str:
    """Returns the backend for runs of a search: "kernels" if onernn's compiled kernels load, else
    "reference".
    """
    try:
        open_backend("kernels")
    except LibraryError:
        return "reference"
    return "kernels"


# --- the number of steps that a run makes in each recurrent layer


@dataclass(frozen=True)
class Steps:
    """The number of steps that a run made in a recurrent layer or loop, for the longest sequence.

    ``count``: None if the layer did not run. ``most``: the largest count that the layer's shape
    allows, None if it allows any.
    """

    layer: str
    count: int | None
    most: int | None

    @property
    def unseen(self) -> bool:
        """Whether the run made at most one step, and the layer's shape allows more."""
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
    """Yields each recurrent layer and each loop with states, with its number of steps; None if the
    types do not show the number.

    ``turns``: how many times the graph itself runs, because a loop runs its body several times.
    """
    for node in graph.nodes:
        given = input_types(types, node)
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
    """Returns T of a layer's input; if SequenceUnpad made the input, T of the padded array."""
    if x.lod == ():
        return x.shape[0] if x.shape else None
    made = x.lod[-1].rpartition(".")[0] if x.lod else ""
    unpadded = graph.producer(made, "SequenceUnpad")
    shape = types[unpadded.inputs[0]].shape if unpadded else None
    return shape[1 - bool(unpadded.attrs.time_major)] if unpadded and shape else None


class StepCounter(Session):
    """A session that counts the steps of each recurrent layer in its last run."""

    def __init__(self, graph: Graph, **options: Any) -> None:
        self._counts: dict[Node, int] = {}
        super().__init__(graph, **options)

    def _prepare(self, graph: Graph) -> dict[Node, PreparedNode]:
        return {
            node: _Counted(node, each.layer, each.cells_from, self._counts)
            for node, each in super()._prepare(graph).items()
        }

    def run(self, inputs: Feed, observe: Observer | None = None) -> dict[str, Ragged | Array]:
        """Returns the outputs of `Session.run`. Counts the steps; if types do not show them, runs
        node by node.
        """
        self._counts.clear()
        if observe is None and self.count_by_types(inputs):
            outputs = super().run(inputs)
            # The run also added to the counts of some layers, so all are counted again.
            self.count_by_types(inputs)
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
        """Counts the steps that a run of these inputs would make. Returns whether the shapes of the
        inputs determine all counts.

        For ragged values, loops and branches it returns False.
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
        """Returns the steps of the last run. ``inputs``: inputs of another model, whose fixed sizes
        also hold here.
        """
        declared = {value.name: value for value in (*self.graph.inputs, *inputs)}
        types = self.graph.infer_types({v.name: declared[v.name].type for v in self.graph.inputs})
        result = []
        for node, size in size_layers(self.graph, types):
            count, most = self._counts.get(node), None if size is None else size.number
            if node.op == "Loop" and (count is None or size is None):
                continue  # a loop whose end depends on data is not a layer
            # Several operators of the file may be one layer: an unrolled loop, or a cell.
            several = native_types(node.origin).count("+")
            first = layer_operators(node.origin)[:1]
            name = describe_operators(first) if several and first else node.native
            result.append(Steps(name, count, most))
        return tuple(result)


@dataclass(frozen=True, eq=False)
class _Counted(PreparedNode):
    """A recurrent node that adds up the steps of all its runs: a node in a loop runs several
    times.
    """

    counts: dict[Node, int]

    def run(self, x: Any, *others: Any) -> tuple[Any, ...]:
        steps = int(x.lengths.max(initial=0)) if isinstance(x, Ragged) else len(x)
        self.counts[self.node] = self.counts.get(self.node, 0) + steps
        return super().run(x, *others)


# --- copies of a graph with some nodes replaced


def with_nodes(
    graph: Graph, new: Mapping[str, Sequence[Node]], constants: Mapping[str, Array] | None = None
) -> Graph:
    """Returns the graph with some nodes replaced. ``new``: the new nodes by the first output of the
    node that they replace.
    """
    nodes = [each for node in graph.nodes for each in new.get(node.outputs[0], [node])]
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **(constants or {})})


def recurrent_layers(graph: Graph, names: Container[str] | None = None) -> dict[str, Recurrent]:
    """Returns the recurrent layers by their output y: all layers, or only the layers whose y is in
    ``names``.
    """
    result = (Recurrent.of(node) for node in graph.nodes if node.op == "Rnn")
    return {rnn.y: rnn for rnn in result if names is None or rnn.y in names}


def map_arrays(graph: Graph, change: Callable[[Array], Array]) -> Graph:
    """Returns the graph with ``change`` applied to each constant, and then to each array of each
    layer's weights.
    """
    constants = {name: change(array) for name, array in graph.constants.items()}
    layers = {
        y: [replace(rnn, weights=[each.map(change) for each in rnn.layers]).node()]
        for y, rnn in recurrent_layers(graph).items()
    }
    return with_nodes(graph, layers, constants)


def rename_values(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Returns the graph with its inputs and outputs renamed; a value that already has a new name
    becomes NAME@inside.
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
    """The name of one layer and direction of a recurrent node, for messages.

    ``layer``: the layer's number from 0 on; the text counts from 1. ``own``: the file's operator
    for this layer, if the file has one operator for each layer.
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
    """Returns a text that lists layers; both directions of one layer appear together."""
    sides: dict[str, list[str]] = {}
    for part in parts:
        sides.setdefault(part._place, []).append(part.direction)
    both = {place: "both directions" if len(s) == 2 else s[0] for place, s in sides.items()}
    return " and ".join(f"{place}, {side}" for place, side in both.items())


def expand(graph: Graph) -> tuple[Graph, dict[str, LayerName]]:
    """Returns a graph in which each Rnn node is one layer in one direction, and the name of each
    node by its output y.

    Operators that exporters write in different ways get one form.
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


def trace_layers(model: Graph, feed: Batches) -> Traced:
    """Fuses and expands a model, runs it on the reference backend, and returns the graph with all
    values of the run.
    """
    graph, parts = expand(fuse(model).model)
    return Traced(graph, parts, trace(graph, feed))


@dataclass(frozen=True, eq=False)
class Trial(Traced):
    """A traced model on which changes are tried, and its expected outputs.

    ``values``: all values of the run, and inputs that only the reference takes. ``all_inputs``: the
    inputs of both models.
    """

    expected: Batches
    tolerances: Mapping[str, Tolerance]
    all_inputs: Batches = field(default_factory=dict)

    @cached_property
    def before(self) -> float:
        """The `distance` of the unchanged graph."""
        return largest_difference(self.values, self.expected)

    def passes(self, changed: Graph) -> bool:
        """Returns whether every output of the changed graph is within the tolerance."""
        outputs = self.outputs(changed)
        return outputs is not None and all_pass(outputs, self.expected, self.tolerances)

    def distance(self, changed: Graph) -> float:
        """Returns the largest difference from the expected outputs (see `largest_difference`),
        infinite if the graph cannot run.
        """
        outputs = self.outputs(changed)
        return np.inf if outputs is None else largest_difference(outputs, self.expected)

    def outputs(self, changed: Graph) -> Values | None:
        """Returns the outputs of the changed graph; None if it cannot run."""
        try:
            with np.errstate(all="ignore"):
                return rerun(changed, self.graph, self.values, fast_backend())
        except OnernnError:
            return None
