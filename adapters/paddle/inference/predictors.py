"""Predictors: a session behind Paddle Inference's handles."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from onernn.adapters.paddle.inference.config import AnalysisConfig
from onernn.adapters.paddle.inference.errors import PaddleRuntimeError
from onernn.adapters.paddle.inference.legacy_tensors import PaddleTensor, paddle_tensor
from onernn.adapters.paddle.inference.options import PREDICTOR_NOT_HERE
from onernn.adapters.paddle.inference.tensors import EagerTensor, PaddleInferTensor, batch_for
from onernn.adapters.paddle.lower.program import load_paddle
from onernn.adapters.reading import reading
from onernn.core.budget import return_freed_memory
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.graph import Graph
from onernn.core.ragged import Ragged, data_of
from onernn.runtime.session import Session


def _model_of(config: AnalysisConfig) -> Graph:
    if config.buffers is not None:
        return _in_memory(*config.buffers)
    path, params = config.prog_file(), config.params_file() or None
    if config.model_dir():
        path, params = config.model_dir(), None
    if not path:
        raise UnsupportedError("Config: no model; give Config(folder) or Config(program, params)")
    return _read(path, params)


def _read(path: str, params: str | None) -> Graph:
    with reading(path):
        return load_paddle(path, params)


def _in_memory(*parts: bytes) -> Graph:
    """A model that may be on no disk: in files that only this process sees."""
    files = [os.memfd_create(name) for name in ("model", "params")]
    try:
        for file, part in zip(files, parts, strict=True):
            with open(file, "wb", closefd=False) as stream:
                stream.write(part)
        return _read(*(str(Path("/proc/self/fd", str(file))) for file in files))
    finally:
        for file in files:
            os.close(file)


class PaddleInferPredictor:
    """Runs a model through handles of its inputs and outputs, as `paddle.inference.Predictor`.

    Clones share what was packed; each is for one thread at a time.
    """

    def __init__(self, config: AnalysisConfig) -> None:
        threads = max(1, config.cpu_math_library_num_threads())
        self._session = Session(_model_of(config), dtype=config.dtype, threads=threads)
        self._by_name = config.specify_input_name()
        self._new_handles()

    def _new_handles(self) -> None:
        graph = self._session.graph
        self._inputs = {each.name: PaddleInferTensor(each.name) for each in graph.inputs}
        self._outputs = {each.name: PaddleInferTensor(each.name) for each in graph.outputs}

    def clone(self) -> Self:
        made = object.__new__(type(self))
        made._session, made._by_name = self._session, self._by_name
        made._new_handles()
        return made

    def get_input_names(self) -> list[str]:
        return list(self._inputs)

    def get_output_names(self) -> list[str]:
        return list(self._outputs)

    def get_input_handle(self, name: str) -> PaddleInferTensor:
        return _known(self._inputs, name, "input")

    def get_output_handle(self, name: str) -> PaddleInferTensor:
        return _known(self._outputs, name, "output")

    def run(self, inputs: Sequence[Any] | None = None) -> list[Any] | None:
        """Reads the input handles, fills the output handles.

        Given a list of tensors, these are the inputs in order, and the outputs are returned.
        """
        if inputs is None:
            self._run()
            return None
        _counted(inputs, self._inputs)
        for handle, given in zip(self._inputs.values(), inputs, strict=True):
            handle.copy_from_cpu(np.asarray(given))
        self._run()
        return [EagerTensor(each._held()) for each in self._outputs.values()]

    def _run(self) -> None:
        graph = self._session.graph
        fed = {
            value.name: batch_for(value, handle._held(), handle._lod)
            for value, handle in zip(graph.inputs, self._inputs.values(), strict=True)
        }
        for name, found in self._session.run(fed).items():
            lod = found.lod if isinstance(found, Ragged) else []
            self._outputs[name]._hold(data_of(found), lod)

    def clear_intermediate_tensor(self) -> None:
        """Nothing to do: no tensor between operators outlives a run."""

    def try_shrink_memory(self) -> int:
        """Gives freed memory back to the system; 0, as Paddle's does without a GPU."""
        return_freed_memory()
        return 0

    def register_output_hook(self, hook: Callable[..., None]) -> None:
        why = PREDICTOR_NOT_HERE["register_output_hook"]
        raise UnsupportedError(f"register_output_hook is not here: {why}")


class AnalysisPredictor(PaddleInferPredictor):
    """The predictor of Paddle 1, from `create_paddle_predictor`."""

    def run(self, inputs: Sequence[PaddleTensor]) -> list[PaddleTensor]:  # type: ignore[override]
        """The outputs for the inputs in order, or by name after ``switch_specify_input_names``."""
        _counted(inputs, self._inputs)
        for each in inputs:
            if not isinstance(each, PaddleTensor):
                raise TypeError(f"run: expected PaddleTensors, got {type(each).__name__}")
        names = [each.name for each in inputs] if self._by_name else list(self._inputs)
        for name, each in zip(names, inputs, strict=True):
            self.get_input_handle(name)._hold(each.held(), each.lod)
        self._run()
        return [
            paddle_tensor(name, handle._held(), handle.lod())
            for name, handle in self._outputs.items()
        ]

    def zero_copy_run(self) -> bool:
        self._run()
        return True

    get_input_tensor = PaddleInferPredictor.get_input_handle
    get_output_tensor = PaddleInferPredictor.get_output_handle

    def get_input_tensor_shape(self) -> dict[str, list[int]]:
        """As the program declares them, -1 where a size is open."""
        return {
            each.name: [-1 if size is None else size for size in each.shape or ()]
            for each in self._session.graph.inputs
        }


class PredictorPool:
    """A predictor and clones of it, ``size`` in all."""

    def __init__(self, config: AnalysisConfig, size: int) -> None:
        if size < 1:
            raise ShapeError(f"PredictorPool: expected a size of at least 1, got {size}")
        first = PaddleInferPredictor(config)
        self._predictors = [first, *(first.clone() for _ in range(size - 1))]

    def retrive(self, index: int) -> PaddleInferPredictor:
        """Spelled as in Paddle."""
        if not 0 <= index < len(self._predictors):
            raise ShapeError(
                f"PredictorPool: {len(self._predictors)} predictors, asked for {index}"
            )
        return self._predictors[index]


def create_predictor(config: AnalysisConfig) -> PaddleInferPredictor:
    return PaddleInferPredictor(config)


def create_paddle_predictor(config: AnalysisConfig) -> AnalysisPredictor:
    return AnalysisPredictor(config)


def _known(handles: dict[str, PaddleInferTensor], name: str, what: str) -> PaddleInferTensor:
    if name not in handles:
        raise PaddleRuntimeError(f"no {what} {name!r}; the model has {', '.join(handles)}")
    return handles[name]


def _counted(inputs: Sequence[object], expected: dict[str, Any]) -> None:
    if not isinstance(inputs, list | tuple):
        raise TypeError(f"run: expected a list of tensors, got {type(inputs).__name__}")
    if len(inputs) != len(expected):
        names = ", ".join(expected)
        raise ShapeError(f"run: {len(inputs)} inputs given, the model takes {names}")
