"""The rules of MXNet's layers: recurrent ones, projections, convolutions, norms; reductions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from onernn.adapters.common.bodies import (
    NEAREST,
    extreme_index,
    pooled,
    pooled_whole,
    recurrent_stack,
)
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.table import MxnetOperator, rule
from onernn.ir.errors import UnsupportedError
from onernn.ir.spec import RnnSpec
from onernn.reorders import mxnet

# The rules of layers: projections, embeddings, normalizations, softmax, dropout; reductions too.
#
# Formulas: documentation of MXNet 1.9.1's operators of the same names, in inference.


@rule("FullyConnected", "data weight bias?", inferred="first")
def _fully_connected(op: MxnetOperator, x: str, weight: str) -> str:
    """x @ weight.T + bias; ``flatten`` makes a matrix of x, else its last axis is projected."""
    bias = "" if op.flag("no_bias") else op.value("bias")
    _check_rows(op, weight, op.integer("num_hidden"))
    if op.flag("flatten", True):
        return op.emit("Gemm", op.matrix(x), weight, bias, transB=1)
    out = op.emit("MatMul", x, _transposed(op, weight))
    return op.emit("Add", out, bias) if bias else out


def _check_rows(op: MxnetOperator, weight: str, rows: int) -> None:
    array = op.builder.constants.get(weight)
    if array is not None and (array.ndim != 2 or len(array) != rows):
        raise UnsupportedError(f"input weight: expected ({rows}, I), got {array.shape}")


def _transposed(op: MxnetOperator, weight: str) -> str:
    """Made once for all operators that share the weight."""
    name = f"{weight}/Transpose"
    if name in op.builder.constants:
        return name
    return op.transposed(weight, 1, 0)


def _clipped_index(op: MxnetOperator, at: str, table: str, axis: int) -> str:
    """Indices, those outside moved to the ends, as MXNet's CPU kernels do."""
    last = op.emit("Sub", op.size(table, axis), [1])
    return op.emit("Min", op.emit("Max", at, [0]), last)


@rule("Embedding", "data weight")
def _embedding(op: MxnetOperator, at: str, weight: str) -> str:
    """Rows of weight; indices come as numbers of any kind, MXNet cuts them towards zero."""
    _check_rows(op, weight, op.integer("input_dim"))
    op.integer("output_dim")
    op.dtype("dtype")
    at = op.cast(at, np.int64)
    return op.emit("Gather", weight, _clipped_index(op, at, weight, 0), axis=0)


@rule("take", "a indices")
def _take(op: MxnetOperator, table: str, at: str) -> str:
    axis, mode = op.integer("axis", 0), op.text("mode", "clip")
    at = op.cast(at, np.int64)
    if mode == "clip":
        at = _clipped_index(op, at, table, axis)
    elif mode == "wrap":
        at = op.emit("Mod", at, op.size(table, axis))
    else:
        raise UnsupportedError(f"attribute mode={mode!r}")
    return op.emit("Gather", table, at, axis=axis)


@rule("one_hot", "indices")
def _one_hot(op: MxnetOperator, at: str) -> str:
    """A negative index gives a row of off, where ONNX would count from the end."""
    at, dtype, depth = op.cast(at, np.int64), op.dtype("dtype"), op.integer("depth")
    values = np.array([op.number("off_value", 0.0), op.number("on_value", 1.0)], dtype)
    pair = op.constant(values, "values")
    at = op.emit("Where", op.emit("Less", at, [0]), [depth], at)
    return op.emit("OneHot", at, [depth], pair, axis=-1)


@rule("pick", "data index")
def _pick(op: MxnetOperator, x: str, index: str) -> str:
    """One element along an axis for each of the others; an index outside is clipped."""
    axis = op.integer("axis", -1)
    op.only(mode="clip")
    shape = op.resized(op.sizes_of(x), axis, 1)  # the index may have the axis, or not
    at = op.emit("Reshape", op.cast(index, np.int64), shape)
    out = op.emit("GatherElements", x, _clipped_index(op, at, x, axis), axis=axis)
    if op.flag("keepdims"):
        return out
    return op.listed(op.squeezed(out, axis), axis)


