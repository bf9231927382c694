"""The differences of two models, the smallest set that matters, and their names."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from onernn.fuse_passes.views import is_view
from onernn.ir.arrays import Array, digest
from onernn.ir.graph import Graph, Node
from onernn.ir.records import cached_property, dataclass
from onernn.ir.rnn import Recurrent, parts
from onernn.verification.diagnosis.cause import in_order
from onernn.verification.diagnosis.faults import Relation, between, relation, stored
from onernn.verification.diagnosis.graph_faults import DIRECTIONS_EXCHANGED
from onernn.verification.diagnosis.matching import (
    Matching,
    Operator,
    attribute_texts,
    moves,
    weights_in,
)
from onernn.verification.tracing import LayerName, in_words

_PAIRS = 12
"""Among up to so many differences, leaving out pairs is tried, too."""

Part = tuple[int, str, str]
"""A part of what an operator computes: the node, by its index, and its attribute.

Of a recurrent node: a field of its "spec", or an array of its "weights", as "0.iter" with the layer
in front. A constant has the index of its slot, and no attribute.
"""


@dataclass(frozen=True, eq=False)
class Difference:
    """A place where the model is not as the reference.

    Of a pair of operators: what they compute, or what one ``slot`` of theirs reads. Or what is
    given as an ``output``. ``reads``, ``wanted``: the value there in the model and in the
    reference. ``parts``: of what they compute, those that count; None: all of them.
    """

    model: Operator | None = None
    reference: Operator | None = None
    slot: int | None = None
    output: str = ""
    reads: str = ""
    wanted: str = ""
    parts: frozenset[Part] | None = None

    def has(self, *part: Any) -> bool:
        """Whether a part of what is computed counts."""
        return self.parts is None or part in self.parts

    def split(self) -> list[Difference]:
        """A difference for each part of what is computed."""
        return [replace(self, parts=frozenset([part])) for part in self._parts()]

    def _parts(self) -> Iterator[Part]:
        one, other = self.model, self.reference
        assert one is not None and other is not None
        for index, (node, twin) in enumerate(zip(*_twins(one, other), strict=False)):
            if node.op == "Rnn":
                own, their = Recurrent.of(node), Recurrent.of(twin)
                for name in (each.name for each in fields(own.spec)):
                    if stored(getattr(own.spec, name)) != stored(getattr(their.spec, name)):
                        yield index, "spec", name
                for layer, (now, then) in enumerate(zip(own.layers, their.layers, strict=True)):
                    for name in (each.name for each in fields(now)):
                        if not _same(getattr(now, name), getattr(then, name)):
                            yield index, "weights", f"{layer}.{name}"
            for key in _unequal(one.graph, node, other.graph, twin):
                if key != "spec":
                    yield index, key, ""
        if one.structure == other.structure:
            for index, (slot, place) in enumerate(zip(one.slots, other.slots, strict=True)):
                array = one.graph.constants.get(slot.value)
                wanted = other.graph.constants.get(place.value)
                if array is not None and wanted is not None and not _same(array, wanted):
                    yield index, "", ""

    @property
    def is_wiring(self) -> bool:
        """Whether a value comes from elsewhere, and not another one is computed."""
        return self.slot is not None or bool(self.output)


def differences_in(
    matching: Matching, outputs: Mapping[str, str], constants: Mapping[str, Array]
) -> list[Difference]:
    """All differences in the model's order. ``outputs``: the reference's by the model's names."""
    result = []
    for mine, theirs in matching.pairs:
        if mine.structure != theirs.structure:
            result.append(Difference(mine, theirs))
            continue
        if mine.settings != theirs.settings or mine.numbers != theirs.numbers:
            result.append(Difference(mine, theirs))
        for index, (one, other) in enumerate(zip(mine.slots, theirs.slots, strict=True)):
            fixed = (one.value in constants, other.value in theirs.graph.constants)
            if all(fixed) or (one.value == other.value == ""):
                continue
            if any(fixed) or matching.values.get(one.value, "") != other.value:
                result.append(Difference(mine, theirs, index, "", one.value, other.value))
    result += [
        Difference(None, None, None, mine, mine, theirs)
        for mine, theirs in outputs.items()
        if matching.values.get(mine) != theirs
    ]
    return result


