"""The rules of Keras's recurrent layers, convolutions, pooling and norms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.bodies import NEAREST, channels_first, channels_last, pooled, windowed
from onernn.adapters.keras import rules
from onernn.adapters.keras.read import group_names
from onernn.adapters.keras.table import KerasLayer, Made, Tensor, rule
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.spec import Direction
from onernn.ir.weights import RnnWeights
from onernn.reorders import keras as layout
from onernn.reorders.layers import PivotLayer

# The rules of convolutions and pooling: windows over the axes between samples and channels.
#
# Formulas: documentation of keras.layers of these names.


def _layout(op: KerasLayer) -> tuple[int, bool]:
    """Over how many axes windows go, and whether the channels stand before these."""
    match = re.search(r"([123])D", op.at.type)
    assert match is not None
    axes = int(match[1])
    if op.rank_of(op.x) != axes + 2:
        raise UnsupportedError(f"expected {axes + 2} axes, got {op.rank_of(op.x)}")
    formats = ("channels_last", "channels_first")
    return axes, op.one_of("data_format", formats[0], formats) == "channels_first"


def _pads(op: KerasLayer, kernel: Sequence[int], dilations: Sequence[int]) -> dict[str, Any]:
    padding = op.attribute("padding", "valid")
    if padding == "same" and max(dilations) > 1:  # strides are 1
        added = [dilation * (size - 1) for size, dilation in zip(kernel, dilations, strict=True)]
        return {"pads": (*(each // 2 for each in added), *(each - each // 2 for each in added))}
    if padding == "same":
        return {"auto_pad": "SAME_UPPER"}
    if padding == "causal" and len(kernel) == 1:
        return {"pads": (dilations[0] * (kernel[0] - 1), 0)}
    if padding != "valid":
        raise UnsupportedError(f"attribute padding={padding!r}")
    return {}


def _windows(op: KerasLayer, axes: int, size: str) -> dict[str, Any]:
    """ONNX's attributes of the windows."""
    kernel = op.integers(size, axes, 1)
    strides = op.integers("strides", axes, 1)
    dilations = op.integers("dilation_rate", axes, 1)
    windows = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    if min(kernel + strides + dilations) < 1 or max(strides) > 1 < max(dilations):
        raise UnsupportedError(f"windows of {windows}")
    return {**windows, **_pads(op, kernel, dilations)}


def _kernel(array: Array, axes: int) -> Array:
    """(*kernel, I, O) -> (O, I, *kernel)."""
    if array.ndim != axes + 2:
        raise UnsupportedError(f"kernel: expected {axes + 2} axes, got {array.shape}")
    return array.transpose(axes + 1, axes, *range(axes))


def _each_channel(array: Array, axes: int) -> Array:
    """(*kernel, I, M) -> (I*M, 1, *kernel)."""
    turned = _kernel(array, axes).swapaxes(0, 1)
    return turned.reshape(-1, 1, *turned.shape[2:])


def _bias(op: KerasLayer, y: str, bias: list[Array], first: bool) -> str:
    """The function of a convolution with its bias."""
    shape = (-1, *[1] * (op.rank_of(y) - 2)) if first else (-1,)
    return rules.finished(op, y, [array.reshape(shape) for array in bias])


@rule("Conv1D Conv2D Conv3D")
def _conv(op: KerasLayer) -> str:
    axes, first = _layout(op)
    windows, groups = _windows(op, axes, "kernel_size"), op.integer("groups", 1)
    names = ("kernel", "bias")[: 1 + op.flag("use_bias", True)]
    kernel, *bias = op.weights(*names)
    expected = (*windows["kernel_shape"], op.integer("filters"))
    if (*kernel.shape[:axes], kernel.shape[-1]) != expected:
        raise UnsupportedError(f"kernel: {kernel.shape} for {expected}")
    weights = [
        op.constant(_kernel(kernel, axes), "kernel"),
        *(op.constant(b, "bias") for b in bias),
    ]
    y = windowed(
        op, op.floats, not first, lambda x: op.emit("Conv", x, *weights, group=groups, **windows)
    )
    return _bias(op, y, [], first)


