"""Operators of ONNX's names as Paddle's: what moves, joins, counts and fills.

Slots and attributes: the operators' makers in 2.6, which are those of 3.x.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onernn.adapters.paddle.write.emitting import ALL, CODES, Writing, ints, only, rule
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node


@rule("Gather")
def _gather(w: Writing, node: Node, inputs: list[str]) -> None:
    """Rows of a table of floats are lookup_table_v2, which keeps the LoD; the rest is gather."""
    only(node, "axis", "non_negative")
    table, at = inputs
    axis = node.attributes.get("axis", 0) % w.rank(table)
    at = w.cast(at, "int64")
    if not node.attributes.get("non_negative"):
        at = _from_the_end(w, node, table, at, axis)
    rest = w.of(table).sizes
    if axis == 0 and w.rank(table) == 2 and w.of(table).dtype.startswith("float"):
        sizes = (*w.of(at).sizes, rest[1])
        slots = {"W": table, "Ids": at}
        made = w.emit("lookup_table_v2", slots, sizes, lod=at, attributes={"padding_idx": -1})
        return w.give(node, made)
    if w.rank(at) > 1:
        raise UnsupportedError(f"indices of {w.rank(at)} axes into axis {axis} of a value")
    flat = w.reshape(w.dense(at), [-1])
    sizes = (*rest[:axis], None, *rest[axis + 1 :])
    made = w.emit(
        "gather", {"X": w.dense(table), "Index": flat}, sizes, lod="", attributes={"axis": axis}
    )
    if w.rank(at) == 0:
        gone = {"X": made}
        made = w.emit(
            "squeeze2", gone, len(rest) - 1, also=("XShape",), lod="", attributes={"axes": [axis]}
        )
    w.give(node, made)


def _from_the_end(w: Writing, node: Node, table: str, at: str, axis: int) -> str:
    """Indices below zero count from the end of a table whose size is known."""
    size, known = w.of(table).sizes[axis], w.graph.constants.get(node.inputs[1])
    if known is not None and known.min(initial=0) >= 0:
        return at
    if size is None:
        raise UnsupportedError("indices may be negative, and the size of the axis is not known")
    below = w.cast(w.add(at, w.constant(np.int64(0)), "less_than", "bool"), "int64")
    return w.add(at, w.add(below, w.constant(np.int64(size)), "elementwise_mul"))


@rule("Concat")
def _concat(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "axis")
    axis = int(node.attributes["axis"])
    if axis in (0, -w.rank(inputs[0])):
        inputs = [w.dense(each) for each in inputs]
    w.give(node, w.concat(inputs, axis % w.rank(inputs[0])))


@rule("Split")
def _split(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "axis", "num_outputs")
    x, axis, count = (
        inputs[0],
        node.attributes.get("axis", 0) % w.rank(inputs[0]),
        len(node.outputs),
    )
    sections = ints(w, node, 1, "sizes") if node.input(1) else []
    known, x = w.of(x).sizes[axis], w.dense(x) if axis == 0 else x
    if not sections and known is not None and known % count:
        sections = [-(-known // count)] * (count - 1)
        sections.append(known - sum(sections))
    numbers: dict[str, Any] = {"axis": axis, "num": 0 if sections else count, "sections": sections}
    sizes = tuple(None if at == axis else size for at, size in enumerate(w.of(x).sizes))
    for at, part in enumerate(w.emit_many("split", {"X": x}, count, sizes, attributes=numbers)):
        w.give(node, part, at)


@rule("Reshape")
def _reshape(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "allowzero")
    rank = w.rank_of(node)
    if node.input(1) in w.graph.constants:
        sizes = ints(w, node, 1, "shape")
        if 0 in sizes and node.attributes.get("allowzero"):
            raise UnsupportedError("attribute allowzero: Paddle keeps the size where 0 stands")
        if not sizes:
            raise UnsupportedError("a value without axes")
        return w.give(node, w.reshape(inputs[0], sizes))
    slots = {"X": inputs[0], "Shape": w.cast(inputs[1], "int32")}
    made = w.emit("reshape2", slots, rank, also=("XShape",), attributes={"shape": [-1] * rank})
    w.give(node, made)


@rule("Flatten")
def _flatten(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "axis")
    rank, axis = w.rank(inputs[0]), node.attributes.get("axis", 1)
    if axis % rank != 1:
        raise UnsupportedError(f"attribute axis={axis} of {rank} axes")
    w.give(node, w.reshape(inputs[0], [0, -1]))


@rule("Transpose")
def _transpose(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "perm")
    perm = node.attributes.get("perm") or range(w.rank(inputs[0]))[::-1]
    w.give(node, w.transpose(inputs[0], list(perm)))


@rule("Einsum")
def _einsum(w: Writing, node: Node, inputs: list[str]) -> None:
    """Only one that exchanges axes, with or without dots for those that stay."""
    only(node, "equation")
    source, _, target = node.attributes["equation"].replace(" ", "").partition("->")
    rest = w.rank(inputs[0]) - len(source.replace("...", ""))
    dots = "".join(chr(ord("A") + at) for at in range(max(rest, 0)))
    source, target = (each.replace("...", dots) for each in (source, target))
    if len(inputs) > 1 or sorted(source) != sorted(target) or len(set(source)) < len(source):
        raise UnsupportedError("only an einsum that moves the axes of one value is written")
    w.give(node, w.transpose(inputs[0], [source.index(letter) for letter in target]))


@rule("Squeeze", "Unsqueeze")
def _squeeze(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node)
    rank = w.rank_of(node)
    whole = max(rank, w.rank(inputs[0]))
    axes = sorted(axis % whole for axis in ints(w, node, 1, "axes"))
    sizes, type_ = list(w.of(inputs[0]).sizes), f"{node.op.lower()}2"
    for axis in axes if node.op == "Unsqueeze" else axes[::-1]:
        if node.op == "Unsqueeze":
            sizes.insert(axis, 1)
        else:
            del sizes[axis]
    lod = "" if 0 in axes else None
    made = w.emit(
        type_, {"X": inputs[0]}, tuple(sizes), also=("XShape",), lod=lod, attributes={"axes": axes}
    )
    w.give(node, made)


@rule("Slice")
def _slice(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node)
    x, rank = inputs[0], w.rank(inputs[0])
    steps = ints(w, node, 4, "steps") if node.input(4) else []
    if node.inputs[1] in w.graph.constants:
        axes = list(range(len(ints(w, node, 1, "starts"))))
    else:
        axes = list(range(rank))
    axes = [axis % rank for axis in ints(w, node, 3, "axes")] if node.input(3) else axes
    lod = "" if 0 in axes else None
    sizes = tuple(None if at in axes else size for at, size in enumerate(w.of(x).sizes))
    slots: dict[str, str] = {"Input": x}
    numbers: dict[str, Any] = {"axes": axes, "infer_flags": [1] * len(axes)}
    for at, (role, slot) in enumerate((("starts", "StartsTensor"), ("ends", "EndsTensor")), 1):
        if node.inputs[at] in w.graph.constants:
            found = ints(w, node, at, role)
            numbers[role] = [max(-ALL, min(number, ALL)) for number in found]
        else:
            slots[slot] = w.cast(inputs[at], "int32")
            numbers |= {role: [-1] * len(axes), "infer_flags": [-1] * len(axes)}
    if any(step != 1 for step in steps):
        if len(slots) > 1 or min(steps) < 1:
            raise UnsupportedError(f"steps {steps}, backwards or between ends of run time")
        return w.give(
            node,
            w.emit(
                "strided_slice", slots, sizes, lod=lod, attributes={**numbers, "strides": steps}
            ),
        )
    w.give(
        node, w.emit("slice", slots, sizes, lod=lod, attributes={**numbers, "decrease_axis": []})
    )


@rule("Shape")
def _shape(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "start", "end")
    rank = w.rank(inputs[0])
    whole = w.emit("shape", {"Input": inputs[0]}, (rank,), "int32", lod="")
    cut = range(rank)[node.attributes.get("start", 0) : node.attributes.get("end")]
    if len(cut) < rank:
        whole = w.take(whole, {0: (cut.start, cut.stop)}, [])
    w.give(node, w.cast(whole, "int64"), sizes=(len(cut),))


def filled(w: Writing, shape: str, value: Any, rank: int) -> str:
    """A value of a shape that is computed, int64 or int32."""
    dtype = np.asarray(value).dtype.name
    number = {"value": float(value), "dtype": CODES[dtype], "str_value": str(np.asarray(value))}
    slots = {"ShapeTensor": w.cast(shape, "int32")}
    return w.emit("fill_constant", slots, rank, dtype, lod="", attributes={**number})


@rule("ConstantOfShape")
def _constant_of_shape(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "value")
    value = np.asarray(node.attributes.get("value", np.zeros(1, np.float32))).reshape(())
    if node.inputs[0] in w.graph.constants:
        sizes = ints(w, node, 0, "shape")
        if math.prod(sizes) > 2**16:
            raise UnsupportedError(f"a constant of {sizes}")
        return w.give(node, w.emit("assign", {"X": w.constant(np.full(sizes, value))}))
    if value.dtype.kind == "b" or not np.isfinite(value):
        raise UnsupportedError(f"a constant {value} of a shape that is computed")
    w.give(node, filled(w, inputs[0], value, w.rank_of(node)))


@rule("Expand")
def _expand(w: Writing, node: Node, inputs: list[str]) -> None:
    """A product with ones of that shape: it broadcasts both ways, as ONNX does."""
    only(node)
    x, dtype = inputs[0], w.of(inputs[0]).dtype
    if dtype == "bool":
        raise UnsupportedError("truth values are not expanded")
    if node.inputs[1] in w.graph.constants:
        ones = w.constant(np.ones(ints(w, node, 1, "shape"), dtype))
    else:
        ones = filled(w, inputs[1], np.ones((), dtype), w.rank_of(node))
    w.give(node, w.add(x, ones, "elementwise_mul"))
