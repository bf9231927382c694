"""The rules of aten's operators that move elements: views, indices, filled tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from operator import mul
from typing import Any, NamedTuple, cast

import numpy as np

from onernn.adapters.common import bodies
from onernn.adapters.common.signatures import OneOf, refuse
from onernn.adapters.torch.read import Open
from onernn.adapters.torch.table import (
    END,
    FIX_SIZE,
    LAST,
    AnySize,
    Axes,
    Axis,
    Place,
    Scalar,
    Sizes,
    TorchOperator,
    TorchTensor,
    torch,
)
from onernn.ir.types import Factor, Size

# The rules of views. A size that a program has as a number is replaced by the size of the axis that
# it comes from.
#
# A view of (3, 7, 10) as (21, 10) becomes a view as (N * T, 10) for any N and T; see `table`.

_MOST_WAYS = 100


class _Group(NamedTuple):
    """Axes before a view, and the axes after it whose sizes have the same product."""

    before: range
    after: range


@torch(views="view reshape _unsafe_view _reshape_alias")
def view(self, *, size=Sizes(), shape=Sizes(), stride=(), op):
    wanted, sizes = size or shape, list[_ViewSize]()
    before = [op.builder.standing_for(each) for each in self.dims]
    after = _complete([_stand_for(op, each) for each in wanted], before)
    if after is None:
        op.builder.tie(op.builder.free, op.why)
        sizes += wanted
    else:
        for group in _groups(cast(list[int], before), after):
            sizes += _group_sizes(op, self.dims, group, after, wanted)
    inferred = None
    if not {-1, 0} & {each for each in sizes if isinstance(each, int)}:
        inferred = next((at for at, each in enumerate(sizes) if isinstance(each, Size)), None)
    return self.Reshape(
        op.list_values([_choose_size(self, each, at == inferred) for at, each in enumerate(sizes)]),
        allowzero=1,
    )


def _choose_size(x: TorchTensor, size: _ViewSize, is_inferred: bool) -> int | Open | TorchTensor:
    """Returns the size of an axis after a view of x; -1 if ``is_inferred``."""
    match size:
        case _ if is_inferred:
            return -1
        case _Axis(axis):
            return x.size(axis)
        case Size():
            return _product(x.op, size)
    return size


def _stand_for(op: TorchOperator, wanted: int | Open) -> int | None:
    """Returns a size as `TorchBuilder.standing_for` does, None for an unknown size."""
    if isinstance(wanted, int):
        return wanted
    known = op.builder.type_of(op.builder.value(wanted.name)).value
    return op.builder.standing_for(known) if isinstance(known, Size) else None


def _complete(wanted: Sequence[int | None], before: Sequence[int | None]) -> list[int] | None:
    """Returns the shape after a view, with a size in place of -1; None for an unknown shape."""
    known = [each for each in before if each is not None]
    target = [each for each in wanted if each is not None]
    if len(known) < len(before) or len(target) < len(wanted) or min(target, default=0) < -1:
        return None
    count, rest = reduce(mul, known, 1), reduce(mul, (each for each in target if each != -1), 1)
    if -1 not in target:
        return target if rest == count else None
    if target.count(-1) > 1 or not rest or count % rest:
        return None
    return [count // rest if each == -1 else each for each in target]


def _groups(before: Sequence[int], after: Sequence[int]) -> list[_Group]:
    """Returns the smallest groups, in order. An axis of size 1 is a group by itself if possible."""
    groups, one, other = [], 0, 0
    while one < len(before) or other < len(after):
        first, second = one, other
        left = before[one] if one < len(before) else 1
        right = after[other] if other < len(after) else 1
        one, other = min(one + 1, len(before)), min(other + 1, len(after))
        while left != right:
            if left < right and one < len(before):
                left, one = left * before[one], one + 1
            elif other < len(after):
                right, other = right * after[other], other + 1
            else:
                one, other, left, right = len(before), len(after), 0, 0
        groups.append(_Group(range(first, one), range(second, other)))
    return groups


class _Axis(NamedTuple):
    """A size after a view that is the size of ``axis`` before the view."""

    axis: int


_ViewSize = int | Open | Size | _Axis
"""A size after a view; a `Size` is a product of input sizes."""


def _group_sizes(
    op: TorchOperator,
    shape: Sequence[Size | None],
    group: _Group,
    after: Sequence[int],
    wanted: Sequence[int | Open],
) -> list[_ViewSize]:
    """Returns the sizes of a group after a view.

    The sizes are the program's numbers if no size of the group depends on ``op.builder.free``.
    """
    mine = reduce(mul, (shape[at] for at in group.before), Size.of(1))
    free = mine.names & op.builder.free.keys()
    if not free:
        return [wanted[at] for at in group.after]
    if len(group.before) == len(group.after) == 1:
        return [_Axis(group.before[0])]
    if len(mine.terms) == 1:
        factors = mine.terms[0][0]
        numbers = [op.builder.standing_for(Size((((each,), 1),))) or 0 for each in factors]
        if all(each in op.builder.axes for each in factors) and min(numbers) > 1:
            result = _assign(factors, numbers, [after[at] for at in group.after])
            if len(result) == 1:
                return [*result[0]]
    op.builder.tie(free, op.why)  # for example if a free size is 1: any 1 may come from it
    return [wanted[at] for at in group.after]


def _assign(
    factors: Sequence[Factor], numbers: Sequence[int], after: Sequence[int]
) -> list[list[Size]]:
    """Returns all ways to write each size in ``after`` as a number times some of ``factors``; each
    factor is used once.

    ``numbers``: the exported numbers of the factors.
    """
    result = []
    if len(after) ** len(factors) > _MOST_WAYS:
        return []
    for places in product(range(len(after)), repeat=len(factors)):
        left = list(after)
        for place, number in zip(places, numbers, strict=True):
            left[place] = left[place] // number if left[place] % number == 0 else 0
        if 0 not in left:
            own = [
                [f for f, at in zip(factors, places, strict=True) if at == n]
                for n in range(len(left))
            ]
            result.append([Size(((tuple(f), by),)) for f, by in zip(own, left, strict=True)])
    return result


def _product(op: TorchOperator, size: Size) -> TorchTensor:
    ((factors, by),) = size.terms
    out = TorchTensor(op, op.ints(by))
    for factor in factors:
        variable, axis = op.builder.axes[factor]
        out = out.Mul(TorchTensor(op, op.builder.value(variable)).size(axis))
    return out


@torch(views="flatten.using_ints")
def flatten(self, *, start_dim=Axis(0), end_dim=Axis(-1)):
    if self.rank == 0:
        return self.reshape(1)
    sizes = self.sizes
    before, after = sizes.Slice([0], [start_dim], [0]), sizes.Slice([end_dim + 1], [2**31], [0])
    return self.Reshape(before.join([-1], after))


@torch(views="ravel")
def ravel(self):
    return self.reshape(-1)


@torch(views="unflatten.int")
def unflatten(self, *, dim=Axis(), sizes=Sizes(), op):
    self.tie(dim)
    before, after = map(self.size, range(dim)), map(self.size, range(dim + 1, self.rank))
    return self.Reshape(op.list_values([*before, *sizes, *after]))


@torch(views="unsqueeze")
def unsqueeze(self, *, dim):
    return self.unsqueeze(dim + self.rank + 1 if dim < 0 else dim)


@torch(views="squeeze squeeze.dim squeeze.dims")
def squeeze(self, *, dim=Axes(), op):
    """Removes the given axes that have size 1."""
    gone = []
    for axis in dim:
        self.tie(axis)
        size = op.builder.find_exported_size(self.dims[axis])
        if size is None:
            refuse(f"axis {axis}: expected a known size, only axes of size 1 are removed{FIX_SIZE}")
        if size == 1:
            gone.append(axis)
    return self.squeeze(*gone) if gone else self


@torch(views="expand", implicit=False)
def expand(self, *, size=Sizes(), op):
    """Expands axes; an axis whose size is -1 or its own size stays unchanged."""
    shape = (Size.of(1),) * (len(size) - self.rank) + tuple(self.dims)
    sizes: list[int | Open] = []
    for old, want in zip(shape, size, strict=True):
        was = op.builder.find_exported_size(old)
        if want == -1 or (isinstance(want, int) and want == was and was != 1):
            sizes.append(1)
            continue
        if isinstance(want, int):
            op.builder.tie_numbers([want], op.why)
            op.builder.tie(old.names if old else (), op.why)
        sizes.append(want)
    return self.Expand(op.list_values(sizes))


@torch(views="expand_as")
def expand_as(self, other):
    return self.Expand(other.sizes)


@torch(views="broadcast_to", implicit=False)
def broadcast_to(self, *, size=Sizes(), op):
    return expand(self, size=size, op=op)


@torch(views="broadcast_tensors")
def broadcast_tensors(*tensors):
    return tuple(bodies.broadcast(tensors))


@torch(views="view_as reshape_as")
def view_as(self, other):
    return self.Reshape(other.sizes, allowzero=1)


@torch(views="mT")
def m_t(self):
    return self.swap()


@torch(views="t numpy_T")
def t(self):
    return self.transpose(*reversed(range(self.rank)))


@torch(views="transpose.int")
def transpose(self, *, dim0=Axis(), dim1=Axis()):
    return self.swap(dim0, dim1)


@torch(views="swapaxes")
def swapaxes(self, *, axis0=Axis(), axis1=Axis()):
    return self.swap(axis0, axis1)


@torch(views="permute")
def permute(self, *, dims=Axes()):
    return self.transpose(*dims)


@torch(views="movedim.int movedim.intlist")
def movedim(self, *, source=Axes(), destination=Axes()):
    return bodies.move_axes(self, source, destination)


# Rules that slice and join tensors, and create new ones.


@torch(views="slice.Tensor")
def slice_(self, *, dim=Axis(0), start=Place(), end=Place(LAST), step=1, op):
    if (start, end, step) == (0, END, 1):
        return self
    return self.Slice(op.list_values([start]), op.list_values([end]), [dim], [step])


@torch(views="narrow")
def narrow(self, *, dim=Axis(), start=Place(), length=Place(), op):
    first = op.list_values([start])
    end = TorchTensor(op, op.name_operands([first])[0]) if isinstance(first, list) else first
    return self.Slice(first, end.Add(op.list_values([length])), [dim])


@torch(views="select.int")
def select(self, *, dim=Axis(), index=Place(), op):
    if isinstance(index, int):
        return self.Gather(index, axis=dim)
    return self.Gather(op.list_values([index]), axis=dim).squeeze(dim)


@torch(views="unbind.int")
def unbind(self, *, dim=Axis(0), op):
    self.tie(dim)
    return tuple(self.Gather(at, axis=dim) for at in range(len(op.node.outputs)))


@torch(views="split.Tensor split_with_sizes chunk unsafe_chunk tensor_split.sections")
def split(self, *, dim=Axis(0), split_size=None, split_sizes=None, chunks=None, sections=None, op):
    """Splits a tensor into parts with the declared sizes of the outputs."""
    self.tie(dim)
    metas = [op.builder.metas.get(name) for name in op.node.outputs]
    sizes = [meta.sizes[dim] if meta and dim < len(meta.sizes) else None for meta in metas]
    if not all(isinstance(size, int) for size in sizes):
        refuse(f"sizes of its parts: expected known sizes, got {sizes}{FIX_SIZE}")
    return self.Split(sizes, axis=dim, outputs=len(sizes))


@torch("cat")
def cat(*tensors, dim=0, op):
    values = [each.cast(op.result_dtype()) for each in tensors]
    first, *others = (each for each in values if each.type.counts != (0,))  # some code joins (0,)
    return first.Concat(*others, axis=op.axis(dim, first.name))


@torch("hstack vstack")
def stack_axes(*tensors, op):
    """Joins tensors along axis 1 (hstack; axis 0 if they have one axis) or axis 0 (vstack)."""
    if min(each.rank for each in tensors) < (1 if op.name == "hstack" else 2):
        refuse("expected tensors of more axes; reshape them before")
    return cat(*tensors, dim=int(op.name == "hstack" and tensors[0].rank > 1), op=op)


@torch("stack")
def stack(*tensors, dim=0):
    return bodies.stack(tensors, dim + (tensors[0].rank + 1) * (dim < 0))


@torch("flip")
def flip(self, *, dims=Axes()):
    return self.flip(*dims)


@torch("roll")
def roll(self, *, shifts=Sizes(), dims=(), op):
    """Moves elements along axes; elements that leave the end of an axis return at its start."""
    x, axes = (self, [op.axis(each) for each in dims]) if dims else (self.reshape(-1), [0])
    for axis, shift in zip(axes, shifts, strict=True):
        if isinstance(shift, int):
            op.builder.tie_place(x.name, axis, abs(shift), op.why)
        size = x.size(axis)
        places = bodies.count_up(size.squeeze(0)).Sub(op.list_values([shift]))
        x = x.Gather(places.Mod(size), axis=axis)
    return x if dims else x.Reshape(self.sizes)


@torch("repeat_interleave.self_int repeat_interleave.self_Tensor")
def repeat_interleave(self, repeats, *, dim=None, output_size=AnySize(), op):
    """Repeats each element along an axis; ``repeats`` has one number, or one for each element."""
    x, axis = (self.reshape(-1), 0) if dim is None else (self, op.axis(dim))
    times, size = repeats.cast(np.int64), x.size(axis)
    if times.rank == 0:
        return x.Gather(bodies.count_up(times * size.squeeze(0)) / times, axis=axis)
    ends = times.Expand(size).CumSum(0)
    after = ends.LessOrEqual(bodies.count_up(ends.Gather(-1, axis=0)).unsqueeze(1))
    return x.Gather(after.cast(np.int64).ReduceSum([1], keepdims=0), axis=axis)


def _tile(x: Any, times: Any, op: TorchOperator) -> Any:
    op.builder.tie_numbers([each for each in times if isinstance(each, int)], op.why)
    more = len(times) - x.rank
    x = x.unsqueeze(*range(more)) if more > 0 else x
    return x.Tile(op.list_values([*[1] * -more, *times]))


@torch("repeat")
def repeat(self, *, repeats=Sizes(), op):
    return _tile(self, repeats, op)


@torch("tile")
def tile(self, *, dims=Sizes(), op):
    return _tile(self, dims, op)


@torch("index_select")
def index_select(self, index, *, dim=Axis()):
    return self.Gather(index, axis=dim, non_negative=True)


@torch("embedding")
def embedding(weight, indices, *, padding_idx=None, scale_grad_by_freq=False, sparse=False):
    """Ignores the arguments that only training uses."""
    return weight.Gather(indices, axis=0, non_negative=True)


@torch(views="unfold")
def unfold(self, *, dimension=0, size=Scalar(), step=Scalar(), op):
    """Returns windows of ``size`` elements, ``step`` apart; a new last axis has their elements."""
    axis = op.axis(dimension)
    self.tie(axis)
    count = (self.size(axis).squeeze(0) - size) / step + 1
    starts = bodies.count_up(count) * step
    op.fill([int(size)], 0, starts.dtype, "window")  # only checks the memory budget
    out = self.Gather(starts.unsqueeze(1) + np.arange(size), axis=axis)
    return bodies.move_axes(out, [axis + 1], [self.rank])


@torch("gather")
def gather(self, index, *, dim=Axis(), sparse_grad=False):
    return self.GatherElements(index, axis=dim, non_negative=True)


@torch("take_along_dim")
def take_along_dim(self, indices, *, dim=None, op):
    if dim is None:
        return self.reshape(-1).GatherElements(indices.reshape(-1), axis=0)
    axis = op.axis(dim)

    def expand(x: Any, other: Any) -> Any:
        sizes = other.sizes
        return x.Expand(
            sizes.Slice([0], [axis], [0]).join([1], sizes.Slice([axis + 1], [END], [0]))
        )

    return expand(self, indices).GatherElements(expand(indices, self), axis=axis)


@torch("nonzero")
def nonzero(self):
    return self.NonZero().transpose(1, 0)


@torch("masked_select")
def masked_select(self, mask):
    x, mask = bodies.broadcast([self, mask])
    return x.GatherND(mask.NonZero().transpose(1, 0))


_REDUCED = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max"}
_REDUCED |= {"amin": "min", "none": "none"}


@torch(
    """
    scatter.src scatter.value scatter.reduce scatter.value_reduce scatter_add scatter_reduce.two
    """
)
def scatter(
    self,
    index,
    src=None,
    value=None,
    *,
    dim=Axis(),
    reduce=OneOf("none", _REDUCED),
    include_self=True,
    op,
):
    """Writes elements of ``src`` to positions along an axis, or combines them with the elements
    there.
    """
    if not include_self:
        refuse("argument include_self=False: expected True")
    if src is None:
        updates = value.cast(self.dtype).Expand(index.sizes)
    else:
        axes = [*range(index.rank)]
        updates = src.Slice([0 for _ in axes], index.sizes, axes) if src.dims != index.dims else src
    reduction = "add" if op.name == "scatter_add" else reduce
    return self.ScatterElements(index, updates, axis=dim, reduction=reduction)


@torch("index_add index_copy index_fill.int_Scalar index_fill.int_Tensor")
def index_update(self, index, source=None, value=None, *, dim=Axis(), alpha=Scalar(1), op):
    """Adds to, or replaces, the parts of ``self`` at the positions of an index list."""
    if self.rank == 0:
        refuse("expected a tensor with axes, got a scalar")
    updates = value.cast(self.dtype) if source is None else source * alpha
    return _put(self, updates, [dim], [index.reshape(-1)], op.name == "index_add")


@torch("select_scatter")
def select_scatter(self, src, *, dim=Axis(), index=Place()):
    """Returns self with src at one position of an axis; src lacks this axis."""
    if not isinstance(index, int):
        refuse("argument index: expected a number, got a value that is computed at run time")
    return _replace_part(self, src.unsqueeze(dim), dim, index, index + 1 if index != -1 else END)


@torch("slice_scatter")
def slice_scatter(self, src, *, dim=Axis(0), start=Place(), end=Place(LAST), step=1, op):
    """Returns self with src at the positions from start to end of an axis."""
    if step != 1 or not (isinstance(start, int) and isinstance(end, int)):
        refuse(f"arguments step={step}, start={start}, end={end}: expected numbers, and step=1")
    if start != 0 and end < END and (start < 0) != (end < 0):
        self.tie(dim)  # which of start and end is smaller depends on the size
        size = op.builder.find_exported_size(self.dims[dim])
        if size is None:
            refuse(f"start={start}, end={end}: expected a known size of axis {dim}{FIX_SIZE}")
        start, end = (each + size * (each < 0) for each in (start, end))
    if (start < 0) == (end < 0) and start > end:
        return self
    return _replace_part(self, src, dim, start, end)


def _replace_part(x: Any, part: Any, axis: int, start: int, end: int) -> Any:
    part = part.cast(x.dtype)
    parts = [x.Slice([0], [start], [axis])] if start else []
    parts += [part, x.Slice([end], [END], [axis])] if end < END else [part]
    return parts[0].Concat(*parts[1:], axis=axis) if len(parts) > 1 else part


@torch("copy")
def copy(self, src, *, non_blocking=False):
    """Returns src with the dtype and shape of self."""
    return src.cast(self.dtype).Expand(self.sizes)


@torch("fill.Scalar fill.Tensor")
def fill_whole(self, value):
    return value.promote().Expand(self.sizes)


@torch("index.Tensor _unsafe_index.Tensor")
def index(self, *indices, op):
    """Returns elements at the positions of masks and index tensors, which are broadcast.

    The axes of the index tensors replace the indexed axes if these are next to each other;
    otherwise they are the first axes.
    """
    if op.inputs["indices"][0] and len(indices) == 1 and indices[0].dtype.kind == "b":
        return self.GatherND(indices[0].NonZero().transpose(1, 0))
    axes, lists = _positions(op, indices)
    if len(axes) == 1:
        return self.Gather(lists[0], axis=axes[0])
    lists = bodies.broadcast(lists)
    rank, place = lists[0].rank, _first_axis(axes)
    out = _to_front(self, axes).GatherND(bodies.stack(lists, rank))
    return bodies.move_axes(out, range(rank), range(place, place + rank))


def _positions(op: TorchOperator, indices: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Returns the indexed axes, and an integer tensor for each. A mask is one list for each of its
    axes.
    """
    axes, lists, given, axis = list[int](), list[Any](), iter(indices), 0
    for name in op.inputs["indices"]:
        parts = [next(given)] if name else []
        if name and parts[0].dtype.kind == "b":
            places = parts[0].NonZero()
            parts = [places.Gather(at, axis=0) for at in range(parts[0].rank)]
        elif name and parts[0].dtype.kind != "i":
            refuse(f"indices: expected integers or masks, got {parts[0].dtype}")
        axes += range(axis, axis + len(parts))
        lists += parts
        axis += len(parts) or 1
    return axes, lists


