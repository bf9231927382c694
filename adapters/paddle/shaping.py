"""The rules of Paddle's operators that reshape, index or rearrange tensors and sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onernn.adapters.common.bodies import count_up, remainder
from onernn.adapters.common.bodies import stack as stack_values
from onernn.adapters.common.signatures import OneOf, refuse
from onernn.adapters.paddle.read import VERSIONS
from onernn.adapters.paddle.rules import check_floats, check_threshold
from onernn.adapters.paddle.table import (
    STALE_LOD,
    DtypeNumber,
    Elements,
    Integers,
    dygraph,
    paddle,
)
from onernn.ir.budget import loading
from onernn.ir.types import Size

# The rules of Paddle's operators that reshape, join, split and select.
#
# Slots and defaults come from the OpMaker classes of Paddle 2.6. Which LoD an output has was
# measured with 2.6.2.

_ALL = 2**31 - 1
"""The slice end with which Paddle's exporters denote the end of an axis."""


@paddle("reshape2")
def reshape(X, *, shape=Integers("Shape", "ShapeTensor"), op):
    if op.variables("ShapeTensor") or op.variables("Shape"):
        if X.ragged:
            refuse("input Shape: expected a constant for an input X with a LoD")
        return X.Reshape(shape)
    shape = op.attribute("shape", ())
    if X.ragged and shape[:1] == (-1,):
        rows = _multiply(X.shape[1:])
        new = _multiply([X.shape[at] if size == 0 else size for at, size in enumerate(shape)][1:])
        if None not in (rows, new) and rows != new:  # Paddle would keep the LoD
            refuse(f"attribute shape={shape}: expected rows of the same size, because X has a LoD")
    return X.reshape(*shape)


def _multiply(sizes: Sequence[int | None]) -> int | None:
    return None if None in sizes else math.prod(size or 0 for size in sizes)


@paddle("transpose2", data_format="AnyLayout")
def transpose(X, *, axis=()):
    return X.dense.transpose(*axis)


@paddle("squeeze2")
def squeeze(X, *, axes=()):
    """Removes the given axes whose size is one. Without ``axes``, removes all axes of size one."""
    sizes = X.shape
    if not axes and None in sizes:
        refuse(f"attribute axes=(): expected axes, or known sizes, got {sizes}; set axes")
    chosen = {axis % len(sizes) for axis in axes} or set(range(len(sizes)))
    gone = sorted(axis for axis in chosen if sizes[axis] in (1, None))
    if 0 in gone and X.ragged:
        refuse(f"attribute axes={axes}: expected no axis 0 for an input with a LoD")
    return X.squeeze(*gone) if gone else X


@paddle("flatten_contiguous_range")
def flatten(X, *, start_axis=1, stop_axis=1):
    """Joins the axes from ``start_axis`` to ``stop_axis``. Sizes of later axes must be known."""
    sizes = X.shape
    start, stop = start_axis % len(sizes), stop_axis % len(sizes)
    if (X.ragged and not start) or start > stop or None in sizes[stop + 1 :]:
        refuse(
            f"attributes {start_axis=}, {stop_axis=}: expected ascending axes, known sizes after"
            f" them, and no axis 0 of a LoD, got sizes {sizes}"
        )
    return X.reshape(*[0] * start, -1, *sizes[stop + 1 :])


@paddle("flatten2")
def flatten_to_matrix(X, *, axis=1):
    """Returns a matrix. The axes before ``axis`` become its rows, the other axes its columns. The
    matrix keeps the LoD if the number of rows is unchanged.
    """
    repeats = _multiply(X.shape[1:axis]) if axis else None
    if X.ragged and repeats is None:
        refuse(
            f"attribute {axis=}: expected 1 or more, and known sizes before it, for an input"
            f" {X.shape} with a LoD"
        )
    out = X.dense.Flatten(axis=axis)
    return out.under(X) if repeats == 1 else out


