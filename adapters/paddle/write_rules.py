"""How operators that compute and move elements are written as Paddle's."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.paddle.operators import ROWS, TYPES, Row
from onernn.adapters.paddle.writer import ALL, RULES, Writing, Written, ints, only, ragged, rule
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Node
from onernn.ir.operator import OPERATORS

# Canonical operators that a row of the table says in Paddle.


def _unary(row: Row, w: Writing, node: Node, inputs: list[str]) -> str:
    only(node, *row.attributes)
    if OPERATORS[node.op].slots[0].ragged:
        ragged(w, inputs[0])
    attributes = {
        named.name: named.theirs(getattr(node.at, name)) for name, named in row.attributes.items()
    }
    return w.emit(row.type, {"X": inputs[0]}, out=row.output, **attributes, **row.written)


def _binary(row: Row, w: Writing, node: Node, inputs: list[str]) -> str:
    """Of any number of values, one after the other."""
    only(node)
    out, *others = inputs
    for other in others:
        if node.op in ("Div", "Pow") and w.dtype(out) != w.dtype(other):
            raise UnsupportedError("numbers of two types")
        out = w.binary(row.type, out, other)
    return out if others else w.copy(out)


for _row in ROWS:
    RULES.setdefault(_row.op, partial(_unary if len(_row.inputs) == 1 else _binary, _row))
RULES["Sum"] = RULES["Add"]


# Operators of ONNX's names as Paddle's: what computes.
#
# Slots and attributes: the operators' makers in 2.6, which are those of 3.x.

_COMPUTED = frozenset("bool int32 int64 float32 float64".split())
"""What Paddle's kernels on CPU compute in."""


