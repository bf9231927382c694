"""The rules of convolutions, pools and what stands around them: (N, C, H, W), or NHWC turned.

Slots and defaults: the operators' makers in 2.6; formulas measured with 2.6.2 and 3.3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.rules import rule
from onernn.core.errors import UnsupportedError

_LAST = ("NHWC", "NDHWC", "NLC")
_UNFUSED = {
    **{"use_addto": False, "fuse_relu_before_depthwise_conv": False, "exhaustive_search": False},
    **{"fuse_relu": False, "fuse_residual_connection": False, "fuse_activation": ""},
    **{"fuse_brelu": False, "Scale_in": 1.0, "Scale_in_eltwise": 1.0, "Scale_out": 1.0},
}


def _image(op: PaddleOperator, slot: str, name: str = "data_format") -> tuple[str, bool]:
    """The input with its channels as axis 1, and whether they were the last one."""
    layout, rank, x = op.attribute(name, "NCHW"), len(op.shape(slot)), op.value(slot)
    if op.is_ragged(x):
        raise UnsupportedError(f"input {slot}: a LoD over images")
    if layout not in _LAST:
        return x, False
    return op.emit("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)]), True


def _back(op: PaddleOperator, out: str, last: bool, rank: int) -> str:
    return op.emit("Transpose", out, perm=[0, *range(2, rank), 1]) if last else out


def _pads(op: PaddleOperator, axes: int) -> dict[str, Any]:
    """Of each axis, of both ends, or as an algorithm tells; ONNX has all firsts, then all lasts."""
    way, given = (
        op.attribute("padding_algorithm", "EXPLICIT"),
        op.attribute("paddings", (0,) * axes),
    )
    if way == "SAME":
        return {"auto_pad": "SAME_UPPER"}
    if way == "VALID":
        return {"pads": (0,) * 2 * axes}
    if way != "EXPLICIT" or len(given) not in (axes, 2 * axes):
        raise UnsupportedError(f"attributes padding_algorithm={way!r}, paddings={given}")
    return {"pads": (*given, *given) if len(given) == axes else (*given[::2], *given[1::2])}


def _attributes(op: PaddleOperator, axes: int) -> dict[str, Any]:
    for name, value in _UNFUSED.items():
        op.only(name, value)
    for name in ("workspace_size_MB", "use_cudnn"):
        op.attribute(name, 0)
    for name in ("fuse_alpha", "fuse_beta", "fuse_brelu_threshold"):
        op.attribute(name, 0.0)  # of a fused activation: there is none
    pads = _pads(op, axes)
    dilations = op.attribute("dilations", (1,) * axes)
    if "auto_pad" in pads:  # then Paddle takes each element that stands there
        dilations = (1,) * axes
    strides = op.attribute("strides", (1,) * axes)
    return {"strides": strides, "dilations": dilations, "group": op.attribute("groups", 1), **pads}


def _biased(op: PaddleOperator, out: str, axes: int) -> str:
    bias = op.optional("Bias")
    if not bias:
        return out
    return op.emit("Add", out, op.emit("Reshape", bias, op.ints([1, -1, *[1] * axes])))


@rule("conv2d", "depthwise_conv2d", "conv3d")
def _convolution(op: PaddleOperator) -> Results:
    rank = len(op.shape("Input"))
    (x, last), attributes = _image(op, "Input"), _attributes(op, rank - 2)
    out = _biased(op, op.emit("Conv", x, op.value("Filter"), **attributes), rank - 2)
    return {"Output": _back(op, out, last, rank)}


@rule("conv2d_transpose", "depthwise_conv2d_transpose")
def _convolution_back(op: PaddleOperator) -> Results:
    """A given ``output_size`` is one that a larger ``output_padding`` would give."""
    rank = len(op.shape("Input"))
    (x, last), attributes = _image(op, "Input"), _attributes(op, rank - 2)
    if op.attribute("output_size", ()) or op.optional("OutputSize"):
        raise UnsupportedError("attribute output_size: give output_padding instead")
    if "auto_pad" in attributes:
        raise UnsupportedError("attribute padding_algorithm='SAME' of a convolution back")
    more = op.attribute("output_padding", ()) or (0,) * (rank - 2)
    weight = op.value("Filter")
    out = op.emit("ConvTranspose", x, weight, output_padding=more, **attributes)
    return {"Output": _back(op, _biased(op, out, rank - 2), last, rank)}


@rule("pool2d", "pool3d", "max_pool2d_with_index")
def _pool(op: PaddleOperator) -> Results:
    """``exclusive``: a mean counts no pads. Else it counts the whole window everywhere."""
    rank = len(op.shape("X"))
    (x, last), axes = _image(op, "X"), rank - 2
    op.absent("KernelSize of run time")
    kind = "max" if "index" in op.at.type else op.attribute("pooling_type", "max")
    if kind not in ("max", "avg"):
        raise UnsupportedError(f"attribute pooling_type={kind!r}: expected max or avg")
    kernel, ceil = tuple(op.attribute("ksize", ())), op.attribute("ceil_mode", False)
    strides, pads = op.attribute("strides", (1,) * axes), _pads(op, axes)
    exclusive = op.attribute("exclusive", True)
    op.attribute("use_cudnn", False)
    name = "MaxPool" if kind == "max" else "AveragePool"
    if op.attribute("global_pooling", False) or op.attribute("adaptive", False):
        whole = op.attributes.get("global_pooling", False) or kernel == (1,) * axes
        op.attribute("adaptive", False)
        out = op.emit(f"Global{name}", x) if whole else ""
        if not whole:
            sizes = op.shape("X")[1:-1] if last else op.shape("X")[2:]
            kernel = _parts(sizes, kernel)
            out = op.emit(name, x, kernel_shape=kernel, strides=kernel)
        return {"Out": _back(op, out, last, rank)}
    given = pads.get("pads", (0,) * 2 * axes)
    beyond = zip(kernel, strides, given, strict=False)
    if ceil and any(size < stride + before for size, stride, before in beyond):
        raise UnsupportedError("attribute ceil_mode: windows that may see nothing but pads")
    attributes = {"kernel_shape": kernel, "strides": strides, "ceil_mode": int(ceil), **pads}
    if kind == "max":
        return {"Out": _back(op, op.emit(name, x, **attributes), last, rank)}
    if not exclusive and (ceil or "auto_pad" in pads):
        raise UnsupportedError("attribute exclusive=False with ceil_mode or SAME pads")
    out = op.emit(name, x, count_include_pad=int(not exclusive), **attributes)
    return {"Out": _back(op, out, last, rank)}


def _parts(sizes: Sequence[int | None], wanted: Sequence[int]) -> tuple[int, ...]:
    """The windows of an adaptive pool: equal ones, beside each other."""
    if len(wanted) != len(sizes) or any(
        size is None or part < 1 or size % part for size, part in zip(sizes, wanted, strict=True)
    ):
        raise UnsupportedError(
            f"attribute adaptive: {tuple(sizes)} into {tuple(wanted)} parts; only of known and"
            " equal sizes, or of one part over all axes"
        )
    return tuple((size or 0) // part for size, part in zip(sizes, wanted, strict=True))


def _affine(op: PaddleOperator, slots: Sequence[str], like: str) -> list[str]:
    """Scale and Bias: ones and zeros where they are absent."""
    channels = op.shape(like)[1]
    made = []
    for slot, number in zip(slots, (1, 0), strict=True):
        value = op.optional(slot)
        if not value and channels is None:
            raise UnsupportedError(f"input {slot} is missing, and nobody knows how many channels")
        filled = np.full(channels or 0, number, op.dtype(like))
        made.append(value or op.builder.constant(filled, slot.lower()))
    return made


@rule("instance_norm")
def _instance_norm(op: PaddleOperator) -> Results:
    epsilon, affine = op.attribute("epsilon", 1e-5), _affine(op, ("Scale", "Bias"), "X")
    return {
        "Y": op.emit("InstanceNormalization", op.dense(op.value("X")), *affine, epsilon=epsilon)
    }


@rule("group_norm")
def _group_norm(op: PaddleOperator) -> Results:
    layout, groups = op.attribute("data_layout", "NCHW"), op.attribute("groups", 1)
    if layout in _LAST:
        raise UnsupportedError(f"attribute data_layout={layout!r}: give (N, C, ...)")
    epsilon, affine = op.attribute("epsilon", 1e-5), _affine(op, ("Scale", "Bias"), "X")
    x = op.dense(op.value("X"))
    return {"Y": op.emit("GroupNormalization", x, *affine, num_groups=groups, epsilon=epsilon)}


@rule("prelu")
def _prelu(op: PaddleOperator) -> Results:
    mode, layout = op.attribute("mode", "all"), op.attribute("data_format", "NCHW")
    rank = len(op.shape("X"))
    slope = op.value("Alpha")
    if mode == "channel":
        behind = 0 if layout in _LAST else rank - 2
        slope = op.emit("Reshape", slope, op.ints([-1, *[1] * behind]))
    elif mode == "all":
        slope = op.emit("Reshape", slope, op.ints([1]))
    else:
        raise UnsupportedError(f"attribute mode={mode!r}: expected all or channel")
    return op.emit("PRelu", op.value("X"), slope)


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@rule("pad", "pad2d", "pad3d")
def _pad(op: PaddleOperator) -> Results:
    """``pad3d`` and ``pad2d`` tell the last axis first, ``pad`` all axes in order."""
    if op.variables("Paddings of run time") or op.variables("Paddings"):
        raise UnsupportedError("input Paddings: computed at run time")
    rank, pads, x = len(op.shape("X")), list(op.attribute("paddings", (0,))), op.value("X")
    mode, value = "constant", op.attribute("pad_value", 0.0) if op.at.type != "pad3d" else 0.0
    first = 0
    if op.at.type != "pad":
        mode = {"edge": "replicate"}.get(found := op.attribute("mode", "constant"), found)
        value = op.attribute("value", 0.0) if op.at.type == "pad3d" else value
        first = 1 if op.attribute("data_format", "NCHW") in _LAST else 2
    axes = range(first, first + len(pads) // 2)
    if op.at.type == "pad3d":
        pads = [number for at in reversed(range(0, len(pads), 2)) for number in pads[at : at + 2]]
    if mode not in _MODES or len(pads) % 2 or len(axes) > rank - first:
        raise UnsupportedError(f"attributes mode={mode!r}, paddings={pads} of {rank} axes")
    if 0 in axes and op.is_ragged(x) and any(pads[:2]):
        raise UnsupportedError("attribute paddings: the words of a LoD")
    filled = op.builder.constant(np.asarray(value, op.dtype("X")), "filled")
    around = op.ints([*pads[::2], *pads[1::2]])
    return op.emit("Pad", op.dense(x), around, filled, op.ints(axes), mode=_MODES[mode])


@rule(
    "nearest_interp_v2",
    "bilinear_interp_v2",
    "linear_interp_v2",
    "nearest_interp",
    "bilinear_interp",
)
def _interpolated(op: PaddleOperator) -> Results:
    """Nearest rounds down, as Paddle's kernel does; ``align_mode`` 1 counts from the corner."""
    rank = len(op.shape("X"))
    x, last = _image(op, "X", "data_layout")
    op.absent("OutSize", "SizeTensor", "Scale")
    method, corners = op.attribute("interp_method", "bilinear"), op.attribute("align_corners", True)
    mode, scale = op.attribute("align_mode", 1), op.attribute("scale", ())
    scale = tuple(scale) if isinstance(scale, tuple | list) else (scale,) if scale else ()
    sizes = [op.attribute(name, -1) for name in ("out_d", "out_h", "out_w")][-(rank - 2) :]
    if method not in ("nearest", "bilinear", "linear"):
        raise UnsupportedError(f"attribute interp_method={method!r}: nearest or linear")
    if method == "nearest":
        if corners:
            raise UnsupportedError("attribute align_corners of nearest elements")
        way, more = "asymmetric", {"nearest_mode": "floor"}
    else:
        way, more = "align_corners" if corners else "half_pixel" if mode == 0 else "asymmetric", {}
    attributes = {"coordinate_transformation_mode": way, **more}
    attributes["mode"] = "nearest" if method == "nearest" else "linear"
    if scale:
        scale = scale * (rank - 2) if len(scale) == 1 else scale
        by = op.builder.constant(np.array([1, 1, *scale], np.float32), "scales")
        return _back(op, op.emit("Resize", x, "", by, **attributes), last, rank)
    if min(sizes) < 1:
        raise UnsupportedError(f"attributes out_h, out_w: {sizes}")
    shape = op.emit("Concat", op.emit("Shape", x, start=0, end=2), op.ints(sizes), axis=0)
    return _back(op, op.emit("Resize", x, "", "", shape, **attributes), last, rank)


@rule("unstack", "unbind")
def _unstack(op: PaddleOperator) -> Results:
    """Each part along an axis, without that axis."""
    axis, rank = op.attribute("axis", 0), len(op.shape("X"))
    op.attribute("num", 0)
    slot = "Y" if op.at.type == "unstack" else "Out"
    names, at = op.outputs.get(slot, ()), op.ints([axis % rank])
    parts = op.builder.emit_many("Split", (op.dense(op.value("X")),), len(names), {"axis": axis})
    made = [op.emit("Squeeze", part, at) for part in parts]
    return {slot if not k else f"{slot}.{k}": part for k, part in enumerate(made)}
