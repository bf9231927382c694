"""Connects Paddle's executor and predictors to the parts of programs that onernn runs."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Any

import numpy as np

from onernn.adapters.common.adapter import require
from onernn.adapters.common.live import array_at
from onernn.adapters.paddle.custom_operators import missing_operators, register_operators
from onernn.adapters.paddle.live_layer import batch, tensor_of, view
from onernn.adapters.paddle.partition import Batch, LivePart, call_compiled, call_python
from onernn.backend.process import usable_cpus, usable_threads
from onernn.engine.session import Session
from onernn.ir.budget import STEPS, usable_memory
from onernn.ir.errors import UnsupportedError
from onernn.ir.ragged import Ragged, data_of

_log = logging.getLogger("onernn")

REPLACED: dict[tuple[str, int], bytes] = {}
"""The serialized original operators of each part that runs in this process, by the `call_key` of
the operator that replaces them.
"""


def calls_of(runner: LivePart, session: Session) -> list[Any]:
    """Returns the operators that replace a part: the compiled operator if it can run the part,
    otherwise one that calls Python.

    ``session``: the part's session for inputs with the declared LoD levels.
    """
    from paddle.static.nn.common import PyFuncRegistry

    lods = runner.lods(session)
    if lods is not None and not (missing := missing_operators()):
        _connect()
        _PARTS.append((runner, lods))
        return call_compiled(runner.part, len(_PARTS) - 1, lods, fixed=runner.constant)
    if lods is not None:
        _log.info("%s: runs in Python, 0.1 ms a call: %s", runner.part.label, missing)
    forward, backward = PyFuncRegistry(_callable(runner)), PyFuncRegistry(_no_gradients)
    return call_python(runner.part, forward.id, backward.id)


@contextmanager
def _log_errors(runner: LivePart) -> Iterator[None]:
    """Logs an error and raises it again. Paddle prints the error among many other lines."""
    try:
        yield
    except Exception as error:
        _log.error("%s: %s: %s", runner.part.label, type(error).__name__, error)
        raise


def _callable(runner: LivePart) -> Callable[..., list[Any]]:
    """Returns the function that Paddle's operator ``py_func`` calls. Paddle keeps the function
    until the process ends.
    """
    names, count = (*runner.part.data, *runner.part.parameters), len(runner.part.data)
    event = require("paddle.profiler", "paddle").RecordEvent

    def run(*tensors: Any) -> list[Any]:  # default arguments would break PyFuncRegistry
        with _log_errors(runner):
            data = [batch(*each) for each in zip(tensors[:count], names, strict=False)]
            parameters = [] if runner.constant else zip(tensors[count:], names[count:], strict=True)
            arrays = [view(*each) for each in parameters]
            with event(f"onernn: {runner.part.label}"):
                return [tensor_of(output) for output in runner.run(data, arrays)]

    return run


def _no_gradients(*_: Any) -> None:
    raise UnsupportedError(
        "no gradients: a program is optimized for inference; train it as it was, or optimize a"
        " paddle.nn.Layer"
    )


# The compiled operator ``onernn_part`` (program_part.hpp) calls Python if no compiled model exists
# for the inputs' dtypes, ranks and LoD levels, if parameters have changed, or if the model refuses
# the inputs.

_PARTS: list[tuple[LivePart, Sequence[str]]] = []
"""The parts that the compiled operator runs, by number, until the process ends. The strings are the
result of `LivePart.lods`.
"""

_Called = ctypes.CFUNCTYPE(
    *(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32),
    *(ctypes.POINTER(ctypes.c_int64), ctypes.c_int64),
)


@cache
def _connect() -> Any:
    """Makes the compiled operator call `_run`. Returns the C callback, which must not be freed."""
    operators = register_operators()
    call, word, text = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
    operators.onernn_paddle_result.argtypes = call, word, text, ctypes.POINTER(word), word, call
    operators.onernn_paddle_model.argtypes = call, text, word, word, word, word
    operators.onernn_paddle_failed.argtypes = call, text
    function = _Called(_run)
    operators.onernn_paddle_python(function)
    return function


def _run(call: int, number: int, wants: int, words: Any, count: int) -> None:
    """Runs part ``number`` on the inputs that ``words`` describe. ``wants``: whether to return a
    compiled model too, so that later calls do not need Python.
    """
    operators, (runner, lods) = register_operators(), _PARTS[number]
    try:
        with _log_errors(runner):
            rest, part = iter(words[:count]), runner.part
            data = [_batch(rest, name) for name in part.data]
            names = () if runner.constant else part.parameters
            parameters = [data_of(_batch(rest, name)) for name in names]
            outputs = runner.run(data, parameters)
            for index, (output, lod) in enumerate(zip(outputs, lods, strict=True)):
                if isinstance(output, Ragged) != bool(lod):
                    raise UnsupportedError(
                        f"{part.outputs[index]}: expected {'a' if lod else 'no'} LoD, as the"
                        f" program declares; set the lod_level of {', '.join(part.data)}"
                    )
                array = np.ascontiguousarray(data_of(output))
                dims = (ctypes.c_int64 * array.ndim)(*array.shape)
                of = array.dtype.name.encode(), dims, array.ndim, array.ctypes.data
                operators.onernn_paddle_result(call, index, *of)
            if wants and (content := runner.compile(data, parameters)):
                threads = min(runner.threads or usable_threads(), usable_cpus())
                limits = threads, usable_memory(), STEPS
                operators.onernn_paddle_model(call, content, len(content), *limits)
    except BaseException as error:  # C cannot handle Python's exceptions
        operators.onernn_paddle_failed(call, f"{type(error).__name__}: {error}".encode())


def _batch(words: Iterator[int], name: str) -> Batch:
    """Returns the next input tensor of a call. ``words`` holds its address, dtype name, shape and
    LoD.
    """
    address, kind, rank = islice(words, 3)
    shape = [*islice(words, rank)]
    dtype = ctypes.string_at(kind).decode()
    lod = [[*islice(words, 2)] for _ in range(next(words))]
    if dtype == "unknown":
        raise UnsupportedError(f"{name}: its dtype is not supported; cast it first")
    data = array_at(address, shape, dtype, None)
    if not lod:
        return data
    return Ragged.from_lod(data, [array_at(at, [size], np.int64, None) for at, size in lod])
