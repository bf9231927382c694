"""Scans over a cell under a mask become a layer over the words that are left; others stay scans.

The oracle is the scan itself, run step by step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.fusing import check_fused, operators
from support.graphs import new_node, small_graph

from onernn import Graph, fuse
from onernn.ir.graph import Node, Value
from onernn.ops.control import scan_attributes

T, N, WIDTH, UNITS = 5, 4, 3, 2
W, U = uniform(WIDTH, UNITS), uniform(UNITS, UNITS)
MASK = np.array([[1, 1, 0, 1, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)
FEED = {
    "mask": MASK.T[..., None].copy(),
    "x": uniform(T, N, WIDTH),
    **{name: uniform(N, UNITS, seed=k) for k, name in enumerate(("o0", "h0", "z"))},
}
CELL = (
    new_node("xw = MatMul x W"),
    new_node("hu = MatMul h U"),
    new_node("sum = Add xw hu"),
    new_node("new = Tanh sum"),
)


def where(name: str, other: str, one: str = "new", mask: str = "m") -> tuple[Node, ...]:
    return (Node("Where", (mask, one, other), (name,)),)


def spelled(name: str, other: str) -> tuple[Node, ...]:
    """As exporters write it: m * new + (not m) * other."""
    own = {value: f"{name}/{value}" for value in ("k", "not", "n", "a", "b")}
    return tuple(
        node.rename({**own, "old": other, "sum": name})
        for node in (
            new_node("k = Cast m", to="float32"),
            new_node("not = Not m"),
            new_node("n = Cast not", to="float32"),
            new_node("a = Mul new k"),
            new_node("b = Mul old n"),
            new_node("sum = Add b a"),
        )
    )


def scan_of(nodes: tuple[Node, ...], results: tuple[str, ...], **more: Any) -> Graph:
    """A scan with the states o, which repeats the output, and h. ``results``: of o, h, and y."""
    takes = {"o": (None, UNITS), "h": (None, UNITS), "m": Value("m", "bool", (None, 1))}
    takes |= {"x": (None, WIDTH)} | ({"z": (None, UNITS)} if more.get("outside") else {})
    body = small_graph((*CELL, *nodes), " ".join(results), {"W": W, "U": U}, **takes)
    attributes = scan_attributes(body, 2, 2) | more.get("ways", {})
    given = ("o0", "h0", "mask", "x", *(["z"] if "z" in takes else []))
    made = more.get("made", ("o_end", "h_end", "y"))
    faces = {name: (None,) * (FEED[name].ndim - 1) + FEED[name].shape[-1:] for name in given}
    faces["mask"] = Value("mask", "bool", faces["mask"])
    return small_graph([Node("Scan", given, made, attributes)], " ".join(made), **faces)


def check(graph: Graph, layer: bool = True) -> None:
    mask = FEED["mask"]
    feeds = [
        {value.name: FEED[value.name] for value in graph.inputs} | {"mask": each}
        for each in (mask, np.zeros_like(mask), np.ones_like(mask), mask[::-1].copy())
    ]
    kinds = operators(check_fused(graph, *feeds, backends=("reference", "auto"), atol=1e-6))
    assert ("Rnn" in kinds, "Scan" in kinds) == (layer, not layer), kinds


BOTH, STATES = (*where("o_new", "o"), *where("h_new", "h")), ("o_new", "h_new", "o_new")


@pytest.mark.parametrize("chosen", [where, spelled])
def test_a_masked_cell_becomes_a_layer(chosen: Any) -> None:
    nodes = (*chosen("o_new", "o"), *chosen("h_new", "h"))
    check(scan_of(nodes, STATES))


def test_the_output_may_be_the_state() -> None:
    check(scan_of(BOTH, ("o_new", "h_new", "h_new")))


def test_masked_steps_may_give_what_is_told_outside() -> None:
    nodes = (*where("o_new", "z"), *where("h_new", "h"))
    made = ("", "h_end", "y")
    check(scan_of(nodes, STATES, outside=True, made=made))


def test_a_mask_may_be_turned() -> None:
    nodes = (
        new_node("n = Not m"),
        *where("o_new", "new", "o", "n"),
        *where("h_new", "new", "h", "n"),
    )
    check(scan_of(nodes, STATES))


OTHERS: dict[str, tuple[tuple[Node, ...], tuple[str, ...], dict[str, Any]]] = {
    "a state that goes back": ((*where("o_new", "o"), *where("h_new", "o")), STATES, {}),
    "an output without a mask": (BOTH, ("o_new", "h_new", "new"), {}),
    "backwards": (BOTH, STATES, {"ways": {"input_directions": (1, 1)}}),
}


@pytest.mark.parametrize(
    "nodes, results",
    [
        (where("o_new", "o"), ("o_new", "new", "o_new")),
        (
            (*where("h_new", "h"), new_node("neg = Neg new"), *where("o_new", "o", "neg")),
            STATES,
        ),
        ((new_node("two = Mul new new"), new_node("add = Add o two")), ("add", "new", "add")),
    ],
    ids=["the state moves all the same", "another function behind the mask", "read twice"],
)
def test_the_cell_is_a_layer_and_what_reads_it_a_scan(nodes: Any, results: Any) -> None:
    graph = scan_of(nodes, results)
    feed = {value.name: FEED[value.name] for value in graph.inputs}
    kinds = operators(check_fused(graph, feed, backends=("reference", "auto"), atol=1e-6))
    assert ("Rnn" in kinds, "Scan" in kinds) == (True, True)


@pytest.mark.parametrize("case", OTHERS)
def test_other_scans_stay(case: str) -> None:
    nodes, results, more = OTHERS[case]
    check(scan_of(nodes, results, **more), layer=False)


def test_a_mask_for_each_unit_stays_a_scan() -> None:
    graph = scan_of(BOTH, STATES)
    faces = tuple(
        replace(v, shape=(None, None, UNITS)) if v.name == "mask" else v for v in graph.inputs
    )
    (scan,) = graph.nodes
    inner = scan.attributes["body"]
    own = tuple(replace(v, shape=(None, UNITS)) if v.name == "m" else v for v in inner.inputs)
    attributes = {**scan.attributes, "body": replace(inner, inputs=own)}
    wide = replace(graph, inputs=faces, nodes=(replace(scan, attributes=attributes),))
    assert "Scan" in operators(fuse(wide))