@rule("DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D")
def _depthwise(op: KerasLayer) -> str:
    """Windows over each channel; a separable one has products of all channels behind them."""
    axes, first = _layout(op)
    windows, separable = _windows(op, axes, "kernel_size"), op.at.type.startswith("Separable")
    op.only(groups=1)
    op.ignore("depth_multiplier")
    names = ["kernel|depthwise_kernel", *["pointwise_kernel"] * separable]
    kernel, *others = op.weights(*names, *["bias"] * op.flag("use_bias", True))
    if kernel.shape[:axes] != (*windows["kernel_shape"],):
        raise UnsupportedError(f"kernel: {kernel.shape} for {windows['kernel_shape']}")
    points = others.pop(0) if separable else None
    if points is not None and points.shape[-1] != op.integer("filters"):
        raise UnsupportedError(f"pointwise_kernel: {points.shape}")

    def convolved(x: str) -> str:
        weights = op.constant(_each_channel(kernel, axes), "kernel")
        y = op.emit("Conv", x, weights, group=kernel.shape[axes], **windows)
        if points is None:
            return y
        return op.emit("Conv", y, op.constant(_kernel(points, axes), "points"))

    return _bias(op, windowed(op, op.floats, not first, convolved), others, first)


@rule("MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D AveragePooling3D")
def _pool(op: KerasLayer) -> str:
    axes, first = _layout(op)
    kernel = op.integers("pool_size", axes, 2)
    strides = op.integers("strides", axes, 0)
    strides = strides if any(strides) else kernel
    pads = _pads(op, kernel, [1] * axes)
    if min(kernel + strides) < 1:
        raise UnsupportedError(f"windows of {kernel} and {strides}")
    kind = "max" if op.at.type.startswith("Max") else "avg"
    pool = partial(pooled, op, kind=kind, kernel=kernel, strides=strides, **pads)
    return windowed(op, op.floats, not first, pool)


@rule(
    "GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D"
    " GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D"
)
def _global_pool(op: KerasLayer) -> Made:
    axes, first = _layout(op)
    tensor, kept = op.tensor, int(op.flag("keepdims"))
    over = range(2, axes + 2) if first else range(1, axes + 1)
    if op.at.type == "GlobalAveragePooling1D" and tensor.mask:
        column = op.unsqueezed(tensor.mask, 1 if first else 2)
        x = op.emit("Where", column, op.floats, op.scalar(0, op.floats))
        total = op.emit("ReduceSum", x, over, keepdims=kept)
        count = op.emit("ReduceSum", op.emit("CastLike", column, x), over, keepdims=kept)
        return Tensor(op.emit("Div", total, count))
    name = "ReduceMax" if op.at.type.startswith("GlobalMax") else "ReduceMean"
    return op.emit(name, op.floats, over, keepdims=kept)


@rule("UpSampling1D UpSampling2D UpSampling3D")
def _upsampling(op: KerasLayer) -> str:
    axes, first = _layout(op)
    op.only(interpolation="nearest")
    times = op.integers("size", axes, 2)
    scales = (1.0, 1.0, *times) if first else (1.0, *times, 1.0)
    return op.emit("Resize", op.floats, scales=tuple(map(float, scales)), **NEAREST)


@rule("ZeroPadding1D ZeroPadding2D ZeroPadding3D")
def _zero_padding(op: KerasLayer) -> str:
    begin, end = _around(op, "padding")
    return op.emit("Pad", op.x, [*begin, *end])


@rule("Cropping1D Cropping2D Cropping3D")
def _cropping(op: KerasLayer) -> str:
    begin, end = _around(op, "cropping")
    ends = [-cut if cut else 2**62 for cut in end]
    return op.emit("Slice", op.x, begin, ends, [*range(len(begin))])


def _around(op: KerasLayer, name: str) -> tuple[list[int], list[int]]:
    """Before and behind each axis, from ((before, behind), ...)."""
    axes, first = _layout(op)
    widths: Any = op.attribute(name, None)
    widths = 1 if widths is None else widths
    pairs = [widths] if axes == 1 and isinstance(widths, list) else widths
    pairs = pairs if isinstance(pairs, list) else [pairs] * axes
    pairs = [pair if isinstance(pair, list) else [pair, pair] for pair in pairs]
    numbers = [number for pair in pairs for number in pair]
    if len(numbers) != 2 * axes or not all(type(n) is int and n >= 0 for n in numbers):
        raise UnsupportedError(f"attribute {name}={widths!r}: expected two integers for each axis")
    outside = ([0, 0], []) if first else ([0], [0])
    begin, end = ([*outside[0], *(pair[side] for pair in pairs), *outside[1]] for side in (0, 1))
    return begin, end


