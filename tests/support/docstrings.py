"""Examples in docstrings of public names: each is run, and prints what the docstring shows."""

from __future__ import annotations

import doctest
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import onernn

REPO = Path(__file__).resolve().parents[2]
FRAMEWORKS = {
    "onernn.adapters.mxnet": "mxnet",
    "onernn.adapters.paddle": "paddle",
    "onernn.adapters.torch": "torch",
    "onernn.scoring.beam": "apache_beam",
    "onernn.scoring.spark": "pyspark",
}
"""Modules whose examples need a framework."""


def reference() -> Any:
    """The module that makes the reference pages; it needs no framework."""
    spec = spec_from_file_location("generated_pages", REPO / "docs" / "generated_pages.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_PAGES = reference()
NAMES = [
    f"{module}.{name}"
    for task in _PAGES.TASKS.values()
    for module, names in task.names.items()
    for name in names
]
"""Every name of the reference."""


def docstring(path: str) -> str:
    """The docstring of a name; from the source if its module needs a framework."""
    module, _, name = path.rpartition(".")
    return _from_source(path) or getattr(import_module(module), name).__doc__ or ""


def _from_source(path: str) -> str:
    module, _, name = path.rpartition(".")
    if module not in _PAGES.READ:
        return ""
    source = (REPO / _PAGES.READ[module]).read_text()
    return "\n".join(line.strip() for line in _PAGES.read_entry(source, name))


def framework_of(path: str) -> str:
    """The framework that a name's example needs; "" for none."""
    module = path.rpartition(".")[0]
    needs = module not in _PAGES.READ or _from_source(path)
    return FRAMEWORKS.get(module, "") if needs else ""


def framework_examples(framework: str) -> list[str]:
    """The names whose examples need a framework."""
    return [path for path in NAMES if framework_of(path) == framework]


def checked_examples(framework: str) -> type:
    """A class of tests for the names whose examples need a framework."""

    class TestExamples:
        @pytest.mark.parametrize("path", framework_examples(framework))
        def test_an_example_prints_what_its_docstring_shows(
            self, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
        ) -> None:
            monkeypatch.chdir(tmp_path)
            count, problems = run(path)
            assert count and not problems, problems

    return TestExamples


def run(path: str) -> tuple[int, str]:
    """Runs the examples of a name and of its members; returns their number and what went wrong."""
    module, _, name = path.rpartition(".")
    found = getattr(import_module(module), name)
    home = found if isinstance(found, ModuleType) else sys.modules[found.__module__]
    parser, told = doctest.DocTestFinder(exclude_empty=True), list[str]()
    count = 0
    for test in parser.find(found, path, home, globs={"np": np, "onernn": onernn}):
        count += len(test.examples)
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append)
    return count, "".join(told)
