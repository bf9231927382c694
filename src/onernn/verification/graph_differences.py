"""What was changed in a graph, in lines for a reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node
from onernn.ir.rnn import Recurrent
from onernn.ir.weights import RnnWeights


def differences(before: Graph, after: Graph) -> Iterator[str]:
    """A line for each node that came or went, and for each part of one that changed.

    Nodes are the same where their first outputs are.
    """
    old, new = ({node.outputs[0]: node for node in each.nodes} for each in (before, after))
    for value in after.inputs:
        if value.name not in {each.name for each in before.inputs}:
            yield f"+ input {value}"
    for name in [*old, *(name for name in new if name not in old)]:
        one, other = old.get(name), new.get(name)
        if one is None or other is None:
            node = one or other
            assert node is not None
            yield f"{'-' if other is None else '+'} {node.label}: {_written(node)}"
            continue
        for line in _changes(before, after, one, other):
            yield f"~ {one.label}: {line}"


def _written(node: Node) -> str:
    return f"{', '.join(filter(None, node.outputs))} = {node.op}({', '.join(node.inputs)})"


def _changes(before: Graph, after: Graph, one: Node, other: Node) -> Iterator[str]:
    if one.op != other.op:
        yield f"{_written(one)} -> {_written(other)}"
        return
    for at in range(max(len(one.inputs), len(other.inputs))):
        mine, theirs = one.input(at), other.input(at)
        arrays = before.constants.get(mine), after.constants.get(theirs)
        if arrays[0] is not None and arrays[1] is not None:
            yield from _of_arrays(f"input {at}", arrays[0], arrays[1])
        elif mine != theirs:
            yield f"input {at}: {mine!r} -> {theirs!r}"
    if one.op == "Rnn":
        yield from _of_layers(Recurrent.of(one), Recurrent.of(other))
    else:
        yield from _of_fields(one.attributes, other.attributes)


def _of_layers(one: Recurrent, other: Recurrent) -> Iterator[str]:
    specs = ({f.name: getattr(rnn.spec, f.name) for f in fields(rnn.spec)} for rnn in (one, other))
    yield from _of_fields(*specs)
    for k, (mine, theirs) in enumerate(zip(one.layers, other.layers, strict=False)):
        layer = f"layer {k + 1}, " if len(one.layers) > 1 else ""
        for name in RnnWeights.__dataclass_fields__:
            arrays = mine.arrays.get(name), theirs.arrays.get(name)
            if arrays[0] is not None and arrays[1] is not None:
                yield from _of_arrays(f"{layer}weights {name!r}", arrays[0], arrays[1])
            elif arrays[0] is not None or arrays[1] is not None:
                yield f"{layer}weights {name!r} {'come' if arrays[0] is None else 'go'}"


def _of_fields(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*one, *other)):
        mine, theirs = one.get(name), other.get(name)
        if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
            yield from _of_arrays(name, mine, theirs)
        elif mine is not theirs and mine != theirs:
            yield f"{name}: {_short(mine)} -> {_short(theirs)}"


def _of_arrays(name: str, one: Array, other: Array) -> Iterator[str]:
    if one.shape != other.shape or one.dtype != other.dtype:
        yield f"{name}: {one.dtype} {one.shape} -> {other.dtype} {other.shape}"
    elif not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
        apart = one != other
        most = ""
        if one.dtype.kind == "f":
            far = np.abs(other.astype(np.float64) - one.astype(np.float64))[apart]
            most = f", by {far.max():.3g} at most"
        yield f"{name} {one.shape}: {np.count_nonzero(apart)} of {one.size} numbers{most}"


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
