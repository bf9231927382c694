"""A graph of canonical operators as a portable ONNX model: standard operators, unless the graph
holds one that only ONNX Runtime's own domain has.

A ragged value is a padded tensor (N, T, ...) and its lengths (N,): see design/0008.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.declaring import Progress, write_nodes
from onernn.adapters.onnx.messages import MESSAGES
from onernn.adapters.onnx.precision import KEY, encoded
from onernn.adapters.onnx.write.nodes import write_node
from onernn.adapters.onnx.write.padding import OnnxValue
from onernn.adapters.onnx.write.protobuf import value_info
from onernn.adapters.onnx.write.recurrent import DOMAIN, has_one_direction
from onernn.adapters.onnx.write.writer import GraphWriter
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph, Value
from onernn.core.ragged import Ragged
from onernn.fuse_passes import fuse
from onernn.fuse_passes.expand_layers import ExpandLayers

IR_VERSIONS = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10}
"""The opsets that are written, and the version of the format each came with."""
OPSET = 18


def to_onnx(
    graph: Graph,
    *,
    opset: int = OPSET,
    allow_functions: bool = False,
    progress: Progress | None = None,
) -> Any:
    """The ModelProto of a graph that is `declared`.

    A ragged input NAME becomes NAME (batch, time, ...) and NAME_lengths (batch,) int32; ragged
    outputs come padded, zeros behind the sentences. Raises `UnsupportedError` naming an operator
    that ONNX cannot say.
    """
    if opset not in IR_VERSIONS:
        raise UnsupportedError(
            f"opset {opset}: {min(IR_VERSIONS)} to {max(IR_VERSIONS)} are written"
        )
    graph = fuse(graph, (ExpandLayers(directions=has_one_direction),)).model
    model = MESSAGES.message("ModelProto")(ir_version=IR_VERSIONS[opset], producer_name="onernn")
    model.opset_import.add(domain="", version=opset)
    functions: dict[str, Any] | None = {} if allow_functions else None
    w = GraphWriter(model.graph, opset, graph, graph.types, functions)
    _inputs(w, graph)
    given = {value.name for value in graph.inputs}
    outputs = [v.name if v.name in given else w.fresh(v.name) for v in graph.outputs]
    write_nodes(graph, partial(write_node, w), progress)
    for name, value in zip(outputs, graph.outputs, strict=True):
        _output(w, name, value)
    w.prune()
    if w.precisions:
        model.metadata_props.add(key=KEY, value=encoded(w.precisions))
    for function in (functions or {}).values():
        model.functions.append(function)
    for domain in sorted(w.domains - {""}) + [DOMAIN] * bool(functions):
        model.opset_import.add(domain=domain, version=1)
    return model


def padded(inputs: Mapping[str, Any]) -> dict[str, Array]:
    """A batch as a written model takes it: a ragged NAME as NAME, padded, and NAME_lengths."""
    feed: dict[str, Array] = {}
    for name, value in inputs.items():
        feed[name] = value
        if isinstance(value, Ragged):
            feed[name] = value.to_padded(time=max(1, int(value.lengths.max(initial=0))))
            feed[f"{name}_lengths"] = value.lengths.astype(np.int32)
    return feed


def _inputs(w: GraphWriter, graph: Graph) -> None:
    for value in graph.inputs:
        w.fresh(value.name)
    several = sum(value.lod_depth > 0 for value in graph.inputs) > 1
    for value in graph.inputs:
        found = w.types[value.name]
        dtype, sizes = found.dtype or "", value.shape or ()
        if value.lod_depth:
            time = f"{value.name}_time" if several else "time"
            shape: list[Any] = ["batch", time, *sizes[1:]]
            lengths = w.fresh(f"{value.name}_lengths")
            if lengths != f"{value.name}_lengths":
                raise UnsupportedError(f"input {value.name}: {value.name}_lengths is one, too")
            w.proto.input.append(value_info(value.name, dtype, shape))
            w.proto.input.append(value_info(lengths, "int32", ["batch"]))
            w.bind(value.name, OnnxValue(value.name, dtype, len(sizes), lengths))
        else:
            named = [f"{value.name}_{k}" if size is None else size for k, size in enumerate(sizes)]
            w.proto.input.append(value_info(value.name, dtype, named))
            w.bind(value.name, OnnxValue(value.name, dtype, len(sizes)))


def _output(w: GraphWriter, name: str, output: Value) -> None:
    found = w.value(output.name)
    if found.data != name and found.lengths:
        w.add("Identity", w.filled(found), outputs=(name,))
    elif found.data != name:
        w.add("Identity", found.data, outputs=(name,))
    sizes = w.types[output.name].counts
    shape = (None, None, *sizes[1:]) if found.lengths else sizes
    w.proto.output.append(value_info(name, found.dtype, shape))
