"""Rules for Keras's layers that compute element by element, join and reshape.

A rule turns one layer into onernn's canonical operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from onernn.adapters.common.bodies import FORMULAS, channels_last
from onernn.adapters.common.files import pairs
from onernn.adapters.common.signatures import refuse
from onernn.adapters.keras.read import MODELS, Layer, inner_layer, network
from onernn.adapters.keras.table import FIX_SIZE, PASSING, Held, KerasTensor, keras
from onernn.ir.activations import NAMES
from onernn.ir.arrays import Array
from onernn.ir.spec import Activation

# Activation functions by their names in configurations.
#
# Formulas: documentation of keras.activations. hard_sigmoid is x / 6 + 0.5 between 0 and 1 in
# Keras 3, and 0.2 x + 0.5 before.

_LIKE = {"swish": "silu", "hard_swish": "hard_silu", "keras_relu6": "relu6"}


def name_of(activation: Any) -> str:
    """Returns the name of Keras's own function. Raises `UnsupportedError` for a user's function."""
    if activation is None:
        return "linear"
    if isinstance(activation, dict):
        name, known = activation.get("config"), (None, "function", activation.get("config"))
        if (
            activation.get("class_name") != "function"
            or activation.get("module") not in ("keras.activations", "builtins")
            or activation.get("registered_name") not in known
        ):
            refuse(f"activation {name!r:.100}: expected a function of Keras, got a user's function")
        activation = name
    if not isinstance(activation, str):
        refuse(f"activation {activation!r:.100}: expected a name")
    return _LIKE.get(activation, activation)


def of_gates(activation: Any, major: int) -> Activation | None:
    """Returns the activation function of a gate, None if onernn's layers do not have it."""
    name = name_of(activation)
    known = {
        "linear": Activation("identity"),
        "hard_sigmoid": Activation("hardsigmoid", 1 / 6 if major > 2 else 0.2, 0.5),
        "leaky_relu": Activation("leakyrelu", 0.2),
        "elu": Activation("elu", 1.0),
    }
    plain = ("sigmoid", "tanh", "relu", "softsign", "softplus")
    return Activation(name) if name in plain else known.get(name)


def apply(x: KerasTensor, activation: Any) -> KerasTensor:
    """Applies an activation function. Raises `UnsupportedError` for an unknown function."""
    gate = of_gates(activation, x.op.major)
    if gate is None:
        name = name_of(activation)
        return (
            _ACTIVATIONS[name](x)
            if name in _ACTIVATIONS
            else refuse(f"activation {name!r}: not known, expected a built-in function of Keras")
        )
    if gate.name == "identity":
        return x
    numbers = zip(("alpha", "beta"), gate[1:], strict=True)
    result: KerasTensor = getattr(x, NAMES[gate.name])(
        **{name: number for name, number in numbers if number is not None}
    )
    return result


_KEEPS_INTEGERS = ("hard_tanh", "linear", "relu", "relu6")


def activate(x: KerasTensor, activation: Any) -> KerasTensor:
    """Applies an activation function; integers become floats. Raises `UnsupportedError` if Keras
    keeps integers.
    """
    keeps = name_of(activation) in _KEEPS_INTEGERS
    return apply(x.checked_floats if keeps else x.floats, activation)


def finish(y: KerasTensor, bias: Sequence[Array], activation: Any) -> KerasTensor:
    """Adds the bias, if there is one, and applies the layer's activation function."""
    for array in bias:
        y = y.Add(array)
    return apply(y, activation)


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "exponential": lambda x: x.Exp(),
    "softmax": lambda x: x.Softmax(axis=-1),
    "log_softmax": lambda x: x.LogSoftmax(axis=-1),
    "relu6": lambda x: x.Clip(0.0, 6.0),
    "hard_tanh": lambda x: x.Clip(-1.0, 1.0),
    "selu": lambda x: x.Selu(),
    "gelu": lambda x: x.Gelu(),
    "celu": lambda x: x.Celu(),
    "hard_silu": lambda x: x * x.HardSigmoid(alpha=1 / 6, beta=0.5),
    **{name: FORMULAS[name] for name in ("silu", "mish", "log_sigmoid")},
    "tanh_shrink": lambda x: x - x.Tanh(),
}


