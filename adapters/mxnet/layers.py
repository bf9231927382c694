"""Rules for MXNet's layers (recurrent layers, projections, convolutions, norms) and reductions.

A rule turns one operator into onernn's canonical operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from onernn.adapters.common.bodies import (
    NEAREST,
    count_up,
    extreme_index,
    pool_whole,
    pool_windows,
    recurrent_stack,
)
from onernn.adapters.common.signatures import OneOf, refuse
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.table import UNSIZED, Dtype, Parsed, mxnet
from onernn.ir.spec import RnnSpec
from onernn.reorders import mxnet as layout

# Rules for projections, embeddings, normalizations, softmax, dropout and reductions.
#
# Formulas: documentation of MXNet 1.9.1's operators of the same names, in inference.


_NO_BIAS = "input bias is missing: expected one unless no_bias=True"


@mxnet("FullyConnected", inferred="first")
def fully_connected(data, weight, bias=None, *, num_hidden, no_bias=False, flatten=True, op):
    """Computes x @ weight.T + bias; with ``flatten``, all axes of x after the first count as
    one.
    """
    bias = None if no_bias else bias or refuse(_NO_BIAS)
    _check_rows(weight, num_hidden)
    if flatten:
        return data.matrix.Gemm(weight, bias, transB=1)
    name = f"{weight.name}/Transpose"  # one node for all operators that share the weight
    out = data @ (weight.new(name) if name in op.builder.constants else weight.transpose(1, 0))
    return out.Add(bias) if bias else out


def _check_rows(weight: Any, rows: int) -> None:
    array = weight.known
    if array is not None and (array.ndim != 2 or len(array) != rows):
        refuse(f"input weight: expected ({rows}, I), got {array.shape}")


def _clip_index(index: Any, table: Any, axis: int) -> Any:
    """Clips indices out of range to the first or last index, like MXNet's CPU kernels."""
    size = table.sizes.Gather(axis, axis=0)  # an index of NumPy mode may be a scalar
    return index.Max(0).Min(size.Sub(1))


def _into_range(index: Any, table: Any, axis: int, mode: str) -> Any:
    """Returns indices as int64, changed to be on the axis unless the mode is "raise"."""
    index = index.cast(np.int64)
    match mode:
        case "clip":
            return _clip_index(index, table, axis)
        case "wrap":
            return index.Mod(table.sizes.Gather(axis, axis=0))
        case "raise":
            return index
    return refuse(f"attribute mode={mode!r}: expected 'clip', 'wrap' or 'raise'")


@mxnet("Embedding")
def embedding(data, weight, *, input_dim, output_dim, dtype=Dtype()):
    """Returns the rows of ``weight`` at the indices ``data``, which are truncated to integers."""
    _check_rows(weight, input_dim)
    return weight.Gather(_clip_index(data.cast(np.int64), weight, 0), axis=0)


@mxnet("take")
def take(a, indices, *, axis=0, mode="clip"):
    index = _into_range(indices, a, axis, mode)
    return a.Gather(index, axis=axis, non_negative=mode == "raise")


@mxnet("one_hot")
def one_hot(indices, *, depth, on_value=1.0, off_value=0.0, dtype=Dtype()):
    """Returns one-hot rows. A negative index gets a row of ``off_value``; ONNX would count it from
    the end.
    """
    index = indices.cast(np.int64)
    index = index.Less(0).Where(depth, index)
    return index.OneHot([depth], np.array([off_value, on_value], dtype), axis=-1)


@mxnet("pick")
def pick(data, index, *, axis=-1, keepdims=False, mode="clip"):
    """Returns one element along an axis for each position of the other axes."""
    places = index.cast(np.int64).Reshape(data.sizes.resize(axis, 1))  # index may lack the axis
    index = _into_range(places, data, axis, mode)
    out = data.GatherElements(index, axis=axis, non_negative=mode == "raise")
    return out if keepdims else out.squeeze(axis).at_least_one(axis)


@mxnet("Dropout", inferred="all")
def dropout(data, *, p=0.5, mode="training", axes=(), op):
    if mode != "training":
        refuse(
            f"attribute {mode=}: expected 'training'; other modes draw random numbers in inference"
        )
    if p:
        op.note(f"dropout p={p:g} has no effect in inference")
    return data


