"""Models with loops, branches, arrays and convolutions that Paddle saves and runs here."""

from __future__ import annotations

import os
from pathlib import Path

import paddle
import pytest
from support.interpreters import run_python

from onernn import load, verify

LOOPS = 11 if paddle.__version__ >= "3" else 10


@pytest.mark.parametrize("kind, count", [("loops", LOOPS), ("images", 4)])
def test_models_saved_now_give_what_paddle_gives(
    kind: str, count: int, tmp_path: Path, repo: Path
) -> None:
    """In a process of its own: a process has one format."""
    env = {name: value for name, value in os.environ.items() if name != "FLAGS_enable_pir_api"}
    module = f"tests.frameworks.record_paddle_{kind}"
    run_python("-m", module, tmp_path, timeout=300, cwd=repo, env=env)
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == count
    for folder in folders:
        report = verify(load(folder), folder / "io.npz")
        assert report.passed and report.outputs, (folder.name, report.outputs)
