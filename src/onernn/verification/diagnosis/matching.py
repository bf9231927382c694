"""Operators of two graphs that play the same part, by what they compute and by their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from onernn.ir.arrays import Array, digest
from onernn.ir.errors import OnernnError
from onernn.ir.graph import Graph, Node, Value, native_types
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import cached_property, dataclass
from onernn.ir.weights import RnnWeights
from onernn.ops import OPERATORS
from onernn.verification.comparing import (
    OutputComparison,
    Tolerance,
    compare,
    in_one_form,
    paired_inputs,
)
from onernn.verification.diagnosis.faults import stored
from onernn.verification.tracing import LayerName, Traced, Values, run_nodes

_MOST = 10**6
"""Pairs of operators that are compared one by one; of longer lists only those that are equal."""

_FEW = 8
"""Up to so many pairs that have nothing in common are taken back one by one."""

_LAYER = 10
"""Recurrent layers are matched before what stands between them."""


Shapes = Mapping[str, tuple[int, ...]]


class Slot(NamedTuple):
    """An input of one of an operator's nodes that none of its nodes makes."""

    node: int
    position: int
    value: str


@dataclass(frozen=True, eq=False)
class Operator:
    """The nodes of one operator of the file, in order; a single node where none is known.

    ``inner``: for every node's input the place of what makes it among the nodes, as (node,
    output); None for those that come from elsewhere, which are the ``slots``.
    """

    graph: Graph
    nodes: tuple[Node, ...]

    @cached_property
    def makers(self) -> dict[str, tuple[int, int]]:
        """By value the (node, output) that makes it."""
        return {
            name: (index, position)
            for index, node in enumerate(self.nodes)
            for position, name in enumerate(node.outputs)
            if name
        }

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(
            Slot(index, position, name)
            for index, node in enumerate(self.nodes)
            for position, name in enumerate(_padded(node))
            if name not in self.makers
        )

    @cached_property
    def structure(self) -> tuple[Any, ...]:
        """The same for operators whose slots and values correspond one to one."""
        inner = (tuple(self.makers.get(name) for name in _padded(node)) for node in self.nodes)
        return (tuple(node.op for node in self.nodes), tuple(inner))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The values that are read elsewhere."""
        within = set(map(id, self.nodes))
        return tuple(
            name
            for name in self.makers
            if self.graph.is_output(name)
            or any(id(user) not in within for user in self.graph.users(name))
        )

    @property
    def kind(self) -> str:
        """Must be equal in both graphs; for layers their number and sizes are part of it."""
        if self.rnns:
            specs = [node.attributes["spec"] for node in self.rnns]
            sizes = [(s.layers, s.directions, s.hidden_size, s.recurrent_size) for s in specs]
            return f"Rnn {sizes}"
        last = self.nodes[-1]
        return last.op if len(self.nodes) == 1 else native_types(last.origin) or last.op

    @property
    def rnns(self) -> list[Node]:
        return [node for node in self.nodes if node.op == "Rnn"]

    @property
    def label(self) -> str:
        """Its name for a reader."""
        last = self.nodes[-1]
        return last.native if last.origin else f"{last.op} that makes {last.outputs[0]!r}"

    @cached_property
    def numbers(self) -> str:
        """A digest of its constants, "" where it has none."""
        arrays = [*self._constants()]
        return digest(arrays) if arrays else ""

    @cached_property
    def settings(self) -> str:
        """Its attributes except weights, as `attribute_texts` has them."""
        return repr([sorted(attribute_texts(self.graph, node).items()) for node in self.nodes])

    def _constants(self) -> Iterable[Array]:
        for slot in self.slots:
            if slot.value in self.graph.constants:
                yield self.graph.constants[slot.value]
        for node in self.rnns:
            yield from weights_in(node.attributes["weights"])


def weights_in(weights: Any) -> list[Array]:
    """All arrays of a recurrent node."""
    each = [weights] if isinstance(weights, RnnWeights) else weights
    return [array for one in each for array in one.arrays.values()]


def attribute_texts(graph: Graph, node: Node) -> dict[str, str]:
    """Attributes with their defaults as text: equal texts mean the same in any file.

    An axis is counted from the first.
    """
    kept = {k: v for k, v in vars(node.attrs).items() if k not in ("weights", "outputs")}
    texts = {key: _text(value) for key, value in kept.items()}
    axis = kept.get("axis")
    if isinstance(axis, int) and axis < 0 and node.inputs:
        rank = graph.types[node.inputs[0]].rank
        texts["axis"] = texts["axis"] if rank is None else repr(axis + rank)
    return texts


def _text(value: Any) -> str:
    """Graphs by their nodes, arrays by a digest."""
    if isinstance(value, Graph):
        nodes = [
            (n.op, n.inputs, n.outputs, sorted(attribute_texts(value, n).items()))
            for n in value.nodes
        ]
        return repr((nodes, digest([*value.constants.values()])))
    return digest(value) if isinstance(value, np.ndarray) else stored(value)


def _padded(node: Node) -> tuple[str, ...]:
    """The inputs; those of a recurrent node with absent ones."""
    return (*node.inputs, "", "", "")[:4] if node.op == "Rnn" else node.inputs


def operators(graph: Graph, whole: bool) -> list[Operator]:
    """A graph's operators in order. ``whole``: as the file had them, else each node is one."""
    if not whole:
        return [Operator(graph, (node,)) for node in graph.nodes]
    result: list[Operator] = []
    for origin, nodes in groupby(graph.nodes, key=lambda node: node.origin):
        each = tuple(nodes)
        if origin:
            result.append(Operator(graph, each))
        else:
            result += [Operator(graph, (node,)) for node in each]
    return result


