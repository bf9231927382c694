"""Tests beside a real framework, which is named by the file: ``test_<framework>_<what>.py``.

Where it is not installed the file is skipped by name; where ONERNN_REQUIRE lists it ("paddle" or
"paddle,torch") that is an error, so that a run meant for a framework cannot pass without it.
"""

from __future__ import annotations

import os
import re

# paddle 2.6.2 brings its own zlib: whoever uses Python's after that, without having loaded it
# before, crashes.
import zlib  # noqa: F401
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy.random  # noqa: F401
import pytest

# Read by paddle 3 when it is imported: without it there is no legacy static graph.
os.environ.setdefault("FLAGS_enable_pir_api", "0")

REQUIRED = set(filter(None, re.split(r"[,\s]+", os.environ.get("ONERNN_REQUIRE", ""))))


class FrameworkModule(pytest.Module):
    """A test file that is only imported where its framework is."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        named = re.match(r"test_([a-z]+)_", self.path.name)
        if not named:
            raise self.CollectError(f"{self.path.name}: expected test_<framework>_<what>.py")
        absent = sorted(name for name in REQUIRED if find_spec(name) is None)
        if absent:
            raise self.CollectError(f"ONERNN_REQUIRE: {', '.join(absent)} is not installed")
        if find_spec(named[1]) is None:
            pytest.skip(f"{named[1]} is not installed", allow_module_level=True)
        return super().collect()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return FrameworkModule.from_parent(parent, path=module_path)
