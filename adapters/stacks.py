"""The recurrent layers of a file, as whole stacks: what weights are converted from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from onernn.adapters.adapter import StrPath
from onernn.adapters.joined_layers import JOINED, joined_layers
from onernn.adapters.loading import load
from onernn.adapters.reading import reading
from onernn.adapters.registry import ADAPTERS
from onernn.core.errors import UnsupportedError, did_you_mean
from onernn.core.graph import Graph, Node, Value
from onernn.core.node import is_named_here, layer_operators
from onernn.core.rnn import Recurrent
from onernn.fuse_passes import fuse
from onernn.fuse_passes.bodies import bodies
from onernn.reorders.layers import PivotLayer


def read_stacks(
    path: StrPath,
    params: StrPath | None = None,
    semantics: str = "documented",
    node: str | None = None,
) -> Mapping[str, PivotLayer]:
    """The stacks of a file of weights by the names of their modules, or `stacks_of` a model.

    ``node``: that one alone. Raises what `load` does, and `UnsupportedError` where there is none.
    """
    found = (each.weights.get(Path(path).suffix.lower()) for each in ADAPTERS)
    if not (read := next(filter(None, found), None)):
        return stacks_of(load(path, params, semantics), node)
    with reading(path):
        layers = read(path)
        if node is not None and node not in layers:
            _refused(path, node, layers)
        return layers if node is None else {node: layers[node]}


def stacks_of(model: Graph, node: str | None = None) -> dict[str, PivotLayer]:
    """A model's stacks of recurrent layers, by the values that they make, or where these are not
    in the file by its names of the layers. Weights that several places share come once.

    ``node``: the one that makes this value, or bears this name. Raises `UnsupportedError` where
    there is none.
    """
    fused = fuse(joined_layers(without_states(fuse(model).model))).model
    found: dict[str, PivotLayer] = {}
    called: dict[str, list[str]] = {}
    for each in filter(lambda each: each.op == "Rnn", _nodes(fused)):
        rnn = Recurrent.of(each)
        layers = layer_operators(each.origin)
        native = [name for op in layers for name in (op.name, op.value) if name]
        stack = PivotLayer.of(rnn.spec, rnn.weights)
        if same := [name for name, other in found.items() if _same(stack, other)]:
            called[same[0]] += [rnn.y, *native]
            continue
        key = native[0] if native and (is_named_here(rnn.y) or rnn.y.endswith(JOINED)) else rnn.y
        # Several cells in one layer of the file have numbers.
        numbers = (f"{key}#{at}" if at > 1 else key for at in itertools.count(1))
        name = next(each for each in numbers if each not in found)
        found[name], called[name] = stack, [rnn.y, *native]
    if node is not None and node not in found and found:
        chosen = {name: each for name, each in found.items() if node in called[name]}
        return chosen or _refused(model.name, node, found)
    if found:
        return found if node is None else {node: found[node]}
    raise UnsupportedError(
        f"{model.name}: it has no recurrent layer. {len([*_nodes(model)])} operators were searched,"
        " those inside of loops and branches, too: for layers, for loops over one cell, and for"
        " cells unrolled over all steps of a sequence. Cells that stay unrolled, or are several in"
        " one loop, are not layers: onernn inspect shows what they are"
    )


def _refused(path: StrPath, node: str, layers: Mapping[str, PivotLayer]) -> NoReturn:
    listed = ", ".join(map(repr, layers)) + did_you_mean(node, layers)
    raise UnsupportedError(f"{path}: no such recurrent layer: {node!r}; there are: {listed}")


def _nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for body in bodies(node).values():
            yield from _nodes(body)


def _same(one: PivotLayer, other: PivotLayer) -> bool:
    pairs = zip(one.weights, other.weights, strict=False)
    return one.spec == other.spec and all(
        a.arrays.keys() == b.arrays.keys()
        and all(np.array_equal(array, b.arrays[name]) for name, array in a.arrays.items())
        for a, b in pairs
    )


def without_states(model: Graph) -> Graph:
    """The model in which no layer begins with a state that somebody gives, nor hands one on.

    So do layers that stand on each other become one stack, whose states a model may take apart:
    to their weights states mean nothing. Who reads a last state reads an input of the graph.
    """
    layers = {id(node): Recurrent.of(node) for node in model.nodes if node.op == "Rnn"}
    nodes, inputs, tops = list[Node](), list[Value](), list[Value]()
    for node in model.nodes:
        if rnn := layers.get(id(node)):
            inputs += [Value(name) for name in node.outputs[1:] if model.is_read(name)]
            y = rnn.y or f"{node.outputs[1]}{JOINED}"
            alone = Recurrent(rnn.spec, rnn.weights, rnn.x, y, attention=rnn.attention)
            node = replace(alone, origin=node.origin).node()
            tops += [] if model.is_read(rnn.y) else [Value(y)]
        nodes.append(node)
    gone = {value.name for value in inputs}
    outputs = (*(value for value in model.outputs if value.name not in gone), *tops)
    return replace(model, inputs=(*model.inputs, *inputs), outputs=outputs, nodes=tuple(nodes))