# Rules for activations, for layers that do nothing at inference, and for layers that make masks.
#
# Formulas: documentation of keras.layers of these names.


@keras(
    "Dropout SpatialDropout1D SpatialDropout2D GaussianDropout GaussianNoise AlphaDropout"
    " ActivityRegularization Identity",
    masks=True,
)
def rest(x, *, data_format=None):
    """Returns x: these layers have an effect only in training."""
    return x


@keras("Activation", masks=True)
def activation(x, *, activation=None):
    return activate(x, activation)


@keras("ReLU", masks=True)
def relu(x, *, max_value=None, negative_slope=0.0, threshold=0.0, op):
    """Returns x, limited to max_value, for x >= threshold, and negative_slope * (x - threshold) for
    smaller x.
    """
    x = x.checked_floats
    if threshold:
        low = x.Sub(threshold).Mul(negative_slope)
        y = x.GreaterOrEqual(threshold).Where(x, low)
    else:
        y = x.LeakyRelu(alpha=negative_slope) if negative_slope else x.Relu()
    return y if max_value is None else y.Min(op.number("max_value", 0.0))


@keras("LeakyReLU", masks=True)
def leaky_relu(x, *, alpha=0.3, negative_slope=None, op):
    """Applies a leaky ReLU. Keras 2 calls the slope alpha."""
    slope = alpha if negative_slope is None else op.number("negative_slope", 0.0)
    return x.floats.LeakyRelu(alpha=slope)


@keras("Rescaling")
def rescaling(x, *, scale=1.0, offset=0.0, op):
    """Returns x * scale + offset. Keras 2 drops the mask."""
    return (x.floats * scale + offset).under(x.flags if op.major > 2 else None)


@keras("ELU", masks=True)
def elu(x, *, alpha=1.0):
    return x.floats.Elu(alpha=alpha)


@keras("ThresholdedReLU", masks=True)
def thresholded_relu(x, *, theta=1.0):
    return x.floats.ThresholdedRelu(alpha=theta)


@keras("PReLU", masks=True)
def prelu(x, *, shared_axes=None, op):
    return x.floats.PRelu(*op.weights("alpha"))


def one_axis(x: KerasTensor, axis: Any) -> int:
    """Returns an axis of x, which Keras may write as a list of one."""
    axes = axis if isinstance(axis, list) else [axis]
    if len(axes) != 1 or type(axes[0]) is not int or not -x.rank <= axes[0] < x.rank:
        refuse(f"attribute axis={axis!r}: expected one axis of {x.rank}")
    return axes[0] % x.rank


@keras("Softmax", masks=True)
def softmax(x, *, axis=None, robust_masking=False):
    if x.mask:
        refuse("its input has a mask: expected none")
    return x.floats.Softmax(axis=one_axis(x, -1 if axis is None else axis))


@keras("Masking")
def masking(x, *, mask_value=0.0):
    """Masks the steps in which every value is ``mask_value``, and sets them to zeros."""
    some = x.Equal(x.scalar(mask_value)).Not().cast("int32").ReduceMax([-1], keepdims=0)
    mask = some.cast(bool)
    return mask.unsqueeze(-1).Where(x, x.scalar(0)).under(mask)


@keras("Embedding")
def embedding(x, *, output_dim=None, mask_zero=False, sparse=False, op):
    ids = x if x.dtype in ("int32", "int64") else x.cast("int32")
    (table,) = op.weights("embeddings")
    y = ids.constant(table).Gather(ids, axis=0, non_negative=1)
    return y.under(x.Equal(x.scalar(0)).Not()) if mask_zero else y