def _refuse_statistics(output_mean_var: bool) -> None:
    if output_mean_var:
        refuse("attribute output_mean_var=True: expected False; onernn returns one output")


@mxnet("BatchNorm")
def batch_norm(
    data,
    gamma,
    beta,
    moving_mean,
    moving_var,
    *,
    axis=1,
    eps=1e-3,
    fix_gamma=True,
    use_global_stats=False,
    output_mean_var=False,
):
    """Computes (x - mean) / sqrt(var + eps) * gamma + beta, with the mean and variance from
    training.
    """
    _refuse_statistics(output_mean_var)
    arrays = [each.array for each in (gamma, beta, moving_mean, moving_var)]
    if fix_gamma:
        arrays[0] = np.ones_like(arrays[0])
    if axis == 1:
        return data.BatchNormalization(*arrays, epsilon=eps)
    if axis != -1:
        rank = data.require_rank(f"attribute axis={axis}")
        if not -rank <= axis < rank:
            refuse(f"attribute axis={axis}: expected {-rank} to {rank - 1} for {rank} axes")
        arrays = [array.reshape(-1, *(1,) * (rank - 1 - axis % rank)) for array in arrays]
    scale, shift, mean, variance = arrays
    with np.errstate(invalid="ignore", divide="ignore"):  # the factor is then NaN or infinity
        factor = scale / np.sqrt(variance + variance.dtype.type(eps))
    return data.Sub(mean).Mul(factor).Add(shift)


@mxnet("LayerNorm")
def layer_norm(data, gamma, beta, *, axis=-1, eps=1e-5, output_mean_var=False):
    _refuse_statistics(output_mean_var)
    if axis != -1 and axis + 1 != data.require_rank(f"attribute axis={axis}"):
        refuse(f"attribute axis={axis}: expected the last axis; transpose the input first")
    return data.LayerNormalization(gamma, beta, axis=-1, epsilon=eps)


@mxnet("L2Normalization")
def l2_normalization(data, *, mode="instance", eps=1e-10):
    """Computes x / sqrt(sum of squares + eps). The sum is over all axes after the batch in mode
    "instance", and over axis 1 in mode "channel".
    """
    why = f"attribute mode={mode!r}"
    if mode == "spatial" or mode == "instance" and data.require_rank(why) != 2:
        refuse(f"{why}: expected 'channel', or 'instance' for an input of 2 axes")
    return data.Div(data.ReduceSumSquare([1], keepdims=1).Add(data.scalar(eps)).Sqrt())


@mxnet("softmax softmin log_softmax")
def softmax(
    data,
    length=None,
    *,
    axis=-1,
    temperature=Parsed("number"),
    use_length=False,
    dtype=Dtype(none=None),
    op,
):
    x = data if temperature in (None, 1.0) else data.Div(data.scalar(temperature))
    x = x.Neg() if op.name == "softmin" else x
    if use_length:  # elements from the length on have the probability 0
        rank = data.require_rank("attribute use_length=True")
        places = count_up(data.sizes.Gather(axis, axis=0)).reshape(-1, *[1] * ((-1 - axis) % rank))
        length = length or refuse("input length is missing: expected one for use_length=True")
        used = places.Less(length.cast(np.int64).unsqueeze(axis))
        x = used.Where(x, x.scalar(-np.inf))
    out = (x.LogSoftmax if op.name == "log_softmax" else x.Softmax)(axis=axis)
    out = used.Where(out, out.scalar(0)) if use_length else out
    return out if dtype is None else out.cast(dtype)