@dataclass(frozen=True, eq=False)
class Matching:
    """Pairs of operators, and for values of the model those of the reference."""

    pairs: tuple[tuple[Operator, Operator], ...]
    mine: tuple[Operator, ...]
    theirs: tuple[Operator, ...]
    values: Mapping[str, str]


def matched(
    graph: Graph, other: Graph, values: tuple[Values, Values], *, whole: bool = False
) -> Matching:
    """Both graphs' operators matched, by the ``values`` of a run of each; ``whole``: see
    `operators`.

    Those that compute the same from the same values first; the others in order, by constants,
    attributes and names: channels have to be the same, and all axes of views. Operators that
    contradict values of the same numbers are not matched.
    """
    mine, theirs = operators(graph, whole), operators(other, whole)
    inputs = paired_inputs(graph.inputs, other.inputs)
    known = {name: value.name for name, value in inputs.items()}
    shapes = [{name: data_of(value).shape for name, value in each.items()} for each in values]
    pairs = _equal_operators(mine, theirs, known)
    equal = partial(equal_values, graph=graph, other=other, theirs=values[1])
    made = _values(mine, theirs, pairs, known)
    same = {m: t for m, t in equal(made).items() if m not in made}
    known |= same
    _align(pairs, mine, theirs, {**known, **made}, shapes, same)
    made = equal(_values(mine, theirs, pairs, known))
    while wrong := sorted(a for a, b in pairs.items() if _strange(mine[a], theirs[b], made)):
        # One may have made those behind it strange.
        gone = wrong if len(wrong) > _FEW else wrong[:1]
        pairs = {a: b for a, b in pairs.items() if a not in gone}
        made = equal(_values(mine, theirs, pairs, known))
    chosen = tuple((mine[a], theirs[b]) for a, b in sorted(pairs.items()))
    return Matching(chosen, tuple(mine), tuple(theirs), made)


def _equal_operators(
    mine: Sequence[Operator], theirs: Sequence[Operator], inputs: Mapping[str, str]
) -> dict[int, int]:
    """The operators that are equal and read equal values, by their indices."""

    def key(operator: Operator, known: Mapping[str, str]) -> Any:
        constants = operator.graph.constants
        reads = [known.get(s.value) for s in operator.slots if s.value not in constants]
        return operator.structure, operator.settings, operator.numbers, tuple(reads)

    places: dict[Any, list[int]] = {}
    own = {name: name for each in theirs for name in each.makers}
    own |= {name: name for name in inputs.values()}
    for index, each in enumerate(theirs):
        places.setdefault(key(each, own | {"": ""}), []).append(index)
    pairs: dict[int, int] = {}
    known = {**inputs, "": ""}
    for index, each in enumerate(mine):
        if same := places.get(key(each, known)):
            pairs[index] = same.pop(0)
            there = {place: name for name, place in theirs[pairs[index]].makers.items()}
            known |= {n: there[place] for n, place in each.makers.items() if place in there}
    return pairs


