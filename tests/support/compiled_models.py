"""Models that become compiled files, with inputs that fit them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from onernn import Graph, UnsupportedError
from onernn.engine.compiling import compile_model
from onernn.ir.graph import Node, Value
from support import branching, looping
from support.graphs import new_node
from support.operator_cases import FEED, cases, model
from support.taggers import documents, of_documents, padder, sentences, tagger, unpadded

Model = tuple[Graph, list[Mapping[str, Any]]]


def convolution() -> Graph:
    """A convolution with groups and strides, pooled, and its way back."""
    rng = np.random.default_rng(1)
    constants = {
        "w": rng.normal(size=(6, 2, 3)).astype(np.float32),
        "v": rng.normal(size=(6, 2, 4)).astype(np.float32),
        "b": rng.normal(size=6).astype(np.float32),
    }
    nodes = (
        Node("Conv", ("x", "w", "b"), ("a",), {"group": 2, "strides": (2,), "pads": (1, 1)}),
        Node("MaxPool", ("a",), ("m",), {"kernel_shape": (2,)}),
        Node("ConvTranspose", ("m", "v"), ("y",), {"strides": (2,)}),
    )
    given = Value("x", "float32", (None, 4, None))
    return Graph("convolution", (given,), (Value("y"),), nodes, constants)


def given_weights() -> Graph:
    """A convolution with weights that come with each call."""
    inputs = (Value("x", "float32", (None, 4, None)), Value("w", "float32", (6, 2, 3)))
    nodes = (Node("Conv", ("x", "w"), ("y",), {"group": 2, "pads": (1, 1)}),)
    return Graph("given weights", inputs, (Value("y"),), nodes, {})


def bytes_of_products() -> Graph:
    """Rows that are rounded to bytes, times a matrix of bytes."""
    rng = np.random.default_rng(2)
    constants = {"w": rng.integers(-127, 128, (5, 7)).astype(np.int8), "zero": np.int8(0)}
    nodes = (
        Node("DynamicQuantizeLinear", ("x",), ("q", "scale", "point"), {}),
        Node("MatMulInteger", ("q", "w", "point", "zero"), ("i",), {}),
        Node("Cast", ("i",), ("f",), {"to": "float32"}),
        new_node("y = Mul f scale"),
    )
    given = Value("x", "float32", (None, 5))
    return Graph("bytes", (given,), (Value("y"),), nodes, constants)


def operators() -> dict[str, Model]:
    """All cases of each operator as one model, so that a file of it has few steps."""
    nodes, names = cases()
    makers = {name: node.op for node in nodes for name in node.outputs}
    outputs: dict[str, list[str]] = {}
    for name in names:
        if _inputs(model(nodes, [name])):
            outputs.setdefault(makers[name], []).append(name)
    made: dict[str, Model] = {}
    for op, of_op in outputs.items():
        graph = model(nodes, of_op)
        inputs = _inputs(graph)
        if op == "GroupNormalization":  # it has a plan only if all sizes are known
            inputs = tuple(replace(v, shape=np.shape(FEED[v.name])) for v in inputs)
        graph = replace(graph, name=f"operator: {op}", inputs=inputs)
        made[graph.name] = graph, [{value.name: FEED[value.name] for value in inputs}]
    return made


def _inputs(graph: Graph) -> tuple[Value, ...]:
    """The inputs that nodes read."""
    read = {name for node in graph.nodes for name in node.inputs}
    return tuple(value for value in graph.inputs if value.name in read)


def models() -> dict[str, Model]:
    """Ragged and dense: layers, convolutions, bytes, branches, loops, and every operator."""
    rng = np.random.default_rng(0)
    rows = [{"x": rng.normal(size=(n, 5)).astype(np.float32)} for n in (1, 4, 0)]
    images = [{"x": rng.normal(size=(n, 4, 9)).astype(np.float32)} for n in (1, 3)]
    weights = rng.normal(size=(6, 2, 3)).astype(np.float32)
    made: dict[str, Model] = {
        "tagger": (tagger(), [sentences(rng, count) for count in (3, 1, 0)]),
        "padder": (padder(), [unpadded(rng, count) for count in (2, 5)]),
        "documents": (documents(), [of_documents(rng, count) for count in (2, 1)]),
        "convolution": (convolution(), images),
        "given weights": (given_weights(), [{**image, "w": weights} for image in images]),
        "bytes": (bytes_of_products(), rows),
    }
    for kind in (branching, looping):
        for name, graph in kind.GRAPHS.items():
            wanted = {value.name for value in graph.inputs}
            feeds = [{n: f[n] for n in wanted} for f in kind.feeds()[:6]]
            made[f"{graph.name}: {name}"] = graph, feeds
    return made | operators()


def compiled(folder: Path) -> Iterator[tuple[str, Path]]:
    """All of them that have a compiled file."""
    for number, (name, (graph, _)) in enumerate(models().items()):
        path = folder / f"{number}.onernn"
        try:
            compile_model(graph, path)
        except UnsupportedError:
            continue
        yield name, path
