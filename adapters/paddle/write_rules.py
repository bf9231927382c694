"""Writes arithmetic, indexing and reshaping operators as Paddle's operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.paddle.operators import ROWS, TYPES, Row
from onernn.adapters.paddle.writer import ALL, RULES, Rule, Variable, Writing, integers, rule
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Node
from onernn.ir.operator import OPERATORS

# Writes canonical operators for which the table has a row.


def _unary(row: Row, x: Variable, *, w: Writing) -> Variable:
    if OPERATORS[w.node.op].slots[0].ragged:
        x.check_levels()
    if w.node.op == "Relu" and not x.dtype.startswith("float"):
        raise UnsupportedError(f"expected floating point, got {x.dtype}; cast the input")
    attributes = {
        named.name: named.theirs(getattr(w.node.attrs, name))
        for name, named in row.attributes.items()
    }
    return w.emit(row.type, x, **attributes, **row.written)


def _binary(row: Row, out: Variable, *others: Variable, w: Writing) -> Variable:
    """Writes an operator with any number of inputs as a chain of binary operators."""
    for other in others:
        if w.node.op in ("Div", "Pow") and out.dtype != other.dtype:
            raise UnsupportedError(
                f"expected inputs of one dtype, got {out.dtype} and {other.dtype}; cast one of them"
            )
        out = out.binary(row.type, other)
    return out if others else out.copy()


def enter_rows() -> None:
    """Registers rules for the rows of Paddle's table whose operators have no other rule."""
    for row in ROWS:
        write = partial(_unary if len(row.inputs) == 1 else _binary, row)
        RULES.setdefault(row.op, Rule(write, row.attributes))
    RULES["Sum"] = RULES["Add"]


# Writes ONNX's arithmetic, products and reductions as Paddle's operators.
#
# Slots and attributes come from the OpMaker classes of Paddle 2.6, and are the same in 3.x.

_COMPUTED = frozenset("bool int32 int64 float32 float64".split())
"""The dtypes in which Paddle's kernels on CPU compute."""


@rule("Neg")
def neg(x):
    return x.scale_by(-1)


@rule("Cast")
def cast(x, *, to):
    if str(to) not in _COMPUTED:
        raise UnsupportedError(f"attribute {to=}: expected one of {', '.join(sorted(_COMPUTED))}")
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
    """Writes a choice between elements. Paddle's operator needs inputs of equal shapes, so they are
    multiplied by ones of the broadcast shape.
    """
    condition, x, y = condition.dense, x.dense, y.dense
    if x.dtype != y.dtype:
        raise UnsupportedError(
            f"expected inputs of one dtype, got {x.dtype} and {y.dtype}; cast one of them"
        )
    if x.dtype == "bool":
        chosen, other = condition.binary("logical_and", x), condition.logical_not()
        return chosen.binary("logical_or", other.binary("logical_and", y))
    truth = condition.cast(x.dtype)
    ones = w.fill((truth + x + y).shape(), np.ones((), x.dtype))
    return (truth * ones).cast("bool").where(X=x * ones, Y=y * ones)


def multiply(x: Variable, y: Variable, *, transposed: bool = False) -> Variable:
    """Returns x @ y, or x @ y.T if ``transposed``. A ragged x keeps its LoD."""
    if y.rank == 2 and x.rank >= 2 and not transposed:
        return x.mul(Y=y, x_num_col_dims=x.rank - 1, y_num_col_dims=1)
    out = x.matmul_v2(Y=y, trans_x=False, trans_y=transposed)
    return out.under(x) if x.depth else out


@rule("MatMul")
def matmul(x, y, *, w):
    """Writes a product. If x is the output of a SequenceContext, writes a sequence_conv."""
    maker = w.graph.producer(w.node.inputs[0])
    if maker is not None and maker.op == "SequenceContext" and y.rank == 2:
        return convolve(maker, y)
    return multiply(x, y)


def convolve(window: Node, matrix: Variable) -> Variable:
    """Returns a sequence_conv: the product of a SequenceContext's output and a matrix."""
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
_SUMMED: dict[str, tuple[Callable[[Variable], Variable], Callable[[Variable], Variable]]] = {
    "ReduceL1": (lambda x: x.abs(), lambda out: out),
    "ReduceL2": (lambda x: x * x, lambda out: out.sqrt()),
    "ReduceSumSquare": (lambda x: x * x, lambda out: out),
    "ReduceLogSum": (lambda x: x, lambda out: out.log()),
}
"""The function that is applied to each element before the sum, and the function that is applied to
the sum.
"""


