"""Turns a model of padded inputs and their lengths into a model of ragged inputs."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from onernn.ir.graph import Graph, Node, Value

LENGTHS = "_lengths"
"""The suffix of the input of lengths that `onernn convert` adds for a padded input."""


def padded_inputs(graph: Graph) -> list[str]:
    """Returns the padded inputs: each NAME (N, T, ...) for which the model has an input
    NAME_lengths (N,).

    N and T must be dynamic.
    """
    inputs = {value.name: value for value in graph.inputs}
    result = []
    for name, value in inputs.items():
        lengths = inputs.get(name + LENGTHS)
        is_padded = not value.lod_depth and (value.shape or ())[:2] == (None, None)
        if is_padded and lengths is not None and len(lengths.shape or ()) == 1:
            result += [name] if (lengths.dtype or "").startswith("int") else []
    return result


def with_ragged_inputs(graph: Graph, names: Container[str]) -> Graph:
    """Returns the model in which these `padded_inputs` are ragged, without the inputs of lengths.

    An output (N, T, ...) that has the time axis of such an input also becomes ragged.
    """
    inputs, front, back = [], list[Node](), list[Node]()
    inner, times = dict[str, str](), dict[object, str]()
    declared = {value.name: value for value in graph.inputs}
    for value in graph.inputs:
        if value.name.removesuffix(LENGTHS) in names and value.name.endswith(LENGTHS):
            continue
        if value.name not in names:
            inputs.append(value)
            continue
        name, ends = value.name, value.name + LENGTHS
        inputs.append(Value(name, value.dtype, (None, *(value.shape or ())[2:]), 1))
        inner[name] = f"{name}@padded"
        front += [
            Node("SequencePad", (name,), (inner[name],)),
            Node("SequenceLengths", (name,), (f"{ends}@long",)),
            Node("Cast", (f"{ends}@long",), (ends,), {"to": declared[ends].dtype}),
        ]
        shape = graph.types[name].shape
        times[shape[1] if shape else None] = ends
    outputs = []
    for value in graph.outputs:
        shape = graph.types[value.name].shape or ()
        ends = times.get(shape[1], "") if len(shape) > 1 else ""
        if ends and value.name not in inner:
            inner[value.name] = f"{value.name}@padded"
            back.append(Node("SequenceUnpad", (inner[value.name], ends), (value.name,)))
        if ends:
            sizes = None if value.shape is None else (None, *value.shape[2:])
            value = replace(value, shape=sizes, lod_depth=1, names=(), ranges={})
        outputs.append(value)
    nodes = (*front, *(node.rename(inner) for node in graph.nodes), *back)
    return replace(graph, inputs=tuple(inputs), outputs=tuple(outputs), nodes=nodes)
