"""How operators that compute and move elements are written as Paddle's."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.paddle.operators import ROWS, TYPES, Row
from onernn.adapters.paddle.writer import ALL, RULES, Rule, Variable, Writing, integers, rule
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Node
from onernn.ir.operator import OPERATORS

# Canonical operators that a row of the table says in Paddle.


def _unary(row: Row, x: Variable, *, w: Writing) -> Variable:
    if OPERATORS[w.node.op].slots[0].ragged:
        x.ragged()
    if w.node.op == "Relu" and not x.dtype.startswith("float"):
        raise UnsupportedError(f"Paddle has no kernel for {x.dtype} numbers")
    attributes = {
        named.name: named.theirs(getattr(w.node.attrs, name))
        for name, named in row.attributes.items()
    }
    return w.emit(row.type, x, **attributes, **row.written)


def _binary(row: Row, out: Variable, *others: Variable, w: Writing) -> Variable:
    """Of any number of values, one after the other."""
    for other in others:
        if w.node.op in ("Div", "Pow") and out.dtype != other.dtype:
            raise UnsupportedError("numbers of two types")
        out = out.binary(row.type, other)
    return out if others else out.copy()


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
def neg(x):
    return x.scale_by(-1)


@rule("Cast")
def cast(x, *, to):
    if str(to) not in _COMPUTED:
        raise UnsupportedError(f"attribute {to=}: only {', '.join(sorted(_COMPUTED))} are written")
    return x.cast(str(to), always=True)


@rule("CastLike")
def cast_like(x, like):
    return x.copy().cast(like.dtype)


@rule("Clip")
def clip(x, low=None, high=None, *, w):
    out = x
    for bound, kind in ((low, "max"), (high, "min")):
        if bound:
            out = out.binary(f"elementwise_{kind}", w.constant(bound.array.reshape(())))
    return x.copy() if out is x else out


@rule("Where")
def where(condition, x, y, *, w):
    """Paddle's takes equal shapes, so all are multiplied by ones of the whole one before."""
    condition, x, y = condition.dense, x.dense, y.dense
    if x.dtype == "bool" or x.dtype != y.dtype:
        raise UnsupportedError(f"a choice between {x.dtype} and {y.dtype}")
    truth = condition.cast(x.dtype)
    ones = w.fill((truth + x + y).shape(), np.ones((), x.dtype))
    return (truth * ones).cast("bool").where(X=x * ones, Y=y * ones)


def multiply(x: Variable, y: Variable, *, transposed: bool = False) -> Variable:
    """Returns x times y, both as they are, or y transposed; words keep their LoD."""
    if y.rank == 2 and x.rank >= 2 and not transposed:
        return x.mul(Y=y, x_num_col_dims=x.rank - 1, y_num_col_dims=1)
    out = x.matmul_v2(Y=y, trans_x=False, trans_y=transposed)
    return out.under(x) if x.depth else out


@rule("MatMul")
def matmul(x, y, *, w):
    """A window of words times a filter is a convolution over sequences."""
    maker = w.graph.producer(w.node.inputs[0])
    if maker is not None and maker.op == "SequenceContext" and y.rank == 2:
        return convolve(maker, y)
    return multiply(x, y)


def convolve(window: Node, matrix: Variable) -> Variable:
    """Returns what `SequenceContext` gives, times a matrix."""
    return matrix.w.value(window.inputs[0]).sequence_conv(
        Filter=matrix,
        contextLength=window.attrs.length,
        contextStart=window.attrs.start,
        contextStride=1,
        paddingTrainable=False,
    )


@rule("Gemm")
def gemm(x, y, bias=None, *, transA, transB, alpha, beta):
    out = multiply(x.transpose(1, 0) if transA else x, y, transposed=bool(transB))
    out = out if alpha == 1 else out.scale_by(alpha)
    if bias:
        out = out + (bias if beta == 1 else bias.scale_by(beta))
    return out


_OF_TRUTHS = {"ReduceMax": "reduce_any", "ReduceMin": "reduce_all"}


