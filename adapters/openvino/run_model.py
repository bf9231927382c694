"""A model run by OpenVINO itself, on the CPU: its .xml, an .onnx, or what else it reads."""

from __future__ import annotations

from collections.abc import Mapping

from onernn.adapters.common.adapter import require
from onernn.ir.ragged import Batch


def run_model(path: str, _: str, feed: Mapping[str, Batch]) -> list[Batch]:
    """The outputs, in order, computed in float32. Raises what OpenVINO raises.

    On CPUs with bfloat16 OpenVINO computes in that by default.
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