@rule("Dropout", "data", inferred="first")
def _dropout(op: MxnetOperator, x: str) -> str:
    if op.text("mode", "training") != "training":
        raise UnsupportedError("attribute mode='always' draws random numbers in inference, too")
    op.sizes("axes")
    if p := op.number("p", 0.5):
        op.note(f"dropout p={p:g} has no effect in inference")
    return x


def _refuse_statistics(op: MxnetOperator) -> None:
    if op.flag("output_mean_var"):
        raise UnsupportedError("attribute output_mean_var: only the first output is computed")


@rule("BatchNorm", "data gamma? beta? moving_mean? moving_var?")
def _batch_norm(op: MxnetOperator, x: str) -> str:
    """(x - mean) / sqrt(var + eps) * gamma + beta, with the statistics that training left."""
    _refuse_statistics(op)
    op.flag("use_global_stats")
    axis, epsilon = op.integer("axis", 1), op.number("eps", 1e-3)
    arrays = {slot: op.array(slot) for slot in ("gamma", "beta", "moving_mean", "moving_var")}
    if op.flag("fix_gamma", True):
        arrays["gamma"] = np.ones_like(arrays["gamma"])
    if axis == 1:
        constants = [op.constant(array, slot) for slot, array in arrays.items()]
        return op.emit("BatchNormalization", x, *constants, epsilon=epsilon)
    if axis != -1:
        rank = op.known_rank(x, f"attribute axis={axis}")
        if not -rank <= axis < rank:
            raise UnsupportedError(f"attribute axis={axis} of a value of {rank} axes")
        behind = (1,) * (rank - 1 - axis % rank)
        arrays = {slot: array.reshape(-1, *behind) for slot, array in arrays.items()}
    gamma, beta, mean, variance = arrays.values()
    with np.errstate(invalid="ignore", divide="ignore"):  # what a run would give, NaN or infinity
        factor = gamma / np.sqrt(variance + variance.dtype.type(epsilon))
    out = op.emit("Sub", x, op.constant(mean, "mean"))
    out = op.emit("Mul", out, op.constant(factor, "factor"))
    return op.emit("Add", out, op.constant(beta, "beta"))


