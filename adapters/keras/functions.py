"""Rules for the functions of ``keras.ops``, and for the TensorFlow functions that Keras 2 files
list as layers.

A rule lowers one function to onernn's canonical operators. The rule's parameters are the parameters
of the function. Results have no mask. Formulas: documentation of keras.ops and of TensorFlow's
functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from onernn.adapters.common import bodies
from onernn.adapters.common.signatures import refuse
from onernn.adapters.keras import rules
from onernn.adapters.keras.table import (
    FIX_SIZE,
    KerasTensor,
    function,
    functions,
    same_in_tensorflow,
    tensorflow,
)

# Operands get a common type: Python numbers take the type of the tensors in the call.


def common_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Returns the dtype in which Keras computes: the widest float type, or NumPy's promoted type if
    no dtype is a float.
    """
    floats = [each for each in dtypes if each.kind == "f"]
    return reduce(np.promote_types, floats or dtypes)


def alike(*values: Any) -> list[KerasTensor]:
    """Returns tensors of one type from tensors, numbers and lists of numbers.

    A float among integers makes them float32. Raises `UnsupportedError` if no value is a tensor.
    """
    tensors = [each for each in values if isinstance(each, KerasTensor)]
    numbers = [np.asarray(each) for each in values if not isinstance(each, KerasTensor)]
    if not tensors or any(each.dtype.kind not in "bif" for each in numbers):
        dtypes = [str(each.dtype) for each in numbers]
        refuse(f"expected a tensor, and numbers, got {len(tensors)} tensors and {dtypes}")
    dtype = common_dtype([each.dtype for each in tensors])
    kinds = {each.dtype.kind for each in numbers}
    if "f" in kinds and dtype.kind != "f":
        dtype = np.dtype("float32")
    elif "i" in kinds and dtype.kind == "b":
        dtype = np.dtype("int32")
    return [
        each.cast(dtype) if isinstance(each, KerasTensor) else _constant(tensors[0], each, dtype)
        for each in values
    ]


def _constant(like: KerasTensor, value: Any, dtype: np.dtype[Any]) -> KerasTensor:
    if np.ndim(value) == 0:
        return like.new(like.op.scalar(value, dtype))
    return like.constant(np.asarray(value, dtype))


_NO_BOOL = "expected integers or floats, got bool; cast it first"


@functions("Add=Add Subtract=Sub Multiply=Mul Maximum=Max Minimum=Min")
def arithmetic(kind, x1, x2):
    a, b = alike(x1, x2)
    return refuse(_NO_BOOL) if a.dtype == bool else getattr(a, kind)(b)


@functions(
    "Equal=Equal Less=Less LessEqual=LessOrEqual Greater=Greater GreaterEqual=GreaterOrEqual"
)
def comparison(kind, x1, x2):
    a, b = alike(x1, x2)
    return getattr(a, kind)(b)


@function("NotEqual")
def not_equal(x1, x2):
    a, b = alike(x1, x2)
    return a.Equal(b).Not()


@functions("LogicalOr=Or LogicalAnd=And LogicalXor=Xor")
def logical(kind, x1, x2):
    return getattr(x1.cast(bool), kind)(x2.cast(bool))


@function("LogicalNot")
def logical_not(x):
    return x.cast(bool).Not()


@function("Divide TrueDivide")
def divide(x1, x2):
    """Divides x1 by x2; integers are divided as float32."""
    a, b = alike(x1, x2)
    return a.floats / b.floats


@function("Mod")
def modulo(x1, x2):
    """Returns the remainder, which has the sign of the divisor."""
    a, b = alike(x1, x2)
    if a.dtype == bool:
        refuse(_NO_BOOL)
    return bodies.remainder(a, b) if a.dtype.kind == "f" else a.Mod(b)


@function("Power")
def power(x1, x2):
    a, b = alike(x1, x2)
    return a.checked_floats.Pow(b)


@function("SquaredDifference")
def squared_difference(x1, x2):
    apart = arithmetic("Sub", x1, x2)
    return apart * apart


# Functions on single elements.