def _to_front(x: Any, axes: Sequence[int]) -> Any:
    return bodies.move_axes(x, axes, range(len(axes)))


def _first_axis(axes: Sequence[int]) -> int:
    """Returns the first axis of the result that replaces the indexed axes."""
    return axes[0] if [*axes] == [*range(axes[0], axes[-1] + 1)] else 0


@torch("index_put _unsafe_index_put")
def index_put(self, values, *indices, accumulate=False, op):
    """Returns self with values at the positions of masks and index tensors; see `index`.

    ``accumulate``: adds the values to the elements.
    """
    axes, lists = _positions(op, indices)
    if len(indices) == 1 and indices[0].dtype.kind == "b":
        after = self.rank - axes[-1] - 1
        if values.rank <= after or {*values.shape[: values.rank - after]} == {1}:
            return _put_masked(self, values, indices[0], after, accumulate)
    return _put(self, values, axes, lists, accumulate)


def _put_masked(x: Any, values: Any, mask: Any, after: int, accumulate: bool) -> Any:
    """Returns x with one value at all true elements of a mask, which has no axis for the ``after``
    last axes of x.
    """
    spread = mask.unsqueeze(*range(mask.rank, mask.rank + after)) if after else mask
    if values.rank > after:
        values = values.squeeze(*range(values.rank - after))
    return spread.Where(x + values if accumulate else values, x)


