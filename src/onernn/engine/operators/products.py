"""Matrix products, including quantized ones: constant matrices are packed in panels, others run as
plain loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from onernn.backend.compiled.packing import LANES, MOST_ROWS, panels, quad_rows, round_up
from onernn.backend.process import allocate_aligned
from onernn.engine.operators.elementwise import (
    broadcast,
    each_element,
    fill,
    nest,
    stretch_input,
    strides_of,
    whole,
)
from onernn.engine.operators.operator_code import OperatorCode, at_least, rule
from onernn.engine.program import Access, Call, Nest, Packed, Step, Team
from onernn.ir.arrays import Array
from onernn.ir.types import Shape, Size, volume, write_shape
from onernn.ops.elementwise import again, substitute
from onernn.ops.quantized import Quantized, lstm_shapes, shift_bytes
from onernn.ops.rules import ONE
from onernn.ops.windows import Window, find_transposed_sizes, windows_of


def groups_of(columns: int) -> int:
    """Returns how many panels of 16 columns a matrix product processes together. If there are fewer
    than 4 panels, it processes all of them together. Otherwise it processes 4, 3 or 2 panels
    together: the number that needs the fewest panels of zeros.
    """
    count = round_up(columns) // LANES
    return count if count < 4 else min((4, 3, 2), key=lambda together: -count % together)


def pack(matrices: Array, together: int = 1) -> Array:
    """Returns (..., K, C) as (..., panels, K, together * 16), with zeros for missing columns."""
    *stack, k, columns = matrices.shape
    wide = together * LANES
    full, rest = divmod(columns, wide)
    shape = (*stack, full + bool(rest), k, wide)
    out = allocate_aligned(prod(shape) * matrices.itemsize).view(matrices.dtype).reshape(shape)
    parts = matrices[..., : columns - rest].reshape(*stack, k, full, wide)
    out[..., :full, :, :] = parts.swapaxes(-3, -2)
    if rest:
        out[..., full, :, :rest] = matrices[..., columns - rest :]
        out[..., full, :, rest:] = 0
    return out


@rule("MatMul")
def matmul(op: OperatorCode) -> list[Call]:
    """Multiplies matrices. A vector counts as one row if it is the first factor, otherwise as one
    column.
    """
    a, b = op.shape(0), op.shape(1)
    a, b = (a if len(a) > 1 else (ONE, *a)), (b if len(b) > 1 else (*b, ONE))
    return _product(op, a, b, (False, False), 1.0)


@rule("Gemm")
def gemm(op: OperatorCode) -> Sequence[Step]:
    attrs, transpose = op.attrs, (bool(op.attrs.transA), bool(op.attrs.transB))
    a, b = (s[::-1] if t else s for s, t in zip((op.shape(0), op.shape(1)), transpose, strict=True))
    bias = _bias(op, b[-1])
    codes = _product(op, a, b, transpose, attrs.alpha, bias)
    if op.node.input(2) and not (bias and len(codes) == 1 and codes[0].function == "dense"):
        out, shape = op.out()
        broadcast(op, [shape, op.shape(2)])
        reads = [whole(out, shape), stretch_input(op, 2)]
        share = 1 if attrs.beta == 1 else ("times", float(attrs.beta), 1)
        return [*codes, each_element(op, reads, ("plus", 0, share))]
    return codes


def _bias(op: OperatorCode, columns: Size) -> str:
    if not op.node.input(2) or op.attrs.beta != 1:
        return ""
    shape = op.shape(2)
    plain = shape and shape[-1] == columns and all(size == ONE for size in shape[:-1])
    return op.node.input(2) if plain else ""


def _product(
    op: OperatorCode, a: Shape, b: Shape, transpose: tuple[bool, bool], alpha: float, bias: str = ""
) -> list[Call]:
    """Returns the call that multiplies matrices, or stacks of matrices. ``a``, ``b``: the factors'
    shapes after transposing.
    """
    op.of("float")
    op.alike(1, 2)
    if op.program.sentences(op.node.inputs[1]):
        op.refuse("second factor: expected a dense value, got a ragged one")
    inner = op.same(a[-1], b[-2])
    broadcast(op, [a[:-2], b[:-2]])
    matrix = op.constant(1)
    dtype, columns, rows = op.dtype(), b[-1], volume(a[:-1])
    if matrix is not None and matrix.ndim == 2 and not transpose[0]:
        wide = matrix.T if transpose[1] else matrix
        if alpha != 1:
            wide = wide * matrix.dtype.type(alpha)
        return [dense(op, op.out()[0], op.read(0), rows, wide, bias and op.read(2))]
    batch = b[:-2] if any(size.number != 1 for size in b[:-2]) else ()
    if batch and a[:-2] != batch:
        op.refuse(f"factors {write_shape(a)} and {write_shape(b)}: expected the same first axes")
    sizes = (volume(batch), a[-2] if batch else rows, inner, columns)
    return [op.call("product", *op.read_first(2), *sizes, *transpose, alpha, types=[dtype])]


def dense(op: OperatorCode, out: str, x: str, rows: Size, matrix: Array, bias: str = "") -> Call:
    """Returns the call that multiplies the rows of ``x`` by a constant matrix, and adds the
    bias.
    """
    inner, columns = matrix.shape
    together = groups_of(columns)
    panels = Packed(pack(matrix, together), narrow=True)
    types = [matrix.dtype.name, str(together)]
    return Call("dense", out, x, rows, inner, panels, bias, columns, Team(), types=types)


@rule("Einsum")
def einsum(op: OperatorCode) -> list[Step]:
    """Returns a matrix product if the equation is one. Otherwise returns one loop per letter.

    Letters that the result does not have are summed over. The loops of these letters are the outer
    loops, so that each inner loop adds a row of products to a row of the result.
    """
    op.alike(*range(1, len(op.node.inputs)))
    dtype = op.dtype()
    inputs, arrow, result = op.attrs.equation.replace(" ", "").partition("->")
    terms, shapes = inputs.split(","), [op.shape(at) for at in range(len(op.node.inputs))]
    if not arrow:
        op.refuse(f"attribute equation={op.attrs.equation!r}: expected -> and the result's axes")
    # The axes of "..." get letters that no equation has, counted from the last axis.
    unnamed = [
        "".join(chr(0x3B1 + at) for at in reversed(range(len(shape) - len(term) + 3)))
        if "..." in term
        else ""
        for shape, term in zip(shapes, terms, strict=True)
    ]
    terms = [term.replace("...", more) for term, more in zip(terms, unnamed, strict=True)]
    result = result.replace("...", max(unnamed, key=len))
    sizes = dict.fromkeys(result, ONE)
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, shape, strict=True):
            known = sizes.get(letter, ONE)
            sizes[letter] = op.same(known, size) if ONE not in (known, size) else known * size
    summed = [sizes[letter] for letter in sizes if letter not in result]
    stretched = shapes != [tuple(sizes[letter] for letter in term) for term in terms]
    match = _matrices(terms, result) if summed and not stretched else None
    if match and dtype.startswith("float"):
        return _of_matrices(op, terms, result, sizes, *match)
    reads = []
    sizes = {letter: sizes[letter] for letter in sorted(sizes, key=lambda each: each in result)}
    for at, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        strides = dict.fromkeys(sizes, Size(()))
        for letter, size, stride in zip(term, shape, strides_of(shape), strict=True):
            strides[letter] += stride if size != ONE else 0
        reads.append(Access(op.read(at), tuple(strides.values())))
    out, shape = op.out()
    to = Access(out, (*(Size(()) for _ in summed), *strides_of(shape)))
    loops, factors = tuple(sizes.values()), again("times", *range(len(reads)))
    if not summed:
        return [nest(loops, to, reads, factors)]
    behind = substitute(factors, {at: at + 1 for at in range(len(reads))})
    return [fill(op, 0, 0), nest(loops, to, [to, *reads], ("plus", 0, behind))]


Letters = tuple[str, str, str, str]
"""The letters of an equation's axes in four groups: axes of stacks, rows, summed axes, columns."""


