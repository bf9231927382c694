"""A graph of canonical operators as a portable ONNX model: standard operators only.

A ragged value is a padded tensor (N, T, ...) and its lengths (N,): see design/0008.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onernn.adapters.onnx.messages import MESSAGES
from onernn.adapters.onnx.write.decoding import loop_of_scan
from onernn.adapters.onnx.write.offsets import OWN
from onernn.adapters.onnx.write.padding import Batch
from onernn.adapters.onnx.write.protobuf import GraphProto, number_of, value_info
from onernn.adapters.onnx.write.recurrent import DOMAIN, rnn
from onernn.adapters.onnx.write.rowwise import write_ragged
from onernn.adapters.onnx.write.sequences import SENTENCES
from onernn.adapters.onnx.write.writer import Writing, dense
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph, Node, Value
from onernn.core.ragged import Ragged
from onernn.core.types import UNKNOWN, Type
from onernn.operators import OPERATORS

REDUCTIONS = [name for name in OPERATORS if name.startswith("Reduce")]

IR_VERSIONS = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10}
"""The opsets that are written, and the version of the format each came with."""
OPSET = 18

Progress = Callable[[str, int, int], None]


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
    model = MESSAGES.message("ModelProto")(ir_version=IR_VERSIONS[opset], producer_name="onernn")
    model.opset_import.add(domain="", version=opset)
    functions: dict[str, Any] | None = {} if allow_functions else None
    w = Writing(
        GraphProto(model.graph), opset, graph.types, graph.constants, functions, _wanted(graph)
    )
    _inputs(w, graph)
    given = {value.name for value in graph.inputs}
    outputs = [v.name if v.name in given else w.graph.fresh(v.name) for v in graph.outputs]
    for at, node in enumerate(graph.nodes):
        if progress is not None:
            progress("writing", at, len(graph.nodes))
        try:
            _node(w, node)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"{graph.name} cannot be written: {node.label}: {error}"
            ) from error
    for name, value in zip(outputs, graph.outputs, strict=True):
        _output(w, name, value)
    for function in (functions or {}).values():
        model.functions.append(function)
    if functions:
        model.opset_import.add(domain=DOMAIN, version=1)
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


def _wanted(graph: Graph) -> frozenset[str]:
    """The values that anybody reads."""
    read = {name for node in graph.nodes for name in node.inputs}
    return frozenset(read | {value.name for value in graph.outputs})


def _inputs(w: Writing, graph: Graph) -> None:
    for value in graph.inputs:
        w.graph.fresh(value.name)
    several = sum(value.lod_depth > 0 for value in graph.inputs) > 1
    for value in graph.inputs:
        found = w.types[value.name]
        dtype, sizes = found.dtype or "", value.shape or ()
        if value.lod_depth:
            time = f"{value.name}_time" if several else "time"
            shape: list[Any] = ["batch", time, *sizes[1:]]
            lengths = w.graph.fresh(f"{value.name}_lengths")
            if lengths != f"{value.name}_lengths":
                raise UnsupportedError(f"input {value.name}: {value.name}_lengths is one, too")
            w.graph.proto.input.append(value_info(value.name, dtype, shape))
            w.graph.proto.input.append(value_info(lengths, "int32", ["batch"]))
            w.bind(value.name, Batch(value.name, dtype, len(sizes), lengths))
        else:
            named = [f"{value.name}_{k}" if size is None else size for k, size in enumerate(sizes)]
            w.graph.proto.input.append(value_info(value.name, dtype, named))
            w.bind(value.name, Batch(value.name, dtype, len(sizes)))


def _output(w: Writing, name: str, value: Value) -> None:
    batch = w.batch(value.name)
    if batch.data != name and batch.lengths:
        w.graph.add("Identity", w.batches.filled(batch), outputs=(name,))
    elif batch.data != name:
        w.graph.add("Identity", batch.data, outputs=(name,))
    known = value.shape if value.shape and len(value.shape) == batch.rank else (None,) * batch.rank
    shape = (None, None, *known[1:]) if batch.lengths else known
    w.graph.proto.output.append(value_info(name, batch.dtype, shape))


def _node(w: Writing, node: Node) -> None:
    inputs = w.batches_of(node)
    if node.op in _OURS:
        return _OURS[node.op](w, node, inputs)
    since = OPERATORS[node.op].since
    if w.opset < since:
        raise UnsupportedError(f"needs opset {since}, {w.opset} is to be written")
    if any(batch and batch.lengths for batch in inputs):
        return write_ragged(w, node, inputs)
    if node.op in _DENSE:
        return _DENSE[node.op](w, node, inputs)
    _plain(w, node, inputs)


def _plain(w: Writing, node: Node, inputs: list[Batch | None], **more: Any) -> None:
    """The operator as it stands."""
    tensors = [batch.data if batch else "" for batch in inputs]
    outs = [w.graph.fresh(name) if name else "" for name in node.outputs]
    w.graph.add(node.op, *tensors, outputs=outs, **(w.attributes(node) | more))
    for at, out in enumerate(outs):
        w.give(node, out, at=at)


def _split(w: Writing, node: Node, inputs: list[Batch | None]) -> None:
    whole = len(inputs) < 2 or inputs[1] is None
    more = {"num_outputs": len(node.outputs)} if whole and w.opset >= 18 else {}
    _plain(w, node, inputs, **more)


def _reduce(w: Writing, node: Node, inputs: list[Batch | None]) -> None:
    if w.opset >= 18 or node.op == "ReduceSum":
        return _plain(w, node, inputs)
    if node.attributes.get("noop_with_empty_axes", 0):
        raise UnsupportedError("noop_with_empty_axes needs opset 18")
    more: dict[str, Any] = {"keepdims": node.attributes.get("keepdims", 1)}
    if node.input(1) and (axes := w.constant(node.inputs[1], "axes")).size:
        more["axes"] = axes.reshape(-1).tolist()
    out = w.emit(node.op, dense(inputs[0], "its input"), **more)
    w.give(node, out)


def _dropout(w: Writing, node: Node, inputs: list[Batch | None]) -> None:
    if any(node.outputs[1:]):
        raise UnsupportedError("the mask of a Dropout is not written")
    w.give(node, dense(inputs[0], "its input"))


def _cast_like(w: Writing, node: Node, inputs: list[Batch | None]) -> None:
    """A Cast where the dtype is known: CastLike came with opset 15."""
    dtype = w.types[node.outputs[0]].dtype
    if not dtype:
        return _plain(w, node, inputs)
    w.give(node, w.emit("Cast", dense(inputs[0], "its input"), to=number_of(dtype)))


def _with_body(w: Writing, node: Node, inputs: list[Batch | None]) -> None:
    """Scan, Loop and If: what their graphs take from outside, they see by name."""
    if node.op == "Scan" and _grows(w, node):
        node, inputs = loop_of_scan(w, node, inputs)
    tensors = [batch.data if batch else "" for batch in inputs]
    attributes = dict(node.attributes)
    bodies = {k: v for k, v in attributes.items() if isinstance(v, Graph)}
    if node.op == "If":
        count = attributes["then_taken"]
        taken = {"then_branch": tensors[1 : 1 + count], "else_branch": tensors[1 + count :]}
        own, more = 1, {}
    else:
        body = attributes["body"]
        if node.op == "Scan":
            own = attributes["states"] + attributes["scanned"]
            more = {"num_scan_inputs": attributes["scanned"]}
            for key in ("input_axes", "input_directions", "output_axes", "output_directions"):
                more[f"scan_{key}"] = attributes[key]
        else:
            own, more = 2 + attributes["carried"], {}
        taken = {"body": tensors[own:]}
    for key, body in bodies.items():
        more[key] = _body(w, body, taken[key], node.op == "Loop")
    outs = [w.graph.fresh(name or "unused") for name in node.outputs]
    w.graph.add(node.op, *tensors[:own], outputs=outs, **more)
    for at, out in enumerate(outs):
        w.give(node, out, at=at)


def _grows(w: Writing, node: Node) -> bool:
    """Whether a state changes its shape, which ONNX's Scan forbids; in bodies nobody knows."""
    states = zip(node.inputs, node.outputs[: node.attributes["states"]], strict=False)
    types = [(w.types[one], w.types[other]) for one, other in states if other]
    return any(one.shape is None or one.shape != other.shape for one, other in types)


