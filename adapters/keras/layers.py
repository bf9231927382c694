"""Rules for Keras's recurrent layers, convolutions, pooling and norms.

A rule turns one layer into onernn's canonical operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.bodies import (
    NEAREST,
    each_axis,
    over_channels,
    pool_windows,
    same_pads,
)
from onernn.adapters.common.signatures import OneOf, Signature, refuse
from onernn.adapters.keras import rules
from onernn.adapters.keras.read import group_names
from onernn.adapters.keras.table import FIX_SIZE, KerasLayer, KerasTensor, Stated, keras
from onernn.ir.arrays import Array
from onernn.ir.spec import Direction
from onernn.ir.weights import RnnWeights
from onernn.reorders import keras as layout
from onernn.reorders.layers import PivotLayer

# Rules for convolutions and pooling, with windows over the axes between samples and channels.
#
# Formulas: documentation of keras.layers of these names.

_LAST = OneOf("channels_last", {"channels_last": True, "channels_first": False})
"""Whether the channels are the last axis."""


def _axes(x: KerasTensor) -> int:
    axes = 1 if "1D" in x.op.at.type else 2
    if x.rank != axes + 2:
        refuse(f"expected {axes + 2} axes, got {x.rank}")
    return axes


def _pads(padding: str, kernel: Sequence[int], dilations: Sequence[int]) -> dict[str, Any]:
    match padding:
        case "valid":
            return {}
        case "same" if max(dilations) > 1:  # then `_windows` allows no strides
            return {"pads": same_pads(kernel, dilations)}
        case "same":
            return {"auto_pad": "SAME_UPPER"}
        case "causal" if len(kernel) == 1:
            return {"pads": (dilations[0] * (kernel[0] - 1), 0)}
    return refuse(f"attribute padding={padding!r}: expected valid, same, or causal for one axis")


def _windows(axes: int, padding: str, size: Any, strides: Any, dilations: Any) -> dict[str, Any]:
    kernel, strides, dilations = (each_axis(each, axes) for each in (size, strides, dilations))
    windows = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    if min(kernel + strides + dilations) < 1 or max(strides) > 1 < max(dilations):
        refuse(f"{windows}: expected 1 or more, and strides or dilations of 1")
    return {**windows, **_pads(padding, kernel, dilations)}


def _kernel(array: Array, windows: dict[str, Any], last: int, *, each: bool = False) -> Array:
    """Returns weights (*kernel, I, O) as (O, I, *kernel).

    ``each``: whether each channel has its own weights (*kernel, I, M), which become (I*M, 1,
    *kernel). ``last``: the expected last size, 0 for any.
    """
    sizes = windows["kernel_shape"]
    axes = len(sizes)
    if array.ndim != axes + 2 or array.shape[:axes] != sizes or last not in (0, array.shape[-1]):
        refuse(f"kernel: expected {(*sizes, 'I', last or 'O')}, got {array.shape}")
    turned = array.transpose(axes + 1, axes, *range(axes))
    return turned.swapaxes(0, 1).reshape(-1, 1, *sizes) if each else turned


@keras("Conv1D Conv2D")
def convolution(
    x,
    *,
    filters,
    kernel_size=None,
    strides=None,
    padding="valid",
    data_format=_LAST,
    dilation_rate=None,
    groups=1,
    activation=None,
    use_bias=True,
    op,
):
    axes = _axes(x)
    windows = _windows(axes, padding, kernel_size, strides or 1, dilation_rate or 1)
    kernel, *bias = op.weights("kernel", *["bias"] * use_bias)
    if op.lowering.backend == "theano":  # Theano computes convolutions, not correlations
        if padding != "valid" and any(size % 2 == 0 for size in windows["kernel_shape"]):
            refuse(f"padding={padding!r}: expected valid for even kernels that Theano trained")
        kernel = np.flip(kernel, tuple(range(axes)))
    kernel = _kernel(kernel, windows, filters)
    y = over_channels(
        x.floats, data_format, lambda x: x.Conv(kernel, *bias, group=groups, **windows)
    )
    return rules.apply(y, activation)


@keras("DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D", groups=1)
def depthwise(
    x,
    *,
    filters=0,
    kernel_size=None,
    strides=None,
    padding="valid",
    data_format=_LAST,
    dilation_rate=None,
    depth_multiplier=1,
    activation=None,
    use_bias=True,
    op,
):
    """Convolves each channel separately. A separable convolution then multiplies across all
    channels.
    """
    axes = _axes(x)
    if op.lowering.backend == "theano":
        refuse("backend=theano: expected a different one, because Keras does not flip its kernels")
    windows = _windows(axes, padding, kernel_size, strides or 1, dilation_rate or 1)
    points = ["pointwise_kernel"] * op.at.type.startswith("Separable")
    kernel, *others = op.weights("kernel|depthwise_kernel", *points, *["bias"] * use_bias)
    weights = [_kernel(kernel, windows, 0, each=True)]
    for _ in points:
        weights.append(_kernel(others.pop(0), {"kernel_shape": (1,) * axes}, filters))

    def convolve(x: Any) -> Any:
        y = x.Conv(weights[0], group=kernel.shape[axes], **windows)
        return y.Conv(*weights[1:]) if points else y

    shape = (-1,) if data_format else (-1, *[1] * axes)
    y = over_channels(x.floats, data_format, convolve)
    return rules.finish(y, [array.reshape(shape) for array in others], activation)


@keras("MaxPooling1D MaxPooling2D AveragePooling1D AveragePooling2D")
def pool(x, *, pool_size=None, strides=None, padding="valid", data_format=_LAST, op):
    axes, kind = _axes(x), "max" if op.at.type.startswith("Max") else "avg"
    kernel = each_axis(pool_size or 2, axes)
    strides = each_axis(strides or kernel, axes)
    if min(kernel + strides) < 1:
        refuse(f"pool_size={kernel}, strides={strides}: expected 1 or more")
    windows = {"strides": strides, **_pads(padding, kernel, [1] * axes)}
    return over_channels(x.floats, data_format, lambda x: pool_windows(x, kind, kernel, **windows))


@keras("GlobalMaxPooling1D GlobalMaxPooling2D GlobalAveragePooling1D GlobalAveragePooling2D")
def pool_all(x, *, data_format=_LAST, keepdims=False, op):
    """Reduces all axes except samples and channels. A mean leaves out masked steps."""
    axes, y, kept = _axes(x), x.floats, int(keepdims)
    over = [*range(1, axes + 1)] if data_format else [*range(2, axes + 2)]
    if op.at.type.startswith("GlobalMax"):
        return x.checked_floats.ReduceMax(over, keepdims=kept)
    if axes > 1 or not x.step_flags:
        return y.ReduceMean(over, keepdims=kept)
    column = x.flags.unsqueeze(2 if data_format else 1)
    y = column.Where(y, y.scalar(0))
    total = y.ReduceSum(over, keepdims=kept)
    return total / column.CastLike(y).ReduceSum(over, keepdims=kept)


@keras("UpSampling1D UpSampling2D", interpolation="nearest")
def upsampling(x, *, size=None, data_format=_LAST):
    times = map(float, each_axis(size or 2, _axes(x)))
    scales = (1.0, *times, 1.0) if data_format else (1.0, 1.0, *times)
    return x.checked_floats.Resize(scales=scales, **NEAREST)


@keras("ZeroPadding1D ZeroPadding2D")
def zero_padding(x, *, padding=None, data_format=_LAST):
    begin, end = _around(x, "padding", padding, data_format)
    return x.Pad([*begin, *end])


@keras("Cropping1D Cropping2D")
def cropping(x, *, cropping=None, data_format=_LAST):
    begin, end = _around(x, "cropping", cropping, data_format)
    return x.Slice(begin, [-cut if cut else 2**62 for cut in end], [*range(len(begin))])


def _around(x: KerasTensor, name: str, widths: Any, last: bool) -> tuple[list[int], list[int]]:
    """Returns the widths before and after each axis, from ((before, after), ...)."""
    axes = _axes(x)
    listed = [widths] if axes == 1 and isinstance(widths, list) else widths
    listed = listed if isinstance(listed, list) else [1 if listed is None else listed] * axes
    pairs = [each_axis(pair, 2, name) for pair in listed]
    if len(pairs) != axes or min(number for pair in pairs for number in pair) < 0:
        refuse(f"attribute {name}={widths!r}: expected two sizes of 0 or more for each axis")
    front, back = ([0], [0]) if last else ([0, 0], [])
    begin, end = ([*front, *side, *back] for side in zip(*pairs, strict=True))
    return begin, end


# Rules for layers that normalize, at inference.
#
# Formulas: documentation of keras.layers of these names.


def _axes_of_norm(x: KerasTensor, axis: Any) -> list[int]:
    axes = axis if isinstance(axis, list) else [-1 if axis is None else axis]
    return sorted(rules.one_axis(x, each) for each in axes)


def _scale_and_shift(
    op: KerasLayer, scale: bool, center: bool, *statistics: str
) -> tuple[Any, ...]:
    names = ["gamma"] * scale + ["beta"] * center
    held = dict(zip([*names, *statistics], op.weights(*names, *statistics), strict=True))
    return tuple(map(held.get, ("gamma", "beta", *statistics)))


@keras("BatchNormalization", masks=True, renorm=False)
def batch_normalization(
    x,
    *,
    axis=None,
    epsilon=1e-3,
    center=True,
    scale=True,
    renorm_clipping=None,
    renorm_momentum=None,
    op,
):
    """Normalizes by the mean and variance from training."""
    x, place = x.floats, rules.one_axis(x, -1 if axis is None else axis)
    held = _scale_and_shift(op, scale, center, "moving_mean", "moving_variance")
    gamma, beta, mean, variance = held
    factor = 1 / np.sqrt(variance.astype(np.float64) + epsilon)
    factor = factor if gamma is None else factor * gamma
    shape = [-1 if at == place else 1 for at in range(x.rank)]
    mean, factor = (array.astype(op.compute).reshape(shape) for array in (mean, factor))
    y = x.Sub(mean).Mul(factor)
    return y if beta is None else y.Add(beta.reshape(shape))


@keras("LayerNormalization", masks=True, rms_scaling=False)
def layer_normalization(x, *, axis=None, epsilon=1e-3, center=True, scale=True, op):
    x, axes = x.checked_floats, _axes_of_norm(x, axis)
    if axes != [*range(axes[0], x.rank)]:
        refuse(f"attribute axis={axes}: expected only the last ones of {x.rank} axes")
    gamma, beta = _scale_and_shift(op, scale, center)
    if gamma is None:
        sizes = x.shape[axes[0] :]
        if None in sizes:
            refuse(f"scale=False: expected known sizes of axes {axes}, got {sizes}{FIX_SIZE}")
        gamma = x.fill(sizes, 1)
    return x.LayerNormalization(gamma, beta, axis=axes[0], epsilon=epsilon)


@keras("RMSNormalization")
def rms_normalization(x, *, axis=None, epsilon=1e-6, op):
    x, axes = x.checked_floats, _axes_of_norm(x, axis)
    if axes != [x.rank - 1]:
        refuse(f"attribute axis={axes}: expected only the last one of {x.rank} axes")
    root = (x * x).ReduceMean([-1], keepdims=1).Add(epsilon).Sqrt()
    return (x / root).Mul(*op.weights("scale"))


@keras("GroupNormalization", masks=True)
def group_normalization(x, *, groups=32, axis=None, epsilon=1e-3, center=True, scale=True, op):
    x, place = x.checked_floats, rules.one_axis(x, -1 if axis is None else axis)
    if place not in (1, x.rank - 1):
        refuse(f"attribute axis={axis}: expected 1 or the last one of {x.rank} axes")
    channels = x.shape[place]
    if channels is None:
        refuse(f"axis {place}: expected a known number of channels, got {x.shape}{FIX_SIZE}")
    gamma, beta = (
        x.fill((channels,), fill) if array is None else array
        for fill, array in zip((1, 0), _scale_and_shift(op, scale, center), strict=True)
    )
    groups = channels if groups == -1 else groups

    def normalize(x: Any) -> Any:
        return x.GroupNormalization(gamma, beta, num_groups=groups, epsilon=epsilon)

    return over_channels(x, place > 1, normalize)


# The steps that a recurrent layer processes: all steps of a padded batch, or only the unmasked
# ones.


class Steps:
    """All steps of a batch (N, T, I), without a mask. ``given`` is the input of the first cell.

    ``all`` returns the outputs of an Rnn for every step in time order. ``reverse`` reverses the
    time, and ``finish`` moves the axes into Keras's order. ``last`` returns the output after the
    last step. ``zeros``: whether masked steps output zeros; otherwise they repeat the previous
    step's output.
    """

    def __init__(self, x: KerasTensor, time_major: bool) -> None:
        self._time_major = time_major
        self.given = x if time_major else x.transpose(1, 0, 2)

    def all(self, y: KerasTensor, backwards: bool, *, zeros: bool) -> KerasTensor:
        return y

    def reverse(self, y: KerasTensor) -> KerasTensor:
        return y.flip(0)

    def finish(self, y: KerasTensor) -> KerasTensor:
        return y if self._time_major else y.transpose(1, 0, 2)

    def last(self, h: Any, backwards: bool, *, zeros: bool, given: bool) -> Any:
        return h


class _Table(NamedTuple):
    """Counts of unmasked steps.

    ``flags``: the mask. ``some``: the mask as int64. ``far``: for each step, the number of unmasked
    steps up to and including it. ``counts``, ``starts``: for each sequence, the number of unmasked
    steps and their start in the ragged batch. ``offsets``: the offsets of the ragged batch.
    """

    flags: KerasTensor
    some: KerasTensor
    far: KerasTensor
    counts: KerasTensor
    starts: KerasTensor
    offsets: KerasTensor


class Masked(Steps):
    """A ragged batch that contains the unmasked steps of a batch."""

    def __init__(self, x: KerasTensor, width: int) -> None:
        tables = x.op.lowering.tables
        if x.mask not in tables:
            tables[x.mask] = _table(x.step_flags)
        self._table: _Table = tables[x.mask]
        if x.words:
            self.given = x.new(x.words)
        else:
            rows = x.reshape(-1, width).Compress(x.new(x.mask).reshape(-1), axis=0)
            self.given = rows.SequenceReset(self._table.offsets)

    def all(self, y: KerasTensor, backwards: bool, *, zeros: bool) -> KerasTensor:
        """Returns the outputs of all steps: rows of a table that has zeros in row 0, then the
        outputs of the unmasked steps.
        """
        table, data = self._table, y.SequenceData()
        rows = data.fill((1, data.shape[-1] or 1), 0).join(data)
        starts = table.starts.unsqueeze(1)
        if backwards:  # the first unmasked step at or after a step, if there is one
            before = table.far - table.some
            place = (starts + before).Add([1])
            reached = (table.counts.unsqueeze(1) - before).Greater([0])
        else:
            place, reached = starts + table.far, table.far.Greater([0])
        at = (table.flags if zeros else reached).Where(place, [0])
        return rows.Gather(at, axis=0)

    def reverse(self, y: KerasTensor) -> KerasTensor:
        return y.flip(1)

    def finish(self, y: KerasTensor) -> KerasTensor:
        return y

    def last(self, h: Any, backwards: bool, *, zeros: bool, given: bool) -> Any:
        """Returns the last output. Like Keras, returns zeros for a sequence without unmasked steps,
        whatever its initial state is.
        """
        if zeros:
            kept = self._table.flags.Gather(np.array(0 if backwards else -1), axis=1)
        elif given:
            kept = self._table.counts.Greater([0])
        else:
            return h
        return kept.unsqueeze(1).Where(h, h.scalar(0))


def _table(mask: Any) -> _Table:
    some = mask.cast("int64")
    counts = some.ReduceSum([1], keepdims=0)
    ends = counts.CumSum([0])
    offsets = mask.new(mask.op.ints(0)).join(ends)
    return _Table(mask, some, some.CumSum([1]), counts, ends - counts, offsets)


# Rules for SimpleRNN, LSTM, GRU, RNN of their cells, and Bidirectional.
#
# Formulas: documentation and source of keras.layers of these names. If Keras's backends differ, the
# rules compute what the TensorFlow backend computes: see design/0056.

_CELLS = ("SimpleRNNCell", "LSTMCell", "GRUCell")


class _Layer(NamedTuple):
    """A recurrent layer: its cells in the order in which they run, and its options."""

    cells: tuple[PivotLayer, ...]
    backwards: bool
    sequences: bool
    gives_states: bool
    stateful: bool
    zeros: bool
    time_major: bool
    unrolled: bool
    cudnn: bool

    @property
    def widths(self) -> list[int]:
        """The width of each state, in Keras's order."""
        return [cell.spec.hidden_size for cell in self.cells for _ in cell.spec.cell.states]


