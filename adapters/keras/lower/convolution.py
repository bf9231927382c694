"""The rules of convolutions and pooling: windows over the axes between samples and channels.

Formulas: documentation of keras.layers of these names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from onernn.adapters.keras.lower import activations
from onernn.adapters.keras.lower.layer import KerasLayer, Made, Tensor, rule
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError


def _axes(op: KerasLayer) -> int:
    """Over how many axes the windows of a class go."""
    found = re.search(r"([123])D", op.at.type)
    assert found is not None
    axes = int(found[1])
    if op.rank(op.x) != axes + 2:
        raise UnsupportedError(f"expected {axes + 2} axes, got {op.rank(op.x)}")
    return axes


def _is_first(op: KerasLayer) -> bool:
    """Whether the channels stand before the other axes."""
    found = op.attribute("data_format", "channels_last")
    if found not in ("channels_last", "channels_first"):
        raise UnsupportedError(f"attribute data_format={found!r}")
    return found == "channels_first"


def _pads(op: KerasLayer, kernel: Sequence[int], dilations: Sequence[int]) -> dict[str, Any]:
    padding = op.attribute("padding", "valid")
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
    given = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    if min(kernel + strides + dilations) < 1:
        raise UnsupportedError(f"windows of {given}")
    return {**given, **_pads(op, kernel, dilations)}


def _framed(op: KerasLayer, first: bool, windows: Any) -> str:
    """What ``windows`` makes of (N, C, ...), with the channels where they were."""
    y = windows(op.floats if first else op.channels_first(op.floats))
    return y if first else op.channels_last(y)


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
    for array in bias:
        shape = (-1, *[1] * (op.rank(y) - 2)) if first else (-1,)
        y = op.emit("Add", y, op.constant(array.reshape(shape), "bias"))
    return activations.apply(op, y, op.attribute("activation", None))


@rule("Conv1D", "Conv2D", "Conv3D")
def _conv(op: KerasLayer) -> str:
    axes, first = _axes(op), _is_first(op)
    windows, groups = _windows(op, axes, "kernel_size"), op.integer("groups", 1)
    names = ("kernel", "bias")[: 1 + op.flag("use_bias", True)]
    kernel, *bias = op.weights(*names)
    told = (*windows["kernel_shape"], op.integer("filters"))
    if (*kernel.shape[:axes], kernel.shape[-1]) != told:
        raise UnsupportedError(f"kernel: {kernel.shape} for {told}")
    given = [op.constant(_kernel(kernel, axes), "kernel"), *(op.constant(b, "bias") for b in bias)]
    y = _framed(op, first, lambda x: op.emit("Conv", x, *given, group=groups, **windows))
    return _bias(op, y, [], first)


@rule("DepthwiseConv1D", "DepthwiseConv2D")
def _depthwise(op: KerasLayer) -> str:
    axes, first = _axes(op), _is_first(op)
    windows = _windows(op, axes, "kernel_size")
    op.only("groups", 1)
    op.attribute("depth_multiplier", None)
    kernel, *bias = op.weights("kernel|depthwise_kernel", *["bias"] * op.flag("use_bias", True))
    y = _framed(op, first, lambda x: _over_each(op, x, kernel, axes, windows))
    return _bias(op, y, bias, first)


def _over_each(op: KerasLayer, x: str, kernel: Array, axes: int, windows: dict[str, Any]) -> str:
    if kernel.shape[:axes] != (*windows["kernel_shape"],):
        raise UnsupportedError(f"kernel: {kernel.shape} for {windows['kernel_shape']}")
    weights = op.constant(_each_channel(kernel, axes), "kernel")
    return op.emit("Conv", x, weights, group=kernel.shape[axes], **windows)


@rule("SeparableConv1D", "SeparableConv2D")
def _separable(op: KerasLayer) -> str:
    axes, first = _axes(op), _is_first(op)
    windows = _windows(op, axes, "kernel_size")
    op.only("groups", 1)
    op.attribute("depth_multiplier", None)
    biased = ["bias"] * op.flag("use_bias", True)
    kernel, points, *bias = op.weights("depthwise_kernel", "pointwise_kernel", *biased)
    if points.shape[-1] != op.integer("filters"):
        raise UnsupportedError(f"pointwise_kernel: {points.shape}")
    weights = op.constant(_kernel(points, axes), "points")

    def both(x: str) -> str:
        return op.emit("Conv", _over_each(op, x, kernel, axes, windows), weights)

    return _bias(op, _framed(op, first, both), bias, first)


@rule(*(f"{kind}Pooling{axes}D" for kind in ("Max", "Average") for axes in (1, 2, 3)))
def _pool(op: KerasLayer) -> str:
    axes, first = _axes(op), _is_first(op)
    kernel = op.integers("pool_size", axes, 2)
    strides = op.integers("strides", axes, 0)
    strides = strides if any(strides) else kernel
    pads = _pads(op, kernel, [1] * axes)
    if min(kernel + strides) < 1:
        raise UnsupportedError(f"windows of {kernel} and {strides}")
    name = "MaxPool" if op.at.type.startswith("Max") else "AveragePool"
    return _framed(
        op, first, lambda x: op.emit(name, x, kernel_shape=kernel, strides=strides, **pads)
    )


@rule(*(f"Global{kind}Pooling{axes}D" for kind in ("Max", "Average") for axes in (1, 2, 3)))
def _global_pool(op: KerasLayer) -> Made:
    axes, first = _axes(op), _is_first(op)
    tensor, kept = op.tensor, int(op.flag("keepdims"))
    over = op.ints(*range(2, axes + 2) if first else range(1, axes + 1))
    if op.at.type == "GlobalAveragePooling1D" and tensor.mask:
        column = op.emit("Unsqueeze", tensor.mask, op.ints(1 if first else 2))
        x = op.emit("Where", column, op.floats, op.scalar(0, op.floats))
        total = op.emit("ReduceSum", x, over, keepdims=kept)
        count = op.emit("ReduceSum", op.emit("CastLike", column, x), over, keepdims=kept)
        return Tensor(op.emit("Div", total, count))
    name = "ReduceMax" if op.at.type.startswith("GlobalMax") else "ReduceMean"
    return op.emit(name, op.floats, over, keepdims=kept)


@rule("UpSampling1D", "UpSampling2D", "UpSampling3D")
def _upsampling(op: KerasLayer) -> str:
    axes, first = _axes(op), _is_first(op)
    op.only("interpolation", "nearest")
    times = op.integers("size", axes, 2)
    scales = (1.0, 1.0, *times) if first else (1.0, *times, 1.0)
    return op.emit(
        "Resize",
        op.floats,
        scales=tuple(map(float, scales)),
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


@rule("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D")
def _zero_padding(op: KerasLayer) -> str:
    begin, end = _around(op, "padding")
    return op.emit("Pad", op.x, op.ints(*begin, *end))


@rule("Cropping1D", "Cropping2D", "Cropping3D")
def _cropping(op: KerasLayer) -> str:
    begin, end = _around(op, "cropping")
    ends = [-cut if cut else 2**62 for cut in end]
    return op.emit("Slice", op.x, op.ints(*begin), op.ints(*ends), op.ints(*range(len(begin))))


def _around(op: KerasLayer, name: str) -> tuple[list[int], list[int]]:
    """Before and behind each axis, from ((before, behind), ...)."""
    axes, first = _axes(op), _is_first(op)
    told: Any = op.attribute(name, None)
    told = 1 if told is None else told
    pairs = [told] if axes == 1 and isinstance(told, list) else told
    pairs = pairs if isinstance(pairs, list) else [pairs] * axes
    pairs = [pair if isinstance(pair, list) else [pair, pair] for pair in pairs]
    numbers = [number for pair in pairs for number in pair]
    if len(numbers) != 2 * axes or not all(type(n) is int and n >= 0 for n in numbers):
        raise UnsupportedError(f"attribute {name}={told!r}: expected two integers for each axis")
    outside = ([0, 0], []) if first else ([0], [0])
    begin, end = ([*outside[0], *(pair[side] for pair in pairs), *outside[1]] for side in (0, 1))
    return begin, end
