"""Examples of public docstrings that need pyspark: they print what the docstrings show."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.docstrings import framework_examples, run


@pytest.mark.parametrize("path", framework_examples("pyspark"))
def test_an_example_prints_what_its_docstring_shows(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    count, problems = run(path)
    if session := SparkSession.getActiveSession():  # other tests start one with their options
        session.stop()
    assert count and not problems, problems