def _matrices(terms: Sequence[str], result: str) -> tuple[tuple[int, int], Letters] | None:
    """Returns an equation as a product of stacks of matrices: the indices of the first and second
    factor, and the letters.

    Returns None if the equation is not such a product. Of the two orders of the factors, returns
    the one for which fewer arrays are reordered.
    """
    if len(terms) != 2 or any(len(set(term)) < len(term) for term in terms):
        return None
    ways: list[tuple[int, tuple[int, int], Letters]] = []
    for places in ((0, 1), (1, 0)):
        a, b = (terms[index] for index in places)
        letters: Letters = (
            "".join(x for x in result if x in a and x in b),
            "".join(x for x in result if x in a and x not in b),
            "".join(x for x in a if x in b and x not in result),
            "".join(x for x in result if x in b and x not in a),
        )
        if {*a, *b} != set("".join(letters)):
            return None  # a letter that only one factor has is summed over
        stacks, rows, inner, columns = letters
        moves = (a not in (stacks + rows + inner, stacks + inner + rows)) + (
            b not in (stacks + inner + columns, stacks + columns + inner)
        )
        ways.append((moves + (result != stacks + rows + columns), places, letters))
    return min(ways)[1:]


def _of_matrices(
    op: OperatorCode,
    terms: Sequence[str],
    result: str,
    sizes: dict[str, Size],
    places: tuple[int, int],
    letters: Letters,
) -> list[Step]:
    stacks, rows, inner, columns = letters
    counts = [volume(tuple(sizes[letter] for letter in group)) for group in letters]
    steps: list[Step] = []

    def reorder(index: int, *orders: str) -> tuple[str, bool]:
        """Returns a factor with its axes in one of ``orders``, and whether this is the second
        order.
        """
        source, term = op.read(index), terms[index]
        if term in orders:
            return source, orders.index(term) == 1
        name = op.keep(f"factor{index}", op.dtype(), [sizes[letter] for letter in orders[0]])
        steps.append(_move(sizes, (source, term), (name, orders[0])))
        return name, False

    a, a_turned = reorder(places[0], stacks + rows + inner, stacks + inner + rows)
    matrix = op.constant(places[1])
    if matrix is not None:
        term = terms[places[1]]
        matrix = matrix.transpose([term.index(x) for x in stacks + inner + columns])
    (out, _), plain = op.out(), stacks + rows + columns
    product = out if result == plain else op.keep("product", op.dtype(), [sizes[x] for x in plain])
    if matrix is not None and not stacks and not a_turned:
        matrix = matrix.reshape(counts[2].number or 0, -1)
        steps.append(dense(op, product, a, counts[1], matrix))
    else:
        b, straight = reorder(places[1], stacks + columns + inner, stacks + inner + columns)
        transpose, types = (a_turned, not straight), [op.dtype()]
        steps.append(Call("product", product, a, b, *counts, *transpose, 1.0, types=types))
    return steps if product == out else [*steps, _move(sizes, (product, plain), (out, result))]