# Rules for dense layers, and for layers that change a shape.
#
# Formulas: documentation of keras.layers of these names.


@keras("Dense", masks=True)
def dense(x, *, units, use_bias=True, activation=None, op):
    kernel, *bias = op.weights("kernel", *["bias"] * use_bias)
    if kernel.ndim != 2 or kernel.shape[1] != units:
        refuse(f"kernel: expected (I, {units}), got {kernel.shape}")
    return finish(x.floats.MatMul(kernel), bias, activation)


@keras("EinsumDense")
def einsum_dense(x, *, equation="", bias_axes="", activation=None, output_shape=None, op):
    kernel, *bias = op.weights("kernel", *["bias"] * bool(bias_axes))
    return finish(x.floats.Einsum(kernel, equation=equation), bias, activation)


@keras("Flatten")
def flatten(x, *, data_format="channels_last"):
    if data_format == "channels_first" and x.rank > 2:
        x = channels_last(x)
    return x.reshape(0, -1)


@keras("Reshape")
def reshape(x, *, target_shape=()):
    if not all(type(size) is int and (size > 0 or size == -1) for size in target_shape):
        refuse(f"attribute target_shape={target_shape!r}: expected sizes of 1 or more, or -1")
    return x.reshape(0, *target_shape)


@keras("Permute")
def permute(x, *, dims=()):
    if sorted(dims) != [*range(1, x.rank)]:
        refuse(f"attribute dims={dims!r}: expected each of 1 to {x.rank - 1} once")
    return x.transpose(0, *dims)


@keras("RepeatVector")
def repeat_vector(x, *, n):
    if x.rank != 2:
        refuse(f"expected (N, C), got {x.rank} axes")
    return x.unsqueeze(1).Tile([1, n, 1])


_MASKED = (
    "SimpleRNN LSTM GRU RNN Bidirectional TimeDistributed GlobalAveragePooling1D Softmax Attention"
    " Multiply Maximum Minimum"
).split()
"""Layers whose results depend on a mask."""


def _reads_masks(inner: Layer, major: int) -> bool:
    """Returns whether a layer inside TimeDistributed depends on the mask of the steps.

    If the inner layer's call takes a mask, Keras 3 calls it with the mask of one step. Keras 2
    raises an error for an inner layer that does not pass on masks.
    """
    if inner.kind in MODELS and not inner.foreign and major > 2:
        return any(_reads_masks(each, major) for each in network(inner, major).layers.values())
    if inner.kind in (*_MASKED, *MODELS) or inner.foreign:
        return True
    return major < 3 and inner.kind not in PASSING


@keras("TimeDistributed")
def time_distributed(x, *, layer=None, op):
    """Applies a layer to each step. All steps of all samples form one batch."""
    held = op.layer.weights
    inner = inner_layer(layer, held and held.inside("layer"), position=op.layer.position)
    op.wraps = True
    masks, flags = "", x.flags
    if flags and _reads_masks(inner, op.major):
        plain = inner.kind in _MASKED or op.major > 2 and inner.kind in MODELS
        if flags.rank != 3 or flags.shape[2:] != x.shape[2:3] or inner.foreign or not plain:
            refuse(f"around {inner.kind}: expected an input without a mask, or a mask (N, S, T)")
        masks = flags.reshape(-1, *_list_sizes(x.shape[2:3])).name
        if op.major < 3:  # masked if all of its own steps are masked
            flags = flags.cast("int32").ReduceMax([-1], keepdims=0).cast(bool)

    def apply_to(value: KerasTensor) -> KerasTensor:
        path, stateful = f"{op.path}/{inner.name}", len(op.lowering.stateful)
        results = op.lowering.apply(inner, [Held(value.name, masks)], {}, path, 0, op.depth)
        if len(op.lowering.stateful) > stateful:
            refuse(f"around {inner.kind}: expected no stateful layer, its steps share a state")
        if len(results) != 1 or results[0].mask and op.major < 3:
            refuse(f"around {inner.kind}: expected one result without a mask, got {len(results)}")
        return x.new(results[0].value)

    if inner.kind in ("Dense", "Activation", "Dropout"):  # these layers read only the last axis
        return apply_to(x).under(flags)
    _, time, *sizes = x.shape
    y = apply_to(x.reshape(-1, *_list_sizes(sizes)))
    after = _list_sizes(y.shape[1:])
    if time is None:
        begin = x.Shape().Slice([0], [2], [0], [1])
        return y.Reshape(begin.join(after) if after else begin).under(flags)
    return y.reshape(-1, time, *after).under(flags)