@functions("Negative=Neg Absolute=Abs Abs=Abs Sign=Sign")
def of_number(kind, x):
    return refuse(_NO_BOOL) if x.dtype == bool else getattr(x, kind)()


@functions(
    """
    Exp=Exp Log=Log Sqrt=Sqrt Sin=Sin Cos=Cos Arctan=Atan Erf=Erf Reciprocal=Reciprocal
    Isnan=IsNaN Floor=Floor Ceil=Ceil
    """
)
def of_float(kind, x):
    return getattr(x.floats, kind)()


@functions(
    """
    Relu=relu Relu6=relu6 Sigmoid=sigmoid Tanh=tanh Silu=silu Softplus=softplus Softsign=softsign
    Selu=selu HardSigmoid=hard_sigmoid HardSilu=hard_silu HardTanh=hard_tanh LogSigmoid=log_sigmoid
    TanhShrink=tanh_shrink
    """
)
def activation(name, x):
    return rules.activate(x, name)


@function("Square")
def square(x):
    return arithmetic("Mul", x, x)


@function("Rsqrt")
def inverse_root(x):
    return x.floats.Sqrt().Reciprocal()


@function("Round")
def round_(x, decimals=0):
    """Rounds to the nearest integer; a value halfway between two integers becomes the even one."""
    if decimals:
        refuse(f"argument decimals={decimals}: expected 0")
    return x.checked_floats.Round()


@function("Elu")
def elu(x, alpha=1.0):
    return x.floats.Elu(alpha=float(alpha))


@function("Celu")
def celu(x, alpha=1.0):
    return x.floats.Celu(alpha=float(alpha))


@function("LeakyRelu")
def leaky_relu(x, negative_slope=0.2):
    return x.floats.LeakyRelu(alpha=float(negative_slope))


@function("Gelu")
def gelu(x, approximate=True):
    return x.floats.Gelu(approximate="tanh" if approximate else "none")


@function("Softmax")
def softmax(x, axis=-1):
    return x.floats.Softmax(axis=rules.one_axis(x, axis))


@function("LogSoftmax")
def log_softmax(x, axis=-1):
    return x.floats.LogSoftmax(axis=rules.one_axis(x, axis))


@function("Clip")
def clip(x, x_min, x_max):
    x, low, high = alike(x, x_min, x_max)
    return x.Max(low).Min(high)


@function("Where")
def where(condition, x1, x2):
    if {type(x1), type(x2)} <= {int, float}:
        kind = "int32" if type(x1) is type(x2) is int else "float32"
        x1 = _constant(condition, x1, np.dtype(kind))
    a, b = alike(x1, x2)
    return condition.cast(bool).Where(a, b)


@function("Cast")
def cast(x, dtype):
    """Returns x in a dtype. Like Keras, returns x itself, with its mask, if x already has the
    dtype.
    """
    return x if x.dtype == dtype else x.new(x.Cast(to=np.dtype(dtype).name).name)


@function("ConvertToTensor")
def convert_to_tensor(x, dtype=None, sparse=None, ragged=None):
    return x if dtype is None else cast(x, dtype)


@function("StopGradient Copy")
def identity(x):
    return x.Identity()


# Reductions.


def _axes(x: KerasTensor, axis: Any) -> list[int]:
    if axis is None:
        return [*range(x.rank)]
    listed = axis if isinstance(axis, list) else [axis]
    _places(x, listed)
    return listed or refuse("attribute axis=[]: expected one axis or more")


def _places(x: KerasTensor, axes: Any) -> list[int]:
    """Returns axes as indices from 0. Raises `UnsupportedError` for axes that x does not have."""
    return [rules.one_axis(x, each) for each in (axes if isinstance(axes, list) else [axes])]


@functions("Max=ReduceMax Amax=ReduceMax Min=ReduceMin Amin=ReduceMin")
def reduction(kind, x, axis=None, keepdims=False):
    return getattr(x, kind)(_axes(x, axis), keepdims=int(keepdims))


@functions("Mean=ReduceMean Logsumexp=ReduceLogSumExp")
def float_reduction(kind, x, axis=None, keepdims=False):
    return reduction(kind, x.floats, axis, keepdims)