@rule(" ".join(_SUMMED))
def reduce_sums(x, axes=None, *, keepdims, noop_with_empty_axes, w):
    (before, after), chosen = _SUMMED[w.node.op], integers(axes)
    x = before(x.dense)
    if not chosen and noop_with_empty_axes:
        return after(x)
    return after(_reduce("reduce_sum", x, chosen, keepdims))


@rule("ReduceLogSumExp")
def reduce_log_sum_exp(x, axes=None, *, keepdims, noop_with_empty_axes):
    given = integers(axes)
    if noop_with_empty_axes and not given:
        return x.copy()
    chosen = sorted(axis % x.rank for axis in given) or list(range(x.rank))
    whole = len(chosen) == x.rank
    return x.dense.logsumexp(axis=chosen, keepdim=bool(keepdims), reduce_all=whole)


@rule("ReduceSum ReduceMean ReduceProd ReduceMax ReduceMin")
def reduce(x, axes=None, *, keepdims, noop_with_empty_axes, w):
    kind, chosen = TYPES[w.node.op], integers(axes)
    if x.dtype == "bool":
        kind = _OF_TRUTHS.get(w.node.op, kind)
    if not chosen and noop_with_empty_axes:
        return x.dense.copy()
    return _reduce(kind, x.dense, chosen, keepdims)


def _reduce(kind: str, x: Variable, axes: Sequence[int], keepdims: int) -> Variable:
    """Writes a reduction and a cast to the original dtype, because Paddle sums int32 as int64."""
    chosen = sorted(axis % x.rank for axis in axes) or list(range(x.rank))
    out = x.w.emit(
        kind,
        x,
        dim=chosen,
        keep_dim=bool(keepdims),
        reduce_all=len(chosen) == x.rank,
        in_dtype=-1,
        out_dtype=-1,
    )
    return out.cast(x.dtype)


@rule("ArgMax ArgMin")
def extreme(x, *, axis, keepdims, select_last_index, w):
    if select_last_index:
        raise UnsupportedError(
            "attribute select_last_index=1: expected 0, because Paddle takes the first of equals"
        )
    kind = "arg_max" if w.node.op == "ArgMax" else "arg_min"
    return w.emit(kind, x, axis=int(axis), keepdims=bool(keepdims), flatten=False, dtype=3)


@rule("CumSum")
def cum_sum(x, axis, *, exclusive, reverse, w):
    """Writes a cumulative sum. An exclusive sum adds up a zero and all elements except the last.

    Paddle's exclusive cumsum is not used, because it returns a single element unchanged.
    """
    x, (along,) = x.dense, integers(axis)
    along %= x.rank
    if exclusive:
        zero = w.fill(x.take({along: (0, 1)}).shape(), np.zeros((), x.dtype))
        rest = x.take({along: (1, ALL) if reverse else (0, -1)})
        x = w.concat([rest, zero] if reverse else [zero, rest], along)
    return x.cumsum(axis=along, flatten=False, exclusive=False, reverse=bool(reverse))


@rule("Mod")
def mod(x, y, *, fmod):
    """Writes the remainder of floats as the remainder of absolute values with the dividend's
    sign.
    """
    x, y, floats = x.dense, y.dense, x.dtype.startswith("float")
    if bool(fmod) != floats:
        raise UnsupportedError(f"{fmod=} of {x.dtype}: expected 0 of integers, 1 of floats")
    if not floats:
        return x.binary("elementwise_mod", y)
    return x.sign() * x.abs().binary("elementwise_mod", y.abs())


@rule("PRelu")
def prelu(x, slope, *, w):
    zero = w.constant(np.zeros((), x.dtype))
    return x.binary("elementwise_max", zero) + x.binary("elementwise_min", zero) * slope


@rule("Round")
def round_(x, *, w):
    """Rounds .5 to even integers, unlike Paddle's round."""
    whole = x.floor()
    rest, half = x - whole, w.constant(np.full((), 0.5, x.dtype))
    odd = whole.binary("elementwise_mod", w.constant(np.full((), 2, x.dtype))).cast("bool")
    to_even = rest.binary("equal", half).binary("logical_and", odd)
    return whole + rest.binary("greater_than", half).binary("logical_or", to_even).cast(x.dtype)


