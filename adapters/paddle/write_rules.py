"""How operators that compute and move elements are written as Paddle's."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.paddle.operators import ROWS, TYPES, Row
from onernn.adapters.paddle.writer import ALL, RULES, Rule, Writing, Written, ragged, rule
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Node
from onernn.ir.operator import OPERATORS

# Canonical operators that a row of the table says in Paddle.


def _unary(row: Row, w: Writing) -> str:
    if OPERATORS[w.node.op].slots[0].ragged:
        ragged(w, w.x)
    attributes = {
        named.name: named.theirs(getattr(w.attrs, name)) for name, named in row.attributes.items()
    }
    return w.emit(row.type, {"X": w.x}, **attributes, **row.written)


def _binary(row: Row, w: Writing) -> str:
    """Of any number of values, one after the other."""
    out, *others = w.inputs
    for other in others:
        if w.node.op in ("Div", "Pow") and w.dtype(out) != w.dtype(other):
            raise UnsupportedError("numbers of two types")
        out = w.binary(row.type, out, other)
    return out if others else w.copy(out)


for _row in ROWS:
    write = partial(_unary if len(_row.inputs) == 1 else _binary, _row)
    RULES.setdefault(_row.op, Rule(write, _row.attributes))
RULES["Sum"] = RULES["Add"]


# Operators of ONNX's names as Paddle's: what computes.
#
# Slots and attributes: the operators' makers in 2.6, which are those of 3.x.

_COMPUTED = frozenset("bool int32 int64 float32 float64".split())
"""What Paddle's kernels on CPU compute in."""


@rule("Neg")
def _neg(w: Writing) -> Written:
    return w.scaled(w.x, -1)


@rule("Cast", "to")
def _cast(w: Writing) -> Written:
    to = str(w.attrs.to)
    if to not in _COMPUTED:
        raise UnsupportedError(
            f"attribute to={to}: only {', '.join(sorted(_COMPUTED))} are written"
        )
    return w.cast(w.x, to, always=True)


@rule("CastLike")
def _cast_like(w: Writing) -> Written:
    return w.cast(w.copy(w.x), w.dtype(w.inputs[1]))


@rule("Clip")
def _clip(w: Writing) -> Written:
    out = w.x
    for at, kind in ((1, "max"), (2, "min")):
        if w.node.input(at):
            bound = w.constant(w.array(at, "a bound").reshape(()))
            out = w.binary(f"elementwise_{kind}", out, bound)
    return out if out != w.x else w.copy(out)


@rule("Where")
def _where(w: Writing) -> Written:
    """Paddle's takes equal shapes, so all are multiplied by ones of the whole one before."""
    condition, x, y = (w.dense(name) for name in w.inputs)
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
def _matmul(w: Writing) -> Written:
    """A window of words times a filter is a convolution over sentences."""
    maker = w.graph.producer(w.node.inputs[0])
    if maker is not None and maker.op == "SequenceContext" and w.rank(w.inputs[1]) == 2:
        return convolution(w, maker, w.inputs[1])
    return matmul(w, *w.inputs)


def convolution(w: Writing, window: Node, filter_: str) -> str:
    """What `SequenceContext` gives, times a matrix."""
    return w.emit(
        "sequence_conv",
        {"X": w.value(window.inputs[0]), "Filter": filter_},
        contextLength=window.attrs.length,
        contextStart=window.attrs.start,
        contextStride=1,
        paddingTrainable=False,
    )


@rule("Gemm", "transA transB alpha beta")
def _gemm(w: Writing) -> Written:
    x, y, *rest = w.inputs
    if w.attrs.transA:
        x = w.transpose(x, (1, 0))
    out = matmul(w, x, y, turned=bool(w.attrs.transB))
    out = out if w.attrs.alpha == 1 else w.scaled(out, w.attrs.alpha)
    if rest and rest[0]:
        out = w.add(out, rest[0] if w.attrs.beta == 1 else w.scaled(rest[0], w.attrs.beta))
    return out


_OF_TRUTHS = {"ReduceMax": "reduce_any", "ReduceMin": "reduce_all"}


@rule("ReduceSum ReduceMean ReduceProd ReduceMax ReduceMin", "keepdims noop_with_empty_axes")
def _reduce(w: Writing) -> Written:
    """Paddle sums int32 as int64."""
    x, dtype = w.dense(w.x), w.dtype(w.x)
    rank, type_ = w.rank(x), TYPES[w.node.op]
    axes = [axis % rank for axis in w.numbers(1, "axes")]
    if not axes and w.attrs.noop_with_empty_axes:
        return w.copy(x)
    whole = sorted(axes or range(rank))
    if dtype == "bool":
        type_ = _OF_TRUTHS.get(w.node.op, type_)
    made = w.emit(
        type_,
        {"X": x},
        dim=whole,
        keep_dim=bool(w.attrs.keepdims),
        reduce_all=len(whole) == rank,
        in_dtype=-1,
        out_dtype=-1,
    )
    return w.cast(made, dtype)