@functions("Sum=ReduceSum Prod=ReduceProd")
def total(kind, x, axis=None, keepdims=False):
    """Adds or multiplies all elements along axes; integers of less than 32 bits become int32."""
    x = x if x.dtype.kind == "f" or x.dtype.itemsize >= 4 else x.cast("int32")
    return reduction(kind, x, axis, keepdims)


@functions("Any=ReduceMax All=ReduceMin")
def truth(kind, x, axis=None, keepdims=False):
    return reduction(kind, x.cast(bool).cast("int32"), axis, keepdims).cast(bool)


@functions("Argmax=ArgMax Argmin=ArgMin")
def index_of_extreme(kind, x, axis=None, keepdims=False):
    place = None if axis is None else rules.one_axis(x, axis)
    return bodies.extreme_index(x, kind, place, keepdims).cast("int32")


@function("Var")
def variance(x, axis=None, keepdims=False):
    """Returns the mean of the squared differences from the mean."""
    x, axes = x.floats, _axes(x, axis)
    apart = x - x.ReduceMean(axes, keepdims=1)
    return (apart * apart).ReduceMean(axes, keepdims=int(keepdims))


@function("Std")
def deviation(x, axis=None, keepdims=False):
    return variance(x, axis, keepdims).Sqrt()


@function("Average")
def average(x, axis=None, weights=None):
    if weights:
        refuse("argument weights: expected None; multiply by weights that add up to 1 and sum")
    return float_reduction("ReduceMean", x, axis)


@function("CountNonzero")
def count_nonzero(x, axis=None):
    return reduction("ReduceSum", x.cast(bool).cast("int32"), axis)


@function("Norm")
def norm(x, ord=None, axis=None, keepdims=False):
    """Returns the root of the sum of squares."""
    if ord not in (None, 2) or isinstance(axis, list) and ord is not None:
        refuse(f"attribute ord={ord!r}: expected None, or 2 for one axis")
    return float_reduction("ReduceL2", x, axis, keepdims)


@function("Normalize")
def normalize(x, axis=-1, order=2, epsilon=None):
    """Divides x by its norm along an axis, or by epsilon if the norm is smaller; epsilon is 1e-7 by
    default.
    """
    if order != 2:
        refuse(f"attribute order={order}: expected 2")
    return x.floats / x.floats.ReduceL2(_axes(x, axis), keepdims=1).Max(float(epsilon or 1e-7))


@function("Cumsum")
def cumulative_sum(x, axis=None):
    if axis is None or x.dtype.kind != "f" and x.dtype.itemsize < 4:
        refuse(f"attribute axis={axis}, {x.dtype}: expected an axis, and floats or 32 bits or more")
    return x.CumSum([rules.one_axis(x, axis)])


# Matrix products.


@function("Matmul")
def matmul(x1, x2):
    a, b = alike(x1, x2)
    return a.checked_floats @ b


@function("Dot")
def dot(x1, x2):
    """Multiplies matrices; the second operand may have at most two axes."""
    if x2.rank > 2 or min(x1.rank, x2.rank) < 1:
        refuse(f"expected 1 axis or more, in x2 1 or 2, got {x1.rank} and {x2.rank}; use matmul")
    return matmul(x1, x2)


@function("Einsum")
def einsum(*operands, subscripts):
    first, *others = alike(*operands)
    return first.checked_floats.Einsum(*others, equation=subscripts)


# Shapes and indices.


_FAR = 2**62


