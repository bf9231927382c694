"""Models that become compiled files, with inputs that fit them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from onernn import Graph, UnsupportedError
from onernn.engine.compiling import compile_model
from onernn.ir.graph import Value
from support import branching, looping
from support.graphs import new_node, small
from support.operator_cases import FEED, cases, model
from support.taggers import documents, of_documents, padder, sentences, tagger, unpadded

Model = tuple[Graph, list[Mapping[str, Any]]]


def convolution() -> Graph:
    """A convolution with groups and strides, pooled, and its way back."""
    rng = np.random.default_rng(1)
    nodes = (
        new_node("a = Conv x w b", group=2, strides=(2,), pads=(1, 1)),
        new_node("m = MaxPool a", kernel_shape=(2,)),
        new_node("y = ConvTranspose m v", strides=(2,)),
    )
    return small(
        nodes,
        {"x": (None, 4, None)},
        w=rng.normal(size=(6, 2, 3)).astype(np.float32),
        v=rng.normal(size=(6, 2, 4)).astype(np.float32),
        b=rng.normal(size=6).astype(np.float32),
    )


def given_weights() -> Graph:
    """A convolution with weights that come with each call."""
    return small(
        (new_node("y = Conv x w", group=2, pads=(1, 1)),), {"x": (None, 4, None), "w": (6, 2, 3)}
    )


def bytes_of_products() -> Graph:
    """Rows that are rounded to bytes, times a matrix of bytes."""
    rng = np.random.default_rng(2)
    nodes = (
        new_node("q scale point = DynamicQuantizeLinear x"),
        new_node("i = MatMulInteger q w point zero"),
        new_node("f = Cast i", to="float32"),
        new_node("y = Mul f scale"),
    )
    return small(
        nodes, {"x": (None, 5)}, w=rng.integers(-127, 128, (5, 7)).astype(np.int8), zero=np.int8(0)
    )


def found_sizes() -> Model:
    """Sizes and divisors that a run computes, and the longest of sequences that it makes."""
    nodes = (
        new_node("longest = ReduceMax lengths", keepdims=0),
        new_node("steps = Range nothing longest one"),
        new_node("divisors = Add lengths one"),
        new_node("rest = Mod lengths divisors"),
        new_node("words = SequenceUnpad padded lengths"),
        new_node("joined = SequenceConcat words words"),
        new_node("twofold = SequencePad joined"),
    )
    numbers = {"nothing": np.int64(0), "one": np.int64(1)}
    inputs = {"lengths": ("int64", None), "padded": (None, None, 2)}
    lengths, padded = np.array([3, 0, 5]), np.ones((3, 5, 2), np.float32)
    graph = small(nodes, inputs, "steps rest twofold", **numbers)
    return graph, [{"lengths": lengths, "padded": padded}]


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
        "found sizes": found_sizes(),
    }
    for what, kind in (("branches", branching), ("loops", looping)):
        for name, graph in kind.GRAPHS.items():
            wanted = {value.name for value in graph.inputs}
            feeds = [{n: f[n] for n in wanted} for f in kind.feeds()[:6]]
            made[f"{what}: {name}"] = graph, feeds
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
