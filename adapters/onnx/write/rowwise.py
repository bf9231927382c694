"""Row-wise operators over padded batches: the words' axis became two, batch and time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onernn.adapters.onnx.write.padding import Batch
from onernn.adapters.onnx.write.protobuf import number_of
from onernn.adapters.onnx.write.writer import Writing, dense
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node
from onernn.operators import OPERATORS

REDUCTIONS = [name for name in OPERATORS if name.startswith("Reduce")]

Inputs = list[Batch | None]
Rule = Callable[[Writing, Node, Inputs, Batch], None]
RAGGED: dict[str, Rule] = {}


def rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RAGGED.update(dict.fromkeys(ops, function))
        return function

    return register


def _operand(w: Writing, batch: Batch | None, name: str, like: Batch) -> str:
    """An operand under ``like``: what is dense broadcasts over the words, or is one row a word."""
    if batch is None:
        return ""
    if batch.rank > like.rank or (batch.lengths and batch.rank != like.rank):
        raise UnsupportedError(f"{name!r} of {batch.rank} axes beside words of {like.rank}")
    one_row = name in w.constants and w.constants[name].shape[:1] == (1,)
    return batch.data if batch.rank < like.rank or one_row else _rows(w, batch, like)


def _rows(w: Writing, batch: Batch, like: Batch) -> str:
    """A row a word as a padded tensor: dense ones come in the order of the words."""
    if batch.lengths:
        return batch.data
    time = w.batches.size(like.data, 1)
    return w.batches.from_words(batch.data, like.lengths, time, batch.dtype, batch.rank).data


def _copy(w: Writing, node: Node, tensors: list[str], like: Batch, **attributes: Any) -> None:
    """The same operator over padded tensors."""
    outs = [w.graph.fresh(name) if name else "" for name in node.outputs]
    w.graph.add(node.op, *tensors, outputs=outs, **attributes)
    for at, out in enumerate(outs):
        w.give(node, out, like.lengths, at)


@rule("Identity", *(name for name, each in OPERATORS.items() if each.kind == "elementwise"))
def _elementwise(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    tensors = [_operand(w, b, name, like) for b, name in zip(inputs, node.inputs, strict=True)]
    _copy(w, node, tensors, like, **w.attributes(node))


@rule("Cast", "CastLike")
def _cast(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    if inputs[0] is not like:
        raise UnsupportedError("what is cast is not ragged")
    dtype = w.types[node.outputs[0]].dtype or ""
    w.give(node, w.emit("Cast", like.data, to=number_of(dtype)), like.lengths)


@rule("Dropout")
def _dropout(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    w.give(node, like.data, like.lengths)


def _axis(axis: int, rank: int) -> int:
    """Where an axis of the words (W, ...) is in the padded tensor (N, T, ...)."""
    if axis % rank == 0:
        raise UnsupportedError("axis 0 would mix the words of a LoD")
    return axis % rank + 1


def _same_rank(inputs: Inputs, like: Batch) -> list[str]:
    if any(b is None or b.rank != like.rank or not b.lengths for b in inputs):
        raise UnsupportedError("expected ragged inputs of equal rank only")
    return [b.data for b in inputs if b]


@rule("Softmax", "LogSoftmax", "LayerNormalization")
def _last(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    more = [dense(b, "a scale") for b in inputs[1:] if b]
    given = w.attributes(node) | {"axis": _axis(node.attributes.get("axis", -1), like.rank)}
    _copy(w, node, [like.data, *more], like, **given)


@rule("ArgMax", "ArgMin")
def _extreme(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    given = w.attributes(node) | {"axis": _axis(node.attributes.get("axis", 0), like.rank)}
    _copy(w, node, [like.data], like, **given)


@rule("TopK")
def _top_k(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    given = w.attributes(node) | {"axis": _axis(node.attributes.get("axis", -1), like.rank)}
    _copy(w, node, [like.data, dense(inputs[1], "k")], like, **given)


@rule("Concat")
def _concat(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    axis = _axis(node.attributes["axis"], like.rank)
    if any(b is None or b.rank != like.rank for b in inputs):
        raise UnsupportedError("expected inputs of equal rank only")
    tensors = [_rows(w, b, like) for b in inputs if b]
    _copy(w, node, tensors, like, axis=axis)


@rule("Split")
def _split(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    sizes = [dense(b, "sizes") for b in inputs[1:] if b]
    given = {"axis": _axis(node.attributes.get("axis", 0), like.rank)}
    if not sizes and w.opset >= 18:
        given["num_outputs"] = len(node.outputs)
    _copy(w, node, [like.data, *sizes], like, **given)


def _positions(w: Writing, node: Node, at: int, rank: int) -> tuple[int, ...]:
    """Axes that come as an input, in the padded tensor."""
    if len(node.inputs) <= at or not node.inputs[at]:
        raise UnsupportedError("without axes the words of a LoD are among them")
    axes = w.constant(node.inputs[at], "axes").reshape(-1).tolist()
    return tuple(_axis(axis, rank) for axis in axes)


@rule(*REDUCTIONS)
def _reduce(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    axes = _positions(w, node, 1, like.rank)
    keep = node.attributes.get("keepdims", 1)
    w.give(node, w.reduce(node.op, like.data, axes, keepdims=keep), like.lengths)


@rule("CumSum")
def _cum_sum(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    (axis,) = _positions(w, node, 1, like.rank)
    _copy(w, node, [like.data, w.graph.constant(axis, "int64")], like, **w.attributes(node))


@rule("Squeeze")
def _squeeze(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    _copy(w, node, [like.data, w.ints(*_positions(w, node, 1, like.rank))], like)


@rule("Unsqueeze")
def _unsqueeze(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    rank = like.rank + w.constant(node.inputs[1], "axes").size
    _copy(w, node, [like.data, w.ints(*_positions(w, node, 1, rank))], like)


@rule("Slice")
def _slice(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    axes = w.ints(*_positions(w, node, 3, like.rank))
    starts, ends = (dense(b, "a place") for b in inputs[1:3])
    steps = [dense(b, "steps") for b in inputs[4:] if b]
    _copy(w, node, [like.data, starts, ends, axes, *steps], like)


@rule("Transpose")
def _transpose(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    perm = node.attributes.get("perm", range(like.rank)[::-1])
    _copy(w, node, [like.data], like, perm=(0, *(_moved(axis, at) for at, axis in enumerate(perm))))


def _moved(axis: int, at: int) -> int:
    if (axis == 0) != (at == 0):
        raise UnsupportedError("axis 0 would mix the words of a LoD")
    return axis + 1


@rule("Flatten")
def _flatten(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    if node.attributes.get("axis", 1) != 1:
        raise UnsupportedError("only words are flattened, each into a row")
    shape = w.ints(0, 0, -1)
    w.give(node, w.emit("Reshape", like.data, shape), like.lengths)


@rule("Reshape")
def _reshape(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    """(W, ...) -> (W, ...): sizes of 0 stay at their place, which moves by one."""
    first, *sizes = w.constant(node.inputs[1], "shape").tolist()
    if (
        first not in (0, -1)
        or node.attributes.get("allowzero", 0)
        or not w.types[node.outputs[0]].depth
    ):
        raise UnsupportedError(f"shape {(first, *sizes)} may split or join the words of a LoD")
    w.give(node, w.emit("Reshape", like.data, w.ints(0, 0, *sizes)), like.lengths)


@rule("MatMul")
def _matmul(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    right = dense(inputs[1], "the right factor")
    if inputs[0] is not like or inputs[1] is None or inputs[1].rank != 2 or like.rank < 2:
        raise UnsupportedError("only words times a matrix")
    w.give(node, w.emit("MatMul", like.data, right), like.lengths)


@rule("Gemm")
def _gemm(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    """Gemm takes matrices only: the product and the sum of it."""
    if inputs[0] is not like or node.attributes.get("transA", 0):
        raise UnsupportedError("only words times a matrix")
    factor = dense(inputs[1], "the right factor")
    if node.attributes.get("transB", 0):
        factor = w.emit("Transpose", factor, perm=(1, 0))
    out = w.emit("MatMul", like.data, factor)
    added = inputs[2] if len(inputs) > 2 else None
    terms = [(out, node.attributes.get("alpha", 1.0))]
    if added is not None:
        terms.append((_operand(w, added, node.inputs[2], like), node.attributes.get("beta", 1.0)))
    scaled = [
        tensor if by == 1 else w.emit("Mul", tensor, w.graph.constant(by, like.dtype))
        for tensor, by in terms
    ]
    w.give(node, scaled[0] if len(scaled) == 1 else w.emit("Add", *scaled), like.lengths)


@rule("Gather")
def _gather(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    table, indices = inputs
    axis = node.attributes.get("axis", 0)
    if table is like:
        at = dense(indices, "an index")
        out = w.emit("Gather", like.data, at, axis=_axis(axis, like.rank))
    elif axis in (0, -(table.rank if table else 0)):
        # Behind the sentences stand zeros or what was computed from them: any row will do.
        inside = w.batches.filled(like)
        out = w.emit("Gather", dense(table, "a table"), inside, axis=0)
    else:
        raise UnsupportedError("ragged indices along another axis than the rows")
    w.give(node, out, like.lengths)


@rule("GatherElements")
def _gather_elements(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    axis = _axis(node.attributes.get("axis", 0), like.rank)
    data, _ = _same_rank(inputs, like)
    at = w.batches.filled(inputs[1]) if inputs[1] else ""
    _copy(w, node, [data, at], like, axis=axis)


@rule("OneHot")
def _one_hot(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    if node.attributes.get("axis", -1) not in (-1, like.rank) or inputs[0] is not like:
        raise UnsupportedError("only a last axis")
    more = [dense(b, "depth or values") for b in inputs[1:]]
    _copy(w, node, [like.data, *more], like)


@rule("BatchNormalization")
def _batch_normalization(w: Writing, node: Node, inputs: Inputs, like: Batch) -> None:
    """The channels stand behind time now: scale and shift are computed here."""
    names = ("scale", "bias", "mean", "variance")
    scale, bias, mean, variance = (
        w.constant(name, role).reshape(-1, *[1] * (like.rank - 2))
        for name, role in zip(node.inputs[1:], names, strict=True)
    )
    factor = scale / np.sqrt(variance + variance.dtype.type(node.attributes.get("epsilon", 1e-5)))
    centred = w.emit("Sub", like.data, w.graph.constant(mean))
    scaled = w.emit("Mul", centred, w.graph.constant(factor))
    w.give(node, w.emit("Add", scaled, w.graph.constant(bias)), like.lengths)


def write_ragged(w: Writing, node: Node, inputs: Inputs) -> None:
    """Writes an operator of which at least one input is ragged."""
    like = next(b for b in inputs if b and b.lengths)
    if node.op not in RAGGED:
        raise UnsupportedError("no form over padded batches is known")
    RAGGED[node.op](w, node, inputs, like)
