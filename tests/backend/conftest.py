"""What tests of the kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onernn.backend.compiled import library
from onernn.kernels import build


@pytest.fixture(params=list(build.isas()))
def isa(request: Any, built: Path) -> Iterator[str]:
    """Each instruction set that is built and that this machine runs, as ONERNN_MAX_ISA has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONERNN_MAX_ISA", request.param)
        patch.setattr(library, "_kernels", None)
        if library.load_kernels().missing:
            pytest.skip(f"{request.param} is not built: make kernels ISAS=all")
        if library.load_kernels().isa != request.param:
            pytest.skip(f"this CPU has no {request.param}")
        yield request.param