def _put(x: Any, values: Any, axes: Sequence[int], lists: Sequence[Any], accumulate: bool) -> Any:
    """Returns x with values at the positions that ``lists`` has for ``axes``."""
    lists = bodies.broadcast([each.cast(np.int64) for each in lists])
    rank, place = lists[0].rank, _first_axis(axes)
    sizes = [x.size(axis) for axis in range(x.rank) if axis not in axes]
    sizes[place:place] = [lists[0].size(axis) for axis in range(rank)]
    if sizes:
        values = values.Expand(sizes[0].join(*sizes[1:]))
    values = bodies.move_axes(values, range(place, place + rank), range(rank))
    reduction = "add" if accumulate else "none"
    out = _to_front(x, axes).ScatterND(bodies.stack(lists, rank), values, reduction=reduction)
    return bodies.move_axes(out, range(len(axes)), axes)


@torch("one_hot")
def one_hot(self, *, num_classes=Scalar(-1), op):
    if num_classes < 1:
        refuse(f"argument num_classes={num_classes}: expected 1 or more; pass it to one_hot")
    return self.OneHot([int(num_classes)], np.array([0, 1], op.result_dtype()), axis=-1)


def _fill(op: TorchOperator, sizes: Sequence[int | Open], number: float) -> str:
    """Returns a tensor with equal elements; it is a constant if the program has its shape as
    numbers.
    """
    dtype = op.result_dtype()
    counts = [each for each in sizes if isinstance(each, int)]
    if len(counts) < len(sizes):
        op.builder.literal[op.node.outputs[0]] = counts
        return op.emit(
            "ConstantOfShape", op.list_values(sizes).read(), value=np.full(1, number, dtype)
        )
    if min(counts, default=0) < 0:
        refuse(f"argument size={counts}: expected 0 or more")
    filled = op.fill(counts, number, dtype, "filled")
    op.builder.literal[filled] = counts
    return filled