@rule("ArgMax", "axis keepdims select_last_index")
def _arg_max(w: Writing) -> Written:
    if w.attrs.select_last_index:
        raise UnsupportedError("attribute select_last_index: Paddle takes the first of equal ones")
    axis, keep = int(w.attrs.axis), bool(w.attrs.keepdims)
    slots = {"X": w.x}
    return w.emit("arg_max", slots, axis=axis, keepdims=keep, flatten=False, dtype=3)


@rule("TopK", "axis largest sorted")
def _top_k(w: Writing) -> Written:
    (k,) = w.numbers(1, "k")
    made = w.emit_all(
        "top_k_v2",
        {"X": w.x},
        {"Out": 1, "Indices": 1},
        k=k,
        axis=int(w.attrs.axis),
        largest=bool(w.attrs.largest),
        sorted=True,
    )
    return made["Out"] + made["Indices"]


@rule("LayerNormalization", "axis epsilon stash_type")
def _layer_norm(w: Writing) -> Written:
    if any(map(w.graph.is_read, w.node.outputs[1:])):
        raise UnsupportedError("mean or deviation of a normalization is read")
    rank, shape = w.rank(w.x), w.sizes(w.inputs[1])
    axis = w.attrs.axis % rank
    if len(shape) != rank - axis or None in shape:
        raise UnsupportedError(f"scale {shape} of a normalization over axes from {axis} on")
    x = w.x
    if None in w.sizes(x)[axis:]:  # what is normalized is as large as its scale
        x = w.reshape(x, [*[0] * axis, *filter(None, shape)])
    slots = {"X": x, "Scale": w.reshape(w.inputs[1], [-1])}
    if len(w.inputs) > 2 and w.inputs[2]:
        slots["Bias"] = w.reshape(w.inputs[2], [-1])
    return w.emit(
        "layer_norm",
        slots,
        epsilon=float(w.attrs.epsilon),
        begin_norm_axis=axis,
    )


@rule("BatchNormalization", "epsilon momentum")
def _batch_norm(w: Writing) -> Written:
    """The numbers are the operator's own: it gives two of them back."""
    numbers = {
        slot: w.constant(w.array(index, slot), f"{w.node.outputs[0]}.{slot}")
        for index, slot in enumerate(("Scale", "Bias", "Mean", "Variance"), 1)
    }
    outputs = {"Y": 1, "SavedMean": 1, "SavedVariance": 1}
    made = w.emit_all(
        "batch_norm",
        {"X": w.x, **numbers},
        {**outputs, "MeanOut": numbers["Mean"], "VarianceOut": numbers["Variance"]},
        is_test=True,
        use_global_stats=True,
        trainable_statistics=False,
        momentum=0.9,
        data_layout="NCHW",
        epsilon=float(w.attrs.epsilon),
    )
    return made["Y"]


# Operators of ONNX's names as Paddle's: what moves, joins, counts and fills.
#
# Slots and attributes: the operators' makers in 2.6, which are those of 3.x.


@rule("Gather", "axis non_negative")
def _gather(w: Writing) -> Written:
    """Rows of a table of floats are lookup_table_v2, which keeps the LoD; the rest is gather."""
    table, at = w.inputs
    axis = w.attrs.axis % w.rank(table)
    at = w.cast(at, "int64")
    if not w.attrs.non_negative:
        at = _from_the_end(w, table, at, axis)
    if axis == 0 and w.rank(table) == 2 and w.dtype(table).startswith("float"):
        return w.emit("lookup_table_v2", {"W": table, "Ids": at}, padding_idx=-1)
    if w.rank(at) > 1:
        raise UnsupportedError(f"indices of {w.rank(at)} axes into axis {axis} of a value")
    flat = w.reshape(w.dense(at), [-1])
    made = w.emit("gather", {"X": w.dense(table), "Index": flat}, axis=axis)
    if w.rank(at):
        return made
    return w.emit("squeeze2", {"X": made}, axes=[axis])


def _from_the_end(w: Writing, table: str, at: str, axis: int) -> str:
    """Indices below zero count from the end of a table whose size is known."""
    size, known = w.sizes(table)[axis], w.graph.constants.get(w.node.inputs[1])
    if known is not None and known.min(initial=0) >= 0:
        return at
    if size is None:
        raise UnsupportedError("indices may be negative, and the size of the axis is not known")
    below = w.cast(w.binary("less_than", at, w.constant(np.int64(0))), "int64")
    return w.add(at, w.times(below, w.constant(np.int64(size))))


@rule("Concat", "axis")
def _concat(w: Writing) -> Written:
    axis = w.attrs.axis % w.rank(w.x)
    return w.concat(w.inputs if axis else [w.dense(each) for each in w.inputs], axis)


