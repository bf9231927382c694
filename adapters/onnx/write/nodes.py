"""The node of ONNX that each node of a graph becomes."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.adapters.onnx.lower.rules import became_inputs
from onernn.adapters.onnx.write import decoding, offsets, recurrent, rowwise, sequences
from onernn.adapters.onnx.write.padding import OnnxValue
from onernn.adapters.onnx.write.protobuf import number_of, value_info
from onernn.adapters.onnx.write.scan_as_loop import loop_of_scan
from onernn.adapters.onnx.write.writer import GraphWriter, Inputs, Rules, dense
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph, Node
from onernn.operators import OPERATORS
from onernn.operators.control import types_inside

RULES = Rules(**offsets.RULES, **sequences.RULES)
RULES.update(Rnn=recurrent.rnn, CrfDecode=decoding.crf_decode)
DENSE = Rules()
"""What is not copied where no input is ragged."""


def write_node(w: GraphWriter, node: Node) -> None:
    """Raises `UnsupportedError` for what ONNX cannot say."""
    inputs, since = w.inputs_of(node), OPERATORS[node.op].since
    if w.opset < since:
        raise UnsupportedError(f"needs opset {since}, {w.opset} is to be written")
    if node.op in RULES:
        RULES[node.op](w, node, inputs)
    elif not since:
        raise UnsupportedError(f"ONNX has no {node.op}")
    elif any(value and value.lengths for value in inputs):
        rowwise.write_ragged(w, node, inputs)
    elif node.op in DENSE:
        DENSE[node.op](w, node, inputs)
    elif w.opset < became_inputs(node.op)[0]:
        _with_axes_as_attribute(w, node, inputs)
    else:
        _copy(w, node, inputs)


def _copy(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """The operator as it stands."""
    w.copy(node, _tensors(inputs), **w.attributes(node))


def _tensors(inputs: Inputs) -> list[str]:
    return [value.data if value else "" for value in inputs]


def _with_axes_as_attribute(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """A Reduce operator of opsets before 18."""
    if node.at.noop_with_empty_axes:
        raise UnsupportedError("noop_with_empty_axes needs opset 18")
    more: dict[str, Any] = {"keepdims": node.at.keepdims}
    if node.input(1) and (axes := w.array(node.inputs[1], "axes")).size:
        more["axes"] = axes.reshape(-1).tolist()
    w.give(node, w.emit(node.op, dense(inputs[0], "its input"), **more))


@RULES("Dropout")
def _dropout(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    if any(node.outputs[1:]):
        raise UnsupportedError("the mask of a Dropout is not written")
    if inputs[0]:
        w.give(node, inputs[0].data, inputs[0].lengths)


@DENSE("CastLike")
def _cast_like(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """A Cast where the dtype is known: CastLike came with opset 15."""
    dtype = w.types[node.outputs[0]].dtype
    if not dtype:
        return _copy(w, node, inputs)
    w.give(node, w.emit("Cast", dense(inputs[0], "its input"), to=number_of(dtype)))


@DENSE("QuantizeLinear", "DequantizeLinear")
def _quantized(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    dtypes = {w.types[name].dtype for name in (*node.inputs, *node.outputs) if name}
    if w.opset < 21 and dtypes & {"uint16", "int16"}:
        raise UnsupportedError("numbers of 16 bits need opset 21")
    _copy(w, node, inputs)


@DENSE("DynamicQuantizeLSTM")
def _quantized_lstm(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """ONNX Runtime refuses clip=0."""
    given = {key: value for key, value in node.attributes.items() if key != "clip" or value}
    w.copy(node, _tensors(inputs), **given)


_REDUCTIONS = {"none": 11, "add": 16, "mul": 16, "max": 18, "min": 18}
"""Since which opset elements that are put to a place meet what is there."""


@DENSE("ScatterElements", "ScatterND")
def _scatter(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    how = node.at.reduction
    if w.opset < _REDUCTIONS[how]:
        raise UnsupportedError(f"attribute reduction={how!r} needs opset {_REDUCTIONS[how]}")
    given = {k: v for k, v in node.attributes.items() if (k, v) != ("reduction", "none")}
    w.copy(node, _tensors(inputs), **given)


@DENSE("DFT")
def _dft(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """The axis is an attribute before opset 20."""
    if w.opset >= 20:
        return _copy(w, node, inputs)
    axis = -2 if not node.input(2) else int(w.array(node.inputs[2], "axis").reshape(()))
    axis %= len(w.types[node.inputs[0]].counts)  # it counts from the front there
    w.copy(node, _tensors(inputs[:2]), axis=axis, **w.attributes(node))


@DENSE("STFT")
def _stft(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """onnx's checker takes another default of ``onesided`` than ONNX has."""
    w.copy(node, _tensors(inputs), onesided=node.at.onesided)


