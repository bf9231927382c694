"""The rules of Keras's layers that compute element by element, join and reshape; `keras.ops`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from onernn.adapters.common.bodies import FORMULAS, channels_last
from onernn.adapters.common.files import pairs
from onernn.adapters.keras.read import inner_layer
from onernn.adapters.keras.table import OPERATIONS, PASSING, KerasLayer, Made, Tensor, rule
from onernn.ir.activations import NAMES
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.spec import Activation

# Activation functions by their names in configurations.
#
# Formulas: documentation of keras.activations. hard_sigmoid is x / 6 + 0.5 between 0 and 1 in
# Keras 3, and 0.2 x + 0.5 before.

_LIKE = {"swish": "silu", "hard_swish": "hard_silu", "keras_relu6": "relu6"}


def name_of(activation: Any) -> str:
    """The name of Keras's own function. Raises `UnsupportedError` for one of a user's."""
    if activation is None:
        return "linear"
    if isinstance(activation, dict):
        name, known = activation.get("config"), (None, "function", activation.get("config"))
        if (
            activation.get("class_name") != "function"
            or activation.get("module") not in ("keras.activations", "builtins")
            or activation.get("registered_name") not in known
        ):
            raise UnsupportedError(f"activation {name!r:.100}: a function of its own")
        activation = name
    if not isinstance(activation, str):
        raise UnsupportedError(f"activation {activation!r:.100}: expected a name")
    return _LIKE.get(activation, activation)


def of_gates(activation: Any, major: int) -> Activation | None:
    """The function as gates of our layers have it, None where they have it not."""
    name = name_of(activation)
    known = {
        "linear": Activation("identity"),
        "hard_sigmoid": Activation("hardsigmoid", 1 / 6 if major > 2 else 0.2, 0.5),
        "leaky_relu": Activation("leakyrelu", 0.2),
        "elu": Activation("elu", 1.0),
    }
    plain = ("sigmoid", "tanh", "relu", "softsign", "softplus")
    return Activation(name) if name in plain else known.get(name)


def apply(op: KerasLayer, x: str, activation: Any) -> str:
    """A function of a value. Raises `UnsupportedError` for one that is not known."""
    gate = of_gates(activation, op.major)
    if gate is not None:
        if gate.name == "identity":
            return x
        numbers = zip(("alpha", "beta"), gate[1:], strict=True)
        return op.emit(NAMES[gate.name], x, **{k: v for k, v in numbers if v is not None})
    name = name_of(activation)
    if name not in _ACTIVATIONS:
        raise UnsupportedError(f"activation {name!r}: not known")
    return _ACTIVATIONS[name](op, x)


def finished(op: KerasLayer, y: str, bias: Sequence[Array]) -> str:
    """The layer's function of a value with its bias, if it has one."""
    for array in bias:
        y = op.emit("Add", y, op.constant(array, "bias"))
    return apply(op, y, op.attribute("activation", None))


def _clipped(op: KerasLayer, x: str, low: float, high: float) -> str:
    return op.emit("Clip", x, op.scalar(low, x), op.scalar(high, x))


_ACTIVATIONS: dict[str, Callable[[KerasLayer, str], str]] = {
    "exponential": lambda op, x: op.emit("Exp", x),
    "softmax": lambda op, x: op.emit("Softmax", x, axis=-1),
    "log_softmax": lambda op, x: op.emit("LogSoftmax", x, axis=-1),
    "relu6": lambda op, x: _clipped(op, x, 0, 6),
    "hard_tanh": lambda op, x: _clipped(op, x, -1, 1),
    "selu": lambda op, x: op.emit("Selu", x),
    "gelu": lambda op, x: op.emit("Gelu", x),
    "celu": lambda op, x: op.emit("Celu", x),
    "hard_silu": lambda op, x: op.emit("Mul", x, op.emit("HardSigmoid", x, alpha=1 / 6, beta=0.5)),
    **{name: FORMULAS[name] for name in ("silu", "mish", "log_sigmoid")},
    "tanh_shrink": lambda op, x: op.emit("Sub", x, op.emit("Tanh", x)),
}


