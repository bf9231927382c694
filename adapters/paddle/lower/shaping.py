"""The rules of Paddle's operators that shape, join, part and choose.

Slots and defaults: the operators' makers in 2.6. Which LoD is handed on is measured with 2.6.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.rules import rule
from onernn.core.errors import UnsupportedError
from onernn.core.sizes import Size

_ALL = 2**31 - 1
"""The end of an axis, as Paddle's exporters say it."""


@rule("reshape2")
def _reshape(op: PaddleOperator) -> Results:
    x, sizes, shape = op.value("X"), op.shape("X"), op.attribute("shape", ())
    if op.variables("ShapeTensor") or op.variables("Shape"):
        if op.is_ragged(x):
            raise UnsupportedError("input Shape: a LoD under a shape that is computed")
        return op.emit("Reshape", x, op.integers("shape", "Shape", "ShapeTensor"))
    if op.is_ragged(x) and shape[:1] == (-1,):
        words = _known(sizes[1:])
        rows = _known([sizes[at] if size == 0 else size for at, size in enumerate(shape)][1:])
        if None not in (words, rows) and words != rows:  # Paddle keeps a LoD that does not fit
            raise UnsupportedError(f"attribute shape={shape} splits or joins the words of a LoD")
    return op.emit("Reshape", x, op.ints(shape))


def _known(sizes: Sequence[int | None]) -> int | None:
    """The product of the sizes, None where one is dynamic."""
    return None if None in sizes else math.prod(size or 0 for size in sizes)


@rule("transpose2")
def _transpose(op: PaddleOperator) -> Results:
    op.only("data_format", "AnyLayout")
    return op.emit("Transpose", op.dense(op.value("X")), perm=op.attribute("axis", ()))


@rule("squeeze2")
def _squeeze(op: PaddleOperator) -> Results:
    """Axes of another size than one stay; none given are all of size one."""
    x, sizes, axes = op.value("X"), op.shape("X"), op.attribute("axes", ())
    if not axes and None in sizes:
        raise UnsupportedError("attribute axes=(): which axes go shows only at run time")
    chosen = {axis % len(sizes) for axis in axes} or set(range(len(sizes)))
    gone = sorted(axis for axis in chosen if sizes[axis] in (1, None))
    if 0 in gone and op.is_ragged(x):
        raise UnsupportedError(f"attribute axes={axes}: the words of a LoD cannot be squeezed")
    return op.emit("Squeeze", x, op.ints(gone)) if gone else op.emit("Identity", x)


@rule("flatten_contiguous_range")
def _flatten(op: PaddleOperator) -> Results:
    """Axes from start to stop as one; those before are copied, those behind must be known."""
    x, sizes = op.value("X"), op.shape("X")
    start, stop = (op.attribute(name, 1) % len(sizes) for name in ("start_axis", "stop_axis"))
    if (op.is_ragged(x) and not start) or start > stop or None in sizes[stop + 1 :]:
        raise UnsupportedError(f"axes {start} to {stop} of {sizes} as one")
    return op.emit("Reshape", x, op.ints([*[0] * start, -1, *sizes[stop + 1 :]]))


@rule("unsqueeze2")
def _unsqueeze(op: PaddleOperator) -> Results:
    """One axis after the other: each counts those that were put in before it."""
    x, placed = op.value("X"), [False] * len(op.shape("X"))
    for axis in op.attribute("axes", ()):
        place = axis if axis >= 0 else axis + len(placed) + 1
        if not 0 <= place <= len(placed):
            raise UnsupportedError(f"attribute axes: {axis} for {len(placed)} axes")
        placed.insert(place, True)
    new = [at for at, added in enumerate(placed) if added]
    # A new first axis has no LoD. Paddle keeps that of a batch of one word, whose first size stays.
    return op.emit("Unsqueeze", x, op.ints(new)) if new else op.emit("Identity", x)


@rule("concat")
def _concat(op: PaddleOperator) -> Results:
    values, axis = op.values("X"), op.attribute("axis", 0)
    axis += len(op.shape("X")) if axis < 0 else 0
    levels = {op.depth(value) for value in values}
    if not op.is_ragged(values[0]):
        values = [op.dense(value) for value in values]
    elif axis == 0:
        if len(levels) > 1:
            raise UnsupportedError(f"attribute axis=0: inputs X have {sorted(levels)} LoD levels")
        return op.emit("SequenceAppend", *values)
    return op.emit("Concat", *values, axis=axis)


@rule("stack")
def _stack(op: PaddleOperator) -> Results:
    axis, rank = op.attribute("axis", 0), len(op.shape("X"))
    at = op.ints([axis + rank + 1 if axis < 0 else axis])
    first, *others = op.values("X")
    # Under a new first axis Paddle keeps a LoD that does not fit.
    first = op.dense(first) if axis in (0, -rank - 1) else first
    parts = [op.emit("Unsqueeze", part, at) for part in (first, *map(op.dense, others))]
    return {"Y": op.emit("Concat", *parts, axis=axis)}


@rule("split")
def _split(op: PaddleOperator) -> Results:
    if op.optional("AxisTensor") or op.variables("SectionsTensorList"):
        raise UnsupportedError("axis or sections that are computed at run time")
    x, shape, axis = op.value("X"), op.shape("X"), op.attribute("axis", 0)
    if axis < 0:  # Python's paddle.split never saves one
        raise UnsupportedError(f"attribute axis={axis}: Paddle 2.6.2 cuts the memory elsewhere")
    sections, parts = list(op.attribute("sections", ())), op.attribute("num", 0)
    count = len(op.outputs.get("Out", ()))
    if sections and -1 in sections:
        if shape[axis] is None or sections.count(-1) > 1:
            raise UnsupportedError(f"attribute sections={sections} of {shape}")
        sections[sections.index(-1)] = shape[axis] - sum(sections) - 1
    if (len(sections) or parts) != count:
        raise UnsupportedError(f"{len(sections) or parts} parts into {count} outputs")
    inputs = (op.dense(x) if axis == 0 else x, *([op.ints(sections)] if sections else []))
    return op.builder.emit_many("Split", inputs, count, {"axis": axis})


