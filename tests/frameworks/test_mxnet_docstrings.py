"""Examples of public docstrings that need mxnet: they print what the docstrings show."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.docstrings import framework_examples, run


@pytest.mark.parametrize("path", framework_examples("mxnet"))
def test_an_example_prints_what_its_docstring_shows(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    count, problems = run(path)
    assert count and not problems, problems