@rule("LogSoftmax")
def log_softmax(x, *, axis):
    """Writes the formula, because Paddle's log_softmax on a CPU returns no value below -64."""
    rest = x - _reduce("reduce_max", x.dense, [axis], 1)
    return rest - _reduce("reduce_sum", rest.dense.exp(), [axis], 1).log()


@rule("TopK")
def top_k(x, k, *, axis, largest, sorted, w):
    """Writes top_k_v2, and a search for the indices. ONNX orders equal elements by their indices,
    Paddle in any way.
    """
    count = {"K": k.cast("int32").reshape(1)} if k.known is None else {"k": integers(k)[0]}
    values = w.emit("top_k_v2", x, axis=int(axis), largest=bool(largest), sorted=True, **count)
    if not w.graph.is_read(w.node.outputs[1]):
        return values, None
    rank, order = x.rank, [at for at in range(x.rank) if at != axis % x.rank]
    order.append(axis % rank)  # the axis becomes the last one
    rows, best = (each.dense.transpose(*order) for each in (x, values))
    column, line = best.unsqueeze2(axes=[rank]), rows.unsqueeze2(axes=[rank - 1])
    same = column.binary("equal", best.unsqueeze2(axes=[rank - 1])).cast("int64")
    nth = _reduce("reduce_sum", same.tril_triu(lower=True, diagonal=0), [rank], 1)
    count = column.binary("equal", line).cast("int64").cumsum(axis=rank, flatten=False)
    hit = count.binary("equal", nth).cast("int64")  # first true at the nth of equal elements
    found = hit.arg_max(axis=rank, keepdims=False, flatten=False, dtype=3)
    return values, found.transpose(*map(order.index, range(rank)))


@rule("LayerNormalization")
def layer_norm(x, scale, bias=None, *, axis, epsilon, stash_type, w):
    if any(map(w.graph.is_read, w.node.outputs[1:])):
        raise UnsupportedError("outputs Mean, InvStdDev: expected that nothing reads them")
    axis, shape = axis % x.rank, scale.sizes
    if len(shape) != x.rank - axis or None in shape:
        raise UnsupportedError(
            f"input Scale: expected the known sizes of the axes from {axis} on, got {shape}"
        )
    if None in x.sizes[axis:]:  # the normalized axes have the sizes of the scale
        x = x.reshape(*[0] * axis, *shape)
    return x.layer_norm(
        Scale=scale.reshape(-1),
        Bias=bias and bias.reshape(-1),
        epsilon=float(epsilon),
        begin_norm_axis=axis,
    )


# Writes ONNX's operators that index, reshape, join or fill tensors as Paddle's operators.
#
# Slots and attributes come from the OpMaker classes of Paddle 2.6, and are the same in 3.x.


@rule("Gather")
def gather(table, index, *, axis, non_negative, w):
    """Writes a lookup_table_v2, which keeps the LoD, for rows of a float table. Writes a gather
    with a list of indices for other elements.
    """
    axis, wide = axis % table.rank, index.cast("int64")
    if not non_negative:
        wide = _count_from_zero(table, axis, wide)
    if axis == 0 and table.rank == 2 and table.dtype.startswith("float"):
        return wide.lookup_table_v2(W=table, padding_idx=-1)
    table = table.dense
    out = table.gather(Index=wide.dense.reshape(-1), axis=axis)
    if index.rank == 1:
        return out
    if not index.rank:
        return out.squeeze2(axes=[axis])
    sizes = [table.size_or_number(at) for at in range(table.rank)]
    sizes[axis : axis + 1] = [index.size_or_number(at) for at in range(index.rank)]
    return out.resize(*_with_rest(sizes))


def _with_rest(sizes: Sequence[int | Variable]) -> list[int | Variable]:
    """Returns the sizes. If exactly one size is known only at run time, and no size is 0, that size
    becomes -1.
    """
    if sum(isinstance(size, Variable) for size in sizes) > 1 or 0 in sizes:
        return list(sizes)
    return [size if isinstance(size, int) else -1 for size in sizes]


def _count_from_zero(table: Variable, axis: int, index: Variable) -> Variable:
    """Converts negative indices, which count from the end, to indices from the beginning."""
    if index.known is not None and index.known.min(initial=0) >= 0:
        return index
    w, size = index.w, table.sizes[axis]
    last = table.size(axis).squeeze2(axes=[0]) if size is None else w.constant(np.int64(size))
    return _add_to_negative(index, last)


