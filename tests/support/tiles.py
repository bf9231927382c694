"""Kernels with tiles on a CPU without AMX: a handler runs the instructions that the CPU lacks."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache
from pathlib import Path

from onernn.backend.compiled import library
from onernn.kernels import build
from support.compiling import compile_program

KERNELS = Path(__file__).parents[1] / "kernels"
TILES = "avx512_amx"


@cache
def _trap(folder: Path) -> None:
    """``folder``: of the trap's library."""
    path = folder / "libtrap.so"
    compile_program(KERNELS / "tile_trap.cpp", path, ("-O1", "-shared", "-fPIC"), KERNELS)
    ctypes.CDLL(str(path)).trap_tiles()


def load_trapped(known: library.Kernels, folder: Path) -> library.Kernels | None:
    """Returns the library with tiles, whose instructions are trapped from now on; None if the CPU
    lacks more than these, or if the library is not built.

    ``known``: the best library that runs without the trap.
    """
    if known.isa != "avx512_bf16" or not build.library_of(TILES, build.BUILT).exists():
        return None
    _trap(folder)
    key = build.sources_key() if build.sources() else None
    return replace(library._open(TILES, build.BUILT, key), runs=(*known.runs, TILES))
