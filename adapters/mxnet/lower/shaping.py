"""The rules of operators that move elements.

Formulas: documentation of MXNet 1.9.1's operators of the same names. The symbol seldom tells how
many axes a value has, so these are written without knowing it where ONNX can say that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onernn.adapters.mxnet.lower.operator import FIRST, LAST, MxnetOperator
from onernn.adapters.mxnet.lower.rules import rule
from onernn.adapters.mxnet.read import attributes as parse
from onernn.core.errors import UnsupportedError

_MOST = 2**26  # elements of a constant that is made from its attributes alone


@rule("Reshape", "data")
def _reshape(op: MxnetOperator, x: str) -> str:
    target, reverse = op.sizes("shape"), op.flag("reverse")
    if not target:  # MXNet 0.x: 0 stands for the size that is left over
        target = tuple(-1 if size == 0 else size for size in op.sizes("target_shape"))
        if op.flag("keep_highest"):
            target = (0, *target[1:])
    if not target:
        raise UnsupportedError("attribute shape is missing")
    return reshaped(op, x, target, reverse=reverse)


@rule("_npx_reshape", "data")
def _npx_reshape(op: MxnetOperator, x: str) -> str:
    """Codes of NumPy mode: -2 keeps, -3 skips one of size 1, -4 keeps all, -5 joins, -6 splits."""
    op.only("order", "C")
    target = op.sizes("newshape")
    names = {-2: 0, -4: -2, -5: -3, -6: -4}
    if -3 in target or 0 in target:
        raise UnsupportedError(f"attribute newshape={target}")
    codes = tuple(names.get(size, size) for size in target)
    return reshaped(op, x, codes, reverse=op.flag("reverse"))


@rule("_np_reshape", "data")
def _np_reshape(op: MxnetOperator, x: str) -> str:
    op.only("order", "C")
    target = op.sizes("newshape")
    if 0 in target or min(target, default=0) < -1:
        raise UnsupportedError(f"attribute newshape={target}")
    return reshaped(op, x, target)


def reshaped(op: MxnetOperator, x: str, target: tuple[int, ...], *, reverse: bool = False) -> str:
    """A reshape with MXNet's codes: 0 keeps a size, -1 is what is left, -2 keeps all the rest,

    -3 joins two, -4 splits one into the two that follow. ``reverse`` reads from the right.
    """
    if not reverse and min(target, default=0) >= -1:
        return op.emit("Reshape", x, op.ints(*target))
    if reverse and -2 in target:
        raise UnsupportedError(f"attribute shape={target} with reverse")
    whole = op.sizes_of(x)
    at, codes, pieces = 0, list(target[::-1] if reverse else target), []
    while codes:
        code = codes.pop(0)
        if code == -2:
            pieces.append(op.part(whole, at, LAST))
            at = LAST
        elif code == -4:
            pieces += _split(op, _size(op, whole, at, reverse), codes, reverse)
            at += 1
        elif code == -3:
            pair = [_size(op, whole, at + k, reverse) for k in range(2)]
            pieces.append(op.emit("Mul", *pair))
            at += 2
        elif code >= -1:
            pieces.append(_size(op, whole, at, reverse) if code == 0 else op.ints(code))
            at += 1
        else:
            raise UnsupportedError(f"attribute shape={target}")
    return op.emit("Reshape", x, op.joined(*(pieces[::-1] if reverse else pieces)))


def _size(op: MxnetOperator, whole: str, at: int, reverse: bool) -> str:
    return op.emit("Gather", whole, op.ints(-1 - at if reverse else at), axis=0)


def _split(op: MxnetOperator, size: str, codes: list[int], reverse: bool) -> list[str]:
    if len(codes) < 2:
        raise UnsupportedError("attribute shape: -4 without the two sizes behind it")
    pair = [codes.pop(0), codes.pop(0)]
    if max(pair) <= 0 or min(pair) < -1 or 0 in pair or reverse:
        raise UnsupportedError(f"attribute shape: -4 with {pair}")
    known = op.ints(max(pair))
    if -1 not in pair:
        return [op.ints(size) for size in pair]
    rest = op.emit("Div", size, known)
    return [rest, known] if pair[0] == -1 else [known, rest]


rule("Flatten", "data", inferred="first")(lambda op, x: op.matrix(x))


@rule("reshape_like", "lhs rhs")
def _reshape_like(op: MxnetOperator, x: str, like: str) -> str:
    for name in ("lhs_begin", "lhs_end", "rhs_begin", "rhs_end"):
        op.only(name, "None")
    return op.emit("Reshape", x, op.sizes_of(like))


@rule("expand_dims", "data", inferred="first")
def _expand_dims(op: MxnetOperator, x: str) -> str:
    axis = op.integer("axis")
    if op.is_inferred(x) and axis != -1:
        raise UnsupportedError(f"attribute axis={axis} of a value whose size is inferred")
    return op.emit("Unsqueeze", x, op.ints(axis))


@rule("squeeze _np_squeeze", "data")
def _squeeze(op: MxnetOperator, x: str) -> str:
    axes = op.optional_sizes("axis")
    if axes is None:
        return op.listed(op.emit("Squeeze", x))
    return op.listed(op.emit("Squeeze", x, op.ints(*axes)), *axes)


@rule("SwapAxis", "data")
def _swap_axis(op: MxnetOperator, x: str) -> str:
    return op.swapped(x, op.integer("dim1", 0), op.integer("dim2", 0))


@rule("transpose _np_transpose", "data")
def _transpose(op: MxnetOperator, x: str) -> str:
    axes = op.optional_sizes("axes")
    if not axes:
        return op.emit("Transpose", x)
    return op.emit("Transpose", x, perm=tuple(axis % len(axes) for axis in axes))


@rule("Concat _npi_concatenate", "*data")
def _concat(op: MxnetOperator, *values: str) -> str:
    return op.emit("Concat", *values, axis=op.integer("dim", op.integer("axis", 1)))


@rule("_rnn_param_concat", "*data")
def _rnn_param_concat(op: MxnetOperator, *values: str) -> str:
    op.only("dim", "0")
    return op.joined(*values)


@rule("stack _npi_stack", "*data")
def _stack(op: MxnetOperator, *values: str) -> str:
    axis = op.integer("axis", 0)
    rows = [op.emit("Unsqueeze", value, op.ints(axis)) for value in values]
    return op.emit("Concat", *rows, axis=axis)


@rule("SliceChannel", "data", inferred="first")
def _slice_channel(op: MxnetOperator, x: str) -> tuple[str, ...]:
    return _pieces(op, x, op.integer("axis", 1), op.integer("num_outputs"))


@rule("_split_v2", "data")
def _split_v2(op: MxnetOperator, x: str) -> tuple[str, ...]:
    axis, sections, starts = op.integer("axis", 1), op.integer("sections", 0), op.sizes("indices")
    if sections:
        return _pieces(op, x, axis, sections)
    if starts[:1] != (0,) or list(starts) != sorted(starts):
        raise UnsupportedError(f"attribute indices={starts}")
    return _pieces(op, x, axis, len(starts), starts)


def _pieces(
    op: MxnetOperator, x: str, axis: int, count: int, starts: tuple[int, ...] = ()
) -> tuple[str, ...]:
    """Equal pieces, or those from each start to the next."""
    squeezed = op.flag("squeeze_axis")
    if not 0 < count <= 2**16:
        raise UnsupportedError(f"{count} outputs")
    if op.is_inferred(x) and axis == 0:
        raise UnsupportedError(f"attribute axis={axis} of a value whose size is inferred")
    if starts:
        ends = (*starts[1:], LAST)
        parts = tuple(op.part(x, a, b, axis) for a, b in zip(starts, ends, strict=True))
    else:
        parts = op.emit_many("Split", count, x, axis=axis)
    return tuple(op.emit("Squeeze", part, op.ints(axis)) for part in parts) if squeezed else parts


@rule("slice", "data")
def _slice(op: MxnetOperator, x: str) -> str:
    begin, end, step = op.bounds("begin"), op.bounds("end"), op.bounds("step")
    steps = [1 if by is None else by for by in step or (1,) * len(begin)]
    if not len(begin) == len(end) == len(steps) or 0 in steps:
        raise UnsupportedError(f"attributes begin={begin} end={end} step={step}")
    cuts = []
    for first, last, by in zip(begin, end, steps, strict=True):
        front, back = (0, LAST) if by > 0 else (LAST, FIRST)
        cuts.append((front if first is None else first, back if last is None else last))
    starts, ends = zip(*cuts, strict=True) if cuts else ((), ())
    return sliced(op, x, starts, ends, range(len(begin)), steps)


def sliced(op: MxnetOperator, x: str, *cuts: Sequence[int]) -> str:
    """From starts to ends of axes, by steps."""
    return op.emit("Slice", x, *(op.ints(*each) for each in cuts))


@rule("slice_axis", "data")
def _slice_axis(op: MxnetOperator, x: str) -> str:
    begin, end = op.integer("begin"), op.optional_integer("end")
    return sliced(op, x, [begin], [LAST if end is None else end], [op.integer("axis")], [1])


@rule("slice_like", "data shape_like")
def _slice_like(op: MxnetOperator, x: str, like: str) -> str:
    whole = op.sizes_of(like)
    axes = op.sizes("axes") or range(op.known_rank(x, "attribute axes=()"))
    ends = op.emit("Gather", whole, op.ints(*axes), axis=0)
    return op.emit("Slice", x, op.ints(*[0] * len(axes)), ends, op.ints(*axes))


@rule("reverse _npi_flip", "data")
def _reverse(op: MxnetOperator, x: str) -> str:
    axes = op.sizes("axis")
    n = len(axes)
    return sliced(op, x, [-1] * n, [FIRST] * n, axes, [-1] * n)


@rule("broadcast_to _npi_broadcast_to", "data")
def _broadcast_to(op: MxnetOperator, x: str) -> str:
    shape = op.sizes("shape")
    if math.prod([abs(size) or 1 for size in shape]) > _MOST:
        raise UnsupportedError(f"attribute shape={shape}: too large")
    kept = -2 if op.numpy else 0  # the size of the input
    return op.emit("Expand", x, op.ints(*(1 if size == kept else size for size in shape)))


@rule("broadcast_axis", "data")
def _broadcast_axis(op: MxnetOperator, x: str) -> str:
    whole = op.sizes_of(x)
    for axis, size in zip(op.sizes("axis"), op.sizes("size"), strict=True):
        whole = op.resized(whole, axis, size)
    return op.emit("Expand", x, whole)


@rule("broadcast_like", "lhs rhs")
def _broadcast_like(op: MxnetOperator, x: str, like: str) -> str:
    for name in ("lhs_axes", "rhs_axes"):
        op.only(name, "None")
    return op.emit("Expand", x, op.sizes_of(like))


@rule("_zeros _ones _full _npi_zeros _npi_ones", "")
def _filled(op: MxnetOperator) -> str:
    shape, dtype = op.sizes("shape"), op.dtype("dtype")
    unknown = -1 if op.context.symbol.np_shape else 0
    value = op.number("value", 0.0) if op.name == "_full" else float("ones" in op.name)
    sizes = tuple(1 if size == unknown else size for size in shape)
    if min(sizes, default=0) < 0 or math.prod(sizes) > _MOST:
        raise UnsupportedError(f"attribute shape={shape}")
    op.gives_inferred = unknown in shape
    return op.constant(np.full(sizes, value, dtype))


@rule("_arange _npi_arange", "")
def _arange(op: MxnetOperator) -> str:
    start, step, repeat = op.number("start", 0.0), op.number("step", 1.0), op.integer("repeat", 1)
    stop, dtype = op.optional_number("stop"), op.dtype("dtype")
    op.only("infer_range", "False")
    if stop is None:
        start, stop = 0.0, start
    numbers = [parse.finite(number) for number in (start, stop, step)]
    count = int(np.ceil((numbers[1] - numbers[0]) / step)) if step else _MOST + 1
    if not 0 <= count * repeat <= _MOST:
        raise UnsupportedError(f"{count * repeat} elements")
    return op.constant(np.repeat(start + np.arange(count) * step, repeat).astype(dtype))


@rule("tile", "data")
def _tile(op: MxnetOperator, x: str) -> str:
    times = op.sizes("reps")
    if op.known_rank(x, "attribute reps") != len(times):
        raise UnsupportedError(f"attribute reps={times}: another number of axes than the input")
    return op.emit("Tile", x, op.ints(*times))


@rule("repeat", "data")
def _repeat(op: MxnetOperator, x: str) -> str:
    """Each element several times: a new axis of size one, enlarged, and joined with the old one."""
    times, axis = op.integer("repeats"), op.optional_integer("axis")
    if axis is None:
        x, axis = op.emit("Reshape", x, op.ints(-1)), 0
    if axis < 0 or times < 0:
        raise UnsupportedError(f"attributes repeats={times}, axis={axis}")
    whole = op.sizes_of(x)
    before, after = op.part(whole, 0, axis + 1), op.part(whole, axis + 1, LAST)
    wide = op.emit("Unsqueeze", x, op.ints(axis + 1))
    wide = op.emit("Expand", wide, op.joined(before, op.ints(times), after))
    return op.emit("Reshape", wide, op.joined(op.part(whole, 0, axis), op.ints(-1), after))
