"""What tests of the kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tiles import TILES, load_trapped

from onernn.backend.compiled import library
from onernn.kernels import build


@pytest.fixture(params=list(build.isas()))
def isa(request: Any, built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Each instruction set that is built and that this machine runs, as ONERNN_MAX_ISA has it.

    Where the CPU lacks AMX alone, its instructions are trapped.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONERNN_MAX_ISA", request.param)
        patch.setattr(library, "_kernels", None)
        kernels = library.load_kernels()
        if kernels.missing:
            pytest.skip(f"{request.param} is not built: make kernels ISAS=all")
        if request.param == TILES and kernels.isa != TILES:
            kernels = load_trapped(kernels, tmp_path_factory.getbasetemp()) or kernels
            patch.setattr(library, "_kernels", kernels)
        if kernels.isa != request.param:
            pytest.skip(f"this CPU has no {request.param}")
        yield request.param
