"""The copy of the sources in which faults stand, one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mutants import Checkout


@pytest.fixture(scope="session")
def checkout(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(repo, tmp_path_factory.mktemp("mutants"))