@torch("zeros new_zeros ones new_ones empty.memory_format new_empty")
def fill(self=None, *, size=Sizes(), op):
    """Returns zeros or ones. PyTorch does not define the elements of ``empty``."""
    return _fill(op, size, "ones" in op.name)


@torch("zeros_like ones_like zero empty_like")
def fill_like(self, *, op):
    return full_like(self, fill_value=op.name == "ones_like", op=op)


@torch("full new_full")
def full(self=None, *, size=Sizes(), fill_value=Scalar(), op):
    return _fill(op, size, fill_value)


@torch("full_like")
def full_like(self, *, fill_value=Scalar(), op):
    return self.sizes.ConstantOfShape(value=np.full(1, fill_value, op.result_dtype()))


@torch("linspace")
def linspace(*, start=Scalar(), end=Scalar(), steps=Scalar(), op):
    dtype, count = op.result_dtype(), int(steps)
    if dtype.kind != "f":
        refuse(f"dtype {dtype}: expected floats")
    op.fill([count], 0, dtype, "numbers")  # only checks the memory budget
    return TorchTensor(op, op.constant(np.linspace(start, end, count).astype(dtype)))


@torch("eye eye.m")
def eye(*, n=Scalar(), m=Scalar(), op):
    rows = int(n)
    columns = rows if m is None else int(m)
    op.fill([rows, columns], 0, op.result_dtype(), "matrix")  # only checks the memory budget
    return TorchTensor(op, op.constant(np.eye(rows, columns, dtype=op.result_dtype())))


