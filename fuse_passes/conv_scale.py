"""Scales and shifts of a convolution's channels are multiplied into its weights."""

from __future__ import annotations

import numpy as np

from onernn.fuse_passes.rewriting import Tape, rewrite
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node


@rewrite("conv_scale")
def fuse_conv_scale(graph: Graph, node: Node) -> Graph | Refusal | None:
    """``BatchNormalization(Conv(x))``, ``Conv(x) * a``, ``Conv(x) + b`` -> ``Conv(x)``.

    Computed in float64 and rounded once; refused if another node reads the convolution.
    """
    if node.op != "BatchNormalization" and node.op not in ("Mul", "Add"):
        return None
    conv = next((result for result in map(graph.producer, node.inputs) if result), None)
    if conv is None or conv.op != "Conv":
        return None
    where = node.outputs[0]
    others = [name for name in node.inputs if name != conv.outputs[0]]
    constants = [graph.constants.get(name) for name in (*conv.inputs[1:], *others) if name]
    if any(array is None for array in constants):
        return Refusal("weights, or what scales them, are computed at run time", where)
    if not graph.used_only_by(conv.outputs[0], node):
        return Refusal(f"{conv.outputs[0]!r} has another user", where)
    weight = graph.constants[conv.inputs[1]]
    if any(array is not None and array.dtype != weight.dtype for array in constants):
        return Refusal("weights and what scales them are of several types", where)
    if weight.dtype == np.float16:
        return Refusal("weights in float16 would lose bits", where)
    if weight.ndim < 3:
        return None  # a run says what is wrong
    scaling = _affine(node, [graph.constants[name] for name in others], weight)
    if isinstance(scaling, str):
        return Refusal(scaling, where)
    scale, shift = scaling
    old = graph.constants[conv.input(2)] if conv.input(2) else np.zeros(len(weight))
    if old.shape != (len(weight),):
        return None
    columns = scale.reshape(-1, *[1] * (weight.ndim - 1))
    with np.errstate(over="ignore"):
        result = (weight * columns).astype(weight.dtype)
        bias = (old.astype(np.float64) * scale + shift).astype(weight.dtype)
    if not (np.isfinite(result).all() and np.isfinite(bias).all()):
        return Refusal("the product of weights and scale is infinite", where)
    to = Tape(graph, where, conv.origin + node.origin)
    inputs = (conv.inputs[0], *(to.constant(each, weight.dtype) for each in (result, bias)))
    to.emit("Conv", inputs, where, **conv.attributes)
    return to.replace(conv, node)


def _affine(node: Node, arrays: list[Array], weight: Array) -> tuple[Array, Array] | str:
    """Returns (scale, shift) of each channel in float64, or why there are none."""
    channels, zeros = len(weight), np.zeros(len(weight))
    wide = [array.astype(np.float64) for array in arrays]
    if node.op == "BatchNormalization":
        if len(wide) != 4 or any(array.shape != (channels,) for array in wide):
            return f"statistics of another number than {channels} channels"
        if node.attrs.training_mode or (wide[3] + node.attrs.epsilon <= 0).any():
            return "it is not of inference, or a variance is not positive"
        scale = wide[0] / np.sqrt(wide[3] + node.attrs.epsilon)
        return scale, wide[1] - wide[2] * scale
    if len(wide) != 1 or wide[0].ndim > weight.ndim:
        return "both are the convolution, or what is combined with it has more axes"
    sizes = (1,) * (weight.ndim - wide[0].ndim) + wide[0].shape
    if sizes not in ((1,) * weight.ndim, (1, channels, *[1] * (weight.ndim - 2))):
        return f"{wide[0].shape} is not one number a channel"
    numbers = zeros + wide[0].reshape(-1)
    return (numbers, zeros) if node.op == "Mul" else (zeros + 1, numbers)
