"""Writes a graph as an ONNX file; the model is checked before it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.common.lowering import Names
from onernn.adapters.common.writing import Progress, check_again, declare, write_nodes
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.opsets import FUNCTIONS, IR_VERSIONS, needs
from onernn.adapters.onnx.read import DTYPES, MESSAGES, graphs, model_of, names_in, without_values
from onernn.adapters.onnx.table import KEY, encode
from onernn.adapters.onnx.write_layers import DOMAIN, has_one_direction
from onernn.adapters.onnx.write_nodes import write_node
from onernn.adapters.onnx.writer import GraphWriter, OnnxValue, WrittenModel, value_info
from onernn.fuse_passes import fuse
from onernn.fuse_passes.expand_layers import ExpandLayers
from onernn.fuse_passes.ragged_inputs import LENGTHS
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, UnsupportedError, did_you_mean
from onernn.ir.files import replacing_all
from onernn.ir.graph import Graph, Value
from onernn.ir.ragged import Batch, Ragged
from onernn.ir.types import Type

# Turns a graph of canonical operators into a portable ONNX model. The model has only standard
# operators, unless the graph contains an operator that exists only in ONNX Runtime's own domain.
#
# A ragged value becomes a padded tensor (N, T, ...) and its lengths (N,): see design/0008.

WEIGHT_DTYPES = ("float32", "float16", "bfloat16")


def to_onnx(
    graph: Graph,
    opset: int | None = None,
    output_dtype: str = "float32",
    allow_functions: bool = False,
    progress: Progress | None = None,
) -> Any:
    """Returns the ModelProto of a graph with declared types.

    ``opset``: None for the lowest opset in which ONNX and ONNX Runtime support all operators. A
    ragged input NAME becomes NAME (batch, time, ...) and NAME_lengths (batch,) int32; if several
    inputs are ragged, each has its own names for batch and time. Other sizes keep their names.
    Ragged outputs are padded, with zeros after the sequences. Raises `UnsupportedError` that names
    each operator that ONNX, or the opset, cannot express.
    """
    if opset is not None and opset not in IR_VERSIONS:
        raise UnsupportedError(f"opset {opset}: expected {min(IR_VERSIONS)} to {max(IR_VERSIONS)}")
    if output_dtype not in WEIGHT_DTYPES:
        names = ", ".join(WEIGHT_DTYPES)
        raise UnsupportedError(f"dtype {output_dtype!r}: expected one of {names}")
    graph = fuse(graph, (ExpandLayers(directions=has_one_direction),)).model
    chosen = opset or min(IR_VERSIONS)
    while True:
        shared = WrittenModel(chosen, output_dtype, {} if allow_functions else None)
        model, never, lacks = _write(graph, shared, progress, fixed=opset is not None)
        if never and opset is None:
            raise UnsupportedError(f"{graph.name} cannot be written:", never)
        if never or opset and lacks:
            raise UnsupportedError(
                f"{graph.name} cannot be written as opset {chosen}:", (*never, *lacks)
            )
        if not lacks:
            return model
        chosen = max(lacks.values())


def _write(
    graph: Graph, shared: WrittenModel, progress: Progress | None, *, fixed: bool
) -> tuple[Any, Sequence[Refusal], dict[Refusal, int]]:
    """Returns the ModelProto, the refusals that hold in all opsets, and the refusals of this opset.

    Each refusal of this opset is mapped to the first opset without it. ``fixed``: whether the
    caller chose the opset; limits of ONNX Runtime then do not count.
    """
    model = MESSAGES.message("ModelProto")(producer_name="onernn")
    w = GraphWriter(shared, graph, graph.types, model.graph)
    _inputs(w, graph)
    given = {value.name for value in graph.inputs}
    outputs = [v.name if v.name in given else w.fresh(v.name) for v in graph.outputs]
    never: Sequence[Refusal] = ()
    try:
        write_nodes(graph, partial(write_node, w), w.stand_in, progress)
    except UnsupportedError as error:
        never = error.refusals
    else:
        for name, value in zip(outputs, graph.outputs, strict=True):
            _output(w, name, value)
        w.prune()
    if shared.precisions:
        model.metadata_props.add(key=KEY, value=encode(shared.precisions))
    functions = shared.functions or {}
    model.functions.extend(functions.values())
    model.ir_version = max(IR_VERSIONS[shared.opset], FUNCTIONS * bool(functions))
    versions = {"": shared.opset, **dict.fromkeys(sorted(shared.domains - {""}), 1)}
    versions |= {DOMAIN: 1} if functions else {}
    for domain, version in versions.items():
        model.opset_import.add(domain=domain, version=version)
    dtypes = {each.name: DTYPES[each.type.tensor_type.elem_type] for each in model.graph.input}
    lacks = {}
    for need in (*shared.needs, *needs(model.graph, dtypes, functions)):
        if need.opset > shared.opset and not (need.runtime and fixed):
            where = shared.labels.get(need.value, need.value)
            lacks[Refusal(f"{need.reason} needs opset {need.opset}", where)] = need.opset
    return model, never, lacks


def pad(inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Returns inputs in the form that a written model takes: a ragged NAME becomes NAME, padded,
    and NAME_lengths.
    """
    feed: dict[str, Array] = {**inputs}
    for name, value in inputs.items():
        if isinstance(value, Ragged):
            feed[name] = value.to_padded(time=max(1, int(value.lengths.max(initial=0))))
            feed[name + LENGTHS] = value.lengths.astype(np.int32)
    return feed


