"""The rules of convolutions and of pooling: (N, C, ...), windows over the axes behind.

Formulas: documentation of MXNet 1.9.1's operators of the same names.
"""

from __future__ import annotations

from typing import Any

from onernn.adapters.mxnet.lower.operator import MxnetOperator
from onernn.adapters.mxnet.lower.rules import rule
from onernn.core.errors import UnsupportedError

_LAYOUTS = ("None", "NCW", "NCHW", "NCDHW")


def _windows(op: MxnetOperator, x: str) -> dict[str, Any]:
    """ONNX's attributes of the windows; numbers that are missing are one, pads zero."""
    for ignored in ("workspace", "cudnn_tune", "cudnn_off"):
        op.attribute(ignored, None)
    layout, kernel = op.text("layout", "None"), op.sizes("kernel")
    if layout not in _LAYOUTS:
        raise UnsupportedError(f"attribute layout={layout!r}: only {', '.join(_LAYOUTS[1:])}")
    if not 1 <= len(kernel) <= 3:
        raise UnsupportedError(f"attribute kernel={kernel}: expected one to three sizes")
    if op.rank(x) is None:
        op.declare_rank(x, len(kernel) + 2)
    pads = _numbers(op, "pad", kernel, 0)
    strides = _numbers(op, "stride", kernel, 1)
    return {"kernel_shape": kernel, "strides": strides, "pads": (*pads, *pads)}


def _numbers(op: MxnetOperator, name: str, kernel: tuple[int, ...], least: int) -> tuple[int, ...]:
    found = op.sizes(name) or (least,) * len(kernel)
    if len(found) != len(kernel):
        raise UnsupportedError(f"attribute {name}={found} for a kernel of {kernel}")
    return found


def _checked(op: MxnetOperator, weight: str, kernel: tuple[int, ...], axis: int, size: int) -> None:
    array = op.builder.constants.get(weight)
    if array is not None and (array.shape[2:] != kernel or array.shape[axis] != size):
        raise UnsupportedError(
            f"input weight {array.shape}: expected {size} on axis {axis} and {kernel} behind"
        )


@rule("Convolution", "data weight bias?")
def _convolution(op: MxnetOperator, x: str, weight: str) -> str:
    """ONNX's Conv: the weights are (num_filter, C / num_group, *kernel)."""
    windows, group = _windows(op, x), op.integer("num_group", 1)
    windows["dilations"] = _numbers(op, "dilate", windows["kernel_shape"], 1)
    bias = [] if op.flag("no_bias") else [op.value("bias")]
    _checked(op, weight, windows["kernel_shape"], 0, op.integer("num_filter"))
    return op.emit("Conv", x, weight, *bias, group=group, **windows)


@rule("Deconvolution", "data weight bias?")
def _deconvolution(op: MxnetOperator, x: str, weight: str) -> str:
    """ONNX's ConvTranspose: the weights are (C, num_filter / num_group, *kernel).

    ``target_shape`` is ONNX's output_shape; ``pad`` and ``adj`` are nothing beside it.
    """
    windows, group = _windows(op, x), op.integer("num_group", 1)
    kernel, wanted = windows["kernel_shape"], op.sizes("target_shape")
    windows["dilations"] = _numbers(op, "dilate", kernel, 1)
    more = _numbers(op, "adj", kernel, 0)
    bias = [] if op.flag("no_bias", True) else [op.value("bias")]
    if group < 1:
        raise UnsupportedError(f"attribute num_group={group}")
    _checked(op, weight, kernel, 1, op.integer("num_filter") // group)
    if any(wanted):
        windows["pads"] = None
        windows["output_shape"] = _numbers(op, "target_shape", kernel, 0)
    else:
        windows["output_padding"] = more
    return op.emit("ConvTranspose", x, weight, *bias, group=group, **windows)


@rule("UpSampling", "*data")
def _upsampling(op: MxnetOperator, *given: str) -> str:
    """Images (N, C, H, W) some times as large; bilinear is a Deconvolution with given weights.

    Of several the first tells the size of all, which are put together or added up.
    """
    kind, scale, count = op.text("sample_type", "nearest"), op.integer("scale"), len(given)
    how, filters = op.text("multi_input_mode", "concat"), op.integer("num_filter", 0)
    for ignored in ("workspace", "num_args"):
        op.attribute(ignored, None)
    if scale < 1:
        raise UnsupportedError(f"attribute scale={scale}")
    if kind == "bilinear" and count == 2:
        size, pad = 2 * scale - scale % 2, scale // 2
        _checked(op, given[1], (size, size), 0, filters)
        windows = {"kernel_shape": (size, size), "pads": (pad,) * 4, "strides": (scale, scale)}
        return op.emit("ConvTranspose", *given, group=filters, **windows)
    if kind != "nearest" or not count or how not in ("concat", "sum"):
        raise UnsupportedError(f"attributes sample_type={kind!r}, multi_input_mode={how!r}")
    first, *others = given
    told = {"mode": "nearest", "nearest_mode": "floor"}
    told["coordinate_transformation_mode"] = "asymmetric"
    made = [op.emit("Resize", first, **told, scales=(1.0, 1.0, float(scale), float(scale)))]
    for other in others:
        sizes = op.joined(op.part(op.sizes_of(other), 0, 2), op.part(op.sizes_of(made[0]), 2, 4))
        made.append(op.emit("Resize", other, "", "", sizes, **told))
    if how == "concat":
        return op.emit("Concat", *made, axis=1) if others else made[0]
    out = made[0]
    for each in made[1:]:
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
    return op.emit("Pad", x, op.ints(*widths[::2], *widths[1::2]), value, mode=mode)


@rule("Pooling", "data")
def _pooling(op: MxnetOperator, x: str) -> str:
    """The largest or the mean of what a window sees; a mean counts the pads, but not beyond."""
    kind, convention = op.text("pool_type", "max"), op.text("pooling_convention", "valid")
    op.attribute("p_value", None)
    counts = op.text("count_include_pad", "None") != "False"
    if kind not in ("max", "avg"):
        raise UnsupportedError(f"attribute pool_type={kind!r}: only max and avg")
    if op.flag("global_pool"):
        for name in ("kernel", "stride", "pad", "layout", "cudnn_off"):
            op.attribute(name, None)
        return op.emit("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", x)
    windows = _windows(op, x)
    if convention not in ("valid", "full"):
        raise UnsupportedError(
            f"attribute pooling_convention={convention!r}: only valid and full, MXNet 1.9.1 itself"
            " cannot run others"
        )
    numbers = zip(windows["kernel_shape"], windows["strides"], windows["pads"], strict=False)
    if convention == "full" and any(size < stride + pad for size, stride, pad in numbers):
        raise UnsupportedError(
            "attribute pooling_convention='full' with windows that may see nothing but pads"
        )
    windows["ceil_mode"] = int(convention == "full")
    if kind == "max":
        return op.emit("MaxPool", x, **windows)
    return op.emit("AveragePool", x, count_include_pad=int(counts), **windows)
