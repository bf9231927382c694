"""ONERNN_MAX_ISA: the best instruction set that kernels, and oneDNN's primitives, may use."""

from __future__ import annotations

import os

from onernn.ir.errors import LibraryError
from onernn.kernels.build import isas

VARIABLE = "ONERNN_MAX_ISA"
ONEDNN = {
    "v2": "sse41",
    "avx2": "avx2",
    "avx512": "avx512_core",
    "avx512_vnni": "avx512_core_vnni",
    "avx512_bf16": "avx512_core_bf16",
}
"""What oneDNN calls them; where ONEDNN_MAX_CPU_ISA is set it asks that instead."""


def wished_isa() -> str | None:
    """The cap that the environment sets; `LibraryError` for a name that nobody knows."""
    wish = os.environ.get(VARIABLE, "").lower()
    if wish in ("", *isas()):
        return wish or None
    raise LibraryError(
        f"{VARIABLE}={os.environ[VARIABLE]}: no instruction set of this machine's libraries;"
        f" unset it, or take one of {', '.join(isas())}"
    )