# The rules of activations, of layers that rest at inference, and of those that make masks.
#
# Formulas: documentation of keras.layers of these names.


@rule(
    "Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D"
    " GaussianDropout GaussianNoise AlphaDropout ActivityRegularization Identity",
    masks=True,
)
def _nothing(op: KerasLayer) -> str:
    """Training's layers."""
    op.ignore("data_format")
    return op.x


@rule("Activation", masks=True)
def _activation(op: KerasLayer) -> str:
    activation = op.config.get("activation")
    op.ignore("activation")
    return apply(op, op.floats, activation)


@rule("ReLU", masks=True)
def _relu(op: KerasLayer) -> str:
    """max(x, 0), slope * (x - threshold) below the threshold, at most max_value."""
    x, threshold = op.floats, op.number("threshold", 0.0)
    slope, most = op.number("negative_slope", 0.0), op.attribute("max_value", None)
    if threshold:
        over = op.emit("GreaterOrEqual", x, op.scalar(threshold, x))
        low = op.emit("Mul", op.emit("Sub", x, op.scalar(threshold, x)), op.scalar(slope, x))
        y = op.emit("Where", over, x, low)
    else:
        y = op.emit("LeakyRelu", x, alpha=slope) if slope else op.emit("Relu", x)
    return y if most is None else op.emit("Min", y, op.scalar(op.number("max_value", 0.0), y))


@rule("LeakyReLU", masks=True)
def _leaky(op: KerasLayer) -> str:
    name = "negative_slope" if "negative_slope" in op.config else "alpha"
    return op.emit("LeakyRelu", op.floats, alpha=op.number(name, 0.3))


@rule("ELU", masks=True)
def _elu(op: KerasLayer) -> str:
    return op.emit("Elu", op.floats, alpha=op.number("alpha", 1.0))


@rule("ThresholdedReLU", masks=True)
def _thresholded(op: KerasLayer) -> str:
    return op.emit("ThresholdedRelu", op.floats, alpha=op.number("theta", 1.0))


@rule("PReLU", masks=True)
def _prelu(op: KerasLayer) -> str:
    op.ignore("shared_axes")
    (alpha,) = op.weights("alpha")
    return op.emit("PRelu", op.floats, op.constant(alpha, "alpha"))


@rule("Softmax", masks=True)
def _softmax(op: KerasLayer) -> str:
    op.attribute("robust_masking", False)
    if op.tensor.mask:
        raise UnsupportedError("Softmax of a tensor with a mask")
    axis = op.attribute("axis", None)
    axis = -1 if axis is None else axis
    if isinstance(axis, list) and len(axis) == 1:
        (axis,) = axis
    if type(axis) is not int:
        raise UnsupportedError(f"attribute axis={axis!r}: expected one")
    return op.emit("Softmax", op.floats, axis=axis)


@rule("Rescaling", masks=True)
def _rescaling(op: KerasLayer) -> str:
    x = op.floats
    scaled = op.emit("Mul", x, op.scalar(op.number("scale", 1.0), x))
    return op.emit("Add", scaled, op.scalar(op.number("offset", 0.0), x))


@rule("Masking")
def _masking(op: KerasLayer) -> Tensor:
    """Steps that are nothing but ``mask_value`` become zeros, and are masked."""
    x = op.x
    differs = op.emit("Not", op.emit("Equal", x, op.scalar(op.number("mask_value", 0.0), x)))
    some = op.emit("ReduceMax", op.cast(differs, "int32"), [-1], keepdims=0)
    mask = op.cast(some, "bool")
    column = op.unsqueezed(mask, -1)
    return Tensor(op.emit("Where", column, x, op.scalar(0, x)), mask)