@paddle("unsqueeze2")
def unsqueeze(X, *, axes=()):
    """Inserts axes one after the other. Each index refers to the shape after the previous
    insertions.
    """
    placed = [False] * X.rank
    for axis in axes:
        place = axis if axis >= 0 else axis + len(placed) + 1
        if not 0 <= place <= len(placed):
            refuse(f"attribute {axes=}: expected axes of up to {len(placed)}, got {axis}")
        placed.insert(place, True)
    new = [at for at, added in enumerate(placed) if added]
    # With a new first axis, the result has no LoD. Paddle keeps the LoD if X has one row, because
    # the size of the first axis is then unchanged.
    return X.unsqueeze(*new) if new else X


@paddle("concat")
def concat(*X, axis=0):
    axis += X[0].rank if axis < 0 else 0
    levels = {x.depth for x in X}
    if not X[0].ragged:
        return X[0].Concat(*(x.dense for x in X[1:]), axis=axis)
    if axis:
        return X[0].Concat(*X[1:], axis=axis)
    if len(levels) > 1:
        refuse(f"inputs X: expected equally many LoD levels for axis=0, got {sorted(levels)}")
    return X[0].SequenceAppend(*X[1:])


@paddle("stack")
def stack(*X, axis=0):
    """Stacks the inputs along a new axis. With a new first axis, the result has no LoD. Paddle
    would keep a LoD that does not fit.
    """
    rank = X[0].rank
    first = X[0].dense if axis in (0, -rank - 1) else X[0]
    axis += rank + 1 if axis < 0 else 0
    return stack_values((first, *(x.dense for x in X[1:])), axis)


@paddle("split", AxisTensor="", SectionsTensorList="")
def split(X, *, axis=0, sections=(), num=0, op):
    if axis < 0:  # paddle.split never saves a negative axis
        refuse(
            f"attribute axis={axis}: expected 0 or more; Paddle 2.6.2 splits wrongly at a negative"
            " axis"
        )
    sections, size, count = list(sections), X.shape[axis], len(op.outputs.get("Out", ()))
    if -1 in sections:
        if size is None or sections.count(-1) > 1:
            refuse(
                f"attribute sections={sections}: expected at most one -1, and a known size of axis"
                f" {axis}, got an input {X.shape}"
            )
        sections[sections.index(-1)] = size - sum(sections) - 1
    if (len(sections) or num) != count:
        refuse(
            f"attributes sections, num: expected {count} parts, one per output, got"
            f" {len(sections) or num}"
        )
    x = X.dense if axis == 0 else X
    return x.Split(*([sections] if sections else []), axis=axis, outputs=count)


@paddle("shape")
def shape_(Input, *, wide=False):
    """Returns the sizes of all axes as int32. ``wide``: as int64, for shape64 of Paddle 3."""
    return Input.Shape().cast("int64" if wide else "int32")


@paddle("lookup_table")
def lookup_table(Ids, W, *, padding_idx=-1):
    """Returns the rows of W at ``Ids``, which has the shape (..., 1)."""
    return lookup_table_v2(Ids.squeeze(-1), W, padding_idx=padding_idx)


@paddle("lookup_table_v2")
def lookup_table_v2(Ids, W, *, padding_idx=-1):
    table = W
    if padding_idx != -1:
        rows = W.array.copy()
        if padding_idx == len(rows):  # the index after the last row also gets zeros
            rows = np.concatenate([rows, np.zeros_like(rows[:1])])
        if not 0 <= padding_idx < len(rows):
            refuse(f"attribute padding_idx={padding_idx}: expected -1 to {len(rows)}")
        rows[padding_idx] = 0
        table = W.constant(rows)
    return table.Gather(Ids, axis=0, non_negative=True)


def _keep_rows(x: Any, axes: object, *, rows_change: bool) -> None:
    if rows_change and x.ragged:
        refuse(f"attribute {axes}: {STALE_LOD}")


@paddle("gather", Axis="")
def gather(X, Index, *, axis=0, overwrite=True):
    """Returns the slices of X at indices (K,) or (K, 1), which must not be negative. Only the
    gradient uses ``overwrite``.
    """
    axis %= X.rank
    _keep_rows(X, f"{axis=}", rows_change=axis == 0)
    places = Index.dense.reshape(-1) if Index.rank > 1 else Index.dense
    return X.dense.Gather(places, axis=axis, non_negative=True).under(X)


