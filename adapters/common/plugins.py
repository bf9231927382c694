"""The switch for layers that run inside other frameworks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

DISABLED = "plug-ins are disabled (onernn.plugins_disabled, or ONERNN_DISABLE_PLUGINS)"
"""The reason of layers that stay with the framework."""

_lock = Lock()
_disabled = 0
_wanted = True


@contextmanager
def plugins_disabled() -> Iterator[None]:
    """Frameworks run everything themselves meanwhile, in all threads of the process.

    ``optimize`` of every adapter replaces nothing, and layers that it has replaced in place (of
    paddle.nn and gluon) run as they were. A program, symbol or session that holds the package's
    operators runs them all the same: optimize it inside to compare. ONERNN_DISABLE_PLUGINS=1 in the
    environment does the same for a whole process.
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
    """`plugins_enabled`, with the environment as it was then: for calls of microseconds."""
    return not _disabled and _wanted