def _list_sizes(sizes: Sequence[int | None]) -> list[Any]:
    if None in sizes:
        refuse(f"sizes {sizes} after the steps: expected known sizes{FIX_SIZE}")
    return [*sizes]


# Rules for layers that join several tensors.
#
# Formulas: documentation of keras.layers of these names.

ARITHMETIC = pairs("Add=Add Subtract=Sub Multiply=Mul Maximum=Max Minimum=Min")


def _operands(tensors: Sequence[KerasTensor]) -> list[KerasTensor]:
    """Returns the tensors with equal numbers of axes. New axes come after the first axis."""
    if len({each.dtype for each in tensors}) > 1:
        refuse(f"expected tensors of one type, got {sorted({str(each.dtype) for each in tensors})}")
    most = max(each.rank for each in tensors)
    return [
        each.unsqueeze(*range(1, 1 + most - each.rank)).under(each.flags)
        if each.rank < most
        else each
        for each in tensors
    ]


def _chain(kind: str, values: Sequence[KerasTensor]) -> KerasTensor:
    return reduce(lambda a, b: getattr(a, kind)(b), values)


def _mask(tensors: Sequence[KerasTensor]) -> KerasTensor | None:
    """Returns the combined mask. Keras 3 combines masks by "or" if every tensor has a mask; Keras 2
    combines them by "and".
    """
    major = tensors[0].op.major
    masks = [each.flags for each in tensors if each.flags]
    if not masks or major > 2 and len(masks) < len(tensors):
        return None
    kind = "Or" if major > 2 else "And"
    return reduce(lambda a, b: a if a.name == b.name else getattr(a, kind)(b), masks)


@keras("Add Subtract")
def arithmetic(*tensors, op):
    operands = _operands(tensors)
    return _chain(ARITHMETIC[op.at.type], operands).under(_mask(operands))


@keras("Multiply Maximum Minimum")
def arithmetic_of_unmasked(*tensors, op):
    """Combines tensors element by element. For files of Keras 3, leaves masked steps out, like
    Keras 3.4 and later. Multiply then returns 0 for a step that is masked in every tensor.
    """
    operands, kind = _operands(tensors), ARITHMETIC[op.at.type]
    flags = [x.step_flags if op.major > 2 else None for x in operands]
    masks = [each and each.unsqueeze(-1) for each in flags]
    if any(masks) and op.version < (3, 4):
        refuse(
            f"{op.at.type} of tensors with masks: expected a file of Keras 3.4 or newer, which"
            f" leaves masked steps out, got Keras {op.version[0]}.{op.version[1]}; save it again"
        )
    if any(mask and x.rank != 3 for x, mask in zip(operands, masks, strict=True)):
        refuse(f"{op.at.type} of tensors with masks: expected (N, T, C) each")
    mask = _mask(operands)
    if kind == "Mul":
        y = _chain(
            "Mul",
            [
                own.Where(x, x.scalar(1)) if own else x
                for x, own in zip(operands, masks, strict=True)
            ],
        )
        y = mask.unsqueeze(-1).Where(y, y.scalar(0)) if any(masks) and mask else y
        return y.under(mask)
    y, known = operands[0], masks[0]
    for x, own in zip(operands[1:], masks[1:], strict=True):
        x = own.Where(x, y) if own else x
        y = known.Where(y, x) if known else y
        y = getattr(y, kind)(x)
        known = known.Or(own) if known and own else None
    return y.under(mask)