@paddle("flip")
def flip(X, *, axis=()):
    return X.dense.flip(*axis).under(X)


@paddle("slice")
def slice_(
    Input,
    *,
    axes=(),
    decrease_axis=(),
    infer_flags=(),
    starts=Integers("StartsTensor", "StartsTensorList"),
    ends=Integers("EndsTensor", "EndsTensorList"),
    op,
):
    x = Input.dense if 0 in axes else Input
    element = _slice_element(op, x, axes[0], starts, ends) if len(axes) == 1 else None
    if element and decrease_axis:
        out = element
    else:
        out = element.unsqueeze(*axes) if element else x.Slice(starts, ends, axes)
        out = out.squeeze(*decrease_axis) if decrease_axis else out
    if decrease_axis and op.gives_one() and len(decrease_axis) == Input.rank:
        return out.reshape(1)
    return out


def _slice_element(op: Any, x: Any, axis: int, starts: Any, ends: Any) -> Any:
    """Returns the last element of a tensor array, or a tensor's element at a loop's counter.

    Returns None for other slices. An element of the tensor 0, 1, 2, ... equals its index, so the
    index is returned.
    """
    builder, begin, end = op.builder, starts.type, ends.type
    array = builder.stacked.get(op.variable("Input"))
    if array is not None and axis == 0 and begin.numbers is not None and end.numbers is not None:
        if [*begin.numbers, *end.numbers] == [-1, _ALL]:
            last = array.parts[-1].last
            return x.new(last).Identity() if last else None
    if builder.outer is None or begin.numbers is not None:
        return None
    if not isinstance(begin.value, tuple) or not isinstance(end.value, tuple):
        return None
    (place,), (after,) = begin.value, end.value
    if after - place != Size.of(1) or place != place.most():
        return None
    index = starts.squeeze(0)
    if x.name in builder.indices:
        return index.cast(op.dtype("Input"))
    if turned := builder.turn_outside(x.name, axis, x.rank):
        x, axis = x.new(turned), 0
    return x.Gather(index, axis=axis, non_negative=True)


_TENSORS: dict[str, Any] = {
    f"{role}{kind}": ""
    for role in ("Starts", "Ends", "Strides")
    for kind in ("Tensor", "TensorList")
}


@paddle("strided_slice", decrease_axis=(), **_TENSORS)
def strided_slice(Input, *, axes=(), starts=(), ends=(), strides=(), infer_flags=(), op):
    """Returns a slice. A stride below 1 is read only in ``x[::-1]``; Paddle 2 saves its end as
    -1.
    """
    back = (_ALL, -1 if 2_000_000 <= op.version < 3_000_000 else -_ALL - 1, -1)
    cuts = [*zip(starts, ends, axes, strides, strict=True)]
    turned = [axis for start, end, axis, stride in cuts if (start, end, stride) == back]
    rest = [cut for cut in cuts if cut[2] not in turned]
    if min((cut[3] for cut in rest), default=1) < 1:
        refuse(f"attribute strides={strides}: expected 1 or more")
    _keep_rows(Input, f"{axes=}", rows_change=0 in axes)
    out = Input.flip(*turned) if turned else Input
    return out.Slice(*map(list, zip(*rest, strict=True))) if rest else out


@paddle("set_value")
def set_value(
    Input,
    ValueTensor=None,
    *,
    axes=(),
    starts=Integers("StartsTensor", "StartsTensorList"),
    ends=Integers("EndsTensor", "EndsTensorList"),
    steps=Integers("StepsTensor", "StepsTensorList"),
    decrease_axes=(),
    none_axes=(),
    dtype=DtypeNumber(5),
    shape=(),
    values=Elements(),
):
    """Returns the input after writing a value to a slice. To find the elements to overwrite, the
    same slice is taken from a tensor of flat indices.
    """
    if ValueTensor:
        value = ValueTensor.dense
    else:
        value = Input.constant(np.asarray(values, Input.dtype).reshape(shape))
    x = Input.dense
    sizes = x.sizes
    count = sizes.ReduceProd([0], keepdims=0)
    places = count_up(count).Reshape(sizes)
    places = places.Slice(starts, ends, axes, steps)
    places = places.squeeze(*decrease_axes) if decrease_axes else places
    places = places.unsqueeze(*none_axes) if none_axes else places
    if value.rank > places.rank:
        refuse(f"input ValueTensor: expected at most {places.rank} axes, got {value.rank}")
    value = value.cast(Input.dtype).Expand(places.sizes).reshape(-1)
    return x.reshape(-1).ScatterElements(places.reshape(-1), value, axis=0).Reshape(sizes)


