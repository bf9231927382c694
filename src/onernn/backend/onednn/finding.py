"""Where libdnnl is, told without loading it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from onernn.ir.errors import LibraryError

VARIABLE = "ONERNN_DNNL_LIBRARY"
ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
WISHES = (VARIABLE, *ISA_VARIABLES)
"""Variables of the environment that are followed, or refused by name."""
DISTRIBUTION = "onednn-cpu-gomp"
ADVICE = f"set {VARIABLE} to a libdnnl.so of oneDNN 3.2 or newer, or use backend='reference'"


def find() -> Path:
    """Where the library is; `LibraryError` as `load_library` where none is."""
    override = os.environ.get(VARIABLE)
    if override:
        path = Path(override).absolute()
        if not path.is_file():
            raise LibraryError(f"{VARIABLE}={override}: no such file")
        return path
    for path in _installed():
        if path.name == "libdnnl.so.3" and path.is_file():
            return path.resolve()
    raise LibraryError(
        f"libdnnl not found: the distribution {DISTRIBUTION}, which exists for Linux x86-64 only"
        f" (this is {platform.system()} {platform.machine()}), is not installed or incomplete;"
        f" run: pip install {DISTRIBUTION}==2023.2.0; or {ADVICE}"
    )


def _installed() -> Iterator[Path]:
    """The distribution's files, as pip recorded them.

    `importlib.metadata` reads the same, but importing it takes longer than loading a small model.
    """
    start = f"{DISTRIBUTION.replace('-', '_')}-"
    for folder in filter(os.path.isdir, sys.path):
        for name in os.listdir(folder):
            if name.startswith(start) and name.endswith(".dist-info"):
                record = Path(folder, name, "RECORD")
                lines = record.read_text(errors="replace").splitlines() if record.is_file() else []
                yield from (Path(folder, line.partition(",")[0]) for line in lines)