@rule("Split", "axis num_outputs")
def _split(w: Writing) -> Written:
    axis, count = w.attrs.axis % w.rank(w.x), len(w.node.outputs)
    sections = w.numbers(1, "sizes")
    known = w.sizes(w.x)[axis]
    if not sections and known is not None and known % count:
        sections = [-(-known // count)] * (count - 1)
        sections.append(known - sum(sections))
    return w.split(w.x if axis else w.dense(w.x), axis, count, sections)


@rule("Reshape", "allowzero")
def _reshape(w: Writing) -> Written:
    if w.node.input(1) in w.graph.constants:
        sizes = w.numbers(1, "shape")
        if 0 in sizes and w.attrs.allowzero:
            raise UnsupportedError("attribute allowzero: Paddle keeps the size where 0 stands")
        if not sizes:
            raise UnsupportedError("a value without axes")
        return w.reshape(w.x, sizes)
    return w.reshape(w.x, [-1] * w.out_rank, computed=w.inputs[1])


@rule("Flatten", "axis")
def _flatten(w: Writing) -> Written:
    rank, axis = w.rank(w.x), w.attrs.axis
    if axis % rank != 1:
        raise UnsupportedError(f"attribute axis={axis} of {rank} axes")
    return w.reshape(w.x, [0, -1])


@rule("Transpose", "perm")
def _transpose(w: Writing) -> Written:
    return w.transpose(w.x, w.attrs.perm or range(w.rank(w.x))[::-1])


@rule("Einsum", "equation")
def _einsum(w: Writing) -> Written:
    """Only one that exchanges axes, with or without dots for those that stay."""
    source, _, target = w.attrs.equation.replace(" ", "").partition("->")
    rest = w.rank(w.x) - len(source.replace("...", ""))
    dots = "".join(chr(ord("A") + at) for at in range(max(rest, 0)))
    source, target = (each.replace("...", dots) for each in (source, target))
    if len(w.inputs) > 1 or sorted(source) != sorted(target) or len(set(source)) < len(source):
        raise UnsupportedError("only an einsum that moves the axes of one value is written")
    return w.transpose(w.x, [source.index(letter) for letter in target])


@rule("Squeeze Unsqueeze")
def _squeeze(w: Writing) -> Written:
    whole = max(w.out_rank, w.rank(w.x))
    axes = sorted(axis % whole for axis in w.numbers(1, "axes"))
    return w.emit(f"{w.node.op.lower()}2", {"X": w.x}, axes=axes)


@rule("Slice")
def _slice(w: Writing) -> Written:
    rank, fixed = w.rank(w.x), w.node.inputs[1] in w.graph.constants
    steps = w.numbers(4, "steps")
    axes = list(range(len(w.numbers(1, "starts")) if fixed else rank))
    axes = [axis % rank for axis in w.numbers(3, "axes")] if w.node.input(3) else axes
    slots: dict[str, str] = {"Input": w.x}
    numbers: dict[str, Any] = {"axes": axes, "infer_flags": [1] * len(axes)}
    for at, (role, slot) in enumerate((("starts", "StartsTensor"), ("ends", "EndsTensor")), 1):
        if w.node.inputs[at] in w.graph.constants:
            result = w.numbers(at, role)
            numbers[role] = [max(-ALL, min(number, ALL)) for number in result]
        else:
            slots[slot] = w.cast(w.inputs[at], "int32")
            numbers |= {role: [-1] * len(axes), "infer_flags": [-1] * len(axes)}
    if all(step == 1 for step in steps):
        return w.emit("slice", slots, **numbers, decrease_axis=[])
    whole = numbers.get("starts") == [-1] * len(axes) and set(numbers.get("ends", ())) == {-ALL}
    if whole and set(steps) == {-1}:
        return w.emit("flip", {"X": w.x}, axis=axes)
    if len(slots) > 1 or min(steps) < 1:
        raise UnsupportedError(f"steps {steps}, backwards or between ends of run time")
    return w.emit("strided_slice", slots, **numbers, strides=steps)


@rule("Shape", "start end")
def _shape(w: Writing) -> Written:
    rank = w.rank(w.x)
    whole = w.emit("shape", {"Input": w.x})
    cut = range(rank)[w.attrs.start : w.attrs.end]
    if len(cut) < rank:
        whole = w.take(whole, {0: (cut.start, cut.stop)})
    return w.cast(whole, "int64")


@rule("ConstantOfShape", "value")
def _constant_of_shape(w: Writing) -> Written:
    value = np.asarray(w.attrs.value).reshape(())
    if w.node.inputs[0] in w.graph.constants:
        sizes = w.numbers(0, "shape")
        if math.prod(sizes) > 2**16:
            raise UnsupportedError(f"a constant of {sizes}")
        return w.copy(w.constant(np.full(sizes, value)))
    if value.dtype.kind == "b" or not np.isfinite(value):
        raise UnsupportedError(f"a constant {value} of a shape that is computed")
    return w.filled(w.x, value)


@rule("Expand")
def _expand(w: Writing) -> Written:
    """A product with ones of that shape: it broadcasts both ways, as ONNX does."""
    dtype = w.dtype(w.x)
    if dtype == "bool":
        raise UnsupportedError("truth values are not expanded")
    if w.node.inputs[1] in w.graph.constants:
        ones = w.constant(np.ones(w.numbers(1, "shape"), dtype))
    else:
        ones = w.filled(w.inputs[1], np.ones((), dtype))
    return w.times(w.x, ones)