@rule("Embedding")
def _embedding(op: KerasLayer) -> Tensor:
    op.ignore("output_dim")
    op.attribute("sparse", False)
    ids = op.x
    if op.dtype_of(ids) not in ("int32", "int64"):
        ids = op.cast(ids, "int32")
    (table,) = op.weights("embeddings")
    y = op.emit("Gather", op.constant(table, "embeddings"), ids, axis=0, non_negative=1)
    if not op.flag("mask_zero"):
        return Tensor(y)
    zero = op.constant(np.zeros((), op.dtype_of(op.x)), "zero")
    return Tensor(y, op.emit("Not", op.emit("Equal", op.x, zero)))


# The rules of dense layers, and of those that give values another shape.
#
# Formulas: documentation of keras.layers of these names.


@rule("Dense", masks=True)
def _dense(op: KerasLayer) -> str:
    units = op.integer("units")
    kernel, *bias = op.weights("kernel", *["bias"] * op.flag("use_bias", True))
    if kernel.ndim != 2 or kernel.shape[1] != units:
        raise UnsupportedError(f"kernel: expected (I, {units}), got {kernel.shape}")
    return finished(op, op.emit("MatMul", op.floats, op.constant(kernel, "kernel")), bias)


@rule("EinsumDense")
def _einsum(op: KerasLayer) -> str:
    axes = op.attribute("bias_axes", "")
    op.ignore("output_shape")
    kernel, *bias = op.weights("kernel", *["bias"] * bool(axes))
    equation = op.attribute("equation", "")
    y = op.emit("Einsum", op.floats, op.constant(kernel, "kernel"), equation=equation)
    return finished(op, y, bias)


@rule("Flatten")
def _flatten(op: KerasLayer) -> str:
    x = op.x
    if op.attribute("data_format", "channels_last") == "channels_first" and op.rank_of(x) > 2:
        x = channels_last(op, x)
    return op.reshaped(x, 0, -1)


@rule("Reshape")
def _reshape(op: KerasLayer) -> str:
    target: Any = op.attribute("target_shape", [])
    if not all(type(size) is int and (size > 0 or size == -1) for size in target):
        raise UnsupportedError(f"attribute target_shape={target!r}")
    return op.reshaped(op.x, 0, *target)


@rule("Permute")
def _permute(op: KerasLayer) -> str:
    dims: Any = op.attribute("dims", [])
    if sorted(dims) != [*range(1, op.rank_of(op.x))]:
        raise UnsupportedError(f"attribute dims={dims!r}: the input has {op.rank_of(op.x)} axes")
    return op.transposed(op.x, 0, *dims)


@rule("RepeatVector")
def _repeat(op: KerasLayer) -> str:
    if op.rank_of(op.x) != 2:
        raise UnsupportedError(f"expected (N, C), got {op.rank_of(op.x)} axes")
    return op.emit("Tile", op.unsqueezed(op.x, 1), [1, op.integer("n"), 1])


@rule("TimeDistributed")
def _time_distributed(op: KerasLayer) -> Made:
    """A layer for each step: all steps of all samples are a batch of it."""
    tensor, config = op.tensor, op.attribute("layer", None)
    held = op.layer.weights
    layer = inner_layer(config, held and held.inside("layer"), position=op.layer.position)
    op.wraps = True
    passes = layer.kind in PASSING
    if tensor.mask and not passes:
        raise UnsupportedError(f"around {layer.kind} with a mask")
    _, time, *inner = op.shape_of(tensor.value)

    def applied(value: str) -> str:
        path = f"{op.path}/{layer.name}"
        results = op.lowering.apply(layer, [Tensor(value)], {}, path, 0, op.depth)
        if len(results) != 1 or results[0].mask:
            raise UnsupportedError(f"around {layer.kind}: expected one result without a mask")
        return results[0].value

    if layer.kind in ("Dense", "Activation", "Dropout"):  # they see only the last axis
        return Tensor(applied(tensor.value), tensor.mask)
    y = applied(op.reshaped(tensor.value, -1, *_known(inner)))
    behind = _known(op.shape_of(y)[1:])
    if time is not None:
        shape = op.ints(-1, time, *behind)
    else:
        whole = op.emit("Shape", tensor.value)
        shape = op.joined(op.sliced(whole, [0], [2], [0], [1]), behind)
    return Tensor(op.emit("Reshape", y, shape), tensor.mask)


