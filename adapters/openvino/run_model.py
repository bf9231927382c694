"""Runs a model in OpenVINO on the CPU: an .xml, an .onnx, or any other file that OpenVINO reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.common.adapter import StrPath, require
from onernn.ir.errors import ModelFormatError
from onernn.ir.graph import UNSUPPORTED, Graph, Node, Value
from onernn.ir.ragged import Batch

_ADVICE = (
    "OpenVINO's operators are not read; load the ONNX file that it was made from, or take it as a"
    " reference that OpenVINO runs: onernn verify MODEL --against openvino:{}"
)


def read_signature(path: StrPath, *, rules: object = None) -> Graph:
    """Returns a graph with a model's inputs and outputs, and one unsupported node for each output.

    ``rules`` are ignored, because OpenVINO runs all operators itself. Raises `ModelFormatError` for
    a file that OpenVINO cannot read.
    """
    openvino = require("openvino", "openvino")
    try:
        model = openvino.Core().read_model(path)
    except RuntimeError as error:
        why = f"expected a model that OpenVINO can read, got its error: {error}"
        raise ModelFormatError(why, path) from error
    inputs, outputs = tuple(map(_value, model.inputs)), tuple(map(_value, model.outputs))
    reason, read = {"reason": _ADVICE.format(Path(path).name)}, tuple(v.name for v in inputs)
    names = dict.fromkeys(value.name for value in outputs)
    nodes = tuple(Node(UNSUPPORTED, read, (name,), reason) for name in names)
    return Graph(str(path), inputs, outputs, nodes, {})


def _value(port: Any) -> Value:
    names, sizes = port.get_names(), port.get_partial_shape()
    name = min(names) if names else port.get_node().get_friendly_name()
    shape = tuple(size.get_length() if size.is_static else None for size in sizes)
    dtype = np.dtype(port.get_element_type().to_dtype()).name
    return Value(name, dtype, shape if sizes.rank.is_static else None)


def run_model(path: str, _: str, feed: Mapping[str, Batch]) -> list[Batch]:
    """Returns the outputs in the model's order, computed in float32. Raises OpenVINO's errors.

    float32 is requested because OpenVINO uses bfloat16 by default on CPUs that support it.
    """
    openvino = require("openvino", "openvino")
    model = openvino.Core().read_model(path)
    compiled = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    given = {}
    for port in compiled.inputs:
        names = (*port.get_names(), port.get_node().get_friendly_name())
        given[port] = next(feed[name] for name in names if name in feed)
    made = compiled(given)
    return [made[output] for output in compiled.outputs]
