"""Matches nodes of two graphs: finds pairs that compute the same, or have similar inputs and
settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np

from onernn.ir.arrays import digest, same_array
from onernn.ir.errors import OnernnError
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import cached_property, dataclass
from onernn.ir.rnn import Recurrent
from onernn.ops import OPERATORS
from onernn.verification.comparing import (
    OutputComparison,
    Tolerance,
    compare,
    in_one_form,
    pair_inputs,
)
from onernn.verification.diagnosis.faults import as_stored, name_arrays
from onernn.verification.tracing import LayerName, Traced, Values, run_nodes

_MOST = 10**6
"""Maximum number of pairs of nodes that are scored; if there are more, only equal nodes are
matched.
"""

_FEW = 8
"""If at most this many pairs are wrong, they are removed one by one; otherwise, all at once."""

_LAYER = 10
"""Score of a pair of recurrent layers; it is high, so that layers are matched before other
nodes.
"""


@dataclass(frozen=True, eq=False)
class Operation:
    """A node with its graph."""

    graph: Graph
    node: Node

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the node's inputs by position; "" for absent inputs of a recurrent node."""
        names = self.node.inputs
        return (*names, "", "", "")[:4] if self.is_layer else names

    @property
    def is_layer(self) -> bool:
        return self.node.op == "Rnn"

    @cached_property
    def read(self) -> list[str]:
        """The names of inputs that are neither constants nor absent."""
        return [name for name in self.inputs if name and name not in self.graph.constants]

    @cached_property
    def kind(self) -> Any:
        """A key that matched nodes have in common: the operator; for a layer, its number of layers
        and its sizes.
        """
        if not self.is_layer:
            return self.node.op
        spec = self.node.attributes["spec"]
        return spec.layers, spec.directions, spec.hidden_size, spec.recurrent_size

    @property
    def label(self) -> str:
        """The node's name in messages."""
        node = self.node
        return node.native if node.origin else f"{node.op} that makes {node.outputs[0]!r}"

    @cached_property
    def content(self) -> dict[str, Any]:
        """The node's inputs, attributes, fields of its spec, and weights, by names for messages.

        Constants and weights are arrays.
        """
        content = {
            f"input {index}": self.graph.constants.get(name, name)
            for index, name in enumerate(self.node.inputs)
            if name
        }
        if not self.is_layer:
            return content | dict(self.node.attributes)
        rnn = Recurrent.of(self.node)
        content |= {each.name: getattr(rnn.spec, each.name) for each in fields(rnn.spec)}
        for index, layer in enumerate(rnn.layers):
            for name, array in layer.arrays.items():
                content[_weights_key(rnn, index, name)] = array
        return content | {"precision": rnn.precision}

    def with_content(self, content: Mapping[str, Any]) -> Node:
        """Returns the node with new content; each input in it is a name."""
        names = {int(k.removeprefix("input ")): v for k, v in content.items() if _is_input(k)}
        inputs = tuple(names.get(index, "") for index in range(max(names, default=-1) + 1))
        if not self.is_layer:
            attributes = {k: v for k, v in content.items() if not _is_input(k)}
            return replace(self.node, inputs=inputs, attributes=attributes)
        rnn = Recurrent.of(self.node)
        weights = []
        for index, layer in enumerate(rnn.layers):
            new: dict[str, Any] = {
                each.name: content.get(_weights_key(rnn, index, each.name))
                for each in fields(layer)
            }
            weights.append(replace(layer, **new))
        spec = replace(rnn.spec, **{each.name: content[each.name] for each in fields(rnn.spec)})
        x, h, c, attention = (*inputs, "", "", "")[:4]
        changed = replace(rnn, spec=spec, weights=weights, x=x, h=h, c=c, attention=attention)
        return replace(changed, precision=content["precision"]).node()

    @cached_property
    def numbers(self) -> str:
        """A digest of the node's constants and weights, "" if it has none."""
        arrays = [each for each in self.content.values() if isinstance(each, np.ndarray)]
        return digest(arrays) if arrays else ""

    @cached_property
    def settings(self) -> dict[str, str]:
        """The attributes without weights, as texts. Defaults are filled in and negative axes become
        positive, so equal settings have equal texts.
        """
        attributes = vars(self.node.attrs)
        kept = {k: v for k, v in attributes.items() if k not in ("weights", "outputs")}
        texts = {key: _text(value) for key, value in kept.items()}
        axis = kept.get("axis")
        if isinstance(axis, int) and axis < 0 and self.node.inputs:
            rank = self.graph.types[self.node.inputs[0]].rank
            texts["axis"] = texts["axis"] if rank is None else repr(axis + rank)
        return texts

    def unlike(self, other: Operation) -> list[str]:
        """Returns the keys of `content` that differ. Inputs that are not constants are not
        compared.
        """
        return [
            key
            for key in dict.fromkeys([*self.content, *other.content])
            if self._differs(key, other)
        ]

    def _differs(self, key: str, other: Operation) -> bool:
        one, two = self.content.get(key), other.content.get(key)
        arrays = [each for each in (one, two) if isinstance(each, np.ndarray)]
        if len(arrays) == 2:
            return not same_array(*arrays)
        if _is_input(key) or arrays:
            return not _is_input(key)
        texts, wanted = self.settings.get(key), other.settings.get(key)
        return texts != wanted or (texts is None and as_stored(one) != as_stored(two))


