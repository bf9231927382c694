"""Tests beside a real framework, which is named by the file: ``test_<framework>_<what>.py``.

A framework is a module, or a program. Where it is not installed the file is skipped by name; where
ONERNN_REQUIRE lists a module ("paddle" or "paddle,torch") onernn's pytest plugin stops the run, so
that none meant for a framework can pass without it.
"""

from __future__ import annotations

import os
import re

# paddle 2.6.2 brings its own zlib: whoever uses Python's after that, without having loaded it
# before, crashes.
import zlib  # noqa: F401
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import numpy.random  # noqa: F401
import pytest

import _onernn_pytestplugin  # noqa: F401  # who has not got it would not be stopped

# Read by paddle 3 when it is imported: without it there is no legacy static graph.
os.environ.setdefault("FLAGS_enable_pir_api", "0")


@pytest.fixture
def dynamic_mode() -> Iterator[None]:
    """Paddle as its layers want it; other files of this process build static graphs."""
    import paddle

    static = not paddle.in_dynamic_mode()
    paddle.disable_static()
    paddle.seed(0)
    yield
    if static:
        paddle.enable_static()


def _installed(name: str) -> bool:
    return find_spec(name) is not None or which(name) is not None


class FrameworkModule(pytest.Module):
    """A test file that is only imported where its framework is."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        named = re.match(r"test_(apache_beam|[a-z]+)_", self.path.name)
        if not named:
            raise self.CollectError(f"{self.path.name}: expected test_<framework>_<what>.py")
        if not _installed(named[1]):
            pytest.skip(f"{named[1]} is not installed", allow_module_level=True)
        return super().collect()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return FrameworkModule.from_parent(parent, path=module_path)