def _body(w: Writing, body: Graph, taken: list[str], loops: bool) -> GraphProto:
    types: Mapping[str, Type] = defaultdict(lambda: UNKNOWN)
    inner = Writing(w.graph.body(), w.opset, types, body.constants, w.functions, _wanted(body))
    own = len(body.inputs) - len(taken)
    names = [inner.graph.fresh(value.name) for value in body.inputs[:own]] + taken
    for value, name in zip(body.inputs, names, strict=True):
        inner.bind(value.name, Batch(name, "", 0))
    for node in body.nodes:
        _node(inner, node)
    # An output that is an input, or stands there twice, needs a node of its own.
    outs = [inner.emit("Identity", inner.batch(value.name).data) for value in body.outputs]
    inner.graph.faces(names[:own], outs)
    if loops:  # ONNX Runtime wants to know what turn and condition are
        for at, dtype in enumerate(("int64", "bool")):
            inner.graph.proto.input[at].CopyFrom(value_info(names[at], dtype, ()))
    return inner.graph


_OURS = {**OWN, **SENTENCES, "Rnn": rnn}
_DENSE: dict[str, Callable[[Writing, Node, list[Batch | None]], None]] = {
    "Split": _split,
    "Dropout": _dropout,
    "CastLike": _cast_like,
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(("If", "Loop", "Scan"), _with_body),
}