class _Made(NamedTuple):
    """The results of a layer. ``y``: the output of each step in ``Steps.given``, in time order.
    ``last``: the output of the step that the layer computed last.
    """

    y: Any
    last: Any
    states: tuple[Any, ...]


def _read_cell(
    *,
    units,
    use_bias=True,
    activation=Stated("tanh"),
    recurrent_activation=Stated(""),
    reset_after=None,
    op,
):
    """Returns the cell that the configuration of a cell, or of a layer with such a cell,
    describes.
    """
    kind = op.at.type.removesuffix("Cell").removeprefix("CuDNN")
    names = ("kernel", "recurrent_kernel", "bias")[: 2 + use_bias]
    inside = "" if op.at.type in _CELLS else "cell"
    held = dict(zip(names, op.weights(*names, inside=inside), strict=True))
    arrays = layout.from_cudnn(held)  # also for an LSTM that takes weights of CuDNNLSTM
    if recurrent_activation == "":  # old files do not name it, and CuDNN has one function
        hard = op.major < 3 and not op.at.type.startswith("CuDNN")
        recurrent_activation = "hard_sigmoid" if hard else "sigmoid"
    chosen = {"LSTM": [recurrent_activation, activation], "GRU": [recurrent_activation]}
    known = []
    for each in [*chosen.get(kind, []), activation]:
        name = rules.name_of(each)
        known.append(
            rules.of_gates(each, op.major)
            or refuse(f"{op.at.type} with {name}: expected a function like sigmoid, tanh or relu")
        )
    if kind == "GRU" and reset_after is None:
        reset_after = use_bias and arrays["bias"].ndim == 2  # Keras before 2.1.4 does not write it
    plain = known[0].name if known[0].name in ("tanh", "relu", "sigmoid") else "tanh"
    layer = layout.read(arrays, reset_after=reset_after, function=plain, activations=tuple(known))
    expected = {"SimpleRNN": 1, "LSTM": 4, "GRU": 3}[kind]
    if layer.spec.hidden_size != units or layer.spec.gates != expected:
        refuse(f"attribute units={units}: expected weights for it, got weights for {layer.spec}")
    return layer


