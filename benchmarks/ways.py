"""Ours, made to run in one way: oneDNN's primitive or chain, what oneDNN's tables say, or kernels.

A contender like those of `contenders`, for `benchmarks.tune`.
"""

from __future__ import annotations

from benchmarks.contenders import onernn
from benchmarks.tasks import Prepared, Takes, Task

PACKAGES = onernn.PACKAGES
MODES = dict.fromkeys(("primitive", "chain", "onednn", "kernels"), Takes("ragged dense training"))
versions = onernn.versions


def prepare(task: Task, mode: str) -> Prepared:
    if mode in ("primitive", "chain"):
        from onernn.backend.choosing import Choice

        chained = mode == "chain"
        Choice.prefers = lambda *_: chained  # type: ignore[method-assign]
        return onernn.prepare(task, "onednn")
    return onernn.prepare(task, mode)
