"""What to call the places where two models differ, as a reader of both files would."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from onernn.fuse_passes.views import is_view
from onernn.ir.graph import Node
from onernn.ir.records import cached_property, dataclass
from onernn.ir.rnn import Recurrent, parts
from onernn.ops import OPERATORS
from onernn.verification.diagnosis.differences import Difference
from onernn.verification.diagnosis.equal_values import moves
from onernn.verification.diagnosis.graph_faults import DIRECTIONS_EXCHANGED
from onernn.verification.diagnosis.matching import Matching, Operator, digest_of, weights_in
from onernn.verification.diagnosis.relations import Relation, between, relation
from onernn.verification.layer_names import LayerName, in_words

_STATES = {1: "hidden", 2: "cell"}


class Named(NamedTuple):
    """What is so, where, and the first output of the node in the model."""

    found: Relation
    where: LayerName | str
    node: str
    difference: Difference


@dataclass(frozen=True, eq=False)
class Names:
    """Of the differences between two matched models.

    ``parts``: layers by y, if taken apart. ``stacked``: what is known of a file's own operator and
    direction as a layer of a stack. ``ragged``: the values of both that are sentences.
    """

    matching: Matching
    parts: Mapping[str, LayerName]
    stacked: Mapping[tuple[str, str], LayerName]
    ragged: tuple[Container[str], Container[str]]

    def of(self, chosen: Sequence[Difference]) -> list[Named]:
        """What each is called; several that are one fault have one name."""
        left = list(chosen)
        found = []
        for one, other in combinations(chosen, 2):
            if one in left and other in left and (both := self._exchanged(one, other)):
                found += both
                left = [each for each in left if each is not one and each is not other]
        for each in left:
            found += self._wired(each) if each.is_wiring else self._computed(each)
        return list(_agreed(found))

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
                now, then = (getattr(n.at, key, None) for n in (one, other))
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
                found = relation(own, their)
                text = f"has {slot.value!r} that {found.text},"
                if found.id == "weights_rounded":
                    text = f"has weights rounded to {found.text.removeprefix('is rounded to ')}"
                yield Named(found._replace(text=text), mine.label, node, each)

    def _recurrent(self, mine: Operator, theirs: Operator, each: Difference) -> Iterator[Named]:
        for one, other in zip(mine.rnns, theirs.rnns, strict=False):
            pairs = zip(self._layers(one), self._layers(other), strict=False)
            for (where, own), (_, their) in pairs:
                name = Recurrent.of(one).y
                for found in self._taken_from(where, own, their) or between(own, their):
                    yield Named(found, where, name, each)
        if mine.structure == theirs.structure or not mine.rnns:
            return
        name, layers = mine.rnns[0].outputs[0], self._all_layers(mine)
        ways = [layer.spec.direction for _, layer in layers]
        lengths = [any(n.op == "SequenceUnpad" for n in op.nodes) for op in (mine, theirs)]
        if lengths[0] != lengths[1]:
            for place, _ in layers:
                yield Named(_lengths_found(lengths[0], ways), place, name, each)
        rnns = [[Recurrent.of(node) for node in op.rnns] for op in (mine, theirs)]
        for own, their in zip(*rnns, strict=False):
            kinds = zip(("hidden", "cell"), own.states, their.states, strict=False)
            changed = [(kind, bool(now)) for kind, now, then in kinds if bool(now) != bool(then)]
            for state, there in _together(changed):
                for place, _ in layers:
                    yield Named(_state_found(state, there), place, own.y, each)

    def _taken_from(
        self, where: LayerName, own: Recurrent, their: Recurrent
    ) -> tuple[Relation, ...]:
        """Where the layer has the numbers of another layer of the reference."""
        key, wanted = (digest_of(weights_in(each.weights)) for each in (own, their))
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

        def found(side: Sequence[Operator]) -> dict[str, LayerName]:
            layers = [each for operator in side for each in self._all_layers(operator)]
            return {digest_of(weights_in(layer.weights)): place for place, layer in layers}

        return found(self.matching.mine), found(self.matching.theirs)

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

    def _wired(self, each: Difference) -> Iterator[Named]:
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
            yield Named(_lengths_found(there, ways), where, node, each)
        elif state and not each.reads or state and not each.wanted:
            yield Named(_state_found(state, bool(each.reads)), where, node, each)
        elif own and other:
            text = f"has {_listed(own)} where the reference has {_listed(other)}, before"
            yield Named(Relation("operator_changed", text), where, node, each)
        elif own:
            text = f"has {_listed(own)}, which the reference has not, before"
            yield Named(Relation("operator_added", text), where, node, each)
        elif other:
            text = f"lacks what the reference has as {_listed(other)}, before"
            yield Named(Relation("operator_missing", text), where, node, each)
        else:
            kind = f" as its initial {state} state" if state else ""
            text = f"reads {sources[0]!r}{kind} where the reference reads {sources[1]!r}"
            cause = "states_exchanged" if state else "input_exchanged"
            yield Named(Relation(cause, text), where, node, each)

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
        """Which initial state a slot is, "" where it is none."""
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
        """The names of both, where each is as the other one should be."""
        values = self.matching.values
        if one.is_wiring and other.is_wiring:
            crossed = (
                values.get(one.reads) == other.wanted and values.get(other.reads) == one.wanted
            )
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
        elif not one.is_wiring and not other.is_wiring:
            (a, b), (c, d) = ((e.model, e.reference) for e in (one, other))
            assert a and b and c and d
            if a.rnns or a.structure != c.structure or _content(a) == _content(c):
                return []
            if _content(a) != _content(d) or _content(c) != _content(b):
                return []
            if not self._feeds_states(a) or not self._feeds_states(c):
                return []
            cause, text = "states_exchanged", "exchanges the initial states of layers:"
        else:
            return []
        return [Named(Relation(cause, text), *self._place(e), e) for e in (one, other)]

    def _feeds_states(self, operator: Operator) -> bool:
        """Whether all that an operator makes goes into initial states, through views."""
        waiting, found = list(operator.makes), False
        while waiting:
            name = waiting.pop()
            if operator.graph.is_output(name):
                return False
            for user in operator.graph.users(name):
                if user.op == "Rnn":
                    if name in (*user.inputs[:1], *user.inputs[3:]):
                        return False
                    found = True
                elif (known := OPERATORS.get(user.op)) is not None and known.keeps:
                    waiting += user.outputs
                else:
                    return False
        return found


def _agreed(found: Sequence[Named]) -> Iterator[Named]:
    """What only all together tell: layers without lengths, both states of an LSTM."""
    masked = {each.found.text for each in found if each.found.id == "mask_ignored"}
    for each in found:
        if each.found.id == "reverse_padded" and len(masked) == 1:
            yield each._replace(found=Relation("mask_ignored", next(iter(masked))))
        elif each.found.id == "h0_dropped":
            here = {other.found for other in found if other.where == each.where}
            there = each.found.text.startswith("has")
            both = here.issuperset(_state_found(kind, there) for kind in _STATES.values())
            yield each._replace(found=_state_found("", there)) if both else each
        else:
            yield each


def _content(operator: Operator) -> tuple[str, str]:
    return operator.settings, operator.numbers


def _root(found: Sequence[Operator], name: str) -> str:
    """The value that one is cut out of, or a view of."""
    makers = {made: node for each in found for node in each.nodes for made in node.outputs}
    while name in makers and moves(makers[name].op):
        name = makers[name].inputs[0]
    return name


def _behind(found: Sequence[Operator], name: str, known: object) -> list[Operator]:
    """The operators that make a value of those that are known, in order."""
    makers = {made: each for each in found for made in each.made}
    wanted, seen = [name], set[int]()
    while wanted:
        name = wanted.pop()
        maker = makers.get(name)
        if maker is None or name in known or id(maker) in seen:  # type: ignore[operator]
            continue
        seen.add(id(maker))
        wanted += [slot.value for slot in maker.slots]
    return [each for each in found if id(each) in seen]


def _listed(operators: Sequence[Operator]) -> str:
    shown = ", ".join(each.label for each in operators[:4])
    return shown + (f" and {len(operators) - 4} more" if len(operators) > 4 else "")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else "another one"


def _together(changed: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    if len(changed) == 2 and changed[0][1] == changed[1][1]:
        return [("", changed[0][1])]
    return changed


def _state_found(state: str, there: bool) -> Relation:
    kind = f"{state} " if state else ""
    if there:
        return Relation("h0_dropped", f"has an initial {kind}state, the reference has none,")
    return Relation("h0_dropped", f"drops the initial {kind}state that the reference has")


def _lengths_found(there: bool, directions: Sequence[str]) -> Relation:
    if directions and all(way == "right2left" for way in directions):
        text = "begins at the end of {}, the reference at that of {}"
        ends = ("each sentence", "the padding")
        return Relation("reverse_padded", text.format(*(ends if there else ends[::-1])))
    if there:
        return Relation("mask_ignored", "takes sentence lengths that the reference ignores,")
    return Relation("mask_ignored", "ignores the sentence lengths that the reference takes,")
