"""A layer in bytes, as ONNX says it: QuantizeLinear and DequantizeLinear around the operator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onernn.adapters.onnx.precision import DTYPES
from onernn.adapters.onnx.write.writer import GraphWriter
from onernn.core.arrays import Array
from onernn.core.precision import LayerPrecision, own_factors
from onernn.core.rnn import Recurrent
from onernn.core.spec import Cell
from onernn.core.weights import RnnWeights
from onernn.reorders import onnx


def has_two_inputs(rnn: Recurrent) -> bool:
    """Whether directions round their common input in two ways: they become two operators."""
    D, parts = rnn.spec.directions, rnn.precision.parts
    rows = (parts[at : at + D] for at in range(0, len(parts), D))
    return any(len({part.data for part in row}) > 1 for row in rows)


def told(precision: LayerPrecision, weights: RnnWeights) -> LayerPrecision:
    """The precision with the factors of all columns, those that a kernel would find among them."""
    parts = []
    for d, part in enumerate(precision.parts):
        assert weights.layer is not None  # `refuse`
        if part.layer is None:
            part = replace(part, layer=own_factors(weights.layer[0, d], 0))
        if part.iter is None:
            part = replace(part, iter=own_factors(weights.iter[0, d], 0))
        parts.append(part)
    return replace(precision, parts=tuple(parts))


def refuse(rnn: Recurrent, reason: str) -> None:
    """Raises `UnsupportedError` where a layer with a precision is none of ONNX's operators.

    ``reason``: why it is none, "" where it is one.
    """
    if rnn.spec.input_forget or rnn.layers[0].layer is None:
        reason = reason or "its gates are made of others, or its input is projected already"
    if reason or rnn.precision.dtype not in DTYPES:
        rnn.precision.refuse(f"an ONNX file{f' ({reason})' * bool(reason)}")


def rounded_input(w: GraphWriter, x: str, precision: LayerPrecision) -> str:
    """x as its bytes hold it, where it is rounded by one scale."""
    data = precision.parts[0].data if precision.parts else None
    if data is None:
        return x
    scale = w.constant(1 / data.factor, "float32"), w.constant(data.shift, "uint8")
    return w.emit("DequantizeLinear", w.emit("QuantizeLinear", x, *scale), *scale)


def rounded_matrix(
    w: GraphWriter, ldigo: Array, factors: list[Array], cell: Cell, name: str
) -> str:
    """W or R in signed bytes, a scale for each of its rows; ``factors`` (G, O), by direction."""
    steps = np.reciprocal(np.stack(factors)[None, :, None], dtype=np.float32)
    whole = np.rint(ldigo / steps).clip(-128, 127)
    data = onnx.matrix_back(whole, cell).astype(np.int8)
    D, rows, inputs = data.shape
    scales = onnx.matrix_back(steps, cell).reshape(-1)
    flat = w.constant(data.reshape(D * rows, inputs), name=f"{name}/bytes")
    floats = w.emit("DequantizeLinear", flat, w.constant(scales, name=f"{name}/scale"), axis=0)
    return w.emit("Reshape", floats, w.ints(D, rows, inputs))
