"""Which modules PyTorch's plug-in replaces, and which stay with PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.golden import check

torch = pytest.importorskip("torch")
plugin = pytest.importorskip("onernn.adapters.torch")


def test_the_same_modules_are_replaced_inside_pytorch(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(repo / "tests" / "frameworks")
    sys.modules.pop("torch_programs", None)
    import torch_programs

    entries = {}
    for name in torch_programs.MODELS:
        module, inputs = torch_programs.built(name)
        optimized = plugin.optimize(module.eval(), inplace=True)
        with torch.no_grad():
            optimized(*inputs(2, 5))
        lines = plugin.explain(optimized).splitlines()
        entries[name] = {"layers": [" ".join(line.split(";")[0].split()[:2]) for line in lines]}
    check("torch", entries)