def _inputs(w: GraphWriter, graph: Graph) -> None:
    for value in graph.inputs:
        w.fresh(value.name)
    several = sum(value.lod_depth > 0 for value in graph.inputs) > 1
    taken = Names(dict.fromkeys((n for v in graph.inputs for n in v.named.values()), 0))
    for value in graph.inputs:
        name, sizes, dtype = value.name, value.shape or (), w.types[value.name].dtype or ""
        shape: list[Any] = [
            value.named.get(k) or taken.fresh(f"{name}_{k}") if size is None else size
            for k, size in enumerate(sizes)
        ]
        lengths = None
        if value.lod_depth:
            batch, time = (f"{name}_{part}" if several else part for part in ("batch", "time"))
            shape = [batch, time, *sizes[1:]]
            lengths = OnnxValue(w, w.fresh(name + LENGTHS))
            if lengths.name != name + LENGTHS:
                raise UnsupportedError(
                    f"input {name}: expected no other value {name}_lengths, the name of its lengths"
                    " in the file; rename one of them"
                )
        w.proto.input.append(value_info(name, dtype, shape))
        if lengths:
            w.proto.input.append(value_info(lengths.name, "int32", [batch]))
        w.bind(name, name, lengths)


def _output(w: GraphWriter, name: str, output: Value) -> None:
    result, w.model.label = w.value(output.name), f"output {name!r}"
    if result.name != name:
        held = result.end_with() if result.lengths else result
        w.add("Identity", held.name, outputs=(name,))
    sizes = w.types[output.name].counts
    shape = (None, None, *sizes[1:]) if result.lengths else sizes
    w.proto.output.append(value_info(name, result.dtype, shape))


# The check of a written model: onernn reads it again, and onnx's own checker examines it.


def check_written(
    model: Any,
    path: Path,
    outputs: Sequence[Type],
    note: Callable[[str], None],
) -> None:
    """Raises `UnsupportedError` if a ModelProto must not be written to ``path``.

    `check_again` reads the model again, and onnx's checker examines it with type inference. If the
    onnx package is missing or older than the opset, only onernn checks the model, and ``note`` is
    called with a remark.
    """
    check_again(lambda: lower(model_of(model, path)), path, outputs)
    try:
        import onnx
    except ImportError:
        return note(f"only onernn checked {path.name}; for onnx's checker: pip install onnx")
    (opset,) = (each.version for each in model.opset_import if not each.domain)
    if opset > onnx.defs.onnx_opset_version():
        return note(
            f"only onernn checked {path.name}: onnx {onnx.__version__} is older than the opset"
        )
    try:
        onnx.checker.check_model(without_values(model).SerializeToString(), full_check=True)
    except Exception as error:  # onnx's errors have no common base class
        said = " ".join(str(error).split())[:1000]
        reason = f"{path} is not written, please report it; onnx's checker says: {said}"
        raise UnsupportedError(reason) from error


# The ``.onnx`` file is written, and moved to its path when it is complete.

_MOST = 2**31 - 2**20  # bytes of tensors in one protobuf message, which may have 2 GB
_ALIGNED = 64


def write_onnx(
    graph: Graph,
    path: Path,
    *,
    opset: int | None,
    output_dtype: str,
    names: Mapping[str, str] | None,
    allow_functions: bool,
    inputs: Mapping[str, Batch] | None,
    progress: Progress | None,
    note: Callable[[str], None],
) -> None:
    """Writes a graph that is already fused.

    ``opset``: the version of ONNX's operators; None for the lowest version that supports the graph.
    ``output_dtype``: the dtype in which weights of two axes or more are stored, float32, float16 or
    bfloat16; the model computes with them in float32. ``names``: new names of inputs and outputs.
    ``allow_functions``: layers that ONNX's operators cannot express may become functions of the
    model. ``inputs``: example inputs, which supply types that the graph does not declare.

    `check_written` checks the model before the file is written. Raises `UnsupportedError` that
    names each operator that ONNX cannot express.
    """
    graph = declare(graph, inputs)
    written = to_onnx(graph, opset, output_dtype, allow_functions, progress)
    rename(written, names or {})
    check_written(written, path, [graph.types[value.name] for value in graph.outputs], note)
    save(written, path)


def rename(model: Any, names: Mapping[str, str]) -> None:
    """Renames inputs and outputs. Raises `UnsupportedError` for names that the model does
    not have.
    """
    values = (*model.graph.input, *model.graph.output)
    known = {value.name for value in values}
    if unknown := sorted(set(names) - known):
        hint = did_you_mean(unknown[0], known)
        raise UnsupportedError(
            f"names: expected inputs or outputs, {sorted(known)}, got {unknown}{hint}"
        )
    new, others = list(names.values()), names_in(model) - set(names)
    if bad := sorted({n for n in new if not n or n in others or new.count(n) > 1}):
        raise UnsupportedError(
            f"names: expected new names, not empty and each used once in the model, got {bad}"
        )
    for value in values:
        value.name = names.get(value.name, value.name)
    for graph in graphs(model.graph):
        for node in graph.node:
            for field in (node.input, node.output):
                field[:] = [names.get(name, name) for name in field]


def save(model: Any, path: Path, *, most: int = _MOST) -> None:
    """Writes a ModelProto to ``path``. If it has more than ``most`` bytes of tensors, the large
    tensors go to ``path.data``.

    Older files are replaced after everything is written.
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