# The rules of operators that models of Paddle's dynamic mode (dygraph) use.
#
# The dynamic mode has no LoD, so an input with a LoD is refused. Slots and defaults come from the
# OpMaker classes of Paddle 2.6. Differences between Paddle's kernels and their documentation were
# measured with 2.6.2 and 3.3.1.


@dygraph("elementwise_mod", axis=-1)
def mod(X, Y):
    """Returns the remainder of X / Y with the sign of Y."""
    return remainder(X, Y) if X.dtype.kind == "f" else X.Mod(Y)


@dygraph("elementwise_floordiv", axis=-1)
def floordiv(X, Y):
    """Returns X / Y, rounded towards minus infinity."""
    if X.dtype.kind == "f":
        return (X / Y).Floor()
    if X.type.sizes is not None and Y.known is not None and (Y.known > 0).all():
        return X / Y  # stays a formula of sizes
    return (X - X.Mod(Y)) / Y


@dygraph("bmm")
def bmm(X, Y):
    return X @ Y


@dygraph("mv")
def mv(X, Vec):
    return X @ Vec


@dygraph("einsum")
def einsum(*Operands, equation=""):
    return Operands[0].Einsum(*Operands[1:], equation=equation)


@dygraph("mish")
def mish(X, *, threshold=20.0):
    """Returns x * tanh(softplus(x)). Above the threshold Paddle uses x in place of softplus(x),
    which rounds to x.
    """
    check_threshold(threshold)
    return X * X.Softplus().Tanh()


@dygraph("logsigmoid")
def log_sigmoid(X):
    return X.Neg().Softplus().Neg()


@dygraph("isfinite_v2")
def isfinite(X):
    check_floats(X)
    return X.Abs().Less(math.inf)


@dygraph("isinf_v2")
def isinf(X):
    check_floats(X)
    return X.Abs().Equal(math.inf)


@dygraph("logsumexp")
def logsumexp(X, *, axis=(0,), keepdim=False, reduce_all=False, in_dtype=-1, out_dtype=-1):
    axes = range(X.rank) if reduce_all or not axis else axis
    return X.reduce("ReduceLogSumExp", axes, X.rank, keepdim)


@dygraph("frobenius_norm")
def frobenius_norm(X, *, dim=(0,), keep_dim=False, reduce_all=False, in_dtype=-1, out_dtype=-1):
    axes = range(X.rank) if reduce_all or not dim else dim
    return X.reduce("ReduceL2", axes, X.rank, keep_dim)


_NORMS = {1.0: "ReduceL1", 2.0: "ReduceL2", math.inf: "ReduceMax", -math.inf: "ReduceMin"}


@dygraph("p_norm")
def p_norm(X, *, porder=OneOf(2.0, _NORMS), axis=-1, epsilon=1e-12, keepdim=False, asvector=False):
    """Returns the p-norm along an axis. Only the gradient uses ``epsilon``."""
    x = X.Abs() if porder in ("ReduceMax", "ReduceMin") else X
    return x.reduce(porder, range(X.rank) if asvector else [axis], X.rank, keepdim)


@paddle("size")
def size_(Input, *, op):
    out = Input.dense.Size()
    return out.reshape(1) if op.gives_one() else out


@dygraph("argsort")
def argsort(X, *, axis=-1, descending=False, stable=False):
    """Returns the sorted elements and their indices. Always sorts stably, Paddle only with
    ``stable``.
    """
    axis %= max(X.rank, 1)
    count = X.Shape(start=axis, end=axis + 1)
    values, places = X.TopK(count, axis=axis, largest=int(descending), outputs=2)
    return {"Out": values, "Indices": places}