def _add_to_negative(index: Variable, sizes: Variable) -> Variable:
    below = index.binary("less_than", index.w.constant(np.int64(0)))
    return index + below.cast("int64") * sizes


@rule("GatherND")
def gather_nd(table, index, *, batch_dims, non_negative, w):
    """Writes a GatherND. Along the first ``batch_dims`` axes, each index addresses its own
    position.
    """
    table, index = table.dense, index.dense.cast("int64")
    depth = index.sizes[-1]
    if not non_negative and (index.known is None or index.known.min(initial=0) < 0):
        ends = table.shape().take({0: (batch_dims, batch_dims + depth)}).cast("int64")
        index = _add_to_negative(index, ends)
    first = index.take({index.rank - 1: (0, 1)})
    places = [w.fill(first.shape(), np.ones((), np.int64)).before(at) for at in range(batch_dims)]
    whole = w.concat([*places, index], index.rank - 1) if places else index
    return table.gather_nd(Index=whole)


@rule("GatherElements")
def gather_elements(x, index, *, axis, non_negative):
    x, axis, wide = x.dense, axis % x.rank, index.dense.cast("int64")
    if not non_negative:
        wide = _count_from_zero(x, axis, wide)
    places = [place.unsqueeze2(axes=[x.rank]) for place in _places(wide, axis)]
    return x.gather_nd(Index=x.w.concat(places, x.rank))


def _places(index: Variable, axis: int) -> list[Variable]:
    """Returns one index per axis: ``index`` for ``axis``, and each element's position for other
    axes.
    """
    ones = index.w.fill(index.shape(), np.ones((), np.int64))
    return [index if at == axis else ones.before(at) for at in range(index.rank)]


@rule("ScatterND")
def scatter_nd(x, index, updates, *, reduction):
    x, index, depth = x.dense, index.dense.cast("int64"), index.sizes[-1]
    ends = x.shape().take({0: (0, depth)}).cast("int64")
    index = _add_to_negative(index, ends)
    last = index.rank - 1
    places = [index.take({last: (at, at + 1)}, [last]) for at in range(depth)]
    return _put(x, places, updates.dense, reduction)


@rule("ScatterElements")
def scatter_elements(x, index, updates, *, axis, reduction):
    x, axis = x.dense, axis % x.rank
    wide = _count_from_zero(x, axis, index.dense.cast("int64"))
    return _put(x, _places(wide, axis), updates.dense, reduction)


def _put(x: Variable, places: Sequence[Variable], updates: Variable, reduction: str) -> Variable:
    if reduction not in ("none", "add"):
        raise UnsupportedError(f"attribute {reduction=}: expected none or add")
    return x.w.emit("index_put", x, indices=places, value=updates, accumulate=reduction == "add")


@rule("NonZero")
def non_zero(x):
    return x.dense.where_index().transpose(1, 0)


@rule("Compress")
def compress(x, condition, *, axis):
    x = x.dense.reshape(-1) if axis is None else x.dense
    places = condition.dense.where_index().reshape(-1)
    return x.gather(Index=places, axis=(axis or 0) % x.rank)


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
        out_rank = len(w.types[w.node.outputs[0]].counts)
        return x.reshape(*[-1] * out_rank, computed=shape)
    sizes = integers(shape)
    if 0 in sizes and allowzero:
        raise UnsupportedError(
            f"attribute allowzero=1: expected no 0 in {sizes}, because Paddle keeps the input's"
            " size there"
        )
    if not sizes:  # Paddle's reshape takes no empty list of sizes
        return x.dense.reshape(1).squeeze2(axes=[0])
    return x.reshape(*sizes)


@rule("Flatten")
def flatten(x, *, axis):
    axis, later = axis + (x.rank if axis < 0 else 0), x.sizes[axis:]
    if axis == 1:
        return x.reshape(0, -1)
    if None in later:
        raise UnsupportedError(
            f"attribute {axis=}: expected sizes after it that are known before a run, got {later};"
            " declare them (--input)"
        )
    return x.dense.reshape(-1, math.prod(size or 0 for size in later))


@rule("Transpose")
def transpose(x, *, perm):
    return x.transpose(*(perm or range(x.rank)[::-1]))


