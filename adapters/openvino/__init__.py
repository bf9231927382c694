"""OpenVINO: run by itself, as a reference; of its models the inputs and outputs are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from onernn.adapters.common.adapter import Adapter, Runtime, StrPath
from onernn.ir.errors import UnsupportedError

if TYPE_CHECKING:
    from onernn.ir.graph import Graph
    from onernn.ir.ragged import Batch


def _load(path: StrPath, params: StrPath | None, _: str) -> Graph:
    from onernn.adapters.openvino.read import read_face

    if params is not None:
        raise UnsupportedError("params: OpenVINO's weights are beside the .xml, in its .bin")
    return read_face(path)


def _run(path: str, _: str, feed: Mapping[str, Batch]) -> list[Batch]:
    from onernn.adapters.openvino.run_model import run_model

    return run_model(path, feed)


ADAPTER = Adapter(
    name="OpenVINO",
    files="an .xml of OpenVINO, for its inputs and outputs",
    reads=lambda path: str(path).endswith(".xml"),
    load=_load,
    runtime=Runtime(name="openvino", packages=("openvino",), extra="openvino", run=_run),
)