def _known(sizes: Sequence[int | None]) -> list[int]:
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        raise UnsupportedError(f"sizes {sizes} behind the steps: only a run knows them")
    return known


# The rules of layers that join several tensors.
#
# Formulas: documentation of keras.layers of these names.

ARITHMETIC = pairs(
    "Add=Add Subtract=Sub Multiply=Mul Divide=Div TrueDivide=Div Maximum=Max Minimum=Min"
)


def _operands(op: KerasLayer) -> list[Tensor]:
    """What is joined; those of fewer axes get axes behind the first one."""
    result = op.tensors
    if len({op.dtype_of(each.value) for each in result}) > 1:
        raise UnsupportedError("called with tensors of several types")
    ranks = [op.rank_of(each.value) for each in result]
    return [
        each._replace(value=op.unsqueezed(each.value, *range(1, 1 + missing)))
        if (missing := max(ranks) - rank)
        else each
        for each, rank in zip(result, ranks, strict=True)
    ]


def _joined(op: KerasLayer, both: Callable[[str, str], str]) -> Tensor:
    tensors = _operands(op)
    return Tensor(reduce(both, [each.value for each in tensors]), _mask(op, tensors))


def _mask(op: KerasLayer, tensors: Sequence[Tensor]) -> str:
    """Keras 3: where any has words, and none where one has no mask; Keras 2: where all have."""
    masks = [each.mask for each in tensors if each.mask]
    if not masks or op.major > 2 and len(masks) < len(tensors):
        return ""
    name = "Or" if op.major > 2 else "And"
    return reduce(lambda a, b: a if a == b else op.emit(name, a, b), masks)


@rule("Add Subtract")
def _arithmetic(op: KerasLayer) -> Tensor:
    return _joined(op, lambda a, b: op.emit(ARITHMETIC[op.at.type], a, b))


@rule("Multiply Maximum Minimum")
def _without_masked(op: KerasLayer) -> Tensor:
    """Since Keras 3.4, a masked step of one tensor takes no part; Multiply has 0 where all have."""
    tensors = _operands(op)
    masks = {each: op.unsqueezed(each.mask, -1) for each in tensors if each.mask and op.major > 2}
    if masks and op.version < (3, 4):
        raise UnsupportedError(
            f"{op.at.type} of tensors with masks in a file of Keras {op.version[0]}."
            f"{op.version[1]}: since Keras 3.4 masked steps take no part; save it with that"
        )
    if any(op.rank_of(each.value) != 3 for each in masks):
        raise UnsupportedError(f"{op.at.type} of tensors with masks: expected (N, T, C) each")
    name, mask = ARITHMETIC[op.at.type], _mask(op, tensors)
    if name == "Mul":
        factors = [
            op.emit("Where", masks[each], each.value, op.scalar(1, each.value))
            if each in masks
            else each.value
            for each in tensors
        ]
        y = reduce(lambda a, b: op.emit("Mul", a, b), factors)
        if masks and mask:
            y = op.emit("Where", op.unsqueezed(mask, -1), y, op.scalar(0, y))
        return Tensor(y, mask)
    first, *others = tensors
    y, known = first.value, masks.get(first, "")
    for each in others:
        own, x = masks.get(each, ""), each.value
        x = op.emit("Where", own, x, y) if own else x
        y = op.emit("Where", known, y, x) if known else y
        y = op.emit(name, y, x)
        known = op.emit("Or", known, own) if known and own else ""
    return Tensor(y, mask)