# The rules of layers that normalize, at inference.
#
# Formulas: documentation of keras.layers of these names.


def _normalized_axes(op: KerasLayer) -> list[int]:
    axes = op.attribute("axis", None)
    axes = -1 if axes is None else axes
    listed = axes if isinstance(axes, list) else [axes]
    rank = op.rank_of(op.x)
    if not listed or not all(type(axis) is int and -rank <= axis < rank for axis in listed):
        raise UnsupportedError(f"attribute axis={axes!r}: the input has {rank} axes")
    return sorted(axis % rank for axis in listed)


def _affine(op: KerasLayer, *statistics: str) -> dict[str, Array]:
    """The weights of the norm that it has, by their names."""
    names = ["gamma"] * op.flag("scale", True) + ["beta"] * op.flag("center", True)
    return dict(zip([*names, *statistics], op.weights(*names, *statistics), strict=True))


@rule("BatchNormalization", masks=True)
def _batch(op: KerasLayer) -> str:
    """By the statistics that training left."""
    op.only(renorm=False)
    op.ignore("renorm_clipping", "renorm_momentum")
    x, axes = op.floats, _normalized_axes(op)
    if len(axes) != 1:
        raise UnsupportedError(f"attribute axis={axes}: expected one")
    held = _affine(op, "moving_mean", "moving_variance")
    epsilon = op.number("epsilon", 1e-3)
    factor = 1 / np.sqrt(held["moving_variance"].astype(np.float64) + epsilon)
    factor = factor * held["gamma"] if "gamma" in held else factor
    shape = [1] * op.rank_of(x)
    shape[axes[0]] = -1

    def along(array: Array, name: str) -> str:
        return op.constant(array.astype(op.compute).reshape(shape), name)

    y = op.emit(
        "Mul", op.emit("Sub", x, along(held["moving_mean"], "mean")), along(factor, "factor")
    )
    return op.emit("Add", y, along(held["beta"], "beta")) if "beta" in held else y


@rule("LayerNormalization", masks=True)
def _layer_norm(op: KerasLayer) -> str:
    x, axes, rank = op.floats, _normalized_axes(op), op.rank_of(op.x)
    op.only(rms_scaling=False)
    if axes != [*range(axes[0], rank)]:
        raise UnsupportedError(f"attribute axis={axes}: only the last axes, of {rank}")
    held = _affine(op)
    sizes = op.shape_of(x)[axes[0] :]
    if "gamma" not in held and None in sizes:
        raise UnsupportedError("axes of open sizes")
    ones = tuple(size or 1 for size in sizes)
    weights = [
        op.constant(held["gamma"], "gamma")
        if "gamma" in held
        else op.filled(ones, 1, op.compute, "gamma")
    ]
    weights += [op.constant(held["beta"], "beta")] if "beta" in held else []
    return op.emit(
        "LayerNormalization", x, *weights, axis=axes[0], epsilon=op.number("epsilon", 1e-3)
    )


@rule("RMSNormalization")
def _rms(op: KerasLayer) -> str:
    x, axes = op.floats, _normalized_axes(op)
    if axes != [op.rank_of(x) - 1]:
        raise UnsupportedError(f"attribute axis={axes}: only the last one")
    (scale,) = op.weights("scale")
    mean = op.emit("ReduceMean", op.emit("Mul", x, x), [-1], keepdims=1)
    root = op.emit("Sqrt", op.emit("Add", mean, op.scalar(op.number("epsilon", 1e-6), x)))
    return op.emit("Mul", op.emit("Div", x, root), op.constant(scale, "scale"))


