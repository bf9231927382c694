"""`NativeGraph` against searches over all paths, on random programs."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from onernn.adapters.common.native import NativeGraph, NativeNode, Part, sort_positions, weave

NAMES = st.frozensets(st.sampled_from("abcdefgh"), max_size=3)
NODES = st.lists(
    st.builds(NativeNode, st.just("op"), NAMES, NAMES, st.just(())), min_size=1, max_size=8
)


def follows(nodes: list[NativeNode], early: int, late: int) -> bool:
    """Returns whether a value of ``early`` reaches ``late``, directly or through others."""
    if early >= late:
        return early == late
    return any(
        follows(nodes, middle, late)
        for middle in range(early + 1, late + 1)
        for name in nodes[early].writes & nodes[middle].reads
        if not any(name in node.writes for node in nodes[early + 1 : middle])
    )


@given(NODES, st.data())
def test_a_closure_is_all_operators_between_two_of_the_given_ones(
    nodes: list[NativeNode], data: st.DataObject
) -> None:
    places = range(len(nodes))
    chosen = data.draw(st.sets(st.sampled_from(places), min_size=1))
    expected = {
        middle
        for early, middle, late in itertools.product(chosen, places, chosen)
        if follows(nodes, early, middle) and follows(nodes, middle, late)
    }
    assert NativeGraph(nodes).closure(chosen) == expected


@given(NODES, NAMES, NAMES)
def test_values_that_others_read_are_listed_with_each_reader(
    nodes: list[NativeNode], outputs: frozenset[str], shown: frozenset[str]
) -> None:
    graph = NativeGraph(nodes, outputs=outputs)
    for position, node in enumerate(nodes):
        expected = {
            (reader, name)
            for name in node.writes - shown
            for reader, names in [*enumerate(other.reads for other in nodes), (None, outputs)]
            if reader != position and name in names
        }
        assert set(graph.outside_reads({position}, shown)) == expected


@given(NODES, NAMES, NAMES)
def test_a_body_shows_only_names_that_are_not_local(
    nodes: list[NativeNode], local: frozenset[str], outputs: frozenset[str]
) -> None:
    body = NativeGraph(nodes, local, outputs)
    graph = NativeGraph([NativeNode("loop", frozenset("a"), frozenset("b"), (body,))])
    used = {name for node in nodes for name in node.reads} | outputs
    written = {name for node in nodes for name in node.writes}
    assert graph.reads[0] == (used - local) | {"a"}
    assert graph.writers == dict.fromkeys((written - local) | {"b"}, 1)


SINGLE = st.lists(NAMES, min_size=1, max_size=8).map(
    lambda reads: [
        NativeNode("op", frozenset(f"v{ord(n) % 8}" for n in each if ord(n) % 8 < at), {f"v{at}"})
        for at, each in enumerate(reads)
    ]
)


@given(SINGLE, st.sets(st.sampled_from("01234567")))
def test_sources_are_the_operators_that_values_are_computed_by(
    nodes: list[NativeNode], chosen: set[str]
) -> None:
    nodes = [node._replace(type="op" if at % 3 else "end") for at, node in enumerate(nodes)]

    def search(names: set[str], types: tuple[str, ...]) -> set[int]:
        found = {at for at in range(len(nodes)) if f"v{at}" in names and nodes[at].type in types}
        return found.union(*(search(set(nodes[at].reads), types) for at in found))

    names, graph = {f"v{digit}" for digit in chosen}, NativeGraph(nodes)
    assert graph.sources(names) == sorted(search(names, ("op", "end")))
    assert graph.sources(names, {"op"}) == sorted(search(names, ("op",)))


@given(SINGLE, st.data())
def test_weaving_drops_what_only_replaced_operators_read(
    nodes: list[NativeNode], data: st.DataObject
) -> None:
    places = range(len(nodes))
    outputs = {f"v{at}" for at in data.draw(st.sets(st.sampled_from(places)))}
    replaced = data.draw(st.sets(st.sampled_from(places)))
    new = {
        at: nodes[at]._replace(
            type="new", reads={n for n in nodes[at].reads if data.draw(st.booleans())}
        )
        for at in replaced
    }
    parts = [Part([at], [node], node.reads) for at, node in new.items()]
    woven = weave(NativeGraph(nodes, outputs=outputs), nodes, parts)
    assert [each for each in woven if each.type == "new"] == [new[at] for at in sorted(new)]
    whole = [new.get(at, node) for at, node in enumerate(nodes)]
    assert woven == [each for each in whole if each in woven]
    read = outputs.union(*(each.reads for each in woven))
    gone = [node for node in nodes if node not in woven]
    unread = {name for node in gone for name in node.reads}
    assert read <= {name for each in woven for name in each.writes}
    for node in gone:
        assert node.writes <= {f"v{at}" for at in replaced} or node.writes <= unread - read
    for node in woven:
        assert node.type == "new" or not node.writes <= unread - read


@given(st.permutations(range(8)), st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7))))
def test_sorted_positions_are_the_first_order_that_follows_the_needs(
    names: list[int], pairs: set[tuple[int, int]]
) -> None:
    needs = {at: {a for a, b in pairs if b == at and names[a] < names[b]} for at in range(8)}
    allowed = (
        order
        for order in itertools.permutations(range(8))
        if all(set(needs[at]) <= {*order[:place]} for place, at in enumerate(order))
    )
    assert tuple(sort_positions(needs)) == next(allowed)


def test_positions_in_a_cycle_come_last() -> None:
    assert sort_positions({0: {2}, 1: {3}, 2: {0}, 3: set()}) == [3, 1, 0, 2]