@rule("Average")
def _average(op: KerasLayer) -> Tensor:
    tensors = _operands(op)
    total = reduce(lambda a, b: op.emit("Add", a, b), [each.value for each in tensors])
    return Tensor(op.emit("Div", total, op.scalar(len(tensors), total)), _mask(op, tensors))


@rule("Concatenate")
def _concatenate(op: KerasLayer) -> Tensor:
    tensors, rank = op.tensors, op.rank_of(op.tensors[0].value)
    axis = op.integer("axis", -1)
    place = axis % rank if -rank <= axis < rank else axis
    y = op.emit("Concat", *(each.value for each in tensors), axis=axis)
    masks = [each.mask for each in tensors]
    if not any(masks) or place == rank - 1:
        return Tensor(y, _mask(op, tensors))
    if place != 1 or not all(masks):
        raise UnsupportedError(f"attribute axis={axis} with masks")
    return Tensor(y, op.emit("Concat", *masks, axis=1))


@rule("Dot")
def _dot(op: KerasLayer) -> str:
    """Sums over an axis of each, sample by sample."""
    a, b = (each.value for each in op.tensors)
    chosen: Any = op.attribute("axes", 1)
    axes = [
        axis % op.rank_of(x)
        for axis, x in zip([chosen] * 2 if type(chosen) is int else chosen, (a, b), strict=True)
    ]
    if min(axes) < 1:
        raise UnsupportedError(f"attribute axes={chosen!r}: samples stay apart")
    if op.flag("normalize"):
        a, b = (_unit(op, x, axis) for x, axis in zip((a, b), axes, strict=True))
    letters = "abcdefghijklm", "anopqrstuvwxy"
    left, right = ([*names[: op.rank_of(x)]] for names, x in zip(letters, (a, b), strict=True))
    left[axes[0]] = right[axes[1]] = "z"
    out = [each for each in (*left, *right[1:]) if each != "z"]
    y = op.emit("Einsum", a, b, equation=f"{''.join(left)},{''.join(right)}->{''.join(out)}")
    return y if len(out) > 1 else op.unsqueezed(y, 1)


def _unit(op: KerasLayer, x: str, axis: int) -> str:
    """x by its length along an axis, of at least 1e-6."""
    total = op.emit("ReduceSumSquare", x, [axis], keepdims=1)
    least = op.scalar(1e-12, x)
    return op.emit("Div", x, op.emit("Sqrt", op.emit("Max", total, least)))


@rule("UnitNormalization", masks=True)
def _unit_normalization(op: KerasLayer) -> str:
    axis: Any = op.attribute("axis", -1)
    (axis,) = axis if isinstance(axis, list) else [axis]
    return _unit(op, op.floats, axis % op.rank_of(op.x))


@rule("Attention")
def _attention(op: KerasLayer) -> Made:
    """softmax(query key') value; keys that a mask hides get nothing."""
    query, value, *rest = op.tensors
    op.only(score_mode="dot", **{"use_causal_mask=": False, "return_attention_scores=": False})
    if len(rest) > 1 or any(op.rank_of(each.value) != 3 for each in (query, value, *rest)):
        raise UnsupportedError("expected two or three tensors (N, T, C)")
    key = (rest or [value])[0].value
    scores = op.emit("MatMul", query.value, op.transposed(key, 0, 2, 1))
    if op.flag("use_scale"):
        (scale,) = op.weights("scale")
        scores = op.emit("Mul", scores, op.constant(scale, "scale"))
    if value.mask:
        kept = op.unsqueezed(value.mask, 1)
        hidden = op.emit("Sub", scores, op.scalar(1e9, scores))
        scores = op.emit("Where", kept, scores, hidden)
    y = op.emit("MatMul", op.emit("Softmax", scores, axis=-1), value.value)
    if query.mask:
        y = op.emit("Where", op.unsqueezed(query.mask, 2), y, op.scalar(0, y))
    return Tensor(y, query.mask)


# Functions of ``keras.ops`` that Keras 3 lists among a model's layers: arithmetic, and masks.
#
# They hand on no mask. Formulas: documentation of keras.ops.