_CELL = Signature(_read_cell, {}, KerasTensor)
_STACKED = Signature(lambda *, cells=None: cells or (), {"reverse_state_order": False})


def _read_cells(op: KerasLayer, config: Any) -> tuple[PivotLayer, ...]:
    if not isinstance(config, dict):
        refuse(f"attribute cell: expected one cell, got {config!r:.100}")
    cell = op.inner(config, "cell")
    held = [cell]
    if cell.at.type == "StackedRNNCells" and not cell.layer.foreign:
        listed = cell.read(_STACKED)
        groups = group_names(each["class_name"] for each in listed)
        held = [
            cell.inner(each, "cells", group) for each, group in zip(listed, groups, strict=True)
        ]
    if not held:
        refuse("attribute cells=[]: expected one cell or more")
    for each in held:
        if each.at.type not in _CELLS or each.layer.foreign:
            refuse(f"cell {each.at.type}: expected one of {', '.join(_CELLS)}")
    return tuple(each.read(_CELL) for each in held)


def _read_layer(
    *,
    go_backwards=False,
    return_sequences=False,
    return_state=False,
    stateful=False,
    zero_output_for_mask=False,
    time_major=False,
    unroll=False,
    cell=None,
    op,
):
    if op.layer.foreign:
        refuse(f"{op.at.type} of {op.layer.module}: expected a class of Keras, got a user's class")
    if op.at.type == "RNN":
        cells = _read_cells(op, cell)
    elif f"{op.at.type.removeprefix('CuDNN')}Cell" in _CELLS:
        cells = (_CELL.call(op)[1],)
    else:
        refuse(f"around {op.at.type}: expected SimpleRNN, LSTM, GRU or RNN")
    flags = (go_backwards, return_sequences, return_state, stateful)
    cudnn = op.at.type.startswith("CuDNN")
    return _Layer(cells, *flags, zero_output_for_mask, time_major, unroll, cudnn)