@rule("ReduceSum ReduceMean ReduceProd ReduceMax ReduceMin")
def reduce(x, axes=None, *, keepdims, noop_with_empty_axes, w):
    """Paddle sums int32 as int64."""
    x, kind = x.dense, TYPES[w.node.op]
    chosen = sorted(axis % x.rank for axis in integers(axes))
    if not chosen and noop_with_empty_axes:
        return x.copy()
    if x.dtype == "bool":
        kind = _OF_TRUTHS.get(w.node.op, kind)
    chosen = chosen or list(range(x.rank))
    out = w.emit(
        kind,
        x,
        dim=chosen,
        keep_dim=bool(keepdims),
        reduce_all=len(chosen) == x.rank,
        in_dtype=-1,
        out_dtype=-1,
    )
    return out.cast(x.dtype)


@rule("ArgMax")
def arg_max(x, *, axis, keepdims, select_last_index):
    if select_last_index:
        raise UnsupportedError("attribute select_last_index: Paddle takes the first of equal ones")
    return x.arg_max(axis=int(axis), keepdims=bool(keepdims), flatten=False, dtype=3)


@rule("TopK")
def top_k(x, k, *, axis, largest, sorted, w):
    (count,) = integers(k)
    made = w.emit_all(
        "top_k_v2",
        x,
        {"Out": 1, "Indices": 1},
        k=count,
        axis=int(axis),
        largest=bool(largest),
        sorted=True,
    )
    return made["Out"] + made["Indices"]


@rule("LayerNormalization")
def layer_norm(x, scale, bias=None, *, axis, epsilon, stash_type, w):
    if any(map(w.graph.is_read, w.node.outputs[1:])):
        raise UnsupportedError("mean or deviation of a normalization is read")
    axis, shape = axis % x.rank, scale.sizes
    if len(shape) != x.rank - axis or None in shape:
        raise UnsupportedError(f"scale {shape} of a normalization over axes from {axis} on")
    if None in x.sizes[axis:]:  # what is normalized is as large as its scale
        x = x.reshape(*[0] * axis, *shape)
    return x.layer_norm(
        Scale=scale.reshape(-1),
        Bias=bias and bias.reshape(-1),
        epsilon=float(epsilon),
        begin_norm_axis=axis,
    )


@rule("BatchNormalization")
def batch_norm(x, *numbers, epsilon, momentum, w):
    """The numbers are the operator's own: it gives two of them back."""
    names = ("Scale", "Bias", "Mean", "Variance")
    own = {
        slot: w.constant(each.array, f"{w.node.outputs[0]}.{slot}")
        for slot, each in zip(names, numbers, strict=True)
    }
    outputs = {"Y": 1, "SavedMean": 1, "SavedVariance": 1}
    outputs |= {"MeanOut": own["Mean"], "VarianceOut": own["Variance"]}
    return w.emit_all(
        "batch_norm",
        x,
        outputs,
        **own,
        is_test=True,
        use_global_stats=True,
        trainable_statistics=False,
        momentum=0.9,
        data_layout="NCHW",
        epsilon=float(epsilon),
    )["Y"]


# Operators of ONNX's names as Paddle's: what moves, joins, counts and fills.
#
# Slots and attributes: the operators' makers in 2.6, which are those of 3.x.


@rule("Gather")
def gather(table, index, *, axis, non_negative):
    """Rows of a table of floats are lookup_table_v2, which keeps the LoD; the rest is gather."""
    axis, wide = axis % table.rank, index.cast("int64")
    if not non_negative:
        wide = _count_from_zero(table.sizes[axis], wide, index.known)
    if axis == 0 and table.rank == 2 and table.dtype.startswith("float"):
        return wide.lookup_table_v2(W=table, padding_idx=-1)
    if index.rank > 1:
        raise UnsupportedError(f"indices of {index.rank} axes into axis {axis} of a value")
    out = table.dense.gather(Index=wide.dense.reshape(-1), axis=axis)
    return out if index.rank else out.squeeze2(axes=[axis])


def _count_from_zero(size: int | None, index: Variable, known: Any) -> Variable:
    """Returns indices that count from the end if they are below zero, all from the beginning."""
    if known is not None and known.min(initial=0) >= 0:
        return index
    if size is None:
        raise UnsupportedError("indices may be negative, and the size of the axis is not known")
    w = index.w
    below = index.binary("less_than", w.constant(np.int64(0))).cast("int64")
    return index + below * w.constant(np.int64(size))


@rule("Concat")
def concat(*values, axis, w):
    axis %= values[0].rank
    return w.concat(values if axis else [each.dense for each in values], axis)