def _is_input(key: str) -> bool:
    return key.startswith("input ")


def _weights_key(rnn: Recurrent, layer: int, name: str) -> str:
    place = f"layer {layer + 1}, " if len(rnn.layers) > 1 else ""
    return f"{place}the {name_arrays([name])}"  # no key of an input


def _text(value: Any) -> str:
    """Returns an attribute's value as text; a graph's nodes are listed, arrays are replaced by
    digests.
    """
    if isinstance(value, Graph):
        nodes = [
            (n.op, n.inputs, n.outputs, sorted(Operation(value, n).settings.items()))
            for n in value.nodes
        ]
        return repr((nodes, digest([*value.constants.values()])))
    return digest(value) if isinstance(value, np.ndarray) else as_stored(value)


@dataclass(frozen=True, eq=False)
class Matching:
    """Pairs of matched nodes of two graphs. ``values``: the name of each value's counterpart in
    ``other``.
    """

    graph: Graph
    other: Graph
    pairs: tuple[tuple[Operation, Operation], ...]
    values: Mapping[str, str]


def match(graph: Graph, other: Graph, values: tuple[Values, Values]) -> Matching:
    """Matches the nodes of two graphs; ``values``: all values of a run of each graph.

    Nodes with equal settings, constants and inputs are matched first. The remaining nodes are
    matched in order, by the similarity of their constants, attributes and names. The last axes of
    their outputs must have equal sizes; for views, such as Reshape, all axes must. If different
    operators make equal values in the two runs, the node of one value is only matched with the node
    of the equal value.
    """
    mine, theirs = ([Operation(each, node) for node in each.nodes] for each in (graph, other))
    inputs = pair_inputs(graph.inputs, other.inputs)
    known = {name: value.name for name, value in inputs.items()}
    shapes = [{name: data_of(value).shape for name, value in each.items()} for each in values]
    pairs = _equal_nodes(mine, theirs, known)

    def equal(pairs: Mapping[str, str]) -> dict[str, str]:
        return equal_values(pairs, graph, other, values[1])

    made = _values(mine, theirs, pairs, known)
    same = {m: t for m, t in equal(made).items() if m not in made}
    known |= same
    _align(pairs, mine, theirs, {**known, **made}, shapes, same)
    made = equal(_values(mine, theirs, pairs, known))
    while wrong := sorted(a for a, b in pairs.items() if _is_strange(mine[a], theirs[b], made)):
        # One wrong pair may make later pairs look wrong.
        gone = wrong if len(wrong) > _FEW else wrong[:1]
        pairs = {a: b for a, b in pairs.items() if a not in gone}
        made = equal(_values(mine, theirs, pairs, known))
    chosen = tuple((mine[a], theirs[b]) for a, b in sorted(pairs.items()))
    return Matching(graph, other, chosen, made)


def _equal_nodes(
    mine: Sequence[Operation], theirs: Sequence[Operation], inputs: Mapping[str, str]
) -> dict[int, int]:
    """Returns pairs of equal nodes that read equal values, as indices."""

    def key(each: Operation, known: Mapping[str, str]) -> Any:
        constants = each.graph.constants
        reads = [known.get(name, name and "?") for name in each.inputs if name not in constants]
        return each.node.op, repr(sorted(each.settings.items())), each.numbers, tuple(reads)

    places: dict[Any, list[int]] = {}
    own = {name: name for each in theirs for name in each.node.outputs}
    own |= {name: name for name in inputs.values()}
    for index, each in enumerate(theirs):
        places.setdefault(key(each, own), []).append(index)
    pairs: dict[int, int] = {}
    known = dict(inputs)
    for index, each in enumerate(mine):
        if same := places.get(key(each, known)):
            pairs[index] = same.pop(0)
            known |= _outputs(each, theirs[pairs[index]])
    return pairs