def patched(graph: Graph, other: Graph, matching: Matching, chosen: Sequence[Difference]) -> Graph:
    """The graph that is as the other one in these places.

    Values without a counterpart are computed as in the other graph, by nodes with outputs
    NAME.reference. Raises `ModelFormatError` if the graph would have a cycle.
    """
    shadowed = {each.output: f"{each.output}.model" for each in chosen if each.output}
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
            same = kept is not None and _same(kept, other.constants[name])
            constants[name if same else f"{name}.reference"] = other.constants[name]
            return name if same else f"{name}.reference"
        if other.producer(name) is None:
            inputs.update((value.name, value) for value in other.inputs if value.name == name)
            return name
        missing[name] = None
        return f"{name}.reference"

    def taken(node: Node) -> Node:
        outputs = tuple(name and own.get(name, f"{name}.reference") for name in node.outputs)
        return replace(node, inputs=tuple(map(source, node.inputs)), outputs=outputs)

    copied: dict[int, Node] = {}
    nodes = {id(node): [node.renamed(shadowed)] for node in graph.nodes}
    for one, twin, units in _by_operator(chosen):
        slots = {each.slot for each in units if each.slot is not None}
        content = len(slots) < len(units)
        parts = merge_parts(each for each in units if each.slot is None)
        if one.structure != twin.structure:
            nodes |= {id(node): [] for node in one.nodes}
            mixed = _replacing(one, twin, parts)
            copied |= {id(node): taken(each) for node, each in zip(twin.nodes, mixed, strict=True)}
            continue
        for node, new in _changed(one, twin, slots, parts if content else frozenset(), source):
            nodes[id(node)] = [new.renamed(shadowed)]
    ends = [
        Node("Identity", (source(each.wanted),), (each.output,)) for each in chosen if each.output
    ]
    waiting = list(missing)
    while waiting:  # what makes a value that is missing, and all that this needs
        maker = other.producer(waiting.pop())
        if maker is not None and id(maker) not in copied:
            known = set(missing)
            copied[id(maker)] = taken(maker)
            waiting += [name for name in missing if name not in known]
    every = [*(node for each in nodes.values() for node in each), *copied.values(), *ends]
    return in_order(graph, every, inputs.values(), constants)


def _by_operator(
    chosen: Sequence[Difference],
) -> Iterator[tuple[Operator, Operator, list[Difference]]]:
    result: dict[int, list[Difference]] = {}
    for each in chosen:
        if each.model is not None:
            result.setdefault(id(each.model), []).append(each)
    for units in result.values():
        mine, theirs = units[0].model, units[0].reference
        assert mine is not None and theirs is not None
        yield mine, theirs, units


def _changed(
    mine: Operator,
    theirs: Operator,
    slots: Container[int],
    parts: frozenset[Part] | None,
    source: Callable[[str], str],
) -> Iterator[tuple[Node, Node]]:
    """Each node, and what it becomes; both operators have the same structure."""
    inputs = [list(node.inputs) for node in mine.nodes]
    for index, (one, other) in enumerate(zip(mine.slots, theirs.slots, strict=True)):
        fixed = one.value in mine.graph.constants and other.value in theirs.graph.constants
        if index in slots or (fixed and (parts is None or (index, "", "") in parts)):
            row = inputs[one.node]
            row += [""] * (one.position + 1 - len(row))
            row[one.position] = source(other.value)
    for index, (node, twin, row) in enumerate(zip(mine.nodes, theirs.nodes, inputs, strict=True)):
        while node.op == "Rnn" and not row[-1]:
            row.pop()
        attributes = _mixed(node, index, twin, parts)
        yield node, replace(node, inputs=tuple(row), attributes=attributes)


def _unequal(graph: Graph, node: Node, other: Graph, twin: Node) -> list[str]:
    """The attributes that differ in any file."""
    texts, wanted = attribute_texts(graph, node), attribute_texts(other, twin)
    keys = sorted(texts.keys() | wanted.keys())
    return [key for key in keys if texts.get(key) != wanted.get(key)]


def _twins(one: Operator, other: Operator) -> tuple[Sequence[Node], Sequence[Node]]:
    """The nodes whose attributes can be compared: all, or the recurrent ones."""
    if one.structure == other.structure:
        return one.nodes, other.nodes
    return one.rnns, other.rnns