@DENSE("Resize")
def _resize(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    if w.opset < 11:
        raise UnsupportedError("needs opset 11")
    attributes = w.attributes(node)
    tensors = [*_tensors(inputs), "", "", ""][:4]
    if scales := attributes.pop("scales", None):
        tensors[2] = w.constant(np.asarray(scales, np.float32))
    w.copy(node, tensors if tensors[3] else tensors[:3], **attributes)


@DENSE("If")
def _conditional(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    count = node.at.then_taken
    branches = {"then_branch": inputs[1 : 1 + count], "else_branch": inputs[1 + count :]}
    bodies = {key: _body(w, node, key, taken) for key, taken in branches.items()}
    _give_all(w, node, inputs[:1], **bodies)


@DENSE("Loop")
def _loop(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    own = 2 + node.at.carried
    _give_all(w, node, inputs[:own], body=_body(w, node, "body", inputs[own:]))


@DENSE("Scan")
def _scan(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    if _grows(w, node):
        return _loop(w, *loop_of_scan(w, node, inputs))
    own = node.at.states + node.at.scanned
    kinds = ("input_axes", "input_directions", "output_axes", "output_directions")
    axes = {f"scan_{kind}": node.attributes[kind] for kind in kinds}
    body = _body(w, node, "body", inputs[own:])
    _give_all(w, node, inputs[:own], num_scan_inputs=node.at.scanned, **axes, body=body)


def _grows(w: GraphWriter, node: Node) -> bool:
    """Whether a state changes its shape, which ONNX's Scan forbids; unknown ones may."""
    states = zip(node.inputs, node.outputs[: node.at.states], strict=False)
    types = [(w.types[one], w.types[other]) for one, other in states if other]
    return any(one.shape is None or one.shape != other.shape for one, other in types)


def _give_all(w: GraphWriter, node: Node, inputs: Inputs, **attributes: Any) -> None:
    outs = [w.fresh(name or "unused") for name in node.outputs]
    w.add(node.op, *_tensors(inputs), outputs=outs, **attributes)
    for at, out in enumerate(outs):
        w.give(node, out, at=at)


def _body(w: GraphWriter, node: Node, key: str, taken: Inputs) -> GraphWriter:
    """The graph in an attribute; what it takes from outside it sees by name."""
    body: Graph = node.attributes[key]
    types = types_inside(node, key, [w.types.get(name) for name in node.inputs])
    inputs = [value.name for value in body.inputs]
    inner = w.writer_of(body, body.typed(dict(zip(inputs, types, strict=True))))
    own = len(inputs) - len(taken)
    names = [inner.fresh(name) for name in inputs[:own]] + _tensors(taken)
    for value, name, known in zip(inputs, names, types, strict=True):
        inner.bind(value, OnnxValue(name, known.dtype or "", len(known.counts)))
    for each in body.nodes:
        write_node(inner, each)
    # An output that is an input, or stands there twice, needs a node of its own.
    outs = [inner.emit("Identity", inner.value(value.name).data) for value in body.outputs]
    inner.faces(names[:own], outs)
    inner.prune()
    if node.op == "Loop":  # ONNX Runtime wants to know what turn and condition are
        for at, dtype in enumerate(("int64", "bool")):
            inner.proto.input[at].CopyFrom(value_info(names[at], dtype, ()))
    return inner
