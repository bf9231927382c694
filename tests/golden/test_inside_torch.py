"""Which modules PyTorch's plug-in replaces, and which stay with PyTorch."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from support.golden import check

torch = pytest.importorskip("torch")
plugin = pytest.importorskip("onernn.adapters.torch")


def test_the_same_modules_are_replaced_inside_pytorch(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(repo / "tests" / "frameworks")
    models = importlib.import_module("torch_programs").MODELS
    entries = {}
    for name, (build, _) in models.items():
        optimized = plugin.optimize(build().eval(), inplace=True)
        lines = plugin.explain(optimized).splitlines()
        # Each line reads "NAME: RUNNER: more".
        entries[name] = {"layers": [":".join(line.split(":")[:2]) for line in lines]}
    check("torch", entries)
