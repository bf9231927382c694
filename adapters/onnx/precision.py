"""Precisions of layers in an ``.onnx`` file: what its graph has no place for, in `metadata_props`.

The graph itself has the bytes: QuantizeLinear and DequantizeLinear around an operator. Scales of
states, and factors to the last bit, stand in one JSON text under `KEY`, by the name of the
operator's first output.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ModelFormatError, OnernnError
from onernn.core.precision import LayerPrecision, PartScales, Scale

KEY = "onernn.precision"
VERSION = 1
DTYPES = ("f32", "bf16", "f16", "u8")
"""Of layers in a file of this version."""
_SCALES, _COLUMNS = ("data", "state"), ("layer", "iter", "projection")


def encoded(layers: Mapping[str, LayerPrecision]) -> str:
    """The text under `KEY`."""
    import json  # slow, and needed where a model has the text alone

    told = {
        name: {"dtype": p.dtype, "parts": list(map(_part, p.parts))} for name, p in layers.items()
    }
    return json.dumps({"version": VERSION, "layers": told}, sort_keys=True)


def _part(part: PartScales) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(part, name) for name in _SCALES}
    for name in _COLUMNS:
        array = getattr(part, name)
        if array is not None:
            data = base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode()
            found[name] = {"shape": array.shape, "float32": data}
    return {name: each for name, each in found.items() if each is not None}


def decoded(text: str, file: Path) -> tuple[dict[str, LayerPrecision], str]:
    """The precisions by the names of first outputs, and why there are none, "" where there are.

    Another version is left alone. Raises `ModelFormatError` for what is no text of this version.
    """
    import json

    try:
        told = json.loads(text)
        if told["version"] != VERSION:
            return {}, f"metadata {KEY} of version {told['version']!r:.20}, {VERSION} is read"
        layers = {str(name): _precision(each) for name, each in told["layers"].items()}
    except OnernnError as error:
        raise ModelFormatError(f"metadata {KEY}: {error}", file) from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        what = f"{type(error).__name__} {error!s:.200}"
        raise ModelFormatError(f"metadata {KEY}: malformed: {what}", file) from error
    except ValueError as error:  # of JSON and base64, too
        raise ModelFormatError(f"metadata {KEY}: {error!s:.200}", file) from error
    return layers, ""


def _precision(told: Mapping[str, Any]) -> LayerPrecision:
    if told["dtype"] not in DTYPES:
        raise ValueError(f"dtype {told['dtype']!r:.20}")
    return LayerPrecision(told["dtype"], tuple(map(_told_part, told["parts"])))


def _told_part(told: Mapping[str, Any]) -> PartScales:
    found: dict[str, Any] = {name: Scale(*told[name]) for name in _SCALES if name in told}
    found |= {name: _columns(told[name]) for name in _COLUMNS if name in told}
    return PartScales(**found)


def _columns(told: Mapping[str, Any]) -> Array:
    flat = np.frombuffer(base64.b64decode(told["float32"], validate=True), "<f4")
    return flat.reshape(tuple(told["shape"]))