_LAYER = Signature(_read_layer, {}, KerasTensor)


def _run(layer: _Layer, steps: Steps, states: Sequence[Any]) -> _Made:
    side: Direction = "right2left" if layer.backwards else "left2right"
    y: Any = steps.given
    finals, left = list[Any](), list(states)
    for spec, weights in layer.cells:
        count = len(spec.cell.states)
        begin = [left.pop(0).unsqueeze(0, 1) for _ in range(count) if left]
        spec = replace(spec, direction=side)
        y, *ends = y.Rnn(*begin, spec=spec, weights=weights[0], outputs=1 + count)
        last = len(finals)
        finals += [end.squeeze(0, 1) for end in ends]
    return _Made(y, finals[last], tuple(finals))


def _steps(layer: _Layer, x: KerasTensor) -> Steps:
    if x.rank != 3:
        refuse(f"expected (N, T, I), got {x.rank} axes")
    if not x.mask:
        return Steps(x, layer.time_major)
    if layer.unrolled and layer.zeros:
        refuse("unroll=True with zeros for masked steps: expected False, Keras's backends differ")
    if layer.time_major:
        refuse("time_major=True with a mask: expected False")
    return Masked(x, layer.cells[0].spec.input_size)


def _call(op: KerasLayer, layers: Sequence[_Layer]) -> tuple[KerasTensor, list[KerasTensor]]:
    """Returns the input and the initial states: tensors after the first one are states."""
    initial = op.option("initial_state")
    if len(op.arguments) > 2:
        refuse(f"called with {len(op.arguments)} arguments: expected x and its initial states")
    x, *states = op.bind(_flat([*op.arguments, [] if initial is None else initial]))
    count = sum(len(layer.widths) for layer in layers)
    if states and len(states) != count:
        refuse(f"called with {len(states)} states: expected {count}")
    return x.floats, states


