"""The rules of Paddle's operators that move elements: shapes, indices, sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onernn.adapters.common.bodies import FORMULAS, remainder, stacked
from onernn.adapters.common.lowering import Results
from onernn.adapters.paddle.table import PaddleOperator, rule
from onernn.ir.budget import loading
from onernn.ir.errors import UnsupportedError
from onernn.ir.types import Size

# The rules of Paddle's operators that shape, join, part and choose.
#
# Slots and defaults: the operators' makers in 2.6. Which LoD is handed on is measured with 2.6.2.

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
    return op.reshaped(x, *shape)


def _known(sizes: Sequence[int | None]) -> int | None:
    """The product of the sizes, None where one is dynamic."""
    return None if None in sizes else math.prod(size or 0 for size in sizes)


@rule("transpose2")
def _transpose(op: PaddleOperator) -> Results:
    op.only(data_format="AnyLayout")
    return op.transposed(op.plain("X"), *op.attribute("axis", ()))


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
    return op.squeezed(x, *gone) if gone else op.emit("Identity", x)


@rule("flatten_contiguous_range")
def _flatten(op: PaddleOperator) -> Results:
    """Axes from start to stop as one; those before are copied, those behind must be known."""
    x, sizes = op.value("X"), op.shape("X")
    start, stop = (op.attribute(name, 1) % len(sizes) for name in ("start_axis", "stop_axis"))
    if (op.is_ragged(x) and not start) or start > stop or None in sizes[stop + 1 :]:
        raise UnsupportedError(f"axes {start} to {stop} of {sizes} as one")
    return op.reshaped(x, *[0] * start, -1, *sizes[stop + 1 :])


@rule("unsqueeze2")
def _unsqueeze(op: PaddleOperator) -> Results:
    """One axis after the other: each counts those that were put in before it."""
    x, placed = op.value("X"), [False] * op.rank("X")
    for axis in op.attribute("axes", ()):
        place = axis if axis >= 0 else axis + len(placed) + 1
        if not 0 <= place <= len(placed):
            raise UnsupportedError(f"attribute axes: {axis} for {len(placed)} axes")
        placed.insert(place, True)
    new = [at for at, added in enumerate(placed) if added]
    # A new first axis has no LoD. Paddle keeps that of a batch of one word, whose first size stays.
    return op.unsqueezed(x, *new) if new else op.emit("Identity", x)


@rule("concat")
def _concat(op: PaddleOperator) -> Results:
    values, axis = op.values("X"), op.attribute("axis", 0)
    axis += op.rank("X") if axis < 0 else 0
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
    axis, rank = op.attribute("axis", 0), op.rank("X")
    first, *others = op.values("X")
    # Under a new first axis Paddle keeps a LoD that does not fit.
    first = op.dense(first) if axis in (0, -rank - 1) else first
    parts = [first, *map(op.dense, others)]
    return stacked(op, parts, axis + rank + 1 if axis < 0 else axis)


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
    inputs = (op.dense(x) if axis == 0 else x, *([sections] if sections else []))
    return op.emit_many("Split", count, *inputs, axis=axis)


@rule("shape")
def _shape(op: PaddleOperator) -> Results:
    """Paddle 3 gives int64, too."""
    dtype = "int64" if op.attribute("wide", False) else "int32"
    return op.cast(op.emit("Shape", op.value("Input")), dtype)


@rule("lookup_table lookup_table_v2")
def _lookup_table(op: PaddleOperator) -> Results:
    ids, table = op.value("Ids"), op.value("W")
    if op.at.type == "lookup_table":  # ids (..., 1); v2 takes them without the last axis
        ids = op.squeezed(ids, -1)
    padding = op.attribute("padding_idx", -1)
    if padding != -1:
        rows = op.array("W").copy()
        if padding == len(rows):  # one past the table is a row of zeros, too
            rows = np.concatenate([rows, np.zeros_like(rows[:1])])
        if not 0 <= padding < len(rows):
            raise UnsupportedError(
                f"attribute padding_idx={padding}: the table has {len(rows)} rows"
            )
        rows[padding] = 0
        table = op.constant(rows, "padded")
    return op.emit("Gather", table, ids, axis=0, non_negative=True)


def _check_lod_fits(op: PaddleOperator, x: str, axes: object, *, rows_change: bool) -> None:
    if rows_change and op.is_ragged(x):
        raise UnsupportedError(f"attribute {axes}: Paddle keeps a LoD that does not fit")


@rule("gather")
def _gather(op: PaddleOperator) -> Results:
    """Indices (K,) or (K, 1) count from zero."""
    op.absent("Axis")
    x, at, axis = op.value("X"), op.plain("Index"), op.attribute("axis", 0)
    op.attribute("overwrite", True)  # of the gradient
    axis %= op.rank("X")
    _check_lod_fits(op, x, f"{axis=}", rows_change=axis == 0)
    if op.rank("Index") > 1:
        at = op.reshaped(at, -1)
    return op.under(op.emit("Gather", op.dense(x), at, axis=axis, non_negative=True), x)


@rule("flip")
def _flip(op: PaddleOperator) -> Results:
    x = op.value("X")
    return op.under(op.flipped(op.dense(x), *op.attribute("axis", ())), x)


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
        out = op.unsqueezed(out, *axes) if out else ""
        out = out or op.emit("Slice", x, begin, end, axes)
        out = op.squeezed(out, *gone) if gone else out
    if gone and op.gives_one() and len(gone) == op.rank("Input"):
        return op.reshaped(out, 1)
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
    at = op.squeezed(begin, 0)
    if x in builder.indices:
        return op.cast(at, op.dtype("Input"))
    if turned := builder.turned(x, axis, op.rank("Input")):
        x, axis = turned, 0
    return op.emit("Gather", x, at, axis=axis, non_negative=True)


@rule("strided_slice")
def _strided_slice(op: PaddleOperator) -> Results:
    for role in ("Starts", "Ends", "Strides"):
        op.absent(f"{role}Tensor", f"{role}TensorList")
    op.attribute("infer_flags", ())
    op.only(decrease_axis=())
    x, axes, steps = op.value("Input"), op.attribute("axes", ()), op.attribute("strides", ())
    if min(steps, default=1) < 1:
        raise UnsupportedError(f"attribute strides={steps}: backwards")
    _check_lod_fits(op, x, f"{axes=}", rows_change=0 in axes)
    ends = (op.attribute("starts", ()), op.attribute("ends", ()))
    return op.sliced(x, *ends, axes, steps)


# The rules of Paddle's operators that nets of its dynamic mode use around their layers.
#
# There is no LoD in that mode, so one is refused. Slots and defaults: the operators' makers in 2.6.
# Where the native kernel differs from its documentation, that is measured with 2.6.2 and 3.3.1.


def _input(op: PaddleOperator, slot: str = "X") -> str:
    value = op.value(slot)
    if op.is_ragged(value):
        raise UnsupportedError(f"input {slot}: a LoD")
    return value


@rule("elementwise_floordiv elementwise_mod")
def _divide(op: PaddleOperator) -> Results:
    """The quotient towards minus infinity, and what it leaves: it has the sign of the divisor."""
    op.only(axis=-1)
    x, y, dtype = _input(op), _input(op, "Y"), op.dtype("X")
    if dtype.kind == "f":
        if op.at.type == "elementwise_floordiv":
            return op.emit("Floor", op.emit("Div", x, y))
        return remainder(op, x, y)
    if op.at.type == "elementwise_mod":
        return op.emit("Mod", x, y)
    divisor = op.builder.constants.get(y)
    if op.builder.type_of(x).sizes is not None and divisor is not None and (divisor > 0).all():
        return op.emit("Div", x, y)  # sizes: a plan keeps them as polynomials
    return op.emit("Div", op.emit("Sub", x, op.emit("Mod", x, y)), y)


@rule("bmm mv")
def _product(op: PaddleOperator) -> Results:
    return op.emit("MatMul", _input(op), _input(op, "Vec" if op.at.type == "mv" else "Y"))


@rule("einsum")
def _einsum(op: PaddleOperator) -> Results:
    values = op.values("Operands")
    if any(map(op.is_ragged, values)):
        raise UnsupportedError("input Operands: a LoD")
    return op.emit("Einsum", *values, equation=op.attribute("equation", ""))


@rule("log2 log10")
def _log(op: PaddleOperator) -> Results:
    base = {"log2": 2, "log10": 10}[op.at.type]
    return op.emit("Mul", op.emit("Log", _input(op)), op.scalar(1 / math.log(base), op.dtype("X")))


@rule("mish")
def _mish(op: PaddleOperator) -> Results:
    """Above the threshold softplus is x itself, which is what rounding gives."""
    if op.attribute("threshold", 20.0) < 20:
        raise UnsupportedError("attribute threshold: below 20 the function jumps")
    x = _input(op)
    return FORMULAS["mish"](op, x)


@rule("logsigmoid")
def _log_sigmoid(op: PaddleOperator) -> Results:
    return FORMULAS["log_sigmoid"](op, _input(op))


@rule("isfinite_v2 isinf_v2")
def _is_finite(op: PaddleOperator) -> Results:
    if op.dtype("X").kind != "f":
        raise UnsupportedError(f"{op.dtype('X')} numbers")
    kind = {"isfinite_v2": "Less", "isinf_v2": "Equal"}[op.at.type]
    return op.emit(kind, op.emit("Abs", _input(op)), op.scalar(math.inf, op.dtype("X")))


@rule("logsumexp frobenius_norm")
def _reduce(op: PaddleOperator) -> Results:
    log = op.at.type == "logsumexp"
    names = ("axis", "keepdim") if log else ("dim", "keep_dim")
    axes, keep = op.attribute(names[0], (0,)), op.attribute(names[1], False)
    op.attribute("in_dtype", -1), op.attribute("out_dtype", -1)
    rank, kind = op.rank("X"), "ReduceLogSumExp" if log else "ReduceL2"
    if op.attribute("reduce_all", False) or not axes:
        axes = range(rank)
    return op.reduced(kind, _input(op), axes, rank, keep)


_NORMS = {1.0: "ReduceL1", 2.0: "ReduceL2", math.inf: "ReduceMax", -math.inf: "ReduceMin"}


@rule("p_norm")
def _p_norm(op: PaddleOperator) -> Results:
    """Only the gradient uses epsilon."""
    order, axis = op.one_of("porder", 2.0, _NORMS), op.attribute("axis", -1)
    op.attribute("epsilon", 1e-12)
    x, keep = _input(op), op.attribute("keepdim", False)
    x = op.emit("Abs", x) if math.isinf(order) else x
    rank = op.rank("X")
    axes = range(rank) if op.attribute("asvector", False) else [axis]
    return op.reduced(_NORMS[order], x, axes, rank, keep)


@rule("size")
def _count(op: PaddleOperator) -> Results:
    out = op.emit("Size", op.plain("Input"))
    return op.reshaped(out, 1) if op.gives_one() else out


@rule("argsort")
def _argsort(op: PaddleOperator) -> Results:
    x, axis = _input(op), op.attribute("axis", -1) % max(op.rank("X"), 1)
    op.attribute("stable", False)  # without it Paddle gives equal ones in any order
    count = op.emit("Shape", x, start=axis, end=axis + 1)
    attributes = {"axis": axis, "largest": int(op.attribute("descending", False))}
    values, at = op.emit_many("TopK", 2, x, count, **attributes)
    return {"Out": values, "Indices": at}


def _picked(op: PaddleOperator, kind: str, x: str, at: str, **axis: int) -> str:
    """Before Paddle 3 indices count from zero only; what 2.6 makes of negative ones is an error,
    but for take_along_axis, which reads what lies before a row.
    """
    from_zero = op.version < 3_000_000 or op.at.type == "index_sample"
    return op.emit(kind, x, at, non_negative=from_zero, **axis)


@rule("index_select")
def _index_select(op: PaddleOperator) -> Results:
    return _picked(op, "Gather", _input(op), _input(op, "Index"), axis=op.attribute("dim", 0))


@rule("gather_nd")
def _gather_nd(op: PaddleOperator) -> Results:
    return _picked(op, "GatherND", _input(op), op.cast(_input(op, "Index"), "int64"))


@rule("index_sample")
def _index_sample(op: PaddleOperator) -> Results:
    return _picked(op, "GatherElements", _input(op), _input(op, "Index"), axis=1)


@rule("take_along_axis")
def _take_along(op: PaddleOperator) -> Results:
    x, at, axis = _input(op, "Input"), _input(op, "Index"), op.attribute("Axis", 0)
    return _picked(op, "GatherElements", x, at, axis=axis)


@rule("where_index")
def _nonzero(op: PaddleOperator) -> Results:
    return op.transposed(op.emit("NonZero", _input(op, "Condition")), 1, 0)


@rule("masked_select")
def _masked_select(op: PaddleOperator) -> Results:
    """Those of X where the mask, of the same shape, says so."""
    x, mask = _input(op), _input(op, "Mask")
    if op.rank("X") != op.rank("Mask"):
        raise UnsupportedError("input Mask: of another rank than X")
    places = op.transposed(op.emit("NonZero", mask), 1, 0)
    return op.emit("GatherND", x, places)


@rule("one_hot_v2")
def _one_hot(op: PaddleOperator) -> Results:
    """Zeros where an index is out of range, which a program has to allow."""
    op.absent("depth_tensor")
    at, depth, dtype = _input(op), op.attribute("depth", -1), op.chosen_dtype("dtype", 5)
    if depth < 1:
        raise UnsupportedError(f"attribute depth={depth}")
    if not op.attribute("allow_out_of_range", False):
        loading().ask(depth * depth * np.dtype(dtype).itemsize, f"a table of depth {depth}")
        rows = op.constant(np.eye(depth, dtype=dtype), "rows")
        return op.emit("Gather", rows, at, axis=0, non_negative=True)
    loading().ask(8 * depth, f"a list of depth {depth}")
    places = op.constant(np.arange(depth, dtype=op.dtype("X")), "places")
    same = op.emit("Equal", op.unsqueezed(at, -1), places)
    return op.cast(same, dtype)


@rule("roll")
def _roll(op: PaddleOperator) -> Results:
    """What leaves an axis at its end comes in at its beginning."""
    op.absent("ShiftsTensor")
    x, sizes = _input(op), op.shape("X")
    shifts, axes = op.attribute("shifts", ()), op.attribute("axis", ())
    flat = not axes
    out = op.reshaped(x, -1) if flat else x
    sizes = (None if None in sizes else math.prod(size or 0 for size in sizes),) if flat else sizes
    for shift, axis in zip(shifts, axes or (0,), strict=True):
        size = sizes[axis]
        if size is None:  # only a run knows how often it goes round
            place = axis % len(sizes)
            counted = op.emit("Shape", out, start=place, end=place + 1)
            round_ = op.emit("Mod", [-shift], op.emit("Max", counted, [1]))
            cut = op.emit("Sub", round_, counted)
        else:
            cut = op.ints(-shift % max(size, 1) - size)
        last = op.emit("Slice", out, cut, [2**31 - 1], [axis])
        first = op.emit("Slice", out, [0], cut, [axis])
        out = op.emit("Concat", last, first, axis=axis)
    return op.emit("Reshape", out, op.emit("Shape", x)) if flat else op.emit("Identity", out)


# The rules of Paddle's operators over the sentences of a LoD.
#
# Slots, defaults and the LoD of outputs: sequence_ops/ of 2.6, measured with 2.6.2.

POOLS = ("AVERAGE", "SUM", "SQRT", "LAST", "FIRST", "MAX")


@rule("sequence_pool")
def _pool(op: PaddleOperator) -> Results:
    """One row a sentence: the levels above stay."""
    x, kind = op.ragged("X"), op.one_of("pooltype", "AVERAGE", POOLS)
    attributes = {"kind": kind.lower(), "empty": op.attribute("pad_value", 0.0)}
    return op.emit("SequencePool", x, **attributes)


@rule("sequence_conv")
def _conv(op: PaddleOperator) -> Results:
    """A window of words around each one, times the filter; zeros stand outside of the sentence."""
    op.only(contextStride=1, paddingTrainable=False)
    if op.optional("PaddingData"):
        raise UnsupportedError("input PaddingData: trained padding")
    length, start = op.attribute("contextLength", 1), op.attribute("contextStart", 0)
    if not 0 < length <= 2**10 or abs(start) > 2**10:
        raise UnsupportedError(f"attributes contextLength={length}, contextStart={start}")
    window = op.emit("SequenceContext", op.ragged("X"), length=length, start=start)
    return op.emit("MatMul", window, op.value("Filter"))


@rule("sequence_expand")
def _expand(op: PaddleOperator) -> Results:
    """Sentence n of X as often as element n of a level of Y has parts."""
    x, like, level = op.value("X"), op.ragged("Y"), op.attribute("ref_level", -1)
    depth, own = op.depth(like), op.depth(x)
    if not -1 <= level < depth or own > 1:
        raise UnsupportedError(f"attribute ref_level={level}: X has {own} LoD levels, Y {depth}")
    return op.emit("SequenceExpand", x, like, level=level % depth)


@rule("sequence_expand_as")
def _expand_as(op: PaddleOperator) -> Results:
    """Row n of X for each word of sentence n of Y, as ragged as Y."""
    x, like = op.value("X"), op.ragged("Y", 1)
    rows = op.emit("SequenceExpand", op.dense(x), like, level=0)
    return op.emit("SequenceLike", rows, like)


@rule("sequence_concat")
def _sequence_concat(op: PaddleOperator) -> Results:
    """Sentence n of all inputs, one behind the other."""
    values = op.values("X")
    if any(op.depth(value) != 1 for value in values):
        raise UnsupportedError("inputs X: one LoD level each is supported")
    return op.emit("SequenceConcat", *values)


@rule("sequence_pad")
def _pad(op: PaddleOperator) -> Results:
    """(N, T, ...), T the longest sentence or ``padded_length``, and the lengths (N,)."""
    x, value = op.ragged("X", 1), op.value("PadValue")
    time = op.attribute("padded_length", -1)
    attributes = {} if time == -1 else {"time": time}
    lengths = op.emit("SequenceLengths", x)
    padded = op.emit("SequenceFill", x, value, **attributes)
    return {"Out": padded, "Length": lengths}


@rule("sequence_unpad")
def _unpad(op: PaddleOperator) -> Results:
    lengths = op.plain("Length")
    return op.emit("SequenceUnpad", op.plain("X"), lengths)


@rule("lod_reset")
def _lod_reset(op: PaddleOperator) -> Results:
    op.only(append=False)
    x, like, target = op.value("X"), op.optional("Y"), op.attribute("target_lod", ())
    if like and op.is_ragged(like):  # Y comes before target_lod
        return op.under(x, like)
    if like and op.dtype("Y").kind != "i":
        raise UnsupportedError("input Y carries no LoD, and no offsets as numbers")
    if not like and not target:
        raise UnsupportedError("neither input Y nor attribute target_lod")
    return op.emit("SequenceReset", x, like or target)


@rule("crf_decoding")
def _crf_decoding(op: PaddleOperator) -> Results:
    if op.optional("Length"):
        raise UnsupportedError("input Length: padded emissions are not supported")
    path = op.emit("CrfDecode", op.ragged("Emission"), op.value("Transition"))
    if label := op.optional("Label"):  # then the output says where the path agrees with it
        agreed = op.emit("Equal", path, op.reshaped(op.dense(label), -1, 1))
        path = op.cast(agreed, "int64")
    return path


@rule("viterbi_decode")
def _viterbi_decode(op: PaddleOperator) -> Results:
    """The paths of padded sequences; nothing computes their scores.

    The last row of the transitions starts a sequence, the one before ends it: Paddle's documents
    say columns, its kernels take rows.
    """
    between = op.array("Transition")
    ends = between[:-3:-1] * op.attribute("include_bos_eos_tag", True)
    whole = op.constant(np.concatenate([ends, between]), "transition")
    ragged = op.emit("SequenceUnpad", op.plain("Input"), op.plain("Length"))
    path = op.emit("CrfDecode", ragged, whole)
    return {"Path": op.squeezed(op.emit("SequenceFill", path, op.constant(0, "zero")), 2)}