@keras("Average")
def average(*tensors):
    operands = _operands(tensors)
    total = _chain("Add", operands).floats
    return total.Div(total.scalar(len(operands))).under(_mask(operands))


@keras("Concatenate")
def concatenate(*tensors, axis=-1, op):
    first, *others = tensors
    place = axis % first.rank if -first.rank <= axis < first.rank else axis
    y, masks = first.Concat(*others, axis=axis), [each.flags for each in tensors]
    if not any(masks) or place == first.rank - 1:
        return y.under(_mask(tensors))
    if place != 1 or op.major < 3 and not all(masks):
        refuse(f"attribute axis={axis} with masks: expected the last axis, or 1 and all masks")
    flags = [
        each.flags or each.constant(np.full(1, True)).Expand(each.Shape().Slice([0], [2], [0]))
        for each in tensors
    ]
    return y.under(flags[0].Concat(*flags[1:], axis=1))


@keras("Dot")
def dot(*tensors, axes=None, normalize=False):
    """Multiplies two tensors and sums over an axis of each, sample by sample."""
    both = list(zip(tensors, axes if isinstance(axes, list) else [axes] * 2, strict=True))
    places = [one_axis(x, axis) for x, axis in both]
    if min(places) < 1:
        refuse(f"attribute axes={axes!r}: expected axes other than 0, the samples")
    a, b = (_normalize(x, at) if normalize else x for x, at in zip(tensors, places, strict=True))
    left, right = [*"abcdefghijklm"[: a.rank]], [*"anopqrstuvwxy"[: b.rank]]
    left[places[0]] = right[places[1]] = "z"
    out = [each for each in (*left, *right[1:]) if each != "z"]
    y = a.Einsum(b, equation=f"{''.join(left)},{''.join(right)}->{''.join(out)}")
    return y if len(out) > 1 else y.unsqueeze(1)


def _normalize(x: KerasTensor, axis: int) -> Any:
    """Divides x by its norm along an axis, or by 1e-6 if the norm is smaller."""
    return x / x.ReduceSumSquare([axis], keepdims=1).Max(1e-12).Sqrt()


@keras("UnitNormalization", masks=True)
def unit_normalization(x, *, axis=None):
    return _normalize(x.floats, one_axis(x, -1 if axis is None else axis))


@keras("Attention AdditiveAttention", score_mode="dot", **{"return_attention_scores=": False})
def attention(*tensors, use_scale=False, op):
    """Returns softmax(scores) value. The scores are query key', or the sums of tanh(query + key).

    Masked keys get no weight. With use_causal_mask, later keys get no weight either.
    """
    query, value, *others = tensors
    if len(others) > 1 or any(each.rank != 3 for each in tensors):
        ranks = [each.rank for each in tensors]
        refuse(f"expected two or three tensors (N, T, C), got tensors of {ranks} axes")
    key = (others or [value])[0]
    scale = op.weights("scale") if use_scale else []
    if op.at.type == "Attention":
        scores = query @ key.transpose(0, 2, 1)
        scores = scores.Mul(*scale) if scale else scores
    else:
        both = (query.unsqueeze(2) + key.unsqueeze(1)).Tanh()
        scores = (both.Mul(*scale) if scale else both).ReduceSum([-1], keepdims=0)
    kept = [value.step_flags.unsqueeze(1)] if value.step_flags else []
    if op.option("use_causal_mask"):
        kept.append(scores.scalar(1).Expand(scores.Shape()).Trilu(upper=0).cast(bool))
    if kept:
        scores = reduce(lambda a, b: a.And(b), kept).Where(scores, scores - 1e9)
    y = scores.Softmax(axis=-1) @ value
    if query.step_flags:
        y = query.flags.unsqueeze(2).Where(y, y.scalar(0))
    return y.under(query.flags)