def _replacing(one: Operator, twin: Operator, parts: frozenset[Part] | None) -> list[Node]:
    """The reference's nodes, with layers of which only some parts are the reference's."""
    mixed = {
        id(node): replace(node, attributes=_mixed(own, index, node, parts))
        for index, (own, node) in enumerate(zip(one.rnns, twin.rnns, strict=False))
    }
    return [mixed.get(id(node), node) for node in twin.nodes]


def merge_parts(chosen: Iterable[Difference]) -> frozenset[Part] | None:
    """The parts of several differences of one operator."""
    every = [each.parts for each in chosen]
    return None if None in every else frozenset().union(*filter(None, every))


def _mixed(node: Node, index: int, twin: Node, parts: frozenset[Part] | None) -> Mapping[str, Any]:
    """A node's attributes, of which some parts are the other one's."""
    if parts is None:
        return twin.attributes
    chosen = [(key, name) for at, key, name in parts if at == index and key]
    attributes = dict(node.attributes)
    for key, name in chosen:
        if not name:
            attributes.pop(key, None)
            attributes |= {key: twin.attributes[key]} if key in twin.attributes else {}
    if node.op == "Rnn":
        own, their = Recurrent.of(node), Recurrent.of(twin)
        attributes |= mix_layers(own, their, chosen).node().attributes
    return attributes


def mix_layers(own: Recurrent, their: Recurrent, chosen: Collection[tuple[str, str]]) -> Recurrent:
    """A recurrent layer with some fields of the other's spec, and some of its arrays."""
    fields_ = {name: getattr(their.spec, name) for key, name in chosen if key == "spec"}
    arrays: dict[int, dict[str, Any]] = {}
    for key, name in chosen:
        if key == "weights":
            layer, _, array = name.partition(".")
            arrays.setdefault(int(layer), {})[array] = getattr(their.layers[int(layer)], array)
    layers = [replace(each, **arrays.get(index, {})) for index, each in enumerate(own.layers)]
    return replace(own, spec=replace(own.spec, **fields_), weights=layers)


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and np.array_equal(one, other)