@rule("GroupNormalization", masks=True)
def _group(op: KerasLayer) -> str:
    x, axes, rank = op.floats, _normalized_axes(op), op.rank_of(op.x)
    if axes not in ([1], [rank - 1]):
        raise UnsupportedError(f"attribute axis={axes}: expected the first or the last one")
    last = axes == [rank - 1]
    channels = op.shape_of(x)[axes[0]]
    if channels is None:
        raise UnsupportedError("channels of an open number")
    held = _affine(op)
    groups = op.integer("groups", 32)
    groups = channels if groups == -1 else groups
    weights = [
        op.constant(held[name], name)
        if name in held
        else op.filled((channels,), fill, op.compute, name)
        for name, fill in (("gamma", 1), ("beta", 0))
    ]
    x = channels_first(op, x) if last and rank > 2 else x
    epsilon = op.number("epsilon", 1e-3)
    y = op.emit("GroupNormalization", x, *weights, num_groups=groups, epsilon=epsilon)
    return channels_last(op, y) if last and rank > 2 else y


# The steps that a recurrent layer goes through: all of a padded batch, or those of a mask.


class Steps:
    """Every step of (N, T, I). ``given``: what the first cell takes.

    ``all`` makes the output of every step of what an Rnn gives, in time's order; ``reversed`` from
    the end, ``finished`` as Keras has it. ``last``: the output behind the last step of a run.
    ``zeros``: masked steps give zeros, else what the step before gave.
    """

    def __init__(self, op: KerasLayer, x: str, time_major: bool) -> None:
        self._op, self._time_major = op, time_major
        self.given = x if time_major else op.transposed(x, 1, 0, 2)

    def all(self, y: str, backwards: bool, *, zeros: bool) -> str:
        return y

    def reversed(self, y: str) -> str:
        return self._op.flipped(y, 0)

    def finished(self, y: str) -> str:
        return y if self._time_major else self._op.transposed(y, 1, 0, 2)

    def last(self, h: str, backwards: bool, *, zeros: bool, given: bool) -> str:
        return h


class _Table(NamedTuple):
    """Of a mask: of each sequence the words and where they begin, of each step those up to it."""

    flags: str
    some: str
    far: str
    counts: str
    starts: str
    offsets: str


class Masked(Steps):
    """The steps where a mask is true, of each sequence behind one another: a ragged batch."""

    def __init__(self, op: KerasLayer, tensor: Tensor, width: int) -> None:
        self._op = op
        x, mask, words = tensor
        tables = op.lowering.tables
        if mask not in tables:
            tables[mask] = _table(op, mask)
        self._table: _Table = tables[mask]
        if not words:
            rows = op.reshaped(x, -1, width)
            chosen = op.reshaped(mask, -1)
            words = op.emit("Compress", rows, chosen, axis=0)
            words = op.emit("SequenceReset", words, self._table.offsets)
        self.given = words

    def all(self, y: str, backwards: bool, *, zeros: bool) -> str:
        """Row 0 of a table is zeros, the words come behind; each step takes one of them."""
        op, table = self._op, self._table
        data = op.emit("SequenceData", y)
        width = op.shape_of(data)[-1]
        begin = op.filled((1, width or 1), 0, op.compute, "zeros")
        rows = op.joined(begin, data)
        starts = op.unsqueezed(table.starts, 1)
        if backwards:  # the first word at or behind a step, as long as there is one
            before = op.emit("Sub", table.far, table.some)
            place = op.emit("Add", op.emit("Add", starts, before), [1])
            left = op.emit("Sub", op.unsqueezed(table.counts, 1), before)
            reached = op.emit("Greater", left, [0])
        else:
            place = op.emit("Add", starts, table.far)
            reached = op.emit("Greater", table.far, [0])
        at = op.emit("Where", table.flags if zeros else reached, place, [0])
        return op.emit("Gather", rows, at, axis=0)

    def reversed(self, y: str) -> str:
        return self._op.flipped(y, 1)

    def finished(self, y: str) -> str:
        return y

    def last(self, h: str, backwards: bool, *, zeros: bool, given: bool) -> str:
        """Where a sequence has no words Keras gives zeros, whatever its initial state is."""
        op, table = self._op, self._table
        if zeros:
            end = op.constant(np.array(0 if backwards else -1), "end")
            kept = op.emit("Gather", table.flags, end, axis=1)
        elif given:
            kept = op.emit("Greater", table.counts, [0])
        else:
            return h
        return op.emit("Where", op.unsqueezed(kept, 1), h, op.scalar(0, h))


