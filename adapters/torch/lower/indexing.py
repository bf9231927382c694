"""The rules that take parts of tensors, put tensors together, and make new ones."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.torch.lower.operator import LAST, TorchOperator, rule
from onernn.adapters.torch.read.exported import Open
from onernn.core.budget import loading
from onernn.core.errors import UnsupportedError

_END = 2**31 - 1


def _place(op: TorchOperator, x: str, axis: int, name: str, default: int) -> int | Open:
    """A number along an axis. Such as 0, 1 and what counts from the end say nothing of its size,
    where that is no small one; all others may.
    """
    found = op.attribute(name, default)
    if isinstance(found, Open):
        return found
    if not isinstance(found, int):
        raise UnsupportedError(f"argument {name}: no number")
    free = op.builder.free_in(x, axis)
    if free and 0 <= found < _END:
        size = op.builder.exported(op.shape(x)[axis])
        if found > 1 or size is None or found in (size, size - 1, size // 2, -(-size // 2)):
            op.builder.tie(free, op.why)
    if 1 < found < _END:
        op.builder.tie([each for each, size in op.builder.free.items() if size == found], op.why)
    return max(-_END, min(found, _END))


@rule("slice.Tensor slice_copy.Tensor")
def _slice(op: TorchOperator) -> str:
    x = op.value()
    axis, step = op.axis(x, default=0), op.attribute("step", 1)
    ends = [_place(op, x, axis, "start", 0), _place(op, x, axis, "end", LAST)]
    if ends == [0, _END] and step == 1:
        return x
    return op.emit("Slice", x, *(op.listed([each]) for each in ends), op.ints(axis), op.ints(step))


@rule("narrow")
def _narrow(op: TorchOperator) -> str:
    x = op.value()
    axis = op.axis(x)
    start, length = (_place(op, x, axis, name, 0) for name in ("start", "length"))
    first = op.listed([start])
    end = op.emit("Add", first, op.listed([length]))
    return op.emit("Slice", x, first, end, op.ints(axis))


@rule("select.int select_copy.int")
def _select(op: TorchOperator) -> str:
    x = op.value()
    axis = op.axis(x)
    place = _place(op, x, axis, "index", 0)
    if isinstance(place, int):
        return op.emit("Gather", x, op.constant(np.int64(place)), axis=axis)
    return op.emit("Squeeze", op.emit("Gather", x, op.as_list(place), axis=axis), op.ints(axis))


@rule("split.Tensor split_with_sizes chunk unbind.int unsafe_chunk tensor_split.sections")
def _split(op: TorchOperator) -> tuple[str, ...]:
    """Parts of the sizes that the program tells of its outputs."""
    x = op.value()
    axis = op.axis(x, default=0)
    op.builder.tie(op.builder.free_in(x, axis), op.why)
    for name in ("split_size", "split_sizes", "chunks", "sections"):
        op.attribute(name, None)
    count = len(op.node.outputs)
    if op.at.type.startswith("unbind"):
        places = [op.constant(np.int64(at)) for at in range(count)]
        return tuple(op.emit("Gather", x, at, axis=axis) for at in places)
    sizes: list[int] = []
    for name in op.node.outputs:
        meta = op.builder.metas.get(name)
        size = meta.sizes[axis] if meta and axis < len(meta.sizes) else None
        if not isinstance(size, int):
            raise UnsupportedError(f"the size of part {len(sizes)} is open")
        sizes.append(size)
    return op.emit_many("Split", count, x, op.ints(*sizes), axis=axis)


@rule("cat concat concatenate")
def _cat(op: TorchOperator) -> str:
    values = [op.cast(each, op.made()) for each in op.values("tensors")]
    kept = [each for each in values if op.builder.type_of(each).counts != (0,)]  # as old code has
    return op.emit("Concat", *kept, axis=op.axis(kept[0], default=0))


@rule("stack")
def _stack(op: TorchOperator) -> str:
    values = op.values("tensors")
    axis = op.attribute("dim", 0)
    axis += (op.rank(values[0]) + 1) * (axis < 0)
    return op.emit("Concat", *(op.emit("Unsqueeze", v, op.ints(axis)) for v in values), axis=axis)


@rule("flip")
def _flip(op: TorchOperator) -> str:
    x = op.value()
    axes = op.axes(x, "dims")
    ends = [[-1] * len(axes), [-_END] * len(axes), axes, [-1] * len(axes)]
    return op.emit("Slice", x, *(op.ints(*each) for each in ends))


@rule("repeat tile")
def _repeat(op: TorchOperator) -> str:
    x, times = op.value(), op.sizes("repeats" if op.given("repeats") else "dims")
    op.builder.tie_numbers([each for each in times if isinstance(each, int)], op.why)
    more = len(times) - op.rank(x)
    if more > 0:
        x = op.emit("Unsqueeze", x, op.ints(*range(more)))
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
    op.attribute("sparse_grad", None)
    x = op.value()
    return op.emit("GatherElements", x, op.value("index"), axis=op.axis(x))


@rule("index.Tensor")
def _index(op: TorchOperator) -> str:
    """One list of places, for one axis, or lists for the first axes, which stand together."""
    x, names = op.value(), op.inputs.get("indices", ())
    op.variables("indices")
    given = {axis: op.read(op.builder.value(name)) for axis, name in enumerate(names) if name}
    if any(op.dtype_of(each).kind != "i" for each in given.values()):
        raise UnsupportedError("places that are not integers")
    if len(given) == 1:
        ((axis, places),) = given.items()
        return op.emit("Gather", x, places, axis=axis)
    ranks = {op.rank(each) for each in given.values()}
    if [*given] != [*range(len(given))] or ranks != {1}:
        raise UnsupportedError("places for axes that are not the first ones, or not in lists")
    sizes = {str(op.shape(each)[0]) for each in given.values()}
    if len(sizes) > 1:
        raise UnsupportedError("lists of places of several lengths")
    column = [op.emit("Unsqueeze", each, op.ints(1)) for each in given.values()]
    return op.emit("GatherND", x, op.emit("Concat", *column, axis=1))


@rule("one_hot")
def _one_hot(op: TorchOperator) -> str:
    depth = op.attribute("num_classes", -1)
    if depth < 1:
        raise UnsupportedError("num_classes that the largest index tells")
    values = op.constant(np.array([0, 1], op.made()), "values")
    return op.emit("OneHot", op.value(), op.ints(depth), values, axis=-1)


def _filled(number: float | None, op: TorchOperator) -> str:
    """A tensor of one number; a shape that the program writes as numbers makes a constant."""
    for ignored in ("dtype", "names"):
        op.attribute(ignored, None)
    if op.at.type.startswith("new_"):
        op.alias()
    if number is None:
        number = op.number("fill_value")
    sizes, dtype = op.sizes("size"), op.made()
    counts = [each for each in sizes if isinstance(each, int)]
    if len(counts) == len(sizes):
        if min(counts, default=0) < 0:
            raise UnsupportedError(f"a shape {counts}")
        loading().take(math.prod(max(each, 1) for each in counts) * dtype.itemsize, "a constant")
        made = op.constant(np.full(counts, number, dtype), "filled")
        op.builder.literal[made] = counts
        return made
    return op.emit("ConstantOfShape", op.listed(sizes), value=np.full(1, number, dtype))


rule("zeros new_zeros")(partial(_filled, 0))
rule("ones new_ones")(partial(_filled, 1))
rule("full new_full")(partial(_filled, None))


def _like(number: float | None, op: TorchOperator) -> str:
    op.attribute("dtype", None)
    number = op.number("fill_value") if number is None else number
    value = np.full(1, number, op.made())
    return op.emit("ConstantOfShape", op.sizes_of(op.value()), value=value)


rule("zeros_like")(partial(_like, 0))
rule("ones_like")(partial(_like, 1))
rule("full_like")(partial(_like, None))


@rule("scalar_tensor")
def _scalar_tensor(op: TorchOperator) -> str:
    op.attribute("dtype", None)
    return op.operand("s", op.made())


@rule("arange arange.start arange.start_step")
def _arange(op: TorchOperator) -> str:
    op.attribute("dtype", None)
    dtype = op.made()

    def end(name: str, default: int) -> str:
        found: Any = op.attribute(name, default)
        if isinstance(found, Open):
            return op.operand(name, dtype)
        return op.scalar(op.number(name, default), dtype)

    return op.emit("Range", *(end(*each) for each in (("start", 0), ("end", 0), ("step", 1))))


@rule("tril triu")
def _triangle(op: TorchOperator) -> str:
    k = op.constant(np.int64(op.attribute("diagonal", 0)))
    return op.emit("Trilu", op.value(), k, upper=int(op.at.type == "triu"))


_PADS = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@rule("constant_pad_nd pad")
def _pad(op: TorchOperator) -> str:
    """Pairs of what is added before and behind each axis, from the last one."""
    x, widths = op.value(), op.integers("pad")
    mode = op.attribute("mode", "constant")
    if mode not in _PADS:
        raise UnsupportedError(f"attribute mode={mode!r}: expected one of {', '.join(_PADS)}")
    value = [op.scalar(op.number("value", 0.0), op.made())] if mode == "constant" else []
    rank, pairs = op.rank(x), list(zip(widths[::2], widths[1::2], strict=True))
    for at in range(len(pairs)):
        if op.builder.free_in(x, rank - 1 - at):
            op.builder.tie_numbers([n for n in pairs[at] if abs(n) > 1], op.why)
    pairs = [(0, 0)] * (rank - len(pairs)) + pairs[::-1]
    ends = op.ints(*(a for a, _ in pairs), *(b for _, b in pairs))
    return op.emit("Pad", x, ends, *value, mode=_PADS[mode])