def _align(
    pairs: dict[int, int],
    mine: Sequence[Operator],
    theirs: Sequence[Operator],
    values: Mapping[str, str],
    shapes: Sequence[Shapes],
    same: Mapping[str, str],
) -> None:
    """Adds the best pairs of the others, in order: the sum of their scores is the largest."""
    rows = [index for index in range(len(mine)) if index not in pairs]
    taken = set(pairs.values())
    columns = [index for index in range(len(theirs)) if index not in taken]
    if len(rows) * len(columns) > _MOST:
        return
    best = np.zeros((len(rows) + 1, len(columns) + 1))
    scores = np.zeros((len(rows), len(columns)))
    for i, a in enumerate(rows):
        for j, b in enumerate(columns):
            alike = _sizes(mine[a], shapes[0]) == _sizes(theirs[b], shapes[1])
            if alike and not _apart(mine[a], theirs[b], same):
                scores[i, j] = _score(mine[a], theirs[b], values)
            both = best[i, j] + scores[i, j] if scores[i, j] else 0.0
            best[i + 1, j + 1] = max(best[i, j + 1], best[i + 1, j], both)
    i, j = len(rows), len(columns)
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs[rows[i]] = columns[j]


def _apart(one: Operator, other: Operator, same: Mapping[str, str]) -> bool:
    """Whether either makes a value that is the same as one that the other does not make."""
    known = [(m, t) for m, t in same.items() if m in one.outputs or t in other.outputs]
    return any(m not in one.outputs or t not in other.outputs for m, t in known)


def _read(operator: Operator) -> list[str]:
    """The values that it computes with: no constants, nothing absent."""
    names = dict.fromkeys(slot.value for slot in operator.slots if slot.value)
    return [name for name in names if name not in operator.graph.constants]


def _score(one: Operator, other: Operator, values: Mapping[str, str]) -> float:
    """A score of what two operators have in common; 0 for different kinds."""
    if one.kind != other.kind:
        return 0.0
    alike = 2.0 + _LAYER * bool(one.rnns)
    alike += (one.structure == other.structure) + (one.settings == other.settings)
    alike += 3 * (one.numbers == other.numbers and bool(one.numbers))
    alike += 2 * any(name in other.makers for name in one.outputs)
    reads = {slot.value for slot in other.slots}
    alike += sum(values.get(slot.value, None) in reads for slot in one.slots if slot.value)
    return alike


def _sizes(operator: Operator, shapes: Shapes) -> tuple[int, ...]:
    """The channels of what it makes first, all axes of views; () for layers: see `kind`."""
    if operator.rnns:
        return ()
    shape = shapes.get(next(iter(operator.outputs), ""), ())
    known = [OPERATORS.get(node.op) for node in operator.nodes]
    view = all(each is not None and each.kind == "view" for each in known)
    return shape if view else shape[-1:]


def _strange(one: Operator, other: Operator, values: Mapping[str, str]) -> bool:
    """Whether operators have nothing in common but what they are called: their place, neither."""
    same = one.structure == other.structure and one.settings == other.settings
    if one.rnns or (same and one.numbers == other.numbers):
        return False
    named = any(name in other.makers for name in one.outputs)
    reads = set(_read(other))
    return not named and not any(values.get(slot.value) in reads for slot in one.slots)


def _values(
    mine: Sequence[Operator],
    theirs: Sequence[Operator],
    pairs: Mapping[int, int],
    inputs: Mapping[str, str],
) -> dict[str, str]:
    """The reference's values by the model's."""
    result = dict(inputs)
    for a, b in pairs.items():
        one, other = mine[a], theirs[b]
        if one.structure == other.structure:
            for node, twin in zip(one.nodes, other.nodes, strict=True):
                both = zip(node.outputs, twin.outputs, strict=False)
                result |= {own: their for own, their in both if own and their}
            continue
        shared = [name for name in one.outputs if name in other.outputs]
        left = [[n for n in each.outputs if n not in shared] for each in (one, other)]
        result |= {name: name for name in shared}
        result |= dict(zip(*left, strict=False))
    return result


# --- values that no matched operators make, and that are the same numbers in both models