@function("GetItem")
def get_item(x, key):
    """Indexes by integers, slices, None, an ellipsis, and one list or tensor of indices."""
    keys = key if isinstance(key, list) else [key]
    keys = keys if any(each is Ellipsis for each in keys) else [*keys, Ellipsis]
    place = next(at for at, each in enumerate(keys) if each is Ellipsis)
    before, behind = keys[:place], keys[place + 1 :]
    used = sum(each is not None for each in (*before, *behind))
    lists = sum(isinstance(each, list | KerasTensor) for each in keys)
    if used > x.rank or any(each is Ellipsis for each in behind):
        refuse(f"index {key!r:.100}: expected at most {x.rank} axes and one ellipsis")
    if lists > 1 or lists and any(isinstance(each, int) for each in keys):
        refuse(f"index: expected at most one list or tensor, without integers, got {lists}")
    axis, cuts = 0, list[tuple[Any, ...]]()
    for each in (*before, *[slice(None)] * (x.rank - used), *behind):
        match each:
            case None:
                x = x.unsqueeze(axis)
            case slice():
                cuts += _cut(axis, each)
            case list() | KerasTensor() | int() if not isinstance(each, bool):
                x, axis = _at(x, each, axis)
                continue
            case _:
                refuse(f"index {each!r:.100}: expected an integer, slice, list, tensor or None")
        axis += 1
    if not cuts:
        return x.Identity()
    starts, ends, axes, steps = (join(x, each) for each in zip(*cuts, strict=True))
    return x.Slice(starts, ends, axes, steps)


def _cut(axis: int, cut: slice) -> list[tuple[Any, ...]]:
    step = 1 if cut.step is None else cut.step
    if type(step) is not int or not step:
        refuse(f"slice step={step!r:.100}: expected an integer other than 0")
    first, last = (0, _FAR) if step > 0 else (-1, -_FAR)
    start, end = (
        default if bound is None else bound
        for bound, default in ((cut.start, first), (cut.stop, last))
    )
    return [] if (start, end, step) == (0, _FAR, 1) else [(start, end, axis, step)]


def _at(x: KerasTensor, place: Any, axis: int) -> tuple[Any, int]:
    """Returns the entries at the indices ``place`` along an axis, and the next axis after these
    entries.
    """
    if isinstance(place, KerasTensor):
        if place.dtype.kind not in "iu":
            refuse(f"index: expected integers, got {place.dtype}")
        return x.Gather(place, axis=axis), axis + place.rank
    array = np.asarray(place)
    if array.dtype.kind != "i":
        refuse(f"index {place!r:.100}: expected integers")
    return x.Gather(array.astype(np.int64), axis=axis), axis + array.ndim


def join(x: KerasTensor, values: Sequence[Any]) -> Any:
    """Returns integers and scalar tensors as one list, which is a tensor if one of them is a
    tensor.
    """
    if not any(isinstance(each, KerasTensor) for each in values):
        if not all(type(each) is int for each in values):
            refuse(f"sizes or positions {values!r:.100}: expected integers")
        return [*values]
    first, *others = (
        each.cast("int64").reshape(1)
        if isinstance(each, KerasTensor)
        else x.constant(np.array([each], np.int64))
        for each in values
    )
    return first.join(*others) if others else first


@function("Flip")
def flip(x, axis=None):
    return x.flip(*_axes(x, axis))


@function("ExpandDims")
def expand_dims(x, axis):
    return x.unsqueeze(*(axis if isinstance(axis, list) else [axis]))


@function("Squeeze")
def squeeze(x, axis=None):
    if axis is None:
        axis = [at for at, size in enumerate(x.shape) if size == 1]
        if None in x.shape:
            refuse(f"attribute axis=None: expected known sizes, got {x.shape}{FIX_SIZE}")
    return x.squeeze(*_axes(x, axis))


@function("Concatenate")
def concatenate(xs, axis=-1):
    first, *others = alike(*xs)
    return first.Concat(*others, axis=rules.one_axis(first, axis))


@function("Stack")
def stack(x, axis=0):
    values = alike(*x)
    most = values[0].rank + 1
    if not -most <= axis < most:
        refuse(f"attribute axis={axis}: expected -{most} to {most - 1}")
    return bodies.stack(values, axis % most)


_MOST_PARTS = 2**12


def _check_parts(count: int) -> None:
    """Raises `UnsupportedError` if a damaged file asks for too many parts. Each part would become a
    value of the graph.
    """
    if count > _MOST_PARTS:
        refuse(f"{count} parts: expected at most {_MOST_PARTS}")