@mxnet("SoftmaxOutput SoftmaxActivation")
def softmax_output(
    data, label=None, *, mode="instance", multi_output=False, preserve_shape=False, op
):
    """Computes a softmax over axis 1, the last axis, or all axes after the batch.

    For a softmax over all axes after the batch, MXNet on a CPU uses only the last axis in
    SoftmaxActivation, and in SoftmaxOutput for inputs of four axes. Only training uses the label.
    """
    if multi_output or mode == "channel":
        return data.Softmax(axis=1)
    dtype, rank = data.dtype, data.rank
    if preserve_shape or rank == 2:
        return data.Softmax(axis=-1)
    if op.name == "SoftmaxActivation" or (rank == 4 and dtype != np.float64):
        meanings = "softmax over all axes after the batch", "softmax over the last axis"
        if not op.as_documented(*meanings):
            return data.Softmax(axis=-1)
    flat, sizes = data.Flatten(axis=1), data.sizes
    if rank is None and dtype != np.float64 and op.context.semantics != "documented":
        widths = [each.Gather([-1], axis=0) for each in (sizes, flat.sizes)]
        width = sizes.sizes.Equal([4]).Where(*widths)
        flat = flat.Reshape(width.constant(np.array([-1])).join(width))
    return flat.Softmax(axis=-1).Reshape(sizes)


@mxnet("LinearRegressionOutput MAERegressionOutput")
def regression_output(data, label=None):
    """Returns the data, because only training uses the label."""
    return data


@mxnet("LogisticRegressionOutput")
def logistic_output(data, label=None):
    return data.Sigmoid()


REDUCTIONS = "sum mean max min prod _np_sum _npi_mean _np_max _np_min _np_prod"


@mxnet(REDUCTIONS)
def reduction(data, *, axis=Parsed("sizes"), keepdims=False, exclude=False, op):
    kind, axes = f"Reduce{op.name.rpartition('_')[2].capitalize()}", axis
    x = data
    if op.numpy:
        op.only(dtype="None", initial="None")
        if x.dtype.kind == "b" and kind in ("ReduceSum", "ReduceProd"):
            x = x.cast(np.int64)
        elif kind == "ReduceMean" and x.dtype.kind != "f":
            x = x.cast(np.float32)
    x = x if x.dtype.name in ("int32", "int64") and op.numpy else x.floats
    if exclude and axes:
        known = x.require_rank("attribute exclude")
        axes = tuple(sorted(set(range(known)) - {each % known for each in axes}))
        if not axes:
            return x
    if axes is None or not (axes or op.numpy):
        out = getattr(x, kind)(keepdims=int(keepdims))
        return out if keepdims or op.numpy else out.reshape(1)
    if not axes:
        return x
    out = getattr(x, kind)(axes, keepdims=int(keepdims))
    return out if keepdims else out.at_least_one(*axes)


_NORMS = {"1": "ReduceL1", "2": "ReduceL2"}


@mxnet("norm")
def norm(
    data,
    *,
    ord=OneOf("2", _NORMS),  # noqa: A002
    axis=Parsed("sizes"),
    out_dtype=Dtype(none=None),
    keepdims=False,
):
    x = data.floats if out_dtype is None else data.floats.cast(out_dtype)
    out = getattr(x, ord)(*([axis] if axis else []), keepdims=int(keepdims))
    return out if keepdims else out.at_least_one(*axis or ())


@mxnet("argmax argmin _npi_argmax _npi_argmin")
def extreme(data, *, axis=Parsed("integer"), keepdims=False, op):
    """Returns indices as int64 in NumPy mode, otherwise in the input's dtype."""
    kind = "ArgMax" if op.name.endswith("max") else "ArgMin"
    if axis == -1 and op.context.symbol.version < 905:  # UpgradeJSON_000904_000905
        axis = None
    if keepdims and axis is None:
        refuse("attributes keepdims=True, axis=None: expected an axis, or keepdims=False")
    out = extreme_index(data, kind, axis, keepdims)
    if op.numpy:
        return out
    out = out if keepdims else out.at_least_one(*() if axis is None else (axis,))
    return out.cast(data.dtype)


@mxnet("dot _np_dot")
def dot(lhs, rhs, *, transpose_a=False, transpose_b=False):
    """Sums products over the last axis of ``lhs`` and the first axis of ``rhs``."""
    ranks = [each.require_rank("dot") for each in (lhs, rhs)]
    if ranks[1] != 2 or ranks[0] < 2 or (transpose_a and ranks[0] != 2):
        refuse(
            f"attribute {transpose_a=}: expected lhs with {2 if transpose_a else '2 or more'} axes"
            f" and rhs with 2, got {ranks[0]} and {ranks[1]}; use batch_dot for batches of matrices"
        )
    return batch_dot(lhs, rhs, transpose_a=transpose_a, transpose_b=transpose_b)