_APART = 1e-5
"""Part of the largest number by which equal values may differ: sums in another order."""


def equal_values(
    pairs: Mapping[str, str], graph: Graph, other: Graph, theirs: Values
) -> dict[str, str]:
    """The pairs of values, and what is computed otherwise but comes to the same.

    Exporters write one function in several ways. What the model makes of values that have a pair
    is computed of the reference's, so that faults before it do not matter. ``theirs``: the values
    of the reference's run.
    """
    taken = set(pairs.values())
    recomputed = _recomputed(pairs, graph, theirs)
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
        if not free and maker is not None and moves(maker.op):  # one state may be cut out twice
            free = same
        if free:
            result[name] = free[0]
            taken.add(free[0])
    return {**pairs, **result}


def moves(op: str) -> bool:
    """Whether an operator only cuts numbers out, or moves them."""
    known = OPERATORS.get(op)
    return known is not None and known.kind in ("view", "moves")


def _recomputed(pairs: Mapping[str, str], graph: Graph, theirs: Values) -> dict[str, Any]:
    """The model's values without a counterpart, of the reference's values before them."""
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
    """The outputs of one node; empty if it cannot run on these values."""
    outputs = tuple(Value(name) for name in node.outputs if name)
    try:
        with np.errstate(all="ignore"):
            return run_nodes(replace(graph, outputs=outputs), [node], known)
    except OnernnError:
        return {}


def _is_distinct(value: Any) -> bool:
    """Whether two values of the same numbers are the same value: not counts, zeros, or masks."""
    array = data_of(value) if isinstance(value, Ragged | np.ndarray) else None
    return array is not None and array.dtype.kind == "f" and len(np.unique(array)) > 2


def _form(value: Any) -> Any:
    lod = tuple(value.lod) if isinstance(value, Ragged) else ()
    return data_of(value).shape, str(data_of(value).dtype), repr(lod)


def _close(one: Any, two: Any) -> bool:
    one, two = data_of(one), data_of(two)
    largest = np.abs(two).max(initial=0)
    return bool(np.allclose(one, two, rtol=0, atol=_APART * largest, equal_nan=True))


# --- two models node by node: where the first difference appears


@dataclass(frozen=True)
class NodeComparison:
    """A pair of matched nodes: what they are called in both models, and how they compare."""

    op: str
    native: str
    value: str
    reference: str
    part: LayerName | None
    comparison: OutputComparison

    def __str__(self) -> str:
        return str(self.part) if self.part else self.native


def compared(model: Traced, reference: Traced, tolerance: Tolerance) -> tuple[NodeComparison, ...]:
    """All matched nodes in the model's order, compared."""
    result = matched(model.graph, reference.graph, (model.values, reference.values))
    pairs = ((one.nodes[0], other.nodes[0]) for one, other in result.pairs)
    return tuple(
        _compared(model, reference, one, other, tolerance)
        for one, other in pairs
        if one.op == "Rnn" or "@" not in one.outputs[0]  # not what expanding added
    )


def _compared(
    model: Traced, reference: Traced, mine: Node, theirs: Node, tolerance: Tolerance
) -> NodeComparison:
    name, other = mine.outputs[0], theirs.outputs[0]
    verdict: OutputComparison | None = None
    for own, their in zip(mine.outputs, theirs.outputs, strict=False):
        if own not in model.values or their not in reference.values:
            continue
        one, two = in_one_form(model.values[own], reference.values[their])
        if isinstance(one, Ragged) and isinstance(two, Ragged) and one.lod != two.lod:
            pass  # compared as it is
        elif data_of(one).shape != data_of(two).shape and data_of(one).size == data_of(two).size:
            two = np.reshape(data_of(two), data_of(one).shape) if _flat(one, two) else two
        each = compare(own, one, two, tolerance)
        if verdict is None or (verdict.passed and not each.passed):
            verdict = each
    assert verdict is not None  # every matched node has a first value
    return NodeComparison(mine.op, mine.native, name, other, model.parts.get(name), verdict)


def _flat(one: Any, two: Any) -> bool:
    """Whether shapes differ in axes of size 1 only."""
    sizes = [[s for s in data_of(v).shape if s != 1] for v in (one, two)]
    return sizes[0] == sizes[1] and not isinstance(two, Ragged)