def _move(sizes: dict[str, Size], before: tuple[str, str], after: tuple[str, str]) -> Nest:
    """Returns the loops that copy a value with its axes in a different order. ``before``,
    ``after``: the value's name, and one letter per axis.
    """
    (source, term), (to, order) = before, after
    strides = dict(zip(term, strides_of(tuple(sizes[x] for x in term)), strict=True))
    shape = tuple(sizes[x] for x in order)
    return nest(shape, whole(to, shape), [Access(source, tuple(strides[x] for x in order))])


_BYTES = ("int8", "uint8")
_NARROW = (*_BYTES, "int16", "uint16")


@rule("QuantizeLinear")
def quantize(op: OperatorCode) -> Call:
    result = op.program.dtype(op.node.outputs[0])
    if op.dtype() != "float32" or op.dtype(1) != "float32" or result not in _NARROW:
        op.refuse(f"x and scale: expected float32, got {op.dtype()}, {op.dtype(1)} to {result}")
    return _linear(op, "quantize", result)


@rule("DequantizeLinear")
def dequantize(op: OperatorCode) -> Call:
    dtype = op.dtype()
    if op.dtype(1) != "float32" or dtype not in (*_NARROW, "int32"):
        op.refuse(f"expected integers and a float32 scale, got {dtype} and {op.dtype(1)}")
    if dtype == "int32" and op.node.input(2):
        op.refuse("input zero point: expected none for int32")
    op.alike(2)
    return _linear(op, "dequantize", dtype)