def smallest(
    groups: Sequence[Sequence[Difference]],
    passes: Callable[[list[Difference]], bool],
    ends: float,
) -> list[Sequence[Difference]]:
    """The groups without those that outputs pass without.

    All wiring is tried to be left out first, then halves, each, and pairs of what is left: a file
    that is written otherwise often has two that are nothing but one without the other.
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


# --- what to call the places where two models differ, as a reader of both files would


_STATES = {1: "hidden", 2: "cell"}


class Named(NamedTuple):
    """A difference, its place, and the first output of the node in the model."""

    relation: Relation
    where: LayerName | str
    node: str
    difference: Difference


@dataclass(frozen=True, eq=False)
class Names:
    """Names the differences between two matched models.

    ``parts``: layers by y, if taken apart. ``stacked``: what is known of a file's own operator and
    direction as a layer of a stack. ``ragged``: the values of both that are sentences.
    """

    matching: Matching
    parts: Mapping[str, LayerName]
    stacked: Mapping[tuple[str, str], LayerName]
    ragged: tuple[Container[str], Container[str]]

    def of(self, chosen: Sequence[Difference]) -> list[Named]:
        """The name of each difference; several that are one fault share a name."""
        left = list(chosen)
        result = []
        for one, other in combinations(chosen, 2):
            if one in left and other in left and (both := self._exchanged(one, other)):
                result += both
                left = [each for each in left if each is not one and each is not other]
        for each in left:
            result += [self._wired(each)] if each.is_wiring else self._computed(each)
        return list(_agreed(result))

    # --- what is computed

    def _computed(self, each: Difference) -> Iterator[Named]:
        mine, theirs = each.model, each.reference
        assert mine is not None and theirs is not None
        if mine.rnns and (named := list(self._recurrent(mine, theirs, each))):
            yield from named
            return
        node = mine.nodes[-1].outputs[0]
        if mine.structure != theirs.structure:
            text = f"has {mine.label} where the reference has {theirs.label}"
            if mine.label == theirs.label:
                ops = [", ".join(part.op for part in one.nodes) for one in (mine, theirs)]
                text = f"computes {mine.label} by {ops[0]}, the reference by {ops[1]}"
            yield Named(Relation("operator_changed", text), "", node, each)
            return
        for index, (one, other) in enumerate(zip(mine.nodes, theirs.nodes, strict=True)):
            for key in _unequal(mine.graph, one, theirs.graph, other):
                now, then = (getattr(n.attrs, key, None) for n in (one, other))
                if each.has(index, key, ""):
                    said = [_short(v) for v in (now, then)]
                    text = f"has {key} {said[0]}, the reference {said[1]},"
                    yield Named(Relation("attribute_changed", text), mine.label, node, each)
        for index, (slot, twin) in enumerate(zip(mine.slots, theirs.slots, strict=True)):
            if not each.has(index, "", ""):
                continue
            own = mine.graph.constants.get(slot.value)
            their = theirs.graph.constants.get(twin.value)
            if own is None or their is None:
                continue
            if own.dtype != their.dtype or not np.array_equal(own, their):
                result = relation(own, their)
                text = f"has {slot.value!r} that {result.text},"
                if result.id == "weights_rounded":
                    text = f"has weights rounded to {result.text.removeprefix('is rounded to ')}"
                yield Named(result._replace(text=text), mine.label, node, each)

    def _recurrent(self, mine: Operator, theirs: Operator, each: Difference) -> Iterator[Named]:
        for index, (one, other) in enumerate(zip(*_twins(mine, theirs), strict=False)):
            if one.op != "Rnn":
                continue
            name, mixed = Recurrent.of(one).y, _mixed(one, index, other, each.parts)
            wanted = replace(other, attributes=mixed)
            pairs = zip(self._layers(one), self._layers(wanted), strict=False)
            for (where, own), (_, their) in pairs:
                for result in self._taken_from(where, own, their) or between(own, their):
                    yield Named(result, where, name, each)
        if mine.structure == theirs.structure or not mine.rnns:
            return
        name, layers = mine.rnns[0].outputs[0], self._all_layers(mine)
        ways = [layer.spec.direction for _, layer in layers]
        lengths = [any(n.op == "SequenceUnpad" for n in op.nodes) for op in (mine, theirs)]
        if lengths[0] != lengths[1]:
            for place, _ in layers:
                yield Named(_lengths_relation(lengths[0], ways), place, name, each)
        rnns = [[Recurrent.of(node) for node in op.rnns] for op in (mine, theirs)]
        for own, their in zip(*rnns, strict=False):
            for state, now, then in zip(_STATES.values(), own.states, their.states, strict=False):
                for place, _ in layers if bool(now) != bool(then) else ():
                    yield Named(_state_relation(state, bool(now)), place, own.y, each)

    def _taken_from(
        self, where: LayerName, own: Recurrent, their: Recurrent
    ) -> tuple[Relation, ...]:
        """The relation of a layer with the numbers of another layer of the reference."""
        key, wanted = (digest(weights_in(each.weights)) for each in (own, their))
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
        """The layers by their numbers, of the model and of the reference."""

        def places(side: Sequence[Operator]) -> dict[str, LayerName]:
            layers = [each for operator in side for each in self._all_layers(operator)]
            return {digest(weights_in(layer.weights)): place for place, layer in layers}

        return places(self.matching.mine), places(self.matching.theirs)

    def _layers(self, node: Node) -> Iterator[tuple[LayerName, Recurrent]]:
        """Each layer and direction of a recurrent node."""
        rnn = Recurrent.of(node)
        if rnn.y in self.parts:
            yield self.parts[rnn.y], rnn
            return
        for part in parts(rnn.spec):
            side = "backward" if part.backwards else "forward"
            one = replace(
                rnn,
                spec=part.spec,
                weights=rnn.layers[part.layer].part(0, part.direction),
            )
            name = LayerName(node.native, part.layer, side, rnn.spec.layers)
            yield self.stacked.get((node.native, side), name), one

    def _all_layers(self, operator: Operator) -> list[tuple[LayerName, Recurrent]]:
        return [each for node in operator.rnns for each in self._layers(node)]

    # --- what is read

    def _wired(self, each: Difference) -> Named:
        where, node = self._place(each)
        state = self._state(each)
        own, other = self._extra(each)
        sources = [each.reads, each.wanted]
        if state and all(moves(node.op) for op in (*own, *other) for node in op.nodes):
            own, other = [], []  # files cut a state out of all states in several ways
            every = self.matching.mine, self.matching.theirs
            roots = [_sources(*pair)[-1] for pair in zip(every, sources, strict=True)]
            sources = roots if roots[0] != roots[1] else sources
        there = each.reads in self.ragged[0]
        if there != (each.wanted in self.ragged[1]) and each.model and each.model.rnns:
            ways = [layer.spec.direction for _, layer in self._all_layers(each.model)]
            result = _lengths_relation(there, ways)
        elif state and not (each.reads and each.wanted):
            result = _state_relation(state, bool(each.reads))
        elif state_of := self._returned(each):
            root = _sources(self.matching.mine, each.reads)[-1]
            text = f"returns its input {root!r} unchanged, the reference returns {state_of}, as"
            result = Relation("state_returned", text)
        else:
            result = self._on_the_way(each, own, other) or self._elsewhere(state, sources)
        return Named(result, where, node, each)

    def _on_the_way(
        self, each: Difference, own: list[Operator], other: list[Operator]
    ) -> Relation | None:
        """Names operators that only one side has before what is read.

        Those that hand on what they read say nothing, except in the place of others.
        """
        own = [op for op in own if not _hands_on(op)]
        other = [op for op in other if not _hands_on(op)]
        both = {op.label for op in own} & {op.label for op in other}
        own, other = ([op for op in ops if op.label not in both] for ops in (own, other))
        path = _sources(self.matching.mine, each.reads)
        named = {name for op in other for name in op.makers}.intersection(path)
        copies = [op for op in self.matching.mine if not named.isdisjoint(op.makers)]
        if copies and not own:  # an Identity that has the name of what it stands for
            gone = [op for op in other if not named.isdisjoint(op.makers)]
            text = f"has {_listed(copies)} where the reference has {_listed(gone)}, before"
            return Relation("operator_missing", text)
        if own and other:
            text = f"has {_listed(own)} where the reference has {_listed(other)}, before"
            return Relation("operator_changed", text)
        if own:
            text = f"has {_listed(own)}, which the reference has not, before"
            return Relation("operator_added", text)
        passed = {slot.value for op in other for slot in op.slots}
        if not passed.isdisjoint(map(self.matching.values.get, path)):
            text = f"skips what the reference has as {_listed(other)}, before"
            return Relation("operator_missing", text)
        return None

    def _elsewhere(self, state: str, sources: list[str]) -> Relation:
        """Names an input that is another value of the model."""
        kind = f" as its initial {state} state" if state else ""
        said = [repr(each) if each else "nothing" for each in sources]
        if said[0] == said[1]:
            every = self.matching.mine, self.matching.theirs
            makers = [_maker(*pair) for pair in zip(every, sources, strict=True)]
            said = [f"{text} of {maker}" for text, maker in zip(said, makers, strict=True)]
        text = f"reads {said[0]}{kind} where the reference reads {said[1]}"
        if said[0] == said[1]:
            text = f"reads {said[0]}{kind} of other values than the reference"
        return Relation("states_exchanged" if state else "input_exchanged", text)

    def _returned(self, each: Difference) -> str:
        """The final state that the reference returns, if the model returns an input; else ""."""
        if not each.output:
            return ""
        (*_, name) = _sources(self.matching.mine, each.reads)
        if all(value.name != name for value in self.matching.mine[0].graph.inputs):
            return ""
        for there in _sources(self.matching.theirs, each.wanted):
            for operator in self.matching.theirs:
                for rnn in map(Recurrent.of, operator.rnns):
                    if there in filter(None, rnn.finals):
                        kind = [*_STATES.values()][rnn.finals.index(there)]
                        return f"the final {kind} state of {operator.label}"
        return ""

    def _extra(self, each: Difference) -> tuple[list[Operator], list[Operator]]:
        """The operators on the way to what is read, that have no counterpart: of both models."""
        theirs = set(self.matching.values.values())
        return (
            _behind(self.matching.mine, each.reads, self.matching.values.keys()),
            _behind(self.matching.theirs, each.wanted, theirs),
        )

    def _place(self, each: Difference) -> tuple[LayerName | str, str]:
        if each.model is None:
            return f"output {each.output!r}", each.output
        if each.model.rnns:
            name = Recurrent.of(each.model.rnns[0]).y
            layers = [place for place, _ in self._all_layers(each.model)]
            return (layers[0] if len(layers) == 1 else in_words(layers)), name
        return each.model.label, each.model.nodes[-1].outputs[0]

    def _state(self, each: Difference) -> str:
        """The kind of initial state that a slot is, "" for other slots."""
        if each.model is None or each.slot is None:
            return ""
        slot = each.model.slots[each.slot]
        node, position = each.model.nodes[slot.node], slot.position
        while node.op != "Rnn":
            users = each.model.graph.users(node.outputs[0])
            if not is_view(node.op) and node.op != "Split" or len(users) != 1:
                return ""
            position, node = users[0].inputs.index(node.outputs[0]), users[0]
        return _STATES.get(position, "")

    # --- pairs

    def _exchanged(self, one: Difference, other: Difference) -> list[Named]:
        """The names of both, where each reads what the other one should."""
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
        return [Named(Relation(cause, text), *self._place(e), e) for e in (one, other)]


def _agreed(every: Sequence[Named]) -> Iterator[Named]:
    """Names that follow from all together: layers without lengths, both states of an LSTM."""
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


def _sources(operators: Sequence[Operator], name: str) -> list[str]:
    """A value, and those that it is cut out of, a view of, or equal to; the first one last."""
    makers = {output: node for each in operators for node in each.nodes for output in node.outputs}
    names = [name]
    while name in makers and (moves(makers[name].op) or makers[name].op in ("Identity", "Cast")):
        name = makers[name].inputs[0]
        names.append(name)
    return names


def _maker(operators: Sequence[Operator], name: str) -> str:
    """The operator that makes a value, in words."""
    return next((each.label for each in operators if name in each.makers), "the inputs")


def _hands_on(operator: Operator) -> bool:
    """Whether all nodes surely hand on what they read, as exporters add them."""
    types = operator.graph.types
    for node in operator.nodes:
        before, after = types[node.inputs[0]], types[node.outputs[0]]
        kinds = [np.dtype(each.dtype).kind if each.dtype else "" for each in (before, after)]
        narrow = before.dtype != after.dtype and not (kinds[0] == kinds[1] == "i")
        known = before.shape is not None and None not in before.shape
        if node.op == "Identity" or (node.op == "Cast" and kinds[0] and not narrow):
            continue
        if not ((node.op in ("Reshape", "Transpose") or node.op == "Expand") and known):
            return False
        if before.shape != after.shape or (node.op == "Transpose" and not _in_order(node)):
            return False
    return True


def _in_order(node: Node) -> bool:
    perm = node.attrs.perm
    return perm is not None and [*perm] == sorted(perm)


def _behind(operators: Sequence[Operator], name: str, known: object) -> list[Operator]:
    """The operators that make a value of those that are known, in order."""
    makers = {output: each for each in operators for output in each.makers}
    wanted, seen = [name], set[int]()
    while wanted:
        name = wanted.pop()
        maker = makers.get(name)
        if maker is None or name in known or id(maker) in seen:  # type: ignore[operator]
            continue
        seen.add(id(maker))
        wanted += [slot.value for slot in maker.slots]
    return [each for each in operators if id(each) in seen]


def _listed(operators: Sequence[Operator]) -> str:
    shown = ", ".join(each.label for each in operators[:4])
    return shown + (f" and {len(operators) - 4} more" if len(operators) > 4 else "")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else "another one"


def _state_relation(state: str, there: bool) -> Relation:
    kind = f"{state} " if state else ""
    if there:
        return Relation("h0_dropped", f"has an initial {kind}state, the reference has none,")
    return Relation("h0_dropped", f"drops the initial {kind}state that the reference has")


def _lengths_relation(there: bool, directions: Sequence[str]) -> Relation:
    if directions and all(way == "right2left" for way in directions):
        text = "begins at the end of {}, the reference at that of {}"
        ends = ("each sentence", "the padding")
        return Relation("reverse_padded", text.format(*(ends if there else ends[::-1])))
    if there:
        return Relation("mask_ignored", "takes sentence lengths that the reference ignores,")
    return Relation("mask_ignored", "ignores the sentence lengths that the reference takes,")
