"""Three runtimes of ONNX run the recurrent nodes of onernn's conformance kit."""

from __future__ import annotations

import tempfile
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from onernn.verification.node_suite import NodeConformance


class OnnxRuntime:
    @staticmethod
    def prepare(model: Any, device: str) -> Any:
        import onnxruntime.backend

        return onnxruntime.backend.prepare(model, device)


class OpenVINO:
    """A model on a device; on CPUs with BF16 OpenVINO would compute in that by itself."""

    def __init__(self, model: Any, device: str) -> None:
        import openvino

        core = openvino.Core()
        loaded = core.read_model(model.SerializeToString())
        exact = {"INFERENCE_PRECISION_HINT": "f32"}
        self.compiled = core.compile_model(loaded, device, exact)

    prepare = classmethod(lambda cls, model, device: cls(model, device))

    def run(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        results = self.compiled(inputs)
        return [results[output] for output in self.compiled.outputs]


class Tract:
    """A model in a process of its own, which tract aborts for some models."""

    def __init__(self, model: Any) -> None:
        self.process = ProcessPoolExecutor(1, initializer=_load, initargs=[model])

    prepare = classmethod(lambda cls, model, device: cls(model))

    def run(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        return self.process.submit(_run, inputs).result()


def _load(model: Any) -> None:
    global _runnable
    import tract

    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(model.SerializeToString())
        file.flush()
        _runnable = tract.onnx().load(file.name).into_model().into_runnable()


def _run(inputs: list[np.ndarray]) -> list[np.ndarray]:
    return [each.to_numpy() for each in _runnable.run([*map(np.ascontiguousarray, inputs)])]


class TestOnnxRuntime(NodeConformance):
    framework = "onnxruntime"
    backend = OnnxRuntime


class TestOpenVINO(NodeConformance):
    framework = "openvino"
    backend = OpenVINO
    known_failures = "known_failures_openvino.toml"


class TestTract(NodeConformance):
    framework = "tract"
    backend = Tract
    lengths = ("equal", "word")  # it takes no sequence_lens that are an input
    known_failures = "known_failures_tract.toml"