def _flat(nested: Any) -> list[Any]:
    if not isinstance(nested, list):
        return [nested]
    return [one for each in nested for one in _flat(each)]


def _begin(op: KerasLayer, layer: _Layer, x: KerasTensor, path: str) -> list[KerasTensor]:
    """Returns the initial states of a stateful layer, which are inputs of the graph; [] for other
    layers.
    """
    batch, state = x.shape[1 if layer.time_major else 0], op.lowering.state
    widths = layer.widths if layer.stateful else ()
    return [
        x.new(state(f"{path}/state{at}", (batch, width), op.compute))
        for at, width in enumerate(widths)
    ]


@keras("SimpleRNN LSTM GRU RNN CuDNNLSTM CuDNNGRU")
def recurrent(*, op):
    return _outputs(op, [_LAYER.call(op)[1]], [op.path], "concat")


@keras("Bidirectional")
def bidirectional(*, layer=None, backward_layer=None, merge_mode=Stated("concat"), op):
    if backward_layer is None:
        turned = not layer["config"].get("go_backwards")
        backward_layer = {**layer, "config": {**layer["config"], "go_backwards": turned}}
    first = op.inner(layer, "forward_layer").read(_LAYER)
    second = op.inner(backward_layer, "backward_layer").read(_LAYER)
    if first.backwards == second.backwards or first[2:5] != second[2:5]:
        refuse(
            "expected layers of opposite directions with the same return_sequences, return_state"
            " and stateful"
        )
    # Keras sets zero_output_for_mask of both layers, whatever their configurations contain.
    sides = [side._replace(zeros=side.sequences) for side in (first, second)]
    return _outputs(op, sides, [f"{op.path}/forward", f"{op.path}/backward"], merge_mode)