def _outputs(one: Operation, other: Operation) -> dict[str, str]:
    both = zip(one.node.outputs, other.node.outputs, strict=False)
    return {own: their for own, their in both if own and their}


def _align(
    pairs: dict[int, int],
    mine: Sequence[Operation],
    theirs: Sequence[Operation],
    values: Mapping[str, str],
    shapes: Sequence[Mapping[str, tuple[int, ...]]],
    same: Mapping[str, str],
) -> None:
    """Adds pairs of the remaining nodes to ``pairs``, highest score first. Pairs have the same
    order in both graphs.
    """
    rows = [index for index in range(len(mine)) if index not in pairs]
    taken = set(pairs.values())
    columns = [index for index in range(len(theirs)) if index not in taken]
    if len(rows) * len(columns) > _MOST:
        return
    scores = {
        (a, b): _score(mine[a], theirs[b], values)
        for a, b in product(rows, columns)
        if _sizes(mine[a], shapes[0]) == _sizes(theirs[b], shapes[1])
        and not _are_apart(mine[a], theirs[b], same)
    }
    added: dict[int, int] = {}
    for (a, b), score in sorted(scores.items(), key=lambda each: -each[1]):
        if score and all((a < c and b < d) or (a > c and b > d) for c, d in added.items()):
            added[a] = b
    pairs |= added


def _are_apart(one: Operation, other: Operation, same: Mapping[str, str]) -> bool:
    """Returns whether only one of both nodes makes a value that is equal in both graphs."""
    sides = one.node.outputs, other.node.outputs
    return any((mine in sides[0]) != (theirs in sides[1]) for mine, theirs in same.items())


def _score(one: Operation, other: Operation, values: Mapping[str, str]) -> float:
    """Returns the similarity of two nodes; 0 if their kinds differ."""
    if one.kind != other.kind:
        return 0.0
    alike = 3.0 + _LAYER * one.is_layer + (one.settings == other.settings)
    alike += 3 * (one.numbers == other.numbers and bool(one.numbers))
    alike += 2 * any(name in other.node.outputs for name in one.node.outputs if name)
    return alike + sum(values.get(name) in other.read for name in one.read)


