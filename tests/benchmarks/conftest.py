"""The modules of benchmarks/, which are no package of the installation."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def module(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(repo))

    def imported(name: str) -> ModuleType:
        return import_module(f"benchmarks.{name}")

    return imported
