"""Scans over a cell under a mask become a layer over the words that are left; others stay scans.

The oracle is the scan itself, run step by step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.graphs import new_node, unfused

from onernn import Graph, Session, fuse
from onernn.ir.graph import Node, Value

T, N, WIDTH, UNITS = 5, 4, 3, 2
RNG = np.random.default_rng(0)
W, U = (RNG.normal(size=(k, UNITS)).astype(np.float32) for k in (WIDTH, UNITS))
MASK = np.array([[1, 1, 0, 1, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)
FEED = {
    "mask": MASK.T[..., None].copy(),
    "x": RNG.normal(size=(T, N, WIDTH)).astype(np.float32),
    "o0": RNG.normal(size=(N, UNITS)).astype(np.float32),
    "h0": RNG.normal(size=(N, UNITS)).astype(np.float32),
    "z": RNG.normal(size=(N, UNITS)).astype(np.float32),
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
    return (
        Node("Cast", ("m",), (f"{name}/m",), {"to": "float32"}),
        Node("Not", ("m",), (f"{name}/not",)),
        Node("Cast", (f"{name}/not",), (f"{name}/n",), {"to": "float32"}),
        Node("Mul", ("new", f"{name}/m"), (f"{name}/a",)),
        Node("Mul", (other, f"{name}/n"), (f"{name}/b",)),
        Node("Add", (f"{name}/b", f"{name}/a"), (name,)),
    )


def scan_of(nodes: tuple[Node, ...], results: tuple[str, ...], **more: Any) -> Graph:
    """A scan with the states o, which repeats the output, and h. ``results``: of o, h, and y."""
    shapes = {"o": (None, UNITS), "h": (None, UNITS), "m": (None, 1), "x": (None, WIDTH)}
    kinds = {"m": "bool"}
    takes = [*shapes, "z"] if more.get("outside") else [*shapes]
    inputs = [Value(k, kinds.get(k, "float32"), shapes.get(k, (None, UNITS))) for k in takes]
    outputs = tuple(Value(name, "float32", (None, UNITS)) for name in results)
    body = Graph("body", tuple(inputs), outputs, (*CELL, *nodes), {"W": W, "U": U})
    ways = {
        f"{side}_{k}": (0,) * n
        for side, n in (("input", 2), ("output", 1))
        for k in ("axes", "directions")
    }
    ways |= more.get("ways", {})
    attributes = {"body": body, "states": 2, "scanned": 2, **ways}
    given = ("o0", "h0", "mask", "x", *(["z"] if more.get("outside") else []))
    made = more.get("made", ("o_end", "h_end", "y"))
    scan = Node("Scan", given, made, attributes)
    faces = []
    for name in given:
        array = FEED[name]
        shape = tuple(None if at < array.ndim - 1 else size for at, size in enumerate(array.shape))
        faces.append(Value(name, array.dtype.name, shape))
    wanted = tuple(Value(name) for name in made if name)
    return Graph("m", tuple(faces), wanted, (scan,), {})


def check(graph: Graph, layer: bool = True) -> None:
    kinds = {node.op for node in fuse(graph).model.nodes}
    assert ("Rnn" in kinds, "Scan" in kinds) == (layer, not layer), kinds
    masks = [FEED["mask"], np.zeros_like(FEED["mask"]), np.ones_like(FEED["mask"])]
    for mask in (*masks, FEED["mask"][::-1].copy()):
        feed = {value.name: FEED[value.name] for value in graph.inputs} | {"mask": mask}
        want = unfused(graph, feed)
        for backend in ("reference", "auto"):
            got = Session(graph, backend=backend).run(feed)
            for name, array in want.items():
                np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("chosen", [where, spelled])
def test_a_masked_cell_becomes_a_layer(chosen: Any) -> None:
    nodes = (*chosen("o_new", "o"), *chosen("h_new", "h"))
    check(scan_of(nodes, ("o_new", "h_new", "o_new")))


def test_the_output_may_be_the_state() -> None:
    nodes = (*where("o_new", "o"), *where("h_new", "h"))
    check(scan_of(nodes, ("o_new", "h_new", "h_new")))


def test_masked_steps_may_give_what_is_told_outside() -> None:
    nodes = (*where("o_new", "z"), *where("h_new", "h"))
    made = ("", "h_end", "y")
    check(scan_of(nodes, ("o_new", "h_new", "o_new"), outside=True, made=made))


def test_a_mask_may_be_turned() -> None:
    nodes = (
        new_node("n = Not m"),
        *where("o_new", "new", "o", "n"),
        *where("h_new", "new", "h", "n"),
    )
    check(scan_of(nodes, ("o_new", "h_new", "o_new")))


OTHERS: dict[str, tuple[tuple[Node, ...], tuple[str, ...], dict[str, Any]]] = {
    "a state that moves all the same": (where("o_new", "o"), ("o_new", "new", "o_new"), {}),
    "a state that goes back": (
        (*where("o_new", "o"), *where("h_new", "o")),
        ("o_new", "h_new", "o_new"),
        {},
    ),
    "an output without a mask": (
        (*where("o_new", "o"), *where("h_new", "h")),
        ("o_new", "h_new", "new"),
        {},
    ),
    "backwards": (
        (*where("o_new", "o"), *where("h_new", "h")),
        ("o_new", "h_new", "o_new"),
        {"ways": {"input_directions": (1, 1)}},
    ),
    "another function behind the mask": (
        (*where("h_new", "h"), new_node("neg = Neg new"), *where("o_new", "o", "neg")),
        ("o_new", "h_new", "o_new"),
        {},
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_scans_stay(case: str) -> None:
    nodes, results, more = OTHERS[case]
    check(scan_of(nodes, results, **more), layer=False)


def test_a_mask_for_each_unit_stays_a_scan() -> None:
    graph = scan_of((*where("o_new", "o"), *where("h_new", "h")), ("o_new", "h_new", "o_new"))
    faces = tuple(
        replace(v, shape=(None, None, UNITS)) if v.name == "mask" else v for v in graph.inputs
    )
    (scan,) = graph.nodes
    inner = scan.attributes["body"]
    own = tuple(replace(v, shape=(None, UNITS)) if v.name == "m" else v for v in inner.inputs)
    attributes = {**scan.attributes, "body": replace(inner, inputs=own)}
    wide = replace(graph, inputs=faces, nodes=(replace(scan, attributes=attributes),))
    assert "Scan" in {node.op for node in fuse(wide).model.nodes}
