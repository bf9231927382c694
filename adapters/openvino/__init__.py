"""OpenVINO runs its own models as a reference; onernn reads only their inputs and outputs."""

from __future__ import annotations

from onernn.adapters.common.adapter import Adapter, Runtime, defer

ADAPTER = Adapter(
    name="OpenVINO",
    files="an .xml of OpenVINO, for its inputs and outputs",
    reads=lambda path: str(path).endswith(".xml"),
    load=defer("openvino.run_model.read_signature"),
    no_params="OpenVINO's weights are in the .bin next to the .xml",
    runtime=Runtime(
        name="openvino",
        packages=("openvino",),
        extra="openvino",
        run=defer("openvino.run_model.run_model"),
    ),
)