def _linear(op: OperatorCode, function: str, dtype: str) -> Call:
    shape, scales = op.shape(), op.shape(1)
    single = (), (ONE,)
    zeros = op.shape(2) if op.node.input(2) else scales
    if zeros != scales and not (zeros in single and scales in single):
        op.refuse(f"zero point {write_shape(zeros)}: expected the scale's {write_shape(scales)}")
    outer, count, inner = Size.of(1), Size.of(1), volume(shape)
    if scales not in single:
        if len(scales) != 1:
            op.refuse(f"scale {write_shape(scales)}: expected at most one axis")
        axis = op.axis(len(shape))
        op.same(scales[0], shape[axis])
        outer, count, inner = volume(shape[:axis]), shape[axis], volume(shape[axis + 1 :])
    return op.call(function, *op.read_first(3), outer, count, inner, types=[dtype], checks=True)


@rule("DynamicQuantizeLinear")
def dynamic_quantize(op: OperatorCode) -> Call:
    op.of("float32")
    return op.call(
        "dynamic_quantize",
        *op.node.outputs[1:],
        op.read(0),
        volume(op.shape()),
        types=(),
        checks=True,
    )


def zero_point(op: OperatorCode) -> str:
    """Returns the name of the first factor's zero point, a single integer; "" if it has none."""
    if op.node.input(2) and (volume(op.shape(2)) != ONE or op.dtype(2) != op.dtype()):
        op.refuse("zero point of the first factor: expected one value, of the factor's dtype")
    return op.read(2)


def whole_numbers(op: OperatorCode, rows_of: Callable[[Array], Array]) -> Array:
    """Returns the constant second factor minus its zero point, as a matrix (K, C)."""
    matrix = op.constant(1)
    zeros = op.constant(3)
    if matrix is None or op.dtype() not in _BYTES or matrix.dtype.name not in _BYTES:
        op.refuse("factors: expected int8 or uint8, and a constant second factor")
    if op.node.input(3) and (zeros is None or zeros.dtype != matrix.dtype or zeros.ndim > 1):
        op.refuse("zero points of the second factor: expected a constant vector of its dtype")
    numbers = rows_of(matrix.astype(np.int16))
    if not 1 <= len(numbers) <= MOST_ROWS:
        op.refuse(f"sums of {len(numbers)} products: expected 1 to {MOST_ROWS}")
    shift = np.zeros((), np.int16) if zeros is None else zeros.astype(np.int16)
    if shift.shape not in ((), (1,), numbers.shape[1:]):
        op.refuse(f"zero points {shift.shape}: expected one per column, {numbers.shape[1:]}")
    return numbers - shift


def bytes_in_panels(matrix: Array, together: int) -> tuple[Array, Array]:
    """Returns a matrix (K, C) of 9-bit integers as int8 panels for the library, and the panels'
    zero points.
    """
    numbers, zeros = _as_bytes(matrix)
    wide = pack(numbers, together)
    return quad_rows(wide, np.ones(wide[:, 0].shape, np.float32)), pack(zeros, together)


@rule("MatMulInteger")
def matmul_integer(op: OperatorCode) -> Call:
    a, b = op.shape(0), op.shape(1)
    if len(b) != 2:
        op.refuse(f"second factor: expected a matrix, got {write_shape(b)}")
    inner = op.same(a[-1], b[0])
    numbers = whole_numbers(op, lambda matrix: matrix)
    together = groups_of(numbers.shape[1])
    panels, zeros = bytes_in_panels(numbers, together)
    types = [op.dtype(), str(together)]
    inputs = op.read(0), zero_point(op), volume(a[:-1]), inner
    more = Packed(panels), Packed(zeros) if zeros.any() else "", numbers.shape[1], Team()
    return op.call("dense_bytes", *inputs, *more, types=types)


def _as_bytes(matrix: Array) -> tuple[Array, Array]:
    """Returns a matrix (K, C) of 9-bit integers in the range of int8, and its zero points (1, C).

    The integers of a column are at most 255 apart. If a column has integers outside of the range of
    int8, the column and its zero point are shifted.
    """
    low, high = matrix.min(axis=0, keepdims=True), matrix.max(axis=0, keepdims=True)
    zeros = np.where(high > 127, 127 - high, np.where(low < -128, -128 - low, 0)).astype(np.int32)
    return matrix + zeros, zeros