def _outputs(
    op: KerasLayer, sides: Sequence[_Layer], paths: Sequence[str], merge: Any
) -> list[KerasTensor]:
    """Returns the outputs of a layer or of both directions; ``paths``: for each direction, the
    prefix of its states' names.
    """
    x, states = _call(op, sides)
    if any(side.stateful for side in sides):
        op.lowering.call_stateful(op.layer)
    if x.mask and any(side.cudnn for side in sides):
        refuse("its input has a mask: expected none, Keras's CuDNN layers read no mask")
    mask = x.flags  # the output has the same mask
    if states and op.major > 2 and not op.masked_by_call:
        # Keras 3 looks for the mask of a tensor only if a layer is called with no other tensors.
        x = x.under(None)
    steps, *_ = [_steps(side, x) for side in sides]  # raises an error if one of them cannot run
    first, half = sides[0], len(sides[0].widths)
    begins = [states[:half], states[half:]]
    if not states:
        begins = [_begin(op, side, x, path) for side, path in zip(sides, paths, strict=True)]
    mades = _run_both(sides, steps, begins) if len(sides) > 1 else []
    runs = list(zip(sides, begins, strict=False))
    mades = mades or [_run(side, steps, begin) for side, begin in runs]
    ys = []
    for (side, begin), made, path in zip(runs, mades, paths, strict=True):
        for index, end in enumerate(made.states if side.stateful else ()):
            op.lowering.keep(f"{path}/state{index}", end.name)
        if side.sequences:
            ys.append(steps.all(made.y, side.backwards, zeros=side.zeros))
        else:  # the output of the step that the layer computed last
            last = steps.last(made.last, side.backwards, zeros=side.zeros, given=bool(begin))
            ys.append(last)
    finals = [each for made in mades for each in made.states if first.gives_states]
    if not first.sequences:
        return [*_merge(merge, ys), *finals]
    # All outputs are in time order; Keras reverses the output of the second layer.
    ys = [steps.reverse(y) for y in ys] if first.backwards else ys
    plain = x.mask and merge and not first.backwards
    words = _merge(merge, [made.y for made in mades])[0].name if plain else ""
    return [*(steps.finish(y).under(mask, words) for y in _merge(merge, ys)), *finals]