@function("Unstack")
def unstack(x, num=None, axis=0):
    place = rules.one_axis(x, axis)
    count = x.shape[place] if num is None else num
    if type(count) is not int or x.shape[place] not in (None, count):
        refuse(f"attribute num={num}: expected the size of axis {place}, {x.shape[place]}")
    _check_parts(count)
    return [x.Gather(np.array(at), axis=place) for at in range(count)]


@function("Split")
def split(x, indices_or_sections, axis=0):
    place = rules.one_axis(x, axis)
    size = x.shape[place]
    if isinstance(indices_or_sections, int):
        count = indices_or_sections
        if size is None or count < 1 or size % count:
            refuse(f"{count} parts: expected a known multiple as the size, got {size}{FIX_SIZE}")
        _check_parts(count)
        return _split(x, [size // count] * count, place)
    ends = [0, *indices_or_sections, size]
    if size is None or any(type(each) is not int for each in ends) or ends != sorted(ends):
        refuse(
            f"indices_or_sections={indices_or_sections!r:.100}: expected increasing integers up to"
            f" a known size, got {size}{FIX_SIZE}"
        )
    return _split(x, np.diff(ends).tolist(), place)


def _split(x: KerasTensor, sizes: list[int], axis: int) -> list[Any]:
    return [x.Identity()] if len(sizes) == 1 else [*x.Split(sizes, axis=axis, outputs=len(sizes))]


@function("Reshape")
def reshape(x, newshape):
    sizes = newshape if isinstance(newshape, list) else [newshape]
    if 0 in sizes:
        refuse("attribute newshape: expected sizes other than 0, got 0")
    return x.Reshape(join(x, sizes))


@function("Ravel")
def ravel(x):
    return x.reshape(-1)


@function("Transpose")
def transpose(x, axes=None):
    perm = [*range(x.rank)][::-1] if axes is None else _places(x, axes)
    if sorted(perm) != [*range(x.rank)]:
        refuse(f"attribute axes={axes}: expected each of {x.rank} axes once")
    return x.transpose(*perm)


@function("Swapaxes")
def swap_axes(x, axis1, axis2):
    return x.swap(rules.one_axis(x, axis1), rules.one_axis(x, axis2))


@function("Moveaxis")
def move_axis(x, source, destination):
    return bodies.move_axes(x, _places(x, source), _places(x, destination))


@function("Tile")
def tile(x, repeats):
    times = repeats if isinstance(repeats, list) else [repeats]
    x = x.unsqueeze(*range(len(times) - x.rank)) if len(times) > x.rank else x
    return x.Tile(join(x, [*[1] * (x.rank - len(times)), *times]))


@function("Repeat")
def repeat(x, repeats, axis=None):
    """Repeats each entry along an axis."""
    if type(repeats) is not int or axis is None or repeats < 1:
        refuse(f"attributes repeats={repeats!r:.100}, axis={axis}: expected 1 or more, and an axis")
    place = rules.one_axis(x, axis)
    times = [1] * (x.rank + 1)
    times[place + 1] = repeats
    shape = [0 if at < place else size for at, size in enumerate(x.shape)]
    shape[place] = -1
    if None in shape:
        refuse(f"axis={axis}: expected known sizes after it, got {x.shape}{FIX_SIZE}")
    return x.unsqueeze(place + 1).Tile(times).reshape(*shape)


@function("BroadcastTo")
def broadcast_to(x, shape):
    return x.Expand(join(x, shape))


@function("Take")
def take(x, indices, axis=None):
    if axis is None:
        refuse("attribute axis=None: expected an axis")
    return _at(x, indices, rules.one_axis(x, axis))[0]


@function("TakeAlongAxis")
def take_along_axis(x, indices, axis=None):
    if axis is None or indices.rank != x.rank:
        refuse(
            f"attribute axis={axis}, indices of {indices.rank} axes: expected an axis, and"
            f" {x.rank} axes"
        )
    return x.GatherElements(indices, axis=rules.one_axis(x, axis))


@function("Pad")
def pad(x, pad_width, mode="constant", constant_values=None):
    if str(mode).lower() != "constant":
        refuse(f"attribute mode={mode!r}: expected 'constant'")
    widths = [bodies.each_axis(each, 2, "pad_width") for each in pad_width]
    widths = widths * x.rank if len(widths) == 1 else widths
    if len(widths) != x.rank or min(map(min, widths)) < 0:
        refuse(f"attribute pad_width={pad_width}: expected 2 sizes per axis, of {x.rank} axes")
    value = x.scalar(0 if constant_values is None else constant_values)
    return x.Pad([before for before, _ in widths] + [after for _, after in widths], value)


@function("Roll")
def roll(x, shift, axis=None):
    """Moves entries along an axis; entries that leave the axis at one end come back at the other
    end.
    """
    if axis is None or type(shift) is not int or type(axis) is not int:
        refuse(f"attributes shift={shift!r}, axis={axis!r}: expected one integer each")
    place = rules.one_axis(x, axis)
    size = x.shape[place]
    if not size:
        refuse(f"axis={axis}: expected a known size, got {size}{FIX_SIZE}")
    at = -shift % size
    return x.Slice([at], [_FAR], [place]).Concat(x.Slice([0], [at], [place]), axis=place)


@function("Slice")
def slice_(x, start_indices, shape):
    ends = [begin + size for begin, size in zip(start_indices, shape, strict=True)]
    if len(ends) != x.rank:
        refuse(f"start_indices: expected {x.rank}, one per axis, got {len(ends)}")
    return x.Slice(join(x, start_indices), join(x, ends), [*range(x.rank)])


@functions("Triu=upper Tril=lower")
def triangle(kind, x, k=0):
    if type(k) is not int:
        refuse(f"attribute k={k!r}: expected an integer")
    return x.Trilu(k, upper=int(kind == "upper"))


@function("OneHot")
def one_hot(x, num_classes, axis=-1, dtype="float32", sparse=False):
    if sparse or axis != -1 or type(num_classes) is not int:
        refuse(
            f"attributes axis={axis}, num_classes={num_classes!r}, sparse={sparse}: expected"
            " axis=-1, an integer, and False"
        )
    outside = x.Less(x.scalar(0))  # a negative class gets a row of zeros
    ids = outside.Where(x.scalar(num_classes), x)
    return ids.OneHot([num_classes], np.array([0, 1], np.dtype(dtype)), axis=-1)


@function("TopK")
def top_k(x, k, sorted=True):
    values, places = x.TopK([k], axis=-1, outputs=2)
    return [values, places.cast("int32")]


def _filled(value, x, dtype=None):
    return x.constant(np.full(1, value, dtype or x.dtype)).Expand(x.Shape())


function("ZerosLike")(partial(_filled, 0))
function("OnesLike")(partial(_filled, 1))


@function("FullLike")
def full_like(x, fill_value, dtype=None):
    if not isinstance(fill_value, int | float):
        refuse("fill_value: expected a number, got a value that is computed at run time")
    return _filled(fill_value, x, dtype)


@function("Arange")
def arange(start, stop=None, step=1, dtype=None):
    """Counts from ``start`` (default 0) to ``stop`` (excluded) in steps of ``step``."""
    start, stop = (0, start) if stop is None else (start, stop)
    values = alike(start, stop, step)
    if any(each.rank for each in values):
        refuse(f"start, stop and step: expected scalars, got {[each.rank for each in values]} axes")
    first, *others = (each if dtype is None else each.cast(dtype) for each in values)
    return first.Range(*others)


@function("Shape")
def shape_(x, dtype="int32"):
    """Returns the sizes of x. Models contain only TensorFlow's function, never the function of
    keras.ops.
    """
    return x.Shape().cast(dtype)


# TensorFlow's functions in functional models of Keras 2. The lines map TensorFlow's parameter names
# to the parameter names of the rules above. Functions that the lines do not list have their own
# rules.

same_in_tensorflow(
    """
    __operators__.add math.add add: Add x=x1 y=x2
    math.subtract subtract: Subtract x=x1 y=x2
    math.multiply multiply: Multiply x=x1 y=x2
    math.maximum maximum: Maximum x=x1 y=x2
    math.minimum minimum: Minimum x=x1 y=x2
    math.floormod math.mod: Mod x=x1 y=x2
    math.pow pow: Power x=x1 y=x2
    math.squared_difference: SquaredDifference x=x1 y=x2
    math.equal equal: Equal x=x1 y=x2
    math.not_equal not_equal: NotEqual x=x1 y=x2
    __operators__.eq: Equal self=x1 other=x2
    __operators__.ne: NotEqual self=x1 other=x2
    math.greater greater: Greater x=x1 y=x2
    math.greater_equal greater_equal: GreaterEqual x=x1 y=x2
    math.less less: Less x=x1 y=x2
    math.less_equal less_equal: LessEqual x=x1 y=x2
    math.logical_and logical_and: LogicalAnd x=x1 y=x2
    math.logical_or logical_or: LogicalOr x=x1 y=x2
    math.logical_not logical_not: LogicalNot
    math.negative negative: Negative
    math.abs abs: Absolute
    math.sign sign: Sign
    math.exp exp: Exp
    math.log: Log
    math.sqrt sqrt: Sqrt
    math.rsqrt: Rsqrt
    math.square square: Square
    math.sin sin: Sin
    math.cos cos: Cos
    math.erf: Erf
    math.reciprocal: Reciprocal
    math.is_nan: Isnan
    math.floor floor: Floor
    math.ceil: Ceil
    math.round round: Round
    math.tanh tanh nn.tanh: Tanh
    math.sigmoid sigmoid nn.sigmoid: Sigmoid
    math.softplus nn.softplus: Softplus features=x
    nn.relu: Relu features=x
    nn.relu6: Relu6 features=x
    nn.elu: Elu features=x
    nn.selu: Selu features=x
    nn.softsign: Softsign features=x
    nn.leaky_relu: LeakyRelu features=x alpha=negative_slope
    nn.softmax: Softmax logits=x
    nn.log_softmax: LogSoftmax logits=x
    math.reduce_max reduce_max: Max input_tensor=x
    math.reduce_min reduce_min: Min input_tensor=x
    math.reduce_any reduce_any: Any input_tensor=x
    math.reduce_all reduce_all: All input_tensor=x
    math.reduce_logsumexp reduce_logsumexp: Logsumexp input_tensor=x
    math.reduce_variance: Var input_tensor=x
    math.reduce_std: Std input_tensor=x
    __operators__.getitem: GetItem tensor=x slice_spec=key
    expand_dims: ExpandDims input=x
    compat.v1.squeeze squeeze: Squeeze input=x
    reshape: Reshape tensor=x shape=newshape
    tile: Tile input=x multiples=repeats
    repeat: Repeat input=x
    broadcast_to: BroadcastTo input=x
    reverse: Flip tensor=x
    roll: Roll input=x
    stack: Stack values=x
    unstack: Unstack value=x
    concat: Concatenate values=xs
    where: Where x=x1 y=x2
    cast: Cast
    zeros_like: ZerosLike input=x
    ones_like: OnesLike input=x
    identity: Copy input=x
    stop_gradient: StopGradient input=x
    compat.v1.shape shape: Shape input=x out_type=dtype
    range: Arange limit=stop delta=step
    clip_by_value: Clip t=x clip_value_min=x_min clip_value_max=x_max
    compat.v1.pad pad: Pad tensor=x paddings=pad_width
    """
)


@tensorflow("math.divide divide math.truediv truediv")
def divide_of_tensorflow(x, y):
    """Divides integers of 32 bits and more as float64, others as float32."""
    a, b = alike(x, y)
    dtype = a.dtype if a.dtype.kind == "f" else "float64" if a.dtype.itemsize > 2 else "float32"
    return a.cast(dtype) / b.cast(dtype)


@tensorflow("math.reduce_mean reduce_mean")
def mean_of_tensorflow(input_tensor, axis=None, keepdims=False):
    """Returns the mean of floats. Refuses integers, whose mean TensorFlow rounds towards zero."""
    return reduction("ReduceMean", input_tensor.checked_floats, axis, keepdims)


def _total_of_tensorflow(kind, input_tensor, axis=None, keepdims=False):
    """Adds or multiplies in the type of the tensor; refuses small integers, whose sums may
    overflow.
    """
    if input_tensor.dtype.itemsize < 4:
        refuse(f"expected types of 32 bits or more, got {input_tensor.dtype}; cast it first")
    return total(kind, input_tensor, axis, keepdims)


tensorflow("math.reduce_sum reduce_sum")(partial(_total_of_tensorflow, "ReduceSum"))
tensorflow("math.reduce_prod reduce_prod")(partial(_total_of_tensorflow, "ReduceProd"))


@tensorflow("nn.silu nn.swish")
def swish(features, beta=1.0):
    return features * (features * float(beta)).Sigmoid()


@tensorflow("nn.gelu")
def gelu_of_tensorflow(features, approximate=False):
    return gelu(features, approximate)


@tensorflow("math.l2_normalize nn.l2_normalize")
def l2_normalize(x, axis=None, epsilon=1e-12):
    """Divides x by sqrt(s), the root of its sum of squares, or by sqrt(epsilon) if s is smaller
    than epsilon.
    """
    return x / x.ReduceSumSquare(_axes(x, axis), keepdims=1).Max(float(epsilon)).Sqrt()


@tensorflow("linalg.matmul matmul")
def matrix_product(a, b, transpose_a=False, transpose_b=False):
    return matmul(a.swap() if transpose_a else a, b.swap() if transpose_b else b)


@tensorflow("split")
def split_of_tensorflow(value, num_or_size_splits, axis=0):
    sizes = num_or_size_splits
    if isinstance(sizes, list) and all(type(each) is int and each >= 0 for each in sizes):
        return _split(value, sizes, rules.one_axis(value, axis))
    if type(sizes) is not int:
        refuse(f"num_or_size_splits={sizes!r:.100}: expected an integer or a list of sizes")
    return split(value, sizes, axis)


@tensorflow("compat.v1.gather gather")
def gather(params, indices, axis=None, batch_dims=0, validate_indices=None):
    if batch_dims:
        refuse(f"attribute batch_dims={batch_dims}: expected 0")
    return take(params, indices, axis or 0)


@tensorflow("compat.v1.transpose transpose")
def transpose_of_tensorflow(a, perm=None, conjugate=False):
    """Permutes axes; conjugation does not change real numbers."""
    return transpose(a, perm)


@tensorflow("compat.v1.norm norm")
def norm_of_tensorflow(tensor, ord="euclidean", axis=None, keepdims=False):
    return norm(tensor, None if ord == "euclidean" else ord, axis, keepdims)


@tensorflow("math.argmax argmax math.argmin argmin")
def place_of_extreme(input, axis=0, output_type="int64", *, op):
    kind = "ArgMax" if "max" in op.config["function"] else "ArgMin"
    place = rules.one_axis(input, axis)
    return bodies.extreme_index(input, kind, place, False).cast(output_type)


@tensorflow("math.cumsum cumsum")
def cumulative_sum_of_tensorflow(x, axis=0, exclusive=False, reverse=False):
    return x.CumSum([rules.one_axis(x, axis)], exclusive=int(exclusive), reverse=int(reverse))


@tensorflow("one_hot")
def one_hot_of_tensorflow(indices, depth, on_value=1, off_value=0, axis=-1, dtype="float32"):
    if (on_value, off_value) != (1, 0):
        refuse(f"attributes on_value={on_value}, off_value={off_value}: expected 1 and 0")
    return one_hot(indices, depth, axis, dtype)


@tensorflow("math.add_n add_n")
def add_all(inputs):
    return reduce(lambda a, b: a.Add(b), inputs)


@tensorflow("slice")
def slice_of_tensorflow(input_, begin, size):
    """Takes ``size`` entries from ``begin`` on along each axis; -1 takes all remaining entries."""
    ends = [_FAR if n == -1 else at + n for at, n in zip(begin, size, strict=True)]
    return input_.Slice(join(input_, begin), join(input_, ends), [*range(input_.rank)])