@rule("DynamicQuantizeLSTM")
def lstm(op: OperatorCode) -> Call:
    """Returns the call that runs a quantized LSTM. The weights must be constants. The call reads
    them minus their zero points, as int8 (`_as_bytes`).
    """
    constant = [op.program.graph.constants.get(name) for name in op.node.inputs]
    _, w, r, b, *_, p = constant[:8]
    scales = [each for each in constant[8:] if each is not None]
    if w is None or r is None or len(scales) < 4:
        op.refuse("weights and scales are computed at run time: expected constants")
    if any(op.node.input(index) and constant[index] is None for index in (3, 7)):
        op.refuse("bias or peepholes are computed at run time: expected constants")
    count, units, x = len(w), op.attrs.hidden_size, op.shape()
    for index, (name, shape) in enumerate(lstm_shapes(op.attrs, x).items(), 1):
        if op.node.input(index):
            op.fits(index, shape)
            if name not in ("w", "r"):
                op.of("int32" if name == "lengths" else "float32", index=index)
    op.of("float32")
    if min(units, w.shape[1]) < 1 or max(units, w.shape[1]) > MOST_ROWS:
        op.refuse(f"weights {w.shape} for {units} units: expected 1 to {MOST_ROWS} of each")
    bias = np.zeros((count, 8 * units), np.float32) if b is None else b
    peepholes = np.zeros((count, 3 * units), np.float32) if p is None else p
    matrices = [_gates(shift_bytes("w", w, *scales[:2])), _gates(shift_bytes("r", r, *scales[2:]))]
    summed = bias[:, : 4 * units] + bias[:, 4 * units :]
    inputs = [op.read(index) for index in (0, 4, 5, 6)]
    sizes = (*x[:2], w.shape[1], units, count, op.attrs.direction == "reverse")
    stored = [Packed(numbers) for numbers, _ in matrices] + [zeros for _, zeros in matrices]
    rows = [pack(e.reshape(count, -1, units)) for e in (summed, peepholes)]
    more = *map(Packed, rows), float(op.attrs.clip)
    fed = op.keep("fed", "float32", (*x[:2], 4 * round_up(units)))
    outputs = *(*op.node.outputs[1:], "", "")[:2], fed
    return op.call(
        "quantized_lstm",
        *outputs,
        *inputs,
        *sizes,
        *stored,
        *more,
        bool(op.attrs.input_forget),
        op.attrs.together,
        Team(),
        types=(),
        checks=True,
    )


def _gates(matrix: Quantized) -> tuple[Array, Packed | str]:
    numbers, zeros = [], []
    for rows, steps in zip(matrix.whole, matrix.steps, strict=True):
        stored, shift = _as_bytes(rows)
        wide = panels(stored.reshape(len(rows), 4, -1))[:, :, 0]
        numbers.append(quad_rows(wide, panels(steps.reshape(1, 4, -1))[:, 0, 0].copy()))
        zeros.append(pack(shift.reshape(1, 4, -1)))
    together = np.stack(zeros)
    return np.stack(numbers), Packed(together) if together.any() else ""


# Convolutions and pools over one or two axes: constant weights are packed once, computed weights
# in each call.

FEW = 8
"""A convolution with at most this many output positions multiplies rows of windows with weights,
see kernels/convolutions.hpp.
"""
_ROWS = 24
"""The number of windows that are multiplied together: kRowsAtOnce in kernels/products.hpp."""


