"""A graph as an ONNX file, checked before it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.common.writing import Progress, check_again, declare, write_nodes
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import MESSAGES, graphs, model_of, names_in, without_values
from onernn.adapters.onnx.table import KEY, encode
from onernn.adapters.onnx.write_layers import DOMAIN, has_one_direction
from onernn.adapters.onnx.write_nodes import write_node
from onernn.adapters.onnx.writer import GraphWriter, OnnxValue, value_info
from onernn.fuse_passes import fuse
from onernn.fuse_passes.expand_layers import ExpandLayers
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError, did_you_mean
from onernn.ir.files import replacing_all
from onernn.ir.graph import Graph, Value
from onernn.ir.ragged import Batch, Ragged
from onernn.ir.types import Type

# A graph of canonical operators as a portable ONNX model: standard operators, unless the graph
# holds one that only ONNX Runtime's own domain has.
#
# A ragged value is a padded tensor (N, T, ...) and its lengths (N,): see design/0008.

IR_VERSIONS = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10}
"""The opsets that are written, and the version of the format each came with."""
OPSET = 18
WEIGHT_DTYPES = ("float32", "float16", "bfloat16")


def to_onnx(
    graph: Graph,
    opset: int = OPSET,
    output_dtype: str = "float32",
    allow_functions: bool = False,
    progress: Progress | None = None,
) -> Any:
    """Returns the ModelProto of a graph that is `declared`.

    A ragged input NAME becomes NAME (batch, time, ...) and NAME_lengths (batch,) int32; ragged
    outputs come padded, with zeros after the sequences. Raises `UnsupportedError` naming an
    operator that ONNX cannot say.
    """
    if opset not in IR_VERSIONS:
        raise UnsupportedError(
            f"opset {opset}: {min(IR_VERSIONS)} to {max(IR_VERSIONS)} are written"
        )
    if output_dtype not in WEIGHT_DTYPES:
        names = ", ".join(WEIGHT_DTYPES)
        raise UnsupportedError(f"dtype {output_dtype!r}: expected one of {names}")
    graph = fuse(graph, (ExpandLayers(directions=has_one_direction),)).model
    model = MESSAGES.message("ModelProto")(ir_version=IR_VERSIONS[opset], producer_name="onernn")
    model.opset_import.add(domain="", version=opset)
    functions: dict[str, Any] | None = {} if allow_functions else None
    w = GraphWriter(model.graph, opset, graph, graph.types, functions)
    w.narrow = output_dtype
    _inputs(w, graph)
    given = {value.name for value in graph.inputs}
    outputs = [v.name if v.name in given else w.fresh(v.name) for v in graph.outputs]
    write_nodes(graph, partial(write_node, w), progress)
    for name, value in zip(outputs, graph.outputs, strict=True):
        _output(w, name, value)
    w.prune()
    if w.precisions:
        model.metadata_props.add(key=KEY, value=encode(w.precisions))
    for function in (functions or {}).values():
        model.functions.append(function)
    for domain in sorted(w.domains - {""}) + [DOMAIN] * bool(functions):
        model.opset_import.add(domain=domain, version=1)
    return model


def pad(inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Returns a batch as a written model takes it: a ragged NAME as NAME, padded, and
    NAME_lengths.
    """
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
        result = w.types[value.name]
        dtype, sizes = result.dtype or "", value.shape or ()
        if value.lod_depth:
            time = f"{value.name}_time" if several else "time"
            shape: list[Any] = ["batch", time, *sizes[1:]]
            lengths = w.fresh(f"{value.name}_lengths")
            if lengths != f"{value.name}_lengths":
                raise UnsupportedError(f"input {value.name}: {value.name}_lengths is one, too")
            w.proto.input.append(value_info(value.name, dtype, shape))
            w.proto.input.append(value_info(lengths, "int32", ["batch"]))
            w.bind(value.name, value.name, OnnxValue(w, lengths))
        else:
            named = [f"{value.name}_{k}" if size is None else size for k, size in enumerate(sizes)]
            w.proto.input.append(value_info(value.name, dtype, named))
            w.bind(value.name, value.name)


def _output(w: GraphWriter, name: str, output: Value) -> None:
    result = w.value(output.name)
    if result.name != name:
        held = result.end_with() if result.lengths else result
        w.add("Identity", held.name, outputs=(name,))
    sizes = w.types[output.name].counts
    shape = (None, None, *sizes[1:]) if result.lengths else sizes
    w.proto.output.append(value_info(name, result.dtype, shape))


# Whether what was written is a model: onernn reads it again, and onnx's own checker examines it.


def check_written(
    model: Any,
    path: Path,
    outputs: Sequence[Type],
    note: Callable[[str], None],
) -> None:
    """Raises `UnsupportedError` if a ModelProto is not what ``path`` may hold.

    It is read again, see `check_again`, and examined by onnx's checker with its type
    inference. Without the onnx package, or with one that is older than the opset, ``note`` says
    that it was not.
    """
    check_again(lambda: lower(model_of(model, path)), path, outputs)
    try:
        import onnx
    except ImportError:
        return note(f"only onernn checked {path}; for onnx's checker: pip install onnx")
    (opset,) = (each.version for each in model.opset_import if not each.domain)
    if opset > onnx.defs.onnx_opset_version():
        return note(f"only onernn checked {path}: onnx {onnx.__version__} is older than the opset")
    try:
        onnx.checker.check_model(without_values(model).SerializeToString(), full_check=True)
    except Exception as error:  # its own kinds, derived from nothing narrower
        said = " ".join(str(error).split())[:1000]
        raise UnsupportedError(f"{path} is not written, onnx's checker says: {said}") from error


# An ``.onnx`` file of a graph: written, checked, and then put in its place.

_MOST = 2**31 - 2**20  # bytes of one protobuf message, with room for everything except tensors
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

    The model is checked before there is a file, see `check_written`. Raises
    `UnsupportedError` naming what ONNX cannot say.
    """
    graph = declare(graph, inputs)
    written = to_onnx(graph, opset, output_dtype, allow_functions, progress)
    rename(written, names or {})
    check_written(written, path, [graph.types[value.name] for value in graph.outputs], note)
    save(written, path)


def rename(model: Any, names: Mapping[str, str]) -> None:
    """Gives inputs and outputs other names. Raises `UnsupportedError` for those it has not."""
    faces = {value.name for value in (*model.graph.input, *model.graph.output)}
    if unknown := sorted(set(names) - faces):
        hint = did_you_mean(unknown[0], faces)
        raise UnsupportedError(
            f"names: no input or output {unknown}; there are {sorted(faces)}{hint}"
        )
    new = list(names.values())
    if bad := sorted(
        {n for n in new if not n or n in names_in(model) - set(names) or new.count(n) > 1}
    ):
        raise UnsupportedError(f"names: {bad} stand there already, or twice")
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    for graph in graphs(model.graph):
        for node in graph.node:
            for field in (node.input, node.output):
                field[:] = [names.get(name, name) for name in field]


def save(model: Any, path: Path, *, most: int = _MOST) -> None:
    """Writes the file; one of more than ``most`` bytes keeps its large tensors in ``path.data``.

    An older file is replaced when all is written.
    """
    size = sum(len(each.raw_data) for graph in graphs(model.graph) for each in graph.initializer)
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