def _counts_from_zero(op: Any) -> bool:
    """Returns whether negative indices are invalid, which is the rule of Paddle 2. Paddle 2.6
    raises an error for them, except in take_along_axis, which reads the memory before a row.
    """
    return op.version < 3_000_000 and op.version not in VERSIONS  # of PIR, Paddle 3's format


@dygraph("index_select")
def index_select(X, Index, *, dim=0, op):
    return X.Gather(Index, axis=dim, non_negative=_counts_from_zero(op))


@dygraph("gather_nd")
def gather_nd(X, Index, *, op):
    return X.GatherND(Index.cast("int64"), non_negative=_counts_from_zero(op))


@dygraph("index_sample")
def index_sample(X, Index):
    return X.GatherElements(Index, axis=1, non_negative=True)


@dygraph("take_along_axis")
def take_along_axis(Input, Index, *, Axis=0, op):
    return Input.GatherElements(Index, axis=Axis, non_negative=_counts_from_zero(op))


@dygraph("where_index")
def where_index(Condition):
    return Condition.NonZero().transpose(1, 0)


@dygraph("masked_select")
def masked_select(X, Mask):
    """Returns the elements of X for which the mask is true. X and the mask have the same shape."""
    if X.rank != Mask.rank:
        refuse(f"input Mask: expected {X.rank} axes, as many as X, got {Mask.rank}")
    return X.GatherND(Mask.NonZero().transpose(1, 0))


@dygraph("index_put")
def index_put(x, indices=(), value=None, *, accumulate=False, op):
    """Returns x with a value at the given indices. ``indices`` holds one tensor for each of the
    first axes, or one boolean mask.
    """
    first = indices[0]
    if first.type.dtype == "bool":
        if len(indices) > 1:
            refuse("input indices: expected one mask, or integers only")
        places, count = first.NonZero().transpose(1, 0), first.rank
    else:
        count, places = len(indices), first
        for other in indices[1:]:
            places = places.Add(other.Mul([0]))  # broadcasts the shapes
        each = [index.cast("int64").Expand(places.sizes) for index in indices]
        places = stack_values(each, places.rank)
    shape = places.sizes.Slice([0], [-1], [0]).join(x.sizes.Slice([count], [_ALL], [0]))
    updates = value.cast(x.dtype).Expand(shape)
    reduction = "add" if accumulate else "none"
    return {[*op.outputs][0]: x.ScatterND(places, updates, reduction=reduction)}


@dygraph("one_hot_v2")
def one_hot(X, *, depth=-1, dtype=DtypeNumber(5), allow_out_of_range=False):
    """Returns a one-hot row for each index. With ``allow_out_of_range``, an index out of range gets
    a row of zeros.
    """
    if depth < 1:
        refuse(f"attribute depth={depth}: expected 1 or more")
    if not allow_out_of_range:
        loading().ask(depth * depth * np.dtype(dtype).itemsize, f"a table of depth {depth}")
        return X.constant(np.eye(depth, dtype=dtype)).Gather(X, axis=0, non_negative=True)
    loading().ask(8 * depth, f"a list of depth {depth}")
    return X.unsqueeze(-1).Equal(np.arange(depth, dtype=X.dtype)).cast(dtype)


@dygraph("roll", ShiftsTensor="")
def roll(X, *, shifts=(), axis=()):
    """Shifts elements along axes. Elements shifted past the end continue at the beginning."""
    out, sizes = X, X.shape
    if not axis:
        out, sizes = X.reshape(-1), (_multiply(sizes),)
    for shift, place in zip(shifts, axis or (0,), strict=True):
        size, place = sizes[place], place % len(sizes)
        if size is None:  # the size is known only at run time
            counted = out.Shape(start=place, end=place + 1)
            cut = counted.constant(np.asarray([-shift])).Mod(counted.Max([1])) - counted
        else:
            cut = [-shift % max(size, 1) - size]
        last, first = out.Slice(cut, [_ALL], [place]), out.Slice([0], cut, [place])
        out = last.Concat(first, axis=place)
    return out if axis else out.Reshape(X.Shape())