def _table(op: KerasLayer, mask: str) -> _Table:
    some = op.cast(mask, "int64")
    counts = op.emit("ReduceSum", some, [1], keepdims=0)
    ends = op.emit("CumSum", counts, [0])
    return _Table(
        mask,
        some,
        op.emit("CumSum", some, [1]),
        counts,
        op.emit("Sub", ends, counts),
        op.joined([0], ends),
    )


# The rules of SimpleRNN, LSTM, GRU, RNN of their cells, and Bidirectional.
#
# Formulas: documentation and source of keras.layers of these names. Where Keras's backends differ,
# what TensorFlow's does: see design/0056.

_CELLS = ("SimpleRNNCell", "LSTMCell", "GRUCell")


class _Layer(NamedTuple):
    """A recurrent layer: its cells from the lowest one, and how it goes through the steps."""

    cells: tuple[PivotLayer, ...]
    backwards: bool
    sequences: bool
    gives_states: bool
    stateful: bool
    zeros: bool
    time_major: bool
    unrolled: bool

    @property
    def widths(self) -> list[int]:
        """Of each state, in Keras's order."""
        return [cell.spec.hidden_size for cell in self.cells for _ in cell.spec.cell.states]


class _Made(NamedTuple):
    """``y``: of every step, in time's order; ``last`` of those that the layer went through."""

    y: str
    last: str
    states: tuple[str, ...]


def _cell(op: KerasLayer, inside: str = "") -> PivotLayer:
    """A cell, or what a layer of one cell says of it; its weights are ``inside``."""
    kind = op.at.type.removesuffix("Cell")
    units = op.integer("units")
    biased = op.flag("use_bias", True)
    names = ("kernel", "recurrent_kernel", "bias")[: 2 + biased]
    arrays = dict(zip(names, op.weights(*names, inside=inside), strict=True))
    gate = "hard_sigmoid" if op.major < 3 else "sigmoid"  # old files do not say
    chosen = [op.config.get("activation", "tanh")]
    op.ignore("activation")
    if kind != "SimpleRNN":
        chosen = [op.config.get("recurrent_activation", gate), *chosen, *chosen[: kind == "LSTM"]]
        op.ignore("recurrent_activation")
    functions = [rules.of_gates(each, op.major) for each in chosen]
    for each, function in zip(chosen, functions, strict=True):
        if function is None:
            name = rules.name_of(each)
            raise UnsupportedError(f"{op.at.type} with {name}: no such gate or state is run")
    reset_after = None
    if kind == "GRU":
        after = biased and arrays["bias"].ndim == 2  # Keras before 2.1.4 knows no reset_after
        reset_after = op.flag("reset_after", after)
    known = tuple(function for function in functions if function is not None)
    plain = known[0].name if known[0].name in ("tanh", "relu", "sigmoid") else "tanh"
    layer = layout.read(arrays, reset_after=reset_after, function=plain, activations=known)
    expected = {"SimpleRNN": 1, "LSTM": 4, "GRU": 3}[kind]
    if layer.spec.hidden_size != units or layer.spec.gates != expected:
        raise UnsupportedError(f"attribute units={units}: the weights are those of {layer.spec}")
    return layer


def _cells(op: KerasLayer) -> tuple[PivotLayer, ...]:
    """Those of RNN's attribute cell."""
    config = op.attribute("cell", None)
    if isinstance(config, list):
        raise UnsupportedError("attribute cell: expected one cell")
    cell = op.inner(config, "cell")
    held = [cell]
    if cell.at.type == "StackedRNNCells" and not cell.layer.foreign:
        cell.only(reverse_state_order=False)
        listed = cell.attribute("cells", None)
        groups = group_names(each["class_name"] for each in listed)
        held = [
            cell.inner(each, "cells", group) for each, group in zip(listed, groups, strict=True)
        ]
        cell.read(lambda _: None)
    if not held:
        raise UnsupportedError("StackedRNNCells without cells")
    for each in held:
        if each.at.type not in _CELLS or each.layer.foreign:
            raise UnsupportedError(f"cell {each.at.type}: not known")
    return tuple(each.read(_cell) for each in held)