@rule("Split")
def split(x, sizes=None, *, axis, num_outputs, w):
    axis, count = axis % x.rank, len(w.node.outputs)
    sections, known = integers(sizes), x.sizes[axis]
    if not sections and known is not None and known % count:
        sections = [-(-known // count)] * (count - 1)
        sections.append(known - sum(sections))
    return (x if axis else x.dense).split(axis, count, sections)


@rule("Reshape")
def reshape(x, shape, *, allowzero, w):
    if shape.known is None:
        out_rank = len(w.graph.types[w.node.outputs[0]].counts)
        return x.reshape(*[-1] * out_rank, computed=shape)
    sizes = integers(shape)
    if 0 in sizes and allowzero:
        raise UnsupportedError("attribute allowzero: Paddle keeps the size where 0 stands")
    if not sizes:
        raise UnsupportedError("a value without axes")
    return x.reshape(*sizes)


@rule("Flatten")
def flatten(x, *, axis):
    if axis % x.rank != 1:
        raise UnsupportedError(f"attribute {axis=} of {x.rank} axes")
    return x.reshape(0, -1)


@rule("Transpose")
def transpose(x, *, perm):
    return x.transpose(*(perm or range(x.rank)[::-1]))


@rule("Einsum")
def einsum(x, *others, equation):
    """Only one that exchanges axes, with or without dots for those that stay."""
    source, _, target = equation.replace(" ", "").partition("->")
    rest = x.rank - len(source.replace("...", ""))
    dots = "".join(chr(ord("A") + at) for at in range(max(rest, 0)))
    source, target = (each.replace("...", dots) for each in (source, target))
    if others or sorted(source) != sorted(target) or len(set(source)) < len(source):
        raise UnsupportedError("only an einsum that moves the axes of one value is written")
    return x.transpose(*(source.index(letter) for letter in target))


@rule("Squeeze")
def squeeze(x, axes=None):
    return x.squeeze2(axes=sorted(axis % x.rank for axis in integers(axes)))


@rule("Unsqueeze")
def unsqueeze(x, axes):
    chosen = integers(axes)
    return x.unsqueeze2(axes=sorted(axis % (x.rank + len(chosen)) for axis in chosen))


@rule("Slice")
def slice_(x, starts, ends, axes=None, steps=None):
    strides = integers(steps)
    rank = x.rank if starts.known is None else len(integers(starts))
    chosen = [axis % x.rank for axis in integers(axes)] if axes else [*range(rank)]
    slots: dict[str, Variable] = {}
    numbers: dict[str, Any] = {"axes": chosen, "infer_flags": [1] * len(chosen)}
    for role, slot, value in (("starts", "StartsTensor", starts), ("ends", "EndsTensor", ends)):
        if value.known is not None:
            numbers[role] = [max(-ALL, min(number, ALL)) for number in integers(value)]
        else:
            slots[slot] = value.cast("int32")
            numbers |= {role: [-1] * len(chosen), "infer_flags": [-1] * len(chosen)}
    if all(step == 1 for step in strides):
        return x.slice(**slots, **numbers, decrease_axis=[])
    whole = {*numbers["starts"], *strides} == {-1} and {*numbers["ends"]} == {-ALL}
    if whole and not slots:
        return x.flip(axis=chosen)
    if slots or min(strides) < 1:
        raise UnsupportedError(f"steps {strides}, backwards or between ends of run time")
    return x.strided_slice(**numbers, strides=strides)


@rule("Shape")
def shape_(x, *, start, end):
    sizes, cut = x.shape(), range(x.rank)[start:end]
    if len(cut) < x.rank:
        sizes = sizes.take({0: (cut.start, cut.stop)})
    return sizes.cast("int64")


@rule("ConstantOfShape")
def constant_of_shape(shape, *, value, w):
    number = np.asarray(value).reshape(())
    if shape.known is not None:
        sizes = integers(shape)
        if math.prod(sizes) > 2**16:
            raise UnsupportedError(f"a constant of {sizes}")
        return w.constant(np.full(sizes, number)).copy()
    if number.dtype.kind == "b" or not np.isfinite(number):
        raise UnsupportedError(f"a constant {number} of a shape that is computed")
    return w.fill(shape, number)


@rule("Expand")
def expand(x, shape, *, w):
    """A product with ones of that shape: it broadcasts both ways, as ONNX does."""
    if x.dtype == "bool":
        raise UnsupportedError("truth values are not expanded")
    if shape.known is None:
        return x * w.fill(shape, np.ones((), x.dtype))
    return x * w.constant(np.ones(integers(shape), x.dtype))