@torch("scalar_tensor")
def scalar_tensor(s):
    return s.promote()


@torch("arange arange.start arange.start_step")
def arange(end, start=None, step=None, *, op):
    first, by = (
        TorchTensor(op, op.scalar(number, op.result_dtype())) if each is None else each.promote()
        for number, each in enumerate((start, step))
    )
    return first.Range(end.promote(), by)


@torch("tril triu")
def triangle(self, *, diagonal=0, op):
    return self.Trilu(diagonal, upper=int(op.name == "triu"))


@torch("constant_pad_nd pad")
def pad(self, *, pad=Sizes(), mode=OneOf("constant", bodies.PAD_MODES), value=Scalar(0.0), op):
    """Pads axes. ``pad`` holds pairs, before and after each axis, starting with the last axis."""
    rank, pairs = self.rank, list(zip(pad[::2], pad[1::2], strict=True))
    for at, pair in enumerate(pairs):
        if op.builder.free_in(self.name, rank - 1 - at):
            numbers = [each for each in pair if isinstance(each, int) and abs(each) > 1]
            op.builder.tie_numbers(numbers, op.why)
            if numbers and pair[0] == 0:
                self.tie(rank - 1 - at)  # may fill the axis up to a fixed size
    pairs = [(0, 0)] * (rank - len(pairs)) + pairs[::-1]
    ends = op.list_values([*(a for a, _ in pairs), *(b for _, b in pairs)])
    return self.Pad(ends, *([self.scalar(value)] if mode == "constant" else []), mode=mode)