@rule("Neg")
def _neg(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    return w.scaled(inputs[0], -1)


@rule("Cast")
def _cast(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "to")
    to = str(node.at.to)
    if to not in _COMPUTED:
        raise UnsupportedError(
            f"attribute to={to}: only {', '.join(sorted(_COMPUTED))} are written"
        )
    return w.cast(inputs[0], to, always=True)


@rule("CastLike")
def _cast_like(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    return w.cast(w.copy(inputs[0]), w.dtype(inputs[1]))


@rule("Clip")
def _clip(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    out = inputs[0]
    for at, kind in ((1, "max"), (2, "min")):
        if name := node.input(at):
            bound = w.constant(w.array(name, "a bound").reshape(()))
            out = w.binary(f"elementwise_{kind}", out, bound)
    return out if out != inputs[0] else w.copy(out)


@rule("Where")
def _where(w: Writing, node: Node, inputs: list[str]) -> Written:
    """Paddle's takes equal shapes, so all are multiplied by ones of the whole one before."""
    only(node)
    condition, x, y = (w.dense(name) for name in inputs)
    dtype = w.dtype(x)
    if dtype == "bool" or w.dtype(y) != dtype:
        raise UnsupportedError(f"a choice between {dtype} and {w.dtype(y)}")
    truth = w.cast(condition, dtype)
    sizes = w.emit("shape", {"Input": w.add(w.add(truth, x), y)})
    ones = w.filled(sizes, np.ones((), dtype))
    truth, x, y = (w.times(each, ones) for each in (truth, x, y))
    return w.emit("where", {"Condition": w.cast(truth, "bool"), "X": x, "Y": y})


def matmul(w: Writing, x: str, y: str, *, turned: bool = False) -> str:
    """x times y, both as they are, or y transposed; words keep their LoD."""
    if w.rank(y) == 2 and w.rank(x) >= 2 and not turned:
        columns = w.rank(x) - 1
        return w.emit("mul", {"X": x, "Y": y}, x_num_col_dims=columns, y_num_col_dims=1)
    made = w.emit("matmul_v2", {"X": x, "Y": y}, trans_x=False, trans_y=turned)
    return w.under(made, x) if w.of(x).depth else made


@rule("MatMul")
def _matmul(w: Writing, node: Node, inputs: list[str]) -> Written:
    """A window of words times a filter is a convolution over sentences."""
    only(node)
    maker = w.graph.producer(node.inputs[0])
    if maker is not None and maker.op == "SequenceContext" and w.rank(inputs[1]) == 2:
        return convolution(w, maker, inputs[1])
    return matmul(w, *inputs)


def convolution(w: Writing, window: Node, filter_: str) -> str:
    """What `SequenceContext` gives, times a matrix."""
    return w.emit(
        "sequence_conv",
        {"X": w.value(window.inputs[0]), "Filter": filter_},
        contextLength=window.at.length,
        contextStart=window.at.start,
        contextStride=1,
        paddingTrainable=False,
    )


@rule("Gemm")
def _gemm(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "transA", "transB", "alpha", "beta")
    x, y, *rest = inputs
    if node.at.transA:
        x = w.transpose(x, (1, 0))
    out = matmul(w, x, y, turned=bool(node.at.transB))
    out = out if node.at.alpha == 1 else w.scaled(out, node.at.alpha)
    if rest and rest[0]:
        out = w.add(out, rest[0] if node.at.beta == 1 else w.scaled(rest[0], node.at.beta))
    return out


_OF_TRUTHS = {"ReduceMax": "reduce_any", "ReduceMin": "reduce_all"}


@rule("ReduceSum ReduceMean ReduceProd ReduceMax ReduceMin")
def _reduce(w: Writing, node: Node, inputs: list[str]) -> Written:
    """Paddle sums int32 as int64."""
    only(node, "keepdims", "noop_with_empty_axes")
    x, dtype = w.dense(inputs[0]), w.dtype(inputs[0])
    rank, type_ = w.rank(x), TYPES[node.op]
    axes = [axis % rank for axis in ints(w, node, 1, "axes")] if node.input(1) else []
    if not axes and node.at.noop_with_empty_axes:
        return w.copy(x)
    whole = sorted(axes or range(rank))
    if dtype == "bool":
        type_ = _OF_TRUTHS.get(node.op, type_)
    made = w.emit(
        type_,
        {"X": x},
        dim=whole,
        keep_dim=bool(node.at.keepdims),
        reduce_all=len(whole) == rank,
        in_dtype=-1,
        out_dtype=-1,
    )
    return w.cast(made, dtype)


@rule("ArgMax")
def _arg_max(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "axis", "keepdims", "select_last_index")
    if node.at.select_last_index:
        raise UnsupportedError("attribute select_last_index: Paddle takes the first of equal ones")
    axis, keep = int(node.at.axis), bool(node.at.keepdims)
    slots = {"X": inputs[0]}
    return w.emit("arg_max", slots, axis=axis, keepdims=keep, flatten=False, dtype=3)


@rule("TopK")
def _top_k(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "axis", "largest", "sorted")
    (k,) = ints(w, node, 1, "k")
    made = w.emit_all(
        "top_k_v2",
        {"X": inputs[0]},
        {"Out": 1, "Indices": 1},
        k=k,
        axis=int(node.at.axis),
        largest=bool(node.at.largest),
        sorted=True,
    )
    return made["Out"] + made["Indices"]


@rule("LayerNormalization")
def _layer_norm(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "axis", "epsilon", "stash_type")
    if any(map(w.wants, node.outputs[1:])):
        raise UnsupportedError("mean or deviation of a normalization is read")
    rank, shape = w.rank(inputs[0]), w.sizes(inputs[1])
    axis = node.at.axis % rank
    if len(shape) != rank - axis or None in shape:
        raise UnsupportedError(f"scale {shape} of a normalization over axes from {axis} on")
    x = inputs[0]
    if None in w.sizes(x)[axis:]:  # what is normalized is as large as its scale
        x = w.reshape(x, [*[0] * axis, *filter(None, shape)])
    slots = {"X": x, "Scale": w.reshape(inputs[1], [-1])}
    if len(inputs) > 2 and inputs[2]:
        slots["Bias"] = w.reshape(inputs[2], [-1])
    return w.emit(
        "layer_norm",
        slots,
        out="Y",
        also=("Mean", "Variance"),
        epsilon=float(node.at.epsilon),
        begin_norm_axis=axis,
    )


@rule("BatchNormalization")
def _batch_norm(w: Writing, node: Node, inputs: list[str]) -> Written:
    """The numbers are the operator's own: it gives two of them back."""
    only(node, "epsilon", "momentum")
    numbers = {
        slot: w.constant(w.array(name, slot), f"{node.outputs[0]}.{slot}")
        for slot, name in zip(("Scale", "Bias", "Mean", "Variance"), node.inputs[1:], strict=True)
    }
    made = w.emit(
        "batch_norm",
        {"X": inputs[0], **numbers},
        out="Y",
        also=("SavedMean", "SavedVariance"),
        is_test=True,
        use_global_stats=True,
        trainable_statistics=False,
        momentum=0.9,
        data_layout="NCHW",
        epsilon=float(node.at.epsilon),
    )
    given = {"MeanOut": [numbers["Mean"]], "VarianceOut": [numbers["Variance"]]}
    w.program.operations[-1].outputs.update(given)
    return made


# Operators of ONNX's names as Paddle's: what moves, joins, counts and fills.
#
# Slots and attributes: the operators' makers in 2.6, which are those of 3.x.


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


@rule("Squeeze Unsqueeze")
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
