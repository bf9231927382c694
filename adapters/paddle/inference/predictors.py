"""Predictors and executors, which run saved programs in onernn's sessions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np

from onernn.adapters.common.files import reading
from onernn.adapters.paddle.inference.config import PREDICTOR_NOT_HERE, AnalysisConfig
from onernn.adapters.paddle.inference.tensors import (
    EagerTensor,
    LoDTensor,
    PaddleInferTensor,
    PaddleRuntimeError,
    PaddleTensor,
    batch_for,
    lod_tensor,
    paddle_tensor,
)
from onernn.adapters.paddle.lower import load_paddle, lower
from onernn.adapters.paddle.read import (
    Operator,
    Program,
    Variable,
    fetch_operators,
    read_program,
)
from onernn.engine.session import Session
from onernn.ir.budget import return_freed_memory
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.graph import Graph
from onernn.ir.ragged import Ragged, as_array, data_of

# Executors, places and scopes, with which ``fluid`` and ``paddle.static`` run saved models.


class CPUPlace:
    def __repr__(self) -> str:
        return "Place(cpu)"


class CUDAPlace:
    def __init__(self, index: int = 0) -> None:
        raise UnsupportedError(
            "CUDAPlace: onernn runs on CPUs only; use CPUPlace(), and set use_cuda=False or"
            " use_gpu=False in the program"
        )


class Scope:
    """The object in which Paddle stores a program's variables. Here it is empty, because a
    `LoadedProgram` stores them itself.
    """


_SCOPE = Scope()


def global_scope() -> Scope:
    return _SCOPE


@contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    yield


class FetchedVariable:
    """A variable that a program outputs, in the list of `load_inference_model`."""

    def __init__(self, variable: Variable) -> None:
        self.name, self.dtype, self.lod_level = variable.name, variable.dtype, variable.lod_depth
        self.shape = tuple(-1 if size is None else size for size in variable.shape or ())

    def __repr__(self) -> str:
        return f"var {self.name} : LOD_TENSOR.shape{self.shape}.dtype({self.dtype})"


class LoadedProgram:
    """A saved program that an `Executor` runs. ``program=None`` is the empty startup program."""

    def __init__(self, program: Program | None = None) -> None:
        self._program = program
        self._lock, self._sessions = Lock(), dict[tuple[str, ...], Session]()

    @property
    def feeds(self) -> list[str]:
        return [op.outputs["Out"][0] for op in self._operators("feed")]

    @property
    def fetches(self) -> list[str]:
        return [op.inputs["X"][0] for op in self._operators("fetch")]

    def variable(self, name: str) -> FetchedVariable:
        assert self._program is not None
        return FetchedVariable(self._program.variables[name])

    def _operators(self, kind: str) -> list[Operator]:
        result = [op for op in self._program.operators if op.type == kind] if self._program else []
        return sorted(result, key=lambda op: op.attributes.get("col", 0))

    def session(self, fetches: Sequence[str]) -> Session:
        """Returns a session that outputs these variables, which may be any variables of the
        program.
        """
        if self._program is None or not fetches:
            raise UnsupportedError(
                "Executor.run: the program has nothing to fetch; pass a program of"
                " load_inference_model, and fetch_list"
            )
        with self._lock:
            if tuple(fetches) not in self._sessions:
                self._sessions[tuple(fetches)] = self._new_session(self._program, fetches)
            return self._sessions[tuple(fetches)]

    def _new_session(self, program: Program, fetches: Sequence[str]) -> Session:
        if unknown := [name for name in fetches if name not in program.variables]:
            raise PaddleRuntimeError(
                f"Executor.run: fetch_list: expected variables of {program.file}, such as"
                f" {self.fetches}, got {unknown}"
            )
        kept = [op for op in program.operators if op.type != "fetch"]
        operators = (*kept, *fetch_operators(dict.fromkeys(fetches)))
        with reading(program.file):
            graph = lower(replace(program, operators=operators))
        return Session(graph, threads=1)


class Executor:
    """An executor that only runs programs of `load_inference_model`."""

    def __init__(self, place: CPUPlace | None = None) -> None:
        self.place = CPUPlace() if place is None else place

    def run(
        self,
        program: LoadedProgram | None = None,
        feed: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        fetch_list: Sequence[Any] | None = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = False,
        return_merged: bool = True,
        use_prune: bool = False,
    ) -> list[Any]:
        """Returns the values of ``fetch_list``, which holds variables or names. The default is the
        fetched variables of the saved program.

        Returns arrays if ``return_numpy``, otherwise `LoDTensor`s. Raises `PaddleRuntimeError` if
        an array would lose a LoD.
        """
        program = LoadedProgram() if program is None else program
        if not isinstance(program, LoadedProgram):
            raise TypeError(f"Executor.run: expected a program, got {type(program).__name__}")
        fetches = [getattr(each, "name", each) for each in fetch_list or program.fetches]
        if not feed and not fetches:
            return []  # the startup program, which has nothing to do
        feed = feed[0] if isinstance(feed, list | tuple) and len(feed) == 1 else feed or {}
        if not isinstance(feed, Mapping):
            raise TypeError(f"Executor.run: feed: expected a dict, got {type(feed).__name__}")
        session = program.session(fetches)
        result = session.run(_feed(session, program.feeds, feed))
        if not return_numpy:
            return [lod_tensor(result[name]) for name in fetches]
        return [_plain(name, result[name]) for name in fetches]

    def close(self) -> None:
        pass


def _feed(session: Session, known: list[str], feed: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := [name for name in feed if name not in known]:
        text = f"Executor.run: the program has no feeds {unknown}; it takes {known}"
        warnings.warn(text, stacklevel=3)
    fed = {}
    for value in session.graph.inputs:
        if value.name not in feed:
            raise ShapeError(f"Executor.run: feed has no {value.name!r}; the program takes {known}")
        given = feed[value.name]
        lod = given.lod() if isinstance(given, LoDTensor) else []
        fed[value.name] = batch_for(value, as_array(given, f"feed {value.name!r}"), lod)
    return fed


def _plain(name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        raise PaddleRuntimeError(
            f"Executor.run: {name!r} has a LoD, which an array cannot hold; pass"
            " return_numpy=False to get LoDTensors"
        )
    return np.array(value)


Loaded = list[Any]
"""The program, the names of its feeds, and its fetched variables."""


def load_inference_model(
    dirname: str,
    executor: Executor,
    model_filename: str | None = None,
    params_filename: str | None = None,
    pserver_endpoints: None = None,
) -> Loaded:
    """Loads a model like ``fluid.io.load_inference_model``: from a folder with ``__model__``, or
    from the named files in it.
    """
    folder = Path(dirname)
    model = folder / model_filename if model_filename else folder
    with reading(model):
        params = folder / params_filename if params_filename else None
        program = LoadedProgram(read_program(model, params))
    return [program, program.feeds, [program.variable(name) for name in program.fetches]]


def load_static_model(path_prefix: str, executor: Executor, **names: Any) -> Loaded:
    """Loads a model like ``paddle.static.load_inference_model``: PREFIX.pdmodel and
    PREFIX.pdiparams.
    """
    if unknown := set(names) - {"model_filename", "params_filename"}:
        raise TypeError(
            "load_inference_model: expected model_filename or params_filename, got"
            f" {sorted(unknown)}"
        )
    return load_inference_model(path_prefix, executor, **names)


def _model_of(config: AnalysisConfig) -> Graph:
    if config.buffers is not None:
        return _in_memory(*config.buffers)
    path, params = config.prog_file(), config.params_file() or None
    if config.model_dir():
        path, params = config.model_dir(), None
    if not path:
        raise UnsupportedError("Config: no model; pass Config(folder) or Config(program, params)")
    return _read(path, params)


def _read(path: str, params: str | None) -> Graph:
    with reading(path):
        return load_paddle(path, params)


def _in_memory(*parts: bytes) -> Graph:
    """Returns the graph of a model that must not be written to a disk. It is read from in-memory
    files of this process.
    """
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
    """A predictor that has handles for its inputs and outputs, like `paddle.inference.Predictor`.

    Clones share packed weights. Only one thread at a time may use each clone.
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
        return _get_handle(self._inputs, name, "input")

    def get_output_handle(self, name: str) -> PaddleInferTensor:
        return _get_handle(self._outputs, name, "output")

    def run(self, inputs: Sequence[Any] | None = None) -> list[Any] | None:
        """Runs the model on the arrays of the input handles, and sets the output handles.

        ``inputs``: tensors for all inputs, in order. If they are given, returns the outputs.
        """
        if inputs is None:
            self._run()
            return None
        _count(inputs, self._inputs)
        for handle, given in zip(self._inputs.values(), inputs, strict=True):
            handle.copy_from_cpu(as_array(given, "Predictor.run"))
        self._run()
        return [EagerTensor(each._get_array()) for each in self._outputs.values()]

    def _run(self) -> None:
        graph = self._session.graph
        fed = {
            value.name: batch_for(value, handle._get_array(), handle._lod)
            for value, handle in zip(graph.inputs, self._inputs.values(), strict=True)
        }
        for name, result in self._session.run(fed).items():
            lod = result.lod if isinstance(result, Ragged) else []
            self._outputs[name]._hold(data_of(result), lod)

    def clear_intermediate_tensor(self) -> None:
        """Does nothing, because no intermediate tensor outlives a run."""

    def try_shrink_memory(self) -> int:
        """Returns freed memory to the system. Returns 0, like Paddle without a GPU."""
        return_freed_memory()
        return 0

    def register_output_hook(self, hook: Callable[..., None]) -> None:
        why = PREDICTOR_NOT_HERE["register_output_hook"]
        raise UnsupportedError(f"register_output_hook is not supported: {why}")


