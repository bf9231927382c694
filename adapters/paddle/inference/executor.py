"""Executors, places, scopes: how programs of ``fluid`` and ``paddle.static`` run saved models."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from onernn.adapters.paddle.inference.errors import PaddleRuntimeError
from onernn.adapters.paddle.inference.tensors import LoDTensor, batch_for, lod_tensor
from onernn.adapters.paddle.lower.program import lower
from onernn.adapters.paddle.read import Operator, Program, Variable, read_program
from onernn.adapters.reading import reading
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.runtime.session import Session


class CPUPlace:
    def __repr__(self) -> str:
        return "Place(cpu)"


class CUDAPlace:
    def __init__(self, index: int = 0) -> None:
        raise UnsupportedError(
            "CUDAPlace: onernn runs on CPUs only; use CPUPlace(), and use_cuda=False or"
            " use_gpu=False where the program asks"
        )


class Scope:
    """Where Paddle keeps a program's variables; here a program keeps its own."""


_SCOPE = Scope()


def global_scope() -> Scope:
    return _SCOPE


@contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    yield


class FetchedVariable:
    """What a program gives, as `load_inference_model` lists it."""

    def __init__(self, variable: Variable) -> None:
        self.name, self.dtype, self.lod_level = variable.name, variable.dtype, variable.lod_depth
        self.shape = tuple(-1 if size is None else size for size in variable.shape or ())

    def __repr__(self) -> str:
        return f"var {self.name} : LOD_TENSOR.shape{self.shape}.dtype({self.dtype})"


class LoadedProgram:
    """A saved program, to be run by an `Executor`; None: the empty one, which sets nothing up."""

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
        found = [op for op in self._program.operators if op.type == kind] if self._program else []
        return sorted(found, key=lambda op: op.attributes.get("col", 0))

    def session(self, fetches: Sequence[str]) -> Session:
        """One that gives these variables of the program, whichever they are."""
        if self._program is None or not fetches:
            raise UnsupportedError("Executor.run: this program has nothing that could be fetched")
        with self._lock:
            if tuple(fetches) not in self._sessions:
                self._sessions[tuple(fetches)] = self._new_session(self._program, fetches)
            return self._sessions[tuple(fetches)]

    def _new_session(self, program: Program, fetches: Sequence[str]) -> Session:
        if unknown := [name for name in fetches if name not in program.variables]:
            raise PaddleRuntimeError(
                f"Executor.run: no variables {unknown} in {program.file}; it gives {self.fetches}"
            )
        kept = [op for op in program.operators if op.type != "fetch"]
        end = 1 + max(op.position for op in program.operators)
        fetching = [
            Operator(end + column, "fetch", {"X": (name,)}, {}, {"col": column})
            for column, name in enumerate(dict.fromkeys(fetches))
        ]
        with reading(program.file):
            graph = lower(replace(program, operators=(*kept, *fetching)))
        return Session(graph, threads=1)


class Executor:
    """Runs what `load_inference_model` gave; there is no other program here."""

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
        """The values of ``fetch_list``, variables or their names; by default what was saved.

        Arrays where ``return_numpy``, `LoDTensor`s otherwise. Raises `PaddleRuntimeError` where an
        array would lose a LoD.
        """
        program = LoadedProgram() if program is None else program
        if not isinstance(program, LoadedProgram):
            raise TypeError(f"Executor.run: expected a program, got {type(program).__name__}")
        fetches = [getattr(each, "name", each) for each in fetch_list or program.fetches]
        if not feed and not fetches:
            return []  # the program of parameters that are to be set up: there are none
        feed = feed[0] if isinstance(feed, list | tuple) and len(feed) == 1 else feed or {}
        if not isinstance(feed, Mapping):
            raise TypeError(f"Executor.run: feed: expected a dict, got {type(feed).__name__}")
        session = program.session(fetches)
        found = session.run(_fed(session, program.feeds, feed))
        if not return_numpy:
            return [lod_tensor(found[name]) for name in fetches]
        return [_plain(name, found[name]) for name in fetches]

    def close(self) -> None:
        pass


def _fed(session: Session, known: list[str], feed: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := [name for name in feed if name not in known]:
        warnings.warn(f"Executor.run: the program has no feeds {unknown}", stacklevel=3)
    fed = {}
    for value in session.graph.inputs:
        if value.name not in feed:
            raise ShapeError(f"Executor.run: feed has no {value.name!r}; the program takes {known}")
        given = feed[value.name]
        lod = given.lod() if isinstance(given, LoDTensor) else []
        fed[value.name] = batch_for(value, np.asarray(given), lod)
    return fed


def _plain(name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        raise PaddleRuntimeError(
            f"Executor.run: {name!r} has a LoD, which an array cannot hold; return_numpy=False"
            " gives LoDTensors"
        )
    return np.array(value)


Loaded = list[Any]
"""Program, names of feeds, variables that are fetched."""


def load_inference_model(
    dirname: str,
    executor: Executor,
    model_filename: str | None = None,
    params_filename: str | None = None,
    pserver_endpoints: None = None,
) -> Loaded:
    """``fluid.io.load_inference_model``: a folder with ``__model__``, or what is named in it."""
    folder = Path(dirname)
    model = folder / model_filename if model_filename else folder
    return _loaded(model, folder / params_filename if params_filename else None)


def load_static_model(path_prefix: str, executor: Executor, **names: Any) -> Loaded:
    """``paddle.static.load_inference_model``: PREFIX.pdmodel and PREFIX.pdiparams."""
    if unknown := set(names) - {"model_filename", "params_filename"}:
        raise TypeError(f"load_inference_model: unknown arguments {sorted(unknown)}")
    return load_inference_model(path_prefix, executor, **names)


def _loaded(model: Path, params: Path | None) -> Loaded:
    with reading(model):
        program = LoadedProgram(read_program(model, params))
    return [program, program.feeds, [program.variable(name) for name in program.fetches]]