@rule("shape")
def _shape(op: PaddleOperator) -> Results:
    return op.emit("Cast", op.emit("Shape", op.value("Input")), to="int32")


@rule("lookup_table", "lookup_table_v2")
def _lookup_table(op: PaddleOperator) -> Results:
    ids, table = op.value("Ids"), op.value("W")
    if op.at.type == "lookup_table":  # ids (..., 1); v2 takes them without the last axis
        ids = op.emit("Squeeze", ids, op.ints([-1]))
    padding = op.attribute("padding_idx", -1)
    if padding != -1:
        rows = op.constant("W").copy()
        if padding == len(rows):  # one past the table is a row of zeros, too
            rows = np.concatenate([rows, np.zeros_like(rows[:1])])
        if not 0 <= padding < len(rows):
            raise UnsupportedError(
                f"attribute padding_idx={padding}: the table has {len(rows)} rows"
            )
        rows[padding] = 0
        table = op.builder.constant(rows, f"{table}/padded")
    return op.emit("Gather", table, ids, axis=0, non_negative=True)


def _check_lod_fits(op: PaddleOperator, x: str, axes: object, *, rows_change: bool) -> None:
    if rows_change and op.is_ragged(x):
        raise UnsupportedError(f"attribute {axes}: Paddle keeps a LoD that does not fit")


@rule("gather")
def _gather(op: PaddleOperator) -> Results:
    """Indices (K,) or (K, 1) count from zero."""
    op.absent("Axis")
    x, at, axis = op.value("X"), op.dense(op.value("Index")), op.attribute("axis", 0)
    op.attribute("overwrite", True)  # of the gradient
    axis %= len(op.shape("X"))
    _check_lod_fits(op, x, f"{axis=}", rows_change=axis == 0)
    if len(op.shape("Index")) > 1:
        at = op.emit("Reshape", at, op.ints([-1]))
    return op.under(op.emit("Gather", op.dense(x), at, axis=axis, non_negative=True), x)


@rule("flip")
def _flip(op: PaddleOperator) -> Results:
    x, axes = op.value("X"), list(op.attribute("axis", ()))
    behind, least = [-1] * len(axes), [-(2**63)] * len(axes)
    out = op.emit("Slice", op.dense(x), *map(op.ints, (behind, least, axes, behind)))
    return op.under(out, x)


@rule("slice")
def _slice(op: PaddleOperator) -> Results:
    x, axes, gone = op.value("Input"), op.attribute("axes", ()), op.attribute("decrease_axis", ())
    op.attribute("infer_flags", ())
    if 0 in axes:
        x = op.dense(x)
    begin = op.integers("starts", "StartsTensor", "StartsTensorList")
    end = op.integers("ends", "EndsTensor", "EndsTensorList")
    out = ""
    if len(axes) == 1:
        out = _element(op, x, axes[0], begin, end)
    if not out or not gone:
        out = op.emit("Unsqueeze", out, op.ints(axes)) if out else ""
        out = out or op.emit("Slice", x, begin, end, op.ints(axes))
        out = op.emit("Squeeze", out, op.ints(gone)) if gone else out
    if gone and op.gives_one() and len(gone) == len(op.shape("Input")):
        return op.emit("Reshape", out, op.ints([1]))
    return out


def _element(op: PaddleOperator, x: str, axis: int, begin: str, end: str) -> str:
    """What a slice takes that is the last of an array, or an element at a place that a loop counts.

    "" for other slices. In a list of the numbers 0, 1, ... the element is the place itself.
    """
    builder, known, behind = op.builder, *map(op.builder.type_of, (begin, end))
    array = builder.stacked.get(op.variable("Input"))
    if array is not None and axis == 0 and known.numbers is not None and behind.numbers is not None:
        if [*known.numbers, *behind.numbers] == [-1, _ALL]:
            last = array.parts[-1].last
            return op.emit("Identity", last) if last else ""
    if builder.outer is None or known.numbers is not None:
        return ""
    if not isinstance(known.value, tuple) or not isinstance(behind.value, tuple):
        return ""
    (place,), (after,) = known.value, behind.value
    if after - place != Size.of(1) or place != place.most():
        return ""
    at = op.emit("Squeeze", begin, op.ints([0]))
    if x in builder.indices:
        return op.emit("Cast", at, to=str(op.dtype("Input")))
    if turned := builder.turned(x, axis, len(op.shape("Input"))):
        x, axis = turned, 0
    return op.emit("Gather", x, at, axis=axis, non_negative=True)


@rule("strided_slice")
def _strided_slice(op: PaddleOperator) -> Results:
    for role in ("Starts", "Ends", "Strides"):
        op.absent(f"{role}Tensor", f"{role}TensorList")
    op.attribute("infer_flags", ())
    op.only("decrease_axis", ())
    x, axes, steps = op.value("Input"), op.attribute("axes", ()), op.attribute("strides", ())
    if min(steps, default=1) < 1:
        raise UnsupportedError(f"attribute strides={steps}: backwards")
    _check_lod_fits(op, x, f"{axes=}", rows_change=0 in axes)
    ends = (op.attribute("starts", ()), op.attribute("ends", ()))
    return op.emit("Slice", x, *map(op.ints, (*ends, axes, steps)))