# The rules of Paddle's operators on ragged sequences, which are tensors with a LoD.
#
# Slots, defaults and the LoD of outputs come from sequence_ops/ of Paddle 2.6, measured with 2.6.2.

POOLS = ("AVERAGE", "SUM", "SQRT", "LAST", "FIRST", "MAX")


_POOLS = {each: each.lower() for each in POOLS}


@paddle("sequence_pool")
def sequence_pool(X, *, pooltype=OneOf("AVERAGE", _POOLS), pad_value=0.0):
    """Reduces each sequence of the innermost LoD level to one row. The outer LoD levels are
    unchanged.
    """
    return X.with_lod().SequencePool(kind=pooltype, empty=pad_value)


@paddle("sequence_conv", contextStride=1, paddingTrainable=False, PaddingData="")
def sequence_conv(X, Filter, *, contextLength=1, contextStart=0):
    """Multiplies the window of rows around each row by the filter. Rows outside the sequence are
    zeros.
    """
    if not 0 < contextLength <= 2**10 or abs(contextStart) > 2**10:
        refuse(
            f"attributes contextLength={contextLength}, contextStart={contextStart}: expected 1 to"
            " 1024, and -1024 to 1024"
        )
    return X.with_lod().SequenceContext(length=contextLength, start=contextStart) @ Filter


@paddle("fusion_seqconv_eltadd_relu", contextStride=1)
def fusion_seqconv_eltadd_relu(X, Filter, Bias, *, contextLength, contextStart=0):
    windows = sequence_conv(X, Filter, contextLength=contextLength, contextStart=contextStart)
    return (windows + Bias).Relu()


@paddle("sequence_expand")
def sequence_expand(X, Y, *, ref_level=-1):
    """Repeats sequence n of X once for each row or subsequence in element n of LoD level
    ``ref_level`` of Y.
    """
    depth = Y.with_lod().depth
    if not -1 <= ref_level < depth or X.depth > 1:
        refuse(
            f"attribute ref_level={ref_level}: expected -1 to {depth - 1}, and at most 1 LoD level"
            f" of X, got {X.depth}"
        )
    return X.SequenceExpand(Y, level=ref_level % depth)


@paddle("sequence_expand_as")
def sequence_expand_as(X, Y):
    """Repeats row n of X for each row of sequence n of Y. The result has the LoD of Y."""
    return X.dense.SequenceExpand(Y.with_lod(1), level=0).SequenceLike(Y)


@paddle("sequence_concat")
def sequence_concat(*X):
    """Concatenates sequence n of all inputs to sequence n of the result."""
    if any(x.depth != 1 for x in X):
        refuse(f"inputs X: expected one LoD level each, got {[x.depth for x in X]}")
    return X[0].SequenceConcat(*X[1:])


@paddle("sequence_pad")
def sequence_pad(X, PadValue, *, padded_length=-1):
    """Returns padded sequences (N, T, ...) and their lengths (N,). T is ``padded_length``, or the
    longest length if that is -1.
    """
    time = {} if padded_length == -1 else {"time": padded_length}
    padded = X.with_lod(1).SequenceFill(PadValue, **time)
    return {"Out": padded, "Length": X.SequenceLengths()}


@paddle("sequence_unpad")
def sequence_unpad(X, Length):
    return X.dense.SequenceUnpad(Length.dense)


def _offsets(lengths: Any) -> Any:
    return lengths.constant(np.asarray([0], np.int64)).join(lengths.CumSum(0))


@paddle("sequence_slice")
def sequence_slice(X, Offset, Length):
    """Returns ``Length`` steps of each sequence, starting with step ``Offset``."""
    x = X.with_lod(1)
    first, count = (each.dense.cast("int64").reshape(-1) for each in (Offset, Length))
    first = _offsets(x.SequenceLengths()).Slice([0], [-1], [0]) + first
    rows = x.dense.Shape(start=0, end=1).squeeze(0)
    place = count_up(rows)
    begin, end = (each.SequenceExpand(x, level=0) for each in (first, first + count))
    chosen = place.GreaterOrEqual(begin).And(place.Less(end)).NonZero().reshape(-1)
    return x.dense.Gather(chosen, axis=0, non_negative=True).SequenceReset(_offsets(count))


