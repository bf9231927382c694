"""Row-wise operators over padded batches: the words' axis became two, batch and time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onernn.adapters.onnx.write.padding import OnnxValue
from onernn.adapters.onnx.write.protobuf import number_of
from onernn.adapters.onnx.write.writer import GraphWriter, Inputs, Rules, dense
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node
from onernn.operators import OPERATORS

RULES = Rules()
"""What takes the first ragged input as a further argument."""


def _operand(w: GraphWriter, value: OnnxValue | None, name: str, like: OnnxValue) -> str:
    """An operand under ``like``: what is dense broadcasts over the words, or is one row a word."""
    if value is None:
        return ""
    if value.rank > like.rank or (value.lengths and value.rank != like.rank):
        raise UnsupportedError(f"{name!r} of {value.rank} axes beside words of {like.rank}")
    one_row = name in w.arrays and w.arrays[name].shape[:1] == (1,)
    return value.data if value.rank < like.rank or one_row else _rows(w, value, like)


def _rows(w: GraphWriter, value: OnnxValue, like: OnnxValue) -> str:
    """A row a word as a padded tensor: dense ones come in the order of the words."""
    if value.lengths:
        return value.data
    time = w.size(like.data, 1)
    return w.from_words(value.data, like.lengths, time, value.dtype, value.rank).data


def _elementwise(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    tensors = [_operand(w, b, name, like) for b, name in zip(inputs, node.inputs, strict=True)]
    w.copy(node, tensors, like.lengths, **w.attributes(node))


@RULES("Cast", "CastLike")
def _cast(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    if inputs[0] is not like:
        raise UnsupportedError("what is cast is not ragged")
    dtype = w.types[node.outputs[0]].dtype or ""
    w.give(node, w.emit("Cast", like.data, to=number_of(dtype)), like.lengths)


def _axis(axis: int, rank: int) -> int:
    """Where an axis of the words (W, ...) is in the padded tensor (N, T, ...)."""
    if axis % rank == 0:
        raise UnsupportedError("axis 0 would mix the steps of ragged sequences")
    return axis % rank + 1


def _same_rank(inputs: Inputs, like: OnnxValue) -> list[str]:
    if any(b is None or b.rank != like.rank or not b.lengths for b in inputs):
        raise UnsupportedError("expected ragged inputs of equal rank only")
    return [b.data for b in inputs if b]


def _along_axes(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    """An operator along axes that an attribute or an input tells: each stands one further on."""
    operator, attributes, tensors = OPERATORS[node.op], w.attributes(node), []
    if "axis" in operator.attributes:
        attributes["axis"] = _axis(node.at.axis, like.rank)
    told = next((at for at, slot in enumerate(operator.slots) if slot.tells), None)
    axes = None if told is None else _axes(w, node, told, like)
    for at, value in enumerate(inputs):
        if at == told:
            tensors.append(w.constant(axes))
        elif at and not operator.slot(at).variadic:
            tensors.append(dense(value, operator.slot(at).name) if value else "")
        elif value is None or value.rank != like.rank:
            raise UnsupportedError("expected inputs of equal rank only")
        else:
            tensors.append(_rows(w, value, like))
    w.copy(node, tensors, like.lengths, **attributes)


def _axes(w: GraphWriter, node: Node, at: int, like: OnnxValue) -> Array:
    """Axes that come as an input, in the padded tensor."""
    if not node.input(at):
        raise UnsupportedError("without axes the words of a LoD are among them")
    axes = w.array(node.inputs[at], "axes")
    rank = like.rank + (axes.size if node.op == "Unsqueeze" else 0)
    return np.array([_axis(int(axis), rank) for axis in axes.flat], np.int64).reshape(axes.shape)


def _reduce(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    axes = _axes(w, node, 1, like).reshape(-1).tolist()
    w.give(node, w.reduce(node.op, like.data, axes, keepdims=node.at.keepdims), like.lengths)


@RULES("Transpose")
def _transpose(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    perm = node.attributes.get("perm") or range(like.rank)[::-1]
    w.copy(
        node,
        [like.data],
        like.lengths,
        perm=(0, *(_moved(axis, at) for at, axis in enumerate(perm))),
    )


def _moved(axis: int, at: int) -> int:
    if (axis == 0) != (at == 0):
        raise UnsupportedError("axis 0 would mix the steps of ragged sequences")
    return axis + 1


@RULES("Flatten")
def _flatten(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    if node.at.axis != 1:
        raise UnsupportedError("only words are flattened, each into a row")
    shape = w.ints(0, 0, -1)
    w.give(node, w.emit("Reshape", like.data, shape), like.lengths)


@RULES("Reshape")
def _reshape(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    """(W, ...) -> (W, ...): sizes of 0 stay at their place, which moves by one."""
    first, *sizes = w.array(node.inputs[1], "shape").tolist()
    if first not in (0, -1) or node.at.allowzero or not w.types[node.outputs[0]].depth:
        raise UnsupportedError(f"shape {(first, *sizes)} may split or join the words of a LoD")
    w.give(node, w.emit("Reshape", like.data, w.ints(0, 0, *sizes)), like.lengths)


@RULES("MatMul")
def _matmul(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    right = dense(inputs[1], "the right factor")
    if inputs[0] is not like or inputs[1] is None or inputs[1].rank != 2 or like.rank < 2:
        raise UnsupportedError("only words times a matrix")
    w.give(node, w.emit("MatMul", like.data, right), like.lengths)


@RULES("Gemm")
def _gemm(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    """Gemm takes matrices only: the product and the sum of it."""
    if inputs[0] is not like or node.at.transA:
        raise UnsupportedError("only words times a matrix")
    factor = dense(inputs[1], "the right factor")
    if node.at.transB:
        factor = w.emit("Transpose", factor, perm=(1, 0))
    out = w.emit("MatMul", like.data, factor)
    added = inputs[2] if len(inputs) > 2 else None
    terms = [(out, node.at.alpha)]
    if added is not None:
        terms.append((_operand(w, added, node.inputs[2], like), node.at.beta))
    scaled = [
        tensor if by == 1 else w.emit("Mul", tensor, w.constant(by, like.dtype))
        for tensor, by in terms
    ]
    w.give(node, scaled[0] if len(scaled) == 1 else w.emit("Add", *scaled), like.lengths)


@RULES("Gather")
def _gather(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    table, indices = inputs
    axis = node.at.axis
    if table is like:
        at = dense(indices, "an index")
        out = w.emit("Gather", like.data, at, axis=_axis(axis, like.rank))
    elif axis in (0, -(table.rank if table else 0)):
        # Behind the sentences stand zeros or what was computed from them: any row will do.
        inside = w.filled(like)
        out = w.emit("Gather", dense(table, "a table"), inside, axis=0)
    else:
        raise UnsupportedError("ragged indices along another axis than the rows")
    w.give(node, out, like.lengths)


@RULES("GatherElements")
def _gather_elements(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    axis = _axis(node.at.axis, like.rank)
    data, _ = _same_rank(inputs, like)
    at = w.filled(inputs[1]) if inputs[1] else ""
    w.copy(node, [data, at], like.lengths, axis=axis)


@RULES("QuantizeLinear", "DequantizeLinear")
def _quantized(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    if inputs[0] is not like:
        raise UnsupportedError("a scale or zero point is ragged")
    more = [dense(each, "a scale or zero point") if each else "" for each in inputs[1:]]
    one_each = any(each and each.rank for each in inputs[1:])
    axis = {"axis": _axis(node.at.axis, like.rank)} if one_each else {}
    w.copy(node, [like.data, *more], like.lengths, **axis)


@RULES("OneHot")
def _one_hot(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    if node.at.axis not in (-1, like.rank) or inputs[0] is not like:
        raise UnsupportedError("only a last axis")
    more = [dense(b, "depth or values") for b in inputs[1:]]
    w.copy(node, [like.data, *more], like.lengths)


@RULES("BatchNormalization")
def _batch_normalization(w: GraphWriter, node: Node, inputs: Inputs, like: OnnxValue) -> None:
    """The channels stand behind time now: scale and shift are computed here."""
    names = ("scale", "bias", "mean", "variance")
    scale, bias, mean, variance = (
        w.array(name, role).reshape(-1, *[1] * (like.rank - 2))
        for name, role in zip(node.inputs[1:], names, strict=True)
    )
    factor = scale / np.sqrt(variance + variance.dtype.type(node.at.epsilon))
    centred = w.emit("Sub", like.data, w.constant(mean))
    scaled = w.emit("Mul", centred, w.constant(factor))
    w.give(node, w.emit("Add", scaled, w.constant(bias)), like.lengths)


def write_ragged(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """Writes an operator of which at least one input is ragged."""
    like = next(b for b in inputs if b and b.lengths)
    _rule_of(node.op)(w, node, inputs, like)


def _rule_of(op: str) -> Callable[..., None]:
    operator = OPERATORS[op]
    if op in RULES:
        return RULES[op]
    if op.startswith("Reduce"):
        return _reduce
    if operator.kind == "elementwise" or op == "Identity":
        return _elementwise
    along = "axis" in operator.attributes or any(slot.tells for slot in operator.slots)
    if not along or operator.dropped is True:
        raise UnsupportedError("no form over padded batches is known")
    return _along_axes
