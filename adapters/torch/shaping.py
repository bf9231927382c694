"""The rules of aten's operators that move elements: views, indices, filled tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from itertools import product
from operator import mul
from typing import Any, NamedTuple, cast

import numpy as np

from onernn.adapters.common.bodies import PAD_MODES, stacked
from onernn.adapters.torch.read import Open
from onernn.adapters.torch.table import LAST, TorchOperator, rule
from onernn.ir.errors import UnsupportedError
from onernn.ir.types import Factor, Size

# The rules of views: sizes that a program writes as numbers are recognized by what they were.
#
# A view of (3, 7, 10) as (21, 10) is one of (N * T, 10) at any N and T; see `builder`.

_MOST_WAYS = 100


class _Group(NamedTuple):
    """Axes before and behind a view that have the same number of elements, by position."""

    before: range
    behind: range


@rule("view reshape _unsafe_view view_copy _reshape_alias")
def _view(op: TorchOperator) -> str:
    x, wanted = op.value(), op.sizes("size" if op.given("size") else "shape")
    op.attribute("stride", [])
    shape = op.shape(x)
    before = [op.builder.standing_for(size) for size in shape]
    behind = _completed([_number(op, each) for each in wanted], before)
    sizes: list[_ViewSize] = []
    if behind is None:
        op.builder.tie(op.builder.free, op.why)
        sizes += wanted
    else:
        for group in _groups(cast(list[int], before), behind):
            sizes += _group_sizes(op, shape, group, behind, wanted)
    return op.emit("Reshape", x, _shape_list(op, x, sizes), allowzero=1)


def _number(op: TorchOperator, wanted: int | Open) -> int | None:
    """A number in the place of a size that only a run knows."""
    if isinstance(wanted, int):
        return wanted
    known = op.builder.type_of(op.builder.value(wanted.name)).value
    return op.builder.standing_for(known) if isinstance(known, Size) else None


def _completed(wanted: Sequence[int | None], before: Sequence[int | None]) -> list[int] | None:
    """The shape with the number that -1 stands for; None where it is not known."""
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


def _groups(before: Sequence[int], behind: Sequence[int]) -> list[_Group]:
    """The finest ones, in order; sizes of 1 stand by themselves where they can."""
    groups, one, other = [], 0, 0
    while one < len(before) or other < len(behind):
        first, second = one, other
        left = before[one] if one < len(before) else 1
        right = behind[other] if other < len(behind) else 1
        one, other = min(one + 1, len(before)), min(other + 1, len(behind))
        while left != right:
            if left < right and one < len(before):
                left, one = left * before[one], one + 1
            elif other < len(behind):
                right, other = right * behind[other], other + 1
            else:
                one, other, left, right = len(before), len(behind), 0, 0
        groups.append(_Group(range(first, one), range(second, other)))
    return groups


class _Axis(NamedTuple):
    """The size of an axis before the view."""

    axis: int


_ViewSize = int | Open | Size | _Axis
"""A size behind a view; a `Size` is a product of those of inputs."""


def _group_sizes(
    op: TorchOperator,
    shape: Sequence[Size | None],
    group: _Group,
    behind: Sequence[int],
    wanted: Sequence[int | Open],
) -> list[_ViewSize]:
    """The sizes behind a view of a group: as the program has them, where no free ones are in it."""
    mine = reduce(mul, (shape[at] for at in group.before), Size.of(1))
    free = mine.names & op.builder.free.keys()
    if not free:
        return [wanted[at] for at in group.behind]
    if len(group.before) == len(group.behind) == 1:
        return [_Axis(group.before[0])]
    if len(mine.terms) == 1:
        factors = mine.terms[0][0]
        numbers = [op.builder.standing_for(Size((((each,), 1),))) or 0 for each in factors]
        if all(each in op.builder.axes for each in factors) and min(numbers) > 1:
            result = _assigned(factors, numbers, [behind[at] for at in group.behind])
            if len(result) == 1:
                return [*result[0]]
    op.builder.tie(free, op.why)  # and a size of 1 might have been none at all
    return [wanted[at] for at in group.behind]


def _assigned(
    factors: Sequence[Factor], numbers: Sequence[int], behind: Sequence[int]
) -> list[list[Size]]:
    """The ways to say numbers with the factors of their product, each once."""
    result = []
    if len(behind) ** len(factors) > _MOST_WAYS:
        return []
    for places in product(range(len(behind)), repeat=len(factors)):
        left = list(behind)
        for place, number in zip(places, numbers, strict=True):
            left[place] = left[place] // number if left[place] % number == 0 else 0
        if 0 not in left:
            own = [
                [f for f, at in zip(factors, places, strict=True) if at == n]
                for n in range(len(left))
            ]
            result.append([Size(((tuple(f), by),)) for f, by in zip(own, left, strict=True)])
    return result


def _shape_list(op: TorchOperator, x: str, sizes: Sequence[_ViewSize]) -> str:
    """A list of sizes, of which one product of several is -1."""
    whole = [each for each in sizes if isinstance(each, int)]
    if len(whole) == len(sizes):
        return op.ints(*whole)
    inferred = None
    if -1 not in whole and 0 not in whole:
        inferred = next((at for at, each in enumerate(sizes) if isinstance(each, Size)), None)
    parts = []
    for at, each in enumerate(sizes):
        if isinstance(each, int) or at == inferred:
            parts.append(op.ints(each if isinstance(each, int) else -1))
        elif isinstance(each, _Axis):
            parts.append(op.size(x, each.axis))
        else:
            parts.append(op.as_list(each) if isinstance(each, Open) else _product(op, each))
    return op.joined(*parts) if len(parts) > 1 else parts[0]


def _product(op: TorchOperator, size: Size) -> str:
    """A list of one size, a product of those of axes."""
    ((factors, by),) = size.terms
    out = op.ints(by)
    for factor in factors:
        variable, axis = op.builder.axes[factor]
        out = op.emit("Mul", out, op.size(op.builder.value(variable), axis))
    return out


@rule("flatten.using_ints")
def _flatten(op: TorchOperator) -> str:
    x = op.value()
    first, last = op.axis(x, "start_dim", 0), op.axis(x, "end_dim", -1)
    if op.rank_of(x) == 0:
        return op.reshaped(x, 1)
    sizes = op.sizes_of(x)
    before = op.sliced(sizes, [0], [first], [0])
    behind = op.sliced(sizes, [last + 1], [2**31], [0])
    return op.emit("Reshape", x, op.joined(before, [-1], behind))


@rule("unflatten.int")
def _unflatten(op: TorchOperator) -> str:
    x, axis, sizes = op.value(), op.axis(op.value()), op.integers("sizes")
    op.tie(x, axis)
    kept = list(op.shape(x))
    parts = range(axis), range(axis + 1, len(kept))
    before, behind = ([op.size(x, at) for at in part] for part in parts)
    return op.emit("Reshape", x, op.joined(*before, sizes, *behind))


@rule("unsqueeze")
def _unsqueeze(op: TorchOperator) -> str:
    x, axis = op.value(), op.attribute("dim", 0)
    return op.unsqueezed(x, axis + op.rank_of(x) + 1 if axis < 0 else axis)


@rule("squeeze squeeze.dim squeeze.dims")
def _squeeze(op: TorchOperator) -> str:
    """Only axes of size 1 go, so that the program must say which are."""
    x, sizes = op.value(), op.shape(op.value())
    gone = []
    for axis in op.axes(x):
        op.tie(x, axis)
        if op.builder.exported(sizes[axis]) is None:
            raise UnsupportedError(f"whether axis {axis} has the size 1 is not known")
        if op.builder.exported(sizes[axis]) == 1:
            gone.append(axis)
    return op.squeezed(x, *gone) if gone else x


@rule("expand expand_copy")
def _expand(op: TorchOperator) -> str:
    """-1, and the size that an axis has, leave it as it is."""
    x, wanted = op.value(), op.sizes("size")
    op.ignore("implicit")
    shape = op.shape(x)
    shape = (Size.of(1),) * (len(wanted) - len(shape)) + tuple(shape)
    sizes: list[int | Open] = []
    for size, want in zip(shape, wanted, strict=True):
        was = op.builder.exported(size)
        if want == -1 or (isinstance(want, int) and want == was and was != 1):
            sizes.append(1)
            continue
        if isinstance(want, int):
            op.builder.tie_numbers([want], op.why)
            op.builder.tie(size.names if size else (), op.why)
        sizes.append(want)
    return op.emit("Expand", x, op.listed(sizes))


@rule("expand_as")
def _expand_as(op: TorchOperator) -> str:
    return op.emit("Expand", op.value(), op.sizes_of(op.value("other")))


@rule("view_as reshape_as")
def _view_as(op: TorchOperator) -> str:
    return op.emit("Reshape", op.value(), op.sizes_of(op.value("other")), allowzero=1)


@rule("transpose.int t numpy_T swapaxes transpose_")
def _transpose(op: TorchOperator) -> str:
    x = op.value()
    if op.at.type in ("t", "numpy_T"):
        return op.transposed(x, *reversed(range(op.rank_of(x))))
    return op.swapped(x, *(op.axis(x, name) for name in ("dim0", "dim1")))


@rule("permute")
def _permute(op: TorchOperator) -> str:
    x = op.value()
    return op.transposed(x, *op.axes(x, "dims"))


@rule("movedim.int")
def _movedim(op: TorchOperator) -> str:
    x = op.value()
    source, place = op.axis(x, "source"), op.axis(x, "destination")
    perm = [at for at in range(op.rank_of(x)) if at != source]
    perm.insert(place, source)
    return op.transposed(x, *perm)


# The rules that take parts of tensors, put tensors together, and make new ones.

_END = 2**31 - 1


def _place(op: TorchOperator, x: str, axis: int, name: str, default: int) -> int | Open:
    """A number along an axis. Such as 0, 1 and what counts from the end say nothing of its size,
    where that is no small one; all others may.
    """
    result = op.attribute(name, default)
    if isinstance(result, Open):
        return result
    if not isinstance(result, int):
        raise UnsupportedError(f"argument {name}: no number")
    free = op.builder.free_in(x, axis)
    if free and 0 <= result < _END:
        size = op.builder.exported(op.shape(x)[axis])
        if result > 1 or size is None or result in (size, size - 1, size // 2, -(-size // 2)):
            op.builder.tie(free, op.why)
    if 1 < result < _END:
        op.builder.tie([each for each, size in op.builder.free.items() if size == result], op.why)
    return max(-_END, min(result, _END))


@rule("slice.Tensor slice_copy.Tensor")
def _slice(op: TorchOperator) -> str:
    x = op.value()
    axis, step = op.axis(x, default=0), op.attribute("step", 1)
    ends = [_place(op, x, axis, "start", 0), _place(op, x, axis, "end", LAST)]
    if ends == [0, _END] and step == 1:
        return x
    return op.emit("Slice", x, *(op.listed([each]) for each in ends), [axis], [step])


@rule("narrow")
def _narrow(op: TorchOperator) -> str:
    x = op.value()
    axis = op.axis(x)
    start, length = (_place(op, x, axis, name, 0) for name in ("start", "length"))
    first = op.listed([start])
    end = op.emit("Add", first, op.listed([length]))
    return op.emit("Slice", x, first, end, [axis])


@rule("select.int select_copy.int")
def _select(op: TorchOperator) -> str:
    x = op.value()
    axis = op.axis(x)
    place = _place(op, x, axis, "index", 0)
    if isinstance(place, int):
        return op.emit("Gather", x, place, axis=axis)
    return op.squeezed(op.emit("Gather", x, op.as_list(place), axis=axis), axis)


@rule("split.Tensor split_with_sizes chunk unbind.int unsafe_chunk tensor_split.sections")
def _split(op: TorchOperator) -> tuple[str, ...]:
    """Parts of the sizes that the program gives its outputs."""
    x = op.value()
    axis = op.axis(x, default=0)
    op.tie(x, axis)
    op.ignore("split_size", "split_sizes", "chunks", "sections")
    count = len(op.node.outputs)
    if op.at.type.startswith("unbind"):
        return tuple(op.emit("Gather", x, at, axis=axis) for at in range(count))
    sizes: list[int] = []
    for name in op.node.outputs:
        meta = op.builder.metas.get(name)
        size = meta.sizes[axis] if meta and axis < len(meta.sizes) else None
        if not isinstance(size, int):
            raise UnsupportedError(f"the size of part {len(sizes)} is open")
        sizes.append(size)
    return op.emit_many("Split", count, x, sizes, axis=axis)


@rule("cat concat concatenate")
def _cat(op: TorchOperator) -> str:
    values = [op.cast(each, op.result_dtype()) for each in op.values("tensors")]
    kept = [each for each in values if op.builder.type_of(each).counts != (0,)]  # as old code has
    return op.emit("Concat", *kept, axis=op.axis(kept[0], default=0))


@rule("stack")
def _stack(op: TorchOperator) -> str:
    values = op.values("tensors")
    axis = op.attribute("dim", 0)
    axis += (op.rank_of(values[0]) + 1) * (axis < 0)
    return stacked(op, values, axis)


@rule("flip")
def _flip(op: TorchOperator) -> str:
    x = op.value()
    return op.flipped(x, *op.axes(x, "dims"))


@rule("repeat tile")
def _repeat(op: TorchOperator) -> str:
    x, times = op.value(), op.sizes("repeats" if op.given("repeats") else "dims")
    op.builder.tie_numbers([each for each in times if isinstance(each, int)], op.why)
    more = len(times) - op.rank_of(x)
    if more > 0:
        x = op.unsqueezed(x, *range(more))
    return op.emit("Tile", x, op.listed([*[1] * -more, *times]))


@rule("index_select")
def _index_select(op: TorchOperator) -> str:
    x = op.value()
    return op.emit("Gather", x, op.value("index"), axis=op.axis(x))


@rule("embedding")
def _embedding(op: TorchOperator) -> str:
    for ignored in ("padding_idx", "scale_grad_by_freq", "sparse"):  # of training
        op.attribute(ignored, None)
    return op.emit("Gather", op.value("weight"), op.value("indices"), axis=0)


@rule("gather")
def _gather(op: TorchOperator) -> str:
    op.ignore("sparse_grad")
    x = op.value()
    return op.emit("GatherElements", x, op.value("index"), axis=op.axis(x))


@rule("index.Tensor")
def _index(op: TorchOperator) -> str:
    """One list of places, for one axis, or lists for the first axes, which stand together."""
    x, names = op.value(), op.inputs.get("indices", ())
    op.variables("indices")
    indices = {axis: op.read(op.builder.value(name)) for axis, name in enumerate(names) if name}
    if any(op.dtype_of(each).kind != "i" for each in indices.values()):
        raise UnsupportedError("places that are not integers")
    if len(indices) == 1:
        ((axis, places),) = indices.items()
        return op.emit("Gather", x, places, axis=axis)
    ranks = {op.rank_of(each) for each in indices.values()}
    if [*indices] != [*range(len(indices))] or ranks != {1}:
        raise UnsupportedError("places for axes that are not the first ones, or not in lists")
    sizes = {str(op.shape(each)[0]) for each in indices.values()}
    if len(sizes) > 1:
        raise UnsupportedError("lists of places of several lengths")
    column = [op.unsqueezed(each, 1) for each in indices.values()]
    return op.emit("GatherND", x, op.emit("Concat", *column, axis=1))


@rule("one_hot")
def _one_hot(op: TorchOperator) -> str:
    depth = op.attribute("num_classes", -1)
    if depth < 1:
        raise UnsupportedError("num_classes=-1: the largest index would say how many")
    values = op.constant(np.array([0, 1], op.result_dtype()), "values")
    return op.emit("OneHot", op.value(), [depth], values, axis=-1)


def _filled(number: float | None, op: TorchOperator) -> str:
    """A tensor of one number; a shape that the program writes as numbers makes a constant."""
    op.ignore("dtype", "names")
    if op.at.type.startswith("new_"):
        op.alias()
    if number is None:
        number = op.number("fill_value")
    sizes, dtype = op.sizes("size"), op.result_dtype()
    counts = [each for each in sizes if isinstance(each, int)]
    if len(counts) == len(sizes):
        if min(counts, default=0) < 0:
            raise UnsupportedError(f"a shape {counts}")
        filled = op.filled(counts, number, dtype, "filled")
        op.builder.literal[filled] = counts
        return filled
    return op.emit("ConstantOfShape", op.listed(sizes), value=np.full(1, number, dtype))


rule("zeros new_zeros")(partial(_filled, 0))
rule("ones new_ones")(partial(_filled, 1))
rule("full new_full")(partial(_filled, None))


def _like(number: float | None, op: TorchOperator) -> str:
    op.ignore("dtype")
    number = op.number("fill_value") if number is None else number
    value = np.full(1, number, op.result_dtype())
    return op.emit("ConstantOfShape", op.sizes_of(op.value()), value=value)


rule("zeros_like")(partial(_like, 0))
rule("ones_like")(partial(_like, 1))
rule("full_like")(partial(_like, None))


@rule("scalar_tensor")
def _scalar_tensor(op: TorchOperator) -> str:
    op.ignore("dtype")
    return op.operand("s", op.result_dtype())


@rule("arange arange.start arange.start_step")
def _arange(op: TorchOperator) -> str:
    op.ignore("dtype")
    dtype = op.result_dtype()

    def end(name: str, default: int) -> str:
        result: Any = op.attribute(name, default)
        if isinstance(result, Open):
            return op.operand(name, dtype)
        return op.scalar(op.number(name, default), dtype)

    return op.emit("Range", *(end(*each) for each in (("start", 0), ("end", 0), ("step", 1))))


@rule("tril triu")
def _triangle(op: TorchOperator) -> str:
    k: int = op.attribute("diagonal", 0)
    return op.emit("Trilu", op.value(), k, upper=int(op.at.type == "triu"))


@rule("constant_pad_nd pad")
def _pad(op: TorchOperator) -> str:
    """Pairs of what is added before and behind each axis, from the last one."""
    x, widths = op.value(), op.integers("pad")
    mode = op.one_of("mode", "constant", PAD_MODES)
    value = [op.scalar(op.number("value", 0.0), op.result_dtype())] if mode == "constant" else []
    rank, pairs = op.rank_of(x), list(zip(widths[::2], widths[1::2], strict=True))
    for at in range(len(pairs)):
        if op.builder.free_in(x, rank - 1 - at):
            op.builder.tie_numbers([n for n in pairs[at] if abs(n) > 1], op.why)
    pairs = [(0, 0)] * (rank - len(pairs)) + pairs[::-1]
    ends = [*(a for a, _ in pairs), *(b for _, b in pairs)]
    return op.emit("Pad", x, ends, *value, mode=PAD_MODES[mode])