_COMPARED = pairs(
    """
    Equal=Equal Less=Less LessEqual=LessOrEqual Greater=Greater GreaterEqual=GreaterOrEqual
    LogicalOr=Or LogicalAnd=And
    """
)
_FUNCTIONS = pairs(
    """
    Relu=relu Sigmoid=sigmoid Tanh=tanh Silu=silu Softplus=softplus Softsign=softsign Selu=selu
    HardSigmoid=hard_sigmoid Exp=exponential
    """
)


def _two_operands(op: KerasLayer) -> tuple[str, str]:
    """Two values of one type; a number becomes one of the other's."""
    arguments = op.arguments
    tensors = [each for each in arguments if isinstance(each, Tensor)]
    numbers = [each for each in arguments if isinstance(each, int | float)]
    if len(arguments) != 2 or not tensors or len(tensors) + len(numbers) != 2:
        raise UnsupportedError("expected two tensors, or one and a number")
    like = tensors[0].value
    if any(type(each) is float for each in numbers) and op.dtype_of(like).kind != "f":
        raise UnsupportedError(f"{op.dtype_of(like)} and {numbers[0]}")
    a, b = (e.value if isinstance(e, Tensor) else op.scalar(e, like) for e in arguments)
    if op.dtype_of(a) != op.dtype_of(b):
        raise UnsupportedError(f"{op.dtype_of(a)} and {op.dtype_of(b)}")
    return a, b


def _operation(op: KerasLayer) -> str:
    a, b = _two_operands(op)
    name = ARITHMETIC[op.at.type]
    if name == "Div" and op.dtype_of(a).kind != "f" or op.dtype_of(a) == "bool":
        raise UnsupportedError(f"of {op.dtype_of(a)}")
    return op.emit(name, a, b)


def _axes(op: KerasLayer) -> list[int] | None:
    axis: Any = op.attribute("axis", None)
    return axis if isinstance(axis, list) or axis is None else [axis]


def _any(op: KerasLayer) -> str:
    axes = _axes(op)
    over = range(op.rank_of(op.x)) if axes is None else axes
    numbers = op.cast(op.cast(op.x, "bool"), "int32")
    top = op.emit("ReduceMax", numbers, over, keepdims=int(op.flag("keepdims")))
    return op.cast(top, "bool")


def _squeeze(op: KerasLayer) -> str:
    axes = _axes(op)
    if axes is None:
        raise UnsupportedError("attribute axis is missing")
    return op.squeezed(op.x, *axes)


def _concatenated(op: KerasLayer) -> str:
    values = [each.value for each in op.tensors]
    return op.emit("Concat", *values, axis=op.integer("axis", 0))


def _filled(op: KerasLayer) -> str:
    """Zeros or ones, as many as a value has elements; bool where that is asked for."""
    dtype = op.config.get("dtype") or op.option("dtype") or op.dtype_of(op.x)
    fill = np.full(1, op.at.type == "OnesLike", str(dtype))
    return op.emit("Expand", op.constant(fill, "fill"), op.emit("Shape", op.x))


OPERATIONS.update(
    {
        **dict.fromkeys(ARITHMETIC, _operation),
        **dict.fromkeys(_COMPARED, lambda op: op.emit(_COMPARED[op.at.type], *_two_operands(op))),
        **dict.fromkeys(_FUNCTIONS, lambda op: apply(op, op.floats, _FUNCTIONS[op.at.type])),
        "NotEqual": lambda op: op.emit("Not", op.emit("Equal", *_two_operands(op))),
        "LogicalNot": lambda op: op.emit("Not", op.x),
        "Any": _any,
        "ExpandDims": lambda op: op.unsqueezed(op.x, *(_axes(op) or [0])),
        "Squeeze": _squeeze,
        "Concatenate": _concatenated,
        "ZerosLike": _filled,
        "OnesLike": _filled,
    }
)