class Windows:
    """Windows over an operator's first input, along H and W; H is 1 if there is only one axis.

    ``x``, ``y``: the sizes (C, H, W) of the input and of the output. ``around``: how many elements
    of padding the windows read before and after each axis.
    """

    def __init__(
        self,
        op: OperatorCode,
        windows: Sequence[Window],
        x: Shape,
        y: Shape,
        around: Sequence[tuple[Size, Size]] | None = None,
    ) -> None:
        if len(windows) not in (1, 2):
            op.refuse(f"windows over {len(windows)} axes: expected 1 or 2")
        if around is None:
            around = [_around(op, *each) for each in zip(windows, x[1:], strict=True)]
        self.before, self.after = ([sizes[index] for sizes in around] for index in range(2))
        flat = 2 - len(windows)
        self.windows = [Window(1, 1, 1, 0, 0)] * flat + [*windows]
        self.before, self.after = ([Size(())] * flat + s for s in (self.before, self.after))
        self.x, self.y = ([shape[0], *[ONE] * flat, *shape[1:]] for shape in (x, y))

    @property
    def sizes(self) -> tuple[list[Size], list[Size], list[Size]]:
        """The arguments of kernels/windows.hpp: sizes of the input, sizes of the output, and the
        kernel sizes, strides, dilations and padding of the windows.
        """
        rows = [[getattr(w, key) for w in self.windows] for key in ("size", "stride", "dilation")]
        return self.x, self.y, [*map(Size.of, sum(rows, [])), *self.before]

    @property
    def inside(self) -> bool:
        """Whether windows read no padding, for inputs of any sizes."""
        return not any(size.terms for size in (*self.before, *self.after))

    @property
    def copied(self) -> Size:
        """The maximum number of elements of a padded copy of one image; 0 if windows read the image
        in place.
        """
        if self.inside and all(window.stride == 1 for window in self.windows):
            return Size(())
        count = self.x[0]
        for window, places in zip(self.windows, self.y[1:], strict=True):
            count = count * window.stride * (places + (window.extent - 1) // window.stride)
        return count


def _around(op: OperatorCode, window: Window, size: Size) -> tuple[Size, Size]:
    if size.number is not None:
        window = window.around(size.number)
    if not window.same:
        return Size.of(window.before), Size.of(window.after)
    if window.extent < window.stride:
        op.refuse(f"attribute auto_pad={window.same} around {size} elements: fix the size")
    added = (window.places(size) - 1) * window.stride + window.extent - size
    less = added.floor_div(2)
    return (less, added - less) if window.same == "SAME_UPPER" else (added - less, less)


def at_places(op: OperatorCode, windows: Windows) -> list[Call]:
    """Returns calls that check that at least one window fits into each axis of the input."""
    return at_least(op, *(places - 1 for places in windows.y[1:]))


@rule("Conv")
def conv(op: OperatorCode) -> list[Step]:
    op.of("float")
    op.alike(1, 2)
    windows, own = _convolve(op)
    x, weights, (out, y) = op.shape(), op.shape(1), op.out()
    groups = op.attrs.group
    if op.node.input(2):
        op.holds(2, weights[0])
    count, checks = volume(weights[1:]), at_places(op, windows)
    constant = op.constant(1)
    if constant is not None and groups == 1 and windows.inside and volume(y[2:]) == ONE:
        if x[2:] == weights[2:]:  # one window covers the whole image
            matrix = constant.reshape(own, -1).T
            return [*checks, dense(op, out, op.read(0), x[0], matrix, op.read(2))]
    # float64: one at a time
    together = _together(own) if op.dtype() == "float32" else 1
    types = [op.dtype(), str(together)]
    panels: str | Packed
    if constant is not None:
        panels = Packed(pack(constant.reshape(groups, own, -1).swapaxes(1, 2), together))
    else:
        wide = -(-own // (together * LANES)) * together * LANES
        panels = op.keep("panels", op.dtype(), [count * (groups * wide)])
        checks.append(Call("pack", panels, op.read(1), groups, own, count, types=types))
    places = volume(tuple(windows.y[1:])).number
    few = own >= LANES and (places is None or places <= FEW)
    copied = windows.copied if not few or places is None else Size(())
    image = op.keep("seen", op.dtype(), [copied + count * _ROWS if few else copied])
    taps = op.keep("taps", "int64", [count])
    inputs = op.read(0), panels, op.read(2), image, taps, x[0]
    sizes = *windows.sizes, groups, 0, Team()
    return [*checks, op.call("convolve", *inputs, *sizes, types=types)]


def _convolve(op: OperatorCode) -> tuple[Windows, int]:
    x, weights, (_, y) = op.shape(), op.shape(1), op.out()
    windows = Windows(op, windows_of(op.attrs, _kernel(op, weights)), x[1:], y[1:])
    channels = weights[0].number
    if channels is None or channels % op.attrs.group:
        op.refuse(f"attribute group={op.attrs.group}: expected a divisor of {weights[0]} channels")
    op.same(weights[1] * op.attrs.group, x[1])
    return windows, channels // op.attrs.group


@rule("ConvInteger")
def conv_integer(op: OperatorCode) -> list[Step]:
    """Returns the steps of a convolution of integers. The weights must be constants; each group's
    weights are stored in the order (H, W, C).
    """
    windows, own = _convolve(op)
    numbers = whole_numbers(op, lambda w: np.moveaxis(w, 1, -1).reshape(len(w), -1).T)
    together, groups = _together(own), op.attrs.group
    bytes_ = [bytes_in_panels(part, together) for part in np.split(numbers, groups, axis=1)]
    panels, zeros = (np.stack(each) for each in zip(*bytes_, strict=True))
    around = [
        (places - 1) * window.stride + window.extent
        for window, places in zip(windows.windows, windows.y[1:], strict=True)
    ]
    image = op.keep("seen", "uint8", [*around, op.shape(1)[1]])
    more = Packed(panels), Packed(zeros) if zeros.any() else "", image, op.shape()[0]
    types = [op.dtype(), str(together)]
    inputs = op.read(0), zero_point(op), *more, *windows.sizes, groups, Team()
    return [*at_places(op, windows), op.call("convolve_bytes", *inputs, types=types)]


@rule("ConvTranspose")
def conv_transpose(op: OperatorCode) -> list[Step]:
    op.of("float")
    op.alike(1, 2)
    x, weights, (_, y) = op.shape(), op.shape(1), op.out()
    along = windows_of(op.attrs, _kernel(op, weights))
    if op.attrs.output_shape and any(size.number is None for size in x[2:]):
        asked = f"attribute output_shape={op.attrs.output_shape}"
        op.refuse(f"{asked} for an input {write_shape(x)} of open sizes: fix the size")
    sizes = [size if size.number is None else size.number for size in x[2:]]
    cut = [(Size.of(less), Size(())) for _, less in find_transposed_sizes(op.attrs, along, sizes)]
    windows = Windows(op, along, x[1:], y[1:], cut)
    op.same(weights[0], x[1])
    if op.node.input(2):
        op.holds(2, y[1])
    inputs = *op.read_first(3), x[0], *windows.sizes
    return [*at_places(op, windows), op.call("convolve_back", *inputs, op.attrs.group)]


def _kernel(op: OperatorCode, weights: Shape) -> list[int]:
    kernel = [
        size.number or op.refuse(f"a window of {size} elements: fix the size")
        for size in weights[2:]
    ]
    if op.attrs.kernel_shape not in (None, tuple(kernel)):
        expected = f"expected {kernel}, as the weights have"
        op.refuse(f"attribute kernel_shape={op.attrs.kernel_shape}: {expected}")
    return kernel


def _together(channels: int) -> int:
    """Returns how many panels of 16 output channels a convolution sums at the same time. With too
    few panels, multiplications wait for earlier results. With too many panels, the last panels
    contain channels that do not exist.
    """
    slower = {1: 2.0, 2: 1.25, 3: 1.0, 4: 1.0}
    return max(
        slower, key=lambda count: (channels // (-count * LANES) * count * slower[count], count)
    )


@rule("MaxPool", "AveragePool")
def pool(op: OperatorCode) -> list[Step]:
    op.of("float")
    if any(op.node.outputs[1:]):
        op.refuse("output 1, the positions of the maxima, is read: expected only output 0")
    x, (_, y) = op.shape(), op.out()
    windows = Windows(op, windows_of(op.attrs, op.attrs.kernel_shape), x[1:], y[1:])
    inputs = op.read(0), volume(x[:2]), *windows.sizes
    checks = at_places(op, windows)
    if op.node.op == "MaxPool":
        return [*checks, op.call("max_pool", *inputs)]
    after = windows.after if op.attrs.count_include_pad else [Size.of(-1)] * 2
    return [*checks, op.call("average_pool", *inputs, *after)]


@rule("GlobalAveragePool", "GlobalMaxPool")
def over_all(op: OperatorCode) -> list[Step]:
    op.of("float")
    x = op.shape()
    function = "reduce_mean" if op.node.op == "GlobalAveragePool" else "reduce_max"
    sizes = volume(x[:2]), volume(x[2:]), 1
    checks = at_least(op, volume(x[1:]) - 1)
    return [*checks, op.call(function, op.read(0), *sizes)]
