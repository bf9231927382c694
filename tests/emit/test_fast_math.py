"""Generated code under the compiler's modes that are not IEEE 754: right, or not compiled."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from emit.test_cells_and_lanes import check, graph_of
from support.compiling import EMULATOR, compiler
from support.emitting import build, generated
from support.layers import random_weights

from onernn import Cell, RnnSpec

MODES = [
    "-ffast-math",
    "-Ofast",
    "-fassociative-math -fno-signed-zeros -fno-trapping-math",
    "-ffinite-math-only",
    "-freciprocal-math",
    "-funsafe-math-optimizations",
    "-fsingle-precision-constant",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-fno-math-errno -fno-trapping-math",
]
HARMLESS = 3
"""The last ones: GCC ignores -fassociative-math alone, the others change no result here."""


def _refused(folder: Path, flags: list[str]) -> bool:
    (folder / "only.cpp").write_text('#include "m.hpp"\n')
    command = [compiler(), "-std=c++17", "-fsyntax-only", *flags, str(folder / "only.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "wrong results with -ffast-math" in done.stderr, done.stderr
    return done.returncode != 0


@pytest.mark.skipif(bool(EMULATOR), reason="the modes are the compiler's, not the target's")
@pytest.mark.parametrize("mode", MODES)
def test_results_are_right_or_the_code_does_not_compile(mode: str, tmp_path: Path) -> None:
    spec = RnnSpec(Cell.GRU, 5, 9)
    weights = random_weights(spec, 4)
    model = graph_of(spec, weights)
    for file, content in generated("m", model).files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused = _refused(tmp_path, ["-O3", *mode.split()])
    assert refused == (mode not in MODES[-HARMLESS:])
    if not refused:
        flags = ("-O1", "-ftree-vectorize", *mode.split(), "-Wno-error")
        emitted = build({"m": model}, tmp_path / "run", flags)["m"]
        check(emitted, spec, weights, "float", rtol=1e-5)