def _layer(op: KerasLayer) -> _Layer:
    """What a recurrent layer says of itself."""
    if op.layer.foreign:
        raise UnsupportedError(f"{op.at.type} of {op.layer.module}: a class of its user")
    if op.at.type == "RNN":
        cells = _cells(op)
    elif f"{op.at.type}Cell" in _CELLS:
        cells = (_cell(op, "cell"),)
    else:
        raise UnsupportedError(f"around {op.at.type}: only recurrent layers are known")
    return _Layer(
        cells,
        op.flag("go_backwards"),
        op.flag("return_sequences"),
        op.flag("return_state"),
        op.flag("stateful"),
        op.flag("zero_output_for_mask"),
        op.flag("time_major"),
        op.flag("unroll"),
    )


def _through(op: KerasLayer, layer: _Layer, steps: Steps, states: Sequence[str]) -> _Made:
    """Runs the cells over all steps, one cell after the other."""
    side: Direction = "right2left" if layer.backwards else "left2right"
    y, finals, left = steps.given, list[str](), list(states)
    for spec, weights in layer.cells:
        count = len(spec.cell.states)
        begin = [op.unsqueezed(left.pop(0), 0, 1) for _ in range(count) if left]
        y, *ends = op.emit_many(
            "Rnn", 1 + count, y, *begin, spec=replace(spec, direction=side), weights=weights[0]
        )
        last = len(finals)
        finals += [op.squeezed(end, 0, 1) for end in ends]
    return _Made(y, finals[last], tuple(finals))


def _steps(op: KerasLayer, layer: _Layer, tensor: Tensor) -> Steps:
    if op.rank_of(tensor.value) != 3:
        raise UnsupportedError(f"expected (N, T, I), got {op.rank_of(tensor.value)} axes")
    width = layer.cells[0].spec.input_size
    if not tensor.mask:
        return Steps(op, tensor.value, layer.time_major)
    if layer.unrolled and layer.zeros:
        raise UnsupportedError(
            "unroll=True and zeros where a mask is: Keras's backends give different numbers"
        )
    if layer.time_major:
        raise UnsupportedError("time_major=True with a mask")
    return Masked(op, tensor, width)


def _called(op: KerasLayer, layers: Sequence[_Layer]) -> tuple[Tensor, list[str]]:
    """(the input, the initial states): tensors behind the first one are states, too."""
    called_with = op.arguments[0] if isinstance(op.arguments[0], list) else [op.arguments[0]]
    initial = op.option("initial_state")
    initial = initial if isinstance(initial, list) or initial is None else [initial]
    states = _flat([*called_with[1:], *op.arguments[1:2], *(initial or ())])
    if len(op.arguments) > 2 or not all(
        isinstance(each, Tensor) for each in (called_with[0], *states)
    ):
        raise UnsupportedError("called with something else than tensors of steps and of states")
    tensor, *states = (op.computed(each) for each in (called_with[0], *states))
    count = sum(len(layer.widths) for layer in layers)
    if states and len(states) != count:
        raise UnsupportedError(f"called with {len(states)} states, the layer has {count}")
    return tensor, [each.value for each in states]


def _flat(nested: Sequence[Any]) -> list[Any]:
    return [one for each in nested for one in (_flat(each) if isinstance(each, list) else [each])]


def _begin(op: KerasLayer, layer: _Layer, tensor: Tensor, path: str) -> list[str]:
    """The states of a stateful layer: values that come from outside, and go out again."""
    if not layer.stateful:
        return []
    batch = op.shape_of(tensor.value)[1 if layer.time_major else 0]
    state = op.lowering.state
    return [
        state(f"{path}/state{at}", (batch, width), op.compute)
        for at, width in enumerate(layer.widths)
    ]


@rule("SimpleRNN LSTM GRU RNN")
def _recurrent(op: KerasLayer) -> list[Tensor]:
    return _given(op, [_layer(op)], [op.path], "concat")


@rule("Bidirectional")
def _bidirectional(op: KerasLayer) -> list[Tensor]:
    merge = op.config.get("merge_mode", "concat")
    op.ignore("merge_mode")
    config = op.attribute("layer", None)
    behind = op.config.get("backward_layer")
    op.ignore("backward_layer")
    if behind is None:
        turned = not config["config"].get("go_backwards")
        behind = {**config, "config": {**config["config"], "go_backwards": turned}}
    first = op.inner(config, "forward_layer").read(_layer)
    second = op.inner(behind, "backward_layer").read(_layer)
    if first.backwards == second.backwards or first[2:5] != second[2:5]:
        raise UnsupportedError("its layers go the same way, or give different things")
    # Keras sets it, whatever the layers say.
    sides = [side._replace(zeros=side.sequences) for side in (first, second)]
    return _given(op, sides, [f"{op.path}/forward", f"{op.path}/backward"], merge)