class AnalysisPredictor(PaddleInferPredictor):
    """The predictor of Paddle 1, which `create_paddle_predictor` returns."""

    def run(self, inputs: Sequence[PaddleTensor]) -> list[PaddleTensor]:  # type: ignore[override]
        """Returns the outputs. Inputs are identified by position, or by name after
        ``switch_specify_input_names``.
        """
        _count(inputs, self._inputs)
        for each in inputs:
            if not isinstance(each, PaddleTensor):
                raise TypeError(f"run: expected PaddleTensors, got {type(each).__name__}")
        names = [each.name for each in inputs] if self._by_name else list(self._inputs)
        for name, each in zip(names, inputs, strict=True):
            self.get_input_handle(name)._hold(each.view_array(), each.lod)
        self._run()
        return [
            paddle_tensor(name, handle._get_array(), handle.lod())
            for name, handle in self._outputs.items()
        ]

    def zero_copy_run(self) -> bool:
        self._run()
        return True

    get_input_tensor = PaddleInferPredictor.get_input_handle
    get_output_tensor = PaddleInferPredictor.get_output_handle

    def get_input_tensor_shape(self) -> dict[str, list[int]]:
        """Returns the shapes that the program declares, with -1 for a dynamic size."""
        return {
            each.name: [-1 if size is None else size for size in each.shape or ()]
            for each in self._session.graph.inputs
        }


