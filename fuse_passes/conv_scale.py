"""Merges scales and shifts of a convolution's channels into the convolution's weights."""

from __future__ import annotations

import numpy as np

from onernn.fuse_passes.rewriting import Tape, rewrite
from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node


@rewrite("conv_scale", "BatchNormalization", "Mul", "Add")
def fuse_conv_scale(graph: Graph, node: Node) -> Graph | str | None:
    """Turns ``BatchNormalization(Conv(x))``, ``Conv(x) * a`` and ``Conv(x) + b`` into ``Conv(x)``.

    The new weights are computed in float64 and rounded once.
    """
    conv = next((result for result in map(graph.producer, node.inputs) if result), None)
    if conv is None or conv.op != "Conv":
        return None
    others = [name for name in node.inputs if name != conv.outputs[0]]
    constants = [graph.constants.get(name) for name in (*conv.inputs[1:], *others) if name]
    if any(array is None for array in constants):
        return "weights or their scale are computed at run time"
    if not graph.is_used_only_by(conv.outputs[0], node):
        return f"{conv.outputs[0]!r} has another user"
    weight = graph.constants[conv.inputs[1]]
    if any(array is not None and array.dtype != weight.dtype for array in constants):
        return "weights and their scale have different dtypes"
    if weight.dtype == np.float16:
        return "weights in float16 would lose bits"
    if weight.ndim < 3:
        return None  # this is not a valid Conv: a run of the model raises an error
    scaling = _affine(node, [graph.constants[name] for name in others], weight)
    if isinstance(scaling, str):
        return scaling
    scale, shift = scaling
    old = graph.constants[conv.input(2)] if conv.input(2) else np.zeros(len(weight))
    if old.shape != (len(weight),):
        return None
    columns = scale.reshape(-1, *[1] * (weight.ndim - 1))
    with np.errstate(over="ignore"):
        result = (weight * columns).astype(weight.dtype)
        bias = (old.astype(np.float64) * scale + shift).astype(weight.dtype)
    if not (np.isfinite(result).all() and np.isfinite(bias).all()):
        return "the product of weights and scale is infinite"
    to = Tape(graph, node.outputs[0], conv.origin + node.origin)
    arrays = (to.constant(each, weight.dtype) for each in (result, bias))
    to.emit("Conv", conv.inputs[0], *arrays, output=node.outputs[0], **conv.attributes)
    return to.replace(conv, node)


def _affine(node: Node, arrays: list[Array], weight: Array) -> tuple[Array, Array] | str:
    """Returns the scale and the shift of each channel in float64, or a text that says why the node
    has none.
    """
    channels, zeros = len(weight), np.zeros(len(weight))
    wide = [array.astype(np.float64) for array in arrays]
    if node.op == "BatchNormalization":
        if len(wide) != 4 or any(array.shape != (channels,) for array in wide):
            return f"expected statistics of {channels} channels"
        if node.attrs.training_mode or (wide[3] + node.attrs.epsilon <= 0).any():
            return "expected inference, and positive variances"
        scale = wide[0] / np.sqrt(wide[3] + node.attrs.epsilon)
        return scale, wide[1] - wide[2] * scale
    if len(wide) != 1 or wide[0].ndim > weight.ndim:
        return "both are the convolution, or what is combined with it has more axes"
    sizes = (1,) * (weight.ndim - wide[0].ndim) + wide[0].shape
    if sizes not in ((1,) * weight.ndim, (1, channels, *[1] * (weight.ndim - 2))):
        return f"expected one value per channel, got {wide[0].shape}"
    numbers = zeros + wide[0].reshape(-1)
    return (numbers, zeros) if node.op == "Mul" else (zeros + 1, numbers)