def _given(
    op: KerasLayer, sides: Sequence[_Layer], paths: Sequence[str], merge: Any
) -> list[Tensor]:
    """What a layer, or both of its directions, give; ``paths``: those of their states."""
    tensor, states = _called(op, sides)
    mask = tensor.mask  # of the output, too
    if states and op.major > 2 and not op.masked_by_call:
        # Keras 3 looks for the mask of a tensor only if a layer is called with no other tensors.
        tensor = Tensor(tensor.value)
    steps, *_ = [_steps(op, side, tensor) for side in sides]  # refuses what either cannot
    first, half = sides[0], len(sides[0].widths)
    begins = [states[:half], states[half:]]
    if not states:
        begins = [_begin(op, side, tensor, path) for side, path in zip(sides, paths, strict=True)]
    runs = list(zip(sides, begins, strict=False))
    mades = _paired(op, sides, steps, begins) if len(sides) > 1 else []
    mades = mades or [_through(op, side, steps, begin) for side, begin in runs]
    ys = []
    for (side, begin), made, path in zip(runs, mades, paths, strict=True):
        for index, end in enumerate(made.states if side.stateful else ()):
            op.lowering.keep(f"{path}/state{index}", end)
        if side.sequences:
            ys.append(steps.all(made.y, side.backwards, zeros=side.zeros))
        else:  # of the step that the layer came to last
            last = steps.last(made.last, side.backwards, zeros=side.zeros, given=bool(begin))
            ys.append(last)
    finals = [Tensor(each) for made in mades for each in made.states if first.gives_states]
    if not first.sequences:
        return [*map(Tensor, _merged(op, merge, ys)), *finals]
    # All are in time's order; Keras turns the second one's, as that layer gave it, around.
    ys = [steps.reversed(y) for y in ys] if first.backwards else ys
    plain = tensor.mask and merge and not first.backwards
    words = _merged(op, merge, [made.y for made in mades])[0] if plain else ""
    outputs = (Tensor(steps.finished(y), mask, words) for y in _merged(op, merge, ys))
    return [*outputs, *finals]


def _paired(
    op: KerasLayer, sides: Sequence[_Layer], steps: Steps, begins: Sequence[Sequence[str]]
) -> list[_Made]:
    """Both directions as one layer where only last states are asked for; [] where that cannot be.

    Where all steps are, a pass pairs the directions: they are joined right behind.
    """
    cells = [cell for side in sides for cell in side.cells]
    (spec, (first,)), (other, (second,)) = cells[0], cells[-1]
    alike = spec == other and (first.bias is None) == (second.bias is None)
    if len(cells) > 2 or not alike or sides[0].backwards or sides[0].sequences:
        return []
    axes = op.ints(0, 1)
    states = [
        op.emit("Concat", *(op.emit("Unsqueeze", state, axes) for state in pair), axis=1)
        for pair in zip(*begins, strict=True)
    ]
    y, *ends = op.emit_many(
        "Rnn",
        1 + len(spec.cell.states),
        steps.given,
        *states,
        spec=replace(spec, direction="bidirectional_concat"),
        weights=RnnWeights.joined([first, second], 1),
    )
    mades = []
    for side in range(2):
        at = op.constant(np.array(side), "side")
        own = tuple(op.squeezed(op.emit("Gather", end, at, axis=1), 0) for end in ends)
        mades.append(_Made(y, own[0], own))
    return mades


def _merged(op: KerasLayer, merge: Any, ys: Sequence[str]) -> list[str]:
    if merge is None or len(ys) == 1:
        return list(ys)
    match merge:
        case "concat":
            return [op.emit("Concat", *ys, axis=-1)]
        case "sum":
            return [op.emit("Add", *ys)]
        case "mul":
            return [op.emit("Mul", *ys)]
        case "ave":
            total = op.emit("Add", *ys)
            return [op.emit("Mul", total, op.constant(np.array(0.5, op.compute), "half"))]
    raise UnsupportedError(f"attribute merge_mode={merge!r}")