class PredictorPool:
    """A list of ``size`` predictors: one and its clones."""

    def __init__(self, config: AnalysisConfig, size: int) -> None:
        if size < 1:
            raise ShapeError(f"PredictorPool: expected a size of at least 1, got {size}")
        first = PaddleInferPredictor(config)
        self._predictors = [first, *(first.clone() for _ in range(size - 1))]

    def retrieve(self, index: int) -> PaddleInferPredictor:
        if not 0 <= index < len(self._predictors):
            raise ShapeError(
                f"PredictorPool: expected an index below {len(self._predictors)}, got {index}"
            )
        return self._predictors[index]

    retrive = retrieve  # Paddle 2's spelling


def create_predictor(config: AnalysisConfig) -> PaddleInferPredictor:
    return PaddleInferPredictor(config)


def create_paddle_predictor(config: AnalysisConfig) -> AnalysisPredictor:
    return AnalysisPredictor(config)


def _get_handle(handles: dict[str, PaddleInferTensor], name: str, what: str) -> PaddleInferTensor:
    if name not in handles:
        raise PaddleRuntimeError(f"no {what} {name!r}; the model has {', '.join(handles)}")
    return handles[name]


def _count(inputs: Sequence[object], expected: dict[str, Any]) -> None:
    if not isinstance(inputs, list | tuple):
        raise TypeError(f"run: expected a list of tensors, got {type(inputs).__name__}")
    if len(inputs) != len(expected):
        names = ", ".join(expected)
        raise ShapeError(f"run: expected {len(expected)} inputs ({names}), got {len(inputs)}")