@paddle("sequence_erase")
def sequence_erase(X, *, tokens=()):
    """Removes the steps whose value is one of the tokens."""
    x = X.with_lod(1)
    same = x.dense.reshape(-1, 1).Equal(x.constant(np.asarray(tokens, X.dtype)))
    kept = same.cast("int64").ReduceSum([1], keepdims=0).Equal([0])
    ends = _offsets(kept.cast("int64")).Gather(_offsets(x.SequenceLengths()), axis=0)
    rows = kept.NonZero().reshape(-1)
    return x.dense.Gather(rows, axis=0, non_negative=True).SequenceReset(ends)


@paddle("sequence_enumerate")
def sequence_enumerate(X, *, win_size=2, pad_value=0):
    """Returns, for each step, the ``win_size`` steps that begin with it. After the end of the
    sequence, steps are ``pad_value``.
    """
    if not 0 < win_size <= 2**10:
        refuse(f"attribute win_size={win_size}: expected 1 to 1024")
    pad = X.constant(pad_value)
    return (X.with_lod(1) - pad).SequenceContext(length=win_size, start=0) + pad


@paddle("sequence_reshape")
def sequence_reshape(X, *, new_dim):
    """Reshapes each sequence to steps of ``new_dim`` elements."""
    x = X.with_lod(1)
    width = x.shape[1] if x.rank == 2 else None
    if width is None or new_dim < 1:
        refuse(
            f"attribute {new_dim=}: expected 1 or more, and an input of two axes and known width,"
            f" got {x.shape}"
        )
    lengths = x.SequenceLengths().Mul([width]).Div([new_dim])  # if inexact, the sum differs
    return x.dense.reshape(-1, new_dim).SequenceReset(_offsets(lengths))


@paddle("sequence_scatter")
def sequence_scatter(X, Ids, Updates):
    """Adds sequence n of ``Updates`` to row n of X, at the columns in sequence n of ``Ids``."""
    ids = Ids.with_lod(1)
    rows = X.dense.Shape(start=0, end=1).squeeze(0)
    each = count_up(rows).SequenceExpand(ids, level=0)
    places = each.unsqueeze(1).Concat(ids.dense.cast("int64").reshape(-1, 1), axis=1)
    return X.dense.ScatterND(places, Updates.dense.reshape(-1), reduction="add")


@paddle("lod_reset", append=False)
def lod_reset(X, Y=None, *, target_lod=()):
    if Y and Y.ragged:  # Y takes precedence over target_lod
        return X.under(Y)
    if Y and Y.dtype.kind != "i":
        refuse(f"input Y: expected a LoD, or offsets as integers, got {Y.dtype} without a LoD")
    if not Y and not target_lod:
        refuse("input Y, attribute target_lod: expected one of them, got none")
    return X.SequenceReset(Y or target_lod)


@paddle("crf_decoding", Length="")
def crf_decoding(Emission, Transition, Label=None):
    """Returns the best path of tags. With ``Label``, returns 1 for each step whose tag equals the
    label, otherwise 0.
    """
    path = Emission.with_lod().CrfDecode(Transition)
    return path.Equal(Label.dense.reshape(-1, 1)).cast("int64") if Label else path


@paddle("viterbi_decode")
def viterbi_decode(Input, Transition, Length, *, include_bos_eos_tag=True):
    """Returns the best paths of padded sequences, without their scores.

    The last row of ``Transition`` scores the first tag of a sequence. The row before scores the
    last tag. Paddle's documentation says columns, but its kernels read rows.
    """
    between = Transition.array
    whole = np.concatenate([between[:-3:-1] * include_bos_eos_tag, between])
    path = Input.dense.SequenceUnpad(Length.dense).CrfDecode(whole)
    return {"Path": path.SequenceFill(path.constant(np.asarray(0, np.int64))).squeeze(2)}
