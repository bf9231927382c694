"""The switch that disables onernn's layers inside other frameworks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

DISABLED = "plug-ins are disabled (onernn.plugins_disabled, or ONERNN_DISABLE_PLUGINS)"
"""The reason that is reported for layers that stay with the framework."""

_lock = Lock()
_disabled = 0
_wanted = True


@contextmanager
def plugins_disabled() -> Iterator[None]:
    """Makes frameworks run all operators themselves inside the context, in all threads of the
    process.

    ``optimize`` of every adapter replaces nothing, and layers that it has replaced in place (of
    paddle.nn and gluon) run in the framework again. A program, symbol or session that already holds
    onernn's operators still runs them: to compare, call ``optimize`` inside the context.
    ONERNN_DISABLE_PLUGINS=1 in the environment does the same for a whole process.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> onernn.convert(model, "relu.onnx")
    >>> from onernn.adapters.onnx import InferenceSession
    >>> with onernn.plugins_disabled():
    ...     InferenceSession("relu.onnx").whole
    False
    """
    global _disabled
    with _lock:
        _disabled += 1
    try:
        yield
    finally:
        with _lock:
            _disabled -= 1


def plugins_enabled() -> bool:
    global _wanted
    _wanted = os.environ.get("ONERNN_DISABLE_PLUGINS", "0") in ("", "0")
    return still_enabled()


def still_enabled() -> bool:
    """Returns the result of `plugins_enabled` without reading the environment again. Layers call
    this function in each of their calls, which may take only microseconds.
    """
    return not _disabled and _wanted
