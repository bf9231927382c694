"""Operators of ONNX's names as Paddle's: what moves, joins, counts and fills.

Slots and attributes: the operators' makers in 2.6, which are those of 3.x.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onernn.adapters.paddle.write.emitting import ALL, Writing, Written, ints, only, rule
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node


@rule("Gather")
def _gather(w: Writing, node: Node, inputs: list[str]) -> Written:
    """Rows of a table of floats are lookup_table_v2, which keeps the LoD; the rest is gather."""
    only(node, "axis", "non_negative")
    table, at = inputs
    axis = node.at.axis % w.rank(table)
    at = w.cast(at, "int64")
    if not node.at.non_negative:
        at = _from_the_end(w, node, table, at, axis)
    if axis == 0 and w.rank(table) == 2 and w.dtype(table).startswith("float"):
        return w.emit("lookup_table_v2", {"W": table, "Ids": at}, padding_idx=-1)
    if w.rank(at) > 1:
        raise UnsupportedError(f"indices of {w.rank(at)} axes into axis {axis} of a value")
    flat = w.reshape(w.dense(at), [-1])
    made = w.emit("gather", {"X": w.dense(table), "Index": flat}, axis=axis)
    if w.rank(at):
        return made
    return w.emit("squeeze2", {"X": made}, also=("XShape",), axes=[axis])


def _from_the_end(w: Writing, node: Node, table: str, at: str, axis: int) -> str:
    """Indices below zero count from the end of a table whose size is known."""
    size, known = w.sizes(table)[axis], w.graph.constants.get(node.inputs[1])
    if known is not None and known.min(initial=0) >= 0:
        return at
    if size is None:
        raise UnsupportedError("indices may be negative, and the size of the axis is not known")
    below = w.cast(w.binary("less_than", at, w.constant(np.int64(0))), "int64")
    return w.add(at, w.times(below, w.constant(np.int64(size))))


@rule("Concat")
def _concat(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "axis")
    axis = node.at.axis % w.rank(inputs[0])
    return w.concat(inputs if axis else [w.dense(each) for each in inputs], axis)


@rule("Split")
def _split(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "axis", "num_outputs")
    axis, count = node.at.axis % w.rank(inputs[0]), len(node.outputs)
    sections = ints(w, node, 1, "sizes") if node.input(1) else []
    known = w.sizes(inputs[0])[axis]
    if not sections and known is not None and known % count:
        sections = [-(-known // count)] * (count - 1)
        sections.append(known - sum(sections))
    return w.split(inputs[0] if axis else w.dense(inputs[0]), axis, count, sections)


@rule("Reshape")
def _reshape(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "allowzero")
    if node.input(1) in w.graph.constants:
        sizes = ints(w, node, 1, "shape")
        if 0 in sizes and node.at.allowzero:
            raise UnsupportedError("attribute allowzero: Paddle keeps the size where 0 stands")
        if not sizes:
            raise UnsupportedError("a value without axes")
        return w.reshape(inputs[0], sizes)
    return w.reshape(inputs[0], [-1] * w.rank_of(node), computed=inputs[1])


@rule("Flatten")
def _flatten(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "axis")
    rank, axis = w.rank(inputs[0]), node.at.axis
    if axis % rank != 1:
        raise UnsupportedError(f"attribute axis={axis} of {rank} axes")
    return w.reshape(inputs[0], [0, -1])


@rule("Transpose")
def _transpose(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "perm")
    return w.transpose(inputs[0], node.at.perm or range(w.rank(inputs[0]))[::-1])


@rule("Einsum")
def _einsum(w: Writing, node: Node, inputs: list[str]) -> Written:
    """Only one that exchanges axes, with or without dots for those that stay."""
    only(node, "equation")
    source, _, target = node.at.equation.replace(" ", "").partition("->")
    rest = w.rank(inputs[0]) - len(source.replace("...", ""))
    dots = "".join(chr(ord("A") + at) for at in range(max(rest, 0)))
    source, target = (each.replace("...", dots) for each in (source, target))
    if len(inputs) > 1 or sorted(source) != sorted(target) or len(set(source)) < len(source):
        raise UnsupportedError("only an einsum that moves the axes of one value is written")
    return w.transpose(inputs[0], [source.index(letter) for letter in target])


@rule("Squeeze", "Unsqueeze")
def _squeeze(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    whole = max(w.rank_of(node), w.rank(inputs[0]))
    axes = sorted(axis % whole for axis in ints(w, node, 1, "axes"))
    return w.emit(f"{node.op.lower()}2", {"X": inputs[0]}, also=("XShape",), axes=axes)


@rule("Slice")
def _slice(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    rank, fixed = w.rank(inputs[0]), node.inputs[1] in w.graph.constants
    steps = ints(w, node, 4, "steps") if node.input(4) else []
    axes = list(range(len(ints(w, node, 1, "starts")) if fixed else rank))
    axes = [axis % rank for axis in ints(w, node, 3, "axes")] if node.input(3) else axes
    slots: dict[str, str] = {"Input": inputs[0]}
    numbers: dict[str, Any] = {"axes": axes, "infer_flags": [1] * len(axes)}
    for at, (role, slot) in enumerate((("starts", "StartsTensor"), ("ends", "EndsTensor")), 1):
        if node.inputs[at] in w.graph.constants:
            found = ints(w, node, at, role)
            numbers[role] = [max(-ALL, min(number, ALL)) for number in found]
        else:
            slots[slot] = w.cast(inputs[at], "int32")
            numbers |= {role: [-1] * len(axes), "infer_flags": [-1] * len(axes)}
    if all(step == 1 for step in steps):
        return w.emit("slice", slots, **numbers, decrease_axis=[])
    whole = numbers.get("starts") == [-1] * len(axes) and set(numbers.get("ends", ())) == {-ALL}
    if whole and set(steps) == {-1}:
        return w.emit("flip", {"X": inputs[0]}, axis=axes)
    if len(slots) > 1 or min(steps) < 1:
        raise UnsupportedError(f"steps {steps}, backwards or between ends of run time")
    return w.emit("strided_slice", slots, **numbers, strides=steps)


@rule("Shape")
def _shape(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "start", "end")
    rank = w.rank(inputs[0])
    whole = w.emit("shape", {"Input": inputs[0]})
    cut = range(rank)[node.at.start : node.at.end]
    if len(cut) < rank:
        whole = w.take(whole, {0: (cut.start, cut.stop)})
    return w.cast(whole, "int64")


@rule("ConstantOfShape")
def _constant_of_shape(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "value")
    value = np.asarray(node.at.value).reshape(())
    if node.inputs[0] in w.graph.constants:
        sizes = ints(w, node, 0, "shape")
        if math.prod(sizes) > 2**16:
            raise UnsupportedError(f"a constant of {sizes}")
        return w.copy(w.constant(np.full(sizes, value)))
    if value.dtype.kind == "b" or not np.isfinite(value):
        raise UnsupportedError(f"a constant {value} of a shape that is computed")
    return w.filled(inputs[0], value)


@rule("Expand")
def _expand(w: Writing, node: Node, inputs: list[str]) -> Written:
    """A product with ones of that shape: it broadcasts both ways, as ONNX does."""
    only(node)
    dtype = w.dtype(inputs[0])
    if dtype == "bool":
        raise UnsupportedError("truth values are not expanded")
    if node.inputs[1] in w.graph.constants:
        ones = w.constant(np.ones(ints(w, node, 1, "shape"), dtype))
    else:
        ones = w.filled(inputs[1], np.ones((), dtype))
    return w.times(inputs[0], ones)
