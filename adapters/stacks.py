"""The recurrent layers of a file, as whole stacks: what weights are converted from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from onernn.adapters.adapter import StrPath
from onernn.adapters.loading import load
from onernn.adapters.reading import reading
from onernn.adapters.registry import ADAPTERS
from onernn.core.graph import Graph, Node, Value
from onernn.core.rnn import Recurrent
from onernn.fuse_passes import fuse
from onernn.reorders.layers import PivotLayer


def read_stacks(
    path: StrPath, params: StrPath | None = None, semantics: str = "documented"
) -> Mapping[str, PivotLayer]:
    """The stacks of a file of weights by the names of their modules, or those of a model, by the
    values that they make. Raises what `load` does.
    """
    found = (each.weights.get(Path(path).suffix.lower()) for each in ADAPTERS)
    if read := next(filter(None, found), None):
        with reading(path):
            return read(path)
    fused = fuse(without_states(fuse(load(path, params, semantics)).model)).model
    nodes = [Recurrent.of(node) for node in fused.nodes if node.op == "Rnn"]
    return {each.y: PivotLayer.of(each.spec, each.weights) for each in nodes}


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
            y = rnn.y or f"{node.outputs[1]}/y"
            node = Recurrent(rnn.spec, rnn.weights, rnn.x, y, attention=rnn.attention).node()
            tops += [] if model.is_read(rnn.y) else [Value(y)]
        nodes.append(node)
    gone = {value.name for value in inputs}
    outputs = (*(value for value in model.outputs if value.name not in gone), *tops)
    return replace(model, inputs=(*model.inputs, *inputs), outputs=outputs, nodes=tuple(nodes))