def _run_both(
    sides: Sequence[_Layer], steps: Steps, begins: Sequence[Sequence[Any]]
) -> list[_Made]:
    """Runs both directions as one layer if only the last outputs are needed. Returns [] if that is
    not possible.

    If the outputs of all steps are needed, a pass joins the directions later.
    """
    cells = [cell for side in sides for cell in side.cells]
    (spec, (first,)), (other, (second,)) = cells[0], cells[-1]
    alike = spec == other and (first.bias is None) == (second.bias is None)
    if len(cells) > 2 or not alike or sides[0].backwards or sides[0].sequences:
        return []
    states = [
        one.unsqueeze(0, 1).Concat(two.unsqueeze(0, 1), axis=1)
        for one, two in zip(*begins, strict=True)
    ]
    y, *ends = steps.given.Rnn(
        *states,
        spec=replace(spec, direction="bidirectional_concat"),
        weights=RnnWeights.join([first, second], 1),
        outputs=1 + len(spec.cell.states),
    )
    mades = []
    for side in range(2):
        own = tuple(end.Gather(np.array(side), axis=1).squeeze(0) for end in ends)
        mades.append(_Made(y, own[0], own))
    return mades


def _merge(merge: Any, ys: list[Any]) -> list[Any]:
    if merge is None or len(ys) == 1:
        return ys
    first, second = ys
    match merge:
        case "concat":
            return [first.Concat(second, axis=-1)]
        case "sum":
            return [first + second]
        case "mul":
            return [first * second]
        case "ave":
            return [(first + second) * 0.5]
    return refuse(f"attribute merge_mode={merge!r}: expected concat, sum, mul, ave or None")
