"""An ``.onnx`` file of a graph: written, checked, and then put in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.declaring import Progress, declared
from onernn.adapters.onnx.messages import NUMBERS
from onernn.adapters.onnx.write.checking import check_written
from onernn.adapters.onnx.write.model import to_onnx
from onernn.adapters.onnx.write.protobuf import bfloat16_tensor, tensor
from onernn.core.errors import UnsupportedError, did_you_mean
from onernn.core.files import replacing_all
from onernn.core.graph import Graph
from onernn.core.ragged import Batch

WEIGHT_DTYPES = ("float32", "float16", "bfloat16")
_MOST = 2**31 - 2**20  # bytes of one protobuf message, with room for all that is no tensor
_ALIGNED = 64


def write_onnx(
    graph: Graph,
    path: Path,
    *,
    opset: int,
    output_dtype: str,
    names: Mapping[str, str] | None,
    allow_functions: bool,
    inputs: Mapping[str, Batch] | None,
    progress: Progress | None,
    note: Callable[[str], None],
) -> None:
    """Writes a graph that is fused already.

    ``opset``: that of ONNX's operators. ``output_dtype``: in what weights of two axes or more are
    stored, float32, float16 or bfloat16; they are computed with in float32. ``names``: new names
    of inputs and outputs. ``allow_functions``: what ONNX's operators cannot say may become a
    function of the model's own. ``inputs``: a batch that the graph runs on.

    The model is checked before there is a file, see `adapters.onnx.write.checking`. Raises
    `UnsupportedError` naming what ONNX cannot say.
    """
    graph = declared(graph, inputs)
    written = to_onnx(graph, opset=opset, allow_functions=allow_functions, progress=progress)
    narrow_weights(written, output_dtype)
    rename(written, names or {})
    check_written(written, path, [graph.types[value.name] for value in graph.outputs], note)
    save(written, path)


def narrow_weights(model: Any, dtype: str) -> None:
    """Stores float32 matrices in ``dtype``; they are widened where they are used.

    Vectors and numbers stay. Raises `UnsupportedError` for a weight that would overflow.
    """
    if dtype not in WEIGHT_DTYPES:
        raise UnsupportedError(f"dtype {dtype!r}: expected one of {', '.join(WEIGHT_DTYPES)}")
    if dtype == "float32":
        return
    for graph in list(_graphs(model.graph)):
        casts = []
        for at, each in enumerate(graph.initializer):
            if each.data_type != NUMBERS["float32"] or len(each.dims) < 2:
                continue
            array = np.frombuffer(each.raw_data, "<f4").reshape(tuple(each.dims))
            name, stored = each.name, f"{each.name}/{dtype}"
            with np.errstate(over="ignore"):
                half = array.astype(np.float16)
            if dtype == "float16" and not np.array_equal(np.isfinite(half), np.isfinite(array)):
                raise UnsupportedError(f"weight {name!r} does not fit into float16; use bfloat16")
            small = tensor(half, stored) if dtype == "float16" else bfloat16_tensor(array, stored)
            graph.initializer[at].CopyFrom(small)
            casts.append((stored, name))
        nodes = list(graph.node)
        del graph.node[:]
        for stored, name in casts:
            node = graph.node.add(op_type="Cast", input=[stored], output=[name])
            node.attribute.add(name="to", type=2, i=NUMBERS["float32"])
        graph.node.extend(nodes)


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph, and those inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def rename(model: Any, names: Mapping[str, str]) -> None:
    """Gives inputs and outputs other names. Raises `UnsupportedError` for those it has not."""
    faces = {value.name for value in (*model.graph.input, *model.graph.output)}
    taken = set(faces)
    for graph in _graphs(model.graph):
        taken.update(name for node in graph.node for name in node.output)
        taken.update(each.name for each in (*graph.initializer, *graph.input))
    if unknown := sorted(set(names) - faces):
        hint = did_you_mean(unknown[0], faces)
        raise UnsupportedError(
            f"names: no input or output {unknown}; there are {sorted(faces)}{hint}"
        )
    new = list(names.values())
    if bad := sorted({n for n in new if not n or n in taken - set(names) or new.count(n) > 1}):
        raise UnsupportedError(f"names: {bad} stand there already, or twice")
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    for graph in _graphs(model.graph):
        for node in graph.node:
            for field in (node.input, node.output):
                field[:] = [names.get(name, name) for name in field]


def save(model: Any, path: Path, *, most: int = _MOST) -> None:
    """Writes the file; one of more than ``most`` bytes keeps its large tensors in ``path.data``.

    What stood there is replaced when all is written.
    """
    size = sum(len(each.raw_data) for graph in _graphs(model.graph) for each in graph.initializer)
    beside = path.with_name(f"{path.name}.data")
    with replacing_all([path, beside] if size > most else [path]) as (stream, *data):
        if data:
            _move_out(model, beside.name, data[0])
        stream.write(model.SerializeToString())


def _move_out(model: Any, location: str, stream: Any) -> None:
    at = 0
    for each in model.graph.initializer:
        if len(each.raw_data) < 1024:
            continue
        at += stream.write(b"\0" * (-at % _ALIGNED))
        places = {"location": location, "offset": str(at), "length": str(len(each.raw_data))}
        at += stream.write(each.raw_data)
        for key, value in places.items():
            each.external_data.add(key=key, value=value)
        each.data_location = 1
        each.ClearField("raw_data")