@mxnet("batch_dot")
def batch_dot(lhs, rhs, *, transpose_a=False, transpose_b=False):
    return (lhs.swap() if transpose_a else lhs) @ (rhs.swap() if transpose_b else rhs)


@mxnet("_npi_matmul")
def matmul(a, b):
    return a @ b


@mxnet("_contrib_div_sqrt_dim")
def div_sqrt_dim(data, *, op):
    size = data.floats.size(-1)
    return data.Div(size.cast(data.dtype).Sqrt())


# Rules for convolutions and pooling of (N, C, ...), with windows over the axes after C.
#
# Formulas: documentation of MXNet 1.9.1's operators of the same names.

_LAYOUTS = {each: each for each in ("None", "NCW", "NCHW", "NCDHW")}


def _windows(x: Any, kernel: Any, stride: Any, pad: Any) -> dict[str, Any]:
    """Returns ONNX's attributes kernel_shape, strides and pads; absent strides are 1, absent pads
    0.
    """
    if not 1 <= len(kernel) <= 3:
        refuse(f"attribute kernel={kernel}: expected one to three sizes")
    if x.rank is None:
        x.op.declare_rank(x.name, len(kernel) + 2)
    pads = _fit(kernel, 0, pad=pad)
    return {
        "kernel_shape": kernel,
        "strides": _fit(kernel, 1, stride=stride),
        "pads": (*pads, *pads),
    }


def _fit(kernel: Any, missing: int, **attribute: Any) -> tuple[int, ...]:
    ((name, sizes),) = attribute.items()
    result = sizes or (missing,) * len(kernel)
    if len(result) != len(kernel):
        refuse(f"attribute {name}={result}: expected {len(kernel)} values, one per kernel axis")
    return result


def _check_filters(weight: Any, kernel: Any, axis: int, size: int) -> None:
    array = weight.known
    if array is not None and (array.shape[2:] != kernel or array.shape[axis] != size):
        refuse(
            f"input weight: expected {size} on axis {axis} and the kernel {kernel} from axis 2 on,"
            f" got {array.shape}"
        )


