"""Scales of u8 data and s8 weights, for the RNN primitives and their reorders."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.backend.onednn.library import Library
from onernn.ir.arrays import Array
from onernn.ir.weights import NO_SCALES, PartScales, RnnWeights, Scale

_PER_GATE_AND_OUTPUT = (1 << 3) | (1 << 4)  # axes g and o of ldigo
_PER_OUTPUT = 1 << 3  # axis o of ldio


def set_scales(
    library: Library,
    attributes: Any,
    weights: RnnWeights,
    scale: Scale,
    per_channel: bool,
    columns: PartScales = NO_SCALES,
) -> None:
    """Puts the scales of data, weights and projection into a primitive's attributes.

    Weights layer and iter share one scale an output channel of each gate (or one in all): their
    products are summed as integers. ``columns``: in the place of 127 / the largest weight.
    """
    lib, ffi = library.lib, library.ffi
    status = lib.dnnl_primitive_attr_set_rnn_data_qparams(attributes, *scale)
    library.check(status, "data scale")
    both = [a for a in (weights.layer, weights.iter) if a is not None]
    largest = np.max([_largest(a, (0, 1, 2), per_channel) for a in both], axis=0)
    values = _factors(largest) if columns.layer is None else columns.layer.reshape(-1)
    mask = _PER_GATE_AND_OUTPUT if values.size > 1 else 0
    status = lib.dnnl_primitive_attr_set_rnn_weights_qparams(
        attributes, values.size, mask, ffi.cast("float *", values.ctypes.data)
    )
    library.check(status, "weights scale")
    if weights.projection is not None:
        values = _factors(_largest(weights.projection, (0, 1, 2), per_channel))
        values = values if columns.projection is None else columns.projection
        status = lib.dnnl_primitive_attr_set_rnn_weights_projection_qparams(
            attributes,
            values.size,
            _PER_OUTPUT if values.size > 1 else 0,
            ffi.cast("float *", values.ctypes.data),
        )
        library.check(status, "projection scale")


def _largest(array: Array, axes: tuple[int, ...], per_channel: bool) -> Array:
    found = np.abs(array).max(axis=axes if per_channel else None)
    return np.asarray(found).reshape(-1)


def _factors(largest: Array) -> Array:
    """127 / largest, 1 for channels of zeros."""
    return np.where(largest > 0, 127 / np.where(largest > 0, largest, 1), 1).astype(np.float32)
