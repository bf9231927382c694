"""Stacks taken apart compute the same, one layer at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from support.fusing import check_fused, layer_nodes
from support.graphs import new_node, small_graph
from support.layers import (
    CELLS,
    DIRECTIONS,
    attention_for,
    random_layer,
    random_ragged,
    random_state,
)

from onernn import Cell, Graph, RnnSpec
from onernn.fuse_passes.expand_layers import ExpandLayers
from onernn.ir.graph import Node, Value

LENGTHS = [3, 0, 5, 1]


def stack(spec: RnnSpec, *, states: bool) -> tuple[Graph, dict[str, Any]]:
    """One node over ragged words, between states that are fed and read, or without any."""
    kinds = "hc"[: len(spec.cell.states)]
    x = random_ragged(LENGTHS, spec.input_size, 1)
    feed: dict[str, Any] = {"x": x}
    names, outputs = ["", ""], ["y"]
    if states:
        feed |= dict(zip(kinds, random_state(spec, len(LENGTHS), 2), strict=True))
        names, outputs = [*kinds, ""][:2], ["y", *(f"{kind}_end" for kind in kinds)]
    attention = attention_for(spec, x, 3)
    if attention is not None:
        feed["a"] = attention
        names.append("a")
    node = Node("Rnn", ("x", *names), tuple(outputs), random_layer(spec, 0))
    inputs = {name: Value(name, lod_depth=int(name in ("x", "a"))) for name in feed}
    return small_graph([node], " ".join(outputs), **inputs), feed


@pytest.mark.parametrize(
    "cell, more, direction, layers, states",
    [
        (cell, more, direction, layers, (layers == 1) == bool(k % 2))
        for k, ((cell, more), direction) in enumerate(product(CELLS, DIRECTIONS))
        for layers in (1, 3)
    ],
)
def test_a_stack_is_its_layers(cell: Cell, more: dict, direction: Any, layers: int, states: bool):
    for stacking in ("framework", "onednn"):
        spec = RnnSpec(cell, 4, 4, layers=layers, direction=direction, stacking=stacking, **more)
        if more.get("projection_size") and stacking == "onednn":
            continue
        graph, feed = stack(spec, states=states)
        for both in (False, True):
            passes = (ExpandLayers(directions=lambda _, both=both: both),)
            result = check_fused(graph, feed, passes=passes, atol=1e-6)
            specs = [node.attributes["spec"] for node in layer_nodes(result)]
            apart = spec.directions == 2 and (both or (layers > 1 and stacking == "onednn"))
            assert len(specs) == layers * (2 if apart else 1)
            assert {each.layers for each in specs} == {1}
            assert {each.directions for each in specs} == {1 if apart else spec.directions}


def test_parts_of_a_state_get_names_that_no_value_of_the_graph_has() -> None:
    graph, feed = stack(RnnSpec(Cell.GRU, 4, 4, layers=2), states=True)
    taken = new_node("y.h0@0 = Tanh h")
    graph = replace(graph, nodes=(*graph.nodes, taken), outputs=(*graph.outputs, Value("y.h0@0")))
    result = check_fused(graph, feed, passes=(ExpandLayers(),), atol=1e-6)
    assert len(layer_nodes(result)) == 2


def test_layers_that_share_a_state_have_parts_of_their_own() -> None:
    spec = RnnSpec(Cell.GRU, 4, 4, layers=2)
    graph, feed = stack(spec, states=True)
    (node,) = graph.nodes
    again = new_node("z z_end = Rnn y h", **node.attributes)
    graph = replace(graph, outputs=(*graph.outputs, Value("z")), nodes=(node, again))
    check_fused(graph, feed, passes=(ExpandLayers(),), atol=1e-6)
