"""The differences of two models, the smallest set that matters, and their names."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from onernn.fuse_passes.views import is_view
from onernn.ir.arrays import Array, digest
from onernn.ir.graph import Graph, Node
from onernn.ir.records import cached_property, dataclass
from onernn.ir.rnn import Recurrent, parts
from onernn.verification.diagnosis.cause import in_order
from onernn.verification.diagnosis.faults import Relation, between, relation
from onernn.verification.diagnosis.graph_faults import DIRECTIONS_EXCHANGED
from onernn.verification.diagnosis.matching import Matching, Operator, moves, weights_in
from onernn.verification.tracing import LayerName, in_words

_PAIRS = 12
"""Among up to so many differences, leaving out pairs is tried, too."""


@dataclass(frozen=True, eq=False)
class Difference:
    """A place where the model is not as the reference.

    Of a pair of operators: what they compute, or what one ``slot`` of theirs reads. Or what is
    given as an ``output``. ``reads``, ``wanted``: the value there in the model and in the
    reference.
    """

    model: Operator | None = None
    reference: Operator | None = None
    slot: int | None = None
    output: str = ""
    reads: str = ""
    wanted: str = ""

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
        if one.structure != twin.structure:
            nodes |= {id(node): [] for node in one.nodes}
            copied |= {id(node): taken(node) for node in twin.nodes}
            continue
        for node, new in _changed(one, twin, slots, content, source):
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
    content: bool,
    source: Callable[[str], str],
) -> Iterator[tuple[Node, Node]]:
    """Each node, and what it becomes; both operators have the same structure."""
    inputs = [list(node.inputs) for node in mine.nodes]
    for index, (one, other) in enumerate(zip(mine.slots, theirs.slots, strict=True)):
        fixed = one.value in mine.graph.constants and other.value in theirs.graph.constants
        if index in slots or (content and fixed):
            row = inputs[one.node]
            row += [""] * (one.position + 1 - len(row))
            row[one.position] = source(other.value)
    for node, twin, row in zip(mine.nodes, theirs.nodes, inputs, strict=True):
        while node.op == "Rnn" and not row[-1]:
            row.pop()
        attributes = twin.attributes if content else node.attributes
        yield node, replace(node, inputs=tuple(row), attributes=attributes)


def _same(one: Array, other: Array) -> bool:
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
            yield Named(Relation("operator_changed", text), "", node, each)
            return
        for one, other in zip(mine.nodes, theirs.nodes, strict=True):
            for key in sorted(one.attributes.keys() | other.attributes.keys()):
                now, then = (getattr(n.attrs, key, None) for n in (one, other))
                if key != "weights" and repr(now) != repr(then):
                    said = [_short(v) for v in (now, then)]
                    text = f"has {key} {said[0]}, the reference {said[1]},"
                    yield Named(Relation("attribute_changed", text), mine.label, node, each)
        for slot, twin in zip(mine.slots, theirs.slots, strict=True):
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
        for one, other in zip(mine.rnns, theirs.rnns, strict=False):
            pairs = zip(self._layers(one), self._layers(other), strict=False)
            for (where, own), (_, their) in pairs:
                name = Recurrent.of(one).y
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
            roots = [_root(*pair) for pair in zip(every, sources, strict=True)]
            sources = roots if roots[0] != roots[1] else sources
        there = each.reads in self.ragged[0]
        if there != (each.wanted in self.ragged[1]) and each.model and each.model.rnns:
            ways = [layer.spec.direction for _, layer in self._all_layers(each.model)]
            result = _lengths_relation(there, ways)
        elif state and not (each.reads and each.wanted):
            result = _state_relation(state, bool(each.reads))
        elif own and other:
            text = f"has {_listed(own)} where the reference has {_listed(other)}, before"
            result = Relation("operator_changed", text)
        elif own:
            text = f"has {_listed(own)}, which the reference has not, before"
            result = Relation("operator_added", text)
        elif other:
            text = f"lacks what the reference has as {_listed(other)}, before"
            result = Relation("operator_missing", text)
        else:
            kind = f" as its initial {state} state" if state else ""
            text = f"reads {sources[0]!r}{kind} where the reference reads {sources[1]!r}"
            result = Relation("states_exchanged" if state else "input_exchanged", text)
        return Named(result, where, node, each)

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


def _root(operators: Sequence[Operator], name: str) -> str:
    """The value that one is cut out of, or a view of."""
    makers = {output: node for each in operators for node in each.nodes for output in node.outputs}
    while name in makers and moves(makers[name].op):
        name = makers[name].inputs[0]
    return name


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