@mxnet("Convolution Deconvolution", inferred="first")
def convolution(
    data,
    weight,
    bias=None,
    *,
    kernel=(),
    stride=(),
    dilate=(),
    pad=(),
    adj=(),
    target_shape=(),
    num_filter,
    num_group=1,
    no_bias=Parsed("flag"),
    layout=OneOf("None", _LAYOUTS),
    op,
):
    """Lowers Convolution to ONNX's Conv, and Deconvolution to ConvTranspose.

    The weights of Conv are (num_filter, C / num_group, *kernel), the weights of ConvTranspose are
    (C, num_filter / num_group, *kernel). ``target_shape`` is ONNX's output_shape; with it ``pad``
    and ``adj`` have no effect.
    """
    turned = op.name == "Deconvolution"
    if num_group < 1:
        refuse(f"attribute num_group={num_group}: expected 1 or more")
    windows = {"group": num_group, **_windows(data, kernel, stride, pad)}
    windows["dilations"] = _fit(kernel, 1, dilate=dilate)
    no_bias = turned if no_bias is None else no_bias
    bias = None if no_bias else bias or refuse(_NO_BIAS)
    _check_filters(weight, kernel, int(turned), num_filter // num_group if turned else num_filter)
    if not turned:
        return data.Conv(weight, bias, **windows)
    more = _fit(kernel, 0, adj=adj)
    if any(target_shape):
        windows["pads"] = None
        windows["output_shape"] = _fit(kernel, 0, target_shape=target_shape)
    else:
        windows["output_padding"] = more
    return data.ConvTranspose(weight, bias, **windows)


@mxnet("UpSampling")
def upsampling(*data, scale, sample_type="nearest", multi_input_mode="concat", num_filter=0):
    """Enlarges images (N, C, H, W) by the factor ``scale``. Bilinear upsampling is a Deconvolution
    whose weights are the second input.

    Several inputs are all enlarged to the size of the first result, then concatenated or added.
    """
    kind, how = sample_type, multi_input_mode
    if scale < 1:
        refuse(f"attribute scale={scale}: expected 1 or more")
    if kind == "bilinear" and len(data) == 2:
        size, pad = 2 * scale - scale % 2, scale // 2
        _check_filters(data[1], (size, size), 0, num_filter)
        windows = {"kernel_shape": (size, size), "pads": (pad,) * 4, "strides": (scale, scale)}
        return data[0].ConvTranspose(data[1], group=num_filter, **windows)
    if kind != "nearest" or not data or how not in ("concat", "sum"):
        refuse(
            f"attributes sample_type={kind!r}, multi_input_mode={how!r}: expected 'nearest' with"
            " 'concat' or 'sum', or 'bilinear' with two inputs, data and weight"
        )
    first = data[0].Resize(**NEAREST, scales=(1.0, 1.0, float(scale), float(scale)))
    images = [first]
    for other in data[1:]:
        sizes = other.sizes.part(0, 2).join(first.sizes.part(2, 4))
        images.append(other.Resize(None, None, sizes, **NEAREST))
    if how == "concat":
        return first.Concat(*images[1:], axis=1) if images[1:] else first
    return reduce(lambda a, b: a.Add(b), images)


@mxnet("InstanceNorm")
def instance_norm(data, gamma, beta, *, eps=1e-3):
    return data.InstanceNormalization(gamma, beta, epsilon=eps)


@mxnet("Pad")
def pad_(data, *, mode="constant", pad_width=(), constant_value=0.0):
    """Pads each axis. MXNet lists a pair (before, after) per axis; ONNX lists all pads before the
    axes first.
    """
    if mode not in ("constant", "edge", "reflect") or len(pad_width) % 2:
        refuse(
            f"attributes mode={mode!r}, pad_width={pad_width}: expected 'constant', 'edge' or"
            " 'reflect', and two widths per axis"
        )
    widths = [*pad_width[::2], *pad_width[1::2]]
    return data.Pad(widths, data.scalar(constant_value), mode=mode)


_POOLS = {"max": "max", "avg": "avg"}


@mxnet("Pooling")
def pooling(
    data,
    *,
    kernel=(),
    stride=(),
    pad=(),
    pool_type=OneOf("max", _POOLS),
    pooling_convention="valid",
    global_pool=False,
    count_include_pad="None",
    p_value="",
    layout="None",
    op,
):
    """Returns the maximum or the mean of each window. A mean counts padding unless
    count_include_pad is False. It never counts positions of a window after the end of the padding.
    """
    op.one_of("layout", "None", _LAYOUTS)
    if global_pool:
        return pool_whole(data, pool_type)
    windows = _windows(data, kernel, stride, pad)
    if pooling_convention not in ("valid", "full"):
        refuse(
            f"attribute pooling_convention={pooling_convention!r}: expected 'valid' or 'full';"
            " MXNet 1.9.1 itself cannot run others"
        )
    windows["ceil_mode"] = int(pooling_convention == "full")
    counts, sizes = count_include_pad != "False", windows.pop("kernel_shape")
    return pool_windows(data, pool_type, sizes, counts_pads=counts, **windows)


# Rules for MXNet's recurrent operator and for operators on sequences.
#
# Formulas: documentation of MXNet 1.9.1's operators of the same names.


_NO_LENGTHS = "input sequence_length is missing: expected one unless use_sequence_length=False"


@mxnet("RNN", inferred="none")
def rnn(
    data,
    parameters,
    state=None,
    state_cell=None,
    sequence_length=None,
    *,
    p=0.0,
    state_outputs=False,
    use_sequence_length=False,
    op,
):
    """Returns y (T, N, D*R) and, with ``state_outputs``, h (L*D, N, R) and an LSTM's c (L*D, N, O).
    R is the size of the projection, or O without one.
    """
    stack = parse.stack_of(op.node.attributes)
    op.ignore("mode", "state_size", "num_layers", "bidirectional", "projection_size")
    if not 0 <= p <= 1:
        refuse(f"attribute p={p:g}: expected 0 <= p <= 1")
    if p:
        op.note(f"dropout p={p:g} between layers has no effect in inference")
    flat = parameters.array
    if data.inferred:
        refuse(f"input data: {UNSIZED}")
    if flat.dtype.name not in ("float32", "float64"):
        refuse(
            f"input parameters: expected float32 or float64, got {flat.dtype}; cast them and save"
            " again"
        )
    for each in op.node.inputs[2:4]:
        op.context.share(each.name, 1, op.node.inputs[0].name, 1)
    # Only an LSTM has the input state_cell. The lengths of all remaining cells come directly after
    # the state, in the argument ``state_cell``.
    states, lengths = [_state(state, "state")], state_cell
    if stack.mode == "lstm":
        states, lengths = [*states, _state(state_cell, "state_cell")], sequence_length
    spec = _clip(op, stack.spec(stack.input_size(flat.size)))
    ends = _lengths(op, lengths) if use_sequence_length else None
    layers = layout.weights(layout.split(flat, stack), stack)
    results = recurrent_stack(data, states, spec, layers, ends)
    return results if state_outputs else results[:1]


def _state(value: Any, slot: str) -> Any:
    """Returns an initial state, None if it is a constant of zeros, whatever its batch size."""
    if value is None:
        refuse(f"input {slot} is missing: the operator requires it")
    if value.known is not None and not value.known.any():
        return None
    if value.inferred:
        refuse(f"input {slot}: {UNSIZED}")
    return value


def _lengths(op: Any, lengths: Any) -> Any:
    if lengths is None:
        refuse(_NO_LENGTHS)
    masks = op.as_documented("sequence lengths mask", "sequence lengths are ignored")
    return lengths.cast(np.int64) if masks else None


def _clip(op: Any, spec: RnnSpec) -> RnnSpec:
    """Returns the specification with the range to which the cell state is clipped, and whether NaN
    is clipped.
    """
    clip, stops_nan = parse.cell_clip(op.node.attributes), op.keyword(parse.CLIPS[2], False)
    op.ignore(*parse.CLIPS[:2])
    if clip is None:
        return spec
    clips = "the cell state is clipped to [{:g}, {:g}]".format(*clip)
    if not op.as_documented(clips, "the cell state is not clipped"):
        return spec
    return replace(spec, cell_clip=clip, cell_clip_nan=stops_nan)


def _steps_of(lengths: Any, uses: bool, axis: int, axes: Sequence[int] = (0, 1)) -> Any:
    """Returns the lengths as int64, None if the operator does not use them; ``axis`` is the data's
    time axis.
    """
    if axis not in axes:
        refuse(f"attribute axis={axis}: expected {' or '.join(map(str, axes))}")
    if not uses:
        return None
    return lengths.cast(np.int64) if lengths else refuse(_NO_LENGTHS)


@mxnet("SequenceMask")
def sequence_mask(data, sequence_length=None, *, axis=0, use_sequence_length=False, value=0.0):
    lengths = _steps_of(sequence_length, use_sequence_length, axis)
    if lengths is None:
        return data

    def mask(x: Any) -> Any:
        ragged = x.SequenceUnpad(lengths, time_major=not axis)
        return ragged.SequencePad(data, time_major=not axis)

    if not value:
        return mask(data)
    # Mask an array of ones in the same way. Positions at which it becomes zero get the value.
    ones = data.sizes.ConstantOfShape(value=np.ones(1, data.dtype))
    return mask(ones).cast("bool").Where(mask(data), data.scalar(value))


@mxnet("SequenceLast")
def sequence_last(data, sequence_length=None, *, axis=0, use_sequence_length=False):
    lengths = _steps_of(sequence_length, use_sequence_length, axis)
    if lengths is None:
        return data.Gather(-1, axis=axis)
    batch_major = data if axis else data.swap(0, 1)
    index = lengths.Sub([1]).unsqueeze(-1)
    return batch_major.GatherND(index, batch_dims=1, non_negative=True)


@mxnet("SequenceReverse")
def sequence_reverse(data, sequence_length=None, *, axis=0, use_sequence_length=False):
    lengths = _steps_of(sequence_length, use_sequence_length, axis, axes=(0,))
    if lengths is None:
        return data.flip(0)
    return data.ReverseSequence(lengths, time_axis=0, batch_axis=1)
