"""Finds the differences between two models, selects the fewest that explain why outputs differ, and
names the selected differences.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from onernn.ir.arrays import digest, same_array
from onernn.ir.graph import Graph, Node
from onernn.ir.records import cached_property, dataclass
from onernn.ir.rnn import Recurrent, parts
from onernn.verification.diagnosis.cause import sort_nodes
from onernn.verification.diagnosis.faults import Relation, relate, relate_layers
from onernn.verification.diagnosis.graph_faults import DIRECTIONS_EXCHANGED
from onernn.verification.diagnosis.matching import Matching, Operation, moves
from onernn.verification.tracing import LayerName, in_words

_PAIRS = 12
"""If at most this many groups of differences remain, the search also tries to omit pairs of groups.
"""


class Difference(NamedTuple):
    """A difference between a pair of matched nodes, or between outputs of both graphs.

    ``key``: a key of `Operation.content`, or for outputs, the name of the model's output.
    ``reads``, ``wanted``: for an input or output, the name of the value in the model and in the
    reference.
    """

    model: Operation | None
    reference: Operation | None
    key: str
    reads: str = ""
    wanted: str = ""

    @property
    def is_wiring(self) -> bool:
        """Whether an input or output is connected to a different value; False if settings or
        constants differ.
        """
        return bool(self.reads or self.wanted)


def differences_in(matching: Matching, outputs: Mapping[str, str]) -> list[Difference]:
    """Returns all differences, in the order of the model's nodes. ``outputs``: the reference's
    outputs by the model's names.
    """
    result = []
    for mine, theirs in matching.pairs:
        result += [Difference(mine, theirs, key) for key in mine.unlike(theirs)]
        for index in range(max(len(mine.inputs), len(theirs.inputs))):
            one, other = ((*each.inputs, "", "", "")[index] for each in (mine, theirs))
            fixed = one in mine.graph.constants, other in theirs.graph.constants
            if all(fixed) or one == other == "":
                continue
            counterpart = matching.values.get(one) if one else ""
            if any(fixed) or counterpart != other:
                result.append(Difference(mine, theirs, f"input {index}", one, other))
    result += [
        Difference(None, None, mine, mine, theirs)
        for mine, theirs in outputs.items()
        if matching.values.get(mine) != theirs
    ]
    return result


def by_node(chosen: Sequence[Difference]) -> Iterator[list[Difference]]:
    """Yields the differences of each node as one list; each difference of an output is a list of
    its own.
    """
    groups: dict[int, list[Difference]] = {}
    for each in chosen:
        groups.setdefault(id(each.model or each), []).append(each)
    yield from groups.values()


def _join_layouts(groups: Iterable[list[Difference]]) -> list[list[Difference]]:
    """Returns the lists, in which the list of a layer also has the differences of the GateLayout
    node that the layer reads.

    The layer's weights and the node's layout both contain the signs of gates, so one fault changes
    both.
    """
    result = list(groups)
    for layer in [*result]:
        reads = layer[0].model.node.inputs[:1] if layer[0].model and layer[0].model.is_layer else ()
        for group in [*result]:
            node = group[0].model and group[0].model.node
            if node and node.op == "GateLayout" and node.outputs[:1] == reads:
                layer += group
                result.remove(group)
    return result


def patch(matching: Matching, chosen: Sequence[Difference]) -> Graph:
    """Returns the model's graph with the reference's content at the chosen differences.

    If the new graph needs a value that the model lacks, it gets copies of the reference's nodes
    that make the value; the outputs of the copies are called NAME.reference. Raises
    `ModelFormatError` if the graph would have a cycle.
    """
    graph, other = matching.graph, matching.other
    shadowed = {each.key: f"{each.key}.model" for each in chosen if each.model is None}
    own: dict[str, str] = {}
    for mine, theirs in matching.values.items():
        own.setdefault(theirs, shadowed.get(mine, mine))
    constants, inputs = dict(graph.constants), {value.name: value for value in graph.inputs}
    missing: dict[str, None] = {}

    def source(name: str) -> str:
        if not name or name in own:
            return own.get(name, "")
        if name in other.constants:
            kept = graph.constants.get(name)
            same = kept is not None and same_array(kept, other.constants[name])
            constants[name if same else f"{name}.reference"] = other.constants[name]
            return name if same else f"{name}.reference"
        if other.producer(name) is None:
            inputs.update((value.name, value) for value in other.inputs if value.name == name)
            return name
        missing[name] = None
        return f"{name}.reference"

    nodes = {id(node): node for node in graph.nodes}
    for units in by_node(chosen):
        one, twin = units[0].model, units[0].reference
        if one is not None and twin is not None:
            nodes[id(one.node)] = mix(one, twin, {each.key for each in units}, source)
    ends = [
        Node("Identity", (source(each.wanted),), (each.key,)) for each in chosen if not each.model
    ]
    copied: dict[int, Node] = {}
    waiting = list(missing)
    while waiting:  # copies the nodes that make missing values
        maker = other.producer(waiting.pop())
        if maker is not None and id(maker) not in copied:
            known = set(missing)
            copied[id(maker)] = replace(
                maker,
                inputs=tuple(map(source, maker.inputs)),
                outputs=tuple(n and own.get(n, f"{n}.reference") for n in maker.outputs),
            )
            waiting += [name for name in missing if name not in known]
    every = [*(node.rename(shadowed) for node in nodes.values()), *copied.values(), *ends]
    return sort_nodes(graph, every, inputs.values(), constants)


def mix(
    mine: Operation,
    theirs: Operation,
    keys: Collection[str],
    source: Callable[[str], str] = lambda name: name,
) -> Node:
    """Returns the model's node with the reference's content for some ``keys``.

    ``source`` maps the name of a value in the reference to its name in the model.
    """
    names = {f"input {index}": name for index, name in enumerate(mine.inputs)}
    wanted = {f"input {index}": name for index, name in enumerate(theirs.inputs)}
    content = {**mine.content, **names}
    for key in keys:
        if key in wanted:
            content[key] = source(wanted[key])
        elif key in theirs.content:
            content[key] = theirs.content[key]
        else:
            content.pop(key)
    return mine.with_content(content)


def smallest(
    groups: Sequence[Sequence[Difference]],
    passes: Callable[[list[Difference]], bool],
    ends: float,
) -> list[Sequence[Difference]]:
    """Returns the smallest selection of groups that the search finds for which ``passes`` is true.

    The search tries to omit all groups of wiring (`Difference.is_wiring`), then half of the groups
    at a time, then fewer, then single groups. At the end it tries to omit pairs of groups, because
    exporters often write two differences that cancel each other.
    """
    needed = list(groups)

    def without(gone: Collection[int]) -> bool:
        nonlocal needed
        rest = [group for index, group in enumerate(needed) if index not in gone]
        if not gone or time.monotonic() > ends or not passes([e for g in rest for e in g]):
            return False
        needed = rest
        return True

    without([index for index, group in enumerate(needed) if group[0].is_wiring])
    size = max(1, len(needed) // 2)
    while True:
        index = 0
        while index < len(needed):
            index += 0 if without(range(index, index + size)) else size
        if size == 1:
            break
        size = size // 2
    while len(needed) <= _PAIRS and any(map(without, combinations(range(len(needed)), 2))):
        pass
    return needed


# --- names of differences and of the nodes that have them


_STATES = {1: "hidden", 2: "cell"}


def _converts(op: str) -> bool:
    return op in ("SequencePad", "SequenceUnpad", "SequenceLike")


class Named(NamedTuple):
    """The differences of one node that one `Relation` describes. ``where``: the node's name.
    ``node``: the node's first output.
    """

    relation: Relation
    where: LayerName | str
    node: str
    differences: tuple[Difference, ...]

    @property
    def shared(self) -> Relation:
        """The relation with ``apart`` set to 0, so that differences with the same cause have equal
        relations.
        """
        return self.relation._replace(apart=0.0)


@dataclass(frozen=True, eq=False)
class Names:
    """Names the differences between two matched models.

    ``parts``: the name of each layer by its output y, if the graphs are expanded. ``stacked``: the
    name of each layer by the file's operator for it and the direction. ``ragged``: the names of
    ragged values in each model.
    """

    matching: Matching
    parts: Mapping[str, LayerName]
    stacked: Mapping[tuple[str, str], LayerName]
    ragged: tuple[Container[str], Container[str]]

    def of(self, chosen: Sequence[Difference]) -> list[Named]:
        """Returns names for the differences; a fault that causes several differences has one
        name.
        """
        left = list(chosen)
        result = []
        for one, other in combinations(chosen, 2):
            if one in left and other in left and (both := self._name_exchange(one, other)):
                result += both
                left = [each for each in left if each is not one and each is not other]
        for units in _join_layouts(by_node(left)):
            result += [self._name_wiring(each) for each in units if each.is_wiring]
            if computed := [each for each in units if not each.is_wiring]:
                result += self._name_computed(computed)
        return list(_agree(result))

    # --- differences of settings and constants

    def _name_computed(self, units: Sequence[Difference]) -> Iterator[Named]:
        mine, theirs = units[0].model, units[0].reference
        assert mine is not None and theirs is not None
        node, every = mine.node.outputs[0], tuple(units)
        if mine.is_layer:
            mixed = mix(mine, theirs, {each.key for each in units if each.model is mine})
            pairs = zip(self._layers(mine.node), self._layers(mixed), strict=False)
            for (where, layer), (_, wanted) in pairs:
                exchanged = self._relate_to_other_layer(where, layer, wanted)
                if exchanged:  # settings may differ as well
                    layer = replace(layer, weights=wanted.weights)
                for result in (*exchanged, *relate_layers(layer, wanted)):
                    yield Named(result, where, node, every)
            return
        for key in (each.key for each in units):
            if key.startswith("input "):
                result = relate(mine.content[key], theirs.content[key])
                name = mine.inputs[int(key.removeprefix("input "))]
                text = f"has {name!r} that {result.text},"
                if result.id == "weights_rounded":
                    text = f"has weights rounded to {result.text.removeprefix('is rounded to ')}"
                result = result._replace(text=text)
            else:
                said = [_short(getattr(e.node.attrs, key, None)) for e in (mine, theirs)]
                text = f"has {key} {said[0]}, the reference {said[1]},"
                result = Relation("attribute_changed", text)
            yield Named(result, mine.label, node, every)

    def _relate_to_other_layer(
        self, where: LayerName, own: Recurrent, their: Recurrent
    ) -> tuple[Relation, ...]:
        """Returns the relation for a layer that has the weights of a different layer of the
        reference, or ().
        """
        key, wanted = (digest([*each.layers[0].arrays.values()]) for each in (own, their))
        place = self._numbers[1].get(key)
        if key == wanted or place is None:
            return ()
        if wanted not in self._numbers[0]:
            return (Relation("weights_changed", f"has the reference's weights of {place}"),)
        if (place.layer, place.direction != where.direction) == (where.layer, True):
            fault = DIRECTIONS_EXCHANGED
            return (Relation(fault.id, f"matches when {fault.text}"),)
        return (Relation("layers_exchanged", "exchanges the weights of"),)

    @cached_property
    def _numbers(self) -> tuple[dict[str, LayerName], dict[str, LayerName]]:
        """The layers of the model and of the reference by a digest of their weights."""

        def places(graph: Graph) -> dict[str, LayerName]:
            layers = [e for n in graph.nodes if n.op == "Rnn" for e in self._layers(n)]
            return {digest([*layer.layers[0].arrays.values()]): place for place, layer in layers}

        return places(self.matching.graph), places(self.matching.other)

    def _layers(self, node: Node) -> list[tuple[LayerName, Recurrent]]:
        rnn = Recurrent.of(node)
        if rnn.y in self.parts:
            return [(self.parts[rnn.y], rnn)]
        result = []
        for part in parts(rnn.spec):
            side = "backward" if part.backwards else "forward"
            weights = rnn.layers[part.layer].part(0, part.direction)
            name = LayerName(node.native, part.layer, side, rnn.spec.layers)
            name = self.stacked.get((node.native, side), name)
            result.append((name, replace(rnn, spec=part.spec, weights=weights)))
        return result

    # --- differences of wiring

    def _name_wiring(self, each: Difference) -> Named:
        where, node = self._place(each)
        state = self._state(each)
        graphs, known = (self.matching.graph, self.matching.other), self.matching.values
        sources = [each.reads, each.wanted]
        extra = [
            _nodes_before(graphs[0], each.reads, known.keys()),
            _nodes_before(graphs[1], each.wanted, {*known.values()}),
        ]
        if state and all(moves(e.node.op) for side in extra for e in side):
            # Files slice one state from all states in different ways: ignore the slices.
            extra = [[], []]
            roots = [_sources(*pair)[-1] for pair in zip(graphs, sources, strict=True)]
            sources = roots if roots[0] != roots[1] else sources
        there = each.reads in self.ragged[0]
        ops = {e.node.op for side in extra for e in side}
        layer = each.model
        if layer is None or not layer.is_layer:  # the layer whose padded output this node reads
            layers = (graphs[0].producer(n, "Rnn") for n in _sources(graphs[0], each.reads))
            layer = next((Operation(graphs[0], n) for n in layers if n), None)
            there, padded = bool(extra[0]), bool(ops) and all(map(_converts, ops))
        else:
            padded = there != (each.wanted in self.ragged[1])
        if padded and layer is not None:
            places = self._layers(layer.node)
            where, node = _join_names(places), layer.node.outputs[0]
            result = _lengths_relation(there, [rnn.spec.direction for _, rnn in places])
        elif state and not (each.reads and each.wanted):
            result = _state_relation(state, bool(each.reads))
        elif state_of := self._find_final_state(each):
            root = _sources(graphs[0], each.reads)[-1]
            text = f"returns its input {root!r} unchanged, the reference returns {state_of}, as"
            result = Relation("state_returned", text)
        else:
            result = self._relate_paths(each, *extra) or self._relate_sources(state, sources)
        return Named(result, where, node, (each,))

    def _relate_paths(
        self, each: Difference, own: list[Operation], other: list[Operation]
    ) -> Relation | None:
        """Returns the relation for operators that only one model has before an input; None if there
        are no such operators.

        Operators that return their input unchanged count only if they replace operators of the
        reference.
        """
        own, other = ([op for op in ops if not _hands_on(op)] for ops in (own, other))
        both = {op.label for op in own} & {op.label for op in other}
        own, other = ([op for op in ops if op.label not in both] for ops in (own, other))
        path = _sources(self.matching.graph, each.reads)
        named = {name for op in other for name in op.node.outputs}.intersection(path)
        cause = "operator_changed"
        if named and not own:  # an Identity replaces nodes of the reference
            copies = [self.matching.graph.producer(name) for name in path if name in named]
            own = [Operation(self.matching.graph, node) for node in copies if node]
            other = [op for op in other if not named.isdisjoint(op.node.outputs)]
            cause = "operator_missing"
        if own and other:
            text = f"has {_list_labels(own)} where the reference has {_list_labels(other)}, before"
            return Relation(cause, text)
        if own:
            text = f"has {_list_labels(own)}, which the reference has not, before"
            return Relation("operator_added", text)
        passed = {name for op in other for name in op.inputs}
        if not passed.isdisjoint(map(self.matching.values.get, path)):
            text = f"skips what the reference has as {_list_labels(other)}, before"
            return Relation("operator_missing", text)
        return None

    def _relate_sources(self, state: str, sources: list[str]) -> Relation:
        """Returns the relation for an input that reads a different value than in the reference."""
        kind = f" as its initial {state} state" if state else ""
        said = [repr(each) if each else "nothing" for each in sources]
        if said[0] == said[1]:
            graphs = self.matching.graph, self.matching.other
            makers = [graph.producer(name) for graph, name in zip(graphs, sources, strict=True)]
            labels = [maker.native if maker else "the inputs" for maker in makers]
            said = [f"{text} of {label}" for text, label in zip(said, labels, strict=True)]
        text = f"reads {said[0]}{kind} where the reference reads {said[1]}"
        if said[0] == said[1]:
            text = f"reads {said[0]}{kind} of other values than the reference"
        return Relation("states_exchanged" if state else "input_exchanged", text)

    def _find_final_state(self, each: Difference) -> str:
        """Returns a text that names the final state which the reference returns, if the model
        returns an unchanged input instead; otherwise "".
        """
        (*_, name) = _sources(self.matching.graph, each.reads)
        if each.model or all(value.name != name for value in self.matching.graph.inputs):
            return ""
        other = self.matching.other
        for there in _sources(other, each.wanted):
            if (node := other.producer(there, "Rnn")) and there in Recurrent.of(node).finals:
                kind = [*_STATES.values()][Recurrent.of(node).finals.index(there)]
                return f"the final {kind} state of {Operation(other, node).label}"
        return ""

    def _place(self, each: Difference) -> tuple[LayerName | str, str]:
        if each.model is None:
            return f"output {each.key!r}", each.key
        node, label = each.model.node, each.model.label
        where = _join_names(self._layers(node)) if each.model.is_layer else label
        return where, node.outputs[0]

    def _state(self, each: Difference) -> str:
        """Returns "hidden" or "cell" for an input that is an initial state, "" for other inputs."""
        if each.model is None:
            return ""
        node, position = each.model.node, int(each.key.removeprefix("input "))
        while node.op != "Rnn":
            users = each.model.graph.users(node.outputs[0])
            if not moves(node.op) or len(users) != 1:
                return ""
            position, node = users[0].inputs.index(node.outputs[0]), users[0]
        return _STATES.get(position, "")

    # --- differences that exchange two values

    def _name_exchange(self, one: Difference, other: Difference) -> list[Named]:
        """Returns names for two differences if each reads the value that the other should read, or
        [].
        """
        values = self.matching.values
        crossed = values.get(one.reads) == other.wanted and values.get(other.reads) == one.wanted
        if not crossed or not one.reads or not other.reads or one.wanted == other.wanted:
            return []
        kinds = [self._state(each) for each in (one, other)]
        if all(kinds) and one.model is other.model:
            text = "exchanges the initial hidden state and the initial cell state"
        elif all(kinds):
            text = "exchanges the initial states of layers:"
        else:
            text = f"exchanges {one.reads!r} and {other.reads!r}"
        cause = "states_exchanged" if all(kinds) else "input_exchanged"
        return [Named(Relation(cause, text), *self._place(e), (e,)) for e in (one, other)]


def _join_names(layers: Sequence[tuple[LayerName, Recurrent]]) -> LayerName | str:
    names = [name for name, _ in layers]
    return names[0] if len(names) == 1 else in_words(names)


def _agree(every: Sequence[Named]) -> Iterator[Named]:
    """Yields the names, one for each fault. All layers that ignore lengths share one name; so do
    both initial states of an LSTM if both differ.
    """
    masked = {each.relation.text for each in every if each.relation.id == "mask_ignored"}
    for each in every:
        if each.relation.id == "reverse_padded" and len(masked) == 1:
            yield each._replace(relation=Relation("mask_ignored", next(iter(masked))))
        elif each.relation.id == "h0_dropped":
            here = {other.relation for other in every if other.where == each.where}
            there = each.relation.text.startswith("has")
            both = here.issuperset(_state_relation(kind, there) for kind in _STATES.values())
            yield each._replace(relation=_state_relation("", there)) if both else each
        else:
            yield each


def _sources(graph: Graph, name: str) -> list[str]:
    """Returns a value, and the values from which it was sliced, reshaped or copied; the original is
    last.
    """
    names = [name]
    while (maker := graph.producer(name)) and (
        moves(maker.op) or maker.op in ("Identity", "Cast") or _converts(maker.op)
    ):
        name = maker.inputs[0]
        names.append(name)
    return names


def _hands_on(operation: Operation) -> bool:
    """Returns whether a node certainly returns its input unchanged; exporters add such nodes."""
    types, node = operation.graph.types, operation.node
    before, after = types[node.inputs[0]], types[node.outputs[0]]
    kinds = [np.dtype(each.dtype).kind if each.dtype else "" for each in (before, after)]
    narrow = before.dtype != after.dtype and not (kinds[0] == kinds[1] == "i")
    if node.op == "Identity" or (node.op == "Cast" and kinds[0] and not narrow):
        return True
    if node.op not in ("Reshape", "Transpose", "Expand"):
        return False
    known = before.shape is not None and None not in before.shape
    perm = [*(node.attrs.perm or [1, 0])] if node.op == "Transpose" else []
    return known and before.shape == after.shape and perm == sorted(perm)


def _nodes_before(graph: Graph, name: str, known: Container[str]) -> list[Operation]:
    """Returns the nodes that compute a value from the values ``known``, in order."""
    wanted, seen = [name], set[int]()
    while wanted:
        name = wanted.pop()
        maker = graph.producer(name)
        if maker is not None and name not in known and id(maker) not in seen:
            seen.add(id(maker))
            wanted += maker.inputs
    return [Operation(graph, node) for node in graph.nodes if id(node) in seen]


def _list_labels(operations: Sequence[Operation]) -> str:
    labels = list(dict.fromkeys(each.label for each in operations))
    return ", ".join(labels[:4]) + (f" and {len(labels) - 4} more" if len(labels) > 4 else "")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else "another one"


def _state_relation(state: str, there: bool) -> Relation:
    kind = f"{state} " if state else ""
    text = f"drops the initial {kind}state that the reference has"
    return Relation(
        "h0_dropped", f"has an initial {kind}state, the reference has none," if there else text
    )


def _lengths_relation(there: bool, directions: Sequence[str]) -> Relation:
    if directions and all(way == "right2left" for way in directions):
        text = "begins at the end of {}, the reference at that of {}"
        ends = ("each sequence", "the padding")
        return Relation("reverse_padded", text.format(*(ends if there else ends[::-1])))
    if there:
        return Relation("mask_ignored", "takes sequence lengths that the reference ignores,")
    return Relation("mask_ignored", "ignores the sequence lengths that the reference takes,")