def _sizes(each: Operation, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the last axis of a node's first output, all axes for views, none for layers (see
    `kind`).
    """
    if each.is_layer:
        return ()
    shape = shapes.get(each.node.outputs[0], ())
    known = OPERATORS.get(each.node.op)
    return shape if known is not None and known.kind == "view" else shape[-1:]


def _is_strange(one: Operation, other: Operation, values: Mapping[str, str]) -> bool:
    """Returns whether two nodes have only their kind in common."""
    if one.is_layer or (one.settings == other.settings and one.numbers == other.numbers):
        return False
    named = any(name in other.node.outputs for name in one.node.outputs if name)
    return not named and not any(values.get(name) in other.read for name in one.read)


def _values(
    mine: Sequence[Operation],
    theirs: Sequence[Operation],
    pairs: Mapping[int, int],
    inputs: Mapping[str, str],
) -> dict[str, str]:
    """Returns a map from names of the model's values to names of the reference's values:
    ``inputs``, and the outputs of paired nodes.
    """
    result = dict(inputs)
    for a, b in pairs.items():
        result |= _outputs(mine[a], theirs[b])
    return result


# --- values that are equal in both models although different operators make them


_APART = 1e-5
"""Equal values may differ by this part of the largest value, because sums may have a different
order.
"""


def equal_values(
    pairs: Mapping[str, str], graph: Graph, other: Graph, theirs: Values
) -> dict[str, str]:
    """Returns ``pairs`` and further pairs of equal values that different operators make.

    Exporters write one function in different ways. The model's operators run on values of the
    reference, so that faults before them have no effect. ``theirs``: all values of the reference's
    run.
    """
    taken = set(pairs.values())
    recomputed = _recompute(pairs, graph, theirs)
    forms = {_form(value) for value in recomputed.values()}
    there: dict[Any, list[str]] = {}
    for name in (name for node in other.nodes for name in node.outputs if name in theirs):
        if (form := _form(theirs[name])) in forms and _is_distinct(theirs[name]):
            there.setdefault(form, []).append(name)
    result: dict[str, str] = {}
    for name, value in recomputed.items():
        same = [each for each in there.get(_form(value), []) if _close(value, theirs[each])]
        free = [each for each in same if each not in taken]
        maker = graph.producer(name)
        if not free and maker is not None and moves(maker.op):  # a state may be sliced twice
            free = same
        if free:
            result[name] = free[0]
            taken.add(free[0])
    return {**pairs, **result}


def moves(op: str) -> bool:
    """Returns whether an operator only slices, reshapes or moves elements."""
    known = OPERATORS.get(op)
    return known is not None and known.kind in ("view", "moves")


def _recompute(pairs: Mapping[str, str], graph: Graph, theirs: Values) -> dict[str, Any]:
    """Returns the model's values that have no counterpart, computed from the reference's values."""
    known = {mine: theirs[their] for mine, their in pairs.items() if their in theirs}
    computed: dict[str, Any] = {}
    for node in graph.nodes:
        there = all(name in known or name in graph.constants for name in filter(None, node.inputs))
        if there and not known.keys() >= set(filter(None, node.outputs)):
            results = _run(graph, node, known)
            computed |= {
                name: v for name, v in results.items() if name not in known and _is_distinct(v)
            }
            known = {**results, **known}
    return computed


def _run(graph: Graph, node: Node, known: Values) -> dict[str, Any]:
    """Returns the outputs of one node, or {} if the node cannot run on these values."""
    outputs = tuple(Value(name) for name in node.outputs if name)
    try:
        with np.errstate(all="ignore"):
            return run_nodes(replace(graph, outputs=outputs), [node], known)
    except OnernnError:
        return {}


def _is_distinct(value: Any) -> bool:
    """Returns whether a value has floats by which it can be recognized; counts, zeros and masks
    cannot.
    """
    array = data_of(value) if isinstance(value, Ragged | np.ndarray) else None
    return array is not None and array.dtype.kind == "f" and len(np.unique(array)) > 2


def _form(value: Any) -> Any:
    lod = tuple(value.lod) if isinstance(value, Ragged) else ()
    return data_of(value).shape, str(data_of(value).dtype), repr(lod)


def _close(one: Any, two: Any) -> bool:
    one, two = data_of(one), data_of(two)
    largest = np.abs(two).max(initial=0)
    return bool(np.allclose(one, two, rtol=0, atol=_APART * largest, equal_nan=True))


# --- the comparison of two models node by node


@dataclass(frozen=True)
class NodeComparison:
    """The comparison of two matched nodes.

    ``value``, ``reference``: the names of their first outputs in the model and in the reference.
    """

    op: str
    native: str
    value: str
    reference: str
    part: LayerName | None
    comparison: OutputComparison

    def __str__(self) -> str:
        return str(self.part) if self.part else self.native

    def as_json(self) -> dict[str, str]:
        """Returns ``{"node", "value", "reason"}``."""
        return {"node": str(self), "value": self.value, "reason": self.comparison.reason}


def compare_nodes(
    model: Traced, reference: Traced, tolerance: Tolerance
) -> tuple[NodeComparison, ...]:
    """Compares the outputs of all matched nodes, in the model's order."""
    result = match(model.graph, reference.graph, (model.values, reference.values))
    pairs = ((one.node, other.node) for one, other in result.pairs)
    return tuple(
        _compare(model, reference, one, other, tolerance)
        for one, other in pairs
        if one.op == "Rnn" or "@" not in one.outputs[0]  # skips nodes that `expand` added
    )


def _compare(
    model: Traced, reference: Traced, mine: Node, theirs: Node, tolerance: Tolerance
) -> NodeComparison:
    name, other = mine.outputs[0], theirs.outputs[0]
    verdict: OutputComparison | None = None
    for own, their in zip(mine.outputs, theirs.outputs, strict=False):
        if own not in model.values or their not in reference.values:
            continue
        one, two = in_one_form(model.values[own], reference.values[their])
        if _flat(one, two):
            two = np.reshape(data_of(two), data_of(one).shape)
        each = compare(own, one, two, tolerance)
        if verdict is None or (verdict.passed and not each.passed):
            verdict = each
    assert verdict is not None  # both runs have the first output
    return NodeComparison(mine.op, mine.native, name, other, model.parts.get(name), verdict)


def _flat(one: Any, two: Any) -> bool:
    """Returns whether shapes are equal without axes of size 1."""
    sizes = [[s for s in data_of(v).shape if s != 1] for v in (one, two)]
    return sizes[0] == sizes[1] and not isinstance(two, Ragged)