@rule("LayerNorm", "data gamma beta")
def _layer_norm(op: MxnetOperator, x: str, gamma: str, beta: str) -> str:
    _refuse_statistics(op)
    axis, epsilon = op.integer("axis", -1), op.number("eps", 1e-5)
    if axis != -1 and axis + 1 != op.known_rank(x, f"attribute axis={axis}"):
        raise UnsupportedError(f"attribute axis={axis}: not the last one")
    return op.emit("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)


@rule("L2Normalization", "data")
def _l2_normalization(op: MxnetOperator, x: str) -> str:
    """x / sqrt(sum of squares + eps): over all but the batch, or over axis 1."""
    mode, epsilon = op.text("mode", "instance"), op.number("eps", 1e-10)
    why = f"attribute mode={mode!r}"
    if mode == "spatial" or mode == "instance" and op.known_rank(x, why) != 2:
        raise UnsupportedError(why)
    square = op.emit("ReduceSumSquare", x, [1], keepdims=1)
    return op.emit("Div", x, op.emit("Sqrt", op.emit("Add", square, op.scalar(epsilon, x))))


@rule("softmax softmin log_softmax", "data length?")
def _softmax(op: MxnetOperator, x: str) -> str:
    axis, temperature = op.integer("axis", -1), op.optional_number("temperature")
    if op.flag("use_length"):
        raise UnsupportedError("attribute use_length")
    dtype = op.text("dtype", "None")
    if temperature not in (None, 1.0):
        x = op.emit("Div", x, op.scalar(temperature or 0.0, x))
    if op.name == "softmin":
        x = op.emit("Neg", x)
    out = op.emit("LogSoftmax" if op.name == "log_softmax" else "Softmax", x, axis=axis)
    return out if dtype == "None" else op.cast(out, op.dtype("dtype"))


@rule("SoftmaxOutput SoftmaxActivation", "data label?")
def _softmax_output(op: MxnetOperator, x: str) -> str:
    """Over axis 1, the last axis, or all that stands behind the batch.

    There oneDNN in MXNet's CPU took the last axis: in SoftmaxActivation always, in SoftmaxOutput
    of four axes.
    """
    op.variables("label")  # for training
    channel = op.text("mode", "instance") == "channel"
    if op.flag("multi_output") or channel:
        return op.emit("Softmax", x, axis=1)
    dtype, rank = op.dtype_of(x), op.rank(x)
    if op.flag("preserve_shape") or rank == 2:
        return op.emit("Softmax", x, axis=-1)
    if op.name == "SoftmaxActivation" or (rank == 4 and dtype != np.float64):
        meanings = "softmax over all that stands behind the batch", "softmax over the last axis"
        if not op.as_documented(*meanings):
            return op.emit("Softmax", x, axis=-1)
    flat, sizes = op.emit("Flatten", x, axis=1), op.sizes_of(x)
    if rank is None and dtype != np.float64 and op.context.semantics != "documented":
        four = op.emit("Equal", op.sizes_of(sizes), [4])
        ends = [op.emit("Gather", s, [-1], axis=0) for s in (sizes, op.sizes_of(flat))]
        width = op.emit("Where", four, *ends)
        flat = op.emit("Reshape", flat, op.joined([-1], width))
    return op.emit("Reshape", op.emit("Softmax", flat, axis=-1), sizes)


@rule("LinearRegressionOutput MAERegressionOutput LogisticRegressionOutput", "data label?")
def _regression_output(op: MxnetOperator, x: str) -> str:
    op.variables("label")  # for training
    return op.emit("Sigmoid", x) if op.name.startswith("Logistic") else x


REDUCTIONS = "sum mean max min prod _np_sum _npi_mean _np_max _np_min _np_prod"


@rule(REDUCTIONS, "data")
def _reduction(op: MxnetOperator, x: str) -> str:
    axes, keep = op.optional_sizes("axis"), op.flag("keepdims")
    kind = f"Reduce{op.name.rpartition('_')[2].capitalize()}"
    op.check_floats(x)
    if op.numpy:
        op.only(dtype="None", initial="None")
    if op.flag("exclude") and axes:
        known = op.known_rank(x, "attribute exclude")
        axes = tuple(sorted(set(range(known)) - {axis % known for axis in axes}))
        if not axes:
            return x
    if axes is None or not (axes or op.numpy):
        out = op.emit(kind, x, keepdims=int(keep))
        return out if keep or op.numpy else op.reshaped(out, 1)
    if not axes:
        return x
    out = op.emit(kind, x, axes, keepdims=int(keep))
    return out if keep else op.listed(out, *axes)


@rule("argmax argmin _npi_argmax _npi_argmin", "data")
def _arg(op: MxnetOperator, x: str) -> str:
    """Legacy: numbers of the input's dtype; NumPy's: int64."""
    axis, keep = op.optional_integer("axis"), op.flag("keepdims")
    kind = "ArgMax" if op.name.endswith("max") else "ArgMin"
    if axis is None and keep:
        raise UnsupportedError("attribute keepdims without an axis")
    out = extreme_index(op, x, kind, axis, keep)
    if op.numpy:
        return out
    out = out if keep else op.listed(out, *() if axis is None else (axis,))
    return op.cast(out, op.dtype_of(x))


@rule("dot _np_dot", "lhs rhs")
def _dot(op: MxnetOperator, *pair: str) -> str:
    """The last axis of the left with the first of the right: a matrix product for matrices."""
    flip = op.flag("transpose_a"), op.flag("transpose_b")
    ranks = [op.known_rank(value, "a dot") for value in pair]
    if ranks[1] != 2 or ranks[0] < 2 or (flip[0] and ranks[0] != 2):
        raise UnsupportedError(f"of values of {ranks[0]} and {ranks[1]} axes")
    return _product(op, *pair)


@rule("batch_dot", "lhs rhs")
def _product(op: MxnetOperator, one: str, other: str) -> str:
    if op.flag("transpose_a"):
        one = op.swapped(one)
    if op.flag("transpose_b"):
        other = op.swapped(other)
    return op.emit("MatMul", one, other)


rule("_npi_matmul", "a b")(lambda op, one, other: op.emit("MatMul", one, other))


@rule("_contrib_div_sqrt_dim", "data")
def _div_sqrt_dim(op: MxnetOperator, x: str) -> str:
    op.check_floats(x)
    size = op.size(x, -1)
    return op.emit("Div", x, op.emit("Sqrt", op.cast(size, op.dtype_of(x))))


# The rules of convolutions and of pooling: (N, C, ...), windows over the axes behind.
#
# Formulas: documentation of MXNet 1.9.1's operators of the same names.

_LAYOUTS = ("None", "NCW", "NCHW", "NCDHW")


def _windows(op: MxnetOperator, x: str) -> dict[str, Any]:
    """ONNX's attributes of the windows; numbers that are missing are one, pads zero."""
    op.ignore("workspace", "cudnn_tune", "cudnn_off")
    op.one_of("layout", "None", _LAYOUTS)
    kernel = op.sizes("kernel")
    if not 1 <= len(kernel) <= 3:
        raise UnsupportedError(f"attribute kernel={kernel}: expected one to three sizes")
    if op.rank(x) is None:
        op.declare_rank(x, len(kernel) + 2)
    pads = _numbers(op, "pad", kernel, 0)
    strides = _numbers(op, "stride", kernel, 1)
    return {"kernel_shape": kernel, "strides": strides, "pads": (*pads, *pads)}


def _numbers(op: MxnetOperator, name: str, kernel: tuple[int, ...], least: int) -> tuple[int, ...]:
    result = op.sizes(name) or (least,) * len(kernel)
    if len(result) != len(kernel):
        raise UnsupportedError(f"attribute {name}={result} for a kernel of {kernel}")
    return result


def _checked(op: MxnetOperator, weight: str, kernel: tuple[int, ...], axis: int, size: int) -> None:
    array = op.builder.constants.get(weight)
    if array is not None and (array.shape[2:] != kernel or array.shape[axis] != size):
        raise UnsupportedError(
            f"input weight {array.shape}: expected {size} on axis {axis} and {kernel} behind"
        )


@rule("Convolution Deconvolution", "data weight bias?")
def _convolution(op: MxnetOperator, x: str, weight: str) -> str:
    """ONNX's Conv and ConvTranspose: the weights are (num_filter, C / num_group, *kernel), and
    (C, num_filter / num_group, *kernel).

    ``target_shape`` is ONNX's output_shape; ``pad`` and ``adj`` are nothing beside it.
    """
    group, back = op.integer("num_group", 1), op.name[0] == "D"
    windows = {"group": group, **_windows(op, x)}
    kernel = windows["kernel_shape"]
    windows["dilations"] = _numbers(op, "dilate", kernel, 1)
    bias = "" if op.flag("no_bias", back) else op.value("bias")
    if group < 1:
        raise UnsupportedError(f"attribute num_group={group}")
    _checked(op, weight, kernel, int(back), op.integer("num_filter") // (group if back else 1))
    if not back:
        return op.emit("Conv", x, weight, bias, **windows)
    wanted, more = op.sizes("target_shape"), _numbers(op, "adj", kernel, 0)
    if any(wanted):
        windows["pads"] = None
        windows["output_shape"] = _numbers(op, "target_shape", kernel, 0)
    else:
        windows["output_padding"] = more
    return op.emit("ConvTranspose", x, weight, bias, **windows)


@rule("UpSampling", "*data")
def _upsampling(op: MxnetOperator, *inputs: str) -> str:
    """Images (N, C, H, W) some times as large; bilinear is a Deconvolution with given weights.

    Of several the first has the size of all, which are put together or added up.
    """
    kind, scale, count = op.text("sample_type", "nearest"), op.integer("scale"), len(inputs)
    how, filters = op.text("multi_input_mode", "concat"), op.integer("num_filter", 0)
    op.ignore("workspace", "num_args")
    if scale < 1:
        raise UnsupportedError(f"attribute scale={scale}")
    if kind == "bilinear" and count == 2:
        size, pad = 2 * scale - scale % 2, scale // 2
        _checked(op, inputs[1], (size, size), 0, filters)
        windows = {"kernel_shape": (size, size), "pads": (pad,) * 4, "strides": (scale, scale)}
        return op.emit("ConvTranspose", *inputs, group=filters, **windows)
    if kind != "nearest" or not count or how not in ("concat", "sum"):
        raise UnsupportedError(f"attributes sample_type={kind!r}, multi_input_mode={how!r}")
    first, *others = inputs
    images = [op.emit("Resize", first, **NEAREST, scales=(1.0, 1.0, float(scale), float(scale)))]
    for other in others:
        sizes = op.joined(op.part(op.sizes_of(other), 0, 2), op.part(op.sizes_of(images[0]), 2, 4))
        images.append(op.emit("Resize", other, "", "", sizes, **NEAREST))
    if how == "concat":
        return op.emit("Concat", *images, axis=1) if others else images[0]
    out = images[0]
    for each in images[1:]:
        out = op.emit("Add", out, each)
    return out


@rule("InstanceNorm", "data gamma beta")
def _instance_norm(op: MxnetOperator, x: str, gamma: str, beta: str) -> str:
    epsilon = op.number("eps", 1e-3)
    return op.emit("InstanceNormalization", x, gamma, beta, epsilon=epsilon)


@rule("Pad", "data")
def _pad(op: MxnetOperator, x: str) -> str:
    """Pairs of what is added before and behind each axis; ONNX has all that comes before first."""
    widths, mode = op.sizes("pad_width"), op.text("mode", "constant")
    if mode not in ("constant", "edge", "reflect") or len(widths) % 2:
        raise UnsupportedError(f"attributes mode={mode!r}, pad_width={widths}")
    value = op.scalar(op.number("constant_value", 0.0), x)
    return op.emit("Pad", x, [*widths[::2], *widths[1::2]], value, mode=mode)


@rule("Pooling", "data")
def _pooling(op: MxnetOperator, x: str) -> str:
    """The largest or the mean of what a window sees; a mean counts the pads, but not beyond."""
    kind = op.one_of("pool_type", "max", ("max", "avg"))
    convention = op.text("pooling_convention", "valid")
    op.ignore("p_value")
    counts = op.text("count_include_pad", "None") != "False"
    if op.flag("global_pool"):
        op.ignore("kernel", "stride", "pad", "layout", "cudnn_off")
        return pooled_whole(op, x, kind)
    windows = _windows(op, x)
    if convention not in ("valid", "full"):
        raise UnsupportedError(
            f"attribute pooling_convention={convention!r}: only valid and full, MXNet 1.9.1 itself"
            " cannot run others"
        )
    windows["ceil_mode"] = int(convention == "full")
    return pooled(op, x, kind, windows.pop("kernel_shape"), counts_pads=counts, **windows)


# The rules of MXNet's recurrent operator, and of those that work along sequences.
#
# Formulas: documentation of MXNet 1.9.1's operators of the same names.


@rule("RNN", "data parameters? state? state_cell? sequence_length?", inferred="none")
def _rnn(op: MxnetOperator, x: str) -> tuple[str, ...]:
    """Outputs y (T, N, D*R) and, with ``state_outputs``, h (L*D, N, R) and c (L*D, N, O)."""
    stack = parse.stack_of(op.node.attributes)
    op.ignore("mode", "state_size", "num_layers", "bidirectional", "projection_size")
    p = op.number("p", 0.0)
    if not 0 <= p <= 1:
        raise UnsupportedError(f"attribute p={p:g}: expected 0 <= p <= 1")
    if p:
        op.note(f"dropout p={p:g} between layers has no effect in inference")
    flat = op.array("parameters")
    if op.is_inferred(x):
        raise UnsupportedError("input data: its size is inferred")
    if flat.dtype.name not in ("float32", "float64"):
        raise UnsupportedError(f"its parameters are {flat.dtype}")
    slots = ["state", "state_cell"][: 1 + (stack.mode == "lstm")]
    # The operator has no input state_cell unless it is an LSTM: lengths come right behind state.
    states = [_state(op, slot) for slot in slots]
    spec = _clipped(op, stack.spec(stack.input_size(flat.size)))
    lengths = _lengths(op, "state_cell" if stack.mode != "lstm" else "sequence_length")
    layers = mxnet.weights(mxnet.split(flat, stack), stack)
    results = recurrent_stack(op, x, states, spec, layers, lengths)
    return results if op.flag("state_outputs") else results[:1]


def _state(op: MxnetOperator, slot: str) -> str:
    """An initial state; absent where it is a constant of zeros, of any batch."""
    value = op.value(slot)
    array = op.builder.constants.get(value)
    if array is not None and not array.any():
        return ""
    if op.is_inferred(value):
        raise UnsupportedError(f"input {slot}: a state of inferred size that is not zero")
    return value


def _lengths(op: MxnetOperator, slot: str) -> str:
    if not op.flag("use_sequence_length"):
        return ""
    lengths = op.value(slot)
    masks = op.as_documented("sequence lengths mask", "sequence lengths are ignored")
    return op.cast(lengths, np.int64) if masks else ""


def _clipped(op: MxnetOperator, spec: RnnSpec) -> RnnSpec:
    """NaN is only stopped where there is a range."""
    clip, stops_nan = parse.cell_clip(op.node.attributes), op.flag(parse.CLIPS[2])
    op.ignore(*parse.CLIPS[:2])
    if clip is None:
        return spec
    clips = "the cell state is clipped to [{:g}, {:g}]".format(*clip)
    if not op.as_documented(clips, "the cell state is not clipped"):
        return spec
    return replace(spec, cell_clip=clip, cell_clip_nan=stops_nan)


def _sequence(op: MxnetOperator) -> tuple[int, str]:
    """(time axis, lengths or ""): data is (T, N, ...) or (N, T, ...)."""
    axis = op.integer("axis", 0)
    if axis not in (0, 1):
        raise UnsupportedError(f"attribute axis={axis}")
    counts = op.optional("sequence_length")
    lengths = op.cast(counts, np.int64) if op.flag("use_sequence_length") else ""
    if lengths and not counts:
        raise UnsupportedError("input sequence_length is missing")
    return axis, lengths


@rule("SequenceMask", "data sequence_length?")
def _sequence_mask(op: MxnetOperator, x: str) -> str:
    axis, lengths = _sequence(op)
    value = op.number("value", 0.0)
    if not lengths:
        return x
    ragged = op.emit("SequenceUnpad", x, lengths, time_major=not axis)
    masked = op.emit("SequencePad", ragged, x, time_major=not axis)
    if not value:
        return masked
    # Where a mask of ones comes out as zeros, the value stands.
    ones = np.ones(1, op.dtype_of(x))
    whole = op.emit("ConstantOfShape", op.sizes_of(x), value=ones)
    inside = op.emit("SequenceUnpad", whole, lengths, time_major=not axis)
    inside = op.emit("SequencePad", inside, x, time_major=not axis)
    kept = op.cast(inside, "bool")
    return op.emit("Where", kept, masked, op.scalar(value, x))


@rule("SequenceLast", "data sequence_length?")
def _sequence_last(op: MxnetOperator, x: str) -> str:
    axis, lengths = _sequence(op)
    if not lengths:
        return op.emit("Gather", x, -1, axis=axis)
    batch_major = x if axis else op.swapped(x, 0, 1)
    at = op.unsqueezed(op.emit("Sub", lengths, [1]), -1)
    return op.emit("GatherND", batch_major, at, batch_dims=1, non_negative=True)


@rule("SequenceReverse", "data sequence_length?")
def _sequence_reverse(op: MxnetOperator, x: str) -> str:
    axis, lengths = _sequence(op)
    if axis:
        raise UnsupportedError(f"attribute axis={axis}")
    if not lengths:
        return op.flipped(x, 0)
    return op.emit("ReverseSequence", x, lengths, time_axis=0, batch_axis=1)
