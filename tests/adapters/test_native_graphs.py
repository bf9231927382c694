"""`NativeGraph` against searches over all paths, on random programs."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from onernn.adapters.common.native import NativeGraph, NativeNode

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