@rule("Einsum")
def einsum(*values, equation, w):
    """Writes an einsum. An einsum of one input becomes a sum and a transpose. An einsum of two
    inputs becomes Paddle's einsum, which accepts no ellipsis and crashes the process if the
    equation has a capital letter. So the ellipsis and capital letters are replaced by small
    letters. Paddle's einsum does not broadcast, so shared axes of size one are removed first.
    """
    given, arrow, target = equation.replace(" ", "").partition("->")
    sources = given.split(",")
    ranks = [v.rank - len(s.replace("...", "")) for v, s in zip(values, sources, strict=True)]
    dotted = [rank for rank, source in zip(ranks, sources, strict=True) if "..." in source]
    dots = "".join(map(str, range(max(dotted, default=0))))
    pairs = zip(ranks, sources, strict=True)
    sources = [s.replace("...", dots[len(dots) - rank :] if rank else "") for rank, s in pairs]
    target = target.replace("...", dots)
    letters = dict.fromkeys("".join(sources))
    twice = any(len(set(each)) < len(each) for each in (*sources, target))
    if not arrow or twice or len(values) > 2 or len(letters) > 26:
        raise UnsupportedError(f"{equation=}: expected one or two values, -> and no letter twice")
    if len(values) == 1:
        (x,), (source,) = values, sources
        gone = [at for at, letter in enumerate(source) if letter not in target]
        left = [letter for letter in source if letter in target]
        out = _reduce("reduce_sum", x.dense, gone, keepdims=0) if gone else x
        return out.transpose(*map(left.index, target)) if len(left) > 1 else out
    if not values[0].dtype.startswith("float"):
        raise UnsupportedError(
            f"{equation=}: expected floating point, got {values[0].dtype}; cast the inputs"
        )
    operands = []
    for at, x in enumerate(values):
        axes = enumerate(zip(sources[at], x.sizes, strict=True))
        ones = [k for k, (letter, size) in axes if size == 1 and letter in sources[1 - at]]
        operands.append(x.dense.squeeze2(axes=ones) if ones else x.dense)
        sources[at] = "".join(s for k, s in enumerate(sources[at]) if k not in ones)
    small = str.maketrans({letter: chr(ord("a") + at) for at, letter in enumerate(letters)})
    return w.emit("einsum", operands, equation=f"{','.join(sources)}->{target}".translate(small))


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
    if slots:
        raise UnsupportedError(f"steps {strides}: expected 1 between ends that a run computes")
    turned = [at for at, step in enumerate(strides) if step < 0]
    for at in turned:  # slice forwards, then reverse
        first, last = numbers["ends"][at] + 1, numbers["starts"][at] + 1
        if first == 0:
            raise UnsupportedError(f"step {strides[at]}: expected an end before the last element")
        numbers["starts"][at], numbers["ends"][at] = max(first, -ALL), min(last, ALL) or ALL
    if not turned:
        return x.strided_slice(**numbers, strides=strides)
    out = x.slice(**numbers, decrease_axis=[]).flip(axis=[chosen[at] for at in turned])
    numbers |= {"starts": [0] * len(chosen), "ends": [ALL] * len(chosen)}
    return out.strided_slice(**numbers, strides=[abs(step) for step in strides])


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
            raise UnsupportedError(f"expected at most {2**16:,} elements, got a shape {sizes}")
        return w.constant(np.full(sizes, number)).copy()
    if number.dtype.kind == "b":
        return w.fill(shape, number.astype(np.int32)).cast("bool")
    return w.fill(shape, number)


@rule("Range")
def range_(start, limit, delta):
    return start.range(End=limit, Step=delta)


@rule("Size")
def size(x, *, w):
    return w.emit("size", x)


@rule("Tile")
def tile(x, repeats):
    return x.dense.tile(repeat_times=integers(repeats))


@rule("Trilu")
def trilu(x, k=None, *, upper):
    return x.dense.tril_triu(diagonal=sum(integers(k)), lower=not upper)


@rule("Expand")
def expand(x, shape, *, w):
    """Writes a product with ones of ``shape``, which broadcasts both shapes, like ONNX's Expand."""
    if x.dtype == "bool":
        return expand(x.cast("int32"), shape, w=w).cast("bool")
    if shape.known is None:
        return x * w.fill(shape, np.ones((), x.dtype))
    return x * w.constant(np.ones(integers(shape), x.dtype))
